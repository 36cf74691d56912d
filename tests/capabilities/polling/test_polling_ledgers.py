"""What the corrector keeps of the slice ledger, whatever the interval: the rows that levelling and alerts read."""

from datetime import timedelta

import pytest

from kit.wheels import Wheels
from tickwright.capabilities.polling.wheels import loops
from tickwright.capabilities.polling.wheels.loops import plan_moves

DAY = timedelta(days=1)
SELECTED_FOR_LONG = """
INSERT INTO tickwright.poll_slices (due_at, slot_id, partner_no, interval_minutes, selected, loads)
SELECT s.next_due_at - back * make_interval(mins => s.interval_minutes), s.slot_id, 1, s.interval_minutes, 100,
       CASE WHEN s.slot_id % 2 = 0 THEN '{100,0,0,0,0,0}' ELSE '{0,0,0,0,0,0}'::integer[] END
  FROM tickwright.poll_slots s CROSS JOIN LATERAL generate_series(1, $1::integer / s.interval_minutes) AS back
"""


@pytest.mark.parametrize("interval", [2 * DAY, 4 * DAY])
async def test_a_long_wheel_is_levelled_by_the_counts_of_its_last_selections(
    wheels: Wheels, interval: timedelta
) -> None:
    """With an interval of four days, too, the ledger has the last selection of each slot of the wheel."""
    minutes = interval // timedelta(minutes=1)
    await wheels.account("a", minutes)
    await wheels.register(1)
    await wheels.pool.execute("UPDATE tickwright.poll_slots SET prev_due_at = next_due_at - $1::interval", interval)
    await wheels.pool.execute(SELECTED_FOR_LONG, minutes)
    row = await wheels.pool.fetchrow(
        "SELECT slot_id, prev_due_at FROM tickwright.poll_slots WHERE slot_id % 2 = 0 ORDER BY prev_due_at DESC LIMIT 1"
    )
    passed = loops.PassedSlot(row["slot_id"], minutes, row["prev_due_at"])
    lease = await wheels.lease("corrector")
    for _ in range(3):
        await wheels.corrector.maintain_slot(lease, passed)
    async with wheels.pool.acquire() as connection:
        loads = (await loops.slot_loads(connection, minutes))[1]
    assert len(loads) == minutes
    assert plan_moves(loads, passed.slot_id, minutes, 500)


@pytest.mark.parametrize("minutes", [120, 2 * 1440, 4 * 1440])
async def test_the_slice_ledger_keeps_three_days_and_an_interval(wheels: Wheels, minutes: int) -> None:
    """Of each slot that is maintained; rows of any slot that were not deleted in time go a week later."""
    await wheels.account("a", minutes)
    await wheels.register(1)
    await wheels.pool.execute(SELECTED_FOR_LONG, 30 * 1440)
    slot, last = await wheels.pool.fetchrow(
        "SELECT slot_id, max(due_at) FROM tickwright.poll_slices GROUP BY 1 LIMIT 1"
    )
    interval = timedelta(minutes=minutes)
    async with wheels.pool.acquire() as connection, connection.transaction():
        await loops.forget_slices(connection, loops.PassedSlot(slot, minutes, last), 3 * DAY, 1_000_000)
    own = "SELECT max($1 - due_at) AS oldest, count(*) AS n FROM tickwright.poll_slices WHERE slot_id = $2"
    row = await wheels.pool.fetchrow(own, last, slot)
    assert row["oldest"] <= 3 * DAY + interval
    assert row["n"] == (3 * DAY + interval) // interval + 1, "none younger is missing"
    others = "SELECT max($1 - due_at) FROM tickwright.poll_slices WHERE slot_id <> $2"
    assert 10 * DAY - interval < await wheels.pool.fetchval(others, last, slot) <= 10 * DAY
