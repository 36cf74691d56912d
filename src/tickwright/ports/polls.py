"""Where polls come from: inside PostgreSQL or from Kafka, the consumer cannot tell.

A source hands out *turns*: trackers of one partner that are due in the same second, at most a thousand. Whoever
takes one owns it until it is finished or given back, or until the ownership is lost: then somebody else gets it, and
what the first one still brings counts for nothing, because ``hold`` no longer names it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol


class PollRecord(NamedTuple):
    """One poll as a log carries it, read; names instead of numbers, since others may read it too.

    Attributes:
        slot_id: ``None`` in records of relays that did not say it yet: the source looks it up.
    """

    tracker_id: int
    slot_id: int | None
    due_at: datetime
    partner: str
    account_id: str
    external_id: str


@dataclass(frozen=True, slots=True, eq=False)
class PollGroup:
    """Polls that are to be carried out.

    Attributes:
        key: The source's name for it; with ``owner`` and ``taken_at`` unique in one process.
        owner: Under which ownership it was taken: the session's token, or the partition's generation.
        slot_id: Of the wheel; where the slice ledger counts it.
        due_at: To the second; (tracker id, ``due_at``) is the message id.
        ids: Trackers; ``account_nos`` and ``external_ids`` go with them.
        taken_at: Where the same ownership may take it again: which of its takes this one is.
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
        """Take turns of partners, the longest due first.

        Args:
            room: How many turns at most, by partner.

        Returns:
            What is ours now; nothing while the ownership may not be relied on.
        """
        ...

    async def hold(self, connection: Any, turns: Sequence[PollGroup]) -> Sequence[PollGroup]:
        """Return those of ``turns`` that are ours still, and keep them so until the transaction ends.

        The fence of every effect: a loss waits for this transaction, or comes before it.
        """
        ...

    async def finish(self, connection: Any, turns: Sequence[PollGroup]) -> None:
        """Say, in the transaction that writes their last effects, that nothing is left to do for these."""
        ...

    async def finished(self, turns: Sequence[PollGroup]) -> None:
        """Say that this transaction is committed: the place to commit offsets."""
        ...

    def has_lost(self, turn: PollGroup) -> bool:
        """Whether a turn that is not finished is somebody else's now, as far as is known here: begin no more of it."""
        ...

    async def release(self, turns: Sequence[PollGroup]) -> None:
        """Let others have turns that are not finished. What was done of them is in the ledger."""
        ...
