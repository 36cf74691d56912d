"""The corrector maintains every slot after its minute, and ends trackers whose time is over."""

from datetime import timedelta

from kit.wheels import EVENTS, Wheels
from tickwright.capabilities.polling.wheels import loops

MINUTE = timedelta(minutes=1)
KEPT_UP = """
UPDATE tickwright.poll_slots s
   SET prev_due_at = to_timestamp(60 * at.due), next_due_at = to_timestamp(60 * (at.due + s.interval_minutes))
  FROM tickwright.poll_wheels w
 CROSS JOIN LATERAL (SELECT ceil(date_part('epoch', clock_timestamp()) / 60)::bigint AS next) AS minute
 CROSS JOIN LATERAL generate_series(next - w.interval_minutes + 1, next) AS at (due)
 WHERE w.interval_minutes = s.interval_minutes AND at.due % w.interval_minutes = s.slot_id - w.first_slot_id
"""


async def test_every_slot_is_maintained_once_after_its_minute_in_order(wheels: Wheels) -> None:
    """The last past minute of each, whatever the interval; after any of them all later ones follow."""
    for minutes in (1, 2, 3, 15):
        await wheels.account(f"a{minutes}", minutes)
        await wheels.register(1, f"a{minutes}", prefix=f"A{minutes}")
    async with wheels.pool.acquire() as connection:
        for _ in range(2):  # one minute may end in between, not two
            now = await wheels.now()
            found = await loops.passed_slots(connection, (now - 20 * MINUTE, -1))
            later = [await loops.passed_slots(connection, (slot.due_at, slot.slot_id)) for slot in found]
            if (await wheels.now()).minute == now.minute:
                break
    assert len({slot.slot_id for slot in found}) == len(found) == 1 + 2 + 3 + 15
    assert [(slot.due_at, slot.slot_id) for slot in found] == sorted((slot.due_at, slot.slot_id) for slot in found)
    assert later == [found[n + 1 :] for n in range(len(found))]
    for slot in found:
        over_at = slot.due_at + MINUTE
        assert over_at <= now < over_at + slot.interval_minutes * MINUTE, "its minute is over, and its next one is not"
    slots = dict(await wheels.pool.fetch("SELECT slot_id, next_due_at FROM tickwright.poll_slots"))
    assert all((slots[slot.slot_id] - slot.due_at) % (slot.interval_minutes * MINUTE) == timedelta() for slot in found)


async def test_with_many_wheels_the_corrector_maintains_every_slot(wheels: Wheels) -> None:
    """More slots have the same minute than a round maintains: the trackers of each end when their time is over."""
    for minutes in range(5, 20):
        await wheels.account(f"a{minutes}", minutes)
        await wheels.register(3, f"a{minutes}", prefix=f"A{minutes}")
    await wheels.pool.execute("UPDATE tickwright.trackers SET tracking_until = now()")
    await wheels.pool.execute(
        "UPDATE tickwright.poll_slots SET prev_due_at = date_trunc('minute', now()) - interval '5 minutes'"
    )
    lease = await wheels.lease("corrector")
    while await wheels.corrector.round(lease) == 0.0:
        pass
    assert await wheels.pool.fetchval("SELECT count(*) FROM tickwright.trackers WHERE ended_at IS NULL") == 0


async def test_slots_of_short_intervals_are_maintained_although_selected_ahead(wheels: Wheels) -> None:
    """With one and two minutes, too: aged trackers end, and the ledger keeps what is still read and no more."""
    for minutes in (1, 2, 3, 15):
        await wheels.account(f"a{minutes}", minutes)
        await wheels.register(30, f"a{minutes}", prefix=f"A{minutes}-")
    await wheels.pool.execute("UPDATE tickwright.trackers SET tracking_until = now()")
    await wheels.pool.execute(KEPT_UP)
    await wheels.pool.execute(
        """INSERT INTO tickwright.poll_done (slot_id, due_at, partner_no, done_at, ids)
           SELECT slot_id, prev_due_at - back * make_interval(mins => interval_minutes), 1, now(), '{1}'
             FROM tickwright.poll_slots CROSS JOIN generate_series(0, 40) AS back"""
    )
    lease = await wheels.lease("corrector")
    while await wheels.corrector.round(lease) == 0.0:
        pass
    assert await wheels.pool.fetchval("SELECT count(*) FROM tickwright.trackers WHERE ended_at IS NULL") == 0
    kept = await wheels.pool.fetch(
        """SELECT DISTINCT s.interval_minutes, count(*)
             FROM tickwright.poll_done JOIN tickwright.poll_slots s USING (slot_id) GROUP BY s.interval_minutes, slot_id
            ORDER BY 1"""
    )
    assert [tuple(row) for row in kept] == [(1, 13), (2, 8), (3, 6), (15, 3)], "three intervals and ten minutes"


async def test_a_tracker_past_its_time_ends_with_a_message(wheels: Wheels) -> None:
    """Not before, and with one message in the outbox."""
    await wheels.account("a", 5)
    await wheels.register(10)
    await wheels.select_until(6)
    await wheels.pool.execute("UPDATE tickwright.trackers SET tracking_until = now() WHERE id % 2 = 0")
    await wheels.pool.execute("UPDATE tickwright.poll_slots SET prev_due_at = now() - interval '10 minutes'")
    await wheels.pool.execute(
        """INSERT INTO tickwright.poll_done (slot_id, due_at, partner_no, done_at, ids)
           SELECT place / 60, now(), partner_no, '2026-01-01Z', ARRAY[id] FROM tickwright.trackers"""
    )
    await wheels.corrector.round(await wheels.lease("corrector"))
    ended = await wheels.pool.fetch("SELECT id FROM tickwright.trackers WHERE ended_at IS NOT NULL AND place IS NULL")
    messages = await wheels.pool.fetch(
        "SELECT key::bigint AS id, payload FROM tickwright.outbox WHERE destination = $1", EVENTS
    )
    assert {row["id"] for row in ended} == {row["id"] for row in messages}
    assert len(messages) == 5
    assert all(row["id"] % 2 == 0 for row in messages)
    kept = "SELECT count(*) FROM tickwright.shipment_polling_tracker WHERE last_polled_at < ended_at"
    assert await wheels.pool.fetchval(kept) == 5, "the last poll is known although the place is gone"
