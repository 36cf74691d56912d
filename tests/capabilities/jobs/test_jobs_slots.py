"""Cancellations and context that a handler leaves to the task of its slot: the slot continues, no other job is lost."""

import asyncio
import contextvars
import threading
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from kit.engine import Engine, policy, running_engine
from kit.mutants import mutate
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.model import Job
from tickwright.capabilities.jobs.worker import runner as running
from tickwright.capabilities.jobs.worker.runner import Runner, _are_equal
from tickwright.capabilities.jobs.worker.worker import WorkerLimits

SLOTS = 2


async def _sound(_job: Job) -> None:
    return


async def _others_end(engine: Engine, within_s: float = 10) -> None:
    for job in [await engine.insert("sound") for _ in range(3 * SLOTS)]:
        await engine.until(job, "completed", within_s=within_s)


async def _sound_ones_end(engine: Engine, within_s: float = 10) -> None:
    await _others_end(engine, within_s)
    await eventually_async(lambda: not engine.worker.runner.busy, what="no slot is taken")


async def check_cancelled_while_idle(url: str, within_s: float = 10) -> None:
    """A timer of an earlier handler, never cancelled, cancels each slot."""
    async with running_engine(url, {"sound": _sound}, limits=WorkerLimits(concurrency=SLOTS, threads=1)) as engine:
        await _sound_ones_end(engine, within_s)
        for slot in list(engine.worker.runner._slots):
            slot.cancel()
        await _sound_ones_end(engine, within_s)


async def test_a_slot_continues_when_it_is_cancelled_while_it_waits(database_url: str) -> None:
    """A regression: the worker claimed jobs and ran none of them, for as long as it lived."""
    await check_cancelled_while_idle(database_url)


