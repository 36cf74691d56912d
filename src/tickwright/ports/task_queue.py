"""The task queue: messages that competing consumers settle, and its dead letters; in RabbitMQ and in PostgreSQL."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, NamedTuple, Protocol

import msgspec
from msgspec import Meta

from tickwright.domain.errors import Rejected


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """A message that a consumer holds until it settles it, or loses the connection.

    Attributes:
        deliveries: Number of deliveries with this one, as far as the broker reports it.
        delays: Number of delayed retries.
        handle: For the queue only.
    """

    body: bytes
    headers: Mapping[str, Any]
    message_id: str | None
    content_encoding: str | None
    deliveries: int
    delays: int
    handle: Any


class TaskQueue(Protocol):
    """Messages of one queue, at most as many at a time as there are slots. A ``Service`` keeps the connection."""

    async def take(self) -> Delivery:
        """Wait for the next message, even while the broker is unavailable."""

    async def ack(self, delivery: Delivery) -> bool:
        """Acknowledge the message. False if another consumer has it now."""

    async def delay(self, delivery: Delivery, by: timedelta) -> bool:
        """Put the message back for later, stored durably before the original is acknowledged. False as for ``ack``."""

    async def dead_letter(self, delivery: Delivery, reason: str, text: str) -> bool:
        """Move the message to the dead letters with a code and a text for operators. False as for ``ack``."""

    async def release(self, delivery: Delivery) -> None:
        """Put the message back into the queue at once, as if it had not been taken."""


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

    async def requeue(self, limit: int, *, message_ids: Sequence[str] | None = None) -> list[str]:
        """Put them into their queue again, oldest first, with a new count of deliveries; return their ids."""


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
