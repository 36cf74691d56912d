"""Relay admin: status of the polls' relays and of the topic's partitions, and reconciling a blocked relay.

A relay is blocked when the topic's position and the database's numbers contradict each other: polls could be lost or
doubled. An operator finds the cause (a topic that was created again, a restored database) and chooses the last batch
that is published; both sides are set to that.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from tickwright.capabilities.polling.relay import batches
from tickwright.capabilities.polling.relay.relay import check_position, choose_position, lease_name
from tickwright.domain.errors import Contended, Rejected, TickwrightError, Unavailable
from tickwright.domain.leases import LeaseTerms
from tickwright.engine.leases import Lease, Leases
from tickwright.ports.caller import Caller
from tickwright.ports.polls import POSITION_UNREADABLE, Batch, Committed, Fenced, PositionedLog
from tickwright.ports.views import view
from tickwright.store.audit import write_audit
from tickwright.store.pool import Pool

LEASE_TERMS = LeaseTerms(ttl=timedelta(seconds=60), margin=timedelta(seconds=5))
TAKES_MAX = 20
READS_MAX = 3
OPENS_MAX = 3


class PollRelayView(msgspec.Struct, kw_only=True):
    """One shard's relay: what waits, what is frozen, what is published, and whether both sides agree.

    Attributes:
        waiting: Polls that are selected and not in a batch.
        released: Those of them whose second is past.
        frozen: Polls of the batch that is being published.
        position: The last batch on the topic, as the topic reports; null without Kafka.
        problem: Code of why the relay is blocked: the two sides contradict each other, the relay reports it, or Kafka
            does not answer.
        stands_since: When the relay reported that it is blocked; null while it works.
    """

    shard: int
    transport: str
    batch_no: int
    published_no: int
    published_at: datetime | None
    waiting: int
    released: int
    oldest_release_at: datetime | None
    frozen: int
    position: int | None
    problem: str | None
    says: str | None
    stands_since: datetime | None


class ReconcileRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What both sides are set to; nothing is changed unless ``apply`` is true.

    Attributes:
        position: All batches up to this one are published, none above it is; without it the last that is certain.
    """

    shard: int = 0
    position: int | None = None
    apply: bool = False


class ReconcileView(msgspec.Struct, kw_only=True):
    """What a reconciliation does, or did.

    Attributes:
        adopted: The number that both sides are set to.
        counted: Polls of the frozen batch that count as published and are not sent.
        sent_again: Polls of the frozen batch that are sent under the same ids.
    """

    shard: int
    problem: str
    batch_no: int
    published_no: int
    position: int | None
    adopted: int
    counted: int
    sent_again: int
    applied: bool


