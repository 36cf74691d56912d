"""The transport inside PostgreSQL: a message is a row, durable when the insert has committed.

(topic, message id) is unique, so a resent message changes nothing. The caller owns the pool; closing this broker closes
no connection. Consumers lease messages with a fence and a limit of deliveries.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

import asyncpg
import structlog
from asyncpg.pool import PoolConnectionProxy

from tickwright.domain.errors import Rejected, Unavailable, storable
from tickwright.domain.targets import PostgresTarget, parse_target
from tickwright.engine.service import LoopService
from tickwright.engine.wakeup.turns import Turns, group_of
from tickwright.observe.metrics import Sample
from tickwright.ports.broker import Accepted, Message, Outcome, Refused, Unknown
from tickwright.ports.ids import monotonic
from tickwright.ports.session import Session
from tickwright.ports.task_queue import DeadMessage, Delivery, Peeked
from tickwright.store.pool import UNAVAILABLE, Pool
from tickwright.store.queries import load

MESSAGES_PER_INSERT = 500
BODY_BYTES_MAX = 16 * 1024 * 1024
ID_CHARS_MAX = 255

_TOPIC_SQL = load("tickwright.transports.postgres", "queries.sql")
_CLOSED = Refused("broker_closed", "This broker was closed; nothing was stored.")
_UNAVAILABLE = Refused("database_unavailable", "No connection to the database; nothing was stored.")
_LOST = Unknown("connection_lost", "The connection broke during the insert; it may have been stored.")
_LATE = Unknown("timeout", "No answer to the insert within the timeout; it may have been stored.")
_IN_DOUBT = ("08", "57")  # connection failures and shutdowns: the insert may have committed

_Row = tuple[str, str, str | None, str, str, bytes]


class PostgresBroker:
    """Stores messages in ``tickwright.messages``.

    Invariants:
        PGB-1: ``Accepted`` means committed.
        PGB-2: one (topic, message id) is one message, however often it is sent.
    """

    schemes = frozenset({"pg"})

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._closed = False

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
        rows: dict[int, _Row] = {}
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
                connection = await self._pool.acquire()
                async with self._returned(connection):
                    await connection.execute("SELECT 1")
        except UNAVAILABLE:
            return False
        return not self._closed

    async def aclose(self) -> None:
        """Refuse further messages; the pool stays open. Repeated calls are harmless."""
        self._closed = True

    async def _insert(self, rows: Sequence[_Row], timeout_s: float) -> Outcome:
        late: Outcome = _UNAVAILABLE
        lost: Outcome = _UNAVAILABLE
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._pool.acquire()
                late, lost = _LATE, _LOST
                async with self._returned(connection):
                    await connection.execute(_TOPIC_SQL["put_messages"], *map(list, zip(*rows, strict=True)))
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


def _row(message: Message) -> _Row:
    topic = _topic(message.destination)
    if not 1 <= len(message.id) <= ID_CHARS_MAX or len(message.body) > BODY_BYTES_MAX:
        text = f"A message has an id of 1 to {ID_CHARS_MAX} characters and at most {BODY_BYTES_MAX} bytes."
        raise Rejected("invalid_message", text)
    headers = json.dumps(dict(message.headers), ensure_ascii=False)
    for text in (message.id, message.key or "", headers, message.content_type):
        if "\\u0000" in text or storable(text) != text:
            raise Rejected("unsupported_character", "PostgreSQL stores neither NUL nor lone surrogates.")
    return topic, message.id, message.key, headers, message.content_type, bytes(message.body)


TAKE_MAX = 1000


@dataclass(frozen=True, slots=True)
class TopicDelivery:
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
        self, pool: asyncpg.Pool, topic: str, *, lease: timedelta = timedelta(seconds=30), deliveries_max: int = 20
    ) -> None:
        self._pool = pool
        self._topic = topic
        self._lease = lease
        self._deliveries_max = deliveries_max

    async def take(self, count: int) -> list[TopicDelivery]:
        """Lease up to ``count`` (1 to 1,000) messages, oldest first; empty if there are none.

        Raises:
            OSError, asyncpg.PostgresError: the database is unavailable. Retry. If the answer of a take is lost, its
            messages are available again when their leases end.
        """
        rows = await self._pool.fetch(
            _TOPIC_SQL["take_messages"], self._topic, min(count, TAKE_MAX), self._lease, self._deliveries_max
        )
        return [_topic_delivery(row) for row in sorted(rows, key=lambda row: row["seq"]) if row["status"] == "ready"]

    async def ack(self, delivery: TopicDelivery) -> bool:
        """Finish it; false if another consumer holds it."""
        return await self._settle("ack_message", delivery)

    async def nack(self, delivery: TopicDelivery, error: str, *, delay: timedelta = timedelta(0)) -> bool:
        """Return it after a failure. After the last allowed delivery it becomes dead."""
        text = error.replace("\x00", " ").encode("utf-8", "backslashreplace").decode()
        return await self._settle("nack_message", delivery, delay, text, self._deliveries_max)

    async def release(self, delivery: TopicDelivery) -> bool:
        """Return it unstarted; this does not count as a delivery."""
        return await self._settle("release_message", delivery)

    async def renew(self, delivery: TopicDelivery) -> bool:
        """Renew its lease. False means that another consumer holds it: stop."""
        return await self._settle("renew_message", delivery, self._lease)

    async def purge(self, *, older_than: timedelta) -> int:
        """Delete at most ``TAKE_MAX`` done messages; return how many. A deleted one that is sent again is new."""
        return len(await self._pool.fetch(_TOPIC_SQL["purge_messages"], self._topic, older_than, TAKE_MAX))

    async def _settle(self, query: str, delivery: TopicDelivery, *arguments: object) -> bool:
        found = await self._pool.fetchval(_TOPIC_SQL[query], delivery.seq, delivery.fence, *arguments)
        return found is not None


def _topic_delivery(row: asyncpg.Record) -> TopicDelivery:
    return TopicDelivery(
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


# A task queue inside PostgreSQL, for an installation without RabbitMQ.
#
# A taken message has a lease that is renewed; after a crash the lease ends and the message is available again.
# Acknowledged messages are deleted: the ledger of fan-out records the runs.

LEASE = timedelta(seconds=10)
IDLE_S = 0.25
RETRY_S = 1.0
COUNT_EVERY_S = 15.0
COUNT_MAX = 10_000
DELIVERIES_MAX = 11
DELAYS = "tickwright-delays"
REASON = "tickwright-reason"

_SQL = load("tickwright.transports.postgres", "tasks.sql")
_log = structlog.get_logger("tickwright.fanout")


class PostgresTaskQueue(LoopService):
    """Implements :class:`tickwright.ports.task_queue.TaskQueue` on a topic. It is a service itself.

    Args:
        slots: Messages held at one time, 1 to 1,000.
        lease: How long a message stays reserved after its holder crashed; renewed every third of it.
        session: Its heartbeats tell which consumers take turns; ``None`` for a consumer that takes on its own.

    Attributes:
        queued: Numbers of available messages and of dead letters, each at most 10,000, counted every 15 seconds.
    """

    name = "fanout-tasks"

    def __init__(
        self, pool: Pool, topic: str, *, slots: int, lease: timedelta = LEASE, session: Session | None = None
    ) -> None:
        super().__init__()
        self._pool, self._topic, self._slots, self._lease = pool, topic, slots, lease
        self._messages = PostgresConsumer(pool, topic, lease=lease, deliveries_max=DELIVERIES_MAX)
        self._held: set[Delivery] = set()
        self._ready: asyncio.Queue[Delivery] = asyncio.Queue()
        self._quiescing = False
        joined = session.join(group_of("tasks", topic), lambda: self._room > 0) if session else lambda: None
        self._turns = Turns(joined, IDLE_S)
        self._turn_s = 0.0
        self._count_again_s = 0.0
        self.queued: list[int] | None = None

    def samples(self) -> Sequence[Sample]:
        """Return the gauges for the metrics of this process."""
        if self.queued is None:
            return []
        waiting, dead = self.queued
        return [Sample("tickwright_fanout_queued_tasks", waiting), Sample("tickwright_dead_letters", dead, ("fanout",))]

    async def _work(self) -> None:
        """Take messages and renew their leases."""
        renewed_s = monotonic()
        while not self.stopping.is_set():
            self.wakeup.clear()
            rest_s = IDLE_S
            try:
                if monotonic() - renewed_s >= self._lease.total_seconds() / 3:
                    await self._renew()
                    renewed_s = monotonic()
                if self._turns.alone or monotonic() >= self._turn_s:
                    await self._take_some()
                await self._count()
            except UNAVAILABLE as error:
                _log.warning("postgres.tasks_not_taken", error=repr(error))
                rest_s = RETRY_S
            self.tick()
            if not self._turns.alone and (until_turn_s := self._turn_s - monotonic()) > 0:
                rest_s = until_turn_s
            await self.wait_for_work(min(rest_s, self._lease.total_seconds() / 6))

    async def _count(self) -> None:
        if monotonic() >= self._count_again_s:
            self._count_again_s = monotonic() + COUNT_EVERY_S
            self.queued = [*await self._pool.fetchrow(_SQL["count_tasks"], self._topic, COUNT_MAX)]

    async def _take_some(self) -> None:
        """Take as many messages as there are free slots: again with the next free slot, or at this process's turn."""
        room = self._room
        if room <= 0:
            return
        rows = await self._messages.take(room)
        self._turn_s = 0.0 if len(rows) >= room else monotonic() + self._turns.next_in_s()
        for row in rows:
            delivery = _delivery(row)
            self._held.add(delivery)
            self._ready.put_nowait(delivery)
        if self._quiescing:  # ``quiesce`` was called during the query
            await self._release_waiting()

    @property
    def _room(self) -> int:
        return 0 if self._quiescing else self._slots - len(self._held)

    async def _renew(self) -> None:
        held = [*self._held]
        if held:
            seqs, fences = [delivery.handle.seq for delivery in held], [delivery.handle.fence for delivery in held]
            await self._pool.fetch(_SQL["renew_tasks"], seqs, fences, self._lease)

    async def quiesce(self) -> None:
        """Take no more messages, and release those that no caller has taken."""
        self._quiescing = True
        await self._release_waiting()

    async def _release_waiting(self) -> None:
        for delivery in [self._ready.get_nowait() for _ in range(self._ready.qsize())]:
            await self.release(delivery)

    async def stop(self) -> None:
        """Stop. Messages that callers hold return when their leases end."""
        self._quiescing = True
        self.request_stop()

    async def take(self) -> Delivery:
        """Wait for the next message."""
        return await self._ready.get()

    async def ack(self, delivery: Delivery) -> bool:
        """Acknowledge it."""
        return await self._settle(delivery, "drop_task")

    async def delay(self, delivery: Delivery, by: timedelta) -> bool:
        """Make it available again after ``by``."""
        return await self._settle(delivery, "delay_task", by, str(delivery.delays + 1))

    async def dead_letter(self, delivery: Delivery, reason: str, text: str) -> bool:
        """Move it to the dead letters."""
        sendable = text.replace("\x00", " ").encode("utf-8", "backslashreplace").decode()
        return await self._settle(delivery, "dead_letter_task", reason, sendable)

    async def release(self, delivery: Delivery) -> None:
        """Return it to the queue at once."""
        self._drop(delivery)
        with suppress(*UNAVAILABLE):  # if this fails, its lease ends
            await self._messages.release(delivery.handle)

    async def _settle(self, delivery: Delivery, query: str, *arguments: object) -> bool:
        """Apply a query to a message. If the database is unavailable, return false: the message is delivered again."""
        row: TopicDelivery = delivery.handle
        try:
            return await self._pool.fetchval(_SQL[query], row.seq, row.fence, *arguments) is not None
        except UNAVAILABLE as error:
            _log.warning("postgres.task_not_settled", message_id=delivery.message_id, error=repr(error))
            return False
        finally:
            self._drop(delivery)

    def _drop(self, delivery: Delivery) -> None:
        self._held.discard(delivery)
        self.wakeup.set()


