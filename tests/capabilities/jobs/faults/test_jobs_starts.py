"""Conditions of a start: before ``expires_at``, owned by its worker, without an earlier attempt's context."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

import pytest

from kit.engine import SHORT, Engine, policy, running_engine
from kit.waiting import eventually_async
from tickwright import Job
from tickwright.capabilities.jobs.worker.claimer import Claimer
from tickwright.capabilities.jobs.worker.worker import WorkerLimits

TENANT: ContextVar[object] = ContextVar("TENANT")


class Incomparable:
    """A value whose comparison does not give a bool, like those of NumPy."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, _other: object) -> bool:
        raise ValueError("ambiguous")


async def test_a_job_that_expires_between_its_claim_and_its_instant_does_not_start(database_url: str) -> None:
    """Also on its last attempt; no attempt is counted."""
    started: list[int] = []

    async def handler(job: Job) -> None:
        started.append(job.id)

    sql = """
    INSERT INTO tickwright.scheduled_tasks (execute_at, expires_at, task_type, max_attempts)
    VALUES (now() + interval '2 s', now() + interval '1.9 s', 't', $1) RETURNING id"""
    async with running_engine(database_url, {"t": handler}) as engine:
        for job_id in [await engine.pool.fetchval(sql, attempts) for attempts in (1, 2)]:
            row = await engine.until(job_id, "completed", "cancelled")
            assert (row["status"], row["attempts"], row["started_at"]) == ("cancelled", 0, None)
            assert row["error_message"].startswith("expired: ")
    assert started == []


async def test_context_that_a_handler_sets_does_not_reach_the_next_handler(database_url: str) -> None:
    """For values of any kind; the slots continue."""
    seen: list[object] = []

    async def sets(_job: Job) -> None:
        seen.append(TENANT.get(None))
        TENANT.set(Incomparable())

    async def reads(_job: Job) -> None:
        seen.append(TENANT.get(None))

    kinds = {"sets": policy("sets"), "reads": policy("reads")}
    limits = WorkerLimits(concurrency=2, threads=1)
    async with running_engine(database_url, {"sets": sets, "reads": reads}, kinds=kinds, limits=limits) as engine:
        for name in ("sets", "reads") * 4:
            await engine.until(await engine.insert(name), "completed")
    assert seen == [None] * 8


async def test_every_handler_has_the_context_that_the_program_set(database_url: str) -> None:
    """Variables set before the worker started stay, also where their values cannot be compared."""
    seen: list[object] = []

    async def sets(_job: Job) -> None:
        seen.append(TENANT.get(None))
        TENANT.set(Incomparable())

    mine = Incomparable()
    token = TENANT.set(mine)
    try:
        async with running_engine(database_url, {"t": sets}) as engine:
            for _ in range(4):
                await engine.until(await engine.insert("t"), "completed")
    finally:
        TENANT.reset(token)
    assert [one is mine for one in seen] == [True] * 4


@asynccontextmanager
async def waiting_for_a_slot(
    url: str, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Engine, int, asyncio.Event]]:
    """Run a worker whose only slot is kept until the event is set, with a job that it has claimed and not started.

    It claims nothing more, and learns of a cancelled job by its heartbeats alone.
    """
    monkeypatch.setattr(Claimer, "_prefetch_by_type", lambda _claimer: Counter(sound=10))
    may_end = asyncio.Event()

    async def keeps(_job: Job) -> None:
        await may_end.wait()

    async def sound(_job: Job) -> None:
        ran.append("first")

    kinds = {"keeps": policy("keeps"), "sound": policy("sound")}
    handlers, limits = {"keeps": keeps, "sound": sound}, WorkerLimits(concurrency=1)
    async with running_engine(url, handlers, kinds=kinds, limits=limits, terms=SHORT, direct=False) as engine:
        await engine.insert("keeps")
        await eventually_async(lambda: engine.worker.runner.busy == 1, what="the slot is kept")
        job_id = await engine.insert("sound")
        await eventually_async(lambda: engine.worker.runner.ready == 1, what="a job is claimed and waits")
        engine.worker.claimer.stop()
        try:
            yield engine, job_id, may_end
        finally:
            may_end.set()


async def test_a_claimed_job_that_another_worker_owns_by_now_does_not_start(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a failover that lost the claim: the heartbeat finds that its worker no longer owns the row."""
    ran: list[str] = []

    async def other(_job: Job) -> None:
        ran.append("other")

    async with waiting_for_a_slot(database_url, ran, monkeypatch) as (first, job_id, may_end):
        await first.pool.execute(
            "UPDATE tickwright.scheduled_tasks SET status = 'pending', owner = NULL, attempts = 0 WHERE id = $1", job_id
        )
        async with running_engine(database_url, {"sound": other}, kinds={"sound": policy("sound")}) as second:
            await second.until(job_id, "completed")
        counts = first.worker.types()["sound"].counts
        await eventually_async(lambda: counts.get("lost") == 1, what="the first worker drops it")
        may_end.set()
        await first.worker.quiesce()
        assert ran == ["other"]
        assert [entry.held for entry in first.worker.types().values()] == [0, 0]


async def test_a_claimed_job_that_is_cancelled_without_a_notification_does_not_start(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat finds the cancellation; the attempt does not count."""
    ran: list[str] = []
    async with waiting_for_a_slot(database_url, ran, monkeypatch) as (engine, job_id, may_end):
        await engine.pool.execute("UPDATE tickwright.scheduled_tasks SET status = 'cancelled' WHERE id = $1", job_id)
        row = await engine.until(job_id, "cancelled")
        assert (row["attempts"], row["error_message"]) == (0, "cancelled before it started")
        may_end.set()
        await engine.worker.quiesce()
        assert ran == []
