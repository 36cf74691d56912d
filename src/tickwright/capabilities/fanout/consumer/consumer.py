"""The consumer pool of fan-out: takes tasks from the queue, claims their runs, calls the module's function.

::

    source ──take──▶ read ──claim──▶ permit ──call──▶ end ──ack──▶
                       └─ cannot be done now ──▶ delay queue   └─ cannot be done ──▶ dead letters

Trusts the claims for who may run, and a message that a scheduler signed for whom: entities are never read from the
database. A slot holds one message; it waits for the stores of claims while they answer and a second for a partner's
permit, never for an entity that is busy. Most slots are closed to entities that are slow. See README.md for what
happens when it crashes where.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeAlias

import structlog

from tickwright.capabilities.fanout.consumer.run_claims import ClaimLostError, ConsumerRunClaims
from tickwright.capabilities.fanout.consumer.task_run import (
    CallResult,
    ConsumerSnapshot,
    SlotUse,
    SlowShare,
    TaskRunner,
    timed_out_lately,
)
from tickwright.capabilities.fanout.handlers import Handler, ModuleRegistry
from tickwright.capabilities.fanout.messages import FutureVersionError, Task, read_task
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.engine.service import LoopService
from tickwright.engine.tasks import TaskGroup, cancel_safe, end_task
from tickwright.observe.metrics import Sample, Source
from tickwright.partners import Failed, Throttled
from tickwright.ports.fanout import Begun, Ended, Run, RunStart
from tickwright.ports.ids import monotonic
from tickwright.ports.probe import NO_PROBE, Probe
from tickwright.ports.task_queue import Delivery, TaskQueue
from tickwright.store.pool import Pool

# The disposition of a message, as a value: the consumer decides it, the task source carries it out.

SOON = timedelta(seconds=1)
LATER = timedelta(seconds=10)
MUCH_LATER = timedelta(seconds=60)
SOON_MAX, LATER_MAX = 5, 20
BUSY_SOON_MAX = 15  # seconds: longer than the claim of a killed consumer lives, in Redis or as a session
DELAYS_MAX = 30  # of what only another release can do


@dataclass(frozen=True, slots=True)
class Ack:
    """Nothing is left to do. ``why`` is what is counted: ``succeeded``, ``superseded``, ``expired``, ``given_up``."""

    why: str


@dataclass(frozen=True, slots=True)
class RetryLater:
    """Not now. ``why`` is what is counted: ``busy``, ``slow``, ``failed``, ``throttled`` and such."""

    why: str
    by: timedelta


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Nobody can do this: to the dead letters, with a code and words for people."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Release:
    """As if it had not been taken: this process stops, or has lost the right to do it."""


Disposition: TypeAlias = Ack | RetryLater | DeadLetter | Release


def retry_delay(delays: int, soon_max: int = SOON_MAX) -> timedelta:
    """Return how long to wait after so many delays: a second ``soon_max`` times, then ten, then a minute."""
    if delays < soon_max:
        return SOON
    return LATER if delays < LATER_MAX else MUCH_LATER


def retry_within_window(why: str, by: timedelta, now_s: float, end_s: int, *, over: str) -> Disposition:
    """Return a delay, or ``Ack(over)`` where it would end behind the window: the next one's message is in the queue."""
    return RetryLater(why, by) if now_s + by.total_seconds() < end_s else Ack(over)


def retry_after_throttle(retry_after: timedelta, delays: int, now_s: float, end_s: int) -> Disposition:
    """Return a delay beyond the silence that the partner asked for.

    Who comes back at its end would be the first to call, be throttled again, and hold up the partner's other tasks.
    """
    disposition = retry_within_window("throttled", retry_after + retry_delay(delays), now_s, end_s, over="given_up")
    if isinstance(disposition, RetryLater):
        return disposition
    return retry_within_window("throttled", max(retry_after, SOON), now_s, end_s, over="given_up")


KNOWN_S = 5.0
SHOWN_MAX = 10

_log = structlog.get_logger("tickwright.fanout")


