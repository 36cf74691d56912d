"""Statements on the wheels: places, due slots, moves. Each runs in a transaction that holds its loop's lease.

A *slot* is one minute of a wheel, a *place* one second of a slot (``slot_id * 60 + second``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tickwright.domain.spreading import BUCKETS_PER_SLOT, Move
from tickwright.store.pool import Connection
from tickwright.store.queries import load

_PACKAGE = "tickwright.capabilities.polling.sql"
_FRAGMENTS = {name: "\n".join(text.splitlines()[1:]) for name, text in load(_PACKAGE, "fragments.sql").items()}
WANTED = _FRAGMENTS["wanted"].strip()
_SELECTION = _FRAGMENTS["selection"].replace("{wanted}", WANTED)
SQL = {name: sql.replace("{selection}", _SELECTION) for name, sql in load(_PACKAGE, "wheels.sql").items()}
IDS_PER_ROW = 1000


@dataclass(frozen=True, slots=True)
class Instants:
    """The database's clock; a slot that was due before ``next_minute`` has started, and is missed."""

    now: datetime
    next_minute: datetime


@dataclass(frozen=True, slots=True)
class DueSlot:
    """A slot and the minute that it is selected for."""

    slot_id: int
    due_at: datetime


@dataclass(frozen=True, slots=True)
class PassedSlot:
    """A slot and the last minute of it that is over."""

    slot_id: int
    interval_minutes: int
    due_at: datetime


@dataclass(frozen=True, slots=True)
class SlotLoad:
    """The trackers of one partner that a slot's last selection counted, per bucket of ten seconds."""

    slot_id: int
    next_due_at: datetime
    prev_due_at: datetime
    loads: Sequence[int]


@dataclass(frozen=True, slots=True)
class SelectionCounts:
    """Trackers that one selection put into the outbox, and those that it skipped (paused, postponed, too old)."""

    trackers: int
    skipped: int


@dataclass(frozen=True, slots=True)
class MoveStep:
    """One step of a move: trackers read, trackers moved, and the last id that was read."""

    seen: int
    moved: int
    last_id: int


async def read_clock(connection: Connection) -> Instants:
    """Return the database's clock."""
    row = await connection.fetchrow(SQL["clock"])
    return Instants(row["now"], row["next_minute"])


async def add_missing_wheels(connection: Connection) -> int:
    """Create the wheels that accounts' intervals need; return how many."""
    missing = await connection.fetch(SQL["missing_wheels"])
    added = [await connection.execute(SQL["add_wheel"], interval_minutes) for (interval_minutes,) in missing]
    return sum(status != "INSERT 0 0" for status in added)


async def place_new(connection: Connection, at_most: int) -> tuple[int, int]:
    """Place registered trackers; return how many left the intake, and how many of them were new."""
    row = await connection.fetchrow(SQL["place_new"], at_most)
    return row["taken"], row["placed"]


async def pass_missed(connection: Connection, before: datetime) -> int:
    """Pass the slots that were due before ``before`` and not selected; return how many slots have to be caught up."""
    return len(await connection.fetch(SQL["pass_missed"], before))


async def due_slots(connection: Connection, until: datetime) -> list[DueSlot]:
    """Return the slots that are due until ``until``, in order."""
    rows = await connection.fetch(SQL["due_slots"], until)
    return [DueSlot(slot_id, row["next_due_at"]) for row in rows for slot_id in row["slots"]]


async def select_slot(connection: Connection, slot: DueSlot, shards: int) -> SelectionCounts:
    """Select a slot for its minute; a slot that is selected already counts nothing."""
    await connection.execute(SQL["lock_slot"], slot.slot_id)
    return _counts(await connection.fetch(SQL["select_slot"], slot.slot_id, slot.due_at, IDS_PER_ROW, shards))


async def select_missed(connection: Connection, slot_id: int, release_from: datetime, shards: int) -> SelectionCounts:
    """Select a slot's missed minute, to be released over the minute from ``release_from`` on."""
    await connection.execute(SQL["lock_slot"], slot_id)
    return _counts(await connection.fetch(SQL["select_missed"], slot_id, release_from, IDS_PER_ROW, shards))


def _counts(rows: Sequence[Any]) -> SelectionCounts:
    return SelectionCounts(sum(row["selected"] for row in rows), sum(row["skipped"] for row in rows))


async def passed_slots(connection: Connection, after: tuple[datetime, int]) -> list[PassedSlot]:
    """Return the slots whose minute is over, in order; only those after ``after``, a minute and a slot."""
    return [PassedSlot(*row) for row in await connection.fetch(SQL["passed_slots"], *after)]


async def forget_slices(connection: Connection, slot: PassedSlot, kept: timedelta, at_most: int) -> None:
    """Delete a slot's rows of the slice ledger that are an interval older than ``kept``, and rows older than any."""
    await connection.execute(SQL["forget_slices"], slot.slot_id, slot.due_at, kept, at_most)


async def slot_loads(connection: Connection, interval_minutes: int) -> dict[int, list[SlotLoad]]:
    """Return what the last selections of a wheel counted, by partner."""
    found: dict[int, list[SlotLoad]] = {}
    for row in await connection.fetch(SQL["loads"], interval_minutes):
        slot = SlotLoad(row["slot_id"], row["next_due_at"], row["prev_due_at"], row["loads"])
        found.setdefault(row["partner_no"], []).append(slot)
    return found


async def level_bucket(connection: Connection, partner_no: int, move: Move) -> int:
    """Carry out one move between two buckets, numbered over all slots; return how many trackers moved."""
    bucket_s = 60 // BUCKETS_PER_SLOT
    moved: int = await connection.fetchval(
        SQL["level_bucket"], move.source * bucket_s, partner_no, move.trackers, move.target * bucket_s
    )
    return moved


async def move_to_wheel(
    connection: Connection, slot_id: int, accounts: Sequence[int], interval_minutes: int, *, at_most: int, after_id: int
) -> MoveStep:
    """Move some trackers of a slot, those with ids above ``after_id``, to another wheel."""
    row = await connection.fetchrow(SQL["move_to_wheel"], slot_id, list(accounts), interval_minutes, at_most, after_id)
    return MoveStep(row["seen"], row["moved"], row["last_id"] or after_id)
