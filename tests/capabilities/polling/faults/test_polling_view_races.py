"""Two sessions change a tracker by plain SQL at once: a column that one does not set keeps the other's value."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from kit.polling import Ground
from kit.waiting import eventually_async

CHANGE = "UPDATE tickwright.shipment_polling_tracker SET"
LONGER = "tracking_until = tracking_until + interval '1 day'"
WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
NEW_STATUS = "status = 'InTransit', status_at = now()"


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[asyncpg.Pool]:
    """Connections of a user's own program."""
    async with asyncpg.create_pool(database_url, min_size=1, max_size=4) as pool:
        yield pool


async def register(pool: asyncpg.Pool, where: str) -> str:
    """Register one tracker, placed or waiting; return the table where it is."""
    ground = Ground(pool)
    slot = await ground.wheel(2)
    if where == "placed":
        await ground.place(slot, external="X")
        return "tickwright.trackers"
    await pool.execute(
        "INSERT INTO tickwright.shipment_polling_tracker (account_id, partner, external_id) VALUES ('acme', 'dhl', 'X')"
    )
    return "tickwright.tracker_intake"


async def one_after_the_other(pool: asyncpg.Pool, first: str, second: str) -> str:
    """Run ``second`` while ``first`` is not committed, so that it reads the tracker as it was; return its result."""
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(first)
        asked: asyncio.Task[Any] = asyncio.create_task(pool.execute(second))
        await eventually_async(lambda: pool.fetchval(WAITS), what="the second waits for the first")
        await transaction.commit()
    return str(await asked)


async def shown(pool: asyncpg.Pool) -> tuple[str, bool, int]:
    """Return the status, whether the tracker has ended, and for how many more days it is tracked."""
    row = await pool.fetchrow(
        """SELECT status, ended_at IS NOT NULL AS ended,
                  round(date_part('epoch', tracking_until - now()) / 86400) AS days
             FROM tickwright.shipment_polling_tracker"""
    )
    return row["status"], row["ended"], int(row["days"])


@pytest.mark.parametrize("where", ["placed", "waiting"])
async def test_a_longer_tracking_time_keeps_a_concurrent_status(pool: asyncpg.Pool, where: str) -> None:
    """A status that was written meanwhile is not set back to the one that the statement had read."""
    table = await register(pool, where)
    _, _, days = await shown(pool)
    await one_after_the_other(pool, f"UPDATE {table} SET {NEW_STATUS}", f"{CHANGE} {LONGER}")
    assert await shown(pool) == ("InTransit", False, days + 1)


@pytest.mark.parametrize("where", ["placed", "waiting"])
@pytest.mark.parametrize("status", ["InTransit", "Delivered"])
async def test_a_status_keeps_a_concurrent_longer_tracking_time(pool: asyncpg.Pool, where: str, status: str) -> None:
    """Also when the status ends the tracker."""
    await register(pool, where)
    _, _, days = await shown(pool)
    await one_after_the_other(pool, f"{CHANGE} {LONGER}", f"{CHANGE} status = '{status}'")
    assert await shown(pool) == (status, status == "Delivered", days + 1)


@pytest.mark.parametrize(
    ("second", "done"), [(LONGER, "UPDATE 1"), ("status = 'InTransit'", "UPDATE 0"), ("status = 'Lost'", "UPDATE 0")]
)
async def test_a_tracker_that_ended_meanwhile_keeps_its_status(pool: asyncpg.Pool, second: str, done: str) -> None:
    """As by REST, where the outcome is ``ended``: a later status changes nothing, and its statement updates no row."""
    await register(pool, "placed")
    assert await one_after_the_other(pool, f"{CHANGE} status = 'Delivered'", f"{CHANGE} {second}") == done
    status, ended, _ = await shown(pool)
    assert (status, ended) == ("Delivered", True)
    assert len(await Ground(pool).events()) == 1


async def test_the_status_of_an_ended_tracker_stays(pool: asyncpg.Pool) -> None:
    """Without any race, too; the same status again is no change."""
    await register(pool, "placed")
    await pool.execute(f"{CHANGE} status = 'Delivered'")
    assert await pool.execute(f"{CHANGE} status = 'InTransit'") == "UPDATE 0"
    assert await pool.execute(f"{CHANGE} status = 'Delivered'") == "UPDATE 1"
    assert (await shown(pool))[0] == "Delivered"


async def test_a_null_status_is_refused(pool: asyncpg.Pool) -> None:
    """It is not taken for no change."""
    await register(pool, "placed")
    with pytest.raises(asyncpg.NotNullViolationError):
        await pool.execute(f"{CHANGE} status = NULL")
