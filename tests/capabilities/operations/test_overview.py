"""The overview compared with real work, real alerts and a worker that is killed."""

import asyncio
import json
from pathlib import Path

import pytest
from pydantic import SecretStr

from kit.api import running_api
from kit.engine import SHORT, WorkerProcess, running_engine
from kit.fanout import MODULE, Hub, registry_of
from kit.polling import Ground
from kit.streams import CountingProbe, open_stream
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.admin.figures import TypeFigureReader
from tickwright.capabilities.jobs.admin.search import JobFilter, JobSearch
from tickwright.capabilities.jobs.model import Job
from tickwright.capabilities.jobs.overview import SQL, read_backlog
from tickwright.capabilities.polling.overview import SQL as POLLING
from tickwright.plugin import Registrations
from tickwright.plugin.settings import Bind, Settings
from tickwright.process.installation import overview_parts
from tickwright.process.node import open_node
from tickwright.process.watching import DatabaseReadings
from tickwright.store.pool import Pool

STARTS = 60


async def test_figures_are_those_of_real_work(database_url: str) -> None:
    """Due, waiting and running as in the table and the worker; each start is counted once, by its lateness."""
    gate = asyncio.Event()

    async def work(_: Job) -> None:
        await gate.wait()

    async with running_api(database_url) as api, running_engine(database_url, {"work": work}, terms=SHORT) as engine:
        async with open_stream(api.viewer) as stream:
            await stream.until(lambda one: one["jobs"]["started_per_s"] is not None and one["workers"]["alive"] == 1)
            for _ in range(STARTS):
                await engine.insert("work")
            for _ in range(7):
                await engine.insert("nobodys", at="now() - interval '90 seconds'")
            await engine.insert("work", at="now() + interval '1 hour'")
            found = await stream.until(lambda one: one["jobs"]["running"] == STARTS)
            jobs = found["jobs"]
            assert (jobs["due"], jobs["waiting"], jobs["capped_at"]) == (7, 1, 10_000)
            assert 90 <= jobs["oldest_due_s"] < 150
            assert jobs["lateness"]["starts"] == STARTS
            assert 0 < jobs["lateness"]["p50_s"] <= jobs["lateness"]["p99_s"]
            assert jobs["not_caught_up"] in {"not_catching_up", "measuring"}
            assert jobs["latest"][0]["task_type"] == "work"
            gate.set()
            ended = await stream.until(lambda one: one["jobs"]["running"] == 0)
            assert ended["jobs"]["finished_per_s"]["completed"] > 0
            assert ended["jobs"]["finished_per_s"]["failed"] == 0
            assert ended["jobs"]["started_per_s"] > 0
            assert ended["changes"]["jobs"] > found["changes"]["jobs"]
            assert ended["series"] is None
        view = (await api.viewer.get("/v1/overview")).json
        assert view["stale_since"] is None
        assert len(view["series"]["due"]) == len(view["series"]["at"]) >= 1
        assert view["workers"]["by_role"] == {"worker": 1}


async def test_a_killed_worker_is_no_longer_counted_after_its_lease(database_url: str, tmp_path: Path) -> None:
    """Its facts count until its lease ends; then the other worker has its jobs, and it is among the lost."""
    async with running_api(database_url) as api, running_engine(database_url, terms=SHORT) as engine:
        process = WorkerProcess(database_url, tmp_path / "log", lease_s=1.5, concurrency=20, work_s=120)
        try:
            async with open_stream(api.viewer) as stream:
                await stream.until(lambda one: one["workers"]["alive"] == 2)
                for _ in range(5):
                    await engine.insert("work")
                await stream.until(lambda one: one["jobs"]["running"] == 5)
                process.kill9()
                found = await stream.until(lambda one: one["workers"]["alive"] == 1)
                assert found["jobs"]["running"] == 0
                lost = await stream.until(lambda one: one["workers"]["lost_lately"] == 1)
                assert lost["stale_since"] is None
                await stream.until(lambda one: one["jobs"]["due"] == 5)
        finally:
            process.process.kill()
            process.process.wait()


async def test_newer_warnings_hide_no_critical_alert(database_url: str) -> None:
    """Of the firing alerts five are shown: the most severe first, of these the newest."""
    async with running_api(database_url) as api:
        await api.pool.execute(
            """INSERT INTO tickwright.alerts (rule, subject, severity, summary, state)
               SELECT 'r', n::text, CASE WHEN n IN (1, 2) THEN 'critical' WHEN n < 6 THEN 'warning' ELSE 'info' END,
                      'n' || n, 'firing'
                 FROM generate_series(1, 20) AS n ORDER BY n"""
        )
        found = (await api.viewer.get("/v1/overview")).json
        assert [one["summary"] for one in found["alerts"]["newest"]] == ["n2", "n1", "n5", "n4", "n3"]