class FanoutConsumer(LoopService):
    """One process's consumer; a :class:`tickwright.ports.service.Service`.

    Args:
        source: Of tasks; it runs before this service and longer, and hands out one message per slot.
        book: Who runs what, as far as this process asks.
        runner: Calls the modules' functions within their partners' limits.
        slow: Which entities are slow, and how many slots they may hold.
        at_once: Runs of one entity, all its modules and all processes together.
        runs_unsigned: Run messages without a signature, of schedulers of a release that did not sign.

    Invariants:
        FAN-9: what no scheduler of this installation signed is not run.
        FAN-5: no function is called without a claim; what it did counts only under that claim.
        FAN-6: a message is acknowledged only when its end is written, when it is kept elsewhere, or when nothing is
            to be done for it any more.
    """

    name = "fanout-consumer"

    def __init__(
        self,
        pool: Pool,
        source: TaskQueue,
        book: ConsumerRunClaims,
        *,
        runner: TaskRunner,
        slow: SlowShare,
        modules: ModuleRegistry,
        at_once: int,
        runs_unsigned: bool = False,
        probe: Probe = NO_PROBE,
    ) -> None:
        super().__init__()
        self._pool, self._source, self._book = pool, source, book
        self._runner, self._modules, self._at_once, self._probe = runner, modules, at_once, probe
        self._runs_unsigned, self.slow = runs_unsigned, slow
        self.snapshot = ConsumerSnapshot()
        self.counts: Counter[str] = Counter()
        self._lost_while_slow: list[str] = []
        self._running: set[asyncio.Task[None]] = set()
        self._taking: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ service

    async def _work(self) -> None:
        await self.snapshot.read(self._pool)
        self.tick()
        async with TaskGroup() as group:
            looking = [group.create_task(self._book.run()), group.create_task(self._look())]
            if not self.stopping.is_set():
                self._taking = group.create_task(self._take())
            await self.stopping.wait()
            if self._taking is not None:
                self._taking.cancel()
            await self._none_runs()
            for task in looking:
                task.cancel()
        await self._book.write_dropped()

    async def quiesce(self) -> None:
        """Take nothing more; let what runs end, also where this service has crashed meanwhile."""
        await super().quiesce()
        await self._none_runs()

    async def stop(self) -> None:
        """Cancel what runs; its messages go back to the queue, and its claims are free."""
        if self._taking is not None:
            self._taking.cancel()  # else it could begin one more behind this loop
        for task in self._running:
            end_task(task)
        await self.quiesce()

    async def _none_runs(self) -> None:
        while self._running:
            await asyncio.wait(self._running)

    def last_tick_age_s(self) -> float | None:
        """Seconds since the slowest of the consumer's own loops came round."""
        age_s = super().last_tick_age_s()
        if age_s is None or self._book.ticked_s is None:
            return None
        return max(age_s, monotonic() - self._book.ticked_s)

    @property
    def running(self) -> int:
        """Messages in this process's hands."""
        return len(self._running)

    # ------------------------------------------------------------------ one message

    async def _take(self) -> None:
        while True:
            delivery = await self._source.take()
            task = asyncio.create_task(cancel_safe(self._handle(delivery)))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _handle(self, delivery: Delivery) -> None:
        try:
            disposition = await self._decide(delivery)
            await self._probe.reached("fanout.decided", message_id=delivery.message_id, disposition=disposition)
        except asyncio.CancelledError:
            await self._source.release(delivery)
            raise
        except Exception as error:  # noqa: BLE001  one message must not end the others
            _log.exception("fanout.unexpected", message_id=delivery.message_id, error=repr(error))
            disposition = _unexpected(delivery, error)
        await self._carry_out(delivery, disposition)

    async def _carry_out(self, delivery: Delivery, disposition: Disposition) -> None:
        match disposition:
            case Ack(why):
                kept = await self._source.ack(delivery)
            case RetryLater(why, by):
                kept = await self._source.delay(delivery, by)
            case DeadLetter(why, text):
                _log.warning("fanout.buried", message_id=delivery.message_id, reason=why, text=text)
                kept = await self._source.dead_letter(delivery, why, text)
            case Release():
                why, kept = "given_back", True
                await self._source.release(delivery)
        self.counts[why if kept else "lost"] += 1

    async def _decide(self, delivery: Delivery) -> Disposition:
        task = self._read(delivery)
        if not isinstance(task, Task):
            return task
        if self._is_over(task):
            return self._drop(task, "expired")
        function = self._modules.get(task.task_type)
        if function is None:
            return self._nobodys(task, delivery)
        with self.slow.slot(task.entity_code, task.task_type) as use:
            return await self._run(function, task, delivery, use)

    def _read(self, delivery: Delivery) -> Task | Disposition:
        """Return the task, or what becomes of a message that cannot be read or that no scheduler of ours signed."""
        try:
            task = read_task(delivery, self.snapshot.now_s)
        except FutureVersionError as error:
            return self._not_ours(delivery) or _later_release(delivery, error)
        except Rejected as error:
            return DeadLetter(error.code, error.message)
        return self._not_ours(delivery) or task

    def _not_ours(self, delivery: Delivery) -> Disposition | None:
        """Return what becomes of a message that no scheduler of ours signed; ``None`` for ours, of any version."""
        why = self.snapshot.keys.refusal(delivery)
        if why is None or (why == "unsigned" and self._runs_unsigned):
            return None
        if why == "signature_wrong" and not self.snapshot.keys.fresh and delivery.delays < DELAYS_MAX:
            return RetryLater("keys_not_read", LATER)  # its key may be newer than those that are known here
        return DeadLetter(why, "no scheduler of this installation signed this task, so it was not run")

    def _nobodys(self, task: Task, delivery: Delivery) -> Disposition:
        """No function here: perhaps another process has it, unless nobody knows the module at all."""
        if self.snapshot.modules is None or task.task_type in self.snapshot.modules:
            return self._later(task, "no_handler", delivery, at_least_later=True)
        return DeadLetter("unknown_module", f"there is no module {task.task_type}")

    def _is_over(self, task: Task) -> bool:
        now_s = self.snapshot.now_s
        return now_s is not None and now_s >= task.window.end_s

    def _drop(self, task: Task, why: str) -> Disposition:
        self._book.drop(task.task_type, task.window.start_s, why)
        return Ack(why)

    def _later(self, task: Task, why: str, delivery: Delivery, *, at_least_later: bool = False) -> Disposition:
        by = retry_delay(delivery.delays, BUSY_SOON_MAX if why == "busy" else SOON_MAX)
        by = max(LATER, by) if at_least_later else by
        now_s = self.snapshot.now_s or 0.0
        if now_s + by.total_seconds() >= task.window.end_s:
            by = SOON  # the last chance of a short window
        disposition = retry_within_window(why, by, now_s, task.window.end_s, over="expired")
        if not isinstance(disposition, Ack):
            return disposition
        if why == "slow":
            self._lost_while_slow.append(task.id)
        return self._drop(task, "expired")

    async def _run(self, function: Handler, task: Task, delivery: Delivery, use: SlotUse) -> Disposition:
        if not use.may_run():
            return self._later(task, "slow", delivery)
        run = Run(task.entity_code, task.task_type, task.window.start_s, self._at_once)
        try:
            begun = await self._book.begin(run)
        except Unavailable:
            return RetryLater("stores_away", LATER)
        if begun.start is RunStart.BUSY:
            return self._later(task, "busy", delivery)
        if begun.start is RunStart.DONE:
            return self._drop(task, "superseded")
        try:
            async with self._book.held(Ended(run, begun)):
                if not use.may_run(timed_out=timed_out_lately(begun.since_timeout_s, task.window.length_s)):
                    await self._book.end(Ended(run, begun, released=True))
                    return self._later(task, "slow", delivery)
                called = await self._call(function, task, run, begun, use)
        except ClaimLostError:
            called = None
        return Release() if called is None else self._disposition(task, called, delivery)

    async def _call(self, function: Handler, task: Task, run: Run, begun: Begun, use: SlotUse) -> CallResult | None:
        """Return what became of the call; ``None`` where it does not count, and the message is to come again."""
        await self._probe.reached("fanout.begun", task=task.id, fence=begun.fence)
        called = await self._runner.run(function, task, begun, self.snapshot)
        if called.lasted_s is not None:
            use.ran(called.lasted_s, task.timeout_s)
        await self._probe.reached("fanout.called", task=task.id, fence=begun.fence)
        if not await self._book.end(Ended(run, begun, error=called.error, released=called.released)):
            _log.warning("fanout.result_not_ours", task=task.id)
            return None
        await self._probe.reached("fanout.ended", task=task.id, fence=begun.fence)
        return called

    def _disposition(self, task: Task, called: CallResult, delivery: Delivery) -> Disposition:
        now_s = self.snapshot.now_s or 0.0
        match called.outcome:
            case Failed():
                return retry_within_window(
                    "failed", retry_delay(delivery.delays), now_s, task.window.end_s, over="given_up"
                )
            case Throttled(retry_after):
                return retry_after_throttle(retry_after, delivery.delays, now_s, task.window.end_s)
            case None:
                return self._later(task, "no_permit", delivery)
        return Ack("succeeded")

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(KNOWN_S)
            await self.snapshot.read(self._pool)
            self._log_lost()
            self.tick()

    def _log_lost(self) -> None:
        """Log windows that slow entities lost since the last time, in one line however many they are."""
        lost, self._lost_while_slow = self._lost_while_slow, []
        if lost:
            most = self.slow.most
            _log.warning("fanout.windows_lost_while_slow", windows=len(lost), tasks=lost[:SHOWN_MAX], slow_slots=most)


