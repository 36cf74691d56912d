"""The dead letters of a queue: count, list and requeue them.

A queue has no index. Browsing takes messages one by one without acknowledging them, and closing the channel returns all
of them in order. Meanwhile other readers do not see them, so browsing is bounded.

RabbitMQ reports a channel as closed before its messages are available, because a quorum queue first writes to disk. So
browsing waits until they are available: otherwise the next call would find none.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any

from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage
from pamqp.commands import Basic

from tickwright.domain.errors import Unavailable
from tickwright.ports.broker import Accepted, Refused, Unknown
from tickwright.ports.ids import monotonic
from tickwright.ports.task_queue import DeadMessage, Peeked
from tickwright.transports.rabbitmq.channel import UNROUTABLE
from tickwright.transports.rabbitmq.connection import (
    CHANNEL_TIMEOUT_S,
    FAILURES,
    close_quietly,
    losses_as_failures,
    open_channel,
    properties_bytes,
    short_connection,
)
from tickwright.transports.rabbitmq.forwarding import (
    DIED_HEADER,
    OUR_HEADERS,
    REASON_HEADER,
    TEXT_HEADER,
    Forwarder,
    copy_of,
)
from tickwright.transports.rabbitmq.topology import Topology, declare

PEEK_MAX = 1000
BROWSE_MAX = 10_000
BODY_SHOWN_BYTES_MAX = 256 * 1024
PEEK_BYTES_MAX = 64 * 1024 * 1024
PEEK_S_MAX = 5.0
"""Other callers wait for it; only crafted messages take that long."""
REQUEUE_S_MAX = 20.0
"""Longer, because the next call reads the head of the queue again."""
TEXT_SHOWN_CHARS_MAX = 1000
RETURN_WAIT_S = 2.0
"""Longer than a write to a slow disk, shorter than a user of the dashboard waits. Another process can hold some."""
RETURN_STEP_S = 0.01

_BROKER_REASONS = {
    "delivery_limit": "Delivered again and again without an acknowledgement: consumers crashed or released it.",
    "rejected": "A consumer dead-lettered it and could not store the reason; its log has it.",
    "expired": "No consumer took it within its time to live.",
    "maxlen": "The queue was full.",
}


class RabbitDeadLetters:
    """Implements :class:`tickwright.ports.task_queue.DeadMessages`; connects for each call, one at a time.

    Bodies are shown up to 256 KiB. A peek stops after the message that reaches 64 MiB, headers included, or five
    seconds; ``Peeked.total`` counts the others too. ``requeue`` reads the oldest 10,000 and stops after the message
    that reaches twenty seconds. A message that is being requeued is in both queues for a moment; a crash then leaves
    two under one id (at least once).

    Invariants:
        RMQ-10: a dead letter is acknowledged only when its copy in the queue is confirmed.
        RMQ-11: unacknowledged messages are available when the call returns, unless another process holds some.
    """

    def __init__(self, url: str, names: Topology) -> None:
        self._url, self._names = url, names
        self._one_at_a_time = asyncio.Lock()

    async def peek(self, limit: int) -> Peeked:
        """Return the oldest dead letters, at most 1,000, in place. Those that another process reads do not count."""
        found: list[DeadMessage] = []
        room_bytes = PEEK_BYTES_MAX
        async with self._browse() as browse:
            until_s = monotonic() + PEEK_S_MAX
            async for letter in browse.oldest(min(limit, PEEK_MAX)):
                found.append(_shown(self._names, letter))
                room_bytes -= len(letter.body) + properties_bytes(letter.header.properties)
                if room_bytes <= 0 or monotonic() >= until_s:
                    break
        return Peeked(found, browse.count)

    async def requeue(self, limit: int, *, message_ids: Sequence[str] | None = None) -> list[str]:
        """Requeue dead letters, oldest first, with a new delivery count; return their ids.

        If no queue has the routing key of a message, it stays, and so do later ones of that key, which are not
        published. After twenty seconds the call returns what it has moved.

        Raises:
            Unavailable: ``rabbitmq_unavailable``, or why RabbitMQ accepts no message (``unroutable``: none of them).
                Retry; messages that were moved stay moved.
        """
        wanted = None if message_ids is None else set(message_ids)
        moved: list[str] = []
        unroutable = set[str]()
        forwarder = Forwarder(self._url, self._names, name="tickwright-requeue")
        try:
            async with self._browse() as browse:
                until_s = monotonic() + REQUEUE_S_MAX
                async for letter in browse.oldest(BROWSE_MAX):
                    key = _key(self._names, letter)
                    if key not in unroutable and (wanted is None or letter.header.properties.message_id in wanted):
                        message_id = await self._move(browse, forwarder, letter, key)
                        if message_id is None:
                            unroutable.add(key)
                        else:
                            moved.append(message_id)
                    if len(moved) >= limit or monotonic() >= until_s:
                        break
        finally:
            await forwarder.aclose()
        if unroutable and not moved:
            raise _not_taken(UNROUTABLE)
        return moved

    async def _move(self, browse: "_Browse", forwarder: Forwarder, letter: DeliveredMessage, key: str) -> str | None:
        """Move one and return its id; ``None`` if no queue has its key and it stays."""
        copy = copy_of(letter.body, letter.header.properties, {}, without=OUR_HEADERS)
        outcome = await forwarder.forward(copy, self._names.exchange, key)
        if outcome == UNROUTABLE:
            return None
        if not isinstance(outcome, Accepted):
            raise _not_taken(outcome)
        await browse.drop(letter)
        return copy.message_id

    @asynccontextmanager
    async def _browse(self) -> AsyncIterator["_Browse"]:
        async with (
            self._one_at_a_time,
            short_connection(self._url, "tickwright-dead-letters", "reading dead letters") as connection,
        ):
            channel = await open_channel(connection)
            await declare(channel, self._names)
            browse = _Browse(channel, self._names.dead, await _waiting(channel, self._names.dead))
            yield browse
            await browse.return_all(connection)


class _Browse:
    """Messages taken over one channel, and returned at the end; ``count`` were ready at the start."""

    def __init__(self, channel: AbstractChannel, queue: str, count: int) -> None:
        self.count = count
        self._channel, self._queue, self._dropped = channel, queue, 0

    async def oldest(self, most: int) -> AsyncIterator[DeliveredMessage]:
        """Take at most ``count`` messages: a consumer can dead-letter a requeued one at once."""
        for _ in range(min(most, self.count)):
            letter: DeliveredMessage = await _within(self._channel.basic_get(self._queue))
            if not isinstance(letter.delivery, Basic.GetOk):
                return
            yield letter

    async def drop(self, letter: DeliveredMessage) -> None:
        """Acknowledge it after its copy is stored."""
        await _within(self._channel.basic_ack(letter.delivery_tag or 0))
        self._dropped += 1

    async def return_all(self, connection: AbstractConnection) -> None:
        """Wait until the others are available, at most two seconds. Never raises, because the work is done."""
        await close_quietly(self._channel)
        until = monotonic() + RETURN_WAIT_S
        with suppress(*FAILURES):
            other = await open_channel(connection)
            while await _waiting(other, self._queue) < self.count - self._dropped:
                if monotonic() > until:
                    return
                await asyncio.sleep(RETURN_STEP_S)


async def _waiting(channel: AbstractChannel, queue: str) -> int:
    answer = await _within(channel.queue_declare(queue, passive=True))
    return int(answer.message_count or 0)


async def _within(answer: Any) -> Any:
    with losses_as_failures():
        async with asyncio.timeout(CHANNEL_TIMEOUT_S):
            return await answer


def _not_taken(outcome: Refused | Unknown) -> Unavailable:
    return Unavailable(outcome.code, f"RabbitMQ did not accept a requeued message: {outcome.reason}")


def _shown(names: Topology, letter: DeliveredMessage) -> DeadMessage:
    properties = letter.header.properties
    headers = properties.headers or {}
    reason, text, died_at_s = _why(names, headers)
    body = letter.body[:BODY_SHOWN_BYTES_MAX]
    return DeadMessage(properties.message_id or None, reason, text, died_at_s, body, _key(names, letter))


def _key(names: Topology, letter: DeliveredMessage) -> str:
    return names.key or str(getattr(letter.delivery, "routing_key", ""))


def _why(names: Topology, headers: Mapping[str, Any]) -> tuple[str, str, float | None]:
    """Return reason, text and instant: the broker's if the broker moved the message, ours otherwise.

    A copy that we dead-letter has no ``x-death``. If that header names one of our queues, the broker moved the message,
    and other headers come from the publisher.
    """
    deaths = headers.get("x-death")
    for death in deaths if isinstance(deaths, list) else ():
        if isinstance(death, dict) and names.consumed.fullmatch(str(death.get("queue"))):
            reason, at = str(death.get("reason")), death.get("time")
            died_at_s = at.timestamp() if isinstance(at, datetime) else None
            return reason[:TEXT_SHOWN_CHARS_MAX], _BROKER_REASONS.get(reason, ""), died_at_s
    ours, text, since = headers.get(REASON_HEADER), headers.get(TEXT_HEADER), headers.get(DIED_HEADER)
    return (
        ours[:TEXT_SHOWN_CHARS_MAX] if isinstance(ours, str) else "unknown",
        text[:TEXT_SHOWN_CHARS_MAX] if isinstance(text, str) else "",
        float(since) if isinstance(since, int) and not isinstance(since, bool) else None,
    )
