"""A type that is paused while its jobs are claimed and wait: none of them starts, and none loses an attempt."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from kit.engine import Engine, policy, running_engine
from kit.mutants import mutate
from kit.waiting import eventually_async
from tickwright import Job
from tickwright.capabilities.jobs.model import Begin
from tickwright.capabilities.jobs.task_types import TaskTypes
from tickwright.capabilities.jobs.worker.claimer import Claimer
from tickwright.capabilities.jobs.worker.claims import ClaimedJobs, ClaimRequest, ClaimStore
from tickwright.capabilities.jobs.worker.worker import JobWorker, WorkerLimits
from tickwright.ports.caller import Caller, Role

OPERATOR = Caller("operator", Role.ADMIN)
RELEASED = ("pending", 0, None)
INSERT = (
    "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, max_attempts) "
    "SELECT now(), 't', $2::integer FROM generate_series(1, $1::integer)"
)
SLOW = "UPDATE tickwright.task_types SET rate_per_s = 0.00001, version = version + 1 WHERE name = 't'"


class Held:
    """The job ``first`` keeps its slot until ``may_end``; every start of another job is recorded."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.may_end = asyncio.Event()

    async def keeps(self, _job: Job) -> None:
        """Keep a slot."""
        await self.may_end.wait()

    async def waits(self, job: Job) -> None:
        """Record a start."""
        self.started.append(job.id)

    def waits_in_thread(self, job: Job) -> None:
        """Record a start in a thread."""
        self.started.append(job.id)


async def paused(engine: Engine, name: str, *, to: bool = True) -> None:
    """Pause or resume a type, and wait until the worker has read it."""
    types = TaskTypes(engine.pool, lambda _: None)
    await types.switch(name, "pause" if to else "enable", caller=OPERATOR)
    await eventually_async(lambda: engine.worker.types()[name].task_type.waits is to, what="the worker has read it")


async def rows(engine: Engine, ids: list[int]) -> list[tuple[Any, ...]]:
    """Return the status, owner and attempts of the jobs."""
    found = [await engine.job(job_id) for job_id in ids]
    return [(row["status"], row["attempts"], row["owner"]) for row in found]


async def released(engine: Engine, ids: list[int]) -> bool:
    """Whether all of them are released and no attempt of theirs has counted."""
    return await rows(engine, ids) == [RELEASED] * len(ids)


@asynccontextmanager
async def holding(
    url: str, held: Held, monkeypatch: pytest.MonkeyPatch, function: Callable[[Job], Any], **changes: Any
) -> AsyncIterator[tuple[Engine, list[int]]]:
    """Run a worker with one slot, which is kept, and three claimed jobs of the type ``t`` that wait for it."""
    monkeypatch.setattr(Claimer, "_prefetch_by_type", lambda _claimer: Counter(t=10))
    kinds = {"keeps": policy("keeps"), "t": policy("t", **changes)}
    handlers = {"keeps": held.keeps, "t": function}
    async with running_engine(url, handlers, kinds=kinds, limits=WorkerLimits(concurrency=1, threads=4)) as engine:
        await engine.insert("keeps")
        await eventually_async(lambda: engine.worker.runner.busy == 1, what="the slot is kept")
        ids = [await engine.insert("t") for _ in range(3)]
        await eventually_async(lambda: engine.worker.runner.queued == 3, what="the jobs are claimed and wait")
        try:
            yield engine, ids
        finally:
            held.may_end.set()


