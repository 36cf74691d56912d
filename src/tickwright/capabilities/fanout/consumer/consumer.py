"""The consumer pool of fan-out: takes tasks from the queue, claims their runs, calls the module's function.

::

    queue ──take──▶ read ──claim──▶ permit ──call──▶ end ──ack──▶
                      └─ cannot be done now ──▶ delay queue   └─ cannot be done ──▶ dead letters

Claims decide which consumer runs a task. The signed message has the entity: consumers never read entities from the
database. A slot holds one message. It waits for a store of claims while that answers, and a second for a partner's
permit, but never for a busy entity. Slow entities may use only some of the slots. README.md lists what a crash leaves
at each step.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeAlias

import structlog

from tickwright.capabilities.fanout.consumer.remote_tasks import RemoteTasks
from tickwright.capabilities.fanout.consumer.run_claims import ClaimLostError, ConsumerRunClaims
from tickwright.capabilities.fanout.consumer.snapshot import ConsumerSnapshot
from tickwright.capabilities.fanout.consumer.task_run import (
    CallResult,
    SlotUse,
    SlowShare,
    TaskRunner,
    timed_out_lately,
)
from tickwright.capabilities.fanout.handlers import Handler, ModuleRegistry
from tickwright.capabilities.fanout.messages import Task, read_task
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.domain.message_versions import FutureVersionError
from tickwright.engine.remote.calls import Postponed
from tickwright.engine.service import LoopService
from tickwright.engine.tasks import TaskGroup, cancel_safe, end_task
from tickwright.observe.metrics import Sample
from tickwright.partners.outcomes import Failed, Throttled
from tickwright.ports.fanout import HeldRun, Run, RunClaim, RunStart
from tickwright.ports.ids import monotonic
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.ports.session import Session
from tickwright.ports.task_queue import Delivery, TaskQueue
from tickwright.store.pool import UNAVAILABLE, Pool

WARN_S = 5.0
"""How often a warning names windows that were lost meanwhile."""
SHOWN_MAX = 10
SOON = timedelta(seconds=1)
LATER = timedelta(seconds=10)
MUCH_LATER = timedelta(seconds=60)
SOON_MAX, LATER_MAX = 5, 20
BUSY_SOON_MAX = 15  # seconds: longer than the claim of a killed consumer lives, in Redis or as a session
DELAYS_MAX = 30  # of what only another release can do

_log = structlog.get_logger("tickwright.fanout")

# The disposition of a message, as a value: the consumer decides it, then applies it at the queue.


@dataclass(frozen=True, slots=True)
class Ack:
    """Nothing is left to do. ``why`` is counted: ``succeeded``, ``superseded``, ``expired``, ``given_up``."""

    why: str


@dataclass(frozen=True, slots=True)
class RetryLater:
    """Try again later. ``why`` is the counted reason: ``busy``, ``slow``, ``failed``, ``throttled`` and others."""

    why: str
    by: timedelta


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """No consumer can do this: dead-letter it, with a code and a text for operators."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Release:
    """Return it to the queue unchanged: this process stops, or has lost its claim."""


Disposition: TypeAlias = Ack | RetryLater | DeadLetter | Release


def retry_delay(delays: int, soon_max: int = SOON_MAX) -> timedelta:
    """Return the delay after so many delays: a second ``soon_max`` times, then ten, then a minute."""
    if delays < soon_max:
        return SOON
    return LATER if delays < LATER_MAX else MUCH_LATER


def retry_within_window(why: str, by: timedelta, now_s: float, end_s: int, *, ack_as: str) -> Disposition:
    """Return a delay, or ``Ack(ack_as)`` if it would end after the window: the next window has its own message."""
    return RetryLater(why, by) if now_s + by.total_seconds() < end_s else Ack(ack_as)


def retry_after_throttle(retry_after: timedelta, delays: int, now_s: float, end_s: int) -> Disposition:
    """Return a delay longer than ``retry_after``, which the partner requested, if the window allows it.

    A task that is tried again exactly then would call first, be throttled again, and delay the partner's other tasks.
    """
    longer = retry_within_window("throttled", retry_after + retry_delay(delays), now_s, end_s, ack_as="given_up")
    if isinstance(longer, RetryLater):
        return longer
    return retry_within_window("throttled", max(retry_after, SOON), now_s, end_s, ack_as="given_up")


