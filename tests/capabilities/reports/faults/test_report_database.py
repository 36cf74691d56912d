"""PostgreSQL restarted, disconnected and used by two processes at once; sources that die in the middle."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kit.probes import Stops
from kit.report_faults import AGAIN_S, LARGE, SMALL, ReportWorlds, ask, functions, is_clean, is_made, is_true
from kit.reports import OVER, ReportWorld, plan_of, report_world
from kit.servers import PostgresServer
from kit.tcp_proxy import TcpProxy
from kit.waiting import eventually_async
from tickwright.capabilities.reports.plan import Listener
from tickwright.capabilities.reports.requests.store import FinishedFile
from tickwright.ports.reports import PartFacts
from tickwright.store.migrate import migrate


@pytest.fixture(scope="module")
def mortal_url(mortal_postgres: PostgresServer) -> str:
    """A database on a server that may be killed."""
    url = mortal_postgres.create_database("mortal")
    migrate(url)
    return url


@pytest.fixture
async def mortal(mortal_url: str, tmp_path: Path) -> AsyncIterator[ReportWorld]:
    """A world on it."""
    async with report_world(mortal_url, tmp_path) as world:
        yield world


@pytest.mark.matrix
@pytest.mark.parametrize("point", ["reports.part_fetched", "reports.merging", "reports.uploaded"])
async def test_a_restart_of_the_database_costs_seconds(
    mortal: ReportWorld, mortal_postgres: PostgresServer, point: str
) -> None:
    """During the query, at the merge and before the record is written: what was under way goes on, or is done again."""
    stops = Stops()
    stops.close(point)
    async with mortal.process(functions(), probe=stops):
        report = await ask(mortal)
        await eventually_async(lambda: stops.reached_times[point] >= 1)
        await asyncio.to_thread(mortal_postgres.restart, "immediate")
        stops.open(point)

        async def over() -> bool:
            try:
                return (await mortal.record(report))["status"] in OVER
            except OSError:
                return False

        await eventually_async(over, AGAIN_S, what="it has ended")
        await is_made(mortal, report)
    await is_clean(mortal, report)


async def test_a_step_whose_answers_are_lost_is_claimed_again_by_a_live_session(
    report_worlds: ReportWorlds,
) -> None:
    """Its answers are lost and the session lives: the step that the ledger has under it is released and finished."""
    world = await report_worlds.make("postgres")
    async with TcpProxy("127.0.0.1", report_worlds.postgres.port) as proxy:
        stops = Stops()
        stops.close("reports.uploaded")
        url = proxy.rewrite(world.url)
        async with world.process(functions(), probe=stops, database_url=url, hears=False) as process:
            report = await ask(world)
            await eventually_async(lambda: stops.reached_times["reports.uploaded"] == 1)
            proxy.refuse()
            proxy.reset()
            stops.open("reports.uploaded")  # neither its finish nor its release reaches the database
            await eventually_async(lambda: process.supervisor.counts["lost"] == 1)
            proxy.heal()
            await is_made(world, report)
    await is_clean(world, report)


async def test_a_file_whose_commit_was_not_answered_is_kept(report_worlds: ReportWorlds) -> None:
    """The connection is cut after COMMIT: the record has the file, so the file stays."""
    world = await report_worlds.make("postgres")
    async with TcpProxy("127.0.0.1", report_worlds.postgres.port) as proxy:
        stops = Stops()
        stops.close("reports.uploaded")
        async with world.process(functions(), probe=stops, database_url=proxy.rewrite(world.url)):
            report = await ask(world)
            await eventually_async(lambda: stops.reached_times["reports.uploaded"] == 1)
            proxy.drop_replies_after(b"COMMIT")
            stops.open("reports.uploaded")
            row = await world.over(report, AGAIN_S)
            proxy._last_word = None
            proxy.reset()
            proxy.heal()
        await is_true(world, row)
    await is_clean(world, report)
    await is_true(world, row)


async def test_a_delayed_step_is_not_due_before_its_delay(report_worlds: ReportWorlds) -> None:
    """Even if its delayed check is due: ten tries with an unavailable store must not end in a moment."""
    world = await report_worlds.make("postgres")
    report = await ask(world)
    await world.pool.execute("UPDATE tickwright.reports SET step_at = now(), check_at = now() - interval '1 min'")
    [step] = await world.records.claim(1, 1)
    await world.records.leave(step, 1, after_s=30.0)
    later = "SELECT step_at > now() + interval '20 s' FROM tickwright.reports WHERE id = $1"
    due = await world.pool.fetchval(later, report)
    assert due


async def test_two_supervisors_claim_each_step_once(report_worlds: ReportWorlds) -> None:
    """Fifty reports: one file each, before retention, and no lost step."""
    world = await report_worlds.make("redis")
    asked = [await ask(world, SMALL, seed) for seed in range(50)]
    async with world.process(functions()) as one, world.process(functions()) as two:
        for report in asked:
            await is_made(world, report, 60)
            assert len(await world.objects.listing(f"reports/{report}/", 10)) == 1
        await eventually_async(lambda: one.supervisor.running + two.supervisor.running == 0)
        counts = one.supervisor.counts + two.supervisor.counts
    assert (counts["finished"], counts["lost"]) == (50, 0)


async def test_of_a_concurrent_cancel_and_finish_exactly_one_counts(report_worlds: ReportWorlds) -> None:
    """Two hundred pairs: a cancelled report has no file, and a finished one has the file that it names."""
    world = await report_worlds.make("postgres")
    asked = [await ask(world, SMALL, seed) for seed in range(200)]
    await world.pool.execute("UPDATE tickwright.reports SET step_at = now()")
    steps = await world.records.claim(1, 200)
    assert sorted(step.id for step in steps) == sorted(asked)
    outcomes: Counter[str] = Counter()
    for number, step in enumerate(steps):
        assert await world.records.begin_merge(step, 1)
        file = FinishedFile("file:///x", f"reports/{step.id}/x", PartFacts((), 1, 1, "0" * 64), {})
        pair = [world.records.finish(step, 1, file), world.cancel(step.id)]
        answers = await asyncio.gather(*(pair if number % 2 else reversed(pair)))
        finished, cancelled = answers if number % 2 else reversed(answers)
        assert finished != cancelled, "G2 broken: one of both, never both and never none"
        row = await world.record(step.id)
        assert (row["status"], row["file_key"] is not None) == ("finished" if finished else "cancelled", finished)
        outcomes[row["status"]] += 1
    assert set(outcomes) == {"finished", "cancelled"}, outcomes


class Cancels:
    """A probe that cancels reports, after the merge, after the upload or too late."""

    def __init__(self, world: ReportWorld) -> None:
        self._world = world
        self.answers: dict[int, asyncio.Task[bool]] = {}

    async def reached(self, name: str, /, **facts: object) -> None:
        """Begin to cancel the report; its step goes on."""
        report = facts.get("report")
        if isinstance(report, int) and name == ("reports.uploaded", "reports.finished", "reports.merged")[report % 3]:
            self.answers[report] = asyncio.create_task(self._world.cancel(report))


async def test_a_cancelled_report_keeps_no_file_and_a_finished_one_keeps_its_own(report_worlds: ReportWorlds) -> None:
    """The answer to the cancel, the record and the objects agree."""
    world = await report_worlds.make("postgres")
    cancels = Cancels(world)
    async with world.process(functions(), probe=cancels):
        asked = [await ask(world, SMALL, seed) for seed in range(12)]
        for report in asked:
            row = await world.over(report, 60)
            if row["status"] == "finished":
                await is_true(world, row)
    for report, answer in cancels.answers.items():
        assert await answer == ((await world.record(report))["status"] == "cancelled")
    for report in asked:
        await is_clean(world, report)


async def test_a_source_that_dies_during_a_query_is_queried_again(report_worlds: ReportWorlds) -> None:
    """The attempt fails, and the next one fetches all rows once."""
    world, rows = await report_worlds.make("postgres"), LARGE
    held = (
        "SELECT number AS id, CASE WHEN number = :rows THEN length(pg_sleep(:nap)::text) ELSE 0 END AS nap "
        "FROM generate_series(1, :rows) AS number"
    )
    async with TcpProxy("127.0.0.1", report_worlds.postgres.port) as proxy:
        listener = Listener(name="lefts", kind="sql", source="src", sql=held)
        plan = plan_of(listener, merge="SELECT count(*) AS n, sum(id) AS total FROM lefts")
        async with world.process({}, sources={"src": proxy.rewrite(world.url)}):
            report = await world.request(plan, {"rows": rows, "nap": 2})

            async def under_way() -> bool:
                return (await world.part(report, "lefts"))["state"] == "running" and proxy.connection_count > 0

            await eventually_async(under_way)
            await eventually_async(lambda: proxy.flows["to_server"].passed_bytes > 200)
            proxy.reset()
            row = await world.finished(report, AGAIN_S)
            assert await world.table(row) == [[str(rows), str(rows * (rows + 1) // 2)]]
            assert (await world.part(report, "lefts"))["attempts"] == 2
