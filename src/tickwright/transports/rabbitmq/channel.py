"""Publishing to one exchange over a channel of its own, and the meaning of each answer of the broker.

A publish to an exchange that does not exist makes RabbitMQ close the channel and drop its outstanding confirms. One
channel per exchange keeps a wrong destination from putting other messages in doubt.

This module writes frames, many messages at a time, and adds them to the client library's registers of outstanding
confirms. The library reads confirms and returns.

A message whose caller gave up stays in those registers until RabbitMQ confirms it or the channel closes. It counts here
because RabbitMQ counts it too: while one queue owes a channel 32 confirms, RabbitMQ stops reading from that channel,
and soon from the whole connection.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice, takewhile
from struct import Struct
from typing import Any

from aiormq.abc import AbstractConnection, ChannelFrame
from aiormq.channel import Channel
from aiormq.exceptions import (
    AMQPError,
    ChannelAccessRefused,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    PublishError,
)

from tickwright.ports.broker import Accepted, Message, Outcome, Refused, Unknown
from tickwright.transports.rabbitmq.connection import close_quietly

# Frames: a persistent, mandatory message as bytes of AMQP 0-9-1. Many are joined into one write. The client library
# builds an object for every frame, which costs twenty times as much. A test reads these bytes with the library.

_METHOD, _HEADER, _BODY = 1, 2, 3
_END = b"\xce"
_FRAME = Struct(">BHI")  # kind, channel, bytes of payload
_BASIC_PUBLISH = Struct(">HHH").pack(60, 40, 0)
_MANDATORY = b"\x01"
_CONTENT = Struct(">HHQH")  # class, weight, bytes of body, flags of the properties that follow
_BASIC = 60
_PROPERTIES = 0x8000 | 0x2000 | 0x1000 | 0x0080  # content type, headers, delivery mode, message id
_PERSISTENT = b"\x02"
_LENGTH = Struct(">I")


@lru_cache(maxsize=1024)
def publish_frame(channel: int, exchange: str, routing_key: str) -> bytes:
    """Return ``basic.publish``, mandatory; names of at most 255 bytes."""
    return _frame(_METHOD, channel, _BASIC_PUBLISH + _short(exchange) + _short(routing_key) + _MANDATORY)


def content_header(message: Message) -> bytes:
    """Return the content of the header frame, which cannot be split. RabbitMQ closes the connection if it is too large.

    The id, the content type and the names of headers have at most 255 bytes, and all texts can be encoded.
    """
    table = b"".join([_short(name) + b"S" + _long(value) for name, value in message.headers.items()])
    properties = _short(message.content_type) + _LENGTH.pack(len(table)) + table + _PERSISTENT + _short(message.id)
    return _CONTENT.pack(_BASIC, 0, len(message.body), _PROPERTIES) + properties


def content_frames(channel: int, header: bytes, body: bytes, frame_bytes_max: int) -> list[bytes]:
    """Return the header and the body as frames of at most ``frame_bytes_max``, without their own eight bytes."""
    starts = range(0, len(body), frame_bytes_max)
    pieces = [_frame(_BODY, channel, body[start : start + frame_bytes_max]) for start in starts]
    return [_frame(_HEADER, channel, header), *pieces]


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _FRAME.pack(kind, channel, len(payload)) + payload + _END


def _short(text: str) -> bytes:
    encoded = text.encode()
    return len(encoded).to_bytes(1, "big") + encoded


def _long(text: str) -> bytes:
    encoded = text.encode()
    return _LENGTH.pack(len(encoded)) + encoded


LATE_S = 5.0
"""A confirm that takes longer is late."""
LATE_STEP_S = 0.1
WRITE_BYTES_MAX = 256 * 1024
ROOM_STEP_S = 0.1
QUEUE_STEP_S = 0.002

NO_CONFIRM = Unknown("connection_lost", "The connection to RabbitMQ broke before the confirm.")
MISSING = Refused("exchange_missing", "The exchange does not exist; declare it, or correct the destination.")
FORBIDDEN = Refused("exchange_forbidden", "This user may not write to the exchange.")
UNROUTABLE = Refused("unroutable", "The exchange has no queue for this routing key.")
_NACK = Refused("broker_nack", "RabbitMQ refused the message (a queue is full, or failed).")
_PRECONDITION = Refused("precondition_failed", "RabbitMQ refused the message as it is (is it too large?).")
TOO_LARGE = Refused("too_large", "The headers do not fit into a frame of the connection.", final=True)
_ACCEPTED = Accepted()
_BLAME: dict[type[BaseException], Refused] = {
    ChannelNotFoundEntity: MISSING,
    ChannelAccessRefused: FORBIDDEN,
    ChannelPreconditionFailed: _PRECONDITION,
}


@dataclass(slots=True, eq=False)
class Publication:
    """A message to publish, and the broker's answer.

    Attributes:
        header: Content of its header frame.
        answer: ``None`` before it is sent; cancelled after ``give_up``.
        refused: Why it was not sent.
    """

    id: str
    body: bytes
    header: bytes
    routing_key: str
    answer: "asyncio.Future[Any] | None" = None
    refused: Refused | None = None

    def give_up(self) -> None:
        """Stop waiting. An answer that has arrived remains."""
        if self.answer is not None:
            self.answer.cancel()

    def outcome(self) -> Outcome | None:
        """Return the outcome of the answer; ``None`` without an answer, or after ``give_up``."""
        if self.answer is None or not self.answer.done() or self.answer.cancelled():
            return None
        error = self.answer.exception()
        if error is not None:
            return UNROUTABLE if isinstance(error, PublishError) else _NACK
        answer = self.answer.result()
        return answer if isinstance(answer, Refused | Unknown) else _ACCEPTED


class ConfirmObserver:
    """Is notified which destinations of a channel confirm in time, and which do not."""

    def late(self, channel: "ExchangeChannel", routing_keys: set[str]) -> None:
        """Note that messages with these keys have waited for confirms for five seconds."""

    def confirmed(self, channel: "ExchangeChannel", routing_key: str) -> None:
        """Note that a message with this key was confirmed in time."""


class ExchangeChannel:
    """Publishes to one exchange and waits for the confirm of each message.

    Invariants:
        RMQ-1: ``Accepted`` means confirmed and routed: mandatory, and not returned.
        RMQ-2: two messages with one id are never in flight together, because the id identifies a return.
    """

    def __init__(self, channel: Channel, exchange: str, observer: ConfirmObserver) -> None:
        self._channel, self.exchange, self._observer = channel, exchange, observer
        self._in_flight: dict[str, asyncio.Future[Any]] = {}
        self._keys: dict[int, str] = {}  # tag to routing key, of messages neither confirmed nor late
        self._slots: dict[int, Callable[[], None]] = {}
        self._late: dict[int, float] = {}  # tag to the instant at which it became late
        self._written: deque[tuple[float, int]] = deque()  # instants at which a tag and all earlier ones are late
        self._timer: asyncio.TimerHandle | None = None
        self._retired: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        channel.closing.add_done_callback(self._closed)

    @classmethod
    async def open(
        cls, connection: AbstractConnection, exchange: str, observer: ConfirmObserver
    ) -> "ExchangeChannel | Refused":
        """Open a channel and check that the exchange exists. The caller sets the timeout."""
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        if not isinstance(channel, Channel):
            raise TypeError(channel)
        try:
            if exchange != "":
                await channel.exchange_declare(exchange, passive=True)
        except ChannelNotFoundEntity:
            return MISSING
        except ChannelAccessRefused:
            return FORBIDDEN
        return cls(channel, exchange, observer)

    @property
    def alive(self) -> bool:
        """Whether it is in use and open. The connection's register shows a close before the channel's flag."""
        channel = self._channel
        return (
            not self._retired.done()
            and not channel.is_closed
            and channel.connection.channels.get(channel.number) is channel
        )

    @property
    def idle(self) -> bool:
        """Whether no message waits for a confirm, late or not."""
        return not self._in_flight and not self.late_count

    @property
    def unconfirmed_count(self) -> int:
        """How many messages RabbitMQ has not confirmed, including those whose callers gave up."""
        return len(self._channel.confirmations)

    @property
    def late_count(self) -> int:
        """How many unconfirmed messages are late."""
        for tag in self._late.keys() - self._channel.confirmations.keys():
            del self._late[tag]
        return len(self._late)

    @property
    def late_for_s(self) -> float:
        """Return the seconds since the oldest late message became late."""
        return asyncio.get_running_loop().time() - next(iter(self._late.values())) if self.late_count else 0.0

    @property
    def in_flight(self) -> "list[asyncio.Future[Any]]":
        """The answers that callers wait for."""
        return list(self._in_flight.values())

    def retire(self) -> None:
        """Accept no more messages, unblock callers in ``send``, and free all slots. Answers can still arrive."""
        if not self._retired.done():
            self._retired.set_result(None)
        for tag in list(self._slots):
            self._free_slot(tag)

    def next_batch(self, publications: Iterable[Publication], most: int) -> list[Publication]:
        """Return the next publications to write together: no id twice, and none whose id is in flight."""
        some: list[Publication] = []
        ids: set[str] = set()
        write_bytes = 0
        for publication in islice(publications, max(0, most)):
            message_id = publication.id
            write_bytes += len(publication.header) + len(publication.body)
            if message_id in ids or message_id in self._in_flight or (some and write_bytes > WRITE_BYTES_MAX):
                break
            some.append(publication)
            ids.add(message_id)
        return some

    async def wait_for_room(self) -> None:
        """Wait for an answer, at most 0.1 s."""
        if self._in_flight:
            await asyncio.wait(self.in_flight, timeout=ROOM_STEP_S, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(ROOM_STEP_S)

    async def wait_for_id(self, message_id: str) -> None:
        """Wait until no message with this id is in flight."""
        while (other := self._in_flight.get(message_id)) is not None:
            await asyncio.wait({other})

    async def send(self, publications: Sequence[Publication], free_slot: Callable[[], None]) -> None:
        """Write the publications and return when the socket has taken them.

        Afterwards all publications have an ``answer`` or none has. Without one nothing was sent: the channel was
        closed, or the caller was cancelled. A publication whose header exceeds a frame is refused and not sent.

        Args:
            publications: No id twice, and none whose id is in flight; joined into one write.
            free_slot: Called once per sent publication: when its answer has arrived, was given up or is late, or when
                the channel is retired.
        """
        drained = self._channel.create_future()
        frame = ChannelFrame(self._bytes(publications), should_close=False, drain_future=drained)
        try:
            async with self._channel.lock:
                # ``put`` would keep callers of a retired channel waiting until their deadline.
                while self.alive and self._channel.write_queue.full():  # noqa: ASYNC110  the queue has no event
                    await asyncio.sleep(QUEUE_STEP_S)
                if self.alive and publications:
                    self._channel.write_queue.put_nowait(frame)
                    self._register(publications, free_slot)  # no await since the put: no answer can have arrived
                    await asyncio.wait({drained, self._retired}, return_when=asyncio.FIRST_COMPLETED)
        except (AMQPError, RuntimeError):  # from the lock: the channel is closed
            return
        finally:
            drained.cancel()

    async def aclose(self) -> None:
        """Close the channel within two seconds. Repeated calls are harmless."""
        await close_quietly(self._channel)

    def _bytes(self, publications: Sequence[Publication]) -> bytes:
        number, bytes_max = self._channel.number, self._channel.max_content_size
        frames: list[bytes] = []
        for publication in publications:
            if len(publication.header) <= bytes_max:
                frames.append(publish_frame(number, self.exchange, publication.routing_key))
                frames += content_frames(number, publication.header, publication.body, bytes_max)
        return b"".join(frames)

    def _register(self, publications: Sequence[Publication], free_slot: Callable[[], None]) -> None:
        channel = self._channel
        loop = asyncio.get_running_loop()
        for publication in publications:
            publication.answer = answer = loop.create_future()
            if len(publication.header) > channel.max_content_size:
                answer.add_done_callback(lambda _: free_slot())
                answer.set_result(TOO_LARGE)
                continue
            message_id = publication.id
            tag = channel.delivery_tag = channel.delivery_tag + 1
            self._keys[tag], self._slots[tag] = publication.routing_key, free_slot
            answer.add_done_callback(partial(self._answered, message_id, tag))
            channel.confirmations[tag] = self._in_flight[message_id] = answer
            channel.message_id_delivery_tag[message_id] = tag
        if channel.is_closed:
            self._lost(NO_CONFIRM)
        else:
            self._watch(channel.delivery_tag)

    def _answered(self, message_id: str, tag: int, answer: "asyncio.Future[Any]") -> None:
        if not answer.cancelled():
            key = self._keys.pop(tag, None)
            error = answer.exception()  # marks the exception as retrieved, also if no caller waits
            if key is not None and (error is not None or not isinstance(answer.result(), Refused | Unknown)):
                self._observer.confirmed(self, key)
        if self._channel.message_id_delivery_tag.get(message_id) == tag:
            del self._channel.message_id_delivery_tag[message_id]
        if self._in_flight.get(message_id) is answer:
            del self._in_flight[message_id]
        self._free_slot(tag)

    def _free_slot(self, tag: int) -> None:
        free_slot = self._slots.pop(tag, None)
        if free_slot is not None:
            free_slot()

    def _watch(self, tag: int) -> None:
        """Check in five seconds which of the messages written so far are late. One timer serves all."""
        due_s = math.ceil((asyncio.get_running_loop().time() + LATE_S) / LATE_STEP_S) * LATE_STEP_S
        if self._written and self._written[-1][0] >= due_s:
            self._written.pop()
        self._written.append((due_s, tag))
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is None and self._written:
            self._timer = asyncio.get_running_loop().call_at(self._written[0][0], self._mark_late)

    def _mark_late(self) -> None:
        """Free the slots of late messages and notify the observer."""
        self._timer, now_s = None, asyncio.get_running_loop().time()
        last = 0
        while self._written and self._written[0][0] <= now_s:
            last = self._written.popleft()[1]
        self._set_timer()
        due = {tag: self._keys.pop(tag) for tag in list(takewhile(lambda tag: tag <= last, self._keys))}
        late = {tag: key for tag, key in due.items() if tag in self._channel.confirmations}
        for tag in late:
            self._free_slot(tag)
        if not late or not self.alive:
            return
        self._late |= dict.fromkeys(late, now_s)
        self._observer.late(self, set(late.values()))

    def _closed(self, closing: "asyncio.Future[Any]") -> None:
        """Refuse the message only if it was alone: among several, any can have closed the channel."""
        error = None if closing.cancelled() else closing.exception()
        alone = sum(not answer.done() for answer in self._in_flight.values()) == 1
        self._lost(_BLAME.get(type(error), NO_CONFIRM) if alone and error else NO_CONFIRM)

    def _lost(self, outcome: Outcome) -> None:
        for answer in self._in_flight.values():
            if not answer.done():
                answer.set_result(outcome)
