"""Runs attempts: each at its instant, in a bounded pool of slots.

A slot is a coroutine that takes attempts one after the other; there is no task per job. An attempt
starts when the database's clock has certainly reached its due time, never before. A handler is
stopped by cancelling its slot's task, which then takes the next attempt. A synchronous handler
cannot be stopped: its result is dropped and its slot stays taken until its thread returns.
"""

import asyncio
import heapq
import math
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Protocol

import msgspec
import structlog

from tickwright.capabilities.jobs.entries import Entry
from tickwright.capabilities.jobs.handlers import PayloadInvalid
from tickwright.capabilities.jobs.model import (
    ERROR_MESSAGE_MAX,
    Completed,
    Ending,
    Errored,
    Fail,
    Job,
    Retry,
    Snooze,
    Snoozed,
)
from tickwright.domain.dbclock import DbClock
from tickwright.observe import traces
from tickwright.observe.logs import without_secrets
from tickwright.ports.ids import monotonic

YIELD_AFTER_S = 0.001
SWEEP_EVERY_S = 0.05
RATE_WINDOW_S = 0.05
TIMER_S = 0.001
CLOSE_WITHIN_S = 5.0

_REPORTED = object()
_log = structlog.get_logger("tickwright.jobs")


class Ends(Protocol):
    """Where the runner reports."""

    async def begins(self, job: Job) -> bool:
        """Return whether a last attempt may begin; it counts from here on."""
        ...

    def completed(self, job: Job) -> None:
        """The common case: done, and nothing returned."""
        ...

    def ended(self, job: Job, ending: Ending) -> None:
        """Anything else that an attempt can end as."""
        ...

    def stopped(self, job: Job, reason: str) -> None:
        """The attempt was cut short: ``cancel``, ``lost``, ``shutdown``."""
        ...

    def unstarted(self, job: Job, reason: str) -> None:
        """The attempt ends for the same reasons before it has started."""
        ...


