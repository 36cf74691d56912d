"""Trackers on wheels for tests: registered, placed, selected without waiting for the clock, and checked."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, TypeVar

import asyncpg

from kit.api import ADMIN
from kit.leases import LONG
from kit.waiting import eventually_async
from tickwright.capabilities.polling.service import PollingService
from tickwright.capabilities.polling.trackers.events import StatusEvent
from tickwright.capabilities.polling.wheels import loops
from tickwright.capabilities.polling.wheels.loops import Corrector, Move, Registrar, Selector
from tickwright.engine.leases import Lease, Leases
from tickwright.ports.ids import monotonic
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.store.pool import Connection, open_pool

T = TypeVar("T")
EVENTS = "pg:test.events"
REGISTER = """
INSERT INTO tickwright.shipment_polling_tracker (account_id, partner, external_id)
SELECT $1, $2, $3 || n FROM generate_series(1, $4) AS n
"""
_HAS_NOT_BEGUN = " AND next_due_at > clock_timestamp() - interval '2 seconds'"
POLLS = "SELECT unnest(ids) AS id, due_at, release_at FROM tickwright.scheduler_outbox ORDER BY due_at, id"


@dataclass
class Wheels:
    """A database with the three loops, none of which runs: tests call single rounds."""

    url: str
    pool: asyncpg.Pool
    leases: Leases
    registrar: Registrar
    selector: Selector
    corrector: Corrector

    async def lease(self, name: str) -> Lease:
        """Take a lease."""
        lease = await self.leases.take(name)
        assert lease is not None
        return lease

    async def account(self, account_id: str, interval_minutes: int) -> None:
        """Set an account's interval."""
        await self.pool.execute(
            """INSERT INTO tickwright.polling_schedule_config (account_id, polling_interval_minutes) VALUES ($1, $2)
               ON CONFLICT (account_id) DO UPDATE SET polling_interval_minutes = excluded.polling_interval_minutes""",
            account_id,
            interval_minutes,
        )

    async def register(self, count: int, account_id: str = "a", partner: str = "dhl", prefix: str = "AWB") -> None:
        """Register trackers by plain SQL and place them."""
        await self.pool.execute(REGISTER, account_id, partner, prefix, count)
        lease = await self.lease("registrar")
        while await self.registrar.round(lease) == 0.0:
            pass
        await lease.release()

    async def turns(self, until: datetime) -> list[loops.DueSlot]:
        """Return the slots that are due until an instant, in order."""
        async with self.pool.acquire() as connection:
            return await loops.due_slots(connection, until)

    async def select_until(self, minutes: int) -> None:
        """Select every due slot of the next so many minutes, without waiting for them."""
        until = await self.now() + timedelta(minutes=minutes)
        while turns := await self.turns(until):
            for due_slot in turns:
                async with self.pool.acquire() as connection, connection.transaction():
                    await select_slot(connection, due_slot)

    async def select_next(self) -> None:
        """Select the next due slot."""
        due_slot = (await self.turns(await self.now() + timedelta(days=8)))[0]
        async with self.pool.acquire() as connection, connection.transaction():
            await select_slot(connection, due_slot)

    async def select(self, due_slot: loops.DueSlot) -> loops.SelectionCounts:
        """Select one due slot in a transaction."""
        async with self.pool.acquire() as connection, connection.transaction():
            return await select_slot(connection, due_slot)

    async def a_transaction_waits(self) -> bool:
        """Whether a transaction of this database waits for a lock."""
        return bool(
            await self.pool.fetchval(
                """SELECT EXISTS (SELECT FROM pg_stat_activity
                                   WHERE datname = current_database() AND wait_event_type = 'Lock')"""
            )
        )

    async def ends_of_wheel(self) -> tuple[loops.DueSlot, loops.DueSlot]:
        """Return the next due slot and the last one."""
        turns = await self.turns(await self.now() + timedelta(days=8))
        return turns[0], turns[-1]

    async def now(self) -> datetime:
        """The database's clock."""
        now: datetime = await self.pool.fetchval("SELECT clock_timestamp()")
        return now

    async def sleep_through(self, minutes: int) -> None:
        """Set the slots' instants back, as if no selector had run for so long."""
        await self.pool.execute(
            """UPDATE tickwright.poll_slots SET next_due_at = next_due_at - make_interval(mins => $1),
                      prev_due_at = prev_due_at - make_interval(mins => $1)""",
            minutes,
        )

    async def polls(self) -> list[Any]:
        """Return ``(id, due_at, release_at)`` of everything in the outbox."""
        return list(await self.pool.fetch(POLLS))

    async def dues(self) -> dict[int, list[datetime]]:
        """Return the due seconds of each tracker, in order."""
        dues: dict[int, list[datetime]] = {}
        for row in await self.polls():
            dues.setdefault(row["id"], []).append(row["due_at"])
        return dues


