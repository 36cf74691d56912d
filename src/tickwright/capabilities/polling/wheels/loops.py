"""The loops of the wheels. Each works in short transactions that lock its own lease.

::

    tracker_intake ──registrar──▶ place ──selector──▶ scheduler_outbox ──relay──▶ topic
                                    ▲  │
                                    └──┘ corrector: another interval, a slot too full, a tracker too old

A loop has ``round(lease)``, which does the present work and returns the seconds until its next call. It keeps nothing
in memory that another process would need to continue.

A *slot* is one minute of a wheel, a *place* one second of a slot (``slot_id * 60 + second``), and a *bucket* ten
seconds. Load that is even in buckets is even in longer slices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import heapify, heappop, heappush
from math import ceil, sqrt
from typing import Any, NamedTuple

import structlog

from tickwright.ports.service import NO_PROBE, Probe
from tickwright.ports.session import HeldLease
from tickwright.store.pool import Connection
from tickwright.store.queries import load

_PACKAGE = "tickwright.capabilities.polling.sql"
_FRAGMENTS = {name: "\n".join(text.splitlines()[1:]) for name, text in load(_PACKAGE, "fragments.sql").items()}
WANTED = _FRAGMENTS["wanted"].strip()
_SELECTION = _FRAGMENTS["selection"].replace("{wanted}", WANTED)
SQL = {name: sql.replace("{selection}", _SELECTION) for name, sql in load(_PACKAGE, "wheels.sql").items()}
IDS_PER_ROW = 1000
PLACE_MAX = 5000
AHEAD = timedelta(minutes=1)
SELECTED_EVERY_S = 60.0
CORRECTOR_IDLE_S = 10.0
INTAKE_S, INTAKE_IDLE_S = 1.0, 30.0
SLOTS_SELECTED_MAX = 200
MOVES_MAX = 2000
LEVEL_MOVES_MAX = 500
AGED_MAX = 1000
SLOTS_MAX = 10
BEHIND = timedelta(hours=1)
SLICES_KEPT = timedelta(days=3)
SOON = timedelta(minutes=2)
SELECTOR = "selector"
INTAKE_CHANNEL, INTAKE_LOCK = "tickwright_intake", 6
BUCKET_S = 10
BUCKETS_PER_SLOT = 60 // BUCKET_S

_log = structlog.get_logger("tickwright.polling")


class DueSlot(NamedTuple):
    """A slot and the minute that it is selected for."""

    slot_id: int
    due_at: datetime


class PassedSlot(NamedTuple):
    """A slot and the last minute of it that is over."""

    slot_id: int
    interval_minutes: int
    due_at: datetime


class SlotLoad(NamedTuple):
    """The trackers of one partner that a slot's last selection counted, per bucket of ten seconds."""

    slot_id: int
    next_due_at: datetime
    prev_due_at: datetime
    loads: Sequence[int]


class SelectionCounts(NamedTuple):
    """Trackers that one selection put into the outbox, and those that it skipped (paused, postponed, too old)."""

    trackers: int
    skipped: int


class MoveStep(NamedTuple):
    """One step of a move: trackers read, trackers moved, and the last id that was read."""

    seen: int
    moved: int
    last_id: int


@dataclass(frozen=True, slots=True)
class Move:
    """A number of trackers of one partner that move from one bucket of a wheel to another."""

    source: int
    target: int
    trackers: int


async def read_clock(connection: Connection) -> tuple[datetime, datetime]:
    """Return the database's clock, and the next minute: a slot that was due before it has started, and is missed."""
    row = await connection.fetchrow(SQL["clock"])
    return row["now"], row["next_minute"]


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


class Registrar:
    """Gives registered trackers their places: the *unscheduled updater* of the source document."""

    async def round(self, lease: HeldLease) -> float:
        """Place the oldest trackers of the intake."""
        async with lease.transaction() as connection:
            if connection is None:
                return 0.0
            if await add_missing_wheels(connection):
                return 0.0
            taken, placed = await place_new(connection, PLACE_MAX)
        if taken > placed:
            _log.info("polling.registered_again", trackers=taken - placed)
        return 0.0 if taken == PLACE_MAX else INTAKE_S if taken else INTAKE_IDLE_S


