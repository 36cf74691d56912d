"""Many messages in one call to RabbitMQ: joined into few writes, and still each with its own answer."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import uuid4

import aio_pika
import pytest

from kit.servers import RabbitServer
from kit.tcp_proxy import TcpProxy
from kit.waiting import eventually_async
from tickwright.ports.broker import Accepted, Message, Outcome, Refused, Unknown
from tickwright.transports.rabbitmq import channel as route
from tickwright.transports.rabbitmq.broker import WINDOW, RabbitBroker


@pytest.fixture(autouse=True)
def nothing_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the bound on late confirms: a busy machine makes them late."""
    monkeypatch.setattr(route, "LATE_S", 600.0)


@pytest.fixture
async def broker(rabbit_server: RabbitServer) -> AsyncIterator[RabbitBroker]:
    """A broker connected to the node that all tests share."""
    broker = RabbitBroker(rabbit_server.url)
    yield broker
    await broker.aclose()


def batch(destination: str, count: int, timeout_s: float = 20, body: bytes = b"{}") -> list[Message]:
    """Return messages with ids of their own."""
    return [Message(f"m_{n}", destination, body, timeout=timedelta(seconds=timeout_s)) for n in range(count)]


def codes(outcomes: list[Outcome]) -> Counter[str]:
    """Count the outcomes by code."""
    return Counter("accepted" if isinstance(outcome, Accepted) else outcome.code for outcome in outcomes)


async def declare(url: str) -> str:
    """Declare a quorum queue and return its name."""
    async with await aio_pika.connect(url) as connection, connection.channel() as channel:
        name = f"many-{uuid4().hex}"
        await channel.declare_queue(name, durable=True, arguments={"x-queue-type": "quorum"})
        return name


async def take(url: str, name: str) -> dict[str, bytes]:
    """Take all messages out of a queue and delete it; return bodies by message id, none of which came twice."""
    found: dict[str, bytes] = {}
    async with await aio_pika.connect(url) as connection, connection.channel() as channel:
        queue = await channel.get_queue(name)
        while (taken := await queue.get(fail=False, no_ack=True)) is not None:
            assert taken.message_id not in found
            found[taken.message_id or ""] = taken.body
        await queue.delete(if_unused=False, if_empty=False)
    return found


async def test_in_a_batch_many_windows_long_each_message_has_its_own_answer(
    rabbit_server: RabbitServer, broker: RabbitBroker
) -> None:
    """Confirms come many at once and returns one by one; an unroutable message never counts as accepted."""
    queue = await declare(rabbit_server.url)
    messages = batch(f"amqp:/{queue}", 5 * WINDOW)
    lost = batch("amqp:/no-such-queue", 5 * WINDOW)
    mixed = [lost[n] if n % 7 == 0 else message for n, message in enumerate(messages)]
    outcomes = await broker.publish_many(mixed)
    assert {outcomes[n] for n in range(len(mixed)) if n % 7} == {Accepted()}
    assert codes(outcomes[::7]) == {"unroutable": len(outcomes[::7])}
    assert (await take(rabbit_server.url, queue)).keys() == {f"m_{n}" for n in range(len(mixed)) if n % 7}


async def test_bodies_of_every_size_arrive_as_they_are(rabbit_server: RabbitServer, broker: RabbitBroker) -> None:
    """Empty, one byte, one frame to the byte, many frames, and more than one write holds."""
    queue = await declare(rabbit_server.url)
    frame = 131_072 - 8
    sizes = [0, 1, frame - 1, frame, frame + 1, 3 * frame, 1_000_000]
    messages = [Message(f"m_{n}", f"amqp:/{queue}", bytes([n % 251]) * size) for n, size in enumerate(sizes * 3)]
    assert codes(await broker.publish_many(messages)) == {"accepted": len(messages)}
    assert await take(rabbit_server.url, queue) == {message.id: message.body for message in messages}