def _later_release(delivery: Delivery, error: FutureVersionError) -> Disposition:
    if delivery.delays < DELAYS_MAX:
        return RetryLater("future_version", LATER)
    return DeadLetter("unknown_version", f"no consumer knows {error}")


def _unexpected(delivery: Delivery, error: Exception) -> Disposition:
    """Return a delay, as often as a new release gets: a copy's deliveries count anew, so nothing else would end it."""
    if delivery.delays < DELAYS_MAX:
        return RetryLater("unexpected", LATER)
    return DeadLetter("unexpected", f"{type(error).__name__}; the consumer's log says where")


# What a consumer reports in its session, for operators and alert rules: the queue, and its last minute. The session is
# renewed every few seconds anyway, so this costs no statement.

TELL_S = 2.0
MINUTE_S = 60.0
OUTCOMES = {
    "succeeded": ("succeeded",),
    "failed": ("failed", "given_up"),
    "superseded": ("superseded",),
    "expired": ("expired",),
}


class Counting(Protocol):
    """The consumer, as far as it counts: what became of messages since the start of its process."""

    counts: Counter[str]


class Queue(Protocol):
    """The source of tasks, as far as it knows how many there are."""

    @property
    def queued(self) -> Sequence[int] | None:
        """Tasks that nobody holds, and dead letters, as counted last; ``None`` while nobody can count."""
        ...


