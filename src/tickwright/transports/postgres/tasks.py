"""A task queue inside PostgreSQL, for an installation without RabbitMQ.

A taken message has a lease that is renewed; after a crash the lease ends and the message is available again.
Acknowledged messages are deleted: the ledger of fan-out records the runs.
"""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

import asyncpg
import structlog

from tickwright.domain.errors import Unavailable
from tickwright.engine.service import LoopService
from tickwright.observe.metrics import Sample
from tickwright.ports.dead_letters import DeadMessage, Peeked
from tickwright.ports.ids import monotonic
from tickwright.ports.task_queue import Delivery
from tickwright.store.pool import UNAVAILABLE, Pool
from tickwright.store.queries import load
from tickwright.transports.postgres.broker import Delivery as Row
from tickwright.transports.postgres.broker import PostgresConsumer

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

    Attributes:
        queued: Numbers of available messages and of dead letters, each at most 10,000, counted every 15 seconds.
    """

    name = "fanout-tasks"

    def __init__(self, pool: Pool, topic: str, *, slots: int, lease: timedelta = LEASE) -> None:
        super().__init__()
        self._pool, self._topic, self._slots, self._lease = pool, topic, slots, lease
        self._messages = PostgresConsumer(pool, topic, lease=lease, deliveries_max=DELIVERIES_MAX)
        self._held: set[Delivery] = set()
        self._ready: asyncio.Queue[Delivery] = asyncio.Queue()
        self._quiescing = False
        self._count_again_s = 0.0
        self.queued: list[int] | None = None

    def samples(self) -> Sequence[Sample]:
        """Return the gauges for the metrics of this process."""
        if self.queued is None:
            return []
        waiting, dead = self.queued
        return [
            Sample("tickwright_fanout_queued_tasks", waiting),
            Sample("tickwright_dead_letters", dead, ("fanout",)),
        ]

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
                await self._take_some()
                await self._count()
            except UNAVAILABLE as error:
                _log.warning("fanout.tasks_not_taken", error=repr(error))
                rest_s = RETRY_S
            self.tick()
            await self.wait_for_work(min(rest_s, self._lease.total_seconds() / 6))

    async def _count(self) -> None:
        if monotonic() >= self._count_again_s:
            self._count_again_s = monotonic() + COUNT_EVERY_S
            self.queued = [*await self._pool.fetchrow(_SQL["count_tasks"], self._topic, COUNT_MAX)]

    async def _take_some(self) -> None:
        """Take as many messages as there are free slots."""
        room = 0 if self._quiescing else self._slots - len(self._held)
        if room <= 0:
            return
        rows = await self._messages.take(room)
        for row in rows:
            delivery = _delivery(row)
            self._held.add(delivery)
            self._ready.put_nowait(delivery)
        if self._quiescing:  # ``quiesce`` was called during the query
            await self._release_waiting()

    async def _renew(self) -> None:
        held = [*self._held]
        if held:
            seqs, fences = [one.handle.seq for one in held], [one.handle.fence for one in held]
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
        words = text.replace("\x00", " ").encode("utf-8", "backslashreplace").decode()
        return await self._settle(delivery, "bury_task", reason, words)

    async def release(self, delivery: Delivery) -> None:
        """Return it to the queue at once."""
        self._drop(delivery)
        with suppress(*UNAVAILABLE):  # if this fails, its lease ends
            await self._messages.release(delivery.handle)

    async def _settle(self, delivery: Delivery, query: str, *arguments: object) -> bool:
        """Apply a query to a message. If the database is unavailable, return false: the message is delivered again."""
        row: Row = delivery.handle
        try:
            return await self._pool.fetchval(_SQL[query], row.seq, row.fence, *arguments) is not None
        except UNAVAILABLE as error:
            _log.warning("fanout.task_not_settled", message_id=delivery.message_id, error=repr(error))
            return False
        finally:
            self._drop(delivery)

    def _drop(self, delivery: Delivery) -> None:
        self._held.discard(delivery)
        self.wakeup.set()


def _delivery(row: Row) -> Delivery:
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
    """Implements :class:`tickwright.ports.dead_letters.DeadMessages` on a topic."""

    def __init__(self, pool: Pool, topic: str) -> None:
        self._pool, self._topic = pool, topic

    async def peek(self, limit: int) -> Peeked:
        """Return the oldest dead letters."""
        [[count]] = await self._ask("count_dead")
        dead = []
        for row in await self._ask("peek_dead", limit):
            headers = json.loads(row["headers"])
            reason = str(headers.get(REASON, "delivery_limit"))
            dead.append(DeadMessage(row["message_id"], reason, row["error"], row["died_at_s"], bytes(row["payload"])))
        return Peeked(dead, max(int(count), len(dead)))  # some can die after the count

    async def requeue(self, limit: int, *, message_ids: Sequence[str] | None = None) -> list[str]:
        """Return dead letters to the queue."""
        wanted = None if message_ids is None else [*message_ids]
        return [row["message_id"] for row in await self._ask("requeue_dead", wanted, limit)]

    async def _ask(self, query: str, *arguments: object) -> Sequence[asyncpg.Record]:
        try:
            rows: Sequence[asyncpg.Record] = await self._pool.fetch(_SQL[query], self._topic, *arguments)
        except UNAVAILABLE as error:
            raise Unavailable("database_unavailable", "the database does not answer; try again") from error
        return rows
