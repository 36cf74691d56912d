"""The relay of polls: moves released polls from ``scheduler_outbox`` to the topic, each poll exactly once.

::

    take the lease ─▶ open the log: fence the writer before, read the position ─▶ mark the batches that it proves
      ▲                 ▲                                                                      │
      │ fenced          │ doubt                                                                ▼
      └─────────── publish the frozen batch with its number, in one Kafka transaction ◀── freeze what is released
                        │ committed                                                            ▲
                        └──▶ mark: delete rows, count in the ledger, in one database transaction

One relay per shard works, under the lease ``poll-relay:<shard>``; the others wait. PostgreSQL holds what a batch
contains, frozen under its number before anything is sent. Kafka holds which batches are published, because each
transaction carries its number. Neither waits for the other inside a transaction. A relay that was paused past its
lease is stopped twice over: its producer is fenced, and its marks need the lease.

Polls that are not frozen when their trackers' next poll is due are dropped and counted, also while Kafka is
unavailable: after an outage a tracker is polled once, and the outbox stays bounded.

Without Kafka the same loop moves released rows into the queue inside PostgreSQL, one transaction each time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

import structlog

from tickwright.capabilities.polling.polls import AccountNames
from tickwright.capabilities.polling.relay import batches
from tickwright.capabilities.polling.relay.batches import Numbers, poll_records
from tickwright.domain.errors import Rejected, TickwrightError, Unavailable
from tickwright.domain.leases import LeaseTerms
from tickwright.domain.retries import RetryPolicy
from tickwright.engine.leases import Lease, LeasedService, Leases
from tickwright.observe.metrics import Sample
from tickwright.ports.ids import monotonic, random_unit
from tickwright.ports.polls import NO_OFFSETS, Aborted, Batch, Committed, Doubt, Fenced, PositionedLog
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.store.pool import UNAVAILABLE

ADVICE = "nothing is sent until it is reconciled: tickwright outbox reconcile"
POSITION_MAX = 2**52
"""The largest number that is adopted from the topic."""


def check_position(shard: int, numbers: Numbers, position: int | None) -> None:
    """Refuse to continue when the topic and the database contradict each other: polls could be lost or doubled. Pure.

    ``position`` is the last batch on the topic, ``None`` when it has none.

    Raises:
        Rejected: ``relay_position_missing`` (batches were sent, and the topic has none: it was created again),
            ``relay_position_behind`` (the topic has lost batches), ``relay_position_ahead`` (the database has lost
            them, or belongs to another installation). Permanent until an operator decides.
    """
    sent, numbered = numbers.published_no, numbers.batch_no
    if position is None and sent > 0:
        text = f"{sent} batches of shard {shard} were sent, but the position topic has none; {ADVICE}"
        raise Rejected("relay_position_missing", text, shard=shard, published_no=sent)
    if position is not None and position < sent:
        text = f"shard {shard} has sent batch {sent}, but the topic ends with {position}; {ADVICE}"
        raise Rejected("relay_position_behind", text, shard=shard, published_no=sent, position=position)
    if position is not None and position > numbered:
        limit = f"but the database gave no number above {numbered}"
        text = f"the topic has batch {position} of shard {shard}, {limit}; {ADVICE}"
        raise Rejected("relay_position_ahead", text, shard=shard, batch_no=numbered, position=position)


def choose_position(numbers: Numbers, position: int | None, wanted: int | None) -> int:
    """Return the batch number that both sides are set to: batches up to it are published, none above it is. Pure.

    A topic's ``position`` above ``POSITION_MAX`` counts as none. Without the operator's number, ``wanted``, it is the
    last one that either side has recorded, so that a batch that may be on the topic is sent again under the same ids.

    Raises:
        Rejected: ``position_out_of_range``. Permanent.
    """
    on_topic = position if position is not None and position <= POSITION_MAX else 0
    low = max(numbers.published_no, on_topic)
    high = max(numbers.batch_no, on_topic)
    chosen = low if wanted is None else wanted
    if not low <= chosen <= high:
        only = f"{low}" if low == high else f"{low} to {high}"
        raise Rejected("position_out_of_range", f"the position can be {only}", lowest=low, highest=high)
    return chosen


_log = structlog.get_logger("tickwright.poll_relay")


@dataclass(slots=True)
class PollRelayCounters:
    """Counts of this process's relay.

    Attributes:
        published: Polls that are on the topic and marked.
        doubts: Batches whose commit had no certain result; the position decided.
        aborted: Batches that were certainly not committed, and were sent again.
        superseded: Polls dropped because their trackers' next poll was due before they were published or taken.
        fenced: How often another relay took over while this one still worked.
        opened: How often a log was opened with a new producer: once, and after each doubt or refusal.
    """

    published: int = 0
    batches: int = 0
    doubts: int = 0
    aborted: int = 0
    superseded: int = 0
    fenced: int = 0
    opened: int = 0


LEASE = "poll-relay"
POLL_S = 0.2
IDLE_S = 0.5
SOON_S = 60.0
QUEUE_ROWS_MAX = 100
ROWS_READ_MAX = 1000
DROP_ROWS_MAX = 100_000
SWEEP_EVERY_S = 1.0
SWEEP_PARKED_EVERY_S = 10.0
SWEPT_MAX = 500
RETRY = RetryPolicy(base=timedelta(milliseconds=200), cap=timedelta(seconds=5))
REFUSED_S = 5.0
REASON_CHARS_MAX = 1000
RELEASE_MARGIN_S = 0.002


def lease_name(shard: int) -> str:
    """Return the name of the lease of a shard's relay."""
    return f"{LEASE}:{shard}"


