"""Drains: many more due jobs than one claim takes. None is lost, none runs twice, new ones need not wait."""

import asyncio
from collections import Counter, defaultdict
from typing import Any

import pytest

from kit.engine import Engine, running_engine
from kit.mutants import mutate
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.model import Job, TaskType
from tickwright.capabilities.jobs.worker import claimer, frontier
from tickwright.capabilities.jobs.worker.claimer import Claimer, PendingClaim
from tickwright.capabilities.jobs.worker.claims import ClaimedJobs
from tickwright.capabilities.jobs.worker.worker import WorkerLimits
from tickwright.store.pool import open_pool

NEVER_S = 1e9


async def fill(connection: Any, task_type: str, count: int, *, priorities: int = 1) -> set[int]:
    """Insert due jobs, each a millisecond later than the one before, over so many priorities; return their ids."""
    rows = await connection.fetch(
        "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, priority) "
        "SELECT now() - interval '1 hour' + n * interval '1 millisecond', $2, 10 * (n % $3) "
        "FROM generate_series(1, $1) AS n RETURNING id",
        count,
        task_type,
        priorities,
    )
    return {row[0] for row in rows}


async def fill_before_start(url: str, **counts: int) -> set[int]:
    """Insert jobs of some types, three priorities each, while no worker runs yet."""
    pool = await open_pool(url, min_size=1, max_size=1)
    try:
        return set().union(*[await fill(pool, name, count, priorities=3) for name, count in counts.items()])
    finally:
        await pool.close()


class Ledger:
    """The starts, in order, and how many jobs of a type ran at once."""

    def __init__(self) -> None:
        self.runs: Counter[int] = Counter()
        self.ranges: dict[tuple[str, int], list[float]] = defaultdict(list)
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def run(self, job: Job) -> None:
        """Record a start, let others overlap, and end."""
        self.runs[job.id] += 1
        self.ranges[job.type, job.row.priority].append(job.due_s)
        self.running[job.type] += 1
        self.most[job.type] = max(self.most[job.type], self.running[job.type])
        for _ in range(3):
            await asyncio.sleep(0)
        self.running[job.type] -= 1


@pytest.fixture(params=[None, 1], ids=["all ranges", "in rounds"])
def _ranges_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims read all claim ranges, or those of one type at a time."""
    if request.param is not None:
        monkeypatch.setattr(frontier, "RANGES_MAX", request.param)
        monkeypatch.setattr(frontier, "PRODUCTIVE_MAX", 0)


@pytest.mark.usefixtures("_ranges_at_once")
async def test_a_drain_of_many_batches_runs_every_job_once_and_keeps_the_limits(database_url: str) -> None:
    """Two types, three priorities, six thousand jobs: all of them once, the limited type never above its limit."""
    ids, ledger = await fill_before_start(database_url, free=5300, few=700), Ledger()

    async def free(job: Job) -> None:
        await ledger.run(job)

    async def few(job: Job) -> None:
        await ledger.run(job)

    kinds = {"few": TaskType("few", "python:few", concurrency=7)}
    async with running_engine(database_url, {"free": free, "few": few}, kinds=kinds) as engine:
        await eventually_async(lambda: _nothing_live(engine.pool), 30)
        counts = await engine.pool.fetch(
            "SELECT status, attempts, count(*) AS jobs FROM tickwright.scheduled_tasks GROUP BY status, attempts"
        )
    assert [tuple(row) for row in counts] == [("completed", 1, len(ids))]
    assert ledger.runs == Counter(ids)
    assert ledger.most["few"] <= 7


async def test_a_claim_counts_the_jobs_of_a_claim_under_way(database_url: str) -> None:
    """The next claim is sent before the jobs of the last one are taken over: together they keep the type's limit."""
    ids = await fill_before_start(database_url, few=30)
    started: list[int] = []
    places = asyncio.Semaphore(0)

    async def few(job: Job) -> None:
        started.append(job.id)
        await places.acquire()

    async def tick(_job: Job) -> None:
        return None

    kinds = {"few": TaskType("few", "python:few", concurrency=3)}
    async with running_engine(database_url, {"few": few, "tick": tick}, kinds=kinds) as engine:
        for ended in range(0, 9, 3):
            await eventually_async(lambda: len(started) >= ended + 3)  # noqa: B023  waited for right here
            await engine.until(await engine.insert("tick"), "completed")
            assert len(started) == ended + 3
            for _ in range(3):
                places.release()
        for _ in ids:
            places.release()
        await eventually_async(lambda: _nothing_live(engine.pool))
    assert sorted(started) == sorted(ids)


