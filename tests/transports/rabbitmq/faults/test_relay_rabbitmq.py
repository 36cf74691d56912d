"""The relay and RabbitMQ together: what was published in a transaction reaches the queue, whatever is killed."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import uuid4

import aio_pika
import pytest

from kit.mutants import mutate
from kit.relays import RelayWorld, relay_world
from kit.servers import RabbitServer
from kit.tcp_proxy import TcpProxy
from kit.waiting import eventually_async
from tickwright.ports.broker import Accepted, Message, Refused
from tickwright.transports.rabbitmq.broker import RabbitBroker
from tickwright.transports.rabbitmq.channel import ExchangeChannel, content_header

KEYS = 7
ROWS = 3000


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[RelayWorld]:
    """A database and a receiver."""
    async with relay_world(database_url) as world:
        yield world


async def queued(url: str, name: str) -> list[tuple[str, bytes]]:
    """Take all messages out of a queue; return ``(message id, body)`` in its order."""
    found: list[tuple[str, bytes]] = []
    async with await aio_pika.connect(url) as connection, connection.channel() as channel:
        queue = await channel.get_queue(name)
        while (taken := await queue.get(fail=False, no_ack=True)) is not None:
            found.append((taken.message_id or "", taken.body))
    return found


async def test_a_broker_killed_under_the_relay_loses_nothing_and_keeps_each_keys_order(
    world: RelayWorld, mortal_rabbit: RabbitServer
) -> None:
    """Kill -9 midway and a restart: every row arrives, duplicates have the same id, keys stay in order."""
    name = f"q-{uuid4().hex}"
    async with await aio_pika.connect(mortal_rabbit.url) as connection, connection.channel() as channel:
        await channel.declare_queue(name, durable=True)
    await world.pool.execute(
        """INSERT INTO tickwright.outbox (destination, key, payload)
           SELECT $1, 'key' || n % $2, jsonb_build_object('n', n) FROM generate_series(1, $3) AS n""",
        f"amqp:/{name}",
        KEYS,
        ROWS,
    )
    ids = {f"out_{row['id']}" for row in await world.pool.fetch("SELECT id FROM tickwright.outbox")}
    broker = RabbitBroker(mortal_rabbit.url)
    relay = world.relay(brokers={"amqp": broker})
    try:
        async with world.running(relay):
            await eventually_async(lambda: relay.counters.published > ROWS // 10, 30, what="the relay is at work")
            await asyncio.to_thread(mortal_rabbit.kill9)
            await eventually_async(lambda: relay.lanes_failing > 0, 20, what="the relay noticed")
            assert await world.left() > 0, "the kill came in the middle"
            await asyncio.to_thread(mortal_rabbit.start)
            await world.emptied(60)
    finally:
        await broker.aclose()
    messages = await queued(mortal_rabbit.url, name)
    assert {one for one, _ in messages} == ids
    assert await world.dead() == []
    numbers = [json.loads(body)["n"] for _, body in messages]
    for key in range(KEYS):
        first_seen = list(dict.fromkeys(number for number in numbers if number % KEYS == key))
        assert first_seen == sorted(first_seen)


@pytest.mark.matrix
@pytest.mark.parametrize("each_way_s", [0.1, 2.0])
async def test_a_distant_rabbitmq_gets_every_message(
    world: RelayWorld, rabbit_server: RabbitServer, each_way_s: float
) -> None:
    """Slowly, or once the latency is low again: a connection may take five seconds; until then messages wait."""
    name = f"q-{uuid4().hex}"
    async with await aio_pika.connect(rabbit_server.url) as connection, connection.channel() as channel:
        await channel.declare_queue(name, durable=True)
    ids = await world.put_many(200, f"amqp:/{name}")
    async with TcpProxy("127.0.0.1", rabbit_server.port) as proxy:
        proxy.delay(each_way_s)
        broker = RabbitBroker(proxy.rewrite(rabbit_server.url))
        relay = world.relay(brokers={"amqp": broker})
        async with world.running(relay):
            if each_way_s > 1:
                await eventually_async(lambda: relay.lanes_failing > 0, 60, what="the relay reports a failing lane")
                assert await world.left() == len(ids)
                proxy.heal()
            await world.emptied(60)
        await broker.aclose()
    assert {one for one, _ in await queued(rabbit_server.url, name)} == ids
    assert await world.dead() == []


async def check_large_headers(world: RelayWorld, server: RabbitServer) -> None:
    """One row has headers that fit into no frame, among healthy ones to two exchanges."""
    name = f"q-{uuid4().hex}"
    async with await aio_pika.connect(server.url) as connection, connection.channel() as channel:
        queue = await channel.declare_queue(name, durable=True)
        exchange = await channel.declare_exchange(name, durable=True)
        await queue.bind(exchange, "k")
    insert = "INSERT INTO tickwright.outbox (destination, payload, headers) VALUES ($1, '{}', $2) RETURNING id"
    large = await world.pool.fetchval(insert, f"amqp:/{name}", json.dumps({"x-big": "a" * 200_000}))
    ids = await world.put_many(20, f"amqp:/{name}") | await world.put_many(20, f"amqp:{name}/k")
    broker = RabbitBroker(server.url)
    relay = world.relay(brokers={"amqp": broker})
    try:
        async with world.running(relay):
            await world.emptied(30)
    finally:
        await broker.aclose()
    assert {one for one, _ in await queued(server.url, name)} == ids
    assert (relay.counters.published, relay.counters.retried) == (40, 0), "no other row has lost an attempt"
    (dead,) = await world.dead()
    assert (dead["id"], dead["attempts"]) == (large, 1)
    assert dead["error_message"].startswith("too_large")


async def test_headers_that_fit_into_no_frame_cost_no_other_message_an_attempt(
    world: RelayWorld, rabbit_server: RabbitServer
) -> None:
    """RabbitMQ would close the connection, and with it lose every outstanding confirm."""
    await check_large_headers(world, rabbit_server)


async def test_the_suite_notices_a_header_frame_that_is_sent_whatever_its_size(
    world: RelayWorld, rabbit_server: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: it breaks the connection under the other messages."""
    mutate(monkeypatch, ExchangeChannel._bytes, "if len(publication.header) <= bytes_max:", "if True:")
    with pytest.raises(AssertionError):
        await check_large_headers(world, rabbit_server)