class PollRelayAdmin:
    """Lists the polls' relays, and reconciles a blocked one. ``make_log`` returns ``None`` without Kafka."""

    def __init__(self, pool: Pool, leases: Leases, make_log: Callable[[], PositionedLog | None]) -> None:
        self._pool, self._leases, self._make_log = pool, leases, make_log

    async def list(self) -> list[PollRelayView]:
        """Return every shard that has had a relay; when Kafka does not answer, that is the problem of each."""
        shards = [row["shard"] for row in await self._rows()]
        log = self._make_log() if shards else None
        if log is None:
            return [_view(row, "postgres", None, None) for row in await self._rows()]
        compared: dict[int, tuple[int | None, TickwrightError | None]] = {}
        for shard in shards:
            try:
                compared[shard] = await self._compare(log, shard)
            except TickwrightError as error:
                compared[shard] = None, error
        rows = await self._rows()  # read after the positions, as the numbers are
        return [_view(row, "kafka", *compared[row["shard"]]) for row in rows if row["shard"] in compared]

    async def _rows(self) -> Sequence[Any]:
        rows: Sequence[Any] = await self._pool.fetch(batches.SQL["list_relays"])
        return rows

    async def _compare(self, log: PositionedLog, shard: int) -> tuple[int | None, Rejected | None]:
        """Return a shard's position, and why it contradicts the numbers, if it does; also while its relay works.

        Batches that are marked before the position is read are on the topic. Batches on the topic have their number
        before it is read again. So the position is compared with the numbers from before and after. A commit becomes
        visible on the topic a moment later: a contradiction is read again.
        """
        position, problem = None, None
        for _ in range(READS_MAX):
            before = await self._numbers(shard)
            position, unreadable = await _position(log.position(shard))
            if unreadable is not None:
                return None, unreadable
            after = await self._numbers(shard)
            try:
                check_position(shard, batches.Numbers(after.batch_no, before.published_no), position)
            except Rejected as error:
                problem = error
            else:
                return position, None
        return position, problem

    async def _numbers(self, shard: int) -> batches.Numbers:
        async with self._pool.acquire() as connection:
            return await batches.read_numbers(connection, shard)

    async def reconcile(self, request: ReconcileRequest, *, caller: Caller) -> ReconcileView:
        """Set both sides of a blocked relay to one number; without ``apply`` only return what would be done.

        Raises:
            Rejected: ``nothing_to_reconcile``, ``position_out_of_range``, ``no_kafka``. Permanent.
            Contended: ``relay_busy``. Retry.
            Unavailable: Kafka does not answer. Retry.
        """
        log = self._make_log()
        if log is None:
            raise Rejected("no_kafka", "without Kafka (TICKWRIGHT_KAFKA_BOOTSTRAP) there is no position to reconcile")
        position, problem = await self._compare(log, request.shard)
        if problem is None:
            raise _agreed(request.shard)
        plan = await self._plan(request, position, problem)
        if not request.apply:
            return plan
        lease = await self._take(request.shard)
        try:
            plan, outcome = await self._write(log, request, lease)
            if not isinstance(outcome, Committed):
                raise Unavailable("kafka_unavailable", f"the position could not be written: {outcome}; try again")
            return await self._adopt(lease, plan, caller)
        finally:
            await log.close()
            await lease.release()

    async def _write(self, log: PositionedLog, request: ReconcileRequest, lease: Lease) -> tuple[ReconcileView, Any]:
        """Write the position; try again when a relay that was just opening its log fences this writer."""
        for _ in range(OPENS_MAX):
            plan = await self._plan(request, *await _position(log.open(request.shard)))
            outcome = await log.publish(Batch(plan.adopted, lease.fence, "", ()))
            if not isinstance(outcome, Fenced):
                break
        return plan, outcome

    async def _plan(self, request: ReconcileRequest, position: int | None, problem: Rejected | None) -> ReconcileView:
        async with self._pool.acquire() as connection:
            numbers = await batches.read_numbers(connection, request.shard)
            frozen = await batches.read_frozen(connection, request.shard)
        unreadable = problem is not None and problem.code == POSITION_UNREADABLE
        adopted = choose_position(numbers, position, request.position)
        trackers = sum(len(row.ids) for row in frozen.rows) if frozen else 0
        counted = trackers if frozen is not None and frozen.number <= adopted else 0
        return ReconcileView(
            shard=request.shard,
            problem=POSITION_UNREADABLE if unreadable else _problem(request.shard, numbers, position),
            batch_no=numbers.batch_no,
            published_no=numbers.published_no,
            position=position,
            adopted=adopted,
            counted=counted,
            sent_again=trackers - counted,
            applied=False,
        )

    async def _take(self, shard: int) -> Lease:
        """Take the lease from the blocked relay, and from any process that takes it first."""
        for _ in range(TAKES_MAX):
            await self._leases.break_lease(lease_name(shard))
            lease = await self._leases.take(lease_name(shard), LEASE_TERMS)
            if lease is not None:
                return lease
        raise Contended("relay_busy", f"the relay of shard {shard} is working; try again")

    async def _adopt(self, lease: Lease, plan: ReconcileView, caller: Caller) -> ReconcileView:
        done = msgspec.structs.replace(plan, applied=True)
        async with lease.transaction() as connection:
            if connection is None:
                raise Contended("relay_busy", "another process took the relay's lease; try again")
            await connection.execute(batches.SQL["adopt_position"], plan.shard, plan.adopted)
            await batches.mark_published(connection, plan.shard, plan.adopted)
            await write_audit(
                connection, caller, "outbox.reconcile", f"poll-relay:{plan.shard}", before=plan, after=done
            )
        return done


async def _position(read: Awaitable[int | None]) -> tuple[int | None, Rejected | None]:
    """Return a position, or none and why it cannot be read; then it must be written again."""
    try:
        return await read, None
    except Rejected as error:
        if error.code != POSITION_UNREADABLE:
            raise
        return None, error


def _problem(shard: int, numbers: batches.Numbers, position: int | None) -> str:
    try:
        check_position(shard, numbers, position)
    except Rejected as error:
        return error.code
    raise _agreed(shard)


def _agreed(shard: int) -> Rejected:
    return Rejected("nothing_to_reconcile", f"the topic and the database agree about shard {shard}", shard=shard)


def _view(
    row: Mapping[str, Any], transport: str, position: int | None, problem: TickwrightError | None
) -> PollRelayView:
    """Return a row with its problem: the sides' contradiction, or the relay's report, or that Kafka is unavailable."""
    code, says = row["stands_code"], row["stands_text"]
    if problem is not None and (code is None or isinstance(problem, Rejected)):
        code, says = problem.code, problem.message
    return view(PollRelayView, row, transport=transport, position=position, problem=code, says=says)


class PollPartitionView(msgspec.Struct, kw_only=True):
    """One partition that polls went to within a week.

    Attributes:
        end_offset: One above the last poll that a relay published.
        position: The first unfinished poll. Null before the group has begun.
        lag: From the position to the end, in offsets.
        read_to: Polls from the position to this are in the reader's memory.
        unfinished_since: Since when the oldest unfinished poll has been on the topic; 10 s too late at most.
        reader: Name of the session that reads it; null without one.
    """

    topic: str
    partition: int
    end_offset: int
    position: int | None
    lag: int
    read_to: int | None
    unfinished_since: datetime | None
    reader: str | None
    seen_at: datetime | None


async def poll_partitions(pool: Pool) -> list[PollPartitionView]:
    """Return every partition that polls went to within a week; none when they stay inside PostgreSQL.

    It reads the database alone, so it answers without Kafka and without consumers.
    """
    return [view(PollPartitionView, row) for row in await pool.fetch(batches.SQL["list_partitions"])]