async def test_no_more_than_a_window_is_in_doubt_when_rabbitmq_falls_silent(rabbit_server: RabbitServer) -> None:
    """Five hundred may have been taken; for the rest it is certain that nothing was sent; all within the timeout."""
    queue = await declare(rabbit_server.url)
    async with TcpProxy("127.0.0.1", rabbit_server.port) as proxy:
        broker = RabbitBroker(proxy.rewrite(rabbit_server.url))
        assert await broker.publish(Message("first", f"amqp:/{queue}", b"{}")) == Accepted()
        proxy.drop_replies()
        started = asyncio.get_running_loop().time()
        outcomes = await broker.publish_many(batch(f"amqp:/{queue}", 3 * WINDOW, timeout_s=1))
        assert asyncio.get_running_loop().time() - started < 20
        assert codes(outcomes) == {"timeout": WINDOW, "broker_busy": 2 * WINDOW}
        doubted = {f"m_{n}" for n, outcome in enumerate(outcomes) if isinstance(outcome, Unknown)}
        proxy.reset()
        await broker.aclose()
    assert (await take(rabbit_server.url, queue)).keys() <= {"first", *doubted}


async def test_a_batch_that_is_interrupted_frees_its_window(rabbit_server: RabbitServer) -> None:
    """However many batches are cancelled midway, the next one finds the whole window free."""
    queue = await declare(rabbit_server.url)
    async with TcpProxy("127.0.0.1", rabbit_server.port) as proxy:
        broker = RabbitBroker(proxy.rewrite(rabbit_server.url))
        assert await broker.publish(Message("first", f"amqp:/{queue}", b"{}")) == Accepted()
        proxy.hold("to_client")
        for turns in range(30):
            task = asyncio.create_task(broker.publish_many(batch(f"amqp:/{queue}", 2 * WINDOW)))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
        started = asyncio.get_running_loop().time()
        outcomes = await broker.publish_many(batch(f"amqp:/{queue}", 2 * WINDOW, timeout_s=0.5))
        assert codes(outcomes) == {"timeout": WINDOW, "broker_busy": WINDOW}
        assert asyncio.get_running_loop().time() - started < 20
        proxy.release()
        last = [Message(f"last_{n}", f"amqp:/{queue}", b"{}") for n in range(2 * WINDOW)]
        assert codes(await broker.publish_many(last)) == {"accepted": len(last)}
        await broker.aclose()


async def test_messages_that_are_refused_before_sending_hold_no_room(
    rabbit_server: RabbitServer, broker: RabbitBroker
) -> None:
    """A window full of messages to a missing exchange is free again at once, and so is that of equal ids."""
    queue = await declare(rabbit_server.url)
    nowhere = await broker.publish_many(batch("amqp:nowhere/x", 2 * WINDOW))
    assert codes(nowhere) == {"exchange_missing": 2 * WINDOW}
    equal = await broker.publish_many([Message("one", f"amqp:/{queue}", b"{}")] * 40)
    assert codes(equal) == {"accepted": 40}
    assert codes(await broker.publish_many(batch(f"amqp:/{queue}", WINDOW, timeout_s=5))) == {"accepted": WINDOW}


async def test_an_exchange_that_is_deleted_during_a_batch_harms_no_other(
    rabbit_server: RabbitServer, broker: RabbitBroker
) -> None:
    """RabbitMQ closes one channel; further frames on that channel must not cost the connection."""
    queue, doomed_queue = await declare(rabbit_server.url), await declare(rabbit_server.url)
    name = f"x-{uuid4().hex}"
    async with await aio_pika.connect(rabbit_server.url) as connection, connection.channel() as channel:
        exchange = await channel.declare_exchange(name, durable=True)
        await (target := await channel.get_queue(doomed_queue)).bind(exchange, "go")
        steady = asyncio.create_task(broker.publish_many(batch(f"amqp:/{queue}", 6 * WINDOW)))
        doomed = asyncio.create_task(broker.publish_many(batch(f"amqp:{name}/go", 40 * WINDOW)))
        first = await eventually_async(lambda: target.get(fail=False, no_ack=True))
        await channel.exchange_delete(name)
        assert codes(await steady) == {"accepted": 6 * WINDOW}
        outcomes = await doomed
    # RabbitMQ drops the bindings first: messages between that and the exchange's deletion are returned.
    assert codes(outcomes).keys() - {"unroutable"} == {"accepted", "connection_lost", "exchange_missing"}
    accepted = {f"m_{n}" for n, outcome in enumerate(outcomes) if isinstance(outcome, Accepted)}
    refused = {f"m_{n}" for n, outcome in enumerate(outcomes) if isinstance(outcome, Refused)}
    assert first is not None
    found = {first.message_id, *await take(rabbit_server.url, doomed_queue)}
    assert accepted <= found
    assert not refused & found
    assert len(await take(rabbit_server.url, queue)) == 6 * WINDOW
