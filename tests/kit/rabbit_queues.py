"""Queues on a real RabbitMQ for tests: a separate channel, the content of a queue, and its consumers."""

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
    """A channel of the test, with confirms."""
    connection: AbstractConnection = await aiormq.connect(url)
    try:
        yield await connection.channel(publisher_confirms=True)
    finally:
        await connection.close()


class Queues:
    """Operations of a test on queues.

    Args:
        direct_url: URL of the node, without a proxy.
    """

    def __init__(self, direct_url: str) -> None:
        self.direct_url = direct_url

    async def counted(self, queue: str, wanted: int) -> None:
        """Wait until that many messages of a queue are ready."""

        async def so_many() -> bool:
            return await self.count(queue) == wanted

        await eventually_async(so_many, 30, what=f"{wanted} in {queue}")

    async def count(self, queue: str) -> int:
        """Return how many messages of a queue are ready."""
        async with raw_channel(self.direct_url) as channel:
            return (await channel.queue_declare(queue, passive=True)).message_count or 0

    async def all_in(self, queue: str) -> list[DeliveredMessage]:
        """Take all messages out of a queue."""
        found = []
        async with raw_channel(self.direct_url) as channel:
            while isinstance((one := await channel.basic_get(queue, no_ack=True)).delivery, Basic.GetOk):
                found.append(one)
        return found

    async def ids_in(self, queue: str) -> list[str | None]:
        """Take all messages out of a queue; return their ids."""
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