async def test_a_header_frame_has_the_size_that_the_connection_allows_and_no_more(rabbit_server: RabbitServer) -> None:
    """Headers exactly as large as a frame are taken, a byte more is refused for good, and the connection stays open."""
    name = f"q-{uuid4().hex}"
    async with await aio_pika.connect(rabbit_server.url) as connection, connection.channel() as channel:
        await channel.declare_queue(name, durable=True)
    broker = RabbitBroker(rabbit_server.url)
    try:
        small = Message("m", f"amqp:/{name}", b"{}", headers={"x": ""})
        assert await broker.publish(small) == Accepted()
        route = await broker._pool.channel("")
        assert isinstance(route, ExchangeChannel)
        room = route._channel.max_content_size - len(content_header(small))
        fits, over = (replace(small, headers={"x": "a" * size}) for size in (room, room + 1))
        assert await broker.publish(fits) == Accepted()
        refused = await broker.publish(over)
        assert isinstance(refused, Refused)
        assert (refused.code, refused.final) == ("too_large", True)
        assert await broker.publish(small) == Accepted()
        assert route.alive
    finally:
        await broker.aclose()


@pytest.mark.storm
async def test_an_unroutable_row_waits_with_a_reason_and_blocks_no_other(
    world: RelayWorld, mortal_rabbit: RabbitServer
) -> None:
    """A message to a queue that does not exist is returned by the broker: it is retried, and others are published."""
    name = f"q-{uuid4().hex}"
    lost = await world.put(f"amqp:/{name}-missing")
    async with await aio_pika.connect(mortal_rabbit.url) as connection, connection.channel() as channel:
        await channel.declare_queue(name, durable=True)
    ids = await world.put_many(50, f"amqp:/{name}")
    broker = RabbitBroker(mortal_rabbit.url)

    async def has_reason() -> bool:
        reason = await world.pool.fetchval("SELECT error_message FROM tickwright.outbox WHERE id = $1", lost)
        return reason is not None and "unroutable" in reason

    try:
        async with world.running(world.relay(brokers={"amqp": broker})):
            await eventually_async(has_reason, 20, what="the returned message says why")

            async def only_it() -> bool:
                return await world.left() == 1

            await eventually_async(only_it, 20, what="the others are published")
            async with await aio_pika.connect(mortal_rabbit.url) as connection, connection.channel() as channel:
                await channel.declare_queue(f"{name}-missing", durable=True)
            await world.emptied(20)
    finally:
        await broker.aclose()
    assert {one for one, _ in await queued(mortal_rabbit.url, name)} == ids
    assert [one for one, _ in await queued(mortal_rabbit.url, f"{name}-missing")] == [f"out_{lost}"]
