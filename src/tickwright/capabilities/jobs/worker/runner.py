"""Runs attempts: each at its instant, in a bounded pool of slots.

A slot is a coroutine that takes one attempt after the other; there is no task per job. An attempt starts when the
database's clock has certainly reached its due time, never before. To stop a handler, the runner cancels the task of its
slot, which then takes the next attempt. A synchronous handler cannot be stopped: its result is dropped, and its slot
and its thread stay taken until it returns.

With several types, one type runs in at most ``type_slots_max`` slots, or the ``type_max`` of its queue, and a
synchronous one in three quarters of the threads that the others leave free. The worker may hold more of its attempts,
which it fetched ahead while attempts ended fast. An attempt beyond these bounds is blocked: it can be cancelled and
released like every waiting attempt, and no timeout counts. The runner continues it when a slot is free, or releases it
after a second, since another worker may have a slot.

All that a handler raises or returns is the result of its attempt, also ``SystemExit`` or a cancellation of its own:
only ``close`` ends a slot. If a timer of a former handler cancels the slot's task, a new task continues the slot.

``close`` waits a few seconds for handlers that ignore it. An attempt that runs longer stays known and counted until it
ends, also when the slots are opened again before that. Then its slot takes no more attempts.
"""

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Any

import structlog

from tickwright.capabilities.jobs.model import Begin, Errored, Job, allot
from tickwright.capabilities.jobs.worker.queue_slots import QueueSlots, SlotPools
from tickwright.capabilities.jobs.worker.result_writer import OutcomeRecorder, outcome_of_raised, outcome_of_result
from tickwright.capabilities.jobs.worker.type_state import SLOT_WAIT_S, TIMER_S, TypeState
from tickwright.domain.dbclock import DbClock
from tickwright.observe import traces
from tickwright.plugin.lifespan import Around
from tickwright.ports.ids import monotonic

YIELD_AFTER_S = 0.001
"""How long all slots together work before the event loop turns: answers of the database wait no longer."""
CHECK_EVERY_S = 0.05
CLOSE_WITHIN_S = 5.0

_REPORTED = object()
_log = structlog.get_logger("tickwright.jobs")