class Runner:
    """A pool of slots, a queue of ready attempts and a heap of those whose instant has not come."""

    def __init__(self, ends: Ends, clock: DbClock, *, slots: int, threads: int) -> None:
        self._ends = ends
        self._clock = clock
        self.slots = slots
        self._threads_max = threads
        self._threads: ThreadPoolExecutor | None = None
        self._ready: deque[Job] = deque()
        self._upcoming: list[tuple[float, float, int, Job]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._idle: deque[asyncio.Future[None]] = deque()
        self._running: list[Job | None] = [None] * slots
        self._tasks: list[asyncio.Task[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waking = False
        self._quiet = asyncio.Event()
        self.busy = 0
        self.finished = 0
        self.threads_stuck = 0
        self.rate_per_s = 0.0
        self._rate_mark = (monotonic(), 0)
        self.freed: Callable[[], None] = lambda: None
        self._free_below = 0

    # ------------------------------------------------------------------ capacity

    @property
    def queued(self) -> int:
        """Attempts that are held but not started."""
        return len(self._ready) + len(self._upcoming)

    @property
    def ready(self) -> int:
        """Attempts whose instant has come and that wait for a slot."""
        return len(self._ready)

    def measure_rate(self) -> float:
        """Return how many attempts end per second, over the last twentieth of a second."""
        now, (then, finished) = monotonic(), self._rate_mark
        if now - then >= RATE_WINDOW_S:
            self.rate_per_s = (self.finished - finished) / (now - then)
            self._rate_mark = (now, self.finished)
        return self.rate_per_s

    def tell_when_below(self, queued: int) -> None:
        """Call ``freed`` once, when at most ``queued`` ready attempts are left."""
        self._free_below = queued + 1

    # ------------------------------------------------------------------ taking attempts

    def put(self, jobs: Iterable[Job]) -> None:
        """Take attempts over; those whose instant has come start with the next turn of the loop."""
        now_s = self._clock.now(monotonic())
        for job in jobs:
            fire_s = job._fire_s  # noqa: SLF001  the worker's side of the object
            if fire_s <= now_s and job.entry.kind.rate_per_s is None:
                self._ready.append(job)
            else:
                heapq.heappush(self._upcoming, (fire_s, 0.0, job.id, job))
        self._wake_one()
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._upcoming and self._loop is not None:
            wait_s = self._upcoming[0][0] - self._clock.now(monotonic())
            self._timer = self._loop.call_later(max(0.0, math.ceil(wait_s * 1000) / 1000), self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = monotonic()
        now_s = self._clock.now(now)
        upcoming, ready = self._upcoming, self._ready
        while upcoming and upcoming[0][0] <= now_s:
            _, reserved_s, job_id, job = upcoming[0]
            is_last = job.attempt >= job.max_attempts  # it keeps its distance behind its begin
            if not is_last and (start_s := job.entry.start_at(now, reserved_s)) > now + TIMER_S:
                heapq.heapreplace(upcoming, (now_s + start_s - now, start_s, job_id, job))
            else:
                ready.append(heapq.heappop(upcoming)[3])
        self._wake_one()
        self._arm()

    def _wake_one(self) -> None:
        """Wake one slot; it wakes the next one when it takes its attempt, so idle slots never wake for nothing."""
        while self._ready and self._idle and not self._waking:
            slot = self._idle.popleft()
            if not slot.done():
                slot.set_result(None)
                self._waking = True

    def pull(self, job_id: int) -> Job | None:
        """Take one attempt that was not started out of the queues; for the rare case, it looks through them."""
        for job in [*self._ready, *(entry[3] for entry in self._upcoming)]:
            if job.id == job_id:
                with suppress(ValueError):
                    self._ready.remove(job)
                self._upcoming[:] = [entry for entry in self._upcoming if entry[3] is not job]
                heapq.heapify(self._upcoming)
                return job
        return None

    def held(self) -> list[Job]:
        """Return every attempt that has not ended."""
        return [*self._ready, *(entry[3] for entry in self._upcoming), *self.running()]

    def take_back(self) -> list[Job]:
        """Return what was not started, so that it can be released."""
        jobs = [*self._ready, *(entry[3] for entry in self._upcoming)]
        self._ready.clear()
        self._upcoming.clear()
        self._arm()
        return jobs

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Open the slots; once more after a close."""
        self._threads = ThreadPoolExecutor(self._threads_max, thread_name_prefix="tickwright-job")
        self._loop = asyncio.get_running_loop()
        self._tasks = [self._loop.create_task(self._slot(number)) for number in range(self.slots)]
        self._tasks.append(self._loop.create_task(self._sweep()))

    async def quiet(self) -> None:
        """Return when no attempt is running."""
        while self.busy:
            self._quiet.clear()
            await self._quiet.wait()

    async def close(self) -> None:
        """Stop what runs (as ``shutdown``) and close the slots; threads end with their handlers."""
        for job in self._running:
            if job is not None:
                job.stop_because("shutdown")
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            _, deaf = await asyncio.wait(self._tasks, timeout=CLOSE_WITHIN_S)
            if deaf:
                _log.warning("jobs.handlers_ignore_cancel", handlers=len(deaf))
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def running(self, longer_than_s: float = 0.0) -> list[Job]:
        """Return the attempts that are running for at least so long."""
        before = monotonic() - longer_than_s
        return [job for job in self._running if job is not None and job.started_s <= before]

    def stop_job(self, job: Job, reason: str) -> None:
        """Cancel a running attempt's handler."""
        if job in self._running and job.stop_reason is None:
            job.stop_because(reason)
            if job._task is not None:  # noqa: SLF001
                job._task.cancel()  # noqa: SLF001

    # ------------------------------------------------------------------ the slots

    async def _slot(self, number: int) -> None:
        loop, ready, running = asyncio.get_running_loop(), self._ready, self._running
        me = asyncio.current_task()
        traces.leave()
        worked_since = monotonic()
        while True:
            while not ready:
                turn = loop.create_future()
                self._idle.append(turn)
                await turn
                self._waking = False
                worked_since = monotonic()
            job = ready.popleft()
            if ready and not self._waking:
                self._wake_one()
            now = monotonic()
            job.started_s, job._task = now, me  # noqa: SLF001
            running[number] = job
            job.entry.note_start(self._clock.now(now) - job.due_s)
            self.busy += 1
            try:
                await (self._traced(job) if traces.recording() or job.traceparent else self._attempt(job))
            finally:
                running[number] = None
                self.busy -= 1
                self.finished += 1
                if not self.busy:
                    self._quiet.set()
            if len(ready) < self._free_below:
                self._free_below = 0
                self.freed()
            if now - worked_since > YIELD_AFTER_S:
                await asyncio.sleep(0)
                worked_since = monotonic()

    async def _traced(self, job: Job) -> None:
        """Run an attempt as a part of the trace that its job was scheduled in."""
        with traces.attempting(job.type, job.traceparent, _facts_of(job)) as job.span:
            await self._attempt(job)

    async def _attempt(self, job: Job) -> None:
        entry: Entry = job.entry
        started = job.attempt < job.max_attempts
        try:
            if not started and not await self._begins(job):
                return
            started = True
            result = await (entry.call(job) if entry.is_async else self._in_thread(job, entry))
        except asyncio.CancelledError:
            if self._end_cancelled(job, started=started):
                raise
        except Exception as error:  # noqa: BLE001  whatever a user's handler raises is this attempt's result
            self._ends.ended(job, _ending_of(error))
        else:
            if result is _REPORTED:
                return
            if job.stop_reason is not None and job.stop_reason != "shutdown":
                self._end_stopped(job)
            elif result is None:
                self._ends.completed(job)
            elif isinstance(result, (Completed, Errored, Snoozed)):
                self._ends.ended(job, result)
            else:
                self._ends.ended(job, _completed_with(result))

    async def _begins(self, job: Job) -> bool:
        """Wait until a last attempt may begin, at its type's rate; no timeout counts meanwhile."""
        deadline_s, job.deadline_s = job.deadline_s, 0.0
        if not await self._ends.begins(job):
            self._ends.stopped(job, "lost")
            return False
        await self._keep_distance(job.entry)
        job.deadline_s, job.started_s = deadline_s, monotonic()
        return True

    @staticmethod
    async def _keep_distance(entry: Entry) -> None:
        """Wait for a start of a rate-limited type; one that comes too late for it takes the next one."""
        start_s = 0.0
        while (start_s := entry.start_at(now := monotonic(), start_s)) > now + TIMER_S:  # noqa: ASYNC110  no event
            await asyncio.sleep(start_s - now)

    def _end_cancelled(self, job: Job, *, started: bool) -> bool:
        """Report an attempt whose slot's task was cancelled; return whether the slot ends, too."""
        leaving = job.stop_reason in {None, "shutdown"}
        if not leaving:
            self._uncancel()
        if started:
            self._end_stopped(job)
        else:
            self._ends.unstarted(job, job.stop_reason or "shutdown")
        return leaving

    def _end_stopped(self, job: Job) -> None:
        if job.stop_reason == "timeout":
            self._ends.ended(job, Errored("timeout", f"timeout: stopped after {job.entry.timeout_text(job)}"))
        else:
            self._ends.stopped(job, job.stop_reason or "shutdown")

    @staticmethod
    def _uncancel() -> None:
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()

    async def _in_thread(self, job: Job, entry: Entry) -> Any:
        call = asyncio.get_running_loop().run_in_executor(self._threads, copy_context().run, entry.call, job)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            if job.stop_reason not in {None, "shutdown"} and not call.done():
                self._uncancel()
                self._end_stopped(job)  # reported at once; the slot stays taken until the thread is back
                self.threads_stuck += 1
                try:
                    await self._wait_for_thread(job, call)
                finally:
                    self.threads_stuck -= 1
                return _REPORTED
            raise

    @staticmethod
    async def _wait_for_thread(job: Job, call: "asyncio.Future[Any]") -> None:
        _log.warning("jobs.thread_still_running", job=job.id, task_type=job.type)
        await asyncio.wait([call])
        if not call.cancelled():
            call.exception()

    # ------------------------------------------------------------------ deadlines

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            if self.busy:
                now = monotonic()
                for job in self._running:
                    if job is not None and job.deadline_s and now - job.started_s > job.deadline_s + job.entry.grace_s:
                        self.stop_job(job, "timeout")


def _facts_of(job: Job) -> dict[str, str | int]:
    return {
        "messaging.message.id": f"job_{job.id}",
        "tickwright.attempt": job.attempt,
        "tickwright.fence": job.fence,
    }


def _completed_with(result: Any) -> Ending:
    try:
        return Completed(msgspec.json.encode(result).decode())
    except (TypeError, ValueError) as error:
        return Errored("result_invalid", f"result_invalid: the handler's result is not JSON: {error}", final=True)


def _ending_of(error: Exception) -> Ending:
    match error:
        case Snooze():
            return Snoozed(error.wait)
        case Fail():
            return Errored("handler_failed", _shorten(str(error)), final=True)
        case Retry():
            return Errored("handler_retry", _shorten(str(error)), retry_after=error.after)
        case PayloadInvalid():
            return Errored("payload_invalid", _shorten(f"payload_invalid: {error}"), final=True)
        case _:
            text = "".join(traceback.format_exception_only(error)).strip()
            return Errored("handler_error", _shorten(text))


def _shorten(text: str) -> str:
    clean = without_secrets(text).replace("\x00", "\\x00")
    return clean if len(clean) <= ERROR_MESSAGE_MAX else clean[: ERROR_MESSAGE_MAX - 1] + "…"
