"""The outbox relay: publishes messages that users wrote in their own transactions, after the commit.

One relay at a time works, under the lease ``relay:outbox``; the others wait for the lease. It reads rows, publishes
them through the broker of their destination, and writes the verdicts in a transaction that first locks the lease. So a
relay that was paused past its lease may send a message twice, under the same id, and never settles a row that its
successor works on.

Delivery is at least once, with the same message id (``out_<id>``) and bytes on every attempt. A row is sent after every
row of its (destination, key) with a smaller id that was visible by then; while one of them is retried, the others wait.
Rows without a key have no order. A row that commits late with a smaller id is sent late and never skipped.

Each destination is a lane, with at most one batch in progress. A lane that fails waits longer after each failure and
then sends a single row. So a dead or silent destination does not delay the others, and an outage costs few attempts. A
destination that refuses messages for their content (HTTP 422, too large) does not make its lane fail: such messages are
retried alone, beside the others. Lanes that failed last share a separate limit, so hundreds of silent destinations
leave the others free once each was tried. A destination whose scheme has no broker waits, with a reason that alerts
find.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import repeat

import structlog
from opentelemetry.trace import Span

from tickwright.domain.leases import LeaseTerms
from tickwright.domain.masking import masked_address
from tickwright.domain.retries import RetryPolicy
from tickwright.domain.traceparent import NAME, read_traceparent
from tickwright.engine.leases import Lease, LeasedService, Leases
from tickwright.engine.outbox.relay_rules import (
    decide_outcome,
    message_of,
    refuses_message,
    scheme_of,
    unknown_scheme,
    waves,
)
from tickwright.engine.outbox.table import (
    LANE_MIN,
    ClaimBounds,
    ClaimedRows,
    OutboxRow,
    Verdicts,
    claim_rows,
    note_waiting,
    write_verdicts,
)
from tickwright.engine.payload_keys import NO_KEYS, PayloadKeys
from tickwright.engine.tasks import is_set_within
from tickwright.engine.wakeup.connection import DirectConnection
from tickwright.engine.wakeup.listener import ArmedWakeup
from tickwright.observe import traces
from tickwright.observe.metrics import Sample, Source
from tickwright.ports.broker import Accepted, Broker, Message, Outcome, Unknown
from tickwright.ports.ids import monotonic, random_unit
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.store.pool import UNAVAILABLE

LEASE = "relay:outbox"
CHANNEL = "tickwright_outbox"
WAKEUP_LOCK = 3
POLL_S = 1.0
NAP = RetryPolicy(base=timedelta(seconds=0.02), cap=timedelta(seconds=0.25))
LANES_MAX = 200
TRIES_MAX = 100
FAILING_LANES_MAX = 10_000
MARK_EVERY_S = 0.5
MARK_RETRY_S = 0.2
UNKNOWN_SCHEME_S = 5.0
RETRY = RetryPolicy()
LANE_RETRY = RetryPolicy(base=timedelta(seconds=0.5), cap=timedelta(seconds=30))
PUBLISH_TIMEOUT = timedelta(seconds=10)

_log = structlog.get_logger("tickwright.relay")


@dataclass(slots=True)
class RelayCounters:
    """What this process's relay has done, for metrics."""

    published: int = 0
    retried: int = 0
    dead: int = 0
    marks_lost: int = 0


@dataclass(slots=True)
class _Failing:
    """A lane that waits: its failures in a row, and when it resumes (monotonic)."""

    failures: int = 0
    resume_s: float = 0.0


