"""Forwarding of messages to another queue, to delay, dead-letter or requeue them.

The original can be acknowledged once RabbitMQ has confirmed the copy and has not returned it. Copies use a separate
connection: during a memory or disk alarm RabbitMQ stops reading from publishing connections, but acknowledgements must
still arrive.
"""

import asyncio
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from aiormq.abc import AbstractChannel, AbstractConnection
from aiormq.exceptions import ChannelNotFoundEntity, DeliveryError, PublishError
from pamqp.commands import Basic
from pamqp.encode import encode_table_value

from tickwright.domain.errors import Rejected
from tickwright.outbound import Pause
from tickwright.ports.broker import Accepted, Outcome, Refused, Unknown
from tickwright.ports.ids import random_token, unix_seconds
from tickwright.ports.task_queue import Delivery
from tickwright.transports.rabbitmq.connection import (
    DELAYS_HEADER,
    FAILURES,
    as_count,
    cancel_all,
    close_quietly,
    connect,
    is_blocked,
    losses_as_failures,
    open_channel,
)
from tickwright.transports.rabbitmq.topology import Topology, declare

FORWARD_TIMEOUT_S = 5.0
REASON_CHARS_MAX = 100
TEXT_CHARS_MAX = 1000
REDELIVERIES_HEADER = "tickwright-redeliveries"
REASON_HEADER = "tickwright-reason"
TEXT_HEADER = "tickwright-reason-text"
DIED_HEADER = "tickwright-died-at"
OUR_HEADERS = frozenset({DELAYS_HEADER, REDELIVERIES_HEADER, REASON_HEADER, TEXT_HEADER, DIED_HEADER})

_FRAME_SPARE_BYTES = 1024
_TEXTS = ("content_type", "content_encoding", "correlation_id", "reply_to", "message_type", "app_id")
_BROKERS = frozenset({
    "x-death", "x-first-death-exchange", "x-first-death-queue", "x-first-death-reason", "x-last-death-exchange",
    "x-last-death-queue", "x-last-death-reason", "x-delivery-count", "x-acquired-count",
    "CC", "BCC",  # these would send every copy to more queues
})  # fmt: skip
_UNSENDABLE = (TypeError, ValueError, OverflowError, RecursionError, struct.error)
_ACCEPTED = Accepted()
_UNAVAILABLE = Refused("broker_unavailable", "There is no connection to RabbitMQ; nothing was sent.")
_BLOCKED = Refused("broker_blocked", "RabbitMQ accepts no messages now (memory or disk alarm); nothing was sent.")
_TOO_LARGE = Refused("too_large", "The headers do not fit into a frame.", final=True)
UNROUTABLE = Refused("unroutable", "The queue does not exist.")
_NACK = Refused("broker_nack", "RabbitMQ refused the message (a queue failed).")
_LATE = Unknown("timeout", "No confirm within the timeout; it may have been taken.")
_LOST = Unknown("connection_lost", "The connection to RabbitMQ broke before the confirm.")


class Copy(NamedTuple):
    """A message to forward."""

    body: bytes
    properties: Basic.Properties

    @property
    def message_id(self) -> str:
        """The original's id, or a generated one."""
        return str(self.properties.message_id)


def copy_of(body: bytes, found: Basic.Properties, headers: Mapping[str, Any], *, without: frozenset[str]) -> Copy:
    """Return the message with its id, texts and headers, without what the broker added.

    Also omitted: the time to live (it would end a delay early), the user id (the broker compares it with ours), and
    headers that cannot be encoded.
    """
    kept = {
        name: value
        for name, value in (found.headers or {}).items()
        if name not in _BROKERS and name not in without and _sendable(value)
    }
    texts = {name: getattr(found, name) for name in _TEXTS}
    properties = Basic.Properties(
        **texts,
        headers={**kept, **headers},
        delivery_mode=2,
        priority=found.priority,
        timestamp=found.timestamp,
        message_id=found.message_id or f"none_{random_token(12)}",
    )
    return Copy(body, properties)


def dead_letter_headers(reason: str, text: str, *, delays: int) -> dict[str, Any]:
    """Return the headers of a dead letter: reason code, text, time and number of delays."""
    return {
        REASON_HEADER: reason[:REASON_CHARS_MAX],
        TEXT_HEADER: text[:TEXT_CHARS_MAX],
        DIED_HEADER: unix_seconds(),
        DELAYS_HEADER: delays,
    }


