"""What every connection to RabbitMQ needs: bounds of each wait, and one kind of failure for a lost connection."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import aiormq
from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage
from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory
from aiormq.exceptions import AMQPError
from pamqp import decode
from pamqp.commands import Basic
from yarl import URL

from tickwright.domain.errors import Unavailable
from tickwright.ports.ids import monotonic
from tickwright.ports.task_queue import Delivery

CONNECT_TIMEOUT_S = 5.0
CHANNEL_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 2.0
HEARTBEAT_S = 15

FAILURES = (AMQPError, RuntimeError, OSError)  # aiormq raises RuntimeError for a closed connection or channel


@contextmanager
def losses_as_failures() -> Iterator[None]:
    """Raise one of ``FAILURES`` where the library cancels a call or raises ``Exception`` for a lost connection."""
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ConnectionError("The connection to RabbitMQ was lost.") from None
    except Exception as error:
        if type(error) is Exception:
            raise ConnectionError("The connection to RabbitMQ was lost.") from error
        raise


# Reading of messages of unknown origin.
#
# RabbitMQ checks a few properties of a message and passes the bytes of the others through. This module omits properties
# that it cannot decode: a message that breaks the connection would be redelivered on the next one.

UNREADABLE_HEADER = "tickwright-unreadable"
DELAYS_HEADER = "tickwright-delays"

_UNREADABLE = (ValueError, TypeError, LookupError, ArithmeticError, OSError, RecursionError, struct.error)
_BYTES = "_tickwright_bytes"
_NAME = "tickwright-name"
_SIZED = {b"S", b"x", b"A", b"F"}
"""Kinds of values that start with their length."""
_WIDEST = 8
"""Largest size in bytes of the other kinds."""
_unmarshal = Basic.Properties.unmarshal


def properties_bytes(properties: Basic.Properties) -> int:
    """Return the size of a received message's properties in bytes, headers included."""
    return getattr(properties, _BYTES, 0)


def _unmarshal_tolerantly(properties: Basic.Properties, flags: int, data: bytes) -> None:
    setattr(properties, _BYTES, len(data))
    try:
        _unmarshal(properties, flags, data)
    except _UNREADABLE:
        properties.headers = {UNREADABLE_HEADER: True}


def _value_at(data: bytes, offset: int) -> tuple[int, Any]:
    """Return the size of a value in bytes, including its kind, and the value."""
    sized = data[offset : offset + 1] in _SIZED
    size = int.from_bytes(data[offset + 1 : offset + 5], "big") + 4 if sized else _WIDEST
    return decode.embedded_value(data[offset : offset + 1 + size])


def _field_table(data: bytes) -> tuple[int, dict[str, Any]]:
    offset, end, found = 4, _end_of(data), {}
    while offset < end:
        after = offset + 1 + data[offset]
        if after > end:
            raise ValueError("a name is longer than its table")
        consumed, found[data[offset + 1 : after].decode()] = _value_at(data, after)
        offset = after + consumed
    return offset, found


def _field_array(data: bytes) -> tuple[int, list[Any]]:
    offset, end, found = 4, _end_of(data), []
    while offset < end:
        consumed, value = _value_at(data, offset)
        offset += consumed
        found.append(value)
    return offset, found


def _end_of(data: bytes) -> int:
    end = 4 + int.from_bytes(data[:4], "big")
    if not 4 <= end <= len(data):
        raise ValueError("a table or an array is longer than what holds it")
    return end


# For each value of a table or an array, the library copies all bytes that follow: 120,000 values in one header block
# the process for most of a second.
decode.METHODS["table"] = decode.TABLE_MAPPING[b"F"] = _field_table
decode.METHODS["array"] = decode.TABLE_MAPPING[b"A"] = _field_array


