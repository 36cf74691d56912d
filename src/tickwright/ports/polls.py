"""Sources of polls: PostgreSQL or Kafka, with one protocol for the consumer.

A source provides *turns*: at most a thousand trackers of one partner that are due in the same second. A consumer that
takes a turn owns it until it finishes or releases it, or loses the ownership. Then another consumer gets it; later
results of the first have no effect, because ``hold`` no longer returns the turn.
"""

from collections.abc import Mapping, Sequence
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
        """Take at most ``room`` turns of each partner, longest due first; none while the ownership is not valid."""
        ...

    async def hold(self, connection: Any, turns: Sequence[PollGroup]) -> Sequence[PollGroup]:
        """Return those of ``turns`` that are still owned, and keep them owned until the transaction ends.

        This fences every effect: a loss waits for this transaction, or comes before it.
        """
        ...

    async def finish(self, connection: Any, turns: Sequence[PollGroup]) -> None:
        """Mark these turns as finished, in the transaction that writes their last effects."""
        ...

    async def finished(self, turns: Sequence[PollGroup]) -> None:
        """Report that this transaction is committed: the time to commit offsets."""
        ...

    def has_lost(self, turn: PollGroup) -> bool:
        """Return whether, as far as known here, an unfinished turn has another owner: then begin no more of it."""
        ...

    async def release(self, turns: Sequence[PollGroup]) -> None:
        """Let others take unfinished turns. The ledger has what was done of them."""
        ...
