"""Trackers that move to another slot: each is selected in exactly one of the two."""

from datetime import timedelta

import pytest

from kit.wheels import (
    Wheels,
    check_each_once,
    check_move_waits_for_a_turn,
    check_selector_waits_for_a_move,
    check_spacing,
)
from tickwright.capabilities.polling.wheels import loops
from tickwright.capabilities.polling.wheels.loops import Move

MINUTE = timedelta(minutes=1)


@pytest.mark.matrix
@pytest.mark.parametrize(("old", "new"), [(10, 5), (5, 20), (10, 10_080)])
async def test_trackers_follow_their_account_to_another_interval(wheels: Wheels, old: int, new: int) -> None:
    """All of them; none is selected twice for one second, and none is left out."""
    await wheels.account("a", old)
    await wheels.account("b", old)
    await wheels.register(200, "a")
    await wheels.register(200, "b", prefix="B")
    await wheels.select_until(old + 1)
    await wheels.account("a", new)
    lease = await wheels.lease("corrector")
    placed = "SELECT placed_interval_minutes FROM tickwright.polling_schedule_config WHERE account_id = 'a'"

    for minutes in range(old + 2, old + 20):  # what was selected ahead moves when the new wheel is as far
        for _ in range(old):
            await wheels.corrector.round(lease)
        if await wheels.pool.fetchval(placed) == new:
            break
        await wheels.select_until(minutes)
    on_wheels = await wheels.pool.fetch(
        """SELECT c.account_id, s.interval_minutes, count(*) FROM tickwright.trackers t
             JOIN tickwright.polling_schedule_config c USING (account_no)
             JOIN tickwright.poll_slots s ON s.slot_id = t.place / 60 GROUP BY 1, 2 ORDER BY 1"""
    )
    assert [tuple(row) for row in on_wheels] == [("a", new, 200), ("b", old, 200)]
    if new <= 60:
        await wheels.select_until(old + 2 * new + 20)
        check_each_once(await wheels.polls())
        check_spacing(await wheels.dues(), timedelta(0), (old + new) * MINUTE)


@pytest.mark.parametrize("changes", [(6, 3, 6), (6, 3, 2), (4, 2, 4, 3)])
async def test_an_interval_that_changes_again_during_a_move_leaves_no_tracker_behind(
    wheels: Wheels, changes: tuple[int, ...]
) -> None:
    """Back to where it was, or on to a third: trackers that had moved already move again."""
    await wheels.account("a", changes[0])
    await wheels.register(300)
    lease = await wheels.lease("corrector")
    for minutes in changes[1:]:
        await wheels.account("a", minutes)
        for _ in range(2):  # a part of the way
            await wheels.corrector.round(lease)
    on_others = """SELECT count(*) FROM tickwright.trackers t JOIN tickwright.poll_slots s ON s.slot_id = t.place / 60
                    WHERE s.interval_minutes <> $1"""
    for minutes in range(1, 30):
        for _ in range(8):
            await wheels.corrector.round(lease)
        if not await wheels.pool.fetchval(on_others, changes[-1]):
            break
        await wheels.select_until(minutes)
    assert await wheels.pool.fetchval(on_others, changes[-1]) == 0
    for _ in range(20):
        await wheels.corrector.round(lease)
    row = await wheels.pool.fetchrow("SELECT * FROM tickwright.polling_schedule_config WHERE account_id = 'a'")
    assert (row["placed_interval_minutes"], row["stands_on"]) == (changes[-1], [])


async def test_a_slot_that_is_too_full_is_levelled_after_its_minute(wheels: Wheels) -> None:
    """Trackers above the mean move to slots that are due earlier, so none waits longer than an interval."""
    await wheels.account("a", 5)
    await wheels.register(3000)
    await wheels.select_until(6)
    await wheels.pool.execute(
        "UPDATE tickwright.trackers SET place = (place / 60 / 5) * 300 + place % 60 WHERE id % 7 = 0"
    )
    busiest = "SELECT max(n) / avg(n) FROM (SELECT count(*) AS n FROM tickwright.trackers GROUP BY place / 60) AS slots"
    assert await wheels.pool.fetchval(busiest) > 1.4
    await wheels.select_until(11)
    await wheels.pool.execute("TRUNCATE tickwright.scheduler_outbox")
    lease = await wheels.lease("corrector")
    for _ in range(15):
        await wheels.select_next()
        passed = await wheels.pool.fetchrow(
            "SELECT slot_id, interval_minutes, prev_due_at FROM tickwright.poll_slots ORDER BY prev_due_at DESC LIMIT 1"
        )
        await wheels.corrector.maintain_slot(lease, loops.PassedSlot(*passed))
    assert await wheels.pool.fetchval(busiest) < 1.1
    check_each_once(await wheels.polls())
    check_spacing(await wheels.dues(), timedelta(), 5 * MINUTE + timedelta(seconds=10))


async def test_no_tracker_moves_into_a_slot_that_is_still_to_be_caught_up(wheels: Wheels) -> None:
    """It would be polled twice for one outage."""
    await wheels.account("a", 10)
    await wheels.register(400)
    await wheels.select_until(11)
    goal, source = await wheels.ends_of_wheel()
    await wheels.pool.execute("UPDATE tickwright.poll_slots SET missed_due_at = now() WHERE slot_id = $1", goal.slot_id)
    async with wheels.pool.acquire() as connection, connection.transaction():
        assert await loops.level_bucket(connection, 1, Move(source.slot_id * 6, goal.slot_id * 6, 3)) == 0


async def test_the_selector_waits_for_a_move_and_takes_the_tracker_with_it(wheels: Wheels) -> None:
    """A move that is not committed locks its slots, so the tracker is selected in one of them, never in none."""
    await check_selector_waits_for_a_move(wheels)


async def test_a_move_waits_for_the_selector_and_comes_after_its_selection(wheels: Wheels) -> None:
    """A slot that is being selected is locked: a tracker that moves afterwards is never selected in both slots."""
    await check_move_waits_for_a_turn(wheels)


async def test_the_instant_at_which_a_tracker_got_its_place_is_known(wheels: Wheels) -> None:
    """By created_at, or by placed_at where that is later: registered with an old date, levelled, or moved."""
    late = "SELECT count(*) FROM tickwright.trackers WHERE placed_at > now() - interval '1 minute'"
    noted = "SELECT count(placed_at) FROM tickwright.trackers"
    await wheels.account("a", 10)
    await wheels.register(100)
    assert await wheels.pool.fetchval(noted) == 0
    await wheels.pool.execute(
        """INSERT INTO tickwright.shipment_polling_tracker (account_id, partner, external_id, created_at)
           VALUES ('a', 'dhl', 'old', now() - interval '9 days')"""
    )
    await wheels.register(1, prefix="new")
    assert (await wheels.pool.fetchval(noted), await wheels.pool.fetchval(late)) == (1, 1)
    await wheels.pool.execute("UPDATE tickwright.trackers SET placed_at = NULL")
    await wheels.select_until(11)
    goal, source = await wheels.ends_of_wheel()
    async with wheels.pool.acquire() as connection, connection.transaction():
        assert await loops.level_bucket(connection, 1, Move(source.slot_id * 6, goal.slot_id * 6, 1)) == 1
    assert (await wheels.pool.fetchval(noted), await wheels.pool.fetchval(late)) == (1, 1)
    await wheels.account("a", 60)
    lease = await wheels.lease("corrector")
    while await wheels.pool.fetchval("SELECT placed_interval_minutes FROM tickwright.polling_schedule_config") != 60:
        await wheels.corrector.round(lease)
    assert await wheels.pool.fetchval(late) == 102
