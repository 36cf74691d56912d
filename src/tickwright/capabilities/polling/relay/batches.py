"""Batches of polls: the outbox as the relay reads and writes it, and the messages of a batch.

Every write is in a transaction that has locked the lease. This is the one place that writes and reads a message; its
bytes derive from the outbox row alone, so every attempt to publish a poll sends the same. Its id is (tracker, due
second), which never repeats; consumers store it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from tickwright.capabilities.polling.polls import poll_id
from tickwright.ports.polls import Committed, PollRecord, Record
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
    columns = [[place[column] for place in offsets.places] for column in range(3)]
    trackers: int = await connection.fetchval(
        SQL["mark_published"], shard, number, topic, offsets.partitions, *columns, BATCHES_KEPT
    )
    return trackers


async def next_release_s(connection: Connection, shard: int) -> float | None:
    """Return in how many seconds the next row is released, below zero for the past; ``None`` when none waits."""
    wait: float | None = await connection.fetchval(SQL["next_release_s"], shard)
    return wait


VERSION = 1
ID_MAX = 2**53 - 1
SLOT_MAX = 2**31 - 1
YEARS = (2000, 2200)
PARTNER_MAX = 50
NAME_MAX = 200
"""As in the columns: no row has a longer name, so longer ones are not kept in memory."""


class PollMessage(msgspec.Struct, frozen=True):
    """The value of a record; see docs/messages.md.

    Attributes:
        version: 1. Members may be added under it; none is renamed or gets another meaning.
        id: ``poll_<tracker id>_<due second since 1970>``.
        due_at: RFC 3339 in UTC, whole seconds.
        slot_id: Its slot in the slice ledger; ``None`` from relays up to 0.1, which wrote it in a header only.
    """

    version: int
    id: str
    tracker_id: int
    due_at: str
    partner: str
    account_id: str
    external_id: str
    slot_id: int | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(PollMessage).decode


def poll_records(rows: list[FrozenRow], accounts: Mapping[int, str]) -> Iterator[Record]:
    """Return the records of a frozen batch, always in the same order; a deleted account is named by its number."""
    for row in rows:
        slot = ("slot_id", b"%d" % row.slot_id)
        due_at = row.due_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for tracker_id, account_no, external_id in zip(row.ids, row.account_nos, row.external_ids, strict=True):
            event_id = poll_id(tracker_id, row.due_at)
            account_id = accounts.get(account_no) or str(account_no)
            message = PollMessage(
                VERSION, event_id, tracker_id, due_at, row.partner, account_id, external_id, row.slot_id
            )
            yield Record(poll_key(tracker_id), _encode(message), [("event_id", event_id.encode()), slot])


def poll_key(tracker_id: int) -> bytes:
    """Return the key of a tracker's records: they have one partition, and are in order there."""
    return b"%d" % tracker_id


def read_poll(value: bytes) -> PollRecord:
    """Return the poll of a record.

    Its headers are not read: a name that is not UTF-8 ends the process inside the client library.

    Raises:
        ValueError: Not a poll of version 1. Permanent for this record.
    """
    try:
        message = _decode(value)
        poll = PollRecord(
            message.tracker_id,
            message.slot_id,
            datetime.fromisoformat(message.due_at),
            message.partner,
            message.account_id,
            message.external_id,
        )
    except (msgspec.MsgspecError, RecursionError) as error:  # the latter also for unknown members
        raise ValueError(repr(error)) from error
    if message.version != VERSION or not _is_storable(poll):
        raise ValueError(f"version {message.version} of {message.id[:80]!r}, due at {message.due_at[:40]!r}")
    return poll


def _is_storable(poll: PollRecord) -> bool:
    """Whether the database could have written it; a poll that no query accepts would be delivered for ever."""
    texts, longest = (poll.partner, poll.account_id, poll.external_id), (PARTNER_MAX, NAME_MAX, NAME_MAX)
    if any(len(text) > most or "\0" in text for text, most in zip(texts, longest, strict=True)):
        return False
    in_bounds = 1 <= poll.tracker_id <= ID_MAX and 0 <= (poll.slot_id or 0) <= SLOT_MAX
    return in_bounds and poll.due_at.tzinfo is not None and YEARS[0] <= poll.due_at.year <= YEARS[1]
