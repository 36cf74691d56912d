"""A cap per account and slice: it holds, every tracker is polled, and other accounts are not affected."""

from collections import Counter

import pytest

from kit.wheels import Wheels, check_caps_take_turns, open_wheels

CAP = "UPDATE tickwright.polling_schedule_config SET polls_per_slice_max = $1 WHERE account_id = $2"
COUNTS = """
SELECT sum(selected) AS selected, sum(deferred) AS deferred, sum(skipped) AS skipped,
       sum((SELECT sum(load) FROM unnest(loads) AS load)) AS counted FROM tickwright.poll_slices
"""
ALTERNATE = """
UPDATE tickwright.trackers SET skip_until = CASE WHEN $1 THEN now() + interval '1 year' END
 WHERE id IN (SELECT id FROM tickwright.trackers ORDER BY place, id LIMIT 4)
"""


async def polls_of(wheels: Wheels, account_no: int) -> Counter[int]:
    """Return how often each tracker of an account was polled."""
    rows = await wheels.pool.fetch(
        "SELECT unnest(ids) AS id, unnest(account_nos) AS account_no FROM tickwright.scheduler_outbox"
    )
    return Counter(row["id"] for row in rows if row["account_no"] == account_no)


async def busiest_slice(wheels: Wheels) -> int:
    """Return the most polls that were released within five minutes."""
    rows = await wheels.pool.fetch(
        """SELECT date_bin('5 minutes', release_at, 'epoch') AS at, sum(cardinality(ids)) AS polls
             FROM tickwright.scheduler_outbox GROUP BY 1"""
    )
    return int(max(row["polls"] for row in rows))


async def test_a_capped_account_polls_its_cap_in_every_slice_and_all_its_trackers(database_url: str) -> None:
    """What is left out is deferred in the ledger, and no poll of the account is skipped."""
    async with open_wheels(database_url) as wheels:
        await check_caps_take_turns(wheels)
        counts = await wheels.pool.fetchrow(COUNTS)
    assert (counts["skipped"], counts["selected"] + counts["deferred"]) == (0, counts["counted"])
    assert counts["deferred"] > 400


async def test_a_cap_affects_no_other_account(database_url: str) -> None:
    """Trackers of another account in the same slots are polled every interval."""
    async with open_wheels(database_url) as wheels:
        for account in ("a", "b"):
            await wheels.account(account, 10)
            await wheels.register(50, account, prefix=account)
        await wheels.pool.execute(CAP, 1, "a")
        await wheels.select_until(31)
        others = await polls_of(wheels, 2)
    assert len(others) == 50
    assert min(others.values()) >= 3


@pytest.mark.parametrize(("trackers", "minutes", "cap"), [(1, 10, 1), (100, 120, 6), (30, 10, 17), (7, 1, 35)])
async def test_no_poll_of_an_account_below_its_cap_is_deferred(
    database_url: str, trackers: int, minutes: int, cap: int
) -> None:
    """However its trackers lie in the five minutes of a slice: what counts is the slice, not the minute."""
    async with open_wheels(database_url) as wheels:
        await wheels.account("a", minutes)
        await wheels.pool.execute(CAP, cap, "a")
        await wheels.register(trackers)
        await wheels.select_until(4 * minutes + 1)
        assert (await wheels.pool.fetchrow(COUNTS))["deferred"] == 0


async def test_every_tracker_is_polled_while_others_are_postponed_now_and_then(database_url: str) -> None:
    """A slot goes on after the tracker it polled last: 24 in a slot, two a minute, four of them postponed or not."""
    async with open_wheels(database_url) as wheels:
        await wheels.account("a", 1)
        await wheels.pool.execute(CAP, 10, "a")
        await wheels.register(24)
        for minute in range(40):
            await wheels.pool.execute(ALTERNATE, minute % 2 == 0)
            await wheels.select_next()
        polled = await polls_of(wheels, 1)
        others = await wheels.pool.fetch("SELECT id FROM tickwright.trackers ORDER BY place, id OFFSET 4")
    assert min(polled[row["id"]] for row in others) >= 3
    assert max(polled.values()) <= 5


async def test_postponed_trackers_use_nothing_of_the_cap(database_url: str) -> None:
    """They leave their share to the others: fifty are to be polled in ten minutes, and all are allowed."""
    async with open_wheels(database_url) as wheels:
        await wheels.account("a", 10)
        await wheels.pool.execute(CAP, 30, "a")
        await wheels.register(100)
        await wheels.pool.execute(
            "UPDATE tickwright.trackers SET skip_until = now() + interval '1 day' WHERE id % 2 = 0"
        )
        await wheels.select_until(31)
        counts = await wheels.pool.fetchrow(COUNTS)
    assert counts["deferred"] == 0
    assert counts["skipped"] >= 150


async def test_a_cap_holds_while_an_account_is_on_two_wheels(database_url: str) -> None:
    """Half of it has moved to its new interval: both halves share the cap of a slice."""
    async with open_wheels(database_url) as wheels:
        await wheels.account("a", 10)
        await wheels.register(100)
        await wheels.account("a", 20)
        lease = await wheels.lease("corrector")
        for _ in range(5):
            await wheels.corrector.round(lease)
        await wheels.pool.execute(CAP, 10, "a")
        wheels_used = await wheels.pool.fetchval(
            """SELECT count(DISTINCT s.interval_minutes) FROM tickwright.trackers t
                 JOIN tickwright.poll_slots s ON s.slot_id = t.place / 60"""
        )
        await wheels.select_until(41)
        assert wheels_used == 2
        assert await busiest_slice(wheels) <= 10


async def test_a_cap_holds_in_a_catch_up(database_url: str) -> None:
    """A missed minute counts in the slice of its release, beside the normal one."""
    async with open_wheels(database_url) as wheels:
        await wheels.account("a", 10)
        await wheels.pool.execute(CAP, 10, "a")
        await wheels.register(100)
        await wheels.select_until(11)
        await wheels.pool.execute("TRUNCATE tickwright.scheduler_outbox, tickwright.poll_cap_slices")
        await wheels.sleep_through(15)
        lease = await wheels.lease("selector")
        await wheels.selector.round(lease)
        await wheels.select_until(11)
        assert await busiest_slice(wheels) <= 10
