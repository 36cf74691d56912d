"""Forwarding of messages to another queue, to delay, dead-letter or requeue them.

The original can be acknowledged once RabbitMQ has confirmed the copy and has not returned it. Copies use a separate
connection: during a memory or disk alarm RabbitMQ stops reading from publishing connections, but acknowledgements must
still arrive.
"""

import asyncio
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from pamqp.commands import Basic
from pamqp.encode import encode_table_value
from pamqp.header import ContentHeader

from tickwright.domain.errors import Rejected, Unavailable
from tickwright.ports.broker import Outcome, Unknown
from tickwright.ports.ids import random_token, unix_seconds
from tickwright.ports.task_queue import Delivery
from tickwright.transports.rabbitmq.broker import RabbitBroker
from tickwright.transports.rabbitmq.channel import MISSING, TOO_LARGE, UNROUTABLE, Publication
from tickwright.transports.rabbitmq.connection import DELAYS_HEADER, as_count
from tickwright.transports.rabbitmq.topology import Topology, prepare

FORWARD_TIMEOUT_S = 5.0
REASON_CHARS_MAX = 100
TEXT_CHARS_MAX = 1000
REDELIVERIES_HEADER = "tickwright-redeliveries"
REASON_HEADER = "tickwright-reason"
TEXT_HEADER = "tickwright-reason-text"
DIED_HEADER = "tickwright-died-at"
OUR_HEADERS = frozenset({DELAYS_HEADER, REDELIVERIES_HEADER, REASON_HEADER, TEXT_HEADER, DIED_HEADER})

_TEXTS = ("content_type", "content_encoding", "correlation_id", "reply_to", "message_type", "app_id")
_BROKERS = frozenset({
    "x-death", "x-first-death-exchange", "x-first-death-queue", "x-first-death-reason", "x-last-death-exchange",
    "x-last-death-queue", "x-last-death-reason", "x-delivery-count", "x-acquired-count",
    "CC", "BCC",  # these would send every copy to more queues
})  # fmt: skip
_UNSENDABLE = (TypeError, ValueError, OverflowError, RecursionError, struct.error)
_UNDECLARED = (MISSING, UNROUTABLE)


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
    """Publishes copies over a connection of its own; the first copy opens it.

    Invariants:
        RMQ-5: ``Accepted`` means confirmed and not returned.
        RMQ-6: a call ends within ten seconds: twice five if a queue has to be declared again.
    """

    def __init__(self, url: str, names: Topology, *, name: str = "tickwright-forward") -> None:
        self._url, self._names = url, names
        self._broker = RabbitBroker(url, name=name)
        self._declaring = asyncio.Lock()

    async def forward(self, copy: Copy, exchange: str, routing_key: str) -> Outcome:
        """Publish a copy. Declare a deleted queue or exchange again, once."""
        try:
            header = ContentHeader(body_size=len(copy.body), properties=copy.properties).marshal()
        except _UNSENDABLE:
            return TOO_LARGE
        deadline = asyncio.get_running_loop().time() + FORWARD_TIMEOUT_S

        async def publish() -> Outcome:
            publication = Publication(copy.message_id, copy.body, header, routing_key)
            [outcome] = await self._broker.send(exchange, [publication], deadline)
            if isinstance(outcome, Unknown):  # a late answer must not hold up other copies, or match a copy of one id
                self._broker.replace_channel(exchange)
            return outcome

        outcome = await publish()
        if outcome not in _UNDECLARED:
            return outcome
        deadline += FORWARD_TIMEOUT_S
        with suppress(Rejected, Unavailable, TimeoutError):  # the consumer reports a rejection
            async with asyncio.timeout_at(deadline), self._declaring:
                await prepare(self._url, self._names)
        return await publish()

    async def aclose(self) -> None:
        """Close the connections within two seconds. Repeated calls are harmless."""
        await self._broker.aclose()


def _sendable(value: Any) -> bool:
    try:
        encode_table_value(value)
    except _UNSENDABLE:
        return False
    return True
