"""The queue of fan-out as a bench sees it: fills it as a scheduler does, counts what waits, reads all of it back."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TypeVar

import aiormq
from aiormq.abc import AbstractChannel, DeliveredMessage

from tickwright.capabilities.fanout.messages import SIGNATURE, MessageKeys, write_task
from tickwright.capabilities.fanout.windows import Window
from tickwright.ports.broker import Accepted, Message
from tickwright.transports.rabbitmq.broker import RabbitBroker
from tickwright.transports.rabbitmq.topology import TASK_KEY, QueueTopology, fanout_names, prepare

MODULE = "LOCATIONS"
WINDOW_S = 3600
TIMEOUT_MS = 60_000
READ_SILENCE_S = 20.0
CHECK_S = 0.05

T = TypeVar("T")


class TaskQueue:
    """The queue under the prefix of this bench."""

    def __init__(self, url: str, names: QueueTopology, channel: AbstractChannel) -> None:
        self._url, self._names, self._channel = url, names, channel

    async def waiting(self) -> tuple[int, int]:
        """Return how many messages wait in it, and how many consumers it has, as the queue's leader says."""
        answer = await self._channel.queue_declare(self._names.queue, passive=True)
        return answer.message_count or 0, answer.consumer_count or 0

    async def publish(self, entities: Sequence[tuple[str, Sequence[float]]], *, now_s: float, key: bytes) -> float:
        """Publish a task per entity, all of one window that is under way; return when that began, in Unix seconds.

        What is returned is by this machine's clock, as the answers of the consumers are.

        Args:
            entities: Codes, and how long their providers take.
            now_s: By the database's clock: the window began a minute before.
            key: Of the database, that signs tasks.

        Raises:
            RuntimeError: RabbitMQ did not take all of them.
        """
        window = Window(int(now_s) - 60, WINDOW_S)
        destination = f"amqp:{self._names.exchange}/{TASK_KEY}"
        messages = []
        for code, seconds in entities:
            party = json.dumps({"seconds": seconds}).encode()
            message_id, body = write_task(code, MODULE, party, window, None, TIMEOUT_MS, None, 1)
            signed = {SIGNATURE: MessageKeys([key]).sign(body)}
            messages.append(Message(message_id, destination, body, headers=signed, timeout=timedelta(seconds=20)))
        broker = RabbitBroker(self._url)
        try:
            await broker.ready()
            began_s = time.time()
            outcomes = await broker.publish_many(messages)
        finally:
            await broker.aclose()
        if set(outcomes) != {Accepted()}:
            raise RuntimeError(f"not published: {set(outcomes)}")
        return began_s

    async def read_back(self) -> Counter[str]:
        """Take everything out; return how often each message id was there.

        Raises:
            TimeoutError: Nothing came for twenty seconds, and there should be more.
        """
        expected, _ = await self.waiting()
        found: Counter[str] = Counter()
        arrived = asyncio.Event()

        async def note(message: DeliveredMessage) -> None:
            found[message.header.properties.message_id or ""] += 1
            arrived.set()

        tag = (await self._channel.basic_consume(self._names.queue, note, no_ack=True)).consumer_tag
        while found.total() < expected:
            arrived.clear()
            async with asyncio.timeout(READ_SILENCE_S):
                await arrived.wait()
        await self._channel.basic_cancel(tag or "")
        return found

    async def remove(self) -> None:
        """Remove every queue and exchange of this prefix."""
        for queue in self._names.queues:
            await self._channel.queue_delete(queue)
        for exchange in (self._names.exchange, self._names.dead):
            await self._channel.exchange_delete(exchange)


async def until(look: Callable[[], Awaitable[T]], within_s: float, what: str, *, check_s: float = CHECK_S) -> T:
    """Return the first true value of ``look``.

    Raises:
        TimeoutError: There was none in time.
    """
    deadline_s = time.monotonic() + within_s
    while not (value := await look()):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"waited {within_s} s for {what}")
        await asyncio.sleep(check_s)
    return value


@asynccontextmanager
async def open_queue(url: str, prefix: str) -> AsyncIterator[TaskQueue]:
    """Make the queues, lend them, and remove them."""
    names = fanout_names(prefix)
    await prepare(url, names)
    async with aiormq.connect(url) as connection:
        queue = TaskQueue(url, names, await connection.channel())
        try:
            yield queue
        finally:
            await queue.remove()
