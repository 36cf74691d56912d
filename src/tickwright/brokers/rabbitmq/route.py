"""One exchange on a channel of its own, and what each answer of the broker means.

A publish to an exchange that does not exist makes RabbitMQ close the channel and forget every
confirm that was outstanding on it. With a channel per exchange, one wrong destination cannot
put the others in doubt.
"""

import asyncio

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange
from aio_pika.exceptions import (
    AMQPError,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    DeliveryError,
    PublishError,
)
from aiormq.exceptions import ChannelAccessRefused

from tickwright.ports.broker import Accepted, Message, Outcome, Refused, Unknown

NO_CONFIRM = Unknown("connection_lost", "The connection to RabbitMQ broke before the confirm.")
MISSING = Refused("exchange_missing", "The exchange does not exist; declare it, or correct the destination.")
FORBIDDEN = Refused("exchange_forbidden", "This user may not write to the exchange.")
_UNROUTABLE = Refused("unroutable", "The exchange has no queue for this routing key.")
_NACK = Refused("broker_nack", "RabbitMQ refused the message (a queue is full, or failed).")
_PRECONDITION = Refused("precondition_failed", "RabbitMQ refused the message as it is (is it too large?).")
_ACCEPTED = Accepted()
_BLAME: dict[type[AMQPError], Refused] = {
    ChannelNotFoundEntity: MISSING,
    ChannelAccessRefused: FORBIDDEN,
    ChannelPreconditionFailed: _PRECONDITION,
}


class Route:
    """Publishes to one exchange and waits for the confirm of each message.

    Invariants:
        RMQ-1: ``Accepted`` means confirmed and routed: mandatory, and no return came.
        RMQ-2: two messages with one id are never in flight here together, because returns are
            told apart by id.
    """

    def __init__(self, channel: AbstractChannel, exchange: AbstractExchange) -> None:
        self._channel = channel
        self._exchange = exchange
        self._flying: dict[str, asyncio.Future[None]] = {}
        self._flying_when_lost: int | None = None

    @classmethod
    async def open(cls, connection: AbstractConnection, exchange: str) -> "Route | Refused":
        """Open a channel and ask whether the exchange exists; the caller bounds the time."""
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        try:
            if exchange == "":
                return cls(channel, channel.default_exchange)
            return cls(channel, await channel.get_exchange(exchange, ensure=True))
        except ChannelNotFoundEntity:
            return MISSING
        except ChannelAccessRefused:
            return FORBIDDEN

    @property
    def alive(self) -> bool:
        """Whether the channel is open."""
        return not self._channel.is_closed

    @property
    def idle(self) -> bool:
        """Whether no message waits for a confirm."""
        return not self._flying

    async def alone(self, message_id: str) -> None:
        """Return when no message with this id is in flight."""
        while (other := self._flying.get(message_id)) is not None:
            await asyncio.wait({other})

    async def publish(self, message: Message, routing_key: str) -> Outcome:
        """Send one message and wait for its confirm; the caller sets the deadline."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flying[message.id] = done
        try:
            await self._exchange.publish(_amqp(message), routing_key, mandatory=True)
        except DeliveryError as error:
            return _UNROUTABLE if isinstance(error, PublishError) else _NACK
        except (ChannelNotFoundEntity, ChannelAccessRefused, ChannelPreconditionFailed) as error:
            return self._lost(_BLAME[type(error)])
        except (AMQPError, RuntimeError, OSError):
            return NO_CONFIRM
        finally:
            del self._flying[message.id]
            done.set_result(None)
        return _ACCEPTED

    async def aclose(self) -> None:
        """Close the channel; the caller bounds the time. Twice is harmless."""
        await self._channel.close()

    def _lost(self, why: Refused) -> Outcome:
        """Blame the message only if it was alone; among several nobody knows which closed the channel."""
        if self._flying_when_lost is None:
            self._flying_when_lost = len(self._flying)
        return why if self._flying_when_lost == 1 else NO_CONFIRM


def _amqp(message: Message) -> aio_pika.Message:
    return aio_pika.Message(
        message.body,
        headers=dict(message.headers),
        content_type=message.content_type,
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        message_id=message.id,
    )
