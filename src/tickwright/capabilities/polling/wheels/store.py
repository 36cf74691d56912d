"""The wheels in the database: places, turns, moves. Every statement runs in a transaction of its loop's lease."""

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
SELECTOR = "selector"


@dataclass(frozen=True, slots=True)
class Instants:
    """The database's clock.

    Attributes:
        now: By the database.
        next_minute: The next whole minute: a turn from before it has begun without us.
    """

    now: datetime
    next_minute: datetime


@dataclass(frozen=True, slots=True)
class DueSlot:
    """A slot and the minute for which it is selected."""

    slot_id: int
    due_at: datetime


@dataclass(frozen=True, slots=True)
class PassedSlot:
    """A slot and the last minute of its that is over."""

    slot_id: int
    interval_minutes: int
    due_at: datetime


@dataclass(frozen=True, slots=True)
class SlotLoad:
    """What the last turn of a slot counted, per bucket, for one partner."""

    slot_id: int
    next_due_at: datetime
    prev_due_at: datetime
    loads: Sequence[int]


@dataclass(frozen=True, slots=True)
class SelectionCounts:
    """What one selection put into the outbox, and what it passed over (paused, postponed, past its time)."""

    trackers: int
    skipped: int


@dataclass(frozen=True, slots=True)
class MoveStep:
    """One step of a move: what was looked at, what was moved, and the last id that was looked at."""

    seen: int
    moved: int
    last_id: int


async def read_clock(connection: Connection) -> Instants:
    """Return the database's clock."""
    row = await connection.fetchrow(SQL["clock"])
    return Instants(row["now"], row["next_minute"])


async def add_missing_wheels(connection: Connection) -> int:
    """Make the wheels that accounts' intervals need; return how many."""
    missing = await connection.fetch(SQL["missing_wheels"])
    added = [await connection.execute(SQL["add_wheel"], interval_minutes) for (interval_minutes,) in missing]
    return sum(status != "INSERT 0 0" for status in added)


async def place_new(connection: Connection, at_most: int) -> tuple[int, int]:
    """Place registered trackers; ``(taken from the intake, placed)``. The difference was registered already."""
    row = await connection.fetchrow(SQL["place_new"], at_most)
    return row["taken"], row["placed"]


# ---------------------------------------------------------------------- turns


async def pass_missed(connection: Connection, before: datetime) -> int:
    """Go past the turns from before ``before`` that nobody selected; return how many slots have one to make good."""
    return len(await connection.fetch(SQL["pass_missed"], before))


async def due_slots(connection: Connection, until: datetime) -> list[DueSlot]:
    """Return the turns that are due until ``until``, in order."""
    rows = await connection.fetch(SQL["due_slots"], until)
    return [DueSlot(slot_id, row["next_due_at"]) for row in rows for slot_id in row["slots"]]


async def select_slot(connection: Connection, turn: DueSlot, shards: int) -> SelectionCounts:
    """Select one slot's turn; nothing when somebody else has done it."""
    await connection.execute(SQL["lock_slot"], turn.slot_id)
    rows = await connection.fetch(SQL["select_slot"], turn.slot_id, turn.due_at, IDS_PER_ROW, shards)
    return _selected(rows)


async def missed_slots(connection: Connection, not_due_before: datetime) -> list[int]:
    """Return per wheel the slot whose missed turn has waited longest, of those whose next turn is not near."""
    return [row["slot_id"] for row in await connection.fetch(SQL["next_missed"], not_due_before)]


async def select_missed(connection: Connection, slot_id: int, release_from: datetime, shards: int) -> SelectionCounts:
    """Select a slot's missed turn, to be released over the minute from ``release_from`` on."""
    await connection.execute(SQL["lock_slot"], slot_id)
    return _selected(await connection.fetch(SQL["select_missed"], slot_id, release_from, IDS_PER_ROW, shards))


async def newest_slice(connection: Connection) -> datetime | None:
    """Return the newest minute over which a missed turn was released."""
    newest: datetime | None = await connection.fetchval(SQL["newest_slice"], SELECTOR)
    return newest


