"""Fan-out's queues on a real RabbitMQ, for tests: with names of the test, to publish to and to inspect."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from time import monotonic
from typing import Any
from uuid import uuid4

from pamqp.commands import Basic

from kit.probes import Stops
from kit.rabbit_queues import Queues, consuming, raw_channel
from kit.servers import RabbitServer
from kit.waiting import eventually_async
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.ports.task_queue import Delivery
from tickwright.transports.rabbitmq.dead_letters import RabbitDeadLetters
from tickwright.transports.rabbitmq.tasks import UNACKED_AGE_MAX, RabbitTaskQueue
from tickwright.transports.rabbitmq.topology import TASK_KEY, fanout_names, prepare


class Fanout(Queues):
    """The queues of one test.

    Args:
        url: URL of the node, or of a proxy before it.
        direct_url: URL without the proxy, for requests of the test itself.
    """

    def __init__(self, url: str, direct_url: str | None = None) -> None:
        super().__init__(direct_url or url)
        self.url = url
        self.names = fanout_names(f"t{uuid4().hex[:12]}")

    def behind(self, url: str) -> "Fanout":
        """Return the same queues by another address."""
        other = Fanout(url, self.direct_url)
        other.names = self.names
        return other

    async def prepare(self) -> None:
        """Create exchange and queues."""
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
        """Remove exchange and queues."""
        async with raw_channel(self.direct_url) as channel:
            for queue in self.names.queues:
                await channel.queue_delete(queue)
            for exchange in (self.names.exchange, self.names.dead):
                await channel.exchange_delete(exchange)

    async def reject(self, count: int) -> None:
        """Let the broker dead-letter that many tasks, as for a consumer that rejects them."""
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
    """Whether no delivery comes for that long."""
    try:
        await taken(source, for_s)
    except TimeoutError:
        return True
    return False


# Conditions of fan-out's queue, as checks that hold for the product and fail for mutants.

SECOND = timedelta(seconds=1)


async def alarm(server: RabbitServer, *, on: bool) -> None:
    """Set or clear the node's alarm of a full disk."""
    await asyncio.to_thread(server.set_disk_alarm, on=on)


async def check_held_holds_up_no_other(fanout: Fanout) -> None:
    """One slot each: while one consumer works on a slow entity, the other tasks go to free ones."""
    async with fanout.consumer(1) as slow, fanout.consumer(1) as fast:
        await fanout.put("a")
        await fanout.put("b")
        held = [await taken(slow), await taken(fast)]
        await fanout.put("c", "d", "e")
        assert {one.message_id for one in held} == {"a", "b"}
        assert await fast.ack(held[1])
        for name in ("c", "d", "e"):
            task = await taken(fast)
            assert task.message_id == name
            assert await fast.ack(task)
        assert await nothing_comes(slow, 0.1)


async def check_acknowledged_once(fanout: Fanout) -> None:
    """A second acknowledgement of one delivery would close the channel for all others."""
    await fanout.put("a", "b")
    async with fanout.consumer(2) as source:
        first, second = await taken(source), await taken(source)
        assert await source.ack(first)
        assert not await source.ack(first)
        assert not await source.delay(first, SECOND)
        assert not await source.dead_letter(first, "no", "no")
        await source.release(first)
        assert await source.ack(second)
    assert await fanout.ids_in(fanout.names.queue) == []


async def check_deleted_delay_queue(fanout: Fanout) -> None:
    """The copy is returned as unroutable, and the original waits for a copy that is confirmed."""
    await fanout.put("a", "b")
    async with fanout.consumer(2) as source:
        first, second = await taken(source), await taken(source)
        assert await source.delay(first, SECOND)
        await fanout.delete(fanout.names.delays[1])
        assert await source.delay(second, SECOND)
        await fanout.count(fanout.names.delays[1])  # it is there again
        assert (await taken(source)).message_id == "b"


async def check_acknowledged_behind_its_copy(fanout: Fanout) -> None:
    """If a consumer is lost before the copy is confirmed the task is redelivered: at worst twice, never lost."""
    probe = Stops()
    probe.close("fanout.forwarded_not_acked")
    await fanout.put("a")
    async with fanout.consumer(probe=probe) as source:
        task = await taken(source)
        delaying = asyncio.create_task(source.delay(task, timedelta(seconds=60)))
        await eventually_async(lambda: probe.reached_times["fanout.forwarded_not_acked"] == 1)
        assert await fanout.count(fanout.names.delays[60]) == 1
        await source.stop()
        probe.open("fanout.forwarded_not_acked")
        assert not await delaying
    await fanout.counted(fanout.names.queue, 1)


async def check_parked_and_not_spent(fanout: Fanout, server: RabbitServer) -> None:
    """An alarm of minutes must not turn waiting tasks into dead letters: no delivery is counted, and no loop spins."""
    await fanout.put("a")
    async with fanout.consumer(2) as source:
        await alarm(server, on=True)
        try:
            task = await taken(source)
            for number in range(1, 4):
                since = monotonic()
                assert await source.delay(task, SECOND)
                task = await taken(source)
                assert monotonic() - since > 0.9, "it spins"
                assert (task.message_id, task.deliveries, task.delays) == ("a", 1, number)
            assert await source.delay(task, SECOND)
        finally:
            await alarm(server, on=False)
        task = await taken(source)
        assert await source.ack(task)
        assert await fanout.count(fanout.names.queue) == 0