# The library closes the connection on a timestamp beyond the year 9999 or an id that is not UTF-8. RabbitMQ then
# delivers the message again, and every other unacknowledged message comes closer to its delivery limit.
Basic.Properties.unmarshal = _unmarshal_tolerantly  # type: ignore[method-assign, assignment]


def _readable_name(data: bytes) -> tuple[int, str]:
    """Read a name. Its text has at most 255 bytes, so that it can be sent again."""
    end = 1 + data[0]
    try:
        return end, data[1:end].decode()
    except UnicodeDecodeError:
        return end, data[1:end].decode(errors="replace").replace("\ufffd", "?")


# The library also closes the connection on a routing key that is not UTF-8.
decode.METHODS[_NAME] = _readable_name
for _frame in (Basic.Deliver, Basic.GetOk, Basic.Return):
    _frame._exchange = _frame._routing_key = _NAME  # noqa: SLF001


def unanswered(doing: str) -> Unavailable:
    """Return the error for a RabbitMQ that does not answer."""
    return Unavailable("rabbitmq_unavailable", f"RabbitMQ did not answer while {doing}.")


class _Sockets(TransportFactory):
    """Opens the socket of one connection and keeps it for ``abort``."""

    def __init__(self, inner: TransportFactory) -> None:
        self._inner = inner
        self._writer: asyncio.StreamWriter | None = None

    async def create(self, url: URL, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open the socket."""
        reader, self._writer = await self._inner.create(url, **options)
        return reader, self._writer

    def abort(self) -> None:
        """Abort the socket, with all unsent data. Repeated calls are harmless."""
        if self._writer is not None:
            self._writer.transport.abort()


class AbortableConnection(aiormq.Connection):
    """A connection that can be aborted: RabbitMQ does not answer a close on a connection that it does not read."""

    def __init__(self, url: URL, **options: Any) -> None:
        self.sockets = _Sockets(TLSTransportFactory() if url.scheme == "amqps" else TCPTransportFactory())
        super().__init__(url, transport_factory=self.sockets, **options)


async def connect(url: str, name: str) -> AbortableConnection:
    """Return a new connection with this name, within five seconds. Raises one of ``FAILURES``: retry after a pause."""
    address = URL(url)
    if "heartbeat" not in address.query:
        address = address.update_query(heartbeat=HEARTBEAT_S)
    connection = AbortableConnection(address, client_properties={"connection_name": name})
    with losses_as_failures():
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await connection.connect()
    return connection


async def is_blocked(connection: AbstractConnection | None) -> bool:
    """Return whether RabbitMQ accepts no messages now (memory or disk alarm); it reports that at the first publish."""
    if connection is None or connection.is_closed:
        return False
    try:
        async with asyncio.timeout(0):
            await connection.ready()
    except TimeoutError:
        return True
    return False


async def cancel_all(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    """Cancel tasks, and wait for them for two seconds at most."""
    under_way = set(tasks)
    for task in under_way:
        task.cancel()
    if under_way:
        await asyncio.wait(under_way, timeout=CLOSE_TIMEOUT_S)


async def open_channel(connection: AbstractConnection, *, confirms: bool = False) -> AbstractChannel:
    """Return a new channel, within five seconds. Raises what :func:`connect` raises."""
    with losses_as_failures():
        async with asyncio.timeout(CHANNEL_TIMEOUT_S):
            return await connection.channel(publisher_confirms=confirms)


async def close_quietly(opened: AbstractConnection | AbstractChannel) -> None:
    """Close a connection or a channel within two seconds; never raises."""
    with suppress(*FAILURES), losses_as_failures():
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await opened.close()


@asynccontextmanager
async def short_connection(url: str, name: str, doing: str) -> AsyncIterator[AbstractConnection]:
    """Connect for one task, then close. Raises ``Unavailable`` (``rabbitmq_unavailable``): retry."""
    try:
        connection = await connect(url, name)
    except FAILURES:
        raise unanswered("connecting") from None
    try:
        yield connection
    except FAILURES:
        raise unanswered(doing) from None
    finally:
        await close_quietly(connection)


def as_count(value: Any) -> int | None:
    """Return a header as a count, 0 to a million; ``None`` if it is not one."""
    return min(value, 1_000_000) if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


@dataclass(eq=False, slots=True)
class Subscription:
    """One channel with a consumer, until it is lost.

    Attributes:
        over: Set when the channel is lost or the queue was deleted.
        tag: Of the consumer; ``None`` while no message can arrive.
    """

    connection: AbstractConnection
    channel: AbstractChannel
    over: asyncio.Event = field(default_factory=asyncio.Event)
    tag: str | None = None
    begun_s: float = field(default_factory=monotonic)

    @classmethod
    async def open(cls, url: str, name: str) -> "Subscription":
        """Connect and open a channel. If it raises one of ``FAILURES``, it leaves no connection open."""
        connection = await connect(url, name)
        try:
            return cls(connection, await open_channel(connection))
        except BaseException:
            await close_quietly(connection)
            raise

    def is_alive(self) -> bool:
        """Whether messages of this channel can still be settled."""
        return not (self.over.is_set() or self.channel.is_closed or self.connection.is_closed)

    async def send(self, request: Callable[[AbstractChannel], Awaitable[Any]]) -> bool:
        """Send a request. A connection that does not accept it within five seconds is lost."""
        try:
            with losses_as_failures():
                async with asyncio.timeout(CHANNEL_TIMEOUT_S):
                    await request(self.channel)
        except FAILURES:
            self.over.set()
            return False
        return self.is_alive()

    async def counts(self, *queues: str) -> list[int] | None:
        """Return the number of ready messages of each queue. A missing queue closes the channel."""
        found: list[int] = []

        async def ask(channel: AbstractChannel) -> None:
            for queue in queues:
                answer = await channel.queue_declare(queue, passive=True)
                found.append(answer.message_count or 0)

        return found if await self.send(ask) else None


@dataclass(eq=False, slots=True)
class UnackedMessage:
    """A message that is not settled yet; ``settled`` is true while it is being settled."""

    subscription: Subscription
    tag: int
    properties: Basic.Properties
    since_s: float
    settled: bool = False

    def can_settle(self) -> bool:
        """Whether it may be settled."""
        return self.subscription.is_alive() and not self.settled

    async def ack(self) -> bool:
        """Acknowledge it; false if the connection was lost."""
        self.settled = True
        return await self.subscription.send(lambda channel: channel.basic_ack(self.tag))

    async def requeue(self) -> bool:
        """Return it to the queue at once."""
        self.settled = True
        return await self.subscription.send(lambda channel: channel.basic_nack(self.tag, requeue=True))

    async def reject(self) -> bool:
        """Make RabbitMQ dead-letter it."""
        self.settled = True
        return await self.subscription.send(lambda channel: channel.basic_reject(self.tag, requeue=False))


def delivery_of(subscription: Subscription, message: DeliveredMessage) -> Delivery:
    """Return a received message as a delivery, whatever its properties contain."""
    found = message.header.properties
    headers = found.headers or {}
    return Delivery(
        body=message.body,
        headers=headers,
        message_id=found.message_id or None,
        content_encoding=found.content_encoding or None,
        deliveries=deliveries_of(headers.get("x-delivery-count"), again=bool(message.redelivered)),
        delays=delays_of(headers),
        handle=UnackedMessage(subscription, message.delivery_tag or 0, found, monotonic()),
    )


def delays_of(headers: Mapping[str, Any]) -> int:
    """Return how often a message was delayed."""
    return as_count(headers.get(DELAYS_HEADER)) or 0


def deliveries_of(count: Any, *, again: bool) -> int:
    """Return the number of deliveries. A publisher can write ``count``, so it is used only for redeliveries."""
    return (as_count(count) or 1) + 1 if again else 1