class LastMinute:
    """Differences of counters over about a minute."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Counter[str]]] = deque()

    def since(self, counts: Mapping[str, int], now_s: float) -> dict[str, int]:
        """Return what was added within the last minute, or since the first call, by what operators call it."""
        self._seen.append((now_s, Counter(counts)))
        while now_s - self._seen[0][0] > MINUTE_S:
            self._seen.popleft()
        before = self._seen[0][1]
        return {name: sum(counts.get(one, 0) - before[one] for one in ones) for name, ones in OUTCOMES.items()}


class ConsumerReporter(LoopService):
    """A :class:`tickwright.ports.service.Service`.

    Args:
        consumer: Of this process.
        queue: Where it takes tasks from.
        facts: Of the process's session. ``fanout_dead_letters`` and ``fanout_queued`` keep what was counted last while
            nobody can count: that RabbitMQ is away is no news of the dead letters in it.
    """

    name = "fanout-telling"

    def __init__(self, consumer: Counting, queue: Queue, facts: dict[str, Any]) -> None:
        super().__init__()
        self._consumer, self._queue, self._facts = consumer, queue, facts
        self._minute = LastMinute()

    async def _work(self) -> None:
        while not self.stopping.is_set():
            self.tell()
            await self.rest(TELL_S)

    def tell(self) -> None:
        """Say what is so now."""
        self.tick()
        self._facts["fanout_last_minute"] = self._minute.since(self._consumer.counts, monotonic())
        queued = self._queue.queued
        if queued is not None:
            self._facts["fanout_queued"], self._facts["fanout_dead_letters"] = queued

    async def quiesce(self) -> None:
        """Tell on: what still runs counts."""

    async def stop(self) -> None:
        """Be silent."""
        await super().quiesce()


def consumer_source(consumer: FanoutConsumer) -> Source:
    """Return what reads a consumer."""

    def read() -> Sequence[Sample]:
        samples = [
            Sample("tickwright_fanout_tasks_total", count, (outcome,))
            for outcome, count in sorted(consumer.counts.items())
        ]
        slow = consumer.slow
        return [
            *samples,
            Sample("tickwright_fanout_running_tasks", consumer.running),
            Sample("tickwright_fanout_slow_entities", len(slow.entities)),
            Sample("tickwright_fanout_slow_running_tasks", slow.running),
        ]

    return read