class FanoutConsumer(LoopService):
    """The consumer of one process.

    Args:
        queue: Of tasks; its service starts before this one and ends later, and it hands out one message per slot.
        at_once: Runs of one entity, all its modules and all processes together.
        remote: Hands tasks of modules with a target over.
        runs_unsigned: Run messages without a signature, of schedulers of a release that did not sign.

    Invariants:
        FAN-9: what no scheduler of this installation signed is not run.
        FAN-5: no function is called without a claim; what it did counts only under that claim.
        FAN-6: a message is acknowledged only when its end is written, when it is kept elsewhere, or when nothing is
            left to do for it.
    """

    name = "fanout-consumer"

    def __init__(
        self,
        pool: Pool,
        queue: TaskQueue,
        claims: ConsumerRunClaims,
        session: Session,
        *,
        runner: TaskRunner,
        slow: SlowShare,
        modules: ModuleRegistry,
        at_once: int,
        remote: RemoteTasks | None = None,
        runs_unsigned: bool = False,
        probe: Probe = NO_PROBE,
    ) -> None:
        super().__init__()
        self._remote = remote
        self._pool, self._queue, self._claims = pool, queue, claims
        self._runner, self._modules, self._at_once, self._probe = runner, modules, at_once, probe
        self._runs_unsigned, self.slow = runs_unsigned, slow
        self.snapshot = ConsumerSnapshot()
        session.on_beat(self.snapshot.read)
        self.counts: Counter[str] = Counter()
        self._lost_while_slow: list[str] = []
        self._running: set[asyncio.Task[None]] = set()
        self._taking: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ service

    async def _work(self) -> None:
        with suppress(*UNAVAILABLE):  # the next heartbeat reads it
            (await self.snapshot.read(self._pool))()
        self.tick()
        async with TaskGroup() as group:
            loops = [group.create_task(self._claims.run()), group.create_task(self._warn())]
            if not self.stopping.is_set():
                self._taking = group.create_task(self._take())
            await self.stopping.wait()
            if self._taking is not None:
                self._taking.cancel()
            await self._none_runs()
            for task in loops:
                task.cancel()
        await self._claims.write_dropped()

    async def quiesce(self) -> None:
        """Take nothing more; wait for running tasks, also after a crash of this service."""
        await super().quiesce()
        await self._none_runs()

    async def stop(self) -> None:
        """Cancel running tasks; their messages return to the queue, and their claims are released."""
        self.request_stop()
        if self._taking is not None:
            self._taking.cancel()  # otherwise it could start one more after this loop
        for task in self._running:
            end_task(task)
        await self.quiesce()

    async def _none_runs(self) -> None:
        while self._running:
            await asyncio.wait(self._running)

    def last_tick_age_s(self) -> float | None:
        """Return the seconds since the slowest of the consumer's loops completed a round."""
        age_s = super().last_tick_age_s()
        if age_s is None or self._claims.ticked_s is None:
            return None
        return max(age_s, monotonic() - self._claims.ticked_s)

    def samples(self) -> Sequence[Sample]:
        """Return the counts and gauges for the metrics of this process."""
        return [
            *(Sample("tickwright_fanout_tasks_total", n, (outcome,)) for outcome, n in sorted(self.counts.items())),
            Sample("tickwright_fanout_running_tasks", len(self._running)),
            Sample("tickwright_fanout_slow_entities", len(self.slow.entities)),
            Sample("tickwright_fanout_slow_running_tasks", self.slow.running),
        ]

    @property
    def running(self) -> int:
        """Messages that this process handles now."""
        return len(self._running)

    async def _warn(self) -> None:
        while True:
            await asyncio.sleep(WARN_S)
            lost, self._lost_while_slow = self._lost_while_slow, []
            if lost:
                shown, most = lost[:SHOWN_MAX], self.slow.most
                _log.warning("fanout.windows_lost_while_slow", windows=len(lost), tasks=shown, slow_slots=most)
            self.tick()

    # ------------------------------------------------------------------ one message

    async def _take(self) -> None:
        while True:
            delivery = await self._queue.take()
            task = asyncio.create_task(cancel_safe(self._handle(delivery)))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _handle(self, delivery: Delivery) -> None:
        try:
            disposition = await self._decide(delivery)
            await self._probe.reached("fanout.decided", message_id=delivery.message_id, disposition=disposition)
        except asyncio.CancelledError:
            await self._queue.release(delivery)
            raise
        except Exception as error:  # noqa: BLE001  one message must not end the others
            _log.exception("fanout.attempt_broken", message_id=delivery.message_id, error=repr(error))
            dead = DeadLetter("unexpected", f"{type(error).__name__}; the consumer's log says where")
            disposition = _retry_or_dead_letter("unexpected", delivery, dead)
        await self._apply(delivery, disposition)

    async def _apply(self, delivery: Delivery, disposition: Disposition) -> None:
        match disposition:
            case Ack(why):
                kept = await self._queue.ack(delivery)
            case RetryLater(why, by):
                kept = await self._queue.delay(delivery, by)
            case DeadLetter(why, text):
                _log.warning("fanout.message_dead_lettered", message_id=delivery.message_id, reason=why, text=text)
                kept = await self._queue.dead_letter(delivery, why, text)
            case Release():
                why, kept = "given_back", True
                await self._queue.release(delivery)
        self.counts[why if kept else "lost"] += 1

    async def _decide(self, delivery: Delivery) -> Disposition:
        task = self._read(delivery)
        if not isinstance(task, Task):
            return task
        now_s = self.snapshot.now_s
        if now_s is not None and now_s >= task.window.end_s:
            return self._drop(task, "expired")
        function = self._function_of(task.task_type)
        if function is None:
            if await self._is_known(task.task_type):
                return self._retry(task, "no_handler", delivery, at_least=LATER)  # another process may have it
            return DeadLetter("unknown_module", f"there is no module {task.task_type}")
        with self.slow.slot(task.entity_code, task.task_type) as use:
            return await self._run(function, task, delivery, use)

    async def _is_known(self, module: str) -> bool:
        """Whether there is such a module, as far as known; one that the last heartbeat did not see may be new."""
        if self.snapshot.modules is None or module in self.snapshot.modules:
            return True
        try:
            (await self.snapshot.read(self._pool))()
        except UNAVAILABLE:
            return True
        return module in self.snapshot.modules

    def _function_of(self, module: str) -> Handler | None:
        """Return what runs a module's tasks here: live remote workers of its target, or the program's function."""
        target = (self.snapshot.modules or {}).get(module)
        if target is None:
            declared = self._modules.get(module)
            return None if declared is None else declared.function
        return None if self._remote is None else self._remote.of(module, target)

    def served(self) -> Sequence[str]:
        """Return the modules whose tasks this process runs, or lets remote workers run."""
        named = {*(module.name for module in self._modules.all()), *(self.snapshot.modules or {})}
        return sorted(module for module in named if self._function_of(module) is not None)

    def _read(self, delivery: Delivery) -> Task | Disposition:
        """Return the task, or the disposition of a message that cannot be read or has no valid signature."""
        try:
            task = read_task(delivery, self.snapshot.now_s)
        except FutureVersionError as error:
            dead = DeadLetter("unknown_version", f"no consumer knows {error}")
            return self._refusal(delivery) or _retry_or_dead_letter("future_version", delivery, dead)
        except Rejected as error:
            return DeadLetter(error.code, error.message)
        return self._refusal(delivery) or task

    def _refusal(self, delivery: Delivery) -> Disposition | None:
        """Return the disposition of a message without a valid signature; ``None`` for a valid one, of any version."""
        keys = self.snapshot.keys
        why = keys.refusal(delivery)
        if why is None or (why == "unsigned" and self._runs_unsigned):
            return None
        if why == "signature_wrong" and not keys.fresh and delivery.delays < DELAYS_MAX:
            return RetryLater("keys_not_read", LATER)  # its key may be newer than the snapshot
        return DeadLetter(why, "no scheduler of this installation signed this task, so it was not run")

    def _drop(self, task: Task, why: str) -> Disposition:
        self._claims.count_dropped(task.task_type, task.window.start_s, why)
        return Ack(why)

    def _retry(self, task: Task, why: str, delivery: Delivery, *, at_least: timedelta = SOON) -> Disposition:
        by = max(at_least, retry_delay(delivery.delays, BUSY_SOON_MAX if why == "busy" else SOON_MAX))
        now_s = self.snapshot.now_s or 0.0
        if now_s + by.total_seconds() >= task.window.end_s:
            by = SOON  # the last chance of a short window
        disposition = retry_within_window(why, by, now_s, task.window.end_s, ack_as="expired")
        if not isinstance(disposition, Ack):
            return disposition
        if why == "slow":
            self._lost_while_slow.append(task.id)
        return self._drop(task, "expired")

    async def _run(self, function: Handler, task: Task, delivery: Delivery, use: SlotUse) -> Disposition:
        if not use.try_take():
            return self._retry(task, "slow", delivery)
        run = Run(task.entity_code, task.task_type, task.window.start_s, self._at_once)
        try:
            begun = await self._claims.begin(run)
        except Unavailable:
            return RetryLater("stores_away", LATER)
        if begun.start is RunStart.BUSY:
            return self._retry(task, "busy", delivery)
        if begun.start is RunStart.DONE:
            return self._drop(task, "superseded")
        try:
            async with self._claims.held(HeldRun(run, begun)):
                if not use.try_take(timed_out=timed_out_lately(begun.since_timeout_s, task.window.length_s)):
                    await self._claims.end(HeldRun(run, begun, released=True))
                    return self._retry(task, "slow", delivery)
                called = await self._call(function, task, run, begun, use)
        except ClaimLostError:
            called = None
        return Release() if called is None else self._disposition(task, called, delivery)

    async def _call(self, function: Handler, task: Task, run: Run, begun: RunClaim, use: SlotUse) -> CallResult | None:
        """Return the result of the call; ``None`` when it does not count and the message must be delivered again."""
        await self._probe.reached("fanout.begun", task=task.id, fence=begun.fence)
        called = await self._runner.run(function, task, begun, self.snapshot)
        if called.lasted_s is not None:
            use.ran(called.lasted_s, task.timeout_s)
        await self._probe.reached("fanout.called", task=task.id, fence=begun.fence)
        if not await self._claims.end(HeldRun(run, begun, error=called.error, released=called.released)):
            _log.warning("fanout.result_refused", task=task.id)
            return None
        await self._probe.reached("fanout.ended", task=task.id, fence=begun.fence)
        return called

    def _disposition(self, task: Task, called: CallResult, delivery: Delivery) -> Disposition:
        now_s, end_s = self.snapshot.now_s or 0.0, task.window.end_s
        match called.outcome:
            case Failed():
                return retry_within_window("failed", retry_delay(delivery.delays), now_s, end_s, ack_as="given_up")
            case Throttled(retry_after):
                return retry_after_throttle(retry_after, delivery.delays, now_s, end_s)
            case Postponed(by, why):
                return self._retry(task, why, delivery, at_least=by)
            case None:
                return self._retry(task, "no_permit", delivery)
        return Ack("succeeded")