class Runner:
    """A pool of slots, a queue of ready attempts and a heap of those that are not due."""

    def __init__(self, outcomes: OutcomeRecorder, clock: DbClock, *, slots: int, threads: int) -> None:
        self._outcomes, self._clock = outcomes, clock
        self.slots = slots
        self.pools: SlotPools | None = None
        self.type_slots_max = slots
        """Slots that one type may have."""
        self.threads = threads
        self._executor = self._new_executor()
        self._ready: deque[Job] = deque()
        self._blocked: dict[TypeState, deque[Job]] = {}
        self._upcoming: list[tuple[float, float, int, Job]] = []
        self.places = outcomes.places
        self.places.put = self._follow
        self._timer: asyncio.TimerHandle | None = None
        self._idle: deque[asyncio.Future[None]] = deque()
        self._running: dict[asyncio.Task[None], Job] = {}
        self._slots: list[asyncio.Task[None]] = []
        self._timeouts: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context = Context()
        self._waking, self._yield_at_s = False, 0.0
        self._generation: object | None = None
        """Identifies the open slots; slots of another generation take no more attempts."""
        self._all_ended = asyncio.Event()
        self.threads_busy = self.threads_stuck = 0
        self.freed: Callable[[], None] = lambda: None
        self._free_below = 0
        self.thread_freed: Callable[[], None] = lambda: None
        self._thread_wanted = False

    @property
    def busy(self) -> int:
        """Attempts that run."""
        return len(self._running)

    @property
    def queued(self) -> int:
        """Attempts that are held but not started."""
        return len(self._ready) + self.blocked + len(self._upcoming) + len(self.places)

    @property
    def blocked(self) -> int:
        """Attempts that are due while their type has its share of the slots or threads."""
        return sum(map(len, self._blocked.values()))

    @property
    def ready(self) -> int:
        """Attempts that are due and wait for a slot."""
        return len(self._ready)

    def notify_when_below(self, queued: int) -> None:
        """Call ``freed`` once, when at most ``queued`` attempts wait for a slot."""
        self._free_below = queued + 1

    def notify_when_thread_free(self) -> None:
        """Call ``thread_freed`` once, when the next thread is free."""
        self._thread_wanted = True

    def put(self, jobs: Iterable[Job]) -> None:
        """Take attempts over; those that are due start with the next turn of the loop."""
        now_s = self._clock.now(monotonic())
        for job in jobs:
            fire_s = job.fire_s
            if fire_s <= now_s and job.type_state.task_type.rate_per_s is None:
                self._ready.append(job)
            else:
                heapq.heappush(self._upcoming, (fire_s, 0.0, job.id, job))
        self._wake_one()
        self._arm()

    def _follow(self, job: Job) -> None:
        """Take over the next attempt of a place; the slot in which the one before it ends may take it."""
        is_due = job.fire_s <= self._clock.now(monotonic()) and job.type_state.task_type.rate_per_s is None
        if is_due and self._loop is not None:
            self._ready.append(job)
            self._loop.call_soon(self._wake_one)
        else:
            self.put([job])

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._upcoming and self._loop is not None:
            wait_s = self._upcoming[0][0] - self._clock.now(monotonic())
            self._timer = self._loop.call_later(max(0.0, math.ceil(wait_s * 1000) / 1000), self._fire)

    def recompute_starts(self, state: TypeState) -> None:
        """Compute the starts of a type's attempts again, after a change of its rate."""
        for place, (_, reserved_s, job_id, job) in enumerate(self._upcoming):
            if job.type_state is state:
                self._upcoming[place] = (job.fire_s, reserved_s, job_id, job)
        heapq.heapify(self._upcoming)
        self._arm()

    def _fire(self) -> None:
        self._timer = None
        now = monotonic()
        now_s = self._clock.now(now)
        upcoming, ready = self._upcoming, self._ready
        while upcoming and upcoming[0][0] <= now_s:
            _, reserved_s, job_id, job = upcoming[0]
            is_last = job.attempt >= job.max_attempts  # it keeps its distance after its begin
            if not is_last and (start_s := job.type_state.reserve_start(now, reserved_s)) > now + TIMER_S:
                heapq.heapreplace(upcoming, (now_s + start_s - now, start_s, job_id, job))
            else:
                ready.append(heapq.heappop(upcoming)[3])
        self._wake_one()
        self._arm()

    def _wake_one(self) -> None:
        """Wake one slot, which wakes the next one when it takes its attempt: no idle slot wakes without an attempt."""
        while self._ready and self._idle and not self._waking:
            slot = self._idle.popleft()
            if not slot.done():
                slot.set_result(None)
                self._waking = True

    def remove_job(self, job_id: int) -> Job | None:
        """Remove one unstarted attempt from the queues. It scans them: use it for rare cases."""
        found = next((job for job in self._unstarted() if job.id == job_id), None)
        return found if found is not None and self.remove_jobs({found}) else None

    def remove_jobs(self, jobs: AbstractSet[Job]) -> list[Job]:
        """Remove the unstarted ones of these attempts from the queues, and return them."""
        out = [job for job in self._unstarted() if job in jobs]
        if out:
            self.places.remove(jobs)
            for queue in (self._ready, *self._blocked.values()):
                kept = [job for job in queue if job not in jobs]
                queue.clear()
                queue.extend(kept)
            for state in [state for state, waiting in self._blocked.items() if not waiting]:
                del self._blocked[state]
            self._upcoming[:] = [upcoming for upcoming in self._upcoming if upcoming[3] not in jobs]
            heapq.heapify(self._upcoming)
        return out

    def remove_type(self, state: TypeState, *, keep: int = 0) -> list[Job]:
        """Remove a type's unstarted attempts from the queues, except the ``keep`` that start first; return them."""
        jobs = [job for job in self._unstarted() if job.type_state is state]
        return self.remove_jobs({*sorted(jobs, key=lambda job: job.fire_s)[keep:]})

    def held(self, running_for_s: float = 0.0) -> list[Job]:
        """Return every attempt that has not ended; of the running ones, those that run for at least this time."""
        return [*self._unstarted(), *self.running(running_for_s)]

    def _unstarted(self) -> list[Job]:
        return [*chain(*self._blocked.values()), *self._ready, *(job for *_, job in self._upcoming), *self.places]

    def remove_all(self) -> list[Job]:
        """Remove and return every unstarted attempt, so that it can be released."""
        jobs = self._unstarted()
        self.places.remove({*self.places})
        self._blocked.clear()
        self._ready.clear()
        self._upcoming.clear()
        self._arm()
        return jobs

    def start(self) -> None:
        """Open the slots; also after a close."""
        self._generation = object()
        self._executor = self._new_executor()
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._context.run(traces.leave)
        self._slots = [self._new_slot(number) for number in range(self.slots)]
        self._timeouts = self._loop.create_task(self._check_timeouts())

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop of the slots."""
        assert self._loop is not None  # noqa: S101  an attempt runs, so they were opened
        return self._loop

    async def wait_idle(self) -> None:
        """Return when no attempt is running."""
        while self.busy:
            self._all_ended.clear()
            await self._all_ended.wait()

    async def close(self) -> None:
        """Stop running attempts (as ``shutdown``) and close the slots; threads end with their handlers."""
        self._generation = None
        for job in self._running.values():
            job.stop_because("shutdown")
        tasks = [*self._slots, self._timeouts] if self._timeouts else []
        for task in tasks:
            task.cancel()
        if tasks:
            _, unresponsive = await asyncio.wait(tasks, timeout=CLOSE_WITHIN_S)
            if unresponsive:
                _log.warning("jobs.handlers_ignore_cancel", handlers=len(unresponsive))
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _new_executor(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.threads, thread_name_prefix="tickwright-job")

    def running(self, longer_than_s: float = 0.0) -> list[Job]:
        """Return the attempts that run for at least this time."""
        before = monotonic() - longer_than_s
        return [job for job in self._running.values() if job.started_s <= before]

    def stop_job(self, job: Job, reason: str) -> None:
        """Cancel a running attempt's handler."""
        slot = next((slot for slot, running in self._running.items() if running is job), None)
        if slot is not None and job.stop_reason is None:
            job.stop_because(reason)
            slot.cancel()

    async def _slot(self, generation: object | None) -> None:
        ready, blocked, running = self._ready, self._blocked, self._running
        context = self._context
        me: Any = asyncio.current_task()
        now = monotonic()
        # Compare the context, so that what a handler sets ends with its attempt.
        while self._generation is generation and _are_equal(copy_context(), context):
            if not ready:
                await self._until_ready()
                now = monotonic()
            job = ready.popleft()
            if ready and not self._waking:
                self._wake_one()
            row = job.row  # the properties of a job cost more than these fields
            state, now_s = job.type_state, self._clock.now(now)
            threaded, queue = None if state.is_async else state, state.queue
            asks = threaded or queue or state.task_type.waits or row.expires_s is not None
            if (asks or len(running) >= self.type_slots_max) and not self._admit(job, threaded, now_s):
                now = await self._turn_loop()
                continue
            job.started_s = began = now
            running[me] = job
            state.running += 1
            state.note_start(now_s - row.due_s)
            try:
                await (self._traced(job) if traces.recording() or row.traceparent else self._attempt(job))
            except Exception:  # noqa: BLE001  an error of ours behind an attempt does not cost its slot, too
                _log.exception("jobs.attempt_broken", job=job.id, task_type=job.type)
            finally:
                del running[me]
                state.running -= 1
                now, ended = monotonic(), state.ended
                ended.count += 1
                ended.took_s += now - began
                if threaded or blocked or queue:
                    self._release_slot(job, threaded, queue)
            if me.cancelling():
                await self._uncancel(me)
                now = monotonic()
            if self._free_below and len(ready) < self._free_below:
                self._free_below = 0
                self.freed()
            if now > self._yield_at_s:
                now = await self._turn_loop()

    async def _turn_loop(self) -> float:
        """Let the event loop turn, and return the time after it. The first slot that goes on begins a new interval."""
        await asyncio.sleep(0)
        now = monotonic()
        if now > self._yield_at_s:
            self._yield_at_s = now + YIELD_AFTER_S
        return now

    def _new_slot(self, number: int) -> asyncio.Task[None]:
        slot = asyncio.get_running_loop().create_task(self._slot(self._generation), context=self._context.copy())
        slot.add_done_callback(partial(self._replace, number))
        return slot

    def _replace(self, number: int, ended: asyncio.Task[None]) -> None:
        """Continue an open slot with a new task: its context was changed, or its task was cancelled."""
        if not ended.cancelled() and (error := ended.exception()) is not None:
            _log.error("jobs.slot_broken", exc_info=error)
        if not self._running:
            self._all_ended.set()
        if self._generation is not None and self._slots[number] is ended:
            self._slots[number] = self._new_slot(number)

    async def _until_ready(self) -> None:
        while not self._ready:
            if not self._running:
                self._all_ended.set()
            turn = asyncio.get_running_loop().create_future()
            self._idle.append(turn)
            try:
                await turn
            finally:  # also where the woken slot ends: the next attempt wakes another one
                self._waking = False

    @staticmethod
    async def _uncancel(task: asyncio.Task[Any]) -> None:
        """Clear cancellations that were meant for the last attempt; those requested in this turn arrive here."""
        while task.cancelling():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
            task.uncancel()

    def _admit(self, job: Job, threaded: TypeState | None, now_s: float) -> bool:
        """Give an attempt its slot, and its thread; else end it or let it wait, and return ``False``."""
        if job.type_state.task_type.waits:
            self._outcomes.record_unstarted(job, "waits")
            return False
        return not self._end_if_expired(job, now_s) and self._take_slot(job, threaded)

    def _take_slot(self, job: Job, threaded: TypeState | None) -> bool:
        if not self._free_slots(job.type_state):
            waiting = self._blocked.setdefault(job.type_state, deque())
            if job.started_s:  # it was moved up, and its slot is gone
                waiting.appendleft(job)
            else:
                job.started_s = monotonic()
                waiting.append(job)
            return False
        if (queue := job.type_state.queue) is not None:
            queue.take(job.type)
        if threaded is not None:
            self.threads_busy += 1
            threaded.threads += 1
        return True

    def _end_if_expired(self, job: Job, now_s: float) -> bool:
        """End an attempt that has expired while it waited; return whether it has."""
        if job.expires_s is None or now_s < job.expires_s:
            return False
        self._outcomes.record_expired(job)
        return True

    def _free_slots(self, state: TypeState) -> int:
        """Return how many more attempts of a type may start; a type never takes the last slots or threads."""
        slots = self.slots - len(self._running) if state.queue is None else state.queue.free
        slots = min(slots, self.slots_of(state) - state.running_in_queue)
        if not state.is_async:
            free = self.threads - self.threads_busy
            slots = min(slots, allot(free, state.threads, all_free=free))
        return max(0, slots)

    def slots_of(self, state: TypeState) -> int:
        """Return how many slots a type may have."""
        return self.type_slots_max if state.queue is None else state.queue.type_max

    def _release_slot(self, job: Job, threaded: TypeState | None, queue: QueueSlots | None) -> None:
        if queue is not None:
            queue.release(job.type)
        if threaded is not None:
            self.threads_busy -= 1
            threaded.threads -= 1
        self._move_up()
        if threaded is not None and self._thread_wanted:
            self._thread_wanted = False
            self.thread_freed()

    def _move_up(self) -> None:
        """Continue the attempt that has waited longest of those that may have a slot now."""
        able = [state for state in self._blocked if self._free_slots(state) > 0]
        if able:
            self._ready.appendleft(self._leave_wait(min(able, key=lambda state: self._blocked[state][0].started_s)))

    def _leave_wait(self, state: TypeState) -> Job:
        job = self._blocked[state].popleft()
        if not self._blocked[state]:
            del self._blocked[state]
        return job

    async def _traced(self, job: Job) -> None:
        """Run an attempt as a part of the trace that its job was scheduled in."""
        facts: dict[str, str | int] = {"messaging.message.id": f"job_{job.id}", "tickwright.attempt": job.attempt}
        with traces.attempting(job.type, job.traceparent, facts | {"tickwright.fence": job.fence}) as job.span:
            await self._attempt(job)

    async def _attempt(self, job: Job) -> None:
        state: TypeState = job.type_state
        row = job.row
        started = row.attempts < row.max_attempts
        try:
            if not started and not await self._begins(job):
                return
            started = True
            result = await (state.call(job) if state.is_plain else self._called(job, state))
        except asyncio.CancelledError as error:
            if job.stop_reason is None:  # the handler's own: a task that it awaits was cancelled
                self._outcomes.record_ended(job, outcome_of_raised(job, error))
            elif started:
                self._end_stopped(job, job.stop_reason)
            else:
                self._outcomes.record_unstarted(job, job.stop_reason)
        except BaseException as error:  # noqa: BLE001  all that a handler raises is this attempt's result
            self._outcomes.record_ended(job, outcome_of_raised(job, error))
        else:
            if result is None and job.stop_reason is None:
                self._outcomes.record_completed(job)
            elif result is not _REPORTED:
                self._end_returned(job, result)

    def _end_returned(self, job: Job, result: Any) -> None:
        if isinstance(result, _Raised):
            self._outcomes.record_ended(job, outcome_of_raised(job, result.error))
        elif job.stop_reason is not None and job.stop_reason != "shutdown":
            self._end_stopped(job, job.stop_reason)
        elif result is None:
            self._outcomes.record_completed(job)
        else:
            self._outcomes.record_ended(job, outcome_of_result(job, result))

    def _called(self, job: Job, state: TypeState) -> Awaitable[Any]:
        if state.around is not None:
            return self._enclosed(job, state, state.around)
        return self._in_thread(job, state)

    async def _begins(self, job: Job) -> bool:
        """Wait until a last attempt may begin, at its type's rate; no timeout counts meanwhile."""
        deadline_s, job.deadline_s = job.deadline_s, 0.0
        match await self._outcomes.begins(job):
            case Begin.LOST:
                self._outcomes.record_stopped(job, "lost")
                return False
            case Begin.LOCKED:  # another session has locked its row: a slot does not wait for it
                self._outcomes.record_unstarted(job, "locked")
                return False
        if not await job.type_state.wait_for_start():
            self._outcomes.record_unstarted(job, "waits")
            return False
        job.deadline_s, job.started_s = deadline_s, monotonic()
        return not self._end_if_expired(job, self._clock.now(job.started_s))

    def _end_stopped(self, job: Job, reason: str) -> None:
        if reason == "timeout":
            self._outcomes.record_ended(
                job, Errored("timeout", f"timeout: stopped after {timedelta(seconds=job.deadline_s)}")
            )
        else:
            self._outcomes.record_stopped(job, reason)

    async def _enclosed(self, job: Job, state: TypeState, around: Around) -> Any:
        """Run an attempt inside the program's middleware, which sees what the handler returns or raises."""
        result: Any = None

        async def run() -> Any:
            nonlocal result
            result = await (state.call(job) if state.is_async else self._in_thread(job, state))
            if result is _REPORTED:  # a thread that could not be stopped has ended
                raise asyncio.CancelledError
            if isinstance(result, _Raised):
                raise result.error
            return result

        try:
            returned = await around(job, run)
        except BaseException:
            if result is _REPORTED:
                return result
            raise
        return result if result is _REPORTED else returned

    async def _in_thread(self, job: Job, state: TypeState) -> Any:
        call = self._executor.submit(copy_context().run, _call, job, state)
        back = asyncio.wrap_future(call)
        try:
            return await self._answer_of(job, back)
        except asyncio.CancelledError:
            if job.stop_reason is None or back.done():
                raise
            if call.cancel():  # its thread has not reached the handler, and never will
                self._outcomes.record_unstarted(job, job.stop_reason)
                return _REPORTED
            if job.stop_reason == "shutdown":
                raise
            self._end_stopped(job, job.stop_reason)  # reported at once; the slot stays taken until the thread ends
            self.threads_stuck += 1
            state.stuck += 1
            try:
                await self._wait_for_thread(job, back)
            finally:
                self.threads_stuck -= 1
                state.stuck -= 1
            return _REPORTED

    @staticmethod
    async def _answer_of(job: Job, back: "asyncio.Future[Any]") -> Any:
        """Wait for a thread until its attempt is stopped; ignore a cancellation that another handler left behind."""
        while True:
            try:
                return await asyncio.shield(back)
            except asyncio.CancelledError:
                if job.stop_reason is not None or back.done():
                    raise

    async def _wait_for_thread(self, job: Job, back: "asyncio.Future[Any]") -> None:
        """Wait until the thread ends or the runner closes; ignore cancellations that another handler left behind."""
        _log.warning("jobs.thread_still_running", job=job.id, task_type=job.type)
        generation = self._generation
        while not back.done() and self._generation is generation is not None:
            with suppress(asyncio.CancelledError):
                await asyncio.wait([back])
        if back.done() and not back.cancelled():
            back.exception()

    async def _check_timeouts(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            now = monotonic()
            for job in self._running.values():
                if job.deadline_s and now - job.started_s > job.deadline_s + job.type_state.grace_s:
                    self.stop_job(job, "timeout")
            for state in list(self._blocked):
                self._check_blocked(state, now)

    def _check_blocked(self, state: TypeState, now: float) -> None:
        """Continue a type's blocked attempts that may have slots; release those that have waited too long."""
        free = self.slots - len(self._running) - len(self._ready)
        slots = min(free, self._free_slots(state), len(self._blocked[state]))
        self._ready.extendleft(reversed([self._leave_wait(state) for _ in range(slots)]))
        while state in self._blocked and now - self._blocked[state][0].started_s > SLOT_WAIT_S:
            self._outcomes.record_unstarted(self._leave_wait(state), "no_slot")
        self._wake_one()


def _are_equal(here: Context, other: Context) -> bool:
    try:
        return here == other
    except BaseException:  # noqa: BLE001  the comparison of two values of a user's
        _log.debug("jobs.context_incomparable")
        return False


@dataclass(frozen=True, slots=True)
class _Raised:
    """What a synchronous handler raised; a value, because a future cannot hold a StopIteration."""

    error: BaseException


def _call(job: Job, state: TypeState) -> Any:
    """Call a synchronous handler in its thread."""
    try:
        return state.call(job)
    except BaseException as error:  # noqa: BLE001  all that a handler raises is this attempt's result
        return _Raised(error)
