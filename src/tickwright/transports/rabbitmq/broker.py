"""RabbitMQ: confirmed, mandatory, persistent publishes with one outcome per message.

Decides from the confirm, the return and the state of the connection. *Accepted* needs a confirm
and no return, because RabbitMQ confirms what it could not route. While RabbitMQ is unavailable or
blocked, messages are refused at once instead of piling up. Messages to a destination that confirms late
use another connection.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from tickwright.domain.errors import Rejected
from tickwright.domain.targets import AmqpTarget, parse_target
from tickwright.ports.broker import Message, Outcome, Refused
from tickwright.transports.rabbitmq.channel import ExchangeChannel, Publication, PublishBatch, content_header
from tickwright.transports.rabbitmq.connection import Publisher
from tickwright.transports.rabbitmq.stalled_destinations import StalledDestinations

WINDOW = 500
LATE_MAX = 16
"""Late confirms of one channel that retire the connection: RabbitMQ stops reading behind 32 of one queue."""
BODY_BYTES_MAX = 16 * 1024 * 1024
ID_BYTES_MAX = 255

_SCHEMES = frozenset({"amqp"})
_CLOSED = Refused("broker_closed", "This broker was closed; nothing was sent.")


class RabbitBroker:
    """Publishes to exchanges.

    Args:
        url: ``amqp://user:password@host:port/vhost`` or ``amqps://…``.

    Invariants:
        RMQ-3: at most 500 messages wait for a confirm at one time; late ones do not count, nor stalled destinations.
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
        """Publish several, joined into few writes, with a window of 500 outstanding confirms; outcomes in order."""
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
        """Whether there is, or within a second can be, a connection that takes messages."""
        if self._closed:
            return False
        try:
            async with asyncio.timeout(1):
                connection = await self._publisher.connection()
                return not isinstance(connection, Refused) and not await self._publisher.blocked()
        except TimeoutError:
            return False

    async def aclose(self) -> None:
        """Close the connection within a few seconds. Twice is harmless."""
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
