"""The transport inside PostgreSQL: a message is a row, durable when the insert has committed.

(topic, message id) is unique, so a resent message changes nothing. The caller owns the pool; closing this broker closes
no connection. Consumers lease messages with a fence and a limit of deliveries.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from tickwright.domain.errors import Rejected
from tickwright.domain.targets import PostgresTarget, parse_target
from tickwright.ports.broker import Accepted, Message, Outcome, Refused, Unknown
from tickwright.store.pool import UNAVAILABLE
from tickwright.store.queries import load

MESSAGES_PER_INSERT = 500
BODY_BYTES_MAX = 16 * 1024 * 1024
ID_CHARS_MAX = 255

_QUERIES = load("tickwright.transports.postgres", "queries.sql")
_SCHEMES = frozenset({"pg"})
_CLOSED = Refused("broker_closed", "This broker was closed; nothing was stored.")
_UNAVAILABLE = Refused("database_unavailable", "No connection to the database; nothing was stored.")
_LOST = Unknown("connection_lost", "The connection broke during the insert; it may have been stored.")
_LATE = Unknown("timeout", "No answer to the insert within the timeout; it may have been stored.")
_IN_DOUBT = ("08", "57")  # connection failures and shutdowns: the insert may have committed

Row = tuple[str, str, str | None, str, str, bytes]


class PostgresBroker:
    """Stores messages in ``tickwright.messages``.

    Invariants:
        PGB-1: ``Accepted`` means committed.
        PGB-2: one (topic, message id) is one message, however often it is sent.
    """

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._closed = False

    @property
    def schemes(self) -> frozenset[str]:
        """``pg``."""
        return _SCHEMES

    def check(self, destination: str) -> None:
        """Raise ``Rejected`` unless ``destination`` is ``pg:TOPIC``."""
        _topic(destination)

    async def publish(self, message: Message) -> Outcome:
        """Store one message."""
        return (await self.publish_many([message]))[0]

    async def publish_many(self, messages: Sequence[Message]) -> list[Outcome]:
        """Store several, 500 per statement, each statement completely or not at all; outcomes in order."""
        outcomes: list[Outcome] = [_CLOSED] * len(messages)
        if self._closed:
            return outcomes
        rows: dict[int, Row] = {}
        for index, message in enumerate(messages):
            try:
                rows[index] = _row(message)
            except Rejected as error:
                outcomes[index] = Refused(error.code, error.message, final=True)
        # In the order of the unique index, so that two senders of the same ids cannot deadlock.
        indexes = sorted(rows, key=lambda index: rows[index][:2])
        for start in range(0, len(indexes), MESSAGES_PER_INSERT):
            part = indexes[start : start + MESSAGES_PER_INSERT]
            timeout_s = min(messages[index].timeout for index in part).total_seconds()
            outcome = await self._insert([rows[index] for index in part], timeout_s)
            for index in part:
                outcomes[index] = outcome
        return outcomes

    async def ready(self) -> bool:
        """Whether the database answers within a second."""
        try:
            async with asyncio.timeout(1):
                await self._ask(await self._pool.acquire())
        except UNAVAILABLE:
            return False
        return not self._closed

    async def aclose(self) -> None:
        """Refuse further messages; the pool stays open. Repeated calls are harmless."""
        self._closed = True

    async def _insert(self, rows: Sequence[Row], timeout_s: float) -> Outcome:
        late: Outcome = _UNAVAILABLE
        lost: Outcome = _UNAVAILABLE
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._pool.acquire()
                late, lost = _LATE, _LOST
                await self._put(connection, rows)
        except TimeoutError:
            return late
        except asyncpg.PostgresError as error:
            state = str(error.sqlstate or "")
            if state.startswith(_IN_DOUBT):
                return lost
            return Refused(f"pg_{state.lower()}", f"The database refused it: {printable(str(error))}"[:1000])
        except (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError):
            return lost
        return Accepted()

    async def _ask(self, connection: PoolConnectionProxy) -> None:
        async with self._returned(connection):
            await connection.execute("SELECT 1")

    async def _put(self, connection: PoolConnectionProxy, rows: Sequence[Row]) -> None:
        async with self._returned(connection):
            await connection.execute(_QUERIES["put_messages"], *map(list, zip(*rows, strict=True)))

    @asynccontextmanager
    async def _returned(self, connection: PoolConnectionProxy) -> AsyncIterator[None]:
        try:
            yield
        except asyncio.CancelledError:
            connection.terminate()  # an ordinary cancel waits for an answer without a bound
            raise
        finally:
            await self._pool.release(connection)


def printable(text: str) -> str:
    """Return ``text`` with a space for every character that can disturb a terminal or a log line."""
    return "".join(character if character.isprintable() else " " for character in text)


def _topic(destination: str) -> str:
    target = parse_target(destination)
    if not isinstance(target, PostgresTarget):
        raise Rejected("invalid_target", "This broker sends to pg:TOPIC.")
    return target.topic


def _row(message: Message) -> Row:
    topic = _topic(message.destination)
    if not 1 <= len(message.id) <= ID_CHARS_MAX or len(message.body) > BODY_BYTES_MAX:
        text = f"A message has an id of 1 to {ID_CHARS_MAX} characters and at most {BODY_BYTES_MAX} bytes."
        raise Rejected("invalid_message", text)
    headers = json.dumps(dict(message.headers), ensure_ascii=False)
    for text in (message.id, message.key or "", headers, message.content_type):
        if "\x00" in text or "\\u0000" in text or (not text.isascii() and _has_surrogate(text)):
            raise Rejected("unsupported_character", "PostgreSQL stores neither NUL nor lone surrogates.")
    return topic, message.id, message.key, headers, message.content_type, bytes(message.body)


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


TAKE_MAX = 1000


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message that a consumer holds until its lease ends.

    Attributes:
        id: The sender's message id; the inbox key of its handler.
        deliveries: 1 for the first delivery.
        fence: Every later call about this delivery passes it.
    """

    seq: int
    topic: str
    id: str
    key: str | None
    headers: Mapping[str, str]
    content_type: str
    body: bytes
    deliveries: int
    fence: int
    created_at: datetime