def delay_headers(delivery: Delivery) -> tuple[int, dict[str, Any]]:
    """Return the number of redeliveries, including earlier copies, and the headers of the next copy."""
    again = (as_count(delivery.headers.get(REDELIVERIES_HEADER)) or 0) + delivery.deliveries - 1
    return again, {DELAYS_HEADER: delivery.delays + 1, REDELIVERIES_HEADER: again}


class Forwarder:
    """Owns the connection for copies; the first copy opens it.

    Invariants:
        RMQ-5: ``Accepted`` means confirmed and not returned.
        RMQ-6: a call ends within ten seconds: twice five if a queue has to be declared again.
    """

    def __init__(self, url: str, names: Topology, *, name: str = "tickwright-forward") -> None:
        self._url, self._names, self._name = url, names, name
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None
        self._opening: asyncio.Task[AbstractChannel | None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._pause = Pause()
        self._in_flight: dict[str, asyncio.Future[None]] = {}

    async def forward(self, copy: Copy, exchange: str, routing_key: str) -> Outcome:
        """Publish a copy. Declare a deleted queue or exchange again, once."""
        outcome = await self._publish(copy, exchange, routing_key)
        if outcome is UNROUTABLE:
            self._retire(self._channel)
            outcome = await self._publish(copy, exchange, routing_key)
        return outcome

    async def aclose(self) -> None:
        """Close the connection within two seconds. Repeated calls are harmless."""
        await cancel_all([*self._closing, *(() if self._opening is None else (self._opening,))])
        self._channel = None
        connection, self._connection = self._connection, None
        if connection is not None:
            await close_quietly(connection)

    async def _publish(self, copy: Copy, exchange: str, routing_key: str) -> Outcome:
        late: Outcome = _UNAVAILABLE
        channel: AbstractChannel | None = None
        try:
            async with asyncio.timeout(FORWARD_TIMEOUT_S):
                while (other := self._in_flight.get(copy.message_id)) is not None:
                    await asyncio.wait({other})  # the id identifies a return
                if await is_blocked(self._connection):
                    return _BLOCKED
                if (channel := await self._open()) is None:
                    return _UNAVAILABLE
                late = _LATE
                return await self._send(channel, copy, exchange, routing_key)
        except TimeoutError:
            if late is _LATE:
                self._retire(channel)
            return late

    async def _send(self, channel: AbstractChannel, copy: Copy, exchange: str, routing_key: str) -> Outcome:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._in_flight[copy.message_id] = done
        try:
            if len(copy.properties.marshal()) > channel.connection.connection_tune.frame_max - _FRAME_SPARE_BYTES:
                return _TOO_LARGE
            with losses_as_failures():
                await channel.basic_publish(
                    copy.body, exchange=exchange, routing_key=routing_key, properties=copy.properties, mandatory=True
                )
        except _UNSENDABLE:
            return _TOO_LARGE
        except ChannelNotFoundEntity:
            return UNROUTABLE
        except DeliveryError as error:
            return UNROUTABLE if isinstance(error, PublishError) else _NACK
        except FAILURES:
            return _LOST
        finally:
            del self._in_flight[copy.message_id]
            done.set_result(None)
        return _ACCEPTED

    async def _open(self) -> AbstractChannel | None:
        """Return the channel. A caller's timeout interrupts the wait, not the opening."""
        if self._channel is not None and not self._channel.is_closed:
            return self._channel
        if self._opening is None:
            if self._pause.remaining() is not None:
                return None
            self._opening = asyncio.get_running_loop().create_task(self._make())
        return await asyncio.shield(self._opening)

    async def _make(self) -> AbstractChannel | None:
        channel = None
        try:
            if self._connection is None or self._connection.is_closed:
                self._connection = await connect(self._url, self._name)
            channel = await open_channel(self._connection, confirms=True)
            await declare(channel, self._names)
        except (*FAILURES, Rejected):  # the consumer reports a rejection
            self._pause.failed()
            self._close(channel)
            return None
        finally:
            self._opening = None
        self._pause.succeeded()
        self._channel = channel
        return channel

    def _retire(self, channel: AbstractChannel | None) -> None:
        """Stop using the channel: a late return must not match another copy with the same id."""
        if channel is not None and channel is self._channel:
            self._channel = None
            self._close(channel)

    def _close(self, channel: AbstractChannel | None) -> None:
        """Close it in the background, because RabbitMQ may not answer while a confirm is outstanding."""
        if channel is not None:
            closing = asyncio.get_running_loop().create_task(close_quietly(channel))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


def _sendable(value: Any) -> bool:
    try:
        encode_table_value(value)
    except _UNSENDABLE:
        return False
    return True
