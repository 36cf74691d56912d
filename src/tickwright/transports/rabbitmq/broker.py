"""RabbitMQ: confirmed, mandatory, persistent publishes with one outcome per message.

The confirm, the return and the state of the connection decide. *Accepted* needs a confirm and no return, because
RabbitMQ also confirms messages that it could not route. While RabbitMQ is unavailable or blocked, messages are refused
at once and do not accumulate. Messages to a destination that confirms late use another connection.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from itertools import repeat

import structlog

from tickwright.domain.errors import Rejected
from tickwright.domain.targets import AmqpTarget, parse_target
from tickwright.ports.broker import Message, Outcome, Refused, Unknown
from tickwright.transports.rabbitmq.channel import NO_CONFIRM, ExchangeChannel, Publication, content_header
from tickwright.transports.rabbitmq.connection import Publisher

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
_log = structlog.get_logger("tickwright.rabbitmq")


class StalledDestinations:
    """Publishes to stalled destinations over a separate connection, one channel each, until they confirm again.

    Invariants:
        RMQ-12: at most 16 messages to one stalled destination wait for a confirm on one channel, including those
            whose callers gave up; while one of them is late for ten seconds, others are refused at once.
    """

    def __init__(self, url: str) -> None:
        self._keys: dict[tuple[str, str], None] = {}
        self._publisher = Publisher(
            url, self, name="tickwright-publish-silent", channels_max=STALLED_CHANNELS_MAX, full=STALLED
        )

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

    def late(self, channel: ExchangeChannel, routing_keys: set[str]) -> None:
        """Do nothing: the channel counts late messages."""

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
            channel = await self._publisher.channel(exchange, routing_key)
            refused = await self._refused(channel)
            if refused is not None or isinstance(channel, Refused):
                for publication in publications:
                    publication.refused = refused
                publications.clear()
                return
            if channel.late_for_s >= RENEW_S:
                self._publisher.drop(exchange, routing_key)
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
        await self._publisher.aclose()

    async def _refused(self, channel: ExchangeChannel | Refused) -> Refused | None:
        if isinstance(channel, Refused):
            return channel
        if await self._publisher.blocked():
            return BLOCKED
        return STALLED if STALLED_WAIT_S <= channel.late_for_s < RENEW_S else None


def _nothing() -> None:
    """Do nothing: the stalled window has no slots to free."""


WINDOW = 500
LATE_MAX = 16
"""Late confirms of one channel that retire the connection. RabbitMQ stops reading the channel at 32 of one queue."""
BODY_BYTES_MAX = 16 * 1024 * 1024
ID_BYTES_MAX = 255

_SCHEMES = frozenset({"amqp"})
_CLOSED = Refused("broker_closed", "This broker was closed; nothing was sent.")
_NOT_SENT = Refused("broker_busy", "RabbitMQ could not be handed the message in time; nothing was sent.")
_LATE = Unknown("timeout", "No confirm within the timeout; it may have been taken.")


class RabbitBroker:
    """Publishes to exchanges.

    Args:
        url: ``amqp://user:password@host:port/vhost`` or ``amqps://…``.

    Invariants:
        RMQ-3: at most 500 messages wait for a confirm at one time; late messages and stalled destinations do not count.
        RMQ-4: a publish ends within ``message.timeout``, whatever RabbitMQ does.
    """

    def __init__(self, url: str) -> None:
        self._publisher = Publisher(url, self)
        self._stalled = StalledDestinations(url)
        self._window = asyncio.Semaphore(WINDOW)
        self._closed = False

    @property
    def schemes(self) -> frozenset[str]:
        """``amqp``."""
        return _SCHEMES

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
        for place, message in enumerate(messages):
            try:
                target = _target(message.destination)
                _check(message)
                publication = Publication(message, target.routing_key, content_header(message))
            except Rejected as error:
                outcomes[place] = Refused(error.code, error.message, final=True)
                continue
            batches[target.exchange, message.timeout.total_seconds()][place] = publication
        await asyncio.gather(*(self._send(batch, publications, outcomes) for batch, publications in batches.items()))
        return outcomes

    async def ready(self) -> bool:
        """Whether a connection that accepts messages exists, or can be opened within a second."""
        if self._closed:
            return False
        try:
            async with asyncio.timeout(1):
                connection = await self._publisher.connection()
                return not isinstance(connection, Refused) and not await self._publisher.blocked()
        except TimeoutError:
            return False

    async def aclose(self) -> None:
        """Close the connections within a few seconds. Repeated calls are harmless."""
        self._closed = True
        await asyncio.gather(self._publisher.aclose(), self._stalled.aclose())

    def late(self, channel: ExchangeChannel, routing_keys: set[str]) -> None:
        """Move destinations whose confirms are late to the other connection; called by channels."""
        self._publisher.start(self._late(channel, routing_keys))

    def confirmed(self, channel: ExchangeChannel, routing_key: str) -> None:
        """Do nothing; called by channels."""

    async def _late(self, channel: ExchangeChannel, routing_keys: set[str]) -> None:
        if not self._publisher.has(channel) or await self._publisher.blocked():  # an alarm delays every destination
            return
        self._stalled.add(channel.exchange, routing_keys)
        if channel.late_count >= LATE_MAX:
            self._publisher.retire()

    async def _send(
        self, batch: tuple[str, float], publications: dict[int, Publication], outcomes: list[Outcome]
    ) -> None:
        exchange, timeout_s = batch
        deadline = asyncio.get_running_loop().time() + timeout_s
        answers = await PublishBatch(
            self._publisher, self._stalled, self._window, exchange, [*publications.values()]
        ).send(deadline)
        for place, outcome in zip(publications, answers, strict=True):
            outcomes[place] = outcome


class PublishBatch:
    """The messages of one call for one exchange: sent once, many per write, as fast as confirms free slots.

    Args:
        stalled: Destinations that use another connection.
        window: Shared by all senders: one slot per message that waits for a confirm and is not late.
    """

    def __init__(
        self,
        publisher: Publisher,
        stalled: StalledDestinations,
        window: asyncio.Semaphore,
        exchange: str,
        publications: Sequence[Publication],
    ) -> None:
        self._publisher, self._stalled = publisher, stalled
        self._aside: defaultdict[str, deque[Publication]] = defaultdict(deque)
        self._window = window
        self._exchange = exchange
        self._letters = publications
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
            for publication in self._letters:
                publication.give_up()
        return [
            publication.refused or unsent if publication.answer is None else publication.outcome() or unconfirmed
            for publication in self._letters
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
            await asyncio.gather(*(self._stalled.send(self._exchange, *one) for one in aside.items()))
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
            channel = await self._publisher.channel(self._exchange)
            if isinstance(channel, Refused):
                return channel
            if await self._publisher.blocked():
                return BLOCKED
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
            await channel.wait_for_id(self._left[0].message.id)
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
            for publication in self._letters
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
