"""Synchronous handlers when threads are short: a job that waits for a thread has not started, however it ends."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from kit.engine import Engine, policy, running_engine
from kit.mutants import mutate
from kit.waiting import eventually_async
from tickwright import Job
from tickwright.capabilities.jobs.worker import runner as running
from tickwright.capabilities.jobs.worker.claimer import Claimer
from tickwright.capabilities.jobs.worker.runner import Runner
from tickwright.capabilities.jobs.worker.worker import WorkerLimits

INSERT_300 = """
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) SELECT now(), $1 FROM generate_series(1, 300)"""


class Handlers:
    """``hang`` keeps its thread until it is set free; ``sound`` ends at once; ``tick`` needs no thread."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.hanging = 0
        self.ran: list[int] = []

    def hang(self, _job: Job) -> None:
        """Keep the thread."""
        self.hanging += 1
        self.free.wait(60)

    def sound(self, job: Job) -> None:
        """Record the job."""
        self.ran.append(job.id)

    async def tick(self, _job: Job) -> None:
        """Do nothing, in the event loop."""

    async def keep_threads(self, engine: Engine, jobs: int, *, threads: int | None = None, **columns: Any) -> list[int]:
        """Schedule jobs that keep their threads; return their ids once all of them, or ``threads``, have one."""
        ids = [await engine.insert("hang", **columns) for _ in range(jobs)]
        wanted = jobs if threads is None else threads
        await eventually_async(lambda: self.hanging == wanted, what=f"{wanted} threads are kept")
        return ids

    def running(self, url: str, *, threads: int, **hang: Any) -> Any:
        """Run a worker with so many threads; ``hang`` is the policy of the type that keeps them."""
        kinds = {
            "hang": policy("hang", **{"timeout": timedelta(hours=1), **hang}),
            "sound": policy("sound", timeout=timedelta(seconds=2), max_attempts=2),
            "tick": policy("tick"),
        }
        limits = WorkerLimits(concurrency=16, threads=threads)
        functions: Mapping[str, Callable[..., Any]] = {"hang": self.hang, "sound": self.sound, "tick": self.tick}
        return running_engine(url, functions, kinds=kinds, limits=limits)


async def test_no_timeout_counts_while_a_job_waits_for_a_thread(database_url: str) -> None:
    """It has all its attempts when a thread is free, and a job that was cancelled meanwhile never starts."""
    handlers = Handlers()
    async with handlers.running(database_url, threads=2) as engine:
        await handlers.keep_threads(engine, 2)
        cancelled, waits = await engine.insert("sound"), await engine.insert("sound")
        await engine.until(await engine.insert("tick", at="now() + interval '3500 ms'"), "completed")
        await _cancel(engine, cancelled)
        await engine.until(cancelled, "cancelled")
        assert handlers.ran == []
        handlers.free.set()
        row = await engine.until(waits, "completed", "failed")
        assert (row["status"], row["attempts"], row["attempt_errors"]) == ("completed", 1, None)
        assert handlers.ran == [waits]


@pytest.mark.parametrize("timeout", [timedelta(hours=1), timedelta(milliseconds=300)])
async def test_a_type_whose_handlers_hang_leaves_threads_to_the_others(database_url: str, timeout: timedelta) -> None:
    """It takes three quarters of them, with those of timed-out attempts; its other jobs stay pending."""
    handlers = Handlers()
    async with handlers.running(database_url, threads=8, timeout=timeout, max_attempts=1) as engine:
        hang = await handlers.keep_threads(engine, 20, threads=6, max_attempts=1)
        for _ in range(5):
            await engine.until(await engine.insert("sound"), "completed")
        await engine.until(await engine.insert("tick", at="now() + interval '1 s'"), "completed")
        assert handlers.hanging == 6
        rows = [await engine.job(job_id) for job_id in hang]
        assert sum((row["status"], row["attempts"]) == ("pending", 0) for row in rows) == 14
        handlers.free.set()
        await eventually_async(lambda: handlers.hanging == 20, what="its other jobs start")


