"""Missed minutes of slots: caught up once, beside the normal ones, and never in a burst."""

from collections import Counter
from datetime import timedelta

from kit.wheels import Wheels, check_each_once
from tickwright.capabilities.polling.wheels import loops

MINUTE = timedelta(minutes=1)


async def test_after_an_outage_each_tracker_is_caught_up_once_and_never_in_a_burst(wheels: Wheels) -> None:
    """After six hours: one missed slot per wheel and minute, spread over a minute, beside the normal slots."""
    await wheels.account("a", 60)
    await wheels.register(600)
    await wheels.select_until(61)
    await wheels.pool.execute("TRUNCATE tickwright.scheduler_outbox")
    await wheels.pool.execute("DELETE FROM tickwright.poll_slices")  # of minutes that, six hours back, come again
    await wheels.sleep_through(360)
    lease = await wheels.lease("selector")
    await wheels.selector.round(lease)
    slots = await wheels.pool.fetchrow(
        """SELECT count(*) FILTER (WHERE missed_due_at IS NOT NULL) AS missed, min(next_due_at) > now() AS ahead
             FROM tickwright.poll_slots"""
    )
    assert slots["missed"] >= 58
    assert slots["ahead"]
    releases: Counter[object] = Counter()
    for _ in range(61):
        await wheels.pool.execute("UPDATE tickwright.job_config SET slice_start = NULL, slice_end = NULL")
        before = {row["id"] for row in await wheels.polls()}
        await wheels.selector.round(lease)
        releases[len({row["id"] for row in await wheels.polls()} - before) <= 22] += 1
    assert releases[False] == 0, "one slot of ten trackers a round, and a normal slot beside it"
    polls = await wheels.polls()
    check_each_once(polls)
    caught_up = [row for row in polls if row["due_at"] < row["release_at"]]
    assert all(times == 1 for times in Counter(row["id"] for row in caught_up).values())
    assert len({row["id"] for row in polls}) >= 570, "a slot whose own minute is near needs no catch-up"
    assert await wheels.pool.fetchval("SELECT count(*) FROM tickwright.poll_slices WHERE coalesced") >= 4 * 58, (
        "the minutes before the last missed one"
    )


async def test_the_most_overdue_slot_is_caught_up_first(wheels: Wheels) -> None:
    """Of each wheel, the slot whose last minute is longest ago."""
    await wheels.account("a", 30)
    await wheels.register(60)
    await wheels.select_until(31)
    await wheels.sleep_through(60)
    lease = await wheels.lease("selector")
    await wheels.selector.round(lease)
    longest = await wheels.pool.fetchval(
        """SELECT slot_id FROM tickwright.poll_slots
            WHERE missed_due_at IS NOT NULL AND next_due_at > now() + interval '4 minutes'
            ORDER BY prev_due_at LIMIT 1"""
    )
    await wheels.pool.execute("UPDATE tickwright.job_config SET slice_start = NULL, slice_end = NULL")
    await wheels.selector.round(lease)
    assert await wheels.pool.fetchval(
        "SELECT missed_due_at IS NULL FROM tickwright.poll_slots WHERE slot_id = $1", longest
    )


async def test_a_slot_whose_minute_has_begun_is_not_selected_late(wheels: Wheels) -> None:
    """A selector that stalled between reading the due slots and selecting one leaves it to the catch-up."""
    await wheels.account("a", 5)
    await wheels.register(50)
    await wheels.pool.execute("UPDATE tickwright.poll_slots SET next_due_at = now() - interval '10 seconds'")
    slot, _ = await wheels.ends_of_wheel()
    async with wheels.pool.acquire() as connection, connection.transaction():
        assert (await loops.select_slot(connection, slot, 1)).trackers == 0
    async with wheels.pool.acquire() as connection, connection.transaction():
        await loops.pass_missed(connection, await wheels.now())
        late = await loops.select_missed(connection, slot.slot_id, await wheels.now() - MINUTE, 1)
    assert late.trackers == 0
    assert await wheels.polls() == []
