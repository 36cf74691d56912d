"""A connection to RabbitMQ for reading and forwarding messages that strangers wrote, one layer below aio-pika.

RabbitMQ looks at a few properties of a message and passes on the bytes of the others. So they are taken here as they
are, and what cannot be read is left out: a message that costs the connection comes again with the next one.
"""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiormq
from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage
from pamqp import decode
from pamqp.commands import Basic
from yarl import URL

from tickwright.domain.errors import Unavailable
from tickwright.ports.ids import monotonic
from tickwright.ports.task_queue import Delivery
from tickwright.transports.rabbitmq.connection import (
    CHANNEL_TIMEOUT_S,
    CLOSE_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    FAILURES,
    HEARTBEAT_S,
    lost_is_a_failure,
)
from tickwright.transports.rabbitmq.forwarding import delays_of

UNREADABLE_HEADER = "tickwright-unreadable"

_UNREADABLE = (ValueError, TypeError, LookupError, ArithmeticError, OSError, RecursionError, struct.error)
_BYTES = "_tickwright_bytes"
_NAME = "tickwright-name"
_SIZED = {b"S", b"x", b"A", b"F"}
"""Kinds of values that begin with their length."""
_WIDEST = 8
"""Bytes of the longest of the others."""
_unmarshal = Basic.Properties.unmarshal


def properties_bytes(properties: Basic.Properties) -> int:
    """Return how many bytes of a message that was read were its properties, headers included."""
    return getattr(properties, _BYTES, 0)


def _unmarshal_what_can_be(properties: Basic.Properties, flags: int, data: bytes) -> None:
    setattr(properties, _BYTES, len(data))
    try:
        _unmarshal(properties, flags, data)
    except _UNREADABLE:
        properties.headers = {UNREADABLE_HEADER: True}


def _value_at(data: bytes, offset: int) -> tuple[int, Any]:
    """Return how many bytes a value has, its kind included, and the value."""
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


# The library copies all that follows for each value of a table or an array: 120,000 values in one header, which anybody
# who may publish can send, hold up the process for most of a second.
decode.METHODS["table"] = decode.TABLE_MAPPING[b"F"] = _field_table
decode.METHODS["array"] = decode.TABLE_MAPPING[b"A"] = _field_array


# The library closes the connection over a timestamp beyond the year 9999 or an id that is not UTF-8. The broker then
# hands out the same message again, and every message that was in work beside it comes nearer to its delivery limit.
Basic.Properties.unmarshal = _unmarshal_what_can_be  # type: ignore[method-assign, assignment]


def _readable_name(data: bytes) -> tuple[int, str]:
    """Read a name of at most 255 bytes; the text has no more bytes than that, so that it can be sent again."""
    end = 1 + data[0]
    try:
        return end, data[1:end].decode()
    except UnicodeDecodeError:
        return end, data[1:end].decode(errors="replace").replace("\ufffd", "?")


# The same closes the connection over a routing key that is not UTF-8, which comes with a message and not in it.
decode.METHODS[_NAME] = _readable_name
for _frame in (Basic.Deliver, Basic.GetOk, Basic.Return):
    _frame._exchange = _frame._routing_key = _NAME  # noqa: SLF001


def away(doing: str) -> Unavailable:
    """Return the error of a RabbitMQ that does not answer."""
    return Unavailable("rabbitmq_unavailable", f"RabbitMQ did not answer while {doing}.")


async def dial(url: str, name: str) -> AbstractConnection:
    """Return a new connection that RabbitMQ knows as ``name``, within five seconds.

    Raises:
        One of ``FAILURES``: retry after a pause.
    """
    address = URL(url)
    if "heartbeat" not in address.query:
        address = address.update_query(heartbeat=HEARTBEAT_S)
    with lost_is_a_failure():
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            return await aiormq.connect(address, client_properties={"connection_name": name})


async def open_channel(connection: AbstractConnection, *, confirms: bool = False) -> AbstractChannel:
    """Return a new channel, within five seconds. Raises as :func:`dial` does."""
    with lost_is_a_failure():
        async with asyncio.timeout(CHANNEL_TIMEOUT_S):
            return await connection.channel(publisher_confirms=confirms)