@pytest.mark.parametrize(("threaded", "attempts"), [(False, 3), (False, 1), (True, 3)])
async def test_claimed_jobs_that_wait_for_a_slot_are_released_by_a_pause(
    database_url: str, monkeypatch: pytest.MonkeyPatch, threaded: bool, attempts: int
) -> None:
    """When their type is paused, at once; their attempts do not count, and they run when the type is resumed."""
    held = Held()
    function = held.waits_in_thread if threaded else held.waits
    async with holding(database_url, held, monkeypatch, function, max_attempts=attempts) as (engine, ids):
        await paused(engine, "t")
        entry = engine.worker.types()["t"]
        assert (engine.worker.runner.queued, entry.held) == (0, 0)
        await eventually_async(lambda: released(engine, ids), what="all are released")
        held.may_end.set()
        await eventually_async(lambda: engine.worker.runner.busy == 0, what="the slot is free")
        assert held.started == []
        await paused(engine, "t", to=False)
        for job_id in ids:
            assert (await engine.until(job_id, "completed"))["attempts"] == 1
    assert sorted(held.started) == ids
    assert entry.held == 0


@pytest.mark.parametrize("attempts", [3, 1])
async def test_claimed_jobs_that_wait_for_their_rate_are_released_by_a_pause(database_url: str, attempts: int) -> None:
    """When their type is paused; when it is resumed they run at their rate."""
    held = Held()

    async def handler(job: Job) -> None:
        held.started.append(job.id)

    kinds = {"t": policy("t", rate_per_s=40.0, max_attempts=attempts)}
    async with running_engine(database_url, {"t": handler}, kinds=kinds) as engine:
        ids = [await engine.insert("t") for _ in range(400)]
        entry = engine.worker.types()["t"]
        await eventually_async(lambda: held.started and entry.held >= 2, what="jobs are claimed and wait")
        await paused(engine, "t")
        await eventually_async(lambda: entry.held == 0, what="none is held")
        begun = len(held.started)
        left = [job_id for job_id in ids if job_id not in held.started]
        await eventually_async(lambda: released(engine, left), what="all are released")
        await engine.pool.execute("UPDATE tickwright.task_types SET rate_per_s = 400 WHERE name = 't'")
        await eventually_async(lambda: engine.worker.types()["t"].task_type.rate_per_s == 400)
        assert len(held.started) == begun
        await paused(engine, "t", to=False)
        await eventually_async(lambda: len(held.started) == len(ids), 30, what="all have run")
    assert sorted(held.started) == ids


async def _sound(_job: Job) -> None:
    return


async def check_rate_is_lowered(database_url: str) -> None:
    """Lower the rate of a type of which more is held than there are slots."""
    kinds, limits = {"t": policy("t", rate_per_s=1000.0)}, WorkerLimits(concurrency=20)
    async with running_engine(database_url, {"t": _sound, "sound": _sound}, kinds=kinds, limits=limits) as engine:
        await engine.pool.execute(INSERT, 100_000, 3)
        await eventually_async(lambda: engine.worker.types()["t"].held > limits.concurrency, 30, what="many wait")
        await engine.pool.execute(SLOW)
        await eventually_async(lambda: engine.worker.types()["t"].held <= 1, what="all but the next one are released")
        for _ in range(3):
            await engine.until(await engine.insert("sound"), "completed")


async def test_claimed_jobs_of_a_type_whose_rate_is_lowered_leave_slots_to_others(database_url: str) -> None:
    """They were due within half a second, now within days: they are released, and other types have the slots."""
    await check_rate_is_lowered(database_url)


