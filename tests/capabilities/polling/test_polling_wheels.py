"""Trackers on wheels: placed once, and selected once an interval."""

from collections import Counter
from datetime import timedelta
from itertools import pairwise

import pytest

from kit.wheels import (
    Wheels,
    check_a_turn_is_selected_once,
    check_each_once,
    check_every_tracker_is_polled,
    check_nothing_is_selected_after_its_end,
)
from tickwright.capabilities.polling.wheels import loops

MINUTE = timedelta(minutes=1)


async def test_a_plain_insert_registers_and_the_registrar_places(wheels: Wheels) -> None:
    """Until it is placed, next_poll_at is NULL; then it lies within one interval."""
    await wheels.account("a", 30)
    await wheels.pool.execute(
        "INSERT INTO tickwright.shipment_polling_tracker (account_id, partner, external_id) VALUES ('a', 'dhl', 'X')"
    )
    shown = "SELECT next_poll_at - now() AS waits, status FROM tickwright.shipment_polling_tracker"
    assert await wheels.pool.fetchval(shown) is None
    lease = await wheels.lease("registrar")
    assert await wheels.registrar.round(lease) == 0.0, "the first round makes the wheel"
    await wheels.registrar.round(lease)
    row = await wheels.pool.fetchrow("SELECT next_poll_at - now() AS waits FROM tickwright.shipment_polling_tracker")
    assert timedelta() < row["waits"] <= timedelta(minutes=32)


async def test_registered_twice_is_one_tracker(wheels: Wheels) -> None:
    """Also when the second registration was under way while the first one was placed."""
    await wheels.register(3)
    await wheels.pool.execute(
        """INSERT INTO tickwright.tracker_intake (account_no, partner_no, external_id, tracking_until)
           SELECT account_no, partner_no, external_id, tracking_until FROM tickwright.trackers"""
    )
    await wheels.registrar.round(await wheels.lease("registrar"))
    assert await wheels.pool.fetchval("SELECT count(*) FROM tickwright.trackers") == 3
    assert await wheels.pool.fetchval("SELECT count(*) FROM tickwright.tracker_intake") == 0


async def test_every_tracker_is_selected_once_an_interval(wheels: Wheels) -> None:
    """Over three intervals of two wheels: each (tracker, due) once, exactly an interval apart, at its own second."""
    await wheels.account("a", 10)
    await wheels.account("b", 15)
    await wheels.register(300, "a")
    await wheels.register(300, "b", prefix="B")
    await wheels.select_until(47)
    polls = await wheels.polls()
    check_each_once(polls)
    dues = await wheels.dues()
    assert len(dues) == 600
    gaps = Counter(later - earlier for each in dues.values() for earlier, later in pairwise(each))
    assert set(gaps) == {10 * MINUTE, 15 * MINUTE}
    assert all(row["release_at"] == row["due_at"] for row in polls)
    ledger = await wheels.pool.fetchval("SELECT sum(selected) FROM tickwright.poll_slices")
    assert ledger == len(polls), "the slice ledger counts what was selected"


async def test_a_round_selects_a_minute_ahead_and_the_next_round_nothing_more(wheels: Wheels) -> None:
    """Nothing of the minute that has begun, nothing twice."""
    await wheels.account("a", 1)
    await wheels.register(120)
    lease = await wheels.lease("selector")
    now = await wheels.now()
    await wheels.pool.execute("UPDATE tickwright.poll_slots SET next_due_at = date_trunc('minute', now()) + $1", MINUTE)
    await wheels.selector.round(lease)
    polls = await wheels.polls()
    assert len({row["id"] for row in polls}) == 120
    assert all(row["release_at"] > now for row in polls)
    await wheels.selector.round(lease)
    check_each_once(await wheels.polls())


async def test_paused_postponed_and_aged_trackers_are_skipped(wheels: Wheels) -> None:
    """A paused account or partner, a tracker with an event, one past its time; each is counted as skipped."""
    await wheels.account("p", 5)
    for account, partner in (("a", "dhl"), ("p", "dhl"), ("a", "ups"), ("a", "gls"), ("a", "dpd")):
        await wheels.account(account, 5)
        await wheels.register(20, account, partner, prefix=f"{account}{partner}")
    await wheels.pool.execute("UPDATE tickwright.polling_schedule_config SET paused_at = now() WHERE account_id = 'p'")
    await wheels.pool.execute("UPDATE tickwright.partners SET paused_at = now() WHERE name = 'ups'")
    await wheels.pool.execute(
        "UPDATE tickwright.trackers SET skip_until = now() + interval '1 day' WHERE external_id ~ 'gls'"
    )
    await wheels.pool.execute("UPDATE tickwright.trackers SET tracking_until = now() WHERE external_id ~ 'dpd'")
    await wheels.select_until(6)
    selected = {row["id"] for row in await wheels.polls()}
    kept = await wheels.pool.fetch(
        """SELECT id FROM tickwright.shipment_polling_tracker WHERE account_id = 'a' AND partner = 'dhl'"""
    )
    assert selected == {row["id"] for row in kept}
    assert await wheels.pool.fetchval("SELECT sum(skipped) FROM tickwright.poll_slices") == 80


async def test_two_selectors_select_a_slots_minute_once(wheels: Wheels) -> None:
    """Also without a lease: the slot that has advanced is not selected for the same minute again."""
    await check_a_turn_is_selected_once(wheels)


async def test_a_tracker_whose_wheel_is_not_there_yet_waits_for_it(wheels: Wheels) -> None:
    """The registrar takes nothing from the intake that it cannot place, whatever is committed meanwhile."""
    await wheels.register(1)
    await wheels.account("late", 77)
    await wheels.pool.execute(
        "INSERT INTO tickwright.shipment_polling_tracker (account_id, partner, external_id) VALUES ('late', 'dhl', 'L')"
    )
    async with wheels.pool.acquire() as connection, connection.transaction():
        assert await loops.place_new(connection, 100) == (0, 0)
    assert await wheels.pool.fetchval("SELECT count(*) FROM tickwright.tracker_intake") == 1
    lease = await wheels.lease("registrar")
    while await wheels.registrar.round(lease) == 0.0:
        pass
    assert await wheels.pool.fetchval("SELECT count(*) FROM tickwright.trackers") == 2


async def test_an_id_that_is_taken_does_not_stop_the_registrar(wheels: Wheels) -> None:
    """The second tracker with an id gets another one, and no other tracker waits for it."""
    await wheels.register(3)
    await wheels.pool.execute(
        """INSERT INTO tickwright.tracker_intake (id, account_no, partner_no, external_id, tracking_until)
           SELECT id, account_no, partner_no, 'again-' || id, tracking_until FROM tickwright.trackers"""
    )
    await wheels.registrar.round(await wheels.lease("registrar"))
    assert await wheels.pool.fetchval("SELECT count(*) FROM tickwright.trackers") == 6


async def test_no_tracker_is_selected_after_its_end(wheels: Wheels) -> None:
    """P3: a tracker that is delivered, or past its time, is not selected afterwards."""
    await check_nothing_is_selected_after_its_end(wheels)


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(4))
async def test_after_outages_changes_and_crashes_no_tracker_is_left_behind(wheels: Wheels, seed: int) -> None:
    """P5, P6: every tracker has a place, and waits for an interval at most."""
    await check_every_tracker_is_polled(wheels, seed)