async def test_successive_claims_start_each_claim_range_in_due_order(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each claim continues where the one before ended: without a sweep no job overtakes an earlier one."""
    monkeypatch.setattr(frontier, "SWEEP_S", NEVER_S)
    ids, ledger = await fill_before_start(database_url, free=5000), Ledger()

    async def free(job: Job) -> None:
        await ledger.run(job)

    async with running_engine(database_url, {"free": free}) as engine:
        await eventually_async(lambda: _nothing_live(engine.pool), 30)
    assert ledger.runs == Counter(ids)
    assert len(ledger.ranges) == 3
    for due_s in ledger.ranges.values():
        assert due_s == sorted(due_s)


@pytest.mark.matrix
@pytest.mark.usefixtures("_ranges_at_once")
@pytest.mark.parametrize("concurrency", [None, 8], ids=["free", "limited"])
@pytest.mark.parametrize(("task_type", "priority"), [("work", 0), ("work", 7), ("beside", 0)])
async def test_earlier_jobs_that_are_inserted_during_a_drain_start_before_its_end(
    database_url: str, task_type: str, priority: int, concurrency: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are due earlier than all that is being claimed: in the same claim range, in a new one, of another type.

    A job of the drain inserts them when there are thousands of jobs left to start.
    """
    monkeypatch.setattr(frontier, "SWEEP_S", 0.05)  # a long sweep delays the next one beyond this drain
    monkeypatch.setattr(frontier, "SWEEP_SHARE", 1)
    starts: list[int] = []
    early: set[int] = set()

    async def work(job: Job) -> None:
        starts.append(job.id)
        if len(starts) == 200:
            early.update(await _insert_early(engine.pool, task_type, priority))
        await asyncio.sleep(0.005)

    handlers = {"work": work, "beside": work}
    kinds = {"work": TaskType("work", "python:work", concurrency=concurrency)}
    async with running_engine(database_url, handlers, kinds=kinds, limits=WorkerLimits(12)) as engine:
        drain = await fill(engine.pool, "work", 4000)
        await eventually_async(lambda: _nothing_live(engine.pool), 30)
    assert Counter(starts) == Counter(drain | early)
    last_early = max(place for place, job_id in enumerate(starts) if job_id in early)
    assert last_early < len(starts) - 1000


async def test_a_drain_that_fills_the_worker_continues_when_slots_are_free(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A type may take three quarters of the slots; when its jobs end the next are claimed, without a poll."""
    monkeypatch.setattr(claimer, "POLL_S", NEVER_S)
    await fill_before_start(database_url, work=12)
    started: list[int] = []
    ticks: set[float | None] = set()
    may_end = asyncio.Event()

    async def work(job: Job) -> None:
        started.append(job.id)
        await may_end.wait()

    async with running_engine(database_url, {"work": work}, limits=WorkerLimits(4)) as engine:
        await eventually_async(lambda: len(started) == 3)
        await eventually_async(lambda: engine.worker.wakeup.armed or _ticked(engine, ticks) > 10)
        may_end.set()
        await eventually_async(lambda: len(started) == 12)


def _ticked(engine: Engine, ticks: set[float | None]) -> int:
    ticks.add(engine.worker.claimer.ticked_s)
    return len(ticks)


async def _insert_early(connection: Any, task_type: str, priority: int) -> set[int]:
    rows = await connection.fetch(
        "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, priority) "
        "SELECT now() - interval '1 day', $1, $2 FROM generate_series(1, 20) RETURNING id",
        task_type,
        priority,
    )
    return {row[0] for row in rows}


async def _nothing_live(connection: Any) -> bool:
    return not await connection.fetchval("SELECT EXISTS (SELECT FROM ONLY tickwright.scheduled_tasks)")


async def test_jobs_that_are_not_taken_over_are_known_while_the_next_claim_is_sent(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a heartbeat in that turn of the loop would release them, and their handlers run twice."""
    ran: list[int] = []
    known: list[bool] = []
    start = Claimer._start_claim

    def start_claim(claimer: Claimer, arriving: ClaimedJobs | None = None) -> PendingClaim | None:
        if arriving is not None:
            ids = {row.id for row in arriving.rows}
            asyncio.get_running_loop().call_soon(lambda: known.append(ids <= {row.id for row in claimer.unaccepted()}))
        return start(claimer, arriving)

    async def work(job: Job) -> None:
        ran.append(job.id)

    monkeypatch.setattr(Claimer, "_start_claim", start_claim)
    async with running_engine(database_url, {"many": work}) as engine:
        ids = await fill(engine.pool, "many", 3000)
        await eventually_async(lambda: len(ran) >= len(ids), 60, what="all have run")
        assert sorted(ran) == sorted(ids)
        assert known, "no claim followed another one"
        assert all(known)


@pytest.mark.mutant
async def test_claimed_jobs_that_are_forgotten_for_a_turn_are_noticed(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above would fail."""
    mutate(monkeypatch, Claimer.unaccepted, "list(self._arrived.rows) if self._arrived else []", "[]")
    with pytest.raises(AssertionError):
        await test_jobs_that_are_not_taken_over_are_known_while_the_next_claim_is_sent(database_url, monkeypatch)
