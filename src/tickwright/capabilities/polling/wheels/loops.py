"""The loops of the wheels: each does one kind of write, in short transactions that hold its own lease.

::

    tracker_intake ──registrar──▶ place ──selector──▶ scheduler_outbox ──relay──▶ topic
                                    ▲  │
                                    └──┘ corrector: another interval, a slot too full, a tracker too old

A loop has ``round(lease)``, which does the present work and returns the seconds until its next call. It keeps nothing
in memory that another process would need to continue.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

import structlog

from tickwright.capabilities.polling.wheels import store
from tickwright.domain.spreading import BUCKETS_PER_SLOT, Move, level
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.ports.session import HeldLease

PLACE_MAX = 5000
AHEAD = timedelta(minutes=1)
IDLE_S = 5.0
SLOTS_SELECTED_MAX = 200
MOVES_MAX = 2000
LEVEL_MOVES_MAX = 500
AGED_MAX = 1000
SLOTS_MAX = 10
BEHIND = timedelta(hours=1)
SLICES_KEPT = timedelta(days=3)
SOON = timedelta(minutes=2)
SELECTOR = "selector"

_log = structlog.get_logger("tickwright.polling")


class Registrar:
    """Gives registered trackers their places: the document's *unscheduled updater*."""

    async def round(self, lease: HeldLease) -> float:
        """Place the oldest trackers of the intake."""
        async with lease.transaction() as connection:
            if connection is None:
                return 0.0
            if await store.add_missing_wheels(connection):
                return 0.0
            taken, placed = await store.place_new(connection, PLACE_MAX)
        if taken > placed:
            _log.info("polling.registered_again", trackers=taken - placed)
        return 0.0 if taken == PLACE_MAX else 1.0


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
            instants = await store.read_clock(connection)
            missed = await store.pass_missed(connection, instants.next_minute)
            due = await store.due_slots(connection, instants.now + self._ahead)
        if missed:
            _log.warning("polling.slots_missed", slots=missed)
        for slot in due[:SLOTS_SELECTED_MAX]:
            if not await self.select(lease, slot):
                return 0.0
        if len(due) > SLOTS_SELECTED_MAX:
            return 0.0
        await self._catch_up(lease)
        return min(IDLE_S, (instants.next_minute - instants.now).total_seconds() + 0.01)

    async def select(self, lease: HeldLease, slot: store.DueSlot) -> bool:
        """Select one slot; false when the lease is lost."""
        async with lease.transaction() as connection:
            if connection is None:
                return False
            await store.select_slot(connection, slot, self._shards)
            await self._probe.reached("selector.slot_not_committed", slot_id=slot.slot_id, due_at=slot.due_at)
        await self._probe.reached("selector.slot_selected", slot_id=slot.slot_id, due_at=slot.due_at)
        return True

    async def _catch_up(self, lease: HeldLease) -> None:
        """Select one missed slot of each wheel for the next minute, once for that minute."""
        async with lease.transaction() as connection:
            if connection is None:
                return
            minute = (await store.read_clock(connection)).next_minute
            newest: datetime | None = await connection.fetchval(store.SQL["newest_slice"], SELECTOR)
            if newest is not None and newest >= minute:
                return
            slots = await connection.fetch(store.SQL["next_missed"], minute + SOON)
            await connection.execute(store.SQL["note_slice"], SELECTOR, minute)
        for slot in slots:
            async with lease.transaction() as connection:
                if connection is None:
                    return
                await store.select_missed(connection, slot["slot_id"], minute, self._shards)