async def test_the_suite_notices_a_slot_that_is_not_replaced(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant: an ended slot is not replaced."""
    mutate(monkeypatch, Runner._replace, "self._slots[number] is ended", "False")
    with pytest.raises(AssertionError):
        await check_cancelled_while_idle(database_url, within_s=3)


async def check_cancelled_while_woken(
    url: str, monkeypatch: pytest.MonkeyPatch, within_s: float = 10, *, wake: Any = Runner._wake_one
) -> None:
    """A slot is cancelled in the step of the loop in which it is woken: another one takes the job."""
    cancelled: list[asyncio.Task[None]] = []

    def wake_and_cancel(runner: Runner) -> None:
        turn = runner._idle[0] if runner._idle else None
        wake(runner)
        if turn is not None and turn.done() and not cancelled:
            [slot] = [slot for slot in runner._slots if getattr(slot, "_fut_waiter", None) is turn]
            slot.cancel()
            cancelled.append(slot)

    async with running_engine(url, {"sound": _sound}, limits=WorkerLimits(concurrency=SLOTS, threads=1)) as engine:
        monkeypatch.setattr(Runner, "_wake_one", wake_and_cancel)
        await _sound_ones_end(engine, within_s)
    assert cancelled


async def test_a_slot_that_is_cancelled_as_it_is_woken_wakes_others(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A regression: one cancellation stopped all slots of the worker."""
    await check_cancelled_while_woken(database_url, monkeypatch)


async def test_the_suite_notices_slots_that_wait_for_one_that_ended(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant: only a slot that continues lets others be woken, and none replaces the ended one."""
    mutate(monkeypatch, Runner._replace, "self._slots[number] is ended", "False")
    mutate(
        monkeypatch,
        Runner._until_ready,
        "self._waking = False",
        "self._waking = bool(turn.done() and not turn.cancelled() and asyncio.current_task().cancelling())",
    )
    with pytest.raises(AssertionError):
        await check_cancelled_while_woken(database_url, monkeypatch, within_s=3)


class _Base(BaseException):
    """Not an ``Exception``."""


class _Incomparable:
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise _Base


def test_context_variables_that_cannot_be_compared_count_as_changed() -> None:
    """Whatever their comparison raises: a regression, where the slot's task ended with it."""
    variable: contextvars.ContextVar[Any] = contextvars.ContextVar("of a handler")
    here, other = contextvars.Context(), contextvars.Context()
    for context in (here, other):
        context.run(variable.set, _Incomparable())
    assert not _are_equal(here, other)


async def check_cancelled_beside_a_thread(url: str) -> None:
    """Something cancels a slot while another job's synchronous handler runs in its thread."""
    gate, starts = threading.Event(), list[int]()

    def blocks(job: Job) -> None:
        starts.append(job.attempt)
        gate.wait(60)

    limits, kinds = WorkerLimits(concurrency=SLOTS, threads=SLOTS), {"blocks": policy("blocks")}
    async with running_engine(url, {"blocks": blocks, "sound": _sound}, kinds=kinds, limits=limits) as engine:
        try:
            job = await engine.insert("blocks")
            await eventually_async(lambda: starts, what="it has started")
            [slot] = engine.worker.runner._running
            slot.cancel()
            await _others_end(engine)
            assert (await engine.job(job))["status"] == "processing"
        finally:
            gate.set()
        await engine.until(job, "completed")
    assert starts == [1]


async def test_a_stale_cancellation_runs_no_synchronous_job_twice(database_url: str) -> None:
    """Its thread cannot be stopped: a regression, where the job was released and ran in a second thread beside it."""
    await check_cancelled_beside_a_thread(database_url)


async def test_the_suite_notices_a_cancellation_that_leaves_a_thread_alone(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant: each cancellation ends the attempt."""
    mutate(monkeypatch, Runner._answer_of, "if job.stop_reason is not None or back.done():", "if True:")
    with pytest.raises((AssertionError, ValueError)):
        await check_cancelled_beside_a_thread(database_url)


async def check_cancelled_beside_a_stuck_thread(url: str) -> None:
    """Something cancels a slot whose attempt has timed out, and whose thread still runs: both stay taken."""
    gate, started = threading.Event(), threading.Event()

    def blocks(_job: Job) -> None:
        started.set()
        gate.wait(60)

    kinds = {"blocks": policy("blocks", timeout=timedelta(milliseconds=200), max_attempts=1)}
    limits = WorkerLimits(concurrency=SLOTS, threads=1)
    async with running_engine(url, {"blocks": blocks, "sound": _sound}, kinds=kinds, limits=limits) as engine:
        runner = engine.worker.runner
        try:
            await engine.insert("blocks")
            await eventually_async(lambda: runner.threads_stuck, 60, what="it has timed out")
            [slot] = runner._running
            slot.cancel()
            await _others_end(engine)
            assert (runner.threads_busy, runner.threads_stuck) == (1, 1)
        finally:
            gate.set()
        await eventually_async(lambda: (runner.threads_busy, runner.threads_stuck) == (0, 0), what="it is back")


async def test_a_stale_cancellation_frees_no_stuck_thread(database_url: str) -> None:
    """A regression: jobs without a thread were started, and their timeouts counted."""
    await check_cancelled_beside_a_stuck_thread(database_url)


async def test_the_suite_notices_a_stuck_thread_that_counts_as_free(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant: each cancellation counts as one of a close."""
    mutate(
        monkeypatch,
        Runner._wait_for_thread,
        "while not back.done() and self._generation is generation is not None:",
        "if not back.done():",
    )
    with pytest.raises(AssertionError, match=r"\([01], 0\) == \(1, 1\)"):
        await check_cancelled_beside_a_stuck_thread(database_url)


async def check_opened_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots are closed and opened again beside a handler that ignores its cancellation."""
    monkeypatch.setattr(running, "CLOSE_WITHIN_S", 0.05)
    gate, started = asyncio.Event(), asyncio.Event()

    async def uncancellable(_job: Job) -> None:
        started.set()
        while not gate.is_set():
            with suppress(asyncio.CancelledError):
                await gate.wait()

    async with running_engine(
        url, {"uncancellable": uncancellable, "sound": _sound}, limits=WorkerLimits(concurrency=SLOTS, threads=1)
    ) as engine:
        runner = engine.worker.runner
        try:
            job = await engine.insert("uncancellable")
            await started.wait()
            await runner.close()
            runner.start()
            await _others_end(engine)
            assert [held.id for held in runner.held()] == [job]
        finally:
            gate.set()
        await engine.until(job, "completed")
        await _sound_ones_end(engine)
        slots = [task for task in asyncio.all_tasks() if "Runner._slot" in repr(task.get_coro())]
        assert len(slots) == SLOTS


async def test_a_job_that_outlives_a_close_is_held_until_it_ends(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A regression: its slot got its number twice and hid the first one's jobs, which could run twice."""
    await check_opened_again(database_url, monkeypatch)


async def test_the_suite_notices_a_slot_that_outlives_its_close(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant: a slot continues while any slots are open, also those of a later start."""
    mutate(monkeypatch, Runner._slot, "self._generation is generation", "self._generation is not None")
    with pytest.raises(AssertionError):
        await check_opened_again(database_url, monkeypatch)