async def hang_up(thing: AbstractConnection | AbstractChannel) -> None:
    """Close a connection or a channel within two seconds, whatever state it is in."""
    with suppress(*FAILURES), lost_is_a_failure():
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await thing.close()


def as_count(value: Any) -> int | None:
    """Return a header as a number of times, 0 to a million; ``None`` where it is none."""
    return min(value, 1_000_000) if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


# A message in a consumer's hands, and the channel that it came by: what may still be said to RabbitMQ about it.


@dataclass(eq=False, slots=True)
class Life:
    """One channel that is consumed from, until it is lost.

    Attributes:
        over: Set when it is lost, or when the queue was deleted.
        tag: Of the consumer; ``None`` while nothing can come.
        begun_s: When it was made, by the clock that does not go back.
    """

    connection: AbstractConnection
    channel: AbstractChannel
    over: asyncio.Event = field(default_factory=asyncio.Event)
    tag: str | None = None
    begun_s: float = field(default_factory=monotonic)

    @classmethod
    async def begin(cls, url: str, name: str) -> "Life":
        """Connect and open a channel. Raises one of ``FAILURES``, and then leaves no connection behind."""
        connection = await dial(url, name)
        try:
            return cls(connection, await open_channel(connection))
        except BaseException:
            await hang_up(connection)
            raise

    def is_alive(self) -> bool:
        """Whether RabbitMQ waits to hear about what came by it."""
        return not (self.over.is_set() or self.channel.is_closed or self.connection.is_closed)

    async def say(self, say: Callable[[AbstractChannel], Awaitable[Any]]) -> bool:
        """Tell RabbitMQ something; a connection that does not take it within five seconds is lost."""
        try:
            with lost_is_a_failure():
                async with asyncio.timeout(CHANNEL_TIMEOUT_S):
                    await say(self.channel)
        except FAILURES:
            self.over.set()
            return False
        return self.is_alive()

    async def counts(self, *queues: str) -> list[int] | None:
        """Return how many messages of each queue nobody holds; one that does not exist costs the channel."""
        found: list[int] = []

        async def ask(channel: AbstractChannel) -> None:
            for queue in queues:
                answer = await channel.queue_declare(queue, passive=True)
                found.append(answer.message_count or 0)

        return found if await self.say(ask) else None


@dataclass(eq=False, slots=True)
class Held:
    """A message that RabbitMQ waits to hear about.

    Attributes:
        settled: It was told, or is being told.
    """

    life: Life
    tag: int
    properties: Basic.Properties
    since_s: float
    settled: bool = False

    def is_ours(self) -> bool:
        """Whether something may be said about it."""
        return self.life.is_alive() and not self.settled

    async def ack(self) -> bool:
        """Say that nothing is left to do; false where the connection was lost."""
        self.settled = True
        return await self.life.say(lambda channel: channel.basic_ack(self.tag))

    async def give_back(self) -> bool:
        """Put it back into the queue at once."""
        self.settled = True
        return await self.life.say(lambda channel: channel.basic_nack(self.tag, requeue=True))

    async def reject(self) -> bool:
        """Let RabbitMQ move it to the dead letters."""
        self.settled = True
        return await self.life.say(lambda channel: channel.basic_reject(self.tag, requeue=False))


def delivery_of(life: Life, message: DeliveredMessage) -> Delivery:
    """Return what came, whatever its publisher has put into the properties."""
    found = message.header.properties
    headers = found.headers or {}
    return Delivery(
        body=message.body,
        headers=headers,
        message_id=found.message_id or None,
        content_encoding=found.content_encoding or None,
        deliveries=deliveries_of(headers.get("x-delivery-count"), again=bool(message.redelivered)),
        delays=delays_of(headers),
        handle=Held(life, message.delivery_tag or 0, found, monotonic()),
    )


def deliveries_of(count: Any, *, again: bool) -> int:
    """Return how often a message was handed out, this time included.

    Args:
        count: The header ``x-delivery-count``, whatever is in it. Whoever published the message may have written it,
            so it counts only where RabbitMQ says that it hands the message out again.
        again: What RabbitMQ says.
    """
    return (as_count(count) or 1) + 1 if again else 1
