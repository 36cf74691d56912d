"""One exchange on a channel of its own, and what each answer of the broker means.

A publish to an exchange that does not exist makes RabbitMQ close the channel and forget every
confirm that was outstanding on it. With a channel per exchange, one wrong destination cannot
put the others in doubt.

Frames are written here, many messages at a time, and entered into the client library's own
registers of what waits for a confirm: it reads confirms and returns, and tells them apart.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from aio_pika.abc import AbstractConnection
from aio_pika.exceptions import AMQPError, ChannelNotFoundEntity, ChannelPreconditionFailed, PublishError
from aiormq.abc import ChannelFrame
from aiormq.channel import Channel
from aiormq.exceptions import ChannelAccessRefused

from tickwright.brokers.rabbitmq.frames import content_frames, publish_frame
from tickwright.ports.broker import Accepted, Message, Outcome, Refused, Unknown

NO_CONFIRM = Unknown("connection_lost", "The connection to RabbitMQ broke before the confirm.")
MISSING = Refused("exchange_missing", "The exchange does not exist; declare it, or correct the destination.")
FORBIDDEN = Refused("exchange_forbidden", "This user may not write to the exchange.")
_UNROUTABLE = Refused("unroutable", "The exchange has no queue for this routing key.")
_NACK = Refused("broker_nack", "RabbitMQ refused the message (a queue is full, or failed).")
_PRECONDITION = Refused("precondition_failed", "RabbitMQ refused the message as it is (is it too large?).")
_TOO_LARGE = Refused("too_large", "The headers do not fit into a frame of the connection.", final=True)
_ACCEPTED = Accepted()
_BLAME: dict[type[BaseException], Refused] = {
    ChannelNotFoundEntity: MISSING,
    ChannelAccessRefused: FORBIDDEN,
    ChannelPreconditionFailed: _PRECONDITION,
}


@dataclass(slots=True, eq=False)
class Letter:
    """A message on its way, and what the broker said of it.

    Attributes:
        header: Content of its header frame.
        answer: Not there while nothing was sent; cancelled when whoever waited gave up.
    """

    message: Message
    routing_key: str
    header: bytes
    answer: "asyncio.Future[Any] | None" = None

    def give_up(self) -> None:
        """Wait no longer. An answer that is there stays."""
        if self.answer is not None:
            self.answer.cancel()

    def outcome(self) -> Outcome | None:
        """Return what the answer means; ``None`` while there is none, or when nobody waits for it any more."""
        if self.answer is None or not self.answer.done() or self.answer.cancelled():
            return None
        error = self.answer.exception()
        if error is not None:
            return _UNROUTABLE if isinstance(error, PublishError) else _NACK
        said = self.answer.result()
        return said if isinstance(said, Refused | Unknown) else _ACCEPTED


class Route:
    """Publishes to one exchange and waits for the confirm of each message.

    Invariants:
        RMQ-1: ``Accepted`` means confirmed and routed: mandatory, and no return came.
        RMQ-2: two messages with one id are never in flight here together, because returns are
            told apart by id.
    """

    def __init__(self, channel: Channel, exchange: str) -> None:
        self._channel = channel
        self._exchange = exchange
        self._flying: dict[str, asyncio.Future[Any]] = {}
        channel.closing.add_done_callback(self._closed)

    @classmethod
    async def open(cls, connection: AbstractConnection, exchange: str) -> "Route | Refused":
        """Open a channel and ask whether the exchange exists; the caller bounds the time."""
        if connection.transport is None:
            raise ConnectionError
        channel = await connection.transport.connection.channel(publisher_confirms=True, on_return_raises=True)
        if not isinstance(channel, Channel):
            raise TypeError(channel)
        try:
            if exchange != "":
                await channel.exchange_declare(exchange, passive=True)
        except ChannelNotFoundEntity:
            return MISSING
        except ChannelAccessRefused:
            return FORBIDDEN
        return cls(channel, exchange)

    @property
    def alive(self) -> bool:
        """Whether the channel is open, for RabbitMQ as well: the library takes note of its word a little later."""
        channel = self._channel
        return not channel.is_closed and channel.connection.channels.get(channel.number) is channel

    @property
    def idle(self) -> bool:
        """Whether no message waits for a confirm."""
        return not self._flying

    def has_in_flight(self, message_id: str) -> bool:
        """Whether a message of this id waits for its confirm."""
        return message_id in self._flying

    async def alone(self, message_id: str) -> None:
        """Return when no message with this id is in flight."""
        while (other := self._flying.get(message_id)) is not None:
            await asyncio.wait({other})

    async def send(self, letters: Sequence[Letter], landed: Callable[[], None]) -> None:
        """Write the letters and return when they have left for the network.

        However it ends, all letters have an ``answer`` or none has, and where there is none nothing was
        sent: the channel was closed before, or the caller was interrupted. One whose header fits into no frame
        is refused and left out.

        Args:
            letters: No two of one id, and none whose id is in flight; joined into one write.
            landed: Called once for each letter that was sent, when its answer is there or given up.
        """
        drained = self._channel.create_future()
        frame = ChannelFrame(self._bytes(letters), should_close=False, drain_future=drained)
        try:
            async with self._channel.lock:
                if self.alive and letters:
                    await self._channel.write_queue.put(frame)
                    self._register(letters, landed)  # nothing ran since the put: nobody can have answered
                    await asyncio.wait({drained})
        except (AMQPError, RuntimeError):  # of the lock: the channel is closed
            return
        finally:
            drained.cancel()

    async def aclose(self) -> None:
        """Close the channel; the caller bounds the time. Twice is harmless."""
        await self._channel.close()

    def _bytes(self, letters: Sequence[Letter]) -> bytes:
        number, bytes_max = self._channel.number, self._channel.max_content_size
        frames: list[bytes] = []
        for letter in letters:
            if len(letter.header) <= bytes_max:
                frames.append(publish_frame(number, self._exchange, letter.routing_key))
                frames += content_frames(number, letter.header, letter.message.body, bytes_max)
        return b"".join(frames)

    def _register(self, letters: Sequence[Letter], landed: Callable[[], None]) -> None:
        channel = self._channel
        loop = asyncio.get_running_loop()
        for letter in letters:
            letter.answer = answer = loop.create_future()
            if len(letter.header) > channel.max_content_size:
                answer.add_done_callback(lambda _: landed())
                answer.set_result(_TOO_LARGE)
                continue
            message_id = letter.message.id
            tag = channel.delivery_tag = channel.delivery_tag + 1
            answer.add_done_callback(partial(self._landed, message_id, tag, landed))
            channel.confirmations[tag] = self._flying[message_id] = answer
            channel.message_id_delivery_tag[message_id] = tag
        if channel.is_closed:
            self._lost(NO_CONFIRM)

    def _landed(self, message_id: str, tag: int, landed: Callable[[], None], answer: "asyncio.Future[Any]") -> None:
        if not answer.cancelled():
            answer.exception()  # it is looked at, also when nobody waits any more
        if self._channel.message_id_delivery_tag.get(message_id) == tag:
            del self._channel.message_id_delivery_tag[message_id]
        if self._flying.get(message_id) is answer:
            del self._flying[message_id]
        landed()

    def _closed(self, closing: "asyncio.Future[Any]") -> None:
        """Blame the message only if it was alone; among several nobody knows which closed the channel."""
        error = None if closing.cancelled() else closing.exception()
        alone = sum(not answer.done() for answer in self._flying.values()) == 1
        self._lost(_BLAME.get(type(error), NO_CONFIRM) if alone and error else NO_CONFIRM)

    def _lost(self, outcome: Outcome) -> None:
        for answer in self._flying.values():
            if not answer.done():
                answer.set_result(outcome)
