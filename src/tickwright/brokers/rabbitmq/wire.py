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
from pamqp.commands import Basic
from yarl import URL

from tickwright.brokers.rabbitmq.link import (
    CHANNEL_TIMEOUT_S,
    CLOSE_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    FAILURES,
    HEARTBEAT_S,
    lost_is_a_failure,
)
from tickwright.domain.errors import Unavailable

UNREADABLE_HEADER = "tickwright-unreadable"

_UNREADABLE = (ValueError, TypeError, LookupError, ArithmeticError, OSError, RecursionError, struct.error)
_unmarshal = Basic.Properties.unmarshal


def _unmarshal_what_can_be(properties: Basic.Properties, flags: int, data: bytes) -> None:
    try:
        _unmarshal(properties, flags, data)
    except _UNREADABLE:
        properties.headers = {UNREADABLE_HEADER: True}


# The library closes the connection over a timestamp beyond the year 9999 or an id that is not UTF-8. The broker then
# hands out the same message again, and every message that was in work beside it comes nearer to its delivery limit.
Basic.Properties.unmarshal = _unmarshal_what_can_be  # type: ignore[method-assign, assignment]


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
