"""RabbitMQ: confirmed, mandatory, persistent publishes with one outcome per message.

Decides from the confirm, the return and the state of the connection. *Accepted* needs a confirm
and no return, because RabbitMQ confirms what it could not route. While RabbitMQ is away or
takes nothing, messages are refused at once instead of piling up.
"""

import asyncio
from collections.abc import Sequence

from tickwright.brokers.rabbitmq.link import RabbitLink
from tickwright.brokers.rabbitmq.route import NO_CONFIRM
from tickwright.domain.errors import Rejected
from tickwright.domain.targets import AmqpTarget, parse_target
from tickwright.ports.broker import Message, Outcome, Refused, Unknown

WINDOW = 500
BODY_BYTES_MAX = 16 * 1024 * 1024
ID_BYTES_MAX = 255

_SCHEMES = frozenset({"amqp"})
_CLOSED = Refused("broker_closed", "This broker was closed; nothing was sent.")
_BLOCKED = Refused("broker_blocked", "RabbitMQ takes nothing now (memory or disk alarm); nothing was sent.")
_NOT_SENT = Refused("broker_busy", "RabbitMQ could not be handed the message in time; nothing was sent.")
_LATE = Unknown("timeout", "No confirm within the timeout; it may have been taken.")


class RabbitBroker:
    """Publishes to exchanges.

    Args:
        url: ``amqp://user:password@host:port/vhost`` or ``amqps://…``.

    Invariants:
        RMQ-3: at most 500 messages wait for a confirm at one time.
        RMQ-4: a publish ends within ``message.timeout``, whatever RabbitMQ does.
    """

    def __init__(self, url: str) -> None:
        self._link = RabbitLink(url)
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
        """Publish one message and return what RabbitMQ said about it."""
        if self._closed:
            return _CLOSED
        try:
            target = _target(message.destination)
            _check(message)
        except Rejected as error:
            return Refused(error.code, error.message, final=True)
        return await self._within_timeout(message, target)

    async def publish_many(self, messages: Sequence[Message]) -> list[Outcome]:
        """Publish several with a window of 500 outstanding confirms; outcomes in order."""
        return list(await asyncio.gather(*map(self.publish, messages)))

    async def ready(self) -> bool:
        """Whether there is, or within a second can be, a connection that takes messages."""
        if self._closed:
            return False
        try:
            async with asyncio.timeout(1):
                connection = await self._link.connection()
                return not isinstance(connection, Refused) and not await self._link.blocked()
        except TimeoutError:
            return False

    async def aclose(self) -> None:
        """Close the connection within a few seconds. Twice is harmless."""
        self._closed = True
        await self._link.aclose()

    async def _within_timeout(self, message: Message, target: AmqpTarget) -> Outcome:
        late: Outcome = _NOT_SENT
        try:
            async with asyncio.timeout(message.timeout.total_seconds()), self._window:
                route = await self._link.route(target.exchange)
                if isinstance(route, Refused):
                    return route
                if await self._link.blocked():
                    return _BLOCKED
                await route.alone(message.id)
                late = _LATE
                return await route.publish(message, target.routing_key)
        except TimeoutError:
            return late
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return NO_CONFIRM if late is _LATE else _NOT_SENT  # the library's own cancellation, not ours


def _target(destination: str) -> AmqpTarget:
    target = parse_target(destination)
    if not isinstance(target, AmqpTarget):
        raise Rejected("invalid_target", "This broker sends to amqp:EXCHANGE/ROUTING_KEY.")
    return target


def _check(message: Message) -> None:
    if not 1 <= len(message.id.encode("utf-8", "replace")) <= ID_BYTES_MAX or len(message.body) > BODY_BYTES_MAX:
        text = f"A message has an id of 1 to {ID_BYTES_MAX} bytes and at most {BODY_BYTES_MAX} bytes of body."
        raise Rejected("invalid_message", text)
    for name, value in message.headers.items():
        if not name or len(name.encode("utf-8", "replace")) > ID_BYTES_MAX or not value.isprintable():
            raise Rejected("invalid_header", f"The header {name[:80]!r} cannot be sent.")
