"""Queues on a real RabbitMQ as a test looks at them: a channel of its own, what is in a queue, and who consumes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiormq
from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage
from pamqp.commands import Basic

from kit.waiting import eventually_async
from tickwright.transports.rabbitmq.tasks import RabbitTaskQueue


@asynccontextmanager
async def raw_channel(url: str) -> AsyncIterator[AbstractChannel]:
    """A channel of the test's own, with confirms."""
    connection: AbstractConnection = await aiormq.connect(url)
    try:
        yield await connection.channel(publisher_confirms=True)
    finally:
        await connection.close()


class Queues:
    """What a test asks of queues.

    Args:
        direct_url: Of the node, past any proxy.
    """

    def __init__(self, direct_url: str) -> None:
        self.direct_url = direct_url

    async def counted(self, queue: str, wanted: int) -> None:
        """Wait until nobody holds that many messages of a queue."""

        async def so_many() -> bool:
            return await self.count(queue) == wanted

        await eventually_async(so_many, 30, what=f"{wanted} in {queue}")

    async def count(self, queue: str) -> int:
        """Return how many messages of a queue nobody holds."""
        async with raw_channel(self.direct_url) as channel:
            return (await channel.queue_declare(queue, passive=True)).message_count or 0

    async def all_in(self, queue: str) -> list[DeliveredMessage]:
        """Take everything out of a queue."""
        found = []
        async with raw_channel(self.direct_url) as channel:
            while isinstance((one := await channel.basic_get(queue, no_ack=True)).delivery, Basic.GetOk):
                found.append(one)
        return found

    async def ids_in(self, queue: str) -> list[str | None]:
        """Take everything out of a queue; return whose ids."""
        return [one.header.properties.message_id for one in await self.all_in(queue)]


@asynccontextmanager
async def consuming(source: RabbitTaskQueue) -> AsyncIterator[None]:
    """Run a source for the length of the block."""
    running = asyncio.create_task(source.run())
    try:
        yield
    finally:
        await source.quiesce()
        await source.stop()
        async with asyncio.timeout(30):
            await asyncio.wait({running})
        if not running.cancelled():
            running.exception()