class Selector:
    """Puts what is due within a minute into the outbox, slot by slot, each slot's minute once.

    A slot whose minute has started unselected is *missed*: selecting it then would release half a minute of polls at
    once. The catch-up selects it later, one slot of each wheel a minute, spread over a minute of its own.

    Args:
        ahead: How long before its minute a slot is selected; a minute at least.
    """

    def __init__(self, *, shards: int = 1, ahead: timedelta = AHEAD, probe: Probe = NO_PROBE) -> None:
        self._shards, self._ahead, self._probe = shards, ahead, probe

    async def round(self, lease: HeldLease) -> float:
        """Select every slot of the next minute that is not selected yet, and one missed slot of each wheel."""
        async with lease.transaction() as connection:
            if connection is None:
                return 0.0
            now, next_minute = await read_clock(connection)
            missed = await pass_missed(connection, next_minute)
            due = await due_slots(connection, now + self._ahead)
            caught_up: datetime | None = await connection.fetchval(SQL["last_catch_up"], SELECTOR)
        if missed:
            _log.warning("polling.slots_missed", slots=missed)
        for slot in due[:SLOTS_SELECTED_MAX]:
            if not await self.select(lease, slot):
                return 0.0
        if len(due) > SLOTS_SELECTED_MAX:
            return 0.0
        if caught_up is None or caught_up < next_minute:
            await self._catch_up(lease)
        return (next_minute - now).total_seconds() + 0.01

    async def select(self, lease: HeldLease, slot: DueSlot) -> bool:
        """Select one slot; false when the lease is lost."""
        async with lease.transaction() as connection:
            if connection is None:
                return False
            await select_slot(connection, slot, self._shards)
            await self._probe.reached("selector.slot_not_committed", slot_id=slot.slot_id, due_at=slot.due_at)
        await self._probe.reached("selector.slot_selected", slot_id=slot.slot_id, due_at=slot.due_at)
        return True

    async def _catch_up(self, lease: HeldLease) -> None:
        """Select one missed slot of each wheel for the next minute, once for that minute."""
        async with lease.transaction() as connection:
            if connection is None:
                return
            _, minute = await read_clock(connection)
            slots = await connection.fetch(SQL["next_missed"], minute + SOON)
            await connection.execute(SQL["note_catch_up"], SELECTOR, minute)
        for slot in slots:
            async with lease.transaction() as connection:
                if connection is None:
                    return
                await select_missed(connection, slot["slot_id"], minute, self._shards)


class Corrector:
    """Moves and ends trackers of slots whose minute is over: the *scheduled updater* of the source document.

    It levels a slot right after its minute: a tracker that moves then moves to an earlier slot than its next one, so no
    tracker waits longer. Trackers of an account whose interval has changed move slot by slot. Events of ended trackers
    go to ``destination``, such as ``pg:tickwright.poll-events``.
    """

    def __init__(self, destination: str, *, probe: Probe = NO_PROBE) -> None:
        self._destination, self._probe = destination, probe
        self._done_until: tuple[datetime, int] | None = None
        self._next_slot = -1
        self._followed = (-1, -1)

    async def round(self, lease: HeldLease) -> float:
        """Move trackers to changed intervals, one slot a round, then maintain the slots whose minute is over.

        A new process starts an hour back.
        """
        async with lease.transaction() as connection:
            if connection is None:
                return 0.0
            changed = await connection.fetch(SQL["changed_accounts"])
            await add_missing_wheels(connection)
            now, _ = await read_clock(connection)
            passed = await passed_slots(connection, self._done_until or (now - BEHIND, -1))
        following = bool(changed) and await self._follow_accounts(lease, changed)
        for slot in passed[:SLOTS_MAX]:
            if not await self.maintain_slot(lease, slot):
                return 0.0
            self._done_until = slot.due_at, slot.slot_id
        return 0.0 if following or len(passed) > SLOTS_MAX else CORRECTOR_IDLE_S

    async def maintain_slot(self, lease: HeldLease, slot: PassedSlot) -> bool:
        """End old trackers, level the slot and delete old rows of the ledgers; false when the lease is lost."""
        await self._end_aged(lease, slot.slot_id)
        await self._level(lease, slot)
        async with lease.transaction() as connection:
            if connection is None:
                return False
            await connection.execute(SQL["forget_done"], slot.slot_id)
            await forget_slices(connection, slot, SLICES_KEPT, MOVES_MAX)
        return True

    async def _end_aged(self, lease: HeldLease, slot_id: int) -> None:
        """End old trackers; one whose row another transaction locks ends after the slot's next minute."""
        while True:
            async with lease.transaction() as connection:
                if connection is None:
                    return
                ended = await connection.fetchval(SQL["end_aged"], slot_id, AGED_MAX, self._destination)
            if ended < AGED_MAX:
                return

    async def _level(self, lease: HeldLease, slot: PassedSlot) -> None:
        async with lease.transaction() as connection:
            if connection is None:
                return
            wheel = await slot_loads(connection, slot.interval_minutes)
        for partner_no, loads in wheel.items():
            for move in plan_moves(loads, slot.slot_id, slot.interval_minutes, LEVEL_MOVES_MAX):
                async with lease.transaction() as connection:
                    if connection is None:
                        return
                    await level_bucket(connection, partner_no, move)

    # ------------------------------------------------------------------ changed intervals

    async def _follow_accounts(self, lease: HeldLease, changed: Sequence[Any]) -> bool:
        """Move the trackers of the next slot of a wheel that accounts have left; true to be called again at once.

        It works on one pair of intervals after the other, so that trackers that cannot move yet block no other pair.
        """
        pairs = [(row["source"], row["target"]) for row in changed]
        at = next((n for n, pair in enumerate(pairs) if pair > self._followed), 0)
        (source, target), accounts = pairs[at], changed[at]["accounts"]
        async with lease.transaction() as connection:
            if connection is None:
                return False
            wheel = await connection.fetchrow(SQL["wheel_slots"], source)
        slots = range(0) if wheel is None else range(wheel["first_slot_id"], wheel["after_slot_id"])
        if not await self._follow(lease, slots, accounts, target, source):
            return True
        self._followed = pairs[at]
        return at + 1 < len(pairs)

    async def _follow(self, lease: HeldLease, slots: range, accounts: Sequence[int], target: int, source: int) -> bool:
        """Move the trackers of one slot; at the end of the wheel, which returns true, note that none is left on it."""
        self._next_slot = self._next_slot if self._next_slot in slots else slots.start
        if self._next_slot in slots:
            await self._move_slot(lease, self._next_slot, accounts, target)
            self._next_slot += 1
        if self._next_slot in slots:
            return False
        async with lease.transaction() as connection:
            if connection is not None and not await connection.fetchval(
                SQL["still_on_wheel"], slots.start, accounts, slots.stop
            ):
                await connection.execute(SQL["note_placed"], accounts, target, source)
                _log.info("polling.accounts_moved", accounts=len(accounts), interval_minutes=target)
        return True

    async def _move_slot(self, lease: HeldLease, slot_id: int, accounts: Sequence[int], target: int) -> None:
        after_id = 0
        while True:
            async with lease.transaction() as connection:
                if connection is None:
                    return
                step = await move_to_wheel(connection, slot_id, accounts, target, at_most=MOVES_MAX, after_id=after_id)
                await self._probe.reached("corrector.moved_not_committed", slot_id=slot_id, trackers=step.moved)
            if step.seen < MOVES_MAX:
                return
            after_id = step.last_id


