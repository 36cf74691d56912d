"""A log for polls that keeps order and the writer's position: exactly once, or an explicit *doubt*.

A log takes numbered batches. Each is stored completely with its number, or not at all. Opening the log for a shard
fences every earlier writer of that shard and returns the number of the last stored batch. So a writer that does not
know the outcome of a batch opens the log again and checks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


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


class Place(NamedTuple):
    """Offsets of a batch's records in one partition."""

    partition: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class Committed:
    """The batch and its number are stored.

    ``places`` are offsets, as far as known; only for display. ``partitions`` is 0 if the log does not report it.
    """

    places: Sequence[Place] = ()
    partitions: int = 0


NOWHERE = Committed()
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
    offsets: Committed = NOWHERE


Outcome = Committed | Aborted | Fenced | Doubt


POSITION_UNREADABLE = "kafka_position_unreadable"
"""Error code for a position that no writer of ours wrote; a reconcile writes it again."""


class PositionedLog(Protocol):
    """A log for one writer, used by one task at a time."""

    async def open(self, shard: int) -> int | None:
        """Fence every earlier writer of ``shard``; return the number of its last batch, ``None`` if it has none.

        Discards what was open before. May be called any number of times.

        Raises:
            Rejected: The log's configuration is not safe; the code names the problem. Permanent until an operator acts.
            Unavailable: It does not answer. Retry.
        """
        ...

    async def position(self, shard: int) -> int | None:
        """Return the number of the last batch of ``shard``, as an observer sees it; fences no writer.

        Raises:
            Rejected: The position may not be read, or is invalid. Permanent until an operator acts.
            Unavailable: It does not answer. Retry.
        """
        ...

    async def publish(self, batch: Batch) -> Outcome:
        """Store one batch completely, with its number; raises for no failure of the log or the network."""
        ...

    def committed(self, number: int) -> Committed:
        """Return the offsets of a batch in doubt that the position has confirmed since; only for display.

        Only the writer that was in doubt knows them, until it closes the log or publishes again.
        """
        ...

    async def close(self) -> None:
        """Discard what is open. A second call has no effect."""
        ...
