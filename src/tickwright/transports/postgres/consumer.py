"""Taking messages out of a topic: leases with a fence, competing consumers, a limit of deliveries."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import asyncpg

from tickwright.store.queries import load

TAKE_MAX = 1000

_QUERIES = load("tickwright.transports.postgres", "queries.sql")


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message in a consumer's hands, until its lease ends.

    Attributes:
        id: The sender's message id; the inbox key of whoever handles it.
        deliveries: 1 on the first time.
        fence: What every later word about this delivery must repeat.
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
    """Takes messages of one topic; any number of these share the topic.

    Args:
        pool: Opened and closed by the caller.
        topic: Without the ``pg:``.
        lease: How long a message stays away from the others, by the database's clock; above zero.
        deliveries_max: A message taken so often without an ack is dead, 1 or more.

    Invariants:
        PGC-1: a message has at most one holder whose fence counts.
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
        """Lease up to ``count`` (1 to 1,000) messages, oldest first; empty when there is none.

        Raises:
            OSError, asyncpg.PostgresError: the database is away; take again later. What was
                leased by a take whose answer was lost comes back when its lease ends.
        """
        rows = await self._pool.fetch(
            _QUERIES["take_messages"], self._topic, min(count, TAKE_MAX), self._lease, self._deliveries_max
        )
        return [_delivery(row) for row in sorted(rows, key=lambda row: row["seq"]) if row["status"] == "ready"]

    async def ack(self, delivery: Delivery) -> bool:
        """Finish it; false when somebody else has it by now."""
        return await self._say("ack_message", delivery)

    async def nack(self, delivery: Delivery, error: str, *, delay: timedelta = timedelta(0)) -> bool:
        """Give it back after a failure; dead when that was the last allowed delivery."""
        text = error.replace("\x00", " ").encode("utf-8", "backslashreplace").decode()
        return await self._say("nack_message", delivery, delay, text, self._deliveries_max)

    async def release(self, delivery: Delivery) -> bool:
        """Give it back unstarted; that costs no delivery."""
        return await self._say("release_message", delivery)

    async def renew(self, delivery: Delivery) -> bool:
        """Start its lease again; false means stop, it is somebody else's."""
        return await self._say("renew_message", delivery, self._lease)

    async def purge(self, *, older_than: timedelta, count: int = TAKE_MAX) -> int:
        """Delete done messages and return how many; a resend of a deleted one is a new message."""
        return len(await self._pool.fetch(_QUERIES["purge_messages"], self._topic, older_than, count))

    async def _say(self, query: str, delivery: Delivery, *arguments: object) -> bool:
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
