"""The polls' outbox, as their relay sees it. Every write happens in a transaction that has locked the relay's lease."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tickwright.ports.log import Committed
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

SQL = load("tickwright.capabilities.polling.sql", "relay.sql")
BATCHES_KEPT = 50_000  # of which explain knows where they stand: half a day of one batch a second, some 20 MB
FOUND_MAX = 200
STANDS_CHARS_MAX = 1000
DROPPED_MAX = 1000  # rows in one transaction: each may hold a thousand trackers, whose numbers are counted


@dataclass(frozen=True, slots=True)
class BatchBounds:
    """How much one batch may hold.

    Attributes:
        trackers: About; one row more at most. A commit costs some 30 ms, so small batches are slow ones.
        rows: Of the outbox.
    """

    trackers: int = 10_000
    rows: int = 10_000


@dataclass(frozen=True, slots=True)
class Numbers:
    """Where a shard is: the newest batch number that was given, and the newest that is published."""

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
    """A batch that has its number; what it holds changes no more."""

    number: int
    rows: list[FrozenRow]


async def open_shard(connection: Connection, shard: int) -> None:
    """Make the row of a shard that has never had a relay; once more is harmless."""
    await connection.execute(SQL["open_shard"], shard)


async def block(connection: Connection, shard: int, code: str, text: str) -> None:
    """Write down why the relay of a shard stands, at most ``STANDS_CHARS_MAX`` characters of it."""
    await connection.execute(SQL["stand"], shard, code, text[:STANDS_CHARS_MAX])


async def unblock(connection: Connection, shard: int) -> None:
    """Write down that it does not stand."""
    await connection.execute(SQL["go_on"], shard)


async def read_numbers(connection: Connection, shard: int) -> Numbers:
    """Return where a shard is; a new one begins at zero."""
    await open_shard(connection, shard)
    return Numbers(*await connection.fetchrow(SQL["numbers"], shard))


async def drop_superseded(connection: Connection, shard: int, rows_max: int) -> tuple[int, int]:
    """Drop, of the first ``rows_max`` released rows, those whose trackers' next turn is due.

    Returns:
        How many trackers that were, and how many of the rows are left that may be published: none where more of
        them may have to go first, because one call drops at most ``DROPPED_MAX``.
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
    rows = [FrozenRow(*row[1:]) for row in (tuple(one) for one in found)]
    return FrozenBatch(found[0]["batch_no"], rows)


async def account_ids(connection: Connection, numbers: Iterable[int]) -> Mapping[int, str]:
    """Return the names of accounts by number; one that is gone is missing."""
    rows = await connection.fetch(SQL["account_ids"], list(numbers))
    return {row["account_no"]: row["account_id"] for row in rows}


async def mark_published(
    connection: Connection, shard: int, number: int, topic: str = "", committed: Committed | None = None
) -> int:
    """Take the batches up to ``number`` as published; return how many trackers that were, 0 the second time.

    Args:
        connection: In a transaction that has locked the lease.
        shard: Of the relay.
        number: Of the last batch that is in.
        topic: Where it is; nothing is written of its place without.
        committed: What the log said of where it stands.
    """
    stands = committed or Committed()
    places = [[place[column] for place in stands.places] for column in range(3)]
    trackers: int = await connection.fetchval(
        SQL["mark_published"], shard, number, topic, stands.partitions, *places, BATCHES_KEPT
    )
    return trackers


async def find_batches(
    pool: Pool, slot_id: int, due_at: datetime, partner_no: int, release_at: datetime
) -> Sequence[Any]:
    """Return the batches in which a turn's poll of one second may have gone to Kafka, the likeliest ones first.

    Args:
        pool: To ask.
        slot_id: Of the tracker.
        due_at: Its slot's minute.
        partner_no: Its partner.
        release_at: Its second; a catch-up releases later.
    """
    rows: Sequence[Any] = await pool.fetch(SQL["find_batches"], slot_id, due_at, partner_no, release_at, FOUND_MAX)
    return rows


async def group_at(pool: Pool, topic: str, partition: int) -> Any:
    """Return how far the consumers are in a partition, and who reads it; ``None`` where nothing was published."""
    return await pool.fetchrow(SQL["group_at"], topic, partition)


async def list_partitions(pool: Pool) -> Sequence[Any]:
    """Return how far the consumers are behind, for each partition that polls went to."""
    rows: Sequence[Any] = await pool.fetch(SQL["list_partitions"])
    return rows


async def move_to_queue(connection: Connection, shard: int, rows_max: int) -> tuple[int, int]:
    """Publish released rows into the queue inside PostgreSQL; return how many trackers and rows."""
    row = await connection.fetchrow(SQL["move_to_queue"], shard, rows_max)
    return row["trackers"], row["moved"]


async def next_release_s(connection: Connection, shard: int) -> float | None:
    """Return in how many seconds the next row may go, below zero where it should have; ``None`` where nothing waits."""
    wait: float | None = await connection.fetchval(SQL["next_release_s"], shard)
    return wait


async def list_relays(connection: Connection) -> Sequence[Any]:
    """Return what operators see of each shard."""
    rows: Sequence[Any] = await connection.fetch(SQL["list_relays"])
    return rows


async def adopt_position(connection: Connection, shard: int, number: int) -> int:
    """Take ``number`` as the last batch that is on the topic; return how many trackers that marked as published."""
    await connection.execute(SQL["adopt_position"], shard, number)
    return await mark_published(connection, shard, number)
