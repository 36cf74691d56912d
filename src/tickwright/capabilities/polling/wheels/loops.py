"""The loops of polling: each does one kind of write, in short transactions of its own lease.

::

    tracker_intake ──registrar──▶ place ──selector──▶ scheduler_outbox ──relay──▶ topic
                                    ▲  │
                                    └──┘ corrector: another interval, a slot too full, too old

A loop is a class with ``round(lease)``: it does what there is to do now and returns after how many seconds it wants to
be called again. It keeps nothing in memory that another process would need to go on.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

import structlog

from tickwright.capabilities.polling.wheels import store
from tickwright.domain.spreading import BUCKETS_PER_SLOT, Move, level
from tickwright.ports.lease import HeldLease
from tickwright.ports.probe import NO_PROBE, Probe

PLACE_MAX = 5000
AHEAD = timedelta(minutes=1)
LOOK_S = 5.0
TURNS_MAX = 200
MOVES_MAX = 2000
LEVEL_MOVES_MAX = 500
AGED_MAX = 1000
SLOTS_MAX = 10
BEHIND = timedelta(hours=1)
SLICES_KEPT = timedelta(days=3)
SOON = timedelta(minutes=2)

_log = structlog.get_logger("tickwright.polling")


class Registrar:
    """Gives registered trackers their places: the document's *unscheduled updater*."""

    async def round(self, lease: HeldLease) -> float:
        """Place the oldest of the intake."""
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
    """Puts what is due within a minute into the outbox, slot by slot, each turn once.

    A turn whose minute has begun without us is *missed*: selecting it now would release half a minute of polls at once.
    It is made good by the catch-up, one slot of each wheel a minute, over a minute of its own.

    Args:
        shards: How many relays share the partners.
        ahead: How long before its minute a turn is selected; a minute at least.
    """

    def __init__(self, *, shards: int = 1, ahead: timedelta = AHEAD, probe: Probe = NO_PROBE) -> None:
        self._shards, self._ahead, self._probe = shards, ahead, probe

    async def round(self, lease: HeldLease) -> float:
        """Select every turn of the next minute that is not selected yet, and one missed turn of each wheel."""
        async with lease.transaction() as connection:
            if connection is None:
                return 0.0
            instants = await store.read_clock(connection)
            missed = await store.pass_missed(connection, instants.next_minute)
            turns = await store.due_slots(connection, instants.now + self._ahead)
        if missed:
            _log.warning("polling.turns_missed", slots=missed)
        for turn in turns[:TURNS_MAX]:
            if not await self.select(lease, turn):
                return 0.0
        if len(turns) > TURNS_MAX:
            return 0.0
        await self._catch_up(lease)
        return min(LOOK_S, (instants.next_minute - instants.now).total_seconds() + 0.01)

    async def select(self, lease: HeldLease, turn: store.DueSlot) -> bool:
        """Select one turn; false when the lease is lost."""
        async with lease.transaction() as connection:
            if connection is None:
                return False
            await store.select_slot(connection, turn, self._shards)
            await self._probe.reached("selector.slot_not_committed", slot_id=turn.slot_id, due_at=turn.due_at)
        await self._probe.reached("selector.slot_selected", slot_id=turn.slot_id, due_at=turn.due_at)
        return True

    async def _catch_up(self, lease: HeldLease) -> None:
        """Select one missed turn of each wheel for the next minute, once for that minute."""
        async with lease.transaction() as connection:
            if connection is None:
                return
            minute = (await store.read_clock(connection)).next_minute
            newest = await store.newest_slice(connection)
            if newest is not None and newest >= minute:
                return
            slots = await store.missed_slots(connection, minute + SOON)
            await store.note_slice(connection, minute)
        for slot_id in slots:
            async with lease.transaction() as connection:
                if connection is None:
                    return
                await store.select_missed(connection, slot_id, minute, self._shards)


