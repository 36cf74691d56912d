"""One exchange on a channel of its own, and what each answer of the broker means.

A publish to an exchange that does not exist makes RabbitMQ close the channel and forget every
confirm that was outstanding on it. With a channel per exchange, one wrong destination cannot
put the others in doubt.

Frames are written here, many messages at a time, and entered into the client library's own
registers of what waits for a confirm: it reads confirms and returns, and tells them apart.

A message whose caller gave up stays in those registers until RabbitMQ confirms it or the channel closes. Such
messages count here, because RabbitMQ counts them as well: it reads no more from a channel, and soon from the whole
connection, while one queue owes that channel 32 confirms.
"""

import asyncio
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice, takewhile
from struct import Struct
from typing import Any, Protocol

from aio_pika.abc import AbstractConnection
from aio_pika.exceptions import AMQPError, ChannelNotFoundEntity, ChannelPreconditionFailed, PublishError
from aiormq.abc import ChannelFrame
from aiormq.channel import Channel
from aiormq.exceptions import ChannelAccessRefused

from tickwright.ports.broker import Accepted, Message, Outcome, Refused, Unknown
from tickwright.transports.rabbitmq.connection import RabbitLink
from tickwright.transports.rabbitmq.late_confirms import BLOCKED, SilentDestinations

# A persistent, mandatory message as bytes of AMQP 0-9-1, many of which are joined into one write.
#
# The client library builds an object for every frame, field by field, which costs twenty times as much as the bytes do.
# A test lets the library read what is written here.

_METHOD, _HEADER, _BODY = 1, 2, 3
_END = b"\xce"
_FRAME = Struct(">BHI")  # kind, channel, bytes of payload
_BASIC_PUBLISH = Struct(">HHH").pack(60, 40, 0)
_MANDATORY = b"\x01"
_CONTENT = Struct(">HHQH")  # class, weight, bytes of body, which properties follow
_BASIC = 60
_PROPERTIES = 0x8000 | 0x2000 | 0x1000 | 0x0080  # content type, headers, delivery mode, message id
_PERSISTENT = b"\x02"
_LENGTH = Struct(">I")


@lru_cache(maxsize=1024)
def publish_frame(channel: int, exchange: str, routing_key: str) -> bytes:
    """Return ``basic.publish``, mandatory; names of at most 255 bytes."""
    return _frame(_METHOD, channel, _BASIC_PUBLISH + _short(exchange) + _short(routing_key) + _MANDATORY)


def content_header(message: Message) -> bytes:
    """Return the content of the header frame. It cannot be cut, and RabbitMQ closes the connection if it is too large.

    Args:
        message: Id, content type and names of headers have at most 255 bytes, and everything can be encoded.
    """
    table = b"".join([_short(name) + b"S" + _long(value) for name, value in message.headers.items()])
    properties = _short(message.content_type) + _LENGTH.pack(len(table)) + table + _PERSISTENT + _short(message.id)
    return _CONTENT.pack(_BASIC, 0, len(message.body), _PROPERTIES) + properties


