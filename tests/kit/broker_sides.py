"""The counterpart of each broker, with one set of switches, so that one suite covers all of them."""

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Protocol
from uuid import uuid4

import aio_pika
import asyncpg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kit.kafka_polls import read_raw, set_topic
from kit.receivers import TARGETS, Gateway, HttpReceiver, Received
from kit.tcp_proxy import TcpProxy
from kit.waiting import eventually_async
from tickwright.ports.broker import Accepted, Broker, Message
from tickwright.transports.http.broker import HttpBroker
from tickwright.transports.kafka.broker import KafkaBroker
from tickwright.transports.kafka.config import KafkaConfig
from tickwright.transports.postgres.broker import PostgresBroker
from tickwright.transports.rabbitmq.broker import RabbitBroker
from tickwright.transports.websocket.broker import WebSocketBroker


class Side(Protocol):
    """A broker under test and the real server behind it."""

    broker: Broker
    destination: str

    async def refuse(self) -> None:
        """Refuse every later message."""
        ...

    async def be_silent(self) -> None:
        """Read every later message and answer none."""
        ...

    async def die(self) -> None:
        """Accept no more connections and reset the open ones."""
        ...

    async def recover(self) -> None:
        """End a refusal."""
        ...

    async def taken(self) -> list[Received]:
        """Return the messages that this side has accepted, by its own records."""
        ...


class HttpSide:
    """Callbacks to an aiohttp server."""

    def __init__(self, receiver: HttpReceiver) -> None:
        self._receiver = receiver
        self.broker: Broker = HttpBroker(allow=TARGETS)
        self.destination = receiver.url

    async def refuse(self) -> None:
        self._receiver.status = 503

    async def be_silent(self) -> None:
        self._receiver.be_silent()

    async def die(self) -> None:
        await self._receiver.stop()

    async def recover(self) -> None:
        self._receiver.status = 200
        self._receiver.received.clear()

    async def taken(self) -> list[Received]:
        return self._receiver.received if self._receiver.status == 200 else []


class WebSocketSide:
    """Pushes to an aiohttp gateway."""

    def __init__(self, gateway: Gateway, proxy: TcpProxy) -> None:
        self._gateway = gateway
        self._proxy = proxy
        self.broker: Broker = WebSocketBroker(allow=TARGETS)
        self.destination = proxy.rewrite(gateway.url)

    async def refuse(self) -> None:
        self._gateway.mood = "refuse"

    async def be_silent(self) -> None:
        self._gateway.mood = "silent"

    async def die(self) -> None:
        self._proxy.refuse()
        self._proxy.reset()

    async def recover(self) -> None:
        self._gateway.mood = "ack"
        self._gateway.received.clear()

    async def taken(self) -> list[Received]:
        return self._gateway.received if self._gateway.mood == "ack" else []


class RabbitSide:
    """An exchange with one queue on a real RabbitMQ, through a proxy that can be cut."""

    def __init__(self, url: str, proxy: TcpProxy) -> None:
        self._url = url
        self._proxy = proxy
        self._name = f"contract-{uuid4().hex}"
        self.broker: Broker = RabbitBroker(proxy.rewrite(url))
        self.destination = f"amqp:{self._name}/go"

    async def declare(self) -> None:
        """Create the exchange, the queue and the binding."""
        async with await aio_pika.connect(self._url) as connection, connection.channel() as channel:
            exchange = await channel.declare_exchange(self._name)
            queue = await channel.declare_queue(self._name)
            await queue.bind(exchange, "go")

    async def remove(self) -> None:
        """Remove what was made."""
        async with await aio_pika.connect(self._url) as connection, connection.channel() as channel:
            await channel.queue_delete(self._name)
            await channel.exchange_delete(self._name)

    async def refuse(self) -> None:
        async with await aio_pika.connect(self._url) as connection, connection.channel() as channel:
            queue = await channel.get_queue(self._name)
            await queue.unbind(self._name, "go")

    async def be_silent(self) -> None:
        self._proxy.drop_replies()

    async def die(self) -> None:
        self._proxy.refuse()
        self._proxy.reset()

    async def recover(self) -> None:
        await self.declare()

    async def taken(self) -> list[Received]:
        found: list[Received] = []
        async with await aio_pika.connect(self._url) as connection, connection.channel() as channel:
            queue = await channel.get_queue(self._name)
            while (message := await queue.get(fail=False)) is not None:
                headers = {name: str(value) for name, value in message.headers.items()}
                found.append(Received(message.message_id or "", message.body, headers))
        return found


