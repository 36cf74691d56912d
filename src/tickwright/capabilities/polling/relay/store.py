"""The polls' outbox as their relay reads and writes it. Every write is in a transaction that has locked the lease."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from tickwright.ports.polls import Committed
from tickwright.store.pool import Connection
from tickwright.store.queries import load

SQL = load("tickwright.capabilities.polling.sql", "relay.sql")
BATCHES_KEPT = 50_000  # whose offsets explain can name: half a day of one batch a second, some 20 MB
DROPPED_MAX = 1000  # rows in one transaction: each may hold a thousand trackers, whose numbers are counted


@dataclass(frozen=True, slots=True)
class BatchBounds:
    """How much one batch may hold.

    Attributes:
        trackers: About; one row more at most. A commit costs some 30 ms, so small batches are slow ones.
    """

    trackers: int = 10_000
    rows: int = 10_000


@dataclass(frozen=True, slots=True)
class Numbers:
    """The newest batch number of a shard that was given, and the newest that is published."""

    batch_no: int
    published_no: int


@dataclass(frozen=True, slots=True)
class FrozenRow:
    """A row of the batch that waits to be published: one second's trackers of one partner, at most a thousand."""

    due_at: datetime
    slot_id: int
    partner: str
    ids: Sequence[int]
    account_nos: Sequence[int]
    external_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class FrozenBatch:
    """A batch that has its number; its rows no longer change."""

    number: int
    rows: list[FrozenRow]


async def read_numbers(connection: Connection, shard: int) -> Numbers:
    """Return the numbers of a shard; a new shard begins at zero."""
    await connection.execute(SQL["open_shard"], shard)
    return Numbers(*await connection.fetchrow(SQL["numbers"], shard))


async def drop_superseded(connection: Connection, shard: int, rows_max: int) -> tuple[int, int]:
    """Drop, of the first ``rows_max`` released rows, those whose trackers' next poll is due.

    Returns:
        How many trackers were dropped, and how many rows may be published: none while more rows may have to be dropped
        first, because one call drops at most ``DROPPED_MAX``.
    """
    row = await connection.fetchrow(SQL["drop_superseded"], shard, rows_max, DROPPED_MAX)
    return row["trackers"], 0 if row["rows"] == DROPPED_MAX else rows_max - row["rows"]


async def drop_queued(connection: Connection, rows_max: int) -> int:
    """Drop at most ``rows_max`` superseded rows of the queue that no consumer holds; return how many trackers."""
    trackers: int = await connection.fetchval(SQL["drop_queued"], 2 * rows_max, rows_max)
    return trackers


async def freeze(connection: Connection, shard: int, bounds: BatchBounds) -> None:
    """Give what is released the next number, unless a batch waits to be published."""
    await connection.execute(SQL["freeze"], shard, bounds.trackers, bounds.rows)


async def read_frozen(connection: Connection, shard: int) -> FrozenBatch | None:
    """Return the batch that waits to be published."""
    found = await connection.fetch(SQL["read_frozen"], shard)
    if not found:
        return None
    return FrozenBatch(found[0]["batch_no"], [FrozenRow(*tuple(row)[1:]) for row in found])


async def mark_published(
    connection: Connection, shard: int, number: int, topic: str = "", committed: Committed | None = None
) -> int:
    """Mark the batches up to ``number`` as published; return how many trackers they have, 0 the second time.

    It needs a transaction that has locked the lease. Without ``topic`` no offsets are written.
    """
    offsets = committed or Committed()
    places = [[place[column] for place in offsets.places] for column in range(3)]
    trackers: int = await connection.fetchval(
        SQL["mark_published"], shard, number, topic, offsets.partitions, *places, BATCHES_KEPT
    )
    return trackers


async def move_to_queue(connection: Connection, shard: int, rows_max: int) -> tuple[int, int]:
    """Publish released rows into the queue inside PostgreSQL; return how many trackers and rows."""
    row = await connection.fetchrow(SQL["move_to_queue"], shard, rows_max)
    return row["trackers"], row["moved"]


async def next_release_s(connection: Connection, shard: int) -> float | None:
    """Return in how many seconds the next row is released, below zero for the past; ``None`` when none waits."""
    wait: float | None = await connection.fetchval(SQL["next_release_s"], shard)
    return wait