def content_frames(channel: int, header: bytes, body: bytes, frame_bytes_max: int) -> list[bytes]:
    """Return the header and the body, which is cut where the connection asks for it.

    Args:
        channel: Number of the channel.
        header: Of ``content_header``, at most ``frame_bytes_max``.
        body: Of the same message.
        frame_bytes_max: Of one frame, without its own eight bytes.
    """
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
        refused: Why this one was not sent.
    """

    message: Message
    routing_key: str
    header: bytes
    answer: "asyncio.Future[Any] | None" = None
    refused: Refused | None = None

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


class Watcher(Protocol):
    """Learns which destinations of a route confirm."""

    def late(self, route: "Route", routing_keys: set[str]) -> None:
        """Messages with these keys have waited for their confirms for five seconds."""
        ...

    def confirmed(self, route: "Route", routing_key: str) -> None:
        """A message with this key was confirmed, in time."""
        ...


class Route:
    """Publishes to one exchange and waits for the confirm of each message.

    Invariants:
        RMQ-1: ``Accepted`` means confirmed and routed: mandatory, and no return came.
        RMQ-2: two messages with one id are never in flight here together, because returns are
            told apart by id.
    """

    def __init__(self, channel: Channel, exchange: str, watcher: "Watcher") -> None:
        self._channel, self.exchange, self._watcher = channel, exchange, watcher
        self._flying: dict[str, asyncio.Future[Any]] = {}
        self._keys: dict[int, str] = {}  # tag to routing key, of what is not confirmed and not late yet
        self._held: dict[int, Callable[[], None]] = {}
        self._late: dict[int, float] = {}  # tag to when it became late
        self._written: deque[tuple[float, int]] = deque()  # when which tags and those before them are late
        self._timer: asyncio.TimerHandle | None = None
        self._retired: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        channel.closing.add_done_callback(self._closed)

    @classmethod
    async def open(cls, connection: AbstractConnection, exchange: str, watcher: "Watcher") -> "Route | Refused":
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
        return cls(channel, exchange, watcher)

    @property
    def alive(self) -> bool:
        """Whether it is in use and its channel open, for RabbitMQ as well: the library notes that a little later."""
        channel = self._channel
        return (
            not self._retired.done()
            and not channel.is_closed
            and channel.connection.channels.get(channel.number) is channel
        )

    @property
    def idle(self) -> bool:
        """Whether no message waits for a confirm that is not late, and none is late."""
        return not self._flying and not self.late_count

    @property
    def unconfirmed_count(self) -> int:
        """How many messages RabbitMQ has not confirmed, those whose callers gave up included."""
        return len(self._channel.confirmations)

    @property
    def late_count(self) -> int:
        """How many of them are late."""
        for tag in self._late.keys() - self._channel.confirmations.keys():
            del self._late[tag]
        return len(self._late)

    @property
    def late_for_s(self) -> float:
        """Seconds since the oldest of those that are late became so."""
        return asyncio.get_running_loop().time() - next(iter(self._late.values())) if self.late_count else 0.0

    @property
    def flying(self) -> "list[asyncio.Future[Any]]":
        """The answers that callers wait for."""
        return list(self._flying.values())

    def retire(self) -> None:
        """Take no more messages, hold up no caller that has some, and free all places. Answers may still come."""
        if not self._retired.done():
            self._retired.set_result(None)
        for tag in list(self._held):
            self._release(tag)

    def next_of(self, letters: Iterable[Letter], most: int) -> list[Letter]:
        """Return the next ones that can leave together: no two of one id, and none whose id is in flight."""
        some: list[Letter] = []
        ids: set[str] = set()
        write_bytes = 0
        for letter in islice(letters, max(0, most)):
            message_id = letter.message.id
            write_bytes += len(letter.header) + len(letter.message.body)
            if message_id in ids or message_id in self._flying or (some and write_bytes > WRITE_BYTES_MAX):
                break
            some.append(letter)
            ids.add(message_id)
        return some

    async def room(self) -> None:
        """Return when something may have been answered; a confirm without a waiting caller does not count."""
        if self._flying:
            await asyncio.wait(self.flying, timeout=ROOM_STEP_S, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(ROOM_STEP_S)

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
            landed: Called once for each letter that was sent: when its answer is there, given up or late, or the
                route is retired.
        """
        drained = self._channel.create_future()
        frame = ChannelFrame(self._bytes(letters), should_close=False, drain_future=drained)
        try:
            async with self._channel.lock:
                # Not in put(): a route that is retired would keep its callers there until their time is over.
                while self.alive and self._channel.write_queue.full():  # noqa: ASYNC110  the queue has no event
                    await asyncio.sleep(QUEUE_STEP_S)
                if self.alive and letters:
                    self._channel.write_queue.put_nowait(frame)
                    self._register(letters, landed)  # nothing ran since the put: nobody can have answered
                    await asyncio.wait({drained, self._retired}, return_when=asyncio.FIRST_COMPLETED)
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
                frames.append(publish_frame(number, self.exchange, letter.routing_key))
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
            self._keys[tag], self._held[tag] = letter.routing_key, landed
            answer.add_done_callback(partial(self._landed, message_id, tag))
            channel.confirmations[tag] = self._flying[message_id] = answer
            channel.message_id_delivery_tag[message_id] = tag
        if channel.is_closed:
            self._lost(NO_CONFIRM)
        else:
            self._watch(channel.delivery_tag)

    def _landed(self, message_id: str, tag: int, answer: "asyncio.Future[Any]") -> None:
        if not answer.cancelled():
            key = self._keys.pop(tag, None)
            error = answer.exception()  # it is looked at, also when no caller waits any more
            if key is not None and (error is not None or not isinstance(answer.result(), Refused | Unknown)):
                self._watcher.confirmed(self, key)
        if self._channel.message_id_delivery_tag.get(message_id) == tag:
            del self._channel.message_id_delivery_tag[message_id]
        if self._flying.get(message_id) is answer:
            del self._flying[message_id]
        self._release(tag)

    def _release(self, tag: int) -> None:
        landed = self._held.pop(tag, None)
        if landed is not None:
            landed()

    def _watch(self, tag: int) -> None:
        """Look after five seconds at what was written by now; one timer for all."""
        due_s = math.ceil((asyncio.get_running_loop().time() + LATE_S) / LATE_STEP_S) * LATE_STEP_S
        if self._written and self._written[-1][0] >= due_s:
            self._written.pop()
        self._written.append((due_s, tag))
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is None and self._written:
            self._timer = asyncio.get_running_loop().call_at(self._written[0][0], self._look)

    def _look(self) -> None:
        """Free the places of what is late, and say so."""
        self._timer, now_s = None, asyncio.get_running_loop().time()
        last = 0
        while self._written and self._written[0][0] <= now_s:
            last = self._written.popleft()[1]
        self._set_timer()
        due = {tag: self._keys.pop(tag) for tag in list(takewhile(lambda tag: tag <= last, self._keys))}
        late = {tag: key for tag, key in due.items() if tag in self._channel.confirmations}
        for tag in late:
            self._release(tag)
        if not late or not self.alive:
            return
        self._late |= dict.fromkeys(late, now_s)
        self._watcher.late(self, set(late.values()))

    def _closed(self, closing: "asyncio.Future[Any]") -> None:
        """Blame the message only if it was alone; among several nobody knows which closed the channel."""
        error = None if closing.cancelled() else closing.exception()
        alone = sum(not answer.done() for answer in self._flying.values()) == 1
        self._lost(_BLAME.get(type(error), NO_CONFIRM) if alone and error else NO_CONFIRM)

    def _lost(self, outcome: Outcome) -> None:
        for answer in self._flying.values():
            if not answer.done():
                answer.set_result(outcome)