class OutboxRelay(LeasedService):
    """Publishes the outbox until stopped; a :class:`tickwright.ports.service.Service`.

    Args:
        direct: For notifications; while it is not open, the relay polls once a second.
        retry: Waits between the attempts of one row.
        lane_retry: Waits of a destination that fails.
        publish_timeout: Of one attempt.
        keys: Open encrypted messages of destinations that get plain text.
    """

    def __init__(
        self,
        leases: Leases,
        brokers: Mapping[str, Broker],
        *,
        direct: DirectConnection,
        terms: LeaseTerms | None = None,
        bounds: ClaimBounds | None = None,
        retry: RetryPolicy = RETRY,
        lane_retry: RetryPolicy = LANE_RETRY,
        publish_timeout: timedelta = PUBLISH_TIMEOUT,
        keys: PayloadKeys = NO_KEYS,
        probe: Probe = NO_PROBE,
    ) -> None:
        self.armed_wakeup = ArmedWakeup(direct, channel=CHANNEL, lock=WAKEUP_LOCK)
        wakeup = self.armed_wakeup.woken
        super().__init__("relay", leases, LEASE, self._relay, terms=terms, wakeup=wakeup, probe=probe)
        self._brokers, self._keys = brokers, keys
        self._bounds = bounds or ClaimBounds()
        self._retry, self._lane_retry, self._timeout = retry, lane_retry, publish_timeout
        self.counters = RelayCounters()
        self._lanes: dict[int, asyncio.Task[None]] = {}
        self._failing: dict[int, _Failing] = {}
        self._changed = asyncio.Event()
        self._naps = 0

    # ------------------------------------------------------------------ service

    def request_stop(self) -> None:
        """Claim nothing more; a batch in progress is finished, unless ``stop`` cancels it."""
        super().request_stop()
        self._changed.set()

    @property
    def lanes_busy(self) -> int:
        """Number of destinations with a batch in progress."""
        return len(self._lanes)

    @property
    def lanes_failing(self) -> int:
        """Number of destinations that wait after failures, or that have no broker."""
        return len(self._failing)

    def _wake(self) -> None:
        self._changed.set()
        self.wakeup.set()

    # ------------------------------------------------------------------ the loop

    async def _relay(self, lease: Lease) -> None:
        await self.armed_wakeup.listen()
        after = {"all": LANE_MIN, "working": LANE_MIN}  # where the next claim begins: in all lanes, in those that work
        try:
            while lease.holds() and not self.stopping.is_set():
                tries = sum(lane in self._failing for lane in self._lanes)
                if len(self._lanes) - tries >= LANES_MAX:
                    await self._for_a_lane()
                    continue
                lanes = "all" if tries < TRIES_MAX else "working"
                claimed = await self._claim(lease, after[lanes], failing=lanes == "all")
                if claimed is None:
                    await self.rest(POLL_S / 2)
                    continue
                after[lanes] = claimed.next_lane
                await self._dispatch(lease, claimed.rows)
                if not claimed.rows and after[lanes] == LANE_MIN:
                    await (self._rest() if lanes == "all" else self.rest(NAP.cap.total_seconds()))
            if self._lanes:
                await asyncio.wait(self._lanes.values())
        finally:
            await self._abandon()
            await self.armed_wakeup.unlisten()

    async def _claim(self, lease: Lease, after: int, *, failing: bool) -> ClaimedRows | None:
        self._changed.clear()
        now = monotonic()
        waiting = [lane for lane, state in self._failing.items() if state.resume_s > now or not failing]
        try:
            async with lease.transaction(brief=True) as connection:
                if connection is None:
                    return None
                busy = {*self._lanes, *waiting}
                claimed = await claim_rows(
                    connection, after_lane=after, without=busy, careful=self._failing, bounds=self._bounds
                )
        except UNAVAILABLE as error:
            _log.warning("relay.claim_failed", error=repr(error))
            return None
        self.tick()
        return claimed

    async def _dispatch(self, lease: Lease, rows: Sequence[OutboxRow]) -> None:
        if not rows:
            return
        self._naps = 0
        await self._probe.reached("relay.claimed", ids=[row.id for row in rows])
        lanes: dict[int, list[OutboxRow]] = {}
        for row in rows:
            lanes.setdefault(row.lane, []).append(row)
        for lane, batch in lanes.items():
            task = asyncio.create_task(self._deliver(lease, lane, batch))
            self._lanes[lane] = task
            task.add_done_callback(lambda done, lane=lane: self._delivered(lane, done))  # type: ignore[misc]

    def _delivered(self, lane: int, task: asyncio.Task[None]) -> None:
        self._lanes.pop(lane, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("relay.batch_failed", lane=lane, error=repr(error))
            self._note_failure(lane)
        self._wake()

    async def _for_a_lane(self) -> None:
        self._changed.clear()  # lanes that have ended are counted already; wait for the next one
        await is_set_within(self._changed, POLL_S)
        self.tick()

    async def _abandon(self) -> None:
        tasks = list(self._lanes.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # ------------------------------------------------------------------ resting

    async def _rest(self) -> None:
        """Sleep until a row is inserted, a lane ends or resumes, or a second has passed."""
        if self.armed_wakeup.works:
            armed = await self.armed_wakeup.arm()
            if armed == "refused":  # an insert is in progress, or a transaction stays open: poll, with growing pauses
                self._naps += 1
                await self._nap(NAP.ceiling_s(self._naps))
            if armed != "kept":
                return
        now = monotonic()
        resumes = [failing.resume_s - now for failing in self._failing.values() if failing.resume_s > now]
        if await self._nap(min([POLL_S, *resumes])):
            await self.armed_wakeup.disarm()

    async def _nap(self, seconds: float) -> bool:
        is_free = not (self.stopping.is_set() or self._changed.is_set())
        return is_free and await self.armed_wakeup.nap(seconds)

    # ------------------------------------------------------------------ one batch of one lane

    async def _deliver(self, lease: Lease, lane: int, rows: Sequence[OutboxRow]) -> None:
        broker = self._brokers.get(scheme_of(rows[0].destination))
        if broker is None:
            await self._let_wait(lease, lane, rows)
            return
        verdicts, works, marked_s = Verdicts(), False, monotonic()
        broken: set[str | None] = set()
        for wave in waves(rows):
            if self.stopping.is_set():
                break
            batch = [row for row in wave if row.key is None or row.key not in broken]
            if not batch or not lease.holds():
                continue
            outcomes = await self._publish(broker, batch)
            broken |= {row.key for row, outcome in zip(batch, outcomes, strict=True)
                       if not decide_outcome(row, outcome, self._retry, random_unit(), verdicts)}  # fmt: skip
            works = works or bool(verdicts.sent) or any(map(refuses_message, outcomes))
            if monotonic() - marked_s > MARK_EVERY_S:
                await self._mark(lease, verdicts)
                verdicts, marked_s = Verdicts(), monotonic()
        if works or not broken:
            self._failing.pop(lane, None)
        else:
            self._note_failure(lane)
        await self._mark(lease, verdicts)

    async def _publish(self, broker: Broker, rows: Sequence[OutboxRow]) -> list[Outcome]:
        read = [message_of(row, self._timeout, self._keys) for row in rows]
        messages = [message for message in read if isinstance(message, Message)]
        try:
            answers = iter(await publish_traced(broker, messages))
        except Exception as error:  # noqa: BLE001  the attempt's boundary: a broker's bug must not stop other lanes
            _log.error("relay.broker_raised", destination=masked_address(rows[0].destination), error=repr(error))
            answers = repeat(Unknown("broker_raised", repr(error)[:200]))
        return [next(answers) if isinstance(message, Message) else message for message in read]

    async def _mark(self, lease: Lease, verdicts: Verdicts) -> None:
        """Write the verdicts under the lease; without the lease drop them."""
        if not len(verdicts):
            return
        await self._probe.reached("relay.published_not_marked", ids=verdicts.sent)
        while lease.holds():
            try:
                async with lease.transaction(brief=True) as connection:
                    if connection is None:
                        break
                    await write_verdicts(connection, lease.fence, verdicts)
            except UNAVAILABLE as error:
                _log.warning("relay.mark_delayed", rows=len(verdicts), error=repr(error))
                await asyncio.sleep(MARK_RETRY_S)
                continue
            self.counters.published += len(verdicts.sent)
            self.counters.retried += len(verdicts.retried)
            self.counters.dead += len(verdicts.dead)
            await self._probe.reached("relay.marked", ids=verdicts.sent)
            return
        self.counters.marks_lost += len(verdicts)
        _log.warning("relay.marks_not_ours", rows=len(verdicts), fence=lease.fence)

    # ------------------------------------------------------------------ waiting lanes

    def _note_failure(self, lane: int) -> None:
        failing = self._failing.setdefault(lane, _Failing())
        failing.failures += 1
        wait = self._lane_retry.delay(failing.failures, random_unit())
        failing.resume_s = monotonic() + wait.total_seconds()
        while len(self._failing) > FAILING_LANES_MAX:
            del self._failing[next(iter(self._failing))]

    async def _let_wait(self, lease: Lease, lane: int, rows: Sequence[OutboxRow]) -> None:
        """Let rows without a broker wait, untried; the first one carries the reason."""
        row = min(rows, key=lambda row: row.id)
        self._failing[lane] = _Failing(1, monotonic() + UNKNOWN_SCHEME_S)
        with suppress(*UNAVAILABLE):
            async with lease.transaction(brief=True) as connection:
                if connection is not None:
                    await note_waiting(connection, lease.fence, row.id, unknown_scheme(row.destination))


def relay_source(relay: OutboxRelay) -> Source:
    """Return a source for the relay's counters."""

    def read() -> Sequence[Sample]:
        counters = relay.counters
        return [
            Sample("tickwright_relay_messages_total", counters.published, ("published",)),
            Sample("tickwright_relay_messages_total", counters.retried, ("retried",)),
            Sample("tickwright_relay_messages_total", counters.dead, ("dead",)),
            Sample("tickwright_relay_lost_marks_total", counters.marks_lost),
            Sample("tickwright_relay_busy_destinations", relay.lanes_busy),
            Sample("tickwright_relay_failing_destinations", relay.lanes_failing),
        ]

    return read


async def publish_traced(broker: Broker, messages: Sequence[Message]) -> list[Outcome]:
    """Publish; if this process records traces, with a span for each message whose row names a trace.

    Messages without a trace are mostly internal and of no interest.
    """
    if not traces.recording():
        return await broker.publish_many(messages)
    spans = [_begin(message) for message in messages]
    try:
        led = [_led_by(span, message) for span, message in zip(spans, messages, strict=True)]
        outcomes = await broker.publish_many(led)
        for span, outcome in zip(spans, outcomes, strict=True):
            if not isinstance(outcome, Accepted):
                traces.fail(span, outcome.code)
        return outcomes
    finally:
        for span in spans:
            span.end()


def _begin(message: Message) -> Span:
    parent = read_traceparent(message.headers.get(NAME))
    if parent is None:
        return traces.NO_SPAN
    return traces.start(
        "send", traces.span_destination(message.destination), parent, {"messaging.message.id": message.id}
    )


def _led_by(span: Span, message: Message) -> Message:
    """Return ``message`` with a ``traceparent`` that names ``span`` as the sender."""
    here = traces.traceparent_of_span(span)
    return message if here is None else replace(message, headers={**message.headers, NAME: here})
