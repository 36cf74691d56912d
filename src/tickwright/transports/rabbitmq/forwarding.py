"""Forwards messages as they are to another queue: to be delayed, to be dead, or to be read again.

A copy counts once RabbitMQ has confirmed it and has not returned it; only then may the original be acknowledged. It
goes over a connection of its own, because RabbitMQ stops reading from whoever publishes during a memory or disk alarm,
and acknowledgements must pass meanwhile.
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
from tickwright.transports.rabbitmq.connection import CLOSE_TIMEOUT_S, FAILURES, lost_is_a_failure
from tickwright.transports.rabbitmq.raw_connection import as_count, dial, hang_up, open_channel
from tickwright.transports.rabbitmq.topology import Topology, declare

FORWARD_TIMEOUT_S = 5.0
REASON_CHARS_MAX = 100
TEXT_CHARS_MAX = 1000
DELAYS_HEADER = "tickwright-delays"
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
_AWAY = Refused("broker_unavailable", "There is no connection to RabbitMQ; nothing was sent.")
_BLOCKED = Refused("broker_blocked", "RabbitMQ takes nothing now (memory or disk alarm); nothing was sent.")
_TOO_LARGE = Refused("too_large", "The headers do not fit into a frame.", final=True)
UNROUTABLE = Refused("unroutable", "The queue does not exist.")
_NACK = Refused("broker_nack", "RabbitMQ refused the message (a queue failed).")
_LATE = Unknown("timeout", "No confirm within the timeout; it may have been taken.")
_LOST = Unknown("connection_lost", "The connection to RabbitMQ broke before the confirm.")


class Copy(NamedTuple):
    """A message to be forwarded."""

    body: bytes
    properties: Basic.Properties

    @property
    def message_id(self) -> str:
        """Of the original, or one of its own where that has none."""
        return str(self.properties.message_id)


def copy_of(body: bytes, found: Basic.Properties, headers: Mapping[str, Any], *, without: frozenset[str]) -> Copy:
    """Return the message with its id, texts and headers; what the broker adds to it stays behind.

    Left behind as well: a time to live (it would end a delay early), the user (whom the broker checks against ours),
    and headers that cannot be encoded.
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


def words_for_the_dead(reason: str, text: str, *, delays: int) -> dict[str, Any]:
    """Return the headers of a dead letter: a code, words for people, since when, and how often it was put back."""
    return {
        REASON_HEADER: reason[:REASON_CHARS_MAX],
        TEXT_HEADER: text[:TEXT_CHARS_MAX],
        DIED_HEADER: unix_seconds(),
        DELAYS_HEADER: delays,
    }


def delays_of(headers: Mapping[str, Any]) -> int:
    """Return how often a message was put back with a delay."""
    return as_count(headers.get(DELAYS_HEADER)) or 0


def counts_for_a_delay(delivery: Delivery) -> tuple[int, dict[str, Any]]:
    """Return how often a task came again without a word, the copies that it was before included; then the headers."""
    again = (as_count(delivery.headers.get(REDELIVERIES_HEADER)) or 0) + delivery.deliveries - 1
    return again, {DELAYS_HEADER: delivery.delays + 1, REDELIVERIES_HEADER: again}


class Forwarder:
    """Owns the connection that copies are published on; it is made when the first one is forwarded.

    Invariants:
        RMQ-5: ``Accepted`` means confirmed and not returned.
        RMQ-6: a call ends within ten seconds: twice five, where a queue had to be made anew.
    """

    def __init__(self, url: str, names: Topology, *, name: str = "tickwright-forward") -> None:
        self._url, self._names, self._name = url, names, name
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None
        self._opening: asyncio.Task[AbstractChannel | None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._pause = Pause()
        self._flying: dict[str, asyncio.Future[None]] = {}

    async def forward(self, copy: Copy, exchange: str, routing_key: str) -> Outcome:
        """Publish a copy; a queue or exchange that somebody deleted is made anew, once."""
        outcome = await self._publish(copy, exchange, routing_key)
        if outcome is UNROUTABLE:
            self._retire(self._channel)
            outcome = await self._publish(copy, exchange, routing_key)
        return outcome

    async def aclose(self) -> None:
        """Close the connection within two seconds. Twice is harmless."""
        under_way = {*self._closing, *([] if self._opening is None else [self._opening])}
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way, timeout=CLOSE_TIMEOUT_S)
        self._channel = None
        connection, self._connection = self._connection, None
        if connection is not None:
            await hang_up(connection)

    async def _publish(self, copy: Copy, exchange: str, routing_key: str) -> Outcome:
        late: Outcome = _AWAY
        channel: AbstractChannel | None = None
        try:
            async with asyncio.timeout(FORWARD_TIMEOUT_S):
                while (other := self._flying.get(copy.message_id)) is not None:
                    await asyncio.wait({other})  # returns are told apart by id
                if await self._blocked():
                    return _BLOCKED
                if (channel := await self._open()) is None:
                    return _AWAY
                late = _LATE
                return await self._send(channel, copy, exchange, routing_key)
        except TimeoutError:
            if late is _LATE:
                self._retire(channel)
            return late

    async def _send(self, channel: AbstractChannel, copy: Copy, exchange: str, routing_key: str) -> Outcome:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flying[copy.message_id] = done
        try:
            if len(copy.properties.marshal()) > channel.connection.connection_tune.frame_max - _FRAME_SPARE_BYTES:
                return _TOO_LARGE
            with lost_is_a_failure():
                await channel.basic_publish(
                    copy.body,
                    exchange=exchange,
                    routing_key=routing_key,
                    properties=copy.properties,
                    mandatory=True,
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
            del self._flying[copy.message_id]
            done.set_result(None)
        return _ACCEPTED

    async def _blocked(self) -> bool:
        """Whether RabbitMQ said that it takes nothing now; it says so at the first publish during an alarm."""
        if self._connection is None or self._connection.is_closed:
            return False
        try:
            async with asyncio.timeout(0):
                await self._connection.ready()
        except TimeoutError:
            return True
        return False

    async def _open(self) -> AbstractChannel | None:
        """Return the channel; a caller's timeout ends its wait for it, and not the opening."""
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
                self._connection = await dial(self._url, self._name)
            channel = await open_channel(self._connection, confirms=True)
            await declare(channel, self._names)
        except (*FAILURES, Rejected):  # whoever consumes hears and tells of what is rejected
            self._pause.failed()
            self._close(channel)
            return None
        finally:
            self._opening = None
        self._pause.succeeded()
        self._channel = channel
        return channel

    def _retire(self, channel: AbstractChannel | None) -> None:
        """Use it no more: a return that comes late must not meet another copy with the same id."""
        if channel is not None and channel is self._channel:
            self._channel = None
            self._close(channel)

    def _close(self, channel: AbstractChannel | None) -> None:
        """Close it beside everything else: RabbitMQ may not answer while a queue owes it a confirm."""
        if channel is not None:
            closing = asyncio.get_running_loop().create_task(hang_up(channel))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


def _sendable(value: Any) -> bool:
    try:
        encode_table_value(value)
    except _UNSENDABLE:
        return False
    return True
