"""The task queue: messages that competing consumers settle; implemented with RabbitMQ and PostgreSQL."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol


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
        ...

    async def ack(self, delivery: Delivery) -> bool:
        """Acknowledge the message. False if another consumer has it now."""
        ...

    async def delay(self, delivery: Delivery, by: timedelta) -> bool:
        """Put the message back for later, stored durably before the original is acknowledged. False as for ``ack``."""
        ...

    async def dead_letter(self, delivery: Delivery, reason: str, text: str) -> bool:
        """Move the message to the dead letters with a code and a text for operators. False as for ``ack``."""
        ...

    async def release(self, delivery: Delivery) -> None:
        """Put the message back into the queue at once, as if it had not been taken."""
        ...