def _retry_or_dead_letter(why: str, delivery: Delivery, dead: DeadLetter) -> Disposition:
    """Return a delay thirty times, then ``dead``: delays do not count against the limit of deliveries."""
    return RetryLater(why, LATER) if delivery.delays < DELAYS_MAX else dead


# Facts that a consumer reports in its session, for operators and alert rules: the queue, and its last minute. The
# session is renewed every few seconds anyway, so this needs no statement of its own.

REPORT_S = 2.0
MINUTE_S = 60.0
OUTCOMES = {
    "succeeded": ("succeeded",),
    "failed": ("failed", "given_up"),
    "superseded": ("superseded",),
    "expired": ("expired",),
}


class QueueDepth(Protocol):
    """The queue of tasks, with its known depth."""

    @property
    def queued(self) -> Sequence[int] | None:
        """Tasks that no consumer holds, and dead letters, at the last count; ``None`` while they cannot be counted."""


class LastMinute:
    """Increases of counters within about a minute."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Counter[str]]] = deque()

    def since(self, counts: Mapping[str, int], now_s: float) -> dict[str, int]:
        """Return the increase within the last minute, or since the first call, by the names of ``OUTCOMES``."""
        self._seen.append((now_s, Counter(counts)))
        while now_s - self._seen[0][0] > MINUTE_S:
            self._seen.popleft()
        before = self._seen[0][1]
        return {
            name: sum(counts.get(outcome, 0) - before[outcome] for outcome in outcomes)
            for name, outcomes in OUTCOMES.items()
        }


class ConsumerReporter(LoopService):
    """Updates the ``facts`` of a process's session from the consumer's counts.

    ``fanout_dead_letters`` and ``fanout_queued`` keep the last count: while RabbitMQ is unavailable its dead letters
    still exist.
    """

    name = "fanout-reporter"

    def __init__(self, counts: Mapping[str, int], queue: QueueDepth, facts: dict[str, Any]) -> None:
        super().__init__()
        self._counts, self._queue, self._facts = counts, queue, facts
        self._minute = LastMinute()

    async def _work(self) -> None:
        while not self.stopping.is_set():
            self.report()
            await self.rest(REPORT_S)

    def report(self) -> None:
        """Write the present facts."""
        self.tick()
        self._facts["fanout_last_minute"] = self._minute.since(self._counts, monotonic())
        queued = self._queue.queued
        if queued is not None:
            self._facts["fanout_queued"], self._facts["fanout_dead_letters"] = queued

    async def quiesce(self) -> None:
        """Keep reporting: running tasks still count."""

    async def stop(self) -> None:
        """Stop reporting."""
        await super().quiesce()


def called(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the outcomes that were calls of a module's function, for the heartbeat."""
    failed = counts.get("failed", 0) + counts.get("given_up", 0)
    return {"succeeded": counts.get("succeeded", 0), "failed": failed, "throttled": counts.get("throttled", 0)}