async def test_jobs_of_a_claim_under_way_are_released_when_their_rate_is_set(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A regression: a claim took thousands of rows that start in days, and no other type was claimed any more."""
    held = Held()
    monkeypatch.setattr(Claimer, "_prefetch_by_type", lambda _claimer: Counter(t=500))
    claim, claims = ClaimStore.claim, list[int]()

    async def slow_down(store: ClaimStore, request: ClaimRequest, connection: Any = None) -> ClaimedJobs:
        claimed = await claim(store, request, connection)
        if claimed.counts["t"] > 1 and not claims:
            claims.append(claimed.counts["t"])
            await engine.pool.execute(SLOW)
            await eventually_async(lambda: engine.worker.types()["t"].task_type.rate_per_s, what="it has read the rate")
        return claimed

    async def handler(job: Job) -> None:
        held.started.append(job.id)

    kinds, limits = {"t": policy("t"), "sound": policy("sound")}, WorkerLimits(concurrency=8)
    handlers = {"t": handler, "sound": _sound}
    monkeypatch.setattr(ClaimStore, "claim", slow_down)  # first, so that no claim begins without it
    async with running_engine(database_url, handlers, kinds=kinds, limits=limits) as engine:
        await engine.pool.execute(INSERT, 2000, 3)
        await eventually_async(lambda: claims, what="a claim has found them")
        for _ in range(3):
            await engine.until(await engine.insert("sound"), "completed")
        await eventually_async(lambda: engine.worker.types()["t"].held <= 1, what="all but the next are released")
        assert len(held.started) <= 1 < claims[0]


async def test_last_attempts_with_a_start_far_ahead_keep_no_slot(database_url: str) -> None:
    """A regression: begun, they waited in slots for their rate, for days, and a crash made them dead letters."""
    begins = Begins()
    handlers = {"t": _sound, "sound": _sound}
    kinds, limits = {"t": policy("t", max_attempts=1), "sound": policy("sound")}, WorkerLimits(concurrency=8)
    async with running_engine(database_url, handlers, kinds=kinds, limits=limits) as engine:
        engine.worker.outcomes.begins = begins.waits(engine.worker.outcomes.begins)
        await engine.pool.execute(INSERT, 2000, 1)
        await eventually_async(lambda: begins.waiting >= 4, what="some wait for their begin")
        await engine.pool.execute(SLOW)
        await eventually_async(lambda: engine.worker.types()["t"].task_type.rate_per_s, what="it has read the rate")
        begins.may_begin.set()
        await eventually_async(lambda: engine.worker.types()["t"].held <= 1, what="they are released")
        for _ in range(3):
            await engine.until(await engine.insert("sound"), "completed")
        await eventually_async(lambda: released_of(engine, "t"), what="no attempt of theirs counts")


class Begins:
    """Lets last attempts wait for their begin.

    Attributes:
        waiting: How many wait.
        may_begin: Set when none has to wait any more.
    """

    def __init__(self) -> None:
        self.waiting, self.may_begin = 0, asyncio.Event()

    def waits(self, begins: Callable[[Job], Awaitable[Begin]]) -> Callable[[Job], Awaitable[Begin]]:
        """Return ``begins`` after the wait."""

        async def waiting(job: Job) -> Begin:
            self.waiting += 1
            await self.may_begin.wait()
            return await begins(job)

        return waiting


async def released_of(engine: Engine, name: str) -> bool:
    """Whether no waiting job of a type has an attempt or an owner; at most one runs."""
    sql = (
        "SELECT count(*) FILTER (WHERE status = 'pending' AND attempts = 0 AND owner IS NULL) >= count(*) - 1 "
        "FROM ONLY tickwright.scheduled_tasks WHERE task_type = $1"
    )
    return bool(await engine.pool.fetchval(sql, name))


async def test_the_suite_notices_that_jobs_claimed_at_a_higher_rate_are_kept(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are released only where the type is paused or suspended."""
    mutate(monkeypatch, JobWorker._adopt, "kind.waits or is_slower", "kind.waits")
    with pytest.raises(AssertionError, match="all but the next one are released"):
        await check_rate_is_lowered(database_url)


async def test_jobs_of_a_claim_under_way_are_released_when_their_type_is_paused(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim is under way when the worker reads that the type is paused."""
    held, kept = Held(), dict[int, bool]()
    async with holding(database_url, held, monkeypatch, held.waits) as (engine, _):
        worker, take = engine.worker, engine.worker.take

        def pause_first(claimed: ClaimedJobs) -> None:
            kinds = [entry.task_type for entry in worker.types().values()]
            worker._adopt([replace(kind, paused=kind.name == "t") for kind in kinds])
            take(claimed)
            kept.update({row.id: worker.runner.remove_job(row.id) is not None for row in claimed.rows})

        monkeypatch.setattr(worker, "take", pause_first)
        late = await engine.insert("t")
        await eventually_async(lambda: late in kept, what="a claim has returned it")
        assert kept[late] is False
