"""A message in a consumer's hands, and the channel that it came by: what may still be said to RabbitMQ about it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage
from pamqp.commands import Basic

from tickwright.ports.fanout import Delivery
from tickwright.ports.ids import monotonic
from tickwright.transports.rabbitmq.connection import CHANNEL_TIMEOUT_S, FAILURES, lost_is_a_failure
from tickwright.transports.rabbitmq.forwarding import delays_of
from tickwright.transports.rabbitmq.raw_connection import as_count, dial, hang_up, open_channel


@dataclass(eq=False, slots=True)
class Life:
    """One channel that is consumed from, until it is lost.

    Attributes:
        over: Set when it is lost, or when the queue was deleted.
        tag: Of the consumer; ``None`` while nothing can come.
        begun_s: When it was made, by the clock that does not go back.
    """

    connection: AbstractConnection
    channel: AbstractChannel
    over: asyncio.Event = field(default_factory=asyncio.Event)
    tag: str | None = None
    begun_s: float = field(default_factory=monotonic)

    @classmethod
    async def begin(cls, url: str, name: str) -> "Life":
        """Connect and open a channel. Raises one of ``FAILURES``, and then leaves no connection behind."""
        connection = await dial(url, name)
        try:
            return cls(connection, await open_channel(connection))
        except BaseException:
            await hang_up(connection)
            raise

    def is_alive(self) -> bool:
        """Whether RabbitMQ waits to hear about what came by it."""
        return not (self.over.is_set() or self.channel.is_closed or self.connection.is_closed)

    async def say(self, say: Callable[[AbstractChannel], Awaitable[Any]]) -> bool:
        """Tell RabbitMQ something; a connection that does not take it within five seconds is lost."""
        try:
            with lost_is_a_failure():
                async with asyncio.timeout(CHANNEL_TIMEOUT_S):
                    await say(self.channel)
        except FAILURES:
            self.over.set()
            return False
        return self.is_alive()

    async def counts(self, *queues: str) -> list[int] | None:
        """Return how many messages of each queue nobody holds; one that does not exist costs the channel."""
        found: list[int] = []

        async def ask(channel: AbstractChannel) -> None:
            for queue in queues:
                answer = await channel.queue_declare(queue, passive=True)
                found.append(answer.message_count or 0)

        return found if await self.say(ask) else None


@dataclass(eq=False, slots=True)
class Held:
    """A message that RabbitMQ waits to hear about.

    Attributes:
        settled: It was told, or is being told.
    """

    life: Life
    tag: int
    properties: Basic.Properties
    since_s: float
    settled: bool = False

    def is_ours(self) -> bool:
        """Whether something may be said about it."""
        return self.life.is_alive() and not self.settled

    async def ack(self) -> bool:
        """Say that nothing is left to do; false where the connection was lost."""
        self.settled = True
        return await self.life.say(lambda channel: channel.basic_ack(self.tag))

    async def give_back(self) -> bool:
        """Put it back into the queue at once."""
        self.settled = True
        return await self.life.say(lambda channel: channel.basic_nack(self.tag, requeue=True))

    async def reject(self) -> bool:
        """Let RabbitMQ move it to the dead letters."""
        self.settled = True
        return await self.life.say(lambda channel: channel.basic_reject(self.tag, requeue=False))


def delivery_of(life: Life, message: DeliveredMessage) -> Delivery:
    """Return what came, whatever its publisher has put into the properties."""
    found = message.header.properties
    headers = found.headers or {}
    return Delivery(
        body=message.body,
        headers=headers,
        message_id=found.message_id or None,
        content_encoding=found.content_encoding or None,
        deliveries=deliveries_of(headers.get("x-delivery-count"), again=bool(message.redelivered)),
        delays=delays_of(headers),
        handle=Held(life, message.delivery_tag or 0, found, monotonic()),
    )


def deliveries_of(count: Any, *, again: bool) -> int:
    """Return how often a message was handed out, this time included.

    Args:
        count: The header ``x-delivery-count``, whatever is in it. Whoever published the message may have written it,
            so it counts only where RabbitMQ says that it hands the message out again.
        again: What RabbitMQ says.
    """
    return (as_count(count) or 1) + 1 if again else 1