async def test_a_job_that_finds_no_thread_is_released(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims can outnumber threads. The release costs no attempt, and a cancellation meanwhile ends the job."""
    monkeypatch.setattr(Claimer, "_thread_shares", lambda _claimer, _coming: {})
    handlers = Handlers()
    async with handlers.running(database_url, threads=2) as engine:
        await handlers.keep_threads(engine, 2)
        cancelled, waits = await engine.insert("sound"), await engine.insert("sound")
        entry = engine.worker.types()["sound"]
        await eventually_async(lambda: entry.counts.get("released", 0) >= 2, what="they are released")
        await _cancel(engine, cancelled)
        row = await engine.until(cancelled, "cancelled")
        assert (row["attempts"], handlers.ran) == (0, [])
        handlers.free.set()
        row = await engine.until(waits, "completed", "failed", within_s=20)
        assert (row["status"], row["attempts"], handlers.ran) == ("completed", 1, [waits])


Leaves = Callable[[Engine, Job], None]


def _expires(_engine: Engine, job: Job) -> None:
    job.row = msgspec.structs.replace(job.row, expires_s=1.0)


def _is_paused(_engine: Engine, job: Job) -> None:
    job.type_state.task_type = replace(job.type_state.task_type, gone=True)


def _is_withdrawn(engine: Engine, job: Job) -> None:
    """Take the job out after it moved up and before a slot takes it."""

    def withdraw() -> None:
        assert engine.worker.runner._ready[0] is job
        assert engine.worker.runner.remove_job(job.id) is job
        engine.worker.outcomes.record_unstarted(job, "lost")

    engine.worker.runner.thread_freed = withdraw
    engine.worker.runner.notify_when_thread_free()


async def check_thread_passed_on(url: str, monkeypatch: pytest.MonkeyPatch, leaves: Leaves) -> None:
    """The first job in the queue for the only thread does not take it; nothing else runs, and no job is released."""
    monkeypatch.setattr(Claimer, "_thread_shares", lambda _claimer, _coming: {})
    monkeypatch.setattr(running, "SLOT_WAIT_S", 3600.0)
    handlers = Handlers()
    async with handlers.running(url, threads=1) as engine:
        waiting = engine.worker.runner._unstarted
        await handlers.keep_threads(engine, 1)
        first, *others = [await engine.insert(name) for name in ("sound", "hang", "hang")]
        await eventually_async(lambda: [job.id for job in waiting()] == [first, *others], what="they have no thread")
        engine.worker.claimer.stop()
        await engine.worker.claimer.wait_stopped()
        leaves(engine, waiting()[0])
        handlers.free.set()
        for job_id in others:
            await engine.until(job_id, "completed")
        assert (handlers.ran, engine.worker.runner.queued) == ([], 0)


@pytest.mark.parametrize("leaves", [_expires, _is_paused, _is_withdrawn])
async def test_a_thread_that_an_attempt_does_not_use_goes_to_the_next_one(
    database_url: str, monkeypatch: pytest.MonkeyPatch, leaves: Leaves
) -> None:
    """A regression: the others waited until something else ran, and no synchronous job was claimed meanwhile."""
    await check_thread_passed_on(database_url, monkeypatch, leaves)


async def test_the_suite_notices_a_thread_that_is_not_passed_on(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No sweep finds it."""
    mutate(monkeypatch, Runner._check_timeouts, "list(self._blocked)", "[]")
    with pytest.raises(AssertionError):
        await check_thread_passed_on(database_url, monkeypatch, _expires)


async def _cancel(engine: Engine, job_id: int) -> None:
    await engine.pool.execute("UPDATE tickwright.scheduled_tasks SET status = 'cancelled' WHERE id = $1", job_id)


async def _ends_before_its_thread(url: str, reason: str) -> None:
    """Delay the only thread of an attempt that has begun, and end the attempt meanwhile."""
    handlers = Handlers()
    async with handlers.running(url, threads=2) as engine:
        engine.worker.runner._executor = ThreadPoolExecutor(1)
        await handlers.keep_threads(engine, 1)
        timeout_ms = 300 if reason == "timeout" else 3_600_000
        job_id = await engine.insert("sound", timeout_ms=timeout_ms)
        await eventually_async(lambda: engine.worker.runner.busy == 2, what="it has begun")
        await _end(engine, job_id, reason)
        await eventually_async(lambda: engine.worker.types()["sound"].counts, what="it has ended")
        counts = dict(engine.worker.types()["sound"].counts)
        engine.worker.claimer.stop()
        handlers.free.set()
        await eventually_async(lambda: engine.worker.runner.busy == 0)
        await engine.worker.result_writer.drained()
        row = await engine.job(job_id)
        assert counts == {{"cancel": "cancel", "timeout": "released", "lost": "lost"}[reason]: 1}
        assert handlers.ran == []
        if reason != "lost":  # a lost job's row belongs to its next holder
            assert row["attempts"] == 0
            assert row["status"] == {"cancel": "cancelled", "timeout": "pending"}[reason]


async def _end(engine: Engine, job_id: int, reason: str) -> None:
    if reason == "cancel":
        await _cancel(engine, job_id)
    elif reason == "timeout":
        engine.worker.claimer.stop()
    else:
        [job] = [job for job in engine.worker.runner.running() if job.id == job_id]
        engine.worker.runner.stop_job(job, "lost")


@pytest.mark.parametrize("reason", ["cancel", "timeout", "lost"])
async def test_a_handler_never_starts_after_the_end_of_its_attempt(database_url: str, reason: str) -> None:
    """A thread may take the call late; until then nothing has run, and the attempt does not count."""
    await _ends_before_its_thread(database_url, reason)


async def test_the_suite_notices_a_call_that_stays_in_the_queue(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the withdrawal of the call the handler starts after its job was cancelled."""
    mutate(monkeypatch, Runner._in_thread, "if call.cancel():", "if False:")
    with pytest.raises(AssertionError):
        await _ends_before_its_thread(database_url, "cancel")


async def test_the_suite_notices_a_type_that_takes_every_thread(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without shares, in claims and at the start, the hanging type has every thread."""
    monkeypatch.setattr(Claimer, "_thread_shares", lambda _claimer, _coming: {})
    mutate(monkeypatch, Runner._free_slots, "allot(free, state.threads, all_free=free)", "free")
    handlers = Handlers()
    async with handlers.running(database_url, threads=8) as engine:
        await handlers.keep_threads(engine, 20, threads=8)
        handlers.free.set()


async def test_threads_are_passed_on_while_handlers_are_quick(database_url: str) -> None:
    """Many more jobs than threads, of two types: each runs once, with one attempt."""
    handlers = Handlers()
    handlers.free.set()
    async with handlers.running(database_url, threads=3) as engine:
        for name in ("sound", "hang"):
            await engine.pool.execute(INSERT_300, name)
        live = "SELECT count(*) FROM ONLY tickwright.scheduled_tasks"
        await eventually_async(lambda: _is_zero(engine, live), 60, what="all have ended")
        ended = "SELECT status, attempts, count(*) FROM tickwright.scheduled_tasks GROUP BY 1, 2"
        assert [tuple(row) for row in await engine.pool.fetch(ended)] == [("completed", 1, 600)]
        assert len(handlers.ran) == len(set(handlers.ran)) == handlers.hanging == 300
        runner, entries = engine.worker.runner, engine.worker.types().values()
        assert (runner.threads_busy, [(entry.held, entry.threads) for entry in entries]) == (0, [(0, 0)] * 3)


async def _is_zero(engine: Engine, sql: str) -> bool:
    return bool(await engine.pool.fetchval(sql) == 0)