async def select_slot(connection: Connection, due_slot: loops.DueSlot) -> loops.SelectionCounts:
    """Select a due slot, also one whose minute has begun meanwhile: a test may be slower than the clock."""
    sql = loops.SQL["select_slot"]
    assert _HAS_NOT_BEGUN in sql
    await connection.execute(loops.SQL["lock_slot"], due_slot.slot_id)
    rows = await connection.fetch(
        sql.replace(_HAS_NOT_BEGUN, ""), due_slot.slot_id, due_slot.due_at, loops.IDS_PER_ROW, 1
    )
    return loops._counts(rows)


@asynccontextmanager
async def open_wheels(url: str, probe: Probe = NO_PROBE) -> AsyncIterator[Wheels]:
    """Open the loops on a database."""
    pool = await open_pool(url, max_size=8)
    leases = Leases(pool, owner="test", terms=LONG)
    try:
        yield Wheels(url, pool, leases, Registrar(), Selector(probe=probe), Corrector(EVENTS, probe=probe))
    finally:
        pool.terminate()


def check_each_once(polls: Sequence[Any]) -> None:
    """P1: one message per (tracker, due second)."""
    twice = [key for key, times in Counter((row["id"], row["due_at"]) for row in polls).items() if times > 1]
    assert not twice, f"P1 broken: {twice[:5]}"


def check_spacing(dues: dict[int, list[datetime]], least: timedelta, most: timedelta) -> None:
    """P2: no tracker is polled again too soon, and none waits too long."""
    for tracker, instants in dues.items():
        gaps = [later - earlier for earlier, later in pairwise(instants)]
        assert all(least <= gap <= most for gap in gaps), f"P2 broken: tracker {tracker}: {gaps}"


async def check_a_turn_is_selected_once(wheels: Wheels) -> None:
    """P1: two selectors that read the same due slot, one after the other and at once."""
    await wheels.account("a", 10)
    await wheels.register(400)
    first, _ = await wheels.ends_of_wheel()
    both = await asyncio.gather(wheels.select(first), wheels.select(first))
    again = await wheels.select(first)
    assert sorted(one.trackers for one in (*both, again))[:2] == [0, 0], "P1 broken: a due slot was selected twice"
    check_each_once(await wheels.polls())


async def check_selector_waits_for_a_move(wheels: Wheels) -> None:
    """P3: a tracker that is moved while its new slot is selected is among the selected ones."""
    await wheels.account("a", 10)
    await wheels.register(400)
    await wheels.select_until(11)
    goal, source = await wheels.ends_of_wheel()
    there = await wheels.pool.fetchval("SELECT count(*) FROM tickwright.trackers WHERE place / 60 = $1", goal.slot_id)
    async with wheels.pool.acquire() as mover:
        transaction = mover.transaction()
        await transaction.start()
        moved = await loops.level_bucket(mover, 1, Move(source.slot_id * 6, goal.slot_id * 6, 3))
        selecting = asyncio.create_task(wheels.select(goal))
        await eventually_async(
            lambda: wheels.a_transaction_waits() if not selecting.done() else True,
            what="the selector waits for the move",
        )
        await transaction.commit()
    assert (moved, (await selecting).trackers) == (3, there + 3), "P3 broken: a moved tracker is not selected"