async def test_the_overview_has_alerts_leases_the_outbox_and_dead_letters(database_url: str) -> None:
    """Alerts by severity, the most severe first, overdue leases, the outbox by destination, dead letters."""
    async with running_api(database_url) as api:
        await api.pool.execute(
            """INSERT INTO tickwright.alerts (rule, subject, severity, summary, state)
               VALUES ('r', 'a', 'critical', 'it burns', 'firing'), ('r', 'b', 'warning', 'it smokes', 'firing'),
                      ('r', 'c', 'critical', 'it burnt', 'resolved')"""
        )
        await api.pool.execute(
            """INSERT INTO tickwright.job_config (job_name, running, owner, lease_until, version)
               VALUES ('upkeep', true, 'x', now() - interval '1 minute', 3),
                      ('relay', true, 'x', now() + interval '1 hour', 1),
                      ('alerting', false, NULL, NULL, 1)"""
        )
        await api.pool.execute(
            """INSERT INTO tickwright.outbox (destination, payload, error_message, attempts)
               VALUES ('amqp:a', '1', 'refused', 1), ('amqp:a', '2', NULL, 0), ('kafka:b', '3', NULL, 0)"""
        )
        await api.pool.execute(
            """INSERT INTO tickwright.outbox_dead (id, destination, payload, headers, created_at, attempts)
               VALUES (99, 'amqp:a', '1', '{}', now(), 5)"""
        )
        found = (await api.viewer.get("/v1/overview")).json
        alerts = found["alerts"]
        assert (alerts["critical"], alerts["warning"], alerts["info"]) == (1, 1, 0)
        assert [one["summary"] for one in alerts["newest"]] == ["it burns", "it smokes"]
        assert found["leases"] == {"held": 1, "free": 1, "overdue": ["upkeep"]}
        outbox = found["outbox"]
        assert (outbox["waiting"], outbox["destinations"], outbox["failing"]) == (3, 2, 1)
        assert found["dead_letters"] == {"jobs": 0, "outbox": 1, "fanout": None}
        assert found["jobs"]["not_caught_up"] == "nothing_due"
        assert found["jobs"]["started_per_s"] == 0


async def test_a_change_raises_the_number_of_its_list_only(database_url: str) -> None:
    """A view fetches its list again only when that number changes."""
    async with running_api(database_url, looks={"every_s": 0.05}) as api, open_stream(api.viewer) as stream:
        before = (await stream.next())["changes"]
        await api.pool.execute(
            "INSERT INTO tickwright.alerts (rule, subject, severity, summary, state) "
            "VALUES ('r', 'a', 'info', 'new', 'firing')"
        )
        after = (await stream.until(lambda one: one["changes"]["alerts"] != before["alerts"]))["changes"]
        assert {name for name in after if after[name] != before[name]} == {"alerts"}


async def test_no_queries_run_while_the_overview_is_not_read(database_url: str) -> None:
    """A closed page costs nothing; a single request is answered with a new snapshot, and so for some seconds."""
    probe = CountingProbe()
    async with running_api(database_url, looks={"every_s": 0.05, "probe": probe}) as api:
        async with open_stream(api.viewer) as stream:
            await stream.next()
            await stream.next()
        await eventually_async(lambda: api.overview.streams == 0, what="the stream has ended")
        assert probe.reached_times
        await eventually_async(lambda: not api.overview._is_wanted(), 10, what="the overview is not read")
        seen = probe.reached_times
        assert (await api.viewer.get("/v1/workers")).status == 200
        assert probe.reached_times == seen


@pytest.mark.storm
async def test_runs_of_entities_are_in_the_throughput_and_in_the_figures_of_their_partner(database_url: str) -> None:
    """A real scheduler and consumer poll entities: the overview has their rate, the partner their calls."""
    settings = Settings(database_url=SecretStr(database_url), metrics_bind=Bind("127.0.0.1", 0))
    registrations = Registrations(registry_of({MODULE: Hub()}))
    async with running_api(database_url) as api:
        await api.pool.execute("INSERT INTO tickwright.partners (name) VALUES ('hub')")
        async with open_node(
            settings, ["scheduler", "fanout-consumer"], registrations=registrations, any_port=True
        ) as node:
            running = asyncio.create_task(node.run(signals=False))
            try:
                async with open_stream(api.viewer) as stream:
                    await stream.until(lambda one: one["fanout"]["called_per_s"] == 0)
                    await api.pool.execute(
                        """INSERT INTO tickwright.entities (code, polling_enabled_modules, partner)
                           SELECT 'E' || n, $1, 'hub' FROM generate_series(1, 20) n""",
                        MODULE,
                    )
                    found = await stream.until(lambda one: one["fanout"]["called_per_s"] > 0)
                    assert found["jobs"]["started_per_s"] in {0, None}

                async def counted() -> bool:
                    rows = await api.pool.fetch("SELECT facts -> 'counters' AS said FROM tickwright.workers")
                    reported = [json.loads(row["said"]) for row in rows]
                    return {"hub": {"answered": 20, "throttled": 0, "failed": 0}} in [
                        one.get("partners") for one in reported
                    ]

                await eventually_async(counted, 20.0)
            finally:
                node.supervisor.request_stop()
                await running


