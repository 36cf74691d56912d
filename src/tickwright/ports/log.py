"""How polls reach a log that keeps order and remembers where its writer was: exactly once, or an honest *doubt*.

A log takes numbered batches. Each goes in whole, together with its number, or not at all; whoever opens the log for
a shard fences every earlier writer of that shard and hears the number of the last batch that is in. So a writer that
does not know what became of a batch opens the log again and looks, and never has to guess.
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
    """What goes into the log at once.

    Attributes:
        number: One above the last batch of the shard; its position record says so.
        fence: Of the lease under which it is published; it rises from writer to writer.
        topic: Where the records go.
        records: At most 20,000; none for a batch that only moves the position.
    """

    number: int
    fence: int
    topic: str
    records: Iterable[Record]


class Place(NamedTuple):
    """Where a batch's records stand in one partition."""

    partition: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class Committed:
    """The batch and its number are in.

    Attributes:
        places: Where, as far as the log knows; for those who look on, nothing rests on it.
        partitions: Of the topic; 0 where the log does not say.
    """

    places: Sequence[Place] = ()
    partitions: int = 0


NOWHERE = Committed()
"""Of a batch of which nobody was told where it stands."""


@dataclass(frozen=True, slots=True)
class Aborted:
    """The batch is certainly not in, and the log may be used on: send the same batch again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Fenced:
    """Another writer has opened this shard: stop, and give the lease up."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """Nobody can tell whether the batch is in. Open the log again; its position tells.

    Attributes:
        stands: Where its records are, should it be in.
    """

    reason: str
    stands: Committed = NOWHERE


Outcome = Committed | Aborted | Fenced | Doubt


POSITION_UNREADABLE = "kafka_position_unreadable"
"""The code of a position that no writer of ours wrote; reconciled, it is written again."""


class PositionedLog(Protocol):
    """A log as one writer sees it; used by one task at a time."""

    async def open(self, shard: int) -> int | None:
        """Fence every earlier writer of ``shard``; return the number of its last batch, ``None`` where there is none.

        What was open before is thrown away. Any number of times.

        Raises:
            Rejected: The log is not safe as it is configured; the code says what. Permanent until an operator acts.
            Unavailable: It does not answer. Retry.
        """
        ...

    async def position(self, shard: int) -> int | None:
        """Return the number of the last batch of ``shard`` as an observer sees it now; fences nobody.

        Raises:
            Rejected: It may not be read, or is none. Permanent until an operator acts.
            Unavailable: It does not answer. Retry.
        """
        ...

    async def publish(self, batch: Batch) -> Outcome:
        """Put one batch in, whole, with its number; never raises for anything the log or the network does."""
        ...

    def stands(self, number: int) -> Committed:
        """Return where a batch stands that was in doubt, and that the position proves since; for those who look on.

        Known by whoever was in doubt himself, from the doubt until he closes the log or publishes again.
        """
        ...

    async def close(self) -> None:
        """Throw away what is open. Twice is harmless."""
        ...