async def check_move_waits_for_a_turn(wheels: Wheels) -> None:
    """P3: a tracker that moves into a slot which is being selected is selected there next time, and stays in order."""
    await wheels.account("a", 10)
    await wheels.register(400)
    await wheels.select_until(11)
    goal, source = await wheels.ends_of_wheel()
    selector, mover = await wheels.pool.acquire(), await wheels.pool.acquire()
    transaction = selector.transaction()
    await transaction.start()
    await select_slot(selector, goal)
    move = Move(source.slot_id * 6, goal.slot_id * 6, 3)
    moving = asyncio.create_task(loops.level_bucket(mover, 1, move))
    await eventually_async(
        lambda: wheels.a_transaction_waits() if not moving.done() else True, what="the move waits for the selector"
    )
    await transaction.commit()
    assert await moving == 0, "P3 broken: it would wait for longer than an interval"
    await wheels.pool.release(selector)
    await wheels.pool.release(mover)


async def check_caps_take_turns(wheels: Wheels) -> None:
    """Ten of a hundred in five minutes, every ten minutes: never more, hardly less, and each within an hour."""
    await wheels.account("a", 10)
    await wheels.pool.execute("UPDATE tickwright.polling_schedule_config SET polls_per_slice_max = 10")
    await wheels.register(100)
    await wheels.select_until(11)  # by now every slot knows the demand of the others
    await wheels.pool.execute("TRUNCATE tickwright.scheduler_outbox")
    await wheels.select_until(81)
    polls = await wheels.polls()
    slices = Counter(int(row["due_at"].timestamp()) // 300 for row in polls)
    trackers = Counter(row["id"] for row in polls)
    assert max(slices.values()) == 10, "the cap is broken"
    assert sorted(slices.values())[2] >= 9, "the cap is broken: less than it allows"
    assert len(trackers) == 100, f"caps are broken: {100 - len(trackers)} were never polled"
    assert max(trackers.values()) <= 3, "caps are broken: a slot does not continue after its last selected tracker"


@asynccontextmanager
async def trackers_locked(wheels: Wheels, where: str) -> AsyncIterator[set[int]]:
    """Change trackers in a transaction that stays open; yields their ids."""
    async with wheels.pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")  # as a user's connection
        rows = await connection.fetch(
            f"""UPDATE tickwright.shipment_polling_tracker SET status = 'at lunch'
                 WHERE id IN (SELECT id FROM tickwright.trackers WHERE {where}) RETURNING id"""
        )
        try:
            yield {row["id"] for row in rows}
        finally:
            await transaction.rollback()


async def without_waiting(wheels: Wheels, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of ``work``, which must wait for no lock."""
    task = asyncio.create_task(work)

    async def decided() -> bool:
        return task.done() or await wheels.a_transaction_waits()

    await eventually_async(decided, 30, what="it is done, or waits")
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
        raise AssertionError("broken: it waits for another open transaction")
    return await task


async def check_ending_waits_for_no_lock(wheels: Wheels) -> None:
    """A locked tracker ends after its next poll, the others now."""
    await wheels.account("a", 1)
    await wheels.register(20)
    await wheels.pool.execute("UPDATE tickwright.trackers SET tracking_until = now()")
    running = "SELECT array_agg(id) FROM tickwright.trackers WHERE ended_at IS NULL"
    lease = await wheels.lease("corrector")
    turned = loops.PassedSlot(0, 1, await wheels.now())
    async with trackers_locked(wheels, "id % 20 = 7") as held:
        await without_waiting(wheels, wheels.corrector.maintain_slot(lease, turned))
        assert set(await wheels.pool.fetchval(running)) == held
    await wheels.corrector.maintain_slot(lease, turned)
    assert await wheels.pool.fetchval(running) is None


async def check_levelling_waits_for_no_lock(wheels: Wheels) -> None:
    """Other trackers of the bucket move in place of locked ones, as many as there are."""
    await wheels.account("a", 10)
    await wheels.register(600)
    await wheels.select_until(11)
    goal, source = await wheels.ends_of_wheel()
    bucket = f"place BETWEEN {source.slot_id * 60} AND {source.slot_id * 60 + 9}"
    there = await wheels.pool.fetchval(f"SELECT array_agg(id ORDER BY id DESC) FROM tickwright.trackers WHERE {bucket}")
    async with trackers_locked(wheels, f"{bucket} AND id > {there[3]}") as held, wheels.pool.acquire() as connection:
        assert held == set(there[:3])
        async with connection.transaction():
            level = loops.level_bucket(connection, 1, Move(source.slot_id * 6, goal.slot_id * 6, 5))
            assert await without_waiting(wheels, level) == 5
            still = await connection.fetch(f"SELECT id FROM tickwright.trackers WHERE {bucket}")
            assert {row["id"] for row in still} == held | set(there[8:])


async def check_following_waits_for_no_lock(wheels: Wheels) -> None:
    """All others move, also those of other wheels; a locked one later, and until then no round is urgent."""
    for account, minutes in (("a", 2), ("b", 3)):
        await wheels.account(account, minutes)
        await wheels.register(30, account, prefix=account)
    for account in ("a", "b"):
        await wheels.account(account, 6)
    behind = """SELECT array_agg(t.id) FROM tickwright.trackers t
                  JOIN tickwright.poll_slots s ON s.slot_id = t.place / 60 WHERE s.interval_minutes < 6"""
    lease = await wheels.lease("corrector")
    async with trackers_locked(wheels, "id % 60 = 7") as held:
        while await without_waiting(wheels, wheels.corrector.round(lease)) == 0.0:
            pass
        assert set(await wheels.pool.fetchval(behind)) == held
    while await wheels.pool.fetchval(
        "SELECT true FROM tickwright.polling_schedule_config WHERE stands_on <> '{}' LIMIT 1"
    ):
        await wheels.corrector.round(lease)
    assert await wheels.pool.fetchval(behind) is None


# P3, P5 and P6 of trackers: checks that hold with every guard and fail with a mutant.

MINUTE = timedelta(minutes=1)
_UNTIL = "UPDATE tickwright.trackers SET tracking_until = $1 WHERE id % 3 = 0 RETURNING id"
_NEWEST = "SELECT max(next_due_at) FROM tickwright.poll_slots"
_MOVING = "SELECT count(*) FROM tickwright.polling_schedule_config WHERE stands_on <> '{}'"
_WAITING = "SELECT count(*) FROM tickwright.tracker_intake"
_NEXT = "SELECT min(next_due_at) FROM tickwright.poll_slots WHERE interval_minutes = 10"
_ACTIVE = "SELECT id FROM tickwright.trackers WHERE ended_at IS NULL ORDER BY id"


async def check_nothing_is_selected_after_its_end(wheels: Wheels) -> None:
    """P3: events and times end trackers while the selector runs; after its end a tracker is in no selected slot."""
    await wheels.account("a", 6)
    await wheels.register(300)
    await wheels.select_until(7)
    until: datetime = await wheels.pool.fetchval(_NEWEST) + 9 * MINUTE
    timed = {row["id"] for row in await wheels.pool.fetch(_UNTIL, until)}
    reported = [row["id"] for row in await wheels.pool.fetch(_ACTIVE) if row["id"] not in timed]
    ends: dict[int, float] = {}
    begins: dict[datetime, float] = {}

    async def report(some: Sequence[int]) -> None:
        service = PollingService(wheels.pool)
        for tracker in some:
            await service.take_event(tracker, StatusEvent("Delivered", datetime(2026, 1, 1, tzinfo=UTC)), caller=ADMIN)
            ends[tracker] = monotonic()

    async def select_slots() -> None:
        while len(begins) < 24 or len(ends) < len(reported):
            [next_turn, *_] = await wheels.turns(await wheels.now() + timedelta(days=8))
            begins[next_turn.due_at] = monotonic()
            await wheels.select(next_turn)

    await asyncio.gather(select_slots(), report(reported[::2]), report(reported[1::2]))
    polls = await wheels.polls()
    late = [row for row in polls if row["id"] in timed and row["due_at"] >= until]
    late += [row for row in polls if begins.get(row["due_at"].replace(second=0), 0.0) > ends.get(row["id"], 1e18)]
    assert not late, f"P3 broken: {len(late)} polls after the end of their trackers"


async def check_every_tracker_is_polled(wheels: Wheels, seed: int) -> None:
    """P5, and so P6: after outages, changes and crashes every tracker has a place and waits for an interval at most."""
    chance = random.Random(seed)
    await wheels.account("a", 6)
    await wheels.register(120)
    registered = 120
    for number in range(10):
        match chance.randrange(6):
            case 0:
                await wheels.account("a", chance.choice([6, 10, 15]))
            case 1:
                await wheels.sleep_through(chance.randrange(2, 90))
            case 2:
                await wheels.register(20, prefix=f"n{number}-")
                registered += 20
            case 3:
                await _round(wheels, "corrector")
            case 4:
                await _crash_while_selecting(wheels)
            case _:
                for _ in range(chance.randrange(8)):
                    await wheels.select_next()
    await wheels.account("a", 10)
    await _heal(wheels)
    healed: datetime = await wheels.pool.fetchval(_NEXT)
    await wheels.pool.execute("TRUNCATE tickwright.scheduler_outbox")
    while turns := await wheels.turns(healed + 31 * MINUTE):
        await wheels.select(turns[0])
    dues = await wheels.dues()
    active = [row["id"] for row in await wheels.pool.fetch(_ACTIVE)]
    assert len(active) == registered, f"P5 broken: {registered - len(active)} trackers have no place"
    for tracker in active:
        instants = [healed - MINUTE, *dues.get(tracker, [])]
        gap = max(later - earlier for earlier, later in pairwise([*instants, healed + 31 * MINUTE]))
        assert gap <= 11 * MINUTE, f"P5 broken: tracker {tracker} waited for {gap} of 10 minutes"


async def _round(wheels: Wheels, name: str) -> None:
    lease = await wheels.lease(name)
    loops: dict[str, Registrar | Corrector | Selector] = {
        "registrar": wheels.registrar,
        "corrector": wheels.corrector,
        "selector": wheels.selector,
    }
    await loops[name].round(lease)
    await lease.release()


async def _crash_while_selecting(wheels: Wheels) -> None:
    """Let a selector crash in its transaction."""
    turns = await wheels.turns(await wheels.now() + timedelta(days=8))
    connection = await wheels.pool.acquire()
    try:
        transaction = connection.transaction()
        await transaction.start()
        await select_slot(connection, turns[0])
        connection.terminate()
    finally:
        await wheels.pool.release(connection)


async def _heal(wheels: Wheels) -> None:
    """Run the loops until every tracker is on its account's wheel, and missed slots are past."""
    await _round(wheels, "selector")
    for query, name in ((_WAITING, "registrar"), (_MOVING, "corrector")):
        for number in range(1, 600):
            await _round(wheels, name)
            if not await wheels.pool.fetchval(query):
                break
            if number % 4 == 0:  # no tracker moves to a missed slot, or to one before its last poll
                await wheels.select_next()
        else:
            raise AssertionError(f"P5 broken: the {name} does not come to an end")
    await _round(wheels, "selector")
