"""Groups of jobs while workers are killed, rows are locked and hints are lost."""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import asyncpg
import pytest

from kit.claims import OWNERS
from kit.engine import Engine, Event, WorkerProcess, connect, insert, policy, read_events, running_engine
from kit.mutants import mutate, mutate_sql
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.model import Job
from tickwright.capabilities.jobs.retention import SQL as UPKEEP
from tickwright.capabilities.jobs.worker.places import PlaceQueues
from tickwright.capabilities.jobs.worker.worker import JobWorker

FILL = """
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload, max_attempts, group_key)
SELECT now(), $1, '{}', 20, 'g' || n % 4 FROM generate_series(1, 80) AS n RETURNING id, group_key
"""
WAITS_FOR_AN_END = """
INSERT INTO tickwright.job_groups (task_type, group_key, more, held, places)
VALUES ('mail', 'g', true, '{1000000}', '{1}')
"""
DEAD_SESSION = """
INSERT INTO tickwright.workers (id, name, roles, version, lease_until)
VALUES (nextval('tickwright.fence_seq'), 'dead', '{worker}', '0', now() - interval '1 minute')
"""
EXPIRED = datetime(2020, 1, 1, tzinfo=UTC)
THREE_JOBS = """
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload, group_key)
SELECT now() - interval '1 second' + n * interval '1 ms', 'mail', '{}', 'g' FROM generate_series(1, 3) AS n
"""
CLAIM = """
SELECT id
  FROM tickwright.claim_groups(
         $1, 0, 'mail', false, true, $2, 10, 8, $2, 10, interval '0', NULL, NULL, '{g}', $3, $4, 10)
 WHERE id IS NOT NULL ORDER BY id
"""
LIVE = "SELECT count(*) FROM ONLY tickwright.scheduled_tasks"

WAITS = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"


def overlaps(events: list[Event], group_of: dict[int, str], killed_s: float, killed: set[int]) -> list[tuple[str, int]]:
    """Return the starts of jobs that began while another one of their group ran; a killed attempt ends at the kill."""
    ends = {(event.job_id, event.fence): event.at_s for event in events if event.tag == "E"}
    runs: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for event in events:
        if event.tag == "S":
            end_s = ends.get((event.job_id, event.fence), killed_s if event.job_id in killed else float("inf"))
            runs[group_of[event.job_id]].append((event.at_s, end_s, event.job_id))
    found = []
    for group, spans in runs.items():
        spans.sort()
        found += [(group, span[2]) for before, span in pairwise(spans) if span[0] < before[1]]
    return found


@pytest.mark.parametrize("task_type", ["grouped", "ordered"])
async def test_a_killed_worker_breaks_no_limit_and_leaves_no_group_behind(
    database_url: str, tmp_path: Path, task_type: str
) -> None:
    """Two workers, one of them killed while it holds groups: one job of a group runs at a time, and all of them run."""
    logs = [tmp_path / f"{name}.log" for name in ("killed", "other")]
    killed = WorkerProcess(database_url, logs[0], lease_s=3, work_s=0.03)
    connection = await connect(database_url)
    other = None
    try:
        registered = "SELECT count(*) FROM tickwright.task_types WHERE name = $1"
        await eventually_async(lambda: connection.fetchval(registered, task_type), what="the types are there")
        group_of = {row["id"]: row["group_key"] for row in await connection.fetch(FILL, task_type)}
        await eventually_async(lambda: len(read_events(logs[0])) > 8, what="it holds groups")
        other = WorkerProcess(database_url, logs[1], lease_s=3, work_s=0.03)
        killed.kill9()
        killed_s = time.time()
        await eventually_async(lambda: _none(connection), 40, what="all have run")
    finally:
        killed.stop()
        if other is not None:
            other.stop()
        await connection.close()
    events = read_events(*logs)
    ended = {event.job_id for event in events if event.tag == "E"}
    assert ended == set(group_of)
    begun_there = {event.job_id for event in read_events(logs[0]) if event.tag == "S"}
    assert overlaps(events, group_of, killed_s, begun_there) == []
    if task_type == "ordered":
        for group in set(group_of.values()):
            last = [event.job_id for event in events if event.tag == "E" and group_of[event.job_id] == group]
            firsts = list(dict.fromkeys(sorted(last, key=lambda job: _first_end(events, job))))
            assert firsts == sorted(firsts)