class PostgresSide:
    """A topic in a real PostgreSQL, through a proxy that can be cut."""

    def __init__(self, pool: asyncpg.Pool, direct: asyncpg.Connection, proxy: TcpProxy) -> None:
        self._direct = direct
        self._proxy = proxy
        self.broker: Broker = PostgresBroker(pool)
        self.destination = "pg:contract.topic"

    async def refuse(self) -> None:
        await self._direct.execute("ALTER TABLE tickwright.messages ADD CONSTRAINT full_up CHECK (false) NOT VALID")

    async def be_silent(self) -> None:
        self._proxy.drop_replies()

    async def die(self) -> None:
        self._proxy.refuse()
        self._proxy.reset()

    async def recover(self) -> None:
        await self._direct.execute("ALTER TABLE tickwright.messages DROP CONSTRAINT full_up")

    async def taken(self) -> list[Received]:
        rows = await self._direct.fetch("SELECT * FROM tickwright.messages ORDER BY seq")
        return [Received(row["message_id"], row["payload"], json_object(row["headers"])) for row in rows]


class KafkaSide:
    """A topic of a real Kafka, through a proxy that can be cut."""

    def __init__(self, url: str, proxied_url: str, proxy: TcpProxy) -> None:
        self.url = url
        self._proxy = proxy
        self.topic = f"contract-{uuid4().hex}"
        self._admin = AdminClient({"bootstrap.servers": url, "log_level": 0})
        self.broker: Broker = KafkaBroker(KafkaConfig(proxied_url))
        self.destination = f"kafka:{self.topic}"

    async def make(self) -> None:
        """Create the topic."""
        made = self._admin.create_topics([NewTopic(self.topic, 2, 1)])
        await asyncio.to_thread(made[self.topic].result, 10)

        async def known() -> bool:
            found = await asyncio.to_thread(self._admin.list_topics, timeout=5)
            return self.topic in found.topics and found.topics[self.topic].error is None

        await eventually_async(known, what="the broker knows the topic")

    async def remove(self) -> None:
        """Remove it."""
        gone = self._admin.delete_topics([self.topic])
        await asyncio.to_thread(gone[self.topic].result, 10)

    async def refuse(self) -> None:
        await self._take_at_most("1")
        await eventually_async(self._refuses)

    async def be_silent(self) -> None:
        self._proxy.drop_replies()

    async def die(self) -> None:
        self._proxy.refuse()
        self._proxy.reset()

    async def recover(self) -> None:
        await self._take_at_most("1000000")

        async def takes() -> bool:
            return not await self._refuses()

        await eventually_async(takes)

    async def taken(self) -> list[Received]:
        found = await asyncio.to_thread(read_raw, self.url, self.topic)
        records = [(headers.pop("event_id").decode(), body, headers) for _, body, headers in found]
        return [
            Received(message_id, body, {name: value.decode() for name, value in headers.items()})
            for message_id, body, headers in records
            if message_id != "probe"
        ]

    async def _refuses(self) -> bool:
        """A broker applies a new setting a moment after it is made."""
        return await self.broker.publish(Message("probe", self.destination, b"{}")) != Accepted()

    async def _take_at_most(self, size_bytes: str) -> None:
        await asyncio.to_thread(set_topic, self.url, self.topic, "max.message.bytes", size_bytes)


def json_object(text: str) -> dict[str, str]:
    """Return a JSON object as a dict."""
    found: dict[str, str] = json.loads(text)
    return found


async def _http(stack: AsyncExitStack, _: pytest.FixtureRequest) -> Side:
    return HttpSide(await stack.enter_async_context(HttpReceiver()))


async def _websocket(stack: AsyncExitStack, _: pytest.FixtureRequest) -> Side:
    gateway = await stack.enter_async_context(Gateway())
    proxy = await stack.enter_async_context(TcpProxy("127.0.0.1", gateway.port))
    return WebSocketSide(gateway, proxy)


async def _rabbitmq(stack: AsyncExitStack, request: pytest.FixtureRequest) -> Side:
    server = request.getfixturevalue("rabbit_server")
    proxy = await stack.enter_async_context(TcpProxy("127.0.0.1", server.port))
    side = RabbitSide(server.url, proxy)
    await side.declare()
    stack.push_async_callback(side.remove)
    return side


async def _kafka(stack: AsyncExitStack, request: pytest.FixtureRequest) -> Side:
    server = request.getfixturevalue("kafka_server")
    proxy = TcpProxy("127.0.0.1", server.direct_port)
    proxy.port = server.proxy_port  # the address that the broker advertises
    await stack.enter_async_context(proxy)
    side = KafkaSide(server.url, server.proxied_url, proxy)
    await side.make()
    stack.push_async_callback(side.remove)
    return side


async def _postgres(stack: AsyncExitStack, request: pytest.FixtureRequest) -> Side:
    url = request.getfixturevalue("database_url")
    port = int(url.rsplit(":", 1)[1].split("/")[0])
    proxy = await stack.enter_async_context(TcpProxy("127.0.0.1", port))
    direct = await asyncpg.connect(url)
    stack.push_async_callback(direct.close)
    pool = await asyncpg.create_pool(proxy.rewrite(url), min_size=1, max_size=4)
    stack.callback(pool.terminate)
    return PostgresSide(pool, direct, proxy)


SIDES = {"http": _http, "websocket": _websocket, "rabbitmq": _rabbitmq, "kafka": _kafka, "postgres": _postgres}
