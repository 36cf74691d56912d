"""Reports' exchanges and queues on a real RabbitMQ, for tests: with names of the test, to publish to and to inspect."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import uuid4

from pamqp.commands import Basic

from kit.rabbit_queues import Queues, consuming, raw_channel
from tickwright.transports.rabbitmq.dead_letters import RabbitDeadLetters
from tickwright.transports.rabbitmq.tasks import RabbitTaskQueue
from tickwright.transports.rabbitmq.topology import QueueTopology, Topology, prepare, report_exchanges, report_names


class Reports(Queues):
    """The exchanges of one test, and a queue for each listener."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url
        self.shared = report_exchanges(f"t{uuid4().hex[:12]}")
        self.made: dict[str, QueueTopology] = {}

    def names(self, listener: str) -> QueueTopology:
        """Return the names of a listener's queues."""
        return self.made.setdefault(listener, report_names(self.shared.prefix, listener))

    async def prepare(self, *listeners: str) -> None:
        """Create exchanges and queues, on one connection."""
        await prepare(self.url, *(self.names(listener) for listener in listeners))

    async def announce_stage(self, *ids: str, body: bytes = b"{}") -> None:
        """Publish to all listeners, confirmed."""
        await self._publish(self.shared.broadcast, "", ids, body)

    async def tell(self, listener: str, *ids: str, body: bytes = b"{}") -> None:
        """Publish to one listener, confirmed."""
        await self._publish(self.shared.exchange, listener, ids, body)

    async def _publish(self, exchange: str, key: str, ids: Sequence[str], body: bytes) -> None:
        async with raw_channel(self.url) as channel:
            for one in ids:
                properties = Basic.Properties(delivery_mode=2, message_id=one)
                await channel.basic_publish(
                    body, exchange=exchange, routing_key=key, properties=properties, mandatory=True
                )

    async def waiting_in(self, queue: str) -> list[str | None]:
        """Return the ids in a queue, and leave the messages there."""
        found = []
        async with raw_channel(self.url) as channel:
            while isinstance((one := await channel.basic_get(queue)).delivery, Basic.GetOk):
                found.append(one.header.properties.message_id)
        return found

    @property
    def dead(self) -> RabbitDeadLetters:
        """The dead letters of all listeners, as an operator sees them."""
        return RabbitDeadLetters(self.url, self.shared)

    async def remove(self) -> None:
        """Remove exchanges and queues."""
        async with raw_channel(self.url) as channel:
            everything: list[Topology] = [self.shared, *self.made.values()]
            for names in everything:
                for queue in names.queues:
                    await channel.queue_delete(queue)
            for exchange in self.shared.exchanges:
                await channel.exchange_delete(exchange)

    @asynccontextmanager
    async def consumer(self, listener: str, slots: int = 1) -> AsyncIterator[RabbitTaskQueue]:
        """A process of a listener, reduced to its source of messages."""
        source = RabbitTaskQueue(self.url, self.names(listener), slots=slots)
        async with consuming(source):
            yield source
