"""Sources of polls for the consumer, PostgreSQL or Kafka, and the log to which the relay publishes polls.

A source provides *groups*: at most a thousand trackers of one partner that are due in the same second. A consumer that
takes a group owns it until it finishes or releases it, or loses the ownership. Then another consumer gets it; later
results of the first have no effect, because ``hold`` no longer returns the group.

A log takes numbered batches. Each is stored completely with its number, or not at all. Opening the log for a shard
fences every earlier writer of that shard and returns the number of the last stored batch. So a writer that does not
know the outcome of a batch (a *doubt*) opens the log again and checks: each batch is stored exactly once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol


class PollRecord(NamedTuple):
    """One poll read from a log, with names instead of numbers, because others may read it too.

    ``slot_id`` is ``None`` in records of older relays: the source looks it up.
    """

    tracker_id: int
    slot_id: int | None
    due_at: datetime
    partner: str
    account_id: str
    external_id: str


@dataclass(frozen=True, slots=True, eq=False)
class PollGroup:
    """Polls to carry out.

    Attributes:
        key: The source's name for it; with ``owner`` and ``taken_at`` unique in one process.
        owner: The ownership under which it was taken: the session's token, or the partition's generation.
        slot_id: Of the wheel; where the slice ledger counts it.
        due_at: To the second; (tracker id, ``due_at``) is the message id.
        ids: Trackers; ``account_nos`` and ``external_ids`` are parallel.
        taken_at: Tells apart repeated takes under the same ownership, where the source allows them.
    """

    key: int
    owner: int
    slot_id: int
    due_at: datetime
    partner_no: int
    ids: Sequence[int]
    account_nos: Sequence[int]
    external_ids: Sequence[str]
    taken_at: datetime | None = None


class PollSource(Protocol):
    """A source of polls, under one session."""

    async def take(self, room: Mapping[int, int]) -> Sequence[PollGroup]:
        """Take at most ``room`` groups of each partner, longest due first; none while the ownership is not valid."""

    async def hold(self, connection: Any, groups: Sequence[PollGroup]) -> Sequence[PollGroup]:
        """Return those of ``groups`` that are still owned, and keep them owned until the transaction ends.

        This fences every effect: a loss waits for this transaction, or comes before it.
        """

    async def finish(self, connection: Any, groups: Sequence[PollGroup]) -> None:
        """Mark these groups as finished, in the transaction that writes their last effects."""

    async def after_commit(self, groups: Sequence[PollGroup]) -> None:
        """Report that this transaction is committed: the time to commit offsets."""

    def has_lost(self, group: PollGroup) -> bool:
        """Return whether, as far as known here, an unfinished group has another owner: then begin no more of it."""

    async def release(self, groups: Sequence[PollGroup]) -> None:
        """Let others take unfinished groups. The ledger has what was done of them."""


class Record(NamedTuple):
    """One record, equal on every attempt; the log adds the headers ``batch_no``, ``idx`` and ``fence``."""

    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Batch:
    """Records that are stored together.

    Attributes:
        number: One above the last batch of the shard, as in its position record.
        fence: Of the lease under which it is published; it rises from writer to writer.
        records: At most 20,000; none for a batch that only moves the position.
    """

    number: int
    fence: int
    topic: str
    records: Iterable[Record]


class PartitionOffsets(NamedTuple):
    """Offsets of a batch's records in one partition."""

    partition: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class Committed:
    """The batch and its number are stored.

    ``places`` are offsets, as far as known; only for display. ``partitions`` is 0 if the log does not report it.
    """

    places: Sequence[PartitionOffsets] = ()
    partitions: int = 0


NO_OFFSETS = Committed()
"""Result for a batch with unknown offsets."""


@dataclass(frozen=True, slots=True)
class Aborted:
    """The batch is certainly not stored, and the log stays usable: send the same batch again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Fenced:
    """Another writer has opened this shard: stop, and release the lease."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """It is unknown whether the batch is stored (if so, at ``offsets``). Open the log again; its position shows it."""

    reason: str
    offsets: Committed = NO_OFFSETS


Outcome = Committed | Aborted | Fenced | Doubt
POSITION_UNREADABLE = "kafka_position_unreadable"
"""Error code for a position that no writer of ours wrote; a reconcile writes it again."""


class PositionedLog(Protocol):
    """A log that keeps order and the position of its one writer; used by one task at a time."""

    async def open(self, shard: int) -> int | None:
        """Fence every earlier writer of ``shard``; return the number of its last batch, ``None`` if it has none.

        Discards what was open before. May be called any number of times.

        Raises:
            Rejected: The log's configuration is not safe; the code names the problem. Permanent until an operator acts.
            Unavailable: It does not answer. Retry.
        """

    async def position(self, shard: int) -> int | None:
        """Return the number of the last batch of ``shard``, as an observer sees it; fences no writer.

        Raises:
            Rejected: The position may not be read, or is invalid. Permanent until an operator acts.
            Unavailable: It does not answer. Retry.
        """

    async def publish(self, batch: Batch) -> Outcome:
        """Store one batch completely, with its number; raises for no failure of the log or the network."""

    def committed(self, number: int) -> Committed:
        """Return the offsets of a batch in doubt that the position has confirmed since; only for display.

        Only the writer that was in doubt knows them, until it closes the log or publishes again.
        """

    async def close(self) -> None:
        """Discard what is open. A second call has no effect."""
