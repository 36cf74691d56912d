"""A connection to RabbitMQ for reading and forwarding messages that strangers wrote, one layer below aio-pika.

RabbitMQ looks at a few properties of a message and passes on the bytes of the others. So they are taken here as they
are, and what cannot be read is left out: a message that costs the connection comes again with the next one.
"""

import asyncio
import struct
from contextlib import suppress
from typing import Any

import aiormq
from aiormq.abc import AbstractChannel, AbstractConnection
from pamqp import decode
from pamqp.commands import Basic
from yarl import URL

from tickwright.domain.errors import Unavailable
from tickwright.transports.rabbitmq.connection import (
    CHANNEL_TIMEOUT_S,
    CLOSE_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    FAILURES,
    HEARTBEAT_S,
    lost_is_a_failure,
)

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
