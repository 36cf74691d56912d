"""Somebody's open transaction holds trackers: the loops pass them by, so nobody has to wait."""

from kit.wheels import (
    Wheels,
    check_each_once,
    check_ending_waits_for_nobody,
    check_following_waits_for_nobody,
    check_levelling_waits_for_nobody,
    somebody_changes,
    without_waiting,
)
from tickwright.capabilities.polling.wheels import loops


async def test_a_tracker_that_somebody_holds_keeps_nobody_from_ending(wheels: Wheels) -> None:
    """The slot's others end at once; it ends behind the next turn."""
    await check_ending_waits_for_nobody(wheels)


async def test_a_tracker_that_somebody_holds_is_not_levelled(wheels: Wheels) -> None:
    """Others of its bucket move in its place."""
    await check_levelling_waits_for_nobody(wheels)


async def test_a_tracker_that_somebody_holds_follows_its_account_later(wheels: Wheels) -> None:
    """All others move, those of other wheels, too; the account has not moved before it has."""
    await check_following_waits_for_nobody(wheels)


async def test_paging_passes_by_whoever_is_held_and_misses_nobody(wheels: Wheels) -> None:
    """A page that is full goes on behind its last tracker; locked ones take no place on it."""
    await wheels.account("a", 1)
    await wheels.register(30)
    await wheels.account("a", 5)
    async with wheels.pool.acquire() as connection, connection.transaction():
        await loops.add_missing_wheels(connection)
    first = await wheels.pool.fetchval("SELECT min(id) FROM tickwright.trackers")
    seen: list[int] = []
    last_id = 0
    async with somebody_changes(wheels, f"id - {first} IN (0, 9, 10, 29)") as held:
        while not seen or seen[-1] == 10:
            async with wheels.pool.acquire() as connection, connection.transaction():
                step = await loops.move_to_wheel(connection, 0, [1], 5, at_most=10, after_id=last_id)
            seen, last_id = [*seen, step.seen], step.last_id
        left = await wheels.pool.fetch("SELECT id FROM tickwright.trackers WHERE place < 60")
    assert (len(held), seen) == (4, [10, 10, 6])
    assert {row["id"] for row in left} == held


async def test_the_selector_does_not_wait_for_whoever_the_loops_pass_by(wheels: Wheels) -> None:
    """While accounts move away from trackers that somebody holds, each turn is selected in its time, once."""
    await wheels.account("a", 4)
    await wheels.register(200)
    await wheels.turn_until(5)
    await wheels.account("a", 2)
    lease = await wheels.lease("corrector")
    async with somebody_changes(wheels, "id % 10 = 3") as held:
        for minutes in range(6, 10):
            for _ in range(6):
                await without_waiting(wheels, wheels.corrector.round(lease))
            await without_waiting(wheels, wheels.turn_until(minutes))
        await wheels.turn_until(14)
    check_each_once(await wheels.polls())
    dues = await wheels.dues()
    assert len(held) == 20
    assert held <= dues.keys(), "who is held is polled where it stands"


async def test_an_account_that_somebody_changes_keeps_no_other_accounts_trackers_waiting(wheels: Wheels) -> None:
    """The registrar passes its trackers by, and places them when its change is committed."""
    for account in ("a", "b"):
        await wheels.account(account, 5)
        await wheels.register(1, account, prefix=account)
    placed = "SELECT count(*) FROM tickwright.trackers WHERE place IS NOT NULL"
    async with wheels.pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(
            "UPDATE tickwright.polling_schedule_config SET max_age_days = 9 WHERE account_id = 'a'"
        )
        for account in ("a", "b"):
            await wheels.pool.execute(
                """INSERT INTO tickwright.shipment_polling_tracker (account_id, partner, external_id)
                   SELECT $1, 'dhl', $1 || 'new' || n FROM generate_series(1, 10) AS n""",
                account,
            )
        lease = await wheels.lease("registrar")
        assert await without_waiting(wheels, wheels.registrar.round(lease)) > 0
        assert await wheels.pool.fetchval(placed) == 12
        await transaction.rollback()
    await wheels.registrar.round(lease)
    assert await wheels.pool.fetchval(placed) == 22