class Corrector:
    """Moves and ends trackers of slots whose minute is over: the document's *scheduled updater*.

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
        """Move trackers to changed intervals, one slot a round, then maintain the slots whose minute is over."""
        following = await self._follow_accounts(lease)
        passed = await self._passed(lease)
        for slot in passed[:SLOTS_MAX]:
            if not await self.maintain_slot(lease, slot):
                return 0.0
            self._done_until = slot.due_at, slot.slot_id
        return 0.0 if following or len(passed) > SLOTS_MAX else IDLE_S

    async def maintain_slot(self, lease: HeldLease, slot: store.PassedSlot) -> bool:
        """End old trackers, level the slot and delete old rows of the ledgers; false when the lease is lost."""
        await self._end_aged(lease, slot.slot_id)
        await self._level(lease, slot)
        async with lease.transaction() as connection:
            if connection is None:
                return False
            await connection.execute(store.SQL["forget_done"], slot.slot_id)
            await store.forget_slices(connection, slot, SLICES_KEPT, MOVES_MAX)
        return True

    async def _passed(self, lease: HeldLease) -> list[store.PassedSlot]:
        """Return the slots whose minute is over; a new process starts an hour back."""
        async with lease.transaction() as connection:
            if connection is None:
                return []
            now = (await store.read_clock(connection)).now
            return await store.passed_slots(connection, self._done_until or (now - BEHIND, -1))

    async def _end_aged(self, lease: HeldLease, slot_id: int) -> None:
        """End old trackers; one whose row another transaction locks ends after the slot's next minute."""
        while True:
            async with lease.transaction() as connection:
                if connection is None:
                    return
                ended = await connection.fetchval(store.SQL["end_aged"], slot_id, AGED_MAX, self._destination)
            if ended < AGED_MAX:
                return

    async def _level(self, lease: HeldLease, slot: store.PassedSlot) -> None:
        async with lease.transaction() as connection:
            if connection is None:
                return
            wheel = await store.slot_loads(connection, slot.interval_minutes)
        for partner_no, loads in wheel.items():
            for move in plan_moves(loads, slot.slot_id, slot.interval_minutes, LEVEL_MOVES_MAX):
                async with lease.transaction() as connection:
                    if connection is None:
                        return
                    await store.level_bucket(connection, partner_no, move)

    # ------------------------------------------------------------------ changed intervals

    async def _follow_accounts(self, lease: HeldLease) -> bool:
        """Move the trackers of the next slot of a wheel that accounts have left; true to be called again at once.

        It works on one pair of intervals after the other, so that trackers that cannot move yet block no other pair.
        """
        async with lease.transaction() as connection:
            if connection is None:
                return False
            changed = await connection.fetch(store.SQL["changed_accounts"])
            await store.add_missing_wheels(connection)
            if not changed:
                return False
            pairs = [(row["source"], row["target"]) for row in changed]
            at = next((n for n, pair in enumerate(pairs) if pair > self._followed), 0)
            (source, target), accounts = pairs[at], changed[at]["accounts"]
            wheel = await connection.fetchrow(store.SQL["wheel_slots"], source)
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
                store.SQL["still_on_wheel"], slots.start, accounts, slots.stop
            ):
                await connection.execute(store.SQL["note_placed"], accounts, target, source)
                _log.info("polling.accounts_moved", accounts=len(accounts), interval_minutes=target)
        return True

    async def _move_slot(self, lease: HeldLease, slot_id: int, accounts: Sequence[int], target: int) -> None:
        after_id = 0
        while True:
            async with lease.transaction() as connection:
                if connection is None:
                    return
                step = await store.move_to_wheel(
                    connection, slot_id, accounts, target, at_most=MOVES_MAX, after_id=after_id
                )
                await self._probe.reached("corrector.moved_not_committed", slot_id=slot_id, trackers=step.moved)
            if step.seen < MOVES_MAX:
                return
            after_id = step.last_id


def plan_moves(loads: Sequence[store.SlotLoad], slot_id: int, interval_minutes: int, moves_max: int) -> list[Move]:
    """Return the moves that level one partner's trackers of a slot whose minute is over. Pure.

    Buckets are numbered over all slots. Slots that no selection has counted yet are left alone. Trackers move only to
    slots that are due before their own next minute.
    """
    source = next((load for load in loads if load.slot_id == slot_id), None)
    if source is None or len(loads) < interval_minutes:
        return []
    first = min(load.slot_id for load in loads) * BUCKETS_PER_SLOT
    last = max(load.slot_id for load in loads)
    counts = [0] * ((last + 1) * BUCKETS_PER_SLOT - first)
    targets: list[int] = []
    for load in loads:
        at = load.slot_id * BUCKETS_PER_SLOT - first
        counts[at : at + BUCKETS_PER_SLOT] = load.loads
        if source.prev_due_at < load.next_due_at < source.next_due_at:
            targets.extend(range(at, at + BUCKETS_PER_SLOT))
    at = slot_id * BUCKETS_PER_SLOT - first
    moves = level(counts, range(at, at + BUCKETS_PER_SLOT), targets, moves_max)
    return [Move(move.source + first, move.target + first, move.trackers) for move in moves]
