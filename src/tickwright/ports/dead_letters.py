"""Dead letters in a broker: their facts, and operators' requests and answers."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple, Protocol

import msgspec
from msgspec import Meta

from tickwright.domain.errors import Rejected

BODY_CHARS_MAX = 65_536
"""Characters of a body that are shown."""
REQUEUE_MAX = 1000
"""Messages requeued at a time."""

MessageId = Annotated[str, Meta(min_length=1, max_length=255)]


class DeadMessage(NamedTuple):
    """A message among the dead letters of a queue; ``key`` is its key after a requeue, if known."""

    message_id: str | None
    reason: str
    text: str
    died_at_s: float | None
    body: bytes
    key: str = ""


class Peeked(NamedTuple):
    """The oldest dead letters of a queue, and the number of all."""

    messages: list[DeadMessage]
    total: int


class DeadMessages(Protocol):
    """The dead letters of a queue. Raises ``Unavailable`` when the broker does not answer."""

    async def peek(self, limit: int) -> Peeked:
        """Return the oldest ones, at most 1,000, without removing them."""
        ...

    async def requeue(self, limit: int, *, message_ids: Sequence[str] | None = None) -> list[str]:
        """Put them into their queue again, oldest first, with a new count of deliveries; return their ids."""
        ...


class DeadMessagesRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which dead letters to requeue: those with these message ids, or ``all``, oldest first."""

    ids: Annotated[list[MessageId], Meta(min_length=1, max_length=REQUEUE_MAX)] | None = None
    all: bool = False
    limit: Annotated[int, Meta(ge=1, le=REQUEUE_MAX)] = REQUEUE_MAX

    def check(self) -> None:
        """Refuse a request with neither ids nor ``all``, or with both.

        Raises:
            Rejected: ``empty_filter``. Permanent.
        """
        if (self.ids is None) is not self.all:
            raise Rejected("empty_filter", "give either the ids, or all")


class DeadMessagesRequeued(msgspec.Struct):
    """The messages that were requeued; ``more`` if the limit may have left some out."""

    requeued: int
    ids: list[str]
    more: bool