class Corrector:
    """Moves and ends trackers behind the selector: the document's *scheduled updater*.

    It levels and clears a slot right after its turn: whoever moves then moves to an earlier turn than the own next one,
    so nobody waits longer for it. Accounts whose interval was changed move slot by slot.

    Args:
        destination: Of the news that a tracker was ended, such as ``pg:tickwright.poll-events``.
    """

    def __init__(self, destination: str, *, probe: Probe = NO_PROBE) -> None:
        self._destination, self._probe = destination, probe
        self._done_until: tuple[datetime, int] | None = None
        self._next_slot = -1
        self._followed = (-1, -1)

    async def round(self, lease: HeldLease) -> float:
        """Follow accounts to their new intervals, one slot a round, then look after slots that had their turn."""
        following = await self._follow_accounts(lease)
        turned = await self._turned(lease)
        for slot in turned[:SLOTS_MAX]:
            if not await self.maintain_slot(lease, slot):
                return 0.0
            self._done_until = slot.due_at, slot.slot_id
        return 0.0 if following or len(turned) > SLOTS_MAX else LOOK_S

    async def maintain_slot(self, lease: HeldLease, turned: store.PassedSlot) -> bool:
        """End who is too old, level and forget, for a slot that had its turn; false when the lease is lost."""
        await self._end_aged(lease, turned.slot_id)
        await self._level(lease, turned)
        async with lease.transaction() as connection:
            if connection is None:
                return False
            await store.forget_done(connection, turned.slot_id)
            await store.forget_slices(connection, turned, SLICES_KEPT, MOVES_MAX)
        return True

    async def _turned(self, lease: HeldLease) -> list[store.PassedSlot]:
        """Return the slots whose minute is over; a process that is new to it looks an hour back."""
        async with lease.transaction() as connection:
            if connection is None:
                return []
            now = (await store.read_clock(connection)).now
            return await store.passed_slots(connection, self._done_until or (now - BEHIND, -1))

    async def _end_aged(self, lease: HeldLease, slot_id: int) -> None:
        """End who is too old; who is locked by somebody ends behind the slot's next turn."""
        while True:
            async with lease.transaction() as connection:
                if connection is None:
                    return
                ended = await store.end_aged(connection, slot_id, AGED_MAX, self._destination)
            if ended < AGED_MAX:
                return

    # ------------------------------------------------------------------ levelling

    async def _level(self, lease: HeldLease, turned: store.PassedSlot) -> None:
        async with lease.transaction() as connection:
            if connection is None:
                return
            wheel = await store.slot_loads(connection, turned.interval_minutes)
        for partner_no, loads in wheel.items():
            for move in plan_moves(loads, turned.slot_id, turned.interval_minutes, LEVEL_MOVES_MAX):
                async with lease.transaction() as connection:
                    if connection is None:
                        return
                    await store.level_bucket(connection, partner_no, move)

    # ------------------------------------------------------------------ changed intervals

    async def _follow_accounts(self, lease: HeldLease) -> bool:
        """Move what stands on the next slot of a wheel that accounts have left; whether to go on at once.

        One pair of intervals after the other, so that who has to stay for a while keeps nobody else from moving.
        """
        async with lease.transaction() as connection:
            if connection is None:
                return False
            changed = await store.changed_accounts(connection)
            await store.add_missing_wheels(connection)
            if not changed:
                return False
            pairs = [(source, target) for source, target, _ in changed]
            at = next((n for n, pair in enumerate(pairs) if pair > self._followed), 0)
            source, target, accounts = changed[at]
            slots = await store.wheel_slots(connection, source)
        if not await self._follow(lease, slots, accounts, target, source):
            return True
        self._followed = pairs[at]
        return at + 1 < len(pairs)

    async def _follow(self, lease: HeldLease, slots: range, accounts: Sequence[int], target: int, source: int) -> bool:
        """Move what stands on one slot; at the end of the wheel, which is said, see whether anybody had to stay."""
        self._next_slot = self._next_slot if self._next_slot in slots else slots.start
        if self._next_slot in slots:
            await self._move_slot(lease, self._next_slot, accounts, target)
            self._next_slot += 1
        if self._next_slot in slots:
            return False
        async with lease.transaction() as connection:
            if connection is not None and not await store.still_on(connection, slots, accounts):
                await store.note_placed(connection, accounts, target, source)
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
    """Return the moves that level one partner's slot, which has just had its turn; buckets are numbered over all slots.

    Slots that no turn has counted yet are left alone. What may receive: slots whose next turn comes before the own one.
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
