"""A queue of messages that competing consumers settle: the port of RabbitMQ's and PostgreSQL's task queues."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """A message that a consumer holds until it settles it, or until the connection is lost.

    Attributes:
        deliveries: How often the broker has handed it out, this time included, as far as it says so.
        delays: How often it was put back with a delay.
        handle: For the queue alone.
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
        """Wait for the next message, however long the broker is unavailable."""
        ...

    async def ack(self, delivery: Delivery) -> bool:
        """Acknowledge it: nothing is left to do. False when another consumer has the message by now."""
        ...

    async def delay(self, delivery: Delivery, by: timedelta) -> bool:
        """Put it back for later: kept durably before the original is acknowledged. False as for ``ack``."""
        ...

    async def dead_letter(self, delivery: Delivery, reason: str, text: str) -> bool:
        """Move it to the dead letters with a code and a text for people. False as for ``ack``."""
        ...

    async def release(self, delivery: Delivery) -> None:
        """Put it back into the queue at once, as if it had not been taken."""
        ...