# Messages of one call for one exchange with one deadline: sent as fast as confirms make room.
#
# Many leave in one write, as many as there is room for when room is made; so the broker confirms many at once, and
# neither side does for each message what it can do for hundreds.

_NOT_SENT = Refused("broker_busy", "RabbitMQ could not be handed the message in time; nothing was sent.")
_LATE = Unknown("timeout", "No confirm within the timeout; it may have been taken.")


class Lot:
    """Sends letters once.

    Args:
        link: The connection.
        silent: Destinations whose messages do not go over it.
        window: One place for each message that waits for a confirm and is not late, of every sender.
        exchange: Of all letters.
        letters: At least one.
    """

    def __init__(
        self,
        link: RabbitLink,
        silent: SilentDestinations,
        window: asyncio.Semaphore,
        exchange: str,
        letters: Sequence[Letter],
    ) -> None:
        self._link, self._silent = link, silent
        self._aside: defaultdict[str, deque[Letter]] = defaultdict(deque)
        self._window = window
        self._exchange = exchange
        self._letters = letters
        self._left = deque(letters)

    async def send(self, deadline: float) -> list[Outcome]:
        """Return one outcome per letter, in order, at ``deadline`` of the loop's clock at the latest."""
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
            unconfirmed = NO_CONFIRM  # the library's own cancellation, not ours
        finally:
            for letter in self._letters:
                letter.give_up()
        return [
            letter.refused or unsent if letter.answer is None else letter.outcome() or unconfirmed
            for letter in self._letters
        ]

    async def _send_all(self) -> Refused | None:
        """Send until nothing is left, or return why the rest cannot be sent. Silent destinations are the last."""
        while self._left:
            self._set_aside()
            while self._left:
                refused = await self._send_some()
                if refused is not None:
                    return refused
            aside, self._aside = self._aside, defaultdict(deque)
            await asyncio.gather(*(self._silent.send(self._exchange, *one) for one in aside.items()))
            self._left.extend(letter for letters in aside.values() for letter in letters)
        return None

    def _set_aside(self) -> None:
        if not self._silent:
            return
        left, self._left = self._left, deque()
        for letter in left:
            silent = self._silent.has(self._exchange, letter.routing_key)
            (self._aside[letter.routing_key] if silent else self._left).append(letter)

    async def _send_some(self) -> Refused | None:
        places, some = await self._places(), list[Letter]()
        try:
            route = await self._link.route(self._exchange)
            if isinstance(route, Refused):
                return route
            if await self._link.blocked():
                return BLOCKED
            self._set_aside()  # some fell silent meanwhile
            some = route.next_of(self._left, places)
            await route.send(some, self._window.release)
        finally:
            sent = sum(letter.answer is not None for letter in some)
            for _ in range(sent):
                self._left.popleft()
            for _ in range(places - sent):  # the others are given back when the answer is there
                self._window.release()
        if self._left and not some:
            await route.alone(self._left[0].message.id)
        return None

    async def _places(self) -> int:
        """Wait for a place in the window, and take as many as are free and wanted."""
        await self._window.acquire()
        places = 1
        while places < len(self._left) and not self._window.locked():
            await self._window.acquire()
            places += 1
        return places

    async def _answers(self) -> None:
        waiting = {letter.answer for letter in self._letters if letter.answer is not None and not letter.answer.done()}
        if waiting:
            await asyncio.wait(waiting)