def _first_end(events: list[Event], job_id: int) -> float:
    return min(event.at_s for event in events if event.tag == "E" and event.job_id == job_id)


async def _none(connection: object) -> bool:
    return not await connection.fetchval(LIVE)  # type: ignore[attr-defined]


async def _limit_holds(url: str) -> None:
    running, most, done = 0, 0, 0

    async def mail(_job: Job) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        done += 1

    kinds = {"mail": policy("mail", group_limit=2)}
    async with (
        running_engine(url, {"mail": mail}, kinds=kinds) as engine,
        running_engine(url, {"mail": mail}, kinds=kinds),
    ):
        for _ in range(100):
            await engine.insert("mail", group_key="g")
        await eventually_async(lambda: done == 100, 20, what="all have run")
    assert most <= 2, f"{most} ran at once"


async def test_a_limit_holds_while_jobs_come_one_by_one(database_url: str) -> None:
    """Each insert makes a claim look at the group, whose places are taken."""
    await _limit_holds(database_url)


@pytest.mark.mutant
async def test_the_suite_notices_a_claim_that_does_not_count_what_runs(database_url: str) -> None:
    """Which places are taken is read from the rows of the jobs."""
    await mutate_sql(database_url, "claim_groups", "t.status = 'processing' AND t.group_key = g.group_key", "false")
    with pytest.raises(AssertionError, match="ran at once"):
        await _limit_holds(database_url)