def plan_moves(loads: Sequence[SlotLoad], slot_id: int, interval_minutes: int, moves_max: int) -> list[Move]:
    """Return the moves that level one partner's trackers of a slot whose minute is over. Pure.

    Buckets are numbered over all slots. Slots that no selection has counted yet are left alone. Trackers move only to
    slots that are due before their own next minute.
    """
    source = next((slot for slot in loads if slot.slot_id == slot_id), None)
    if source is None or len(loads) < interval_minutes:
        return []
    first = min(slot.slot_id for slot in loads) * BUCKETS_PER_SLOT
    last = max(slot.slot_id for slot in loads)
    counts = [0] * ((last + 1) * BUCKETS_PER_SLOT - first)
    targets: list[int] = []
    for slot in loads:
        at = slot.slot_id * BUCKETS_PER_SLOT - first
        counts[at : at + BUCKETS_PER_SLOT] = slot.loads
        if source.prev_due_at < slot.next_due_at < source.next_due_at:
            targets.extend(range(at, at + BUCKETS_PER_SLOT))
    at = slot_id * BUCKETS_PER_SLOT - first
    moves = level(counts, range(at, at + BUCKETS_PER_SLOT), targets, moves_max)
    return [Move(move.source + first, move.target + first, move.trackers) for move in moves]


# ------------------------------------------------------------------ an even load


def allowed_load(mean: float) -> int:
    """Return the most that a bucket may hold before trackers are moved out of it.

    Random ends vary loads by about half the root of their mean; moving only the surplus moves a few percent.
    """
    return ceil(mean + 0.5 * sqrt(mean))


def level(loads: Sequence[int], sources: Sequence[int], open_targets: Sequence[int], moves_max: int) -> list[Move]:
    """Return the moves that reduce ``sources`` to the allowed load.

    Args:
        loads: Trackers in each bucket of one partner's wheel.
        sources: Buckets that may lose trackers now.
        open_targets: Buckets that may receive trackers now.
        moves_max: Trackers that may move in total.

    Returns:
        Moves from buckets above :func:`allowed_load` into the emptiest ones, never above the mean.
    """
    mean = sum(loads) / len(loads)
    allowed, full = allowed_load(mean), ceil(mean)
    given = set(sources)
    emptiest = [(loads[bucket], bucket) for bucket in open_targets if loads[bucket] < full and bucket not in given]
    heapify(emptiest)
    moves: list[Move] = []
    for source in sorted(sources, key=lambda bucket: -loads[bucket]):
        surplus = min(loads[source] - full, moves_max) if loads[source] > allowed else 0
        while surplus > 0 and emptiest:
            load, target = heappop(emptiest)
            step = min(surplus, full - load)
            moves.append(Move(source, target, step))
            surplus, moves_max = surplus - step, moves_max - step
            if load + step < full:
                heappush(emptiest, (load + step, target))
    return moves
