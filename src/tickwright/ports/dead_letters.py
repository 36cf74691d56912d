"""Dead letters that a broker keeps: what is known of them, what operators ask, and what they are answered."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple, Protocol

import msgspec
from msgspec import Meta

from tickwright.domain.errors import Rejected

BODY_CHARS_MAX = 65_536
"""Of a body that is shown."""
REQUEUE_MAX = 1000
"""Messages that go back at a time."""

MessageId = Annotated[str, Meta(min_length=1, max_length=255)]


class DeadMessage(NamedTuple):
    """A message among the dead letters of a queue; ``key`` is under which it would come back, where it is known."""

    message_id: str | None
    reason: str
    text: str
    died_at_s: float | None
    body: bytes
    key: str = ""


class Peeked(NamedTuple):
    """The oldest dead letters of a queue, and how many there are in all."""

    messages: list[DeadMessage]
    total: int


class DeadMessages(Protocol):
    """The dead letters of a queue. Raises ``Unavailable`` when the broker does not answer."""

    async def peek(self, limit: int) -> Peeked:
        """Return the oldest ones, at most 1,000, and leave them where they are."""
        ...

    async def requeue(self, limit: int, *, message_ids: Sequence[str] | None = None) -> list[str]:
        """Put them into the queue again, the oldest first, with a fresh count of deliveries; return whose ids."""
        ...


class DeadMessagesRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which dead letters go back: by the ids of their messages, or ``all``, the oldest first."""

    ids: Annotated[list[MessageId], Meta(min_length=1, max_length=REQUEUE_MAX)] | None = None
    all: bool = False
    limit: Annotated[int, Meta(ge=1, le=REQUEUE_MAX)] = REQUEUE_MAX

    def check(self) -> None:
        """Refuse what does not say which.

        Raises:
            Rejected: ``empty_filter``. Permanent.
        """
        if (self.ids is None) is not self.all:
            raise Rejected("empty_filter", "give either the ids, or all")


class DeadMessagesRequeued(msgspec.Struct):
    """What went back into its queue; ``more`` when the limit may have left some over."""

    requeued: int
    ids: list[str]
    more: bool