class PostgresConsumer:
    """Takes messages of one topic; any number of consumers can share a topic.

    Args:
        lease: How long other consumers do not get a taken message, by the database's clock; above zero.
        deliveries_max: A message taken this often without an ack becomes dead; 1 or more.

    Invariants:
        PGC-1: a message has at most one holder with a valid fence.
        PGC-2: ack, nack, release and renew with an old fence change nothing and return false.
        PGC-3: a message is delivered at most ``deliveries_max`` times, released ones not counted.
    """

    def __init__(
        self,
        pool: asyncpg.Pool,
        topic: str,
        *,
        lease: timedelta = timedelta(seconds=30),
        deliveries_max: int = 20,
    ) -> None:
        self._pool = pool
        self._topic = topic
        self._lease = lease
        self._deliveries_max = deliveries_max

    async def take(self, count: int) -> list[Delivery]:
        """Lease up to ``count`` (1 to 1,000) messages, oldest first; empty if there are none.

        Raises:
            OSError, asyncpg.PostgresError: the database is unavailable. Retry. If the answer of a take is lost, its
            messages are available again when their leases end.
        """
        rows = await self._pool.fetch(
            _QUERIES["take_messages"], self._topic, min(count, TAKE_MAX), self._lease, self._deliveries_max
        )
        return [_delivery(row) for row in sorted(rows, key=lambda row: row["seq"]) if row["status"] == "ready"]

    async def ack(self, delivery: Delivery) -> bool:
        """Finish it; false if another consumer holds it."""
        return await self._settle("ack_message", delivery)

    async def nack(self, delivery: Delivery, error: str, *, delay: timedelta = timedelta(0)) -> bool:
        """Return it after a failure. After the last allowed delivery it becomes dead."""
        text = error.replace("\x00", " ").encode("utf-8", "backslashreplace").decode()
        return await self._settle("nack_message", delivery, delay, text, self._deliveries_max)

    async def release(self, delivery: Delivery) -> bool:
        """Return it unstarted; this does not count as a delivery."""
        return await self._settle("release_message", delivery)

    async def renew(self, delivery: Delivery) -> bool:
        """Renew its lease. False means that another consumer holds it: stop."""
        return await self._settle("renew_message", delivery, self._lease)

    async def purge(self, *, older_than: timedelta, count: int = TAKE_MAX) -> int:
        """Delete done messages and return how many. A deleted message that is sent again is a new message."""
        return len(await self._pool.fetch(_QUERIES["purge_messages"], self._topic, older_than, count))

    async def _settle(self, query: str, delivery: Delivery, *arguments: object) -> bool:
        found = await self._pool.fetchval(_QUERIES[query], delivery.seq, delivery.fence, *arguments)
        return found is not None


def _delivery(row: asyncpg.Record) -> Delivery:
    return Delivery(
        seq=row["seq"],
        topic=row["topic"],
        id=row["message_id"],
        key=row["key"],
        headers=json.loads(row["headers"]),
        content_type=row["content_type"],
        body=row["payload"],
        deliveries=row["deliveries"],
        fence=row["fence"],
        created_at=row["created_at"],
    )