@pytest.mark.mutant
async def test_the_suite_notices_jobs_of_one_place_that_run_at_once(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first job of a place starts, the others follow it."""
    mutate(monkeypatch, PlaceQueues.enter, "is None:\n            able", "or True:\n            able")
    monkeypatch.setattr("kit.waiting.PATIENCE", 0.5)
    with pytest.raises(AssertionError, match=r"ran at once|all have run"):
        await _limit_holds(database_url)


async def test_a_locked_job_does_not_hold_up_its_group(database_url: str) -> None:
    """A program locks a waiting job for any time; the others of its group run, and it runs after an update."""
    done: list[int] = []

    async def mail(job: Job) -> None:
        done.append(job.id)

    other = await connect(database_url)
    try:
        async with running_engine(
            database_url, {"mail": mail}, kinds={"mail": policy("mail", group_limit=1)}
        ) as engine:
            locked = await engine.insert("mail", at="now() + interval '1 second'", group_key="g")
            async with other.transaction():
                await other.execute("UPDATE tickwright.scheduled_tasks SET metadata = '{}' WHERE id = $1", locked)
                behind = await engine.insert("mail", at="now() + interval '1.1 seconds'", group_key="g")
                await engine.until(behind, "completed")
                assert done == [behind]
            await engine.until(locked, "completed")
    finally:
        await other.close()


@pytest.mark.parametrize("runs", ["plain", "free"])
async def test_a_locked_type_holds_up_its_own_groups_only(database_url: str, runs: str) -> None:
    """A transaction that changes a type stays open: jobs without groups run meanwhile, and those of other types."""
    done: list[int] = []

    async def mail(job: Job) -> None:
        done.append(job.id)

    kinds = {name: policy(name, group_limit=1) for name in ("locked", "free")}
    other = await connect(database_url)
    try:
        async with running_engine(
            database_url, dict.fromkeys(["locked", "free", "plain"], mail), kinds=kinds
        ) as engine:
            if runs == "plain":  # the claim waits all the time
                await engine.pool.execute("ALTER FUNCTION tickwright.claim_groups SET lock_timeout = '60s'")
            async with other.transaction():
                await other.execute("UPDATE tickwright.task_types SET max_attempts = 5 WHERE name = 'locked'")
                waiting = await engine.insert("locked", group_key="g")
                await eventually_async(lambda: engine.pool.fetchval(WAITS), what="a claim waits for the lock")
                for _ in range(3):
                    group = None if runs == "plain" else "g"
                    await engine.until(await engine.insert(runs, group_key=group), "completed")
                assert waiting not in done
            await engine.until(waiting, "completed")
    finally:
        await other.close()


@pytest.mark.parametrize("order", [None, "stop"])
async def test_expired_jobs_of_a_group_do_not_hold_up_the_others(database_url: str, order: str | None) -> None:
    """They never start, so no attempt of theirs ends."""
    done: list[int] = []

    async def mail(job: Job) -> None:
        done.append(job.id)

    kind = policy("mail", group_limit=None if order else 1, group_order=order)
    async with running_engine(database_url, {"mail": mail}, kinds={"mail": kind}) as engine:
        async with engine.pool.acquire() as connection, connection.transaction():
            for _ in range(3):
                await insert(connection, "mail", at="now() - interval '1 minute'", group_key="g", expires_at=EXPIRED)
            job = await insert(connection, "mail", group_key="g")
        await engine.until(job, "completed")
        assert done == [job]


@asynccontextmanager
async def _due_without_a_hint(url: str, at: str, *more: str) -> AsyncIterator[tuple[Engine, list[int]]]:
    """A worker and a due job of a group, at which nothing makes a claim look; what has run."""
    done: list[int] = []

    async def mail(job: Job) -> None:
        done.append(job.id)

    async with running_engine(url, {"mail": mail}, kinds={"mail": policy("mail", group_limit=1)}) as engine:
        await engine.pool.execute("UPDATE tickwright.task_types SET paused_at = now()")
        await eventually_async(lambda: engine.worker.types()["mail"].task_type.waits, what="it is paused")
        await engine.insert("mail", at=at, group_key="g")
        for statement in ("DELETE FROM tickwright.job_group_hints", *more):
            await engine.pool.execute(statement)
        await engine.pool.execute("UPDATE tickwright.task_types SET paused_at = NULL")
        await eventually_async(lambda: not engine.worker.types()["mail"].task_type.waits, what="it runs again")
        yield engine, done


async def test_upkeep_finds_a_group_of_which_the_hint_was_lost(database_url: str) -> None:
    """A restore, for example."""
    async with _due_without_a_hint(database_url, "now() - interval '1 minute'") as (engine, done):
        row = await engine.pool.fetchrow(UPKEEP["hint_waiting_groups"], "", "", timedelta(seconds=30), 1000)
        assert (row["groups"], row["hinted"]) == (1, 1)
        await eventually_async(lambda: len(done) == 1, what="it has run")


async def test_the_end_of_a_session_lets_claims_look_at_the_groups_that_wait_for_an_end(database_url: str) -> None:
    """Its process died between the write of a result and the next claim: its job is gone, no claim noted that."""
    async with _due_without_a_hint(database_url, "now() - interval '1 second'", WAITS_FOR_AN_END) as (engine, done):
        await engine.pool.execute(DEAD_SESSION)
        await eventually_async(lambda: len(done) == 1, what="it has run")


async def _claimed_with_the_place_of_a_lost_session(url: str) -> list[int]:
    """Return what a process claims that still counts a place as its own, under a new session.

    The job that runs there was reclaimed, and another process runs it.
    """
    connection = await connect(url)
    try:
        await connection.execute(OWNERS)
        await connection.execute(
            "INSERT INTO tickwright.task_types (name, target, group_limit) VALUES ('mail', 'x', 1)"
        )
        await connection.execute(THREE_JOBS)
        first, _ = await _claimed(connection, 1, 2, {})
        await connection.execute(
            "UPDATE tickwright.scheduled_tasks SET status = 'pending', owner = NULL WHERE owner = 1"
        )
        assert await _claimed(connection, 2, 1, {}) == [first]
        return await _claimed(connection, 3, 1, {"g": first})
    finally:
        await connection.close()


async def _claimed(connection: asyncpg.Connection, session: int, most: int, running: dict[str, int]) -> list[int]:
    rows = await connection.fetch(CLAIM, session, most, [f"{group}\n1" for group in running], json.dumps(running))
    return [row["id"] for row in rows]


async def test_a_process_whose_session_was_lost_has_no_place(database_url: str) -> None:
    """Whose a place is, the rows of its jobs say, not the process that asks."""
    assert await _claimed_with_the_place_of_a_lost_session(database_url) == []


@pytest.mark.mutant
async def test_the_suite_notices_a_place_without_its_session(database_url: str) -> None:
    """Two jobs of the group would run at once."""
    await mutate_sql(database_url, "claim_groups", "t.status = 'processing' AND t.owner = token", "true")
    assert await _claimed_with_the_place_of_a_lost_session(database_url) != []


async def test_a_group_without_jobs_is_forgotten(database_url: str) -> None:
    """Its row goes once nothing of it runs or waits."""

    async def mail(_job: Job) -> None:
        """Do nothing."""

    async with running_engine(database_url, {"mail": mail}, kinds={"mail": policy("mail", group_limit=1)}) as engine:
        await engine.until(await engine.insert("mail", group_key="done"), "completed")
        await engine.insert("mail", at="now() + interval '1 hour'", group_key="waits")
        await engine.until(await engine.insert("mail", group_key="waits"), "completed")
        known = "SELECT array_agg(group_key ORDER BY group_key) FROM tickwright.job_groups"

        async def forgotten() -> bool:
            await engine.pool.execute(UPKEEP["delete_idle_groups"], "", "", 1000)
            return bool(await engine.pool.fetchval(known) == ["waits"])

        await eventually_async(forgotten, what="only the group with a job is left")


async def _hands_over(url: str) -> None:
    """One worker runs the only place of a group and stops; the other one continues."""
    gate, begun = asyncio.Event(), list[int]()

    async def mail(job: Job) -> None:
        begun.append(job.id)
        await gate.wait()

    kinds = {"mail": policy("mail", group_limit=1)}
    async with (
        running_engine(url, {"mail": mail}, kinds=kinds) as first,
        running_engine(url, {"mail": mail}, kinds=kinds) as second,
    ):
        for _ in range(2):
            await first.insert("mail", group_key="g")
        await eventually_async(lambda: len(begun) == 1, what="the first job runs")
        holder = first if first.worker.runner.busy else second
        looked = (
            "SELECT count(*) FROM tickwright.job_groups WHERE ready_at IS NULL "
            "AND NOT EXISTS (SELECT FROM tickwright.job_group_hints)"
        )
        await eventually_async(lambda: first.pool.fetchval(looked), what="the other one has looked at the group")
        stopping = asyncio.create_task(holder.worker.quiesce())
        await eventually_async(holder.worker.claimer._over.is_set, what="its last claim is over")
        gate.set()
        await stopping
        await eventually_async(lambda: len(begun) == 2, what="the second job runs")


async def test_a_worker_that_stops_hands_its_groups_over(database_url: str) -> None:
    """The other worker does not wait for upkeep."""
    await _hands_over(database_url)


@pytest.mark.mutant
async def test_the_suite_notices_a_worker_that_keeps_its_groups(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing would make a claim look at the group."""

    async def nothing(_self: JobWorker) -> None:
        """Hint at nothing."""

    monkeypatch.setattr(JobWorker, "_leave_groups", nothing)
    monkeypatch.setattr("kit.waiting.PATIENCE", 0.5)
    with pytest.raises(AssertionError, match="the second job runs"):
        await _hands_over(database_url)