async def note_slice(connection: Connection, minute: datetime) -> None:
    """Say that the catch-up has done ``minute``."""
    await connection.execute(SQL["note_slice"], SELECTOR, minute)


def _selected(rows: Sequence[Any]) -> SelectionCounts:
    return SelectionCounts(sum(row["selected"] for row in rows), sum(row["skipped"] for row in rows))


# ---------------------------------------------------------------------- behind the selector


async def passed_slots(connection: Connection, after: tuple[datetime, int]) -> list[PassedSlot]:
    """Return the slots that were selected behind ``after``, a minute and a slot of it, in order."""
    return [PassedSlot(*row) for row in await connection.fetch(SQL["passed_slots"], *after)]


async def end_aged(connection: Connection, slot_id: int, at_most: int, destination: str) -> int:
    """End the trackers of a slot whose time is over; return how many."""
    ended: int = await connection.fetchval(SQL["end_aged"], slot_id, at_most, destination)
    return ended


async def forget_done(connection: Connection, slot_id: int) -> None:
    """Delete what the ledger no longer needs to know of a slot."""
    await connection.execute(SQL["forget_done"], slot_id)


async def forget_slices(connection: Connection, turned: PassedSlot, kept: timedelta, at_most: int) -> None:
    """Delete a slot's rows of the slice ledger that are an interval older than ``kept``, and what is older than any."""
    await connection.execute(SQL["forget_slices"], turned.slot_id, turned.due_at, kept, at_most)


async def slot_loads(connection: Connection, interval_minutes: int) -> dict[int, list[SlotLoad]]:
    """Return what the last turns of a wheel counted, by partner."""
    found: dict[int, list[SlotLoad]] = {}
    for row in await connection.fetch(SQL["loads"], interval_minutes):
        load_ = SlotLoad(row["slot_id"], row["next_due_at"], row["prev_due_at"], row["loads"])
        found.setdefault(row["partner_no"], []).append(load_)
    return found


async def level_bucket(connection: Connection, partner_no: int, move: Move) -> int:
    """Carry out one move between two buckets (numbered over all slots); return how many trackers moved."""
    bucket_s = 60 // BUCKETS_PER_SLOT
    moved: int = await connection.fetchval(
        SQL["level_bucket"], move.source * bucket_s, partner_no, move.trackers, move.target * bucket_s
    )
    return moved


# ---------------------------------------------------------------------- changed intervals


async def changed_accounts(connection: Connection) -> list[tuple[int, int, list[int]]]:
    """Return ``(old interval, new interval, account numbers)`` of accounts whose trackers have to move."""
    return [(row["source"], row["target"], row["accounts"]) for row in await connection.fetch(SQL["changed_accounts"])]


async def wheel_slots(connection: Connection, interval_minutes: int) -> range:
    """Return the slots of an interval's wheel."""
    row = await connection.fetchrow(SQL["wheel_slots"], interval_minutes)
    return range(0) if row is None else range(row["first_slot_id"], row["after_slot_id"])


async def move_to_wheel(
    connection: Connection, slot_id: int, accounts: Sequence[int], interval_minutes: int, *, at_most: int, after_id: int
) -> MoveStep:
    """Move some trackers of a slot, those behind ``after_id``, to another wheel."""
    row = await connection.fetchrow(SQL["move_to_wheel"], slot_id, list(accounts), interval_minutes, at_most, after_id)
    return MoveStep(row["seen"], row["moved"], row["last_id"] or after_id)


async def still_on(connection: Connection, slots: range, accounts: Sequence[int]) -> bool:
    """Whether any tracker of the accounts stands on these slots."""
    found: bool = await connection.fetchval(SQL["still_on_wheel"], slots.start, list(accounts), slots.stop)
    return found


async def note_placed(connection: Connection, accounts: Sequence[int], interval_minutes: int, left: int) -> None:
    """Say that the accounts, of ``interval_minutes`` now, have nobody on the wheel of ``left`` any more."""
    await connection.execute(SQL["note_placed"], list(accounts), interval_minutes, left)