class PollRelay(LeasedService):
    """Publishes one shard's polls until stopped; a :class:`tickwright.ports.service.Service`.

    Args:
        log: Where polls go; ``None`` for the queue inside PostgreSQL.
        shard: The part of the outbox: partners are spread over the shards.
        terms: Of the lease; no transaction of Kafka depends on its length.

    Attributes:
        blocked_by: Why the relay is blocked; ``None`` while it works. Nothing is decided by it.

    Invariants:
        PRL-1: a batch is frozen before it is sent, and every attempt sends the same values under the same ids.
        PRL-2: nothing is published between a doubt and the next reading of the position.
        PRL-3: no database transaction is open while the relay waits for Kafka.
        PRL-4: what is frozen was checked in the same transaction, and was not superseded.
    """

    def __init__(
        self,
        leases: Leases,
        log: PositionedLog | None,
        *,
        topic: str = "tickwright.polls",
        shard: int = 0,
        bounds: batches.BatchBounds | None = None,
        terms: LeaseTerms | None = None,
        probe: Probe = NO_PROBE,
    ) -> None:
        name = lease_name(shard)
        body = self._queue if log is None else partial(self._relay, log)
        super().__init__(name, leases, name, body, terms=terms, probe=probe)
        self._topic, self.shard = topic, shard
        self._bounds = bounds or batches.BatchBounds()
        self.counters = PollRelayCounters()
        self.blocked_by: TickwrightError | None = None
        self._reported: tuple[str, str] | None = None
        self._names = AccountNames()
        self._accounts: Mapping[int, str] = {}
        self._failures = 0
        self._swept_s, self._sweep_every_s = float("-inf"), SWEEP_EVERY_S if log is None else SWEEP_PARKED_EVERY_S

    def samples(self) -> Sequence[Sample]:
        """Return the counters for the metrics of its process."""
        counters, shard = self.counters, str(self.shard)
        return [
            Sample("tickwright_polls_published_total", counters.published, (shard,)),
            Sample("tickwright_poll_relay_superseded_total", counters.superseded, (shard,)),
            Sample("tickwright_poll_batches_total", counters.batches, (shard, "published")),
            Sample("tickwright_poll_batches_total", counters.aborted, (shard, "aborted")),
            Sample("tickwright_poll_batches_total", counters.doubts, (shard, "doubt")),
            Sample("tickwright_poll_batches_total", counters.fenced, (shard, "fenced")),
            Sample("tickwright_poll_relay_opens_total", counters.opened, (shard,)),
            Sample("tickwright_poll_relay_stands", float(self.blocked_by is not None), (shard,)),
        ]

    # ------------------------------------------------------------------ why it is blocked

    async def _open(self, lease: Lease) -> None:
        """Create the shard's row. A predecessor's reason stays until this relay works or is blocked itself."""
        self.blocked_by, self._reported = None, ("", "")
        await self._report(lease, "open_shard")

    async def _block(self, lease: Lease, error: TickwrightError) -> None:
        """Report why the relay is blocked; without the database only in the log and the metrics."""
        self.blocked_by = error
        reason = (error.code, error.message)
        if self._reported != reason and await self._report(
            lease, "block", error.code, error.message[:REASON_CHARS_MAX]
        ):
            self._reported = reason

    async def _unblock(self, lease: Lease) -> None:
        self.blocked_by = None
        if self._reported is not None and await self._report(lease, "unblock"):
            self._reported = None

    async def _report(self, lease: Lease, query: str, *arguments: str) -> bool:
        """Write the shard's row under the lease, so that no relay that lost it overwrites its successor's report."""
        try:
            async with lease.transaction() as connection:
                if connection is None:
                    return False
                await connection.execute(batches.SQL[query], self.shard, *arguments)
        except UNAVAILABLE as error:
            _log.warning("poll_relay.database_unavailable", shard=self.shard, error=repr(error))
            return False
        return True

    # ------------------------------------------------------------------ through the log

    async def _relay(self, log: PositionedLog, lease: Lease) -> None:
        await self._open(lease)
        try:
            while self._works(lease):
                try:
                    await self._drop_superseded(lease)
                    if await self._publish_until_doubt(log, lease):
                        return
                except TickwrightError as error:
                    await self._refused(lease, error)
                except UNAVAILABLE as error:
                    _log.warning("poll_relay.database_unavailable", shard=self.shard, error=repr(error))
                    await self._pause()
        finally:
            await log.close()

    async def _publish_until_doubt(self, log: PositionedLog, lease: Lease) -> bool:
        """Open the log, mark what it proves, and publish; return whether another writer has fenced this one."""
        self.counters.opened += 1
        position = await log.open(self.shard)
        await self._mark_proven(lease, position, NO_OFFSETS if position is None else log.committed(position))
        while self._works(lease):
            await self._sweep_queue(lease)
            found = await self._freeze(lease)
            if not isinstance(found, batches.FrozenBatch):
                await self._unblock(lease)
                await self._rest_until(found)
                continue
            await self._probe.reached("relay.poll_batch_frozen", number=found.number, fence=lease.fence)
            records = poll_records(found.rows, self._accounts)
            outcome = await log.publish(Batch(found.number, lease.fence, self._topic, records))
            if isinstance(outcome, Committed):
                self._failures = 0
                await self._probe.reached("relay.poll_batch_published", number=found.number, fence=lease.fence)
                await self._mark_up_to(lease, found.number, outcome)
                await self._unblock(lease)
                await self._probe.reached("relay.poll_batch_marked", number=found.number, fence=lease.fence)
                continue
            await self._not_committed(lease, outcome, found.number)
            if not isinstance(outcome, Aborted):
                return isinstance(outcome, Fenced)
        return False

    async def _drop_superseded(self, lease: Lease) -> None:
        """Drop what is superseded before the log is opened, which fails while Kafka is unavailable."""
        left = 0
        while not left and self._works(lease):
            async with lease.transaction() as connection:
                if connection is None:
                    return
                dropped, left = await batches.drop_superseded(connection, self.shard, DROP_ROWS_MAX)
            self.counters.superseded += dropped

    async def _mark_proven(self, lease: Lease, position: int | None, committed: Committed) -> None:
        """Mark what the position proves as published; under the lease, so that a relay that lost it stops here."""
        async with lease.transaction() as connection:
            if connection is None:
                return
            numbers = await batches.read_numbers(connection, self.shard)
        check_position(self.shard, numbers, position)
        if position is not None and position > numbers.published_no:
            await self._mark_up_to(lease, position, committed)

    async def _freeze(self, lease: Lease) -> batches.FrozenBatch | float | None:
        """Return the batch to publish, or else in how many seconds the next row is released."""
        async with lease.transaction() as connection:
            if connection is None:
                return None
            dropped, rows_max = await batches.drop_superseded(connection, self.shard, self._bounds.rows)
            await batches.freeze(connection, self.shard, replace(self._bounds, rows=rows_max))
            found = await batches.read_frozen(connection, self.shard)
            self.counters.superseded += dropped
            if found is None:
                return await batches.next_release_s(connection, self.shard)
            self._accounts = await self._names.read(connection, (no for row in found.rows for no in row.account_nos))
            return found

    async def _mark_up_to(self, lease: Lease, number: int, committed: Committed) -> None:
        async with lease.transaction() as connection:
            if connection is None:
                return
            trackers = await batches.mark_published(connection, self.shard, number, self._topic, committed)
        self.counters.published += trackers
        self.counters.batches += 1

    async def _not_committed(self, lease: Lease, outcome: Aborted | Doubt | Fenced, number: int) -> None:
        if isinstance(outcome, Fenced):
            self.counters.fenced += 1
            reason = "another writer has opened this shard"
        else:
            self.counters.aborted += isinstance(outcome, Aborted)
            self.counters.doubts += isinstance(outcome, Doubt)
            reason = outcome.reason
        kind = type(outcome).__name__
        await self._block(lease, Unavailable("batch_not_committed", f"batch {number}: {reason}"))
        _log.warning("poll_relay.not_committed", shard=self.shard, batch=number, kind=kind, reason=reason)
        await self._pause()

    async def _refused(self, lease: Lease, error: TickwrightError) -> None:
        await self._block(lease, error)
        _log.error("poll_relay.blocked", shard=self.shard, code=error.code, error=error.message)
        await (self._pause() if error.retriable else self.rest(REFUSED_S))

    # ------------------------------------------------------------------ without Kafka

    async def _queue(self, lease: Lease) -> None:
        await self._open(lease)
        while self._works(lease):
            try:
                await self._unblock(lease)
                await self._sweep_queue(lease)
                await self._queue_once(lease)
            except UNAVAILABLE as error:
                _log.warning("poll_relay.database_unavailable", shard=self.shard, error=repr(error))
                await self._pause()

    async def _queue_once(self, lease: Lease) -> None:
        async with lease.transaction() as connection:
            if connection is None:
                return
            dropped, rows_max = await batches.drop_superseded(connection, self.shard, ROWS_READ_MAX)
            moved = await connection.fetchrow(batches.SQL["move_to_queue"], self.shard, min(rows_max, QUEUE_ROWS_MAX))
            trackers, rows = moved["trackers"], moved["moved"]
            wait_s = None if rows else await batches.next_release_s(connection, self.shard)
        self._failures = 0
        self.counters.superseded += dropped
        if not rows:
            await self._rest_until(wait_s)
            return
        self.counters.published += trackers
        self.counters.batches += 1
        await self._probe.reached("relay.poll_batch_marked", trackers=trackers, fence=lease.fence)

    async def _sweep_queue(self, lease: Lease) -> None:
        """Drop what is superseded in the queue: no consumer does it for a partner without a courier."""
        if self.shard or monotonic() < self._swept_s + self._sweep_every_s:
            return
        async with lease.transaction() as connection:
            if connection is None:
                return
            dropped = await connection.fetchval(batches.SQL["drop_queued"], 2 * SWEPT_MAX, SWEPT_MAX)
        self._swept_s = monotonic()
        self.counters.superseded += dropped

    # ------------------------------------------------------------------ waiting

    def _works(self, lease: Lease) -> bool:
        self.tick()
        return lease.holds() and not self.stopping.is_set()

    async def _rest_until(self, wait_s: float | None) -> None:
        """Sleep until the next row is released, ``POLL_S`` at most, because an earlier one may be added."""
        if wait_s is None or wait_s > SOON_S:
            await self.rest(IDLE_S)
        else:
            await self.rest(min(max(wait_s, 0.0) + RELEASE_MARGIN_S, POLL_S))

    async def _pause(self) -> None:
        self._failures += 1
        await self.rest(RETRY.delay(self._failures, random_unit()).total_seconds())
