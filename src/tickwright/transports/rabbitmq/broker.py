"""RabbitMQ: confirmed, mandatory, persistent publishes with one outcome per message.

The confirm, the return and the state of the connection decide. *Accepted* needs a confirm and no return, because
RabbitMQ also confirms messages that it could not route. While RabbitMQ is unavailable or blocked, messages are refused
at once and do not accumulate. Messages to a destination that confirms late use another connection.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Coroutine, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import timedelta
from itertools import repeat
from typing import Any, TypeVar

import structlog

from tickwright.domain.errors import Rejected
from tickwright.domain.targets import AmqpTarget, parse_target
from tickwright.outbound import ConnectPause
from tickwright.ports.broker import Message, Outcome, Refused, Unknown
from tickwright.transports.rabbitmq.channel import (
    NO_CONFIRM,
    ConfirmObserver,
    ExchangeChannel,
    Publication,
    content_header,
)
from tickwright.transports.rabbitmq.connection import (
    CHANNEL_TIMEOUT_S,
    FAILURES,
    AbortableConnection,
    cancel_all,
    close_quietly,
    connect,
    is_blocked,
    losses_as_failures,
)

# The publishing connection: opened on demand, reopened after a pause; every wait is bounded.

DRAIN_S_MAX = 30.0
CHANNELS_MAX = 128

T = TypeVar("T")
_log = structlog.get_logger("tickwright.rabbitmq")


def unavailable(wait: timedelta | None = None) -> Refused:
    """Return the outcome while there is no connection."""
    reason = "There is no connection to RabbitMQ; nothing was sent."
    return Refused("broker_unavailable", reason, retry_after=wait)


class ChannelPool:
    """Owns one connection and one channel per exchange.

    It does not reconnect by itself: while it did, a publish would wait or fail, but a relay needs *refused, nothing was
    sent* at once.

    Args:
        observer: Every channel notifies it.
        channels_max: Above this number, idle channels are closed.
        full: The answer if no channel is idle; ``None`` opens another one anyway.
    """

    def __init__(
        self,
        url: str,
        observer: ConfirmObserver,
        *,
        name: str,
        channels_max: int = CHANNELS_MAX,
        full: Refused | None = None,
    ) -> None:
        self._url, self._observer, self._name = url, observer, name
        self._channels_max, self._full = channels_max, full
        self._connection: AbortableConnection | None = None
        self._connecting: asyncio.Task[AbortableConnection | Refused] | None = None
        self._channels: dict[tuple[str, str | None], ExchangeChannel] = {}
        self._opening: dict[tuple[str, str | None], asyncio.Task[ExchangeChannel | Refused]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._pause = ConnectPause()

    async def channel(self, exchange: str, key: str | None = None) -> ExchangeChannel | Refused:
        """Return an open channel, or a separate one for ``key``. A deadline interrupts the wait, not the opening."""
        channel = self._channels.get((exchange, key))
        if channel is not None and channel.alive and self._connection is not None and not self._connection.is_closed:
            return channel
        opening = self._opening.get((exchange, key))
        if opening is None:
            opening = self._opening[exchange, key] = _start(self._open(exchange, key))
        return await asyncio.shield(opening)

    def has(self, channel: ExchangeChannel) -> bool:
        """Whether this channel is in use."""
        return any(used is channel for used in self._channels.values())

    def drop(self, exchange: str, key: str | None = None) -> None:
        """Close a channel; the next call of ``channel`` opens a new one."""
        channel = self._channels.pop((exchange, key), None)
        if channel is not None:
            self.run_aside(channel.aclose())

    def retire(self) -> None:
        """Use another connection from now on. The old one closes after its callers have their answers or gave up."""
        connection, self._connection = self._connection, None
        channels = [*self._channels.values()]
        self._channels.clear()
        for channel in channels:
            channel.retire()
        if connection is not None:
            _log.warning("rabbitmq.connection_retired", connection=self._name)
            self.run_aside(_drain(connection, channels))

    async def connection(self) -> AbortableConnection | Refused:
        """Return the open connection, or a refusal while RabbitMQ is unavailable."""
        if self._connection is not None and not self._connection.is_closed:
            return self._connection
        if self._connecting is None:
            wait = self._pause.remaining()
            if wait is not None:
                return unavailable(wait)
            self._connecting = _start(self._connect())
        return await asyncio.shield(self._connecting)

    async def blocked(self) -> bool:
        """Whether RabbitMQ accepts no messages now (memory or disk alarm)."""
        return await is_blocked(self._connection)

    async def aclose(self) -> None:
        """Close the connection within two seconds. Repeated calls are harmless."""
        connecting = () if self._connecting is None else (self._connecting,)
        await cancel_all([*self._opening.values(), *self._closing, *connecting])
        connection, self._connection = self._connection, None
        self._channels.clear()
        if connection is not None:
            await _close(connection)

    async def _connect(self) -> AbortableConnection | Refused:
        try:
            if self._connection is not None:
                old, self._connection = self._connection, None
                self.run_aside(_close(old))
            self._connection = await connect(self._url, self._name)
        except FAILURES:
            self._pause.failed()
            return unavailable()
        finally:
            self._connecting = None
        self._pause.succeeded()
        return self._connection

    async def _open(self, exchange: str, key: str | None) -> ExchangeChannel | Refused:
        try:
            while True:
                connection = await self.connection()
                if isinstance(connection, Refused):
                    return connection
                if not self._make_room() and self._full is not None:
                    return self._full
                try:
                    with losses_as_failures():
                        async with asyncio.timeout(CHANNEL_TIMEOUT_S):
                            channel = await ExchangeChannel.open(connection, exchange, self._observer)
                except FAILURES as error:
                    if connection is not self._connection:
                        continue  # it was retired during the call
                    if isinstance(error, TimeoutError):
                        self.retire()
                    return unavailable()
                if isinstance(channel, Refused) or connection is self._connection:
                    break
        finally:
            del self._opening[exchange, key]
        if isinstance(channel, ExchangeChannel):
            self._channels[exchange, key] = channel
        return channel

    def _make_room(self) -> bool:
        while len(self._channels) >= self._channels_max:
            idle = next((name for name, channel in self._channels.items() if channel.idle), None)
            if idle is None:
                return False
            self.run_aside(self._channels.pop(idle).aclose())
        return True

    def run_aside(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it in the background; ``aclose`` cancels it."""
        task = _start(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _start(work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    return asyncio.get_running_loop().create_task(work)


async def _drain(connection: AbortableConnection, channels: Sequence[ExchangeChannel]) -> None:
    """Wait for outstanding answers, then close."""
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S_MAX):
                while waited := [answer for channel in channels for answer in channel.in_flight]:
                    await asyncio.wait(waited)
        await _close(connection)
    finally:
        connection.sockets.abort()


async def _close(connection: AbortableConnection) -> None:
    try:
        await close_quietly(connection)
    finally:
        connection.sockets.abort()


# Stalled destinations, whose confirms are late, and the connection that carries their messages.
#
# RabbitMQ stops reading a connection on which one queue owes too many confirms. So such a queue shares no channel and
# no connection with healthy ones. docs/adr/0028-silent-queues.md has the reasons.

STALLED_WINDOW = 16
"""Unconfirmed messages per stalled destination: half of the number at which RabbitMQ stops reading the channel."""
STALLED_CHANNELS_MAX = 1000
STALLED_MAX = 10_000
STALLED_WAIT_S = 10.0
"""How long messages wait for a slot behind a late one; then others are refused at once."""
RENEW_S = 60.0
"""A channel whose confirms are late for longer is replaced: they may never arrive, even if the queue recovers."""

BLOCKED = Refused("broker_blocked", "RabbitMQ accepts no messages now (memory or disk alarm); nothing was sent.")
STALLED = Refused("broker_silent", "RabbitMQ has not confirmed earlier messages to this destination; nothing was sent.")


class StalledDestinations(ConfirmObserver):
    """Publishes to stalled destinations over a separate connection, one channel each, until they confirm again.

    Invariants:
        RMQ-12: at most 16 messages to one stalled destination wait for a confirm on one channel, including those
            whose callers gave up; while one of them is late for ten seconds, others are refused at once.
    """

    def __init__(self, url: str, *, name: str) -> None:
        self._keys: dict[tuple[str, str], None] = {}
        self._pool = ChannelPool(url, self, name=name, channels_max=STALLED_CHANNELS_MAX, full=STALLED)

    def __bool__(self) -> bool:
        """Whether any destination is stalled."""
        return bool(self._keys)

    def has(self, exchange: str, routing_key: str) -> bool:
        """Whether this destination is stalled."""
        return (exchange, routing_key) in self._keys

    def add(self, exchange: str, routing_keys: AbstractSet[str]) -> None:
        """Use the separate connection for these destinations from now on."""
        for key in routing_keys:
            if (exchange, key) not in self._keys:
                _log.warning("rabbitmq.destination_stalled", destination=f"amqp:{exchange}/{key}")
                self._keys[exchange, key] = None
        while len(self._keys) > STALLED_MAX:
            del self._keys[next(iter(self._keys))]

    def confirmed(self, channel: ExchangeChannel, routing_key: str) -> None:
        """Return the destination to the ordinary connection, unless other messages are still late."""
        if not channel.late_count and (channel.exchange, routing_key) in self._keys:
            del self._keys[channel.exchange, routing_key]
            _log.info("rabbitmq.destination_confirms", destination=f"amqp:{channel.exchange}/{routing_key}")

    async def send(self, exchange: str, routing_key: str, publications: deque[Publication]) -> None:
        """Send as fast as the small window allows, or set ``refused`` on the rest.

        If any remain in ``publications``, the destination confirms again: send those over the ordinary connection.
        """
        while publications and self.has(exchange, routing_key):
            channel = await self._pool.channel(exchange, routing_key)
            refused = await self._refused(channel)
            if refused is not None or isinstance(channel, Refused):
                for publication in publications:
                    publication.refused = refused
                publications.clear()
                return
            if channel.late_for_s >= RENEW_S:
                self._pool.drop(exchange, routing_key)
                continue
            some = channel.next_batch(publications, STALLED_WINDOW - channel.unconfirmed_count)
            if not some:
                await channel.wait_for_room()
                continue
            await channel.send(some, _nothing)
            for _ in repeat(None, sum(publication.answer is not None for publication in some)):
                publications.popleft()

    async def aclose(self) -> None:
        """Close the connection within two seconds. Repeated calls are harmless."""
        await self._pool.aclose()

    async def _refused(self, channel: ExchangeChannel | Refused) -> Refused | None:
        if isinstance(channel, Refused):
            return channel
        if await self._pool.blocked():
            return BLOCKED
        return STALLED if STALLED_WAIT_S <= channel.late_for_s < RENEW_S else None


def _nothing() -> None:
    """Do nothing: the stalled window has no slots to free."""


WINDOW = 500
LATE_MAX = 16
"""Late confirms of one channel that retire the connection. RabbitMQ stops reading the channel at 32 of one queue."""
BODY_BYTES_MAX = 16 * 1024 * 1024
ID_BYTES_MAX = 255

_CLOSED = Refused("broker_closed", "This broker was closed; nothing was sent.")
_NOT_SENT = Refused("broker_busy", "RabbitMQ could not be handed the message in time; nothing was sent.")
_LATE = Unknown("timeout", "No confirm within the timeout; it may have been taken.")


class RabbitBroker(ConfirmObserver):
    """Publishes to exchanges.

    Args:
        url: ``amqp://user:password@host:port/vhost`` or ``amqps://…``.
        name: Of the connection, for operators.

    Invariants:
        RMQ-3: at most 500 messages wait for a confirm at one time; late messages and stalled destinations do not count.
        RMQ-4: a publish ends within ``message.timeout``, whatever RabbitMQ does.
    """

    schemes = frozenset({"amqp"})

    def __init__(self, url: str, *, name: str = "tickwright-publish") -> None:
        self._pool = ChannelPool(url, self, name=name)
        self._stalled = StalledDestinations(url, name=f"{name}-silent")
        self._window = asyncio.Semaphore(WINDOW)
        self._closed = False

    def check(self, destination: str) -> None:
        """Raise ``Rejected`` unless ``destination`` is ``amqp:EXCHANGE/ROUTING_KEY``."""
        _target(destination)

    async def publish(self, message: Message) -> Outcome:
        """Publish one message and return its outcome."""
        return (await self.publish_many([message]))[0]

    async def publish_many(self, messages: Sequence[Message]) -> list[Outcome]:
        """Publish several in few writes, with a window of 500 outstanding confirms; outcomes in order."""
        if self._closed:
            return [_CLOSED] * len(messages)
        outcomes: list[Outcome] = [_CLOSED] * len(messages)
        batches: defaultdict[tuple[str, float], dict[int, Publication]] = defaultdict(dict)
        for n, message in enumerate(messages):
            try:
                target = _target(message.destination)
                _check(message)
                publication = Publication(message.id, message.body, content_header(message), target.routing_key)
            except Rejected as error:
                outcomes[n] = Refused(error.code, error.message, final=True)
                continue
            batches[target.exchange, message.timeout.total_seconds()][n] = publication
        await asyncio.gather(*(self._send(batch, publications, outcomes) for batch, publications in batches.items()))
        return outcomes

    async def send(self, exchange: str, publications: Sequence[Publication], deadline: float) -> list[Outcome]:
        """Send to one exchange; return the outcomes in order, before ``deadline`` (clock of the event loop)."""
        return await PublishBatch(self._pool, self._stalled, self._window, exchange, publications).send(deadline)

    async def ready(self) -> bool:
        """Whether a connection that accepts messages exists, or can be opened within a second."""
        if self._closed:
            return False
        try:
            async with asyncio.timeout(1):
                connection = await self._pool.connection()
                return not isinstance(connection, Refused) and not await self._pool.blocked()
        except TimeoutError:
            return False

    async def aclose(self) -> None:
        """Close the connections within a few seconds. Repeated calls are harmless."""
        self._closed = True
        await asyncio.gather(self._pool.aclose(), self._stalled.aclose())

    def replace_channel(self, exchange: str) -> None:
        """Publish to an exchange over another channel from now on."""
        self._pool.drop(exchange)

    def late(self, channel: ExchangeChannel, routing_keys: set[str]) -> None:
        """Move destinations whose confirms are late to the other connection; called by channels."""
        self._pool.run_aside(self._late(channel, routing_keys))

    async def _late(self, channel: ExchangeChannel, routing_keys: set[str]) -> None:
        if not self._pool.has(channel) or await self._pool.blocked():  # an alarm delays every destination
            return
        self._stalled.add(channel.exchange, routing_keys)
        if channel.late_count >= LATE_MAX:
            self._pool.retire()

    async def _send(
        self, batch: tuple[str, float], publications: dict[int, Publication], outcomes: list[Outcome]
    ) -> None:
        exchange, timeout_s = batch
        deadline = asyncio.get_running_loop().time() + timeout_s
        answers = await self.send(exchange, [*publications.values()], deadline)
        for n, outcome in zip(publications, answers, strict=True):
            outcomes[n] = outcome


class PublishBatch:
    """The messages of one call for one exchange: sent once, many per write, as fast as confirms free slots.

    Args:
        stalled: Destinations that use another connection.
        window: Shared by all senders: one slot per message that waits for a confirm and is not late.
    """

    def __init__(
        self,
        pool: ChannelPool,
        stalled: StalledDestinations,
        window: asyncio.Semaphore,
        exchange: str,
        publications: Sequence[Publication],
    ) -> None:
        self._pool, self._stalled = pool, stalled
        self._aside: defaultdict[str, deque[Publication]] = defaultdict(deque)
        self._window = window
        self._exchange = exchange
        self._publications = publications
        self._left = deque(publications)

    async def send(self, deadline: float) -> list[Outcome]:
        """Return one outcome per publication, in order, before ``deadline`` (clock of the event loop)."""
        unsent, unconfirmed = _NOT_SENT, _LATE
        try:
            async with asyncio.timeout_at(deadline):
                unsent = await self._send_all() or _NOT_SENT
                await self._answers()
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            unconfirmed = NO_CONFIRM  # the library cancelled it, not the caller
        finally:
            for publication in self._publications:
                publication.give_up()
        return [
            publication.refused or unsent if publication.answer is None else publication.outcome() or unconfirmed
            for publication in self._publications
        ]

    async def _send_all(self) -> Refused | None:
        """Send all, or return why the rest cannot be sent. Stalled destinations come last."""
        while self._left:
            self._set_aside()
            while self._left:
                refused = await self._send_some()
                if refused is not None:
                    return refused
            aside, self._aside = self._aside, defaultdict(deque)
            await asyncio.gather(*(self._stalled.send(self._exchange, *destination) for destination in aside.items()))
            self._left.extend(publication for publications in aside.values() for publication in publications)
        return None

    def _set_aside(self) -> None:
        if not self._stalled:
            return
        left, self._left = self._left, deque()
        for publication in left:
            stalled = self._stalled.has(self._exchange, publication.routing_key)
            (self._aside[publication.routing_key] if stalled else self._left).append(publication)

    async def _send_some(self) -> Refused | None:
        slots, some = await self._take_slots(), list[Publication]()
        try:
            if await self._pool.blocked():  # no channel can be opened then
                return BLOCKED
            channel = await self._pool.channel(self._exchange)
            if isinstance(channel, Refused):
                return channel
            self._set_aside()  # more destinations can have stalled since
            some = channel.next_batch(self._left, slots)
            await channel.send(some, self._window.release)
        finally:
            sent = sum(publication.answer is not None for publication in some)
            for _ in range(sent):
                self._left.popleft()
            for _ in range(slots - sent):  # the answers release the others
                self._window.release()
        if self._left and not some:
            await channel.wait_for_id(self._left[0].id)
        return None

    async def _take_slots(self) -> int:
        """Wait for a slot in the window, and take as many as are free and needed."""
        await self._window.acquire()
        slots = 1
        while slots < len(self._left) and not self._window.locked():
            await self._window.acquire()
            slots += 1
        return slots

    async def _answers(self) -> None:
        waiting = {
            publication.answer
            for publication in self._publications
            if publication.answer is not None and not publication.answer.done()
        }
        if waiting:
            await asyncio.wait(waiting)


def _target(destination: str) -> AmqpTarget:
    target = parse_target(destination)
    if not isinstance(target, AmqpTarget):
        raise Rejected("invalid_target", "This broker sends to amqp:EXCHANGE/ROUTING_KEY.")
    return target


def _check(message: Message) -> None:
    if not _is_short(message.id) or len(message.body) > BODY_BYTES_MAX:
        text = f"A message has a printable id of 1 to {ID_BYTES_MAX} bytes and at most {BODY_BYTES_MAX} bytes of body."
        raise Rejected("invalid_message", text)
    if not _is_short(message.content_type):
        raise Rejected("invalid_header", f"The content type {message.content_type[:80]!r} cannot be sent.")
    for name, value in message.headers.items():
        if not _is_short(name) or not value.isprintable():
            raise Rejected("invalid_header", f"The header {name[:80]!r} cannot be sent.")


def _is_short(text: str) -> bool:
    return text.isprintable() and 1 <= len(text.encode()) <= ID_BYTES_MAX
