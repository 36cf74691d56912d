"""P3, P5 and P6 of trackers: checks that hold with every guard and fail with a mutant."""

import asyncio
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from kit.api import ADMIN
from kit.wheels import Wheels, select_slot
from tickwright.capabilities.polling.service import PollingService
from tickwright.capabilities.polling.trackers.events import StatusEvent
from tickwright.capabilities.polling.wheels.loops import Corrector, Registrar, Selector
from tickwright.ports.ids import monotonic

MINUTE = timedelta(minutes=1)
_UNTIL = "UPDATE tickwright.trackers SET tracking_until = $1 WHERE id % 3 = 0 RETURNING id"
_NEWEST = "SELECT max(next_due_at) FROM tickwright.poll_slots"
_MOVING = "SELECT count(*) FROM tickwright.polling_schedule_config WHERE stands_on <> '{}'"
_WAITING = "SELECT count(*) FROM tickwright.tracker_intake"
_NEXT = "SELECT min(next_due_at) FROM tickwright.poll_slots WHERE interval_minutes = 10"
_ACTIVE = "SELECT id FROM tickwright.trackers WHERE ended_at IS NULL ORDER BY id"


async def check_nothing_is_selected_after_its_end(wheels: Wheels) -> None:
    """P3: news and times end trackers beside the selector; no turn that begins behind an end has its tracker."""
    await wheels.account("a", 6)
    await wheels.register(300)
    await wheels.turn_until(7)
    until: datetime = await wheels.pool.fetchval(_NEWEST) + 9 * MINUTE
    timed = {row["id"] for row in await wheels.pool.fetch(_UNTIL, until)}
    told = [row["id"] for row in await wheels.pool.fetch(_ACTIVE) if row["id"] not in timed]
    ends: dict[int, float] = {}
    begins: dict[datetime, float] = {}

    async def tell(some: Sequence[int]) -> None:
        service = PollingService(wheels.pool)
        for tracker in some:
            await service.take_event(tracker, StatusEvent("Delivered", datetime(2026, 1, 1, tzinfo=UTC)), caller=ADMIN)
            ends[tracker] = monotonic()

    async def turn() -> None:
        while len(begins) < 24 or len(ends) < len(told):
            [next_turn, *_] = await wheels.turns(await wheels.now() + timedelta(days=8))
            begins[next_turn.due_at] = monotonic()
            await wheels.select(next_turn)

    await asyncio.gather(turn(), tell(told[::2]), tell(told[1::2]))
    polls = await wheels.polls()
    late = [row for row in polls if row["id"] in timed and row["due_at"] >= until]
    late += [row for row in polls if begins.get(row["due_at"].replace(second=0), 0.0) > ends.get(row["id"], 1e18)]
    assert not late, f"P3 broken: {len(late)} polls behind the end of their trackers"


async def check_nobody_is_left_behind(wheels: Wheels, seed: int) -> None:
    """P5, and so P6: after outages, changes and crashes everybody has a place and waits for an interval at most."""
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
                await _crash_in_a_turn(wheels)
            case _:
                for _ in range(chance.randrange(8)):
                    await wheels.turn_next()
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


async def _crash_in_a_turn(wheels: Wheels) -> None:
    """A selector that dies in its transaction."""
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
    """Let the loops go on until everybody has a place on the wheel of today, and turns that were missed are passed."""
    await _round(wheels, "selector")
    for query, name in ((_WAITING, "registrar"), (_MOVING, "corrector")):
        for number in range(1, 600):
            await _round(wheels, name)
            if not await wheels.pool.fetchval(query):
                break
            if number % 4 == 0:  # nobody moves to a turn that was missed, or that is not behind his last one
                await wheels.turn_next()
        else:
            raise AssertionError(f"P5 broken: the {name} does not come to an end")
    await _round(wheels, "selector")