def _delivery(row: TopicDelivery) -> Delivery:
    delays = str(row.headers.get(DELAYS, "0"))
    return Delivery(
        body=row.body,
        headers=row.headers,
        message_id=row.id,
        content_encoding=None,
        deliveries=row.deliveries,
        delays=int(delays) if delays.isascii() and delays.isdigit() and len(delays) < 10 else 0,
        handle=row,
    )


class PostgresDeadLetters:
    """Implements :class:`tickwright.ports.task_queue.DeadMessages` on a topic."""

    def __init__(self, pool: Pool, topic: str) -> None:
        self._pool, self._topic = pool, topic

    async def peek(self, limit: int) -> Peeked:
        """Return the oldest dead letters."""
        [[count]] = await self._query("count_dead")
        dead = []
        for row in await self._query("peek_dead", limit):
            headers = json.loads(row["headers"])
            reason = str(headers.get(REASON, "delivery_limit"))
            dead.append(DeadMessage(row["message_id"], reason, row["error"], row["died_at_s"], bytes(row["payload"])))
        return Peeked(dead, max(int(count), len(dead)))  # some can die after the count

    async def requeue(self, limit: int, *, message_ids: Sequence[str] | None = None) -> list[str]:
        """Return dead letters to the queue."""
        wanted = None if message_ids is None else [*message_ids]
        return [row["message_id"] for row in await self._query("requeue_dead", wanted, limit)]

    async def _query(self, query: str, *arguments: object) -> Sequence[asyncpg.Record]:
        try:
            rows: Sequence[asyncpg.Record] = await self._pool.fetch(_SQL[query], self._topic, *arguments)
        except UNAVAILABLE as error:
            raise Unavailable("database_unavailable", "the database does not answer; try again") from error
        return rows