async def test_a_count_that_stopped_at_its_bound_says_so(pool: Pool) -> None:
    """Running jobs among the oldest do not reduce the bound: 10 of 12 due ones are "10 or more", never 8."""
    insert = "INSERT INTO tickwright.scheduled_tasks (task_type, payload, execute_at)"
    await pool.execute(f"{insert} SELECT 'a', '{{}}', now() FROM generate_series(1, 14)")
    await pool.execute(
        "UPDATE tickwright.scheduled_tasks SET status = 'processing', owner = 1 "
        "WHERE id IN (SELECT id FROM tickwright.scheduled_tasks ORDER BY id LIMIT 2)"
    )
    for bound, due in ((10, 10), (12, 12), (13, 12)):
        (row,) = await pool.fetch(SQL["gauges"], bound)
        assert (row["due"], row["processing"]) == (due, 2)


async def test_unknown_types_hide_no_registered_type_from_figures(pool: Pool) -> None:
    """Every role that inserts jobs may invent types; a registered type is counted before them, and a cut is marked."""
    await pool.execute("INSERT INTO tickwright.task_types (name, target) VALUES ('real', 'python:real')")
    insert = "INSERT INTO tickwright.scheduled_tasks (task_type, execute_at)"
    await pool.execute(f"{insert} SELECT 'real', now() FROM generate_series(1, 50)")
    figures, counts = await TypeFigureReader(pool).figures(), await JobSearch(pool).count(JobFilter())
    assert not figures.partial
    assert (counts.counts["pending"], counts.at_least) == (50, frozenset())

    await pool.execute(f"{insert} SELECT '0x' || n, now() FROM generate_series(1, 1500) AS n")
    figures, counts = await TypeFigureReader(pool).figures(), await JobSearch(pool).count(JobFilter())
    assert [one.due for one in figures.items if one.name == "real"] == [50]
    assert figures.partial
    assert counts.counts["pending"] >= 50  # those of the registered type; a busy machine counts few more
    assert counts.at_least == {"pending", "processing"}
    assert (await JobSearch(pool).count(JobFilter(task_type="real"))).at_least == frozenset()

    async with pool.acquire() as connection:
        backlog = await read_backlog(connection)
    assert (backlog.cut, backlog.due >= 1050) == (True, True)
    readings = DatabaseReadings(pool, overview_parts())
    await readings.refresh()
    samples = {(one.name, one.labels): one.value for one in readings()}
    assert samples["tickwright_jobs_due", ("real",)] == 50
    assert samples["tickwright_jobs_partial", ()] == 1


async def test_a_running_job_of_a_registered_type_is_found_among_unknown_types(pool: Pool) -> None:
    """Jobs that a worker holds are searched in the ranges of registered types first."""
    await pool.execute("INSERT INTO tickwright.task_types (name, target) VALUES ('real', 'python:real')")
    insert = "INSERT INTO tickwright.scheduled_tasks (task_type, execute_at)"
    await pool.execute(f"{insert} SELECT '0x' || n, now() FROM generate_series(1, 1500) AS n")
    job_id = await pool.fetchval(f"{insert} VALUES ('real', now()) RETURNING id")
    await pool.execute("UPDATE tickwright.scheduled_tasks SET status = 'processing', owner = 7 WHERE id = $1", job_id)
    assert (await JobSearch(pool).newest(JobFilter(worker=7), 2**63 - 1, 10)).ids == [job_id]


async def test_trackers_are_counted_up_to_a_bound_and_estimated_beyond_it(pool: Pool) -> None:
    """The planner's statistics are those of the last vacuum: they are not used where all trackers were counted."""
    ground = Ground(pool)
    await ground.partner()
    slot = await ground.wheel(5)
    for number in range(30):
        await ground.place(slot, number, external=f"A{number}")
    await pool.execute("ANALYZE tickwright.trackers")
    shown = [(await pool.fetchrow(POLLING["polls"], bound))["trackers"] for bound in (100, 6, 5, 1)]
    assert shown == [30, 30, 30, 30]
    await pool.execute("DELETE FROM tickwright.trackers WHERE external_id <> 'A0'")
    assert (await pool.fetchrow(POLLING["polls"], 100))["trackers"] == 1
