"""The attempt log of a job, with real workers: failed, timed out, lost, interrupted; and attempts without an entry."""

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kit.api import ADMIN, allow_all
from kit.engine import SHORT, Engine, WorkerProcess, insert, job_row, policy, running_engine
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.admin.service import JobService
from tickwright.capabilities.jobs.enqueue import Enqueuer
from tickwright.capabilities.jobs.model import Fail, Job, Snooze
from tickwright.store.pool import Pool


def service_of(pool: Pool) -> JobService:
    """The service that operators use."""
    return JobService(pool, enqueuer=Enqueuer(pool), allow_target=allow_all)


async def test_the_log_has_each_failed_attempt_and_the_one_that_completed(database_url: str) -> None:
    """Attempt, fence, times, outcome and error of each, and how late each was against its own due time."""

    async def flaky(job: Job) -> None:
        if job.attempt < 3:
            raise ValueError(f"no luck {job.attempt} " + "x" * 1000)

    async with running_engine(database_url, {"flaky": flaky}, kinds={"flaky": policy("flaky")}) as engine:
        job = await engine.insert("flaky")
        await engine.until(job, "completed")
        shown = await service_of(engine.pool).get(job)
        assert [(one.attempt, one.fence, one.outcome) for one in shown.attempt_log] == [
            (1, 1, "failed"), (2, 2, "failed"), (3, 3, "completed"),
        ]  # fmt: skip
        first, second, last = shown.attempt_log
        assert (first.error or "").startswith("ValueError: no luck 1")
        assert len(first.error or "") == 500
        assert (first.worker, last.worker, last.error) == (engine.session.token, None, None)
        for one in shown.attempt_log:
            assert one.ended_at is not None
            assert one.due_at <= one.started_at <= one.ended_at
            assert 0 <= one.lateness_ms < 10_000
        assert first.due_at == shown.execute_at
        assert second.due_at >= first.due_at + timedelta(milliseconds=50)
        assert shown.lateness_ms == first.lateness_ms


async def test_a_first_attempt_that_succeeds_writes_nothing(database_url: str) -> None:
    """The usual case writes nothing into the column; its attempt is read from the row."""

    async def fine(job: Job) -> None:
        return None

    async with running_engine(database_url, {"fine": fine}) as engine:
        job = await engine.insert("fine")
        assert (await engine.until(job, "completed"))["attempt_errors"] is None
        [only] = (await service_of(engine.pool).get(job)).attempt_log
        assert (only.attempt, only.outcome, only.error) == (1, "completed", None)


async def test_a_timeout_and_a_last_failure_are_distinct_entries(database_url: str) -> None:
    """A dead letter has its last attempt once, and its log continues after a retry."""

    async def slow(job: Job) -> None:
        if job.attempt == 1:
            await asyncio.Event().wait()
        raise Fail("never")

    kind = policy("slow", timeout=timedelta(milliseconds=100))
    async with running_engine(database_url, {"slow": slow}, kinds={"slow": kind}) as engine:
        service = service_of(engine.pool)
        job = await engine.insert("slow")
        await engine.until(job, "failed")
        shown = [(one.attempt, one.fence, one.outcome) for one in (await service.get(job)).attempt_log]
        assert shown == [(1, 1, "timed_out"), (2, 2, "failed")]
        await service.retry(job, caller=ADMIN)
        await engine.until(job, "failed")
        shown = [(one.attempt, one.fence, one.outcome) for one in (await service.get(job)).attempt_log]
        assert shown == [(1, 1, "timed_out"), (2, 2, "failed"), (1, 3, "timed_out"), (2, 4, "failed")]


async def test_the_ten_newest_attempts_are_kept(database_url: str) -> None:
    """A job that fails for days does not grow for days; when its first start is dropped, so is its lateness."""

    async def never(job: Job) -> None:
        raise ValueError(str(job.attempt))

    quick = policy("never", max_attempts=13)
    async with running_engine(database_url, {"never": never}, kinds={"never": quick}) as engine:
        job = await engine.insert("never", max_attempts=13)
        await engine.until(job, "failed", within_s=30)
        shown = await service_of(engine.pool).get(job)
        assert [one.attempt for one in shown.attempt_log] == list(range(4, 14))
        assert shown.lateness_ms is None


async def test_an_attempt_interrupted_by_a_shutdown_is_logged_and_does_not_count(database_url: str) -> None:
    """The log shows why it started twice; a job that never started, or that snoozed, has no entry."""
    running = asyncio.Event()

    async def slow(job: Job) -> None:
        running.set()
        await asyncio.Event().wait()

    async def later(job: Job) -> None:
        raise Snooze(timedelta(hours=1))

    async with running_engine(database_url, {"slow": slow, "later": later}) as engine:
        job, snoozed = await engine.insert("slow"), await engine.insert("later")
        await asyncio.wait_for(running.wait(), 30)

        async def asleep() -> bool:
            return (await engine.job(snoozed))["retry_at"] is not None

        await eventually_async(asleep, 15)
        assert (await service_of(engine.pool).get(job)).attempt_log[-1].outcome == "running"
        await engine.worker.stop()
        row = await engine.job(job)
        [noted] = json.loads(row["attempt_errors"])
        assert (row["status"], row["attempts"]) == ("pending", 0)
        assert (noted["attempt"], noted["fence"], noted["outcome"]) == (1, 1, "released")
        assert noted["error"].startswith("interrupted")
        assert (await engine.job(snoozed))["attempt_errors"] is None
        assert (await service_of(engine.pool).get(snoozed)).attempt_log == []


async def test_a_lost_attempt_is_logged_with_its_session(database_url: str, tmp_path: Path) -> None:
    """After kill -9 the worker that releases the jobs logs which attempt was lost, and of which session."""
    victim = WorkerProcess(database_url, tmp_path / "victim.log", lease_s=1.5, work_s=60)
    try:
        async with running_engine(database_url, terms=SHORT) as engine:
            job = await _held_by_other(engine)
            owner = (await engine.job(job))["owner"]
            victim.kill9()

            async def noted() -> Any:
                return (await engine.job(job))["attempt_errors"]

            [lost] = json.loads(await eventually_async(noted, 30))
            assert (lost["outcome"], lost["worker"], lost["fence"]) == ("lost", owner, 1)
    finally:
        victim.stop()


async def _held_by_other(engine: Engine) -> int:
    async def known() -> Any:
        return await engine.pool.fetchval("SELECT name FROM tickwright.task_types LIMIT 1")

    name = await eventually_async(known, 30, what="the victim's type")
    job = await engine.insert(name)
    await engine.until(job, "processing", within_s=30)
    return job


@pytest.mark.parametrize("is_requested", [True, False])
async def test_a_cancelled_job_shows_an_attempt_only_if_it_had_one(pool: Pool, *, is_requested: bool) -> None:
    """Cancelled while it ran is an attempt; cancelled before it started is none."""
    job = await insert(pool, "noop", at="now() + interval '1 hour'")
    if is_requested:
        await pool.execute(
            "UPDATE tickwright.scheduled_tasks SET status = 'processing', owner = NULL, attempts = 1, fence = 1, "
            "started_at = now(), cancel_requested_at = now() WHERE id = $1",
            job,
        )
    await pool.execute("UPDATE tickwright.scheduled_tasks SET status = 'cancelled' WHERE id = $1", job)
    assert (await job_row(pool, job))["status"] == "cancelled"
    shown = (await service_of(pool).get(job)).attempt_log
    assert [one.outcome for one in shown] == (["cancelled"] if is_requested else [])
