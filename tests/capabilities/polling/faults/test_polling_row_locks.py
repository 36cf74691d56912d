"""Another program's open transaction locks trackers: the loops skip them and do not wait."""

from kit.wheels import (
    Wheels,
    check_each_once,
    check_ending_waits_for_no_lock,
    check_following_waits_for_no_lock,
    check_levelling_waits_for_no_lock,
    trackers_locked,
    without_waiting,
)
from tickwright.capabilities.polling.wheels import loops


async def test_a_locked_tracker_keeps_no_other_from_ending(wheels: Wheels) -> None:
    """Others of its slot end at once; it ends after the slot's next minute."""
    await check_ending_waits_for_no_lock(wheels)


async def test_a_locked_tracker_is_not_levelled(wheels: Wheels) -> None:
    """Others of its bucket move in its place."""
    await check_levelling_waits_for_no_lock(wheels)


async def test_a_locked_tracker_follows_its_account_later(wheels: Wheels) -> None:
    """All others move, those of other wheels, too; the account counts as moved when the locked tracker has moved."""
    await check_following_waits_for_no_lock(wheels)


async def test_paging_skips_locked_trackers_and_misses_no_others(wheels: Wheels) -> None:
    """A full page is followed by one from its last tracker on; locked ones do not count on it."""
    await wheels.account("a", 1)
    await wheels.register(30)
    await wheels.account("a", 5)
    async with wheels.pool.acquire() as connection, connection.transaction():
        await loops.add_missing_wheels(connection)
    first = await wheels.pool.fetchval("SELECT min(id) FROM tickwright.trackers")
    seen: list[int] = []
    last_id = 0
    async with trackers_locked(wheels, f"id - {first} IN (0, 9, 10, 29)") as held:
        while not seen or seen[-1] == 10:
            async with wheels.pool.acquire() as connection, connection.transaction():
                step = await loops.move_to_wheel(connection, 0, [1], 5, at_most=10, after_id=last_id)
            seen, last_id = [*seen, step.seen], step.last_id
        left = await wheels.pool.fetch("SELECT id FROM tickwright.trackers WHERE place < 60")
    assert (len(held), seen) == (4, [10, 10, 6])
    assert {row["id"] for row in left} == held


async def test_the_selector_does_not_wait_for_locked_trackers(wheels: Wheels) -> None:
    """While an account moves and some of its trackers are locked, each slot is selected in time, once."""
    await wheels.account("a", 4)
    await wheels.register(200)
    await wheels.select_until(5)
    await wheels.account("a", 2)
    lease = await wheels.lease("corrector")
    async with trackers_locked(wheels, "id % 10 = 3") as held:
        for minutes in range(6, 10):
            for _ in range(6):
                await without_waiting(wheels, wheels.corrector.round(lease))
            await without_waiting(wheels, wheels.select_until(minutes))
        await wheels.select_until(14)
    check_each_once(await wheels.polls())
    dues = await wheels.dues()
    assert len(held) == 20
    assert held <= dues.keys(), "a locked tracker is polled in its old slot"


async def test_an_account_that_is_being_changed_delays_no_other_accounts_trackers(wheels: Wheels) -> None:
    """The registrar skips its trackers, and places them when the change has ended."""
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
