"""Fan-out's queues on a real RabbitMQ, for tests: names of their own, things to put in and to look at."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

from pamqp.commands import Basic

from kit.rabbit_queues import Queues, consuming, raw_channel
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.ports.task_queue import Delivery
from tickwright.transports.rabbitmq.dead_letters import RabbitDeadLetters
from tickwright.transports.rabbitmq.tasks import UNACKED_AGE_MAX, RabbitTaskQueue
from tickwright.transports.rabbitmq.topology import TASK_KEY, fanout_names, prepare


class Fanout(Queues):
    """The queues of one test.

    Args:
        url: Of the node, or of a proxy before it.
        direct_url: Past the proxy, for what the test itself does.
    """

    def __init__(self, url: str, direct_url: str | None = None) -> None:
        super().__init__(direct_url or url)
        self.url = url
        self.names = fanout_names(f"t{uuid4().hex[:12]}")

    def behind(self, url: str) -> "Fanout":
        """Return the same queues as they are reached by another address."""
        other = Fanout(url, self.direct_url)
        other.names = self.names
        return other

    async def prepare(self) -> None:
        """Make exchange and queues."""
        await prepare(self.direct_url, self.names)

    async def put(self, *ids: str | None, body: bytes = b"{}", headers: Mapping[str, Any] | None = None) -> None:
        """Publish a task under each id, confirmed."""
        async with raw_channel(self.direct_url) as channel:
            for one in ids:
                properties = Basic.Properties(delivery_mode=2, message_id=one, headers=dict(headers or {}))
                await channel.basic_publish(
                    body, exchange=self.names.exchange, routing_key=TASK_KEY, properties=properties, mandatory=True
                )

    @property
    def dead(self) -> RabbitDeadLetters:
        """The dead letters, as an operator sees them."""
        return RabbitDeadLetters(self.url, self.names)

    async def remove(self) -> None:
        """Remove everything."""
        async with raw_channel(self.direct_url) as channel:
            for queue in self.names.queues:
                await channel.queue_delete(queue)
            for exchange in (self.names.exchange, self.names.dead):
                await channel.exchange_delete(exchange)

    async def reject(self, count: int) -> None:
        """Let the broker bury that many tasks, as it does for a consumer that rejects them."""
        async with raw_channel(self.direct_url) as channel:
            for _ in range(count):
                one = await channel.basic_get(self.names.queue)
                await channel.basic_reject(one.delivery_tag or 0, requeue=False)
            await self.counted(self.names.dead, count)

    async def delete(self, queue: str) -> None:
        """Delete a queue, as an operator would by mistake."""
        async with raw_channel(self.direct_url) as channel:
            await channel.queue_delete(queue)

    @asynccontextmanager
    async def consumer(
        self, slots: int = 1, probe: Probe = NO_PROBE, unacked_age_max: timedelta = UNACKED_AGE_MAX
    ) -> AsyncIterator[RabbitTaskQueue]:
        """A source that consumes."""
        source = RabbitTaskQueue(self.url, self.names, slots=slots, probe=probe, unacked_age_max=unacked_age_max)
        async with consuming(source):
            yield source


async def taken(source: RabbitTaskQueue, within_s: float = 10) -> Delivery:
    """Return the next delivery; fail the test when none comes."""
    async with asyncio.timeout(within_s):
        return await source.take()


async def nothing_comes(source: RabbitTaskQueue, for_s: float = 0.3) -> bool:
    """Whether nothing is handed out for that long."""
    try:
        await taken(source, for_s)
    except TimeoutError:
        return True
    return False
