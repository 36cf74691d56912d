"""Fan-out's queue inside PostgreSQL, for tests: the same interface as ``kit.rabbit_tasks``."""

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import uuid4

from kit.waiting import eventually_async
from tickwright.ports.broker import Accepted, Message
from tickwright.store.pool import Pool
from tickwright.transports.postgres.broker import PostgresBroker, PostgresDeadLetters
from tickwright.transports.rabbitmq.topology import fanout_names

_WAITING = """
SELECT count(*) FROM tickwright.messages
 WHERE topic = $1 AND CASE $2 WHEN 'dead' THEN status = 'dead'
                              WHEN 'delay' THEN status = 'ready' AND available_at > clock_timestamp() + interval '0.1 s'
                              ELSE status = 'ready' AND available_at <= clock_timestamp() END
"""
_TAKE = "DELETE FROM tickwright.messages WHERE topic = $1 AND status = 'ready' RETURNING message_id"


class PgFanout:
    """The topic of one test."""

    url = direct_url = ""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._put_times: Counter[str] = Counter()
        self.names = fanout_names(f"t{uuid4().hex[:12]}")

    async def prepare(self) -> None:
        """Do nothing: a topic needs no preparation."""

    async def remove(self) -> None:
        """Do nothing: the database is removed with the test."""

    @property
    def destination(self) -> str:
        """The destination to which schedulers publish."""
        return f"pg:{self.names.queue}"

    @property
    def dead(self) -> PostgresDeadLetters:
        """The dead letters, as an operator sees them."""
        return PostgresDeadLetters(self._pool, self.names.queue)

    async def put(self, *ids: str, body: bytes = b"{}", headers: Mapping[str, Any] | None = None) -> None:
        """Store a task under each id; a repeated id is a second message, as after a scheduler's error."""
        for one in ids:
            self._put_times[one] += 1
            known = one if self._put_times[one] == 1 else f"{one}~{self._put_times[one]}"
            message = Message(known, self.destination, body, headers=headers or {}, timeout=timedelta(seconds=5))
            assert await PostgresBroker(self._pool).publish(message) == Accepted()

    async def ids_in(self, _queue: str) -> list[str]:
        """Take all messages out and return their ids."""
        return [row["message_id"] for row in await self._pool.fetch(_TAKE, self.names.queue)]

    async def count(self, queue: str) -> int:
        """Return how many messages are in the state for which RabbitMQ has a queue, by that queue's name."""
        kind = "dead" if queue == self.names.dead else "delay" if ".delay." in queue else "ready"
        found: int = await self._pool.fetchval(_WAITING, self.names.queue, kind)
        return found

    async def counted(self, queue: str, wanted: int) -> None:
        """Wait until there are that many."""

        async def so_many() -> bool:
            return await self.count(queue) == wanted

        await eventually_async(so_many, what=f"{wanted} in {queue}")
