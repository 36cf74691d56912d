"""Two who change a tracker by plain SQL at once: what neither of them said stays as the other one left it."""

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
NEWS = "status = 'InTransit', status_at = now()"


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[asyncpg.Pool]:
    """Somebody's own connections."""
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
    """Run ``second`` while ``first`` is not committed, so that it has the tracker as it was before; how it ended."""
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(first)
        asked: asyncio.Task[Any] = asyncio.create_task(pool.execute(second))
        await eventually_async(lambda: pool.fetchval(WAITS), what="the second waits for the first")
        await transaction.commit()
    return str(await asked)


async def shown(pool: asyncpg.Pool) -> tuple[str, bool, int]:
    """Return status, whether it has ended, and how many days it is tracked, as begun with 60 at the most."""
    row = await pool.fetchrow(
        """SELECT status, ended_at IS NOT NULL AS ended,
                  round(date_part('epoch', tracking_until - now()) / 86400) AS days
             FROM tickwright.shipment_polling_tracker"""
    )
    return row["status"], row["ended"], int(row["days"])


@pytest.mark.parametrize("where", ["placed", "waiting"])
async def test_whoever_gives_more_time_keeps_the_others_news(pool: asyncpg.Pool, where: str) -> None:
    """A status that was written meanwhile is not set back to what the caller had seen."""
    table = await register(pool, where)
    _, _, days = await shown(pool)
    await one_after_the_other(pool, f"UPDATE {table} SET {NEWS}", f"{CHANGE} {LONGER}")
    assert await shown(pool) == ("InTransit", False, days + 1)


@pytest.mark.parametrize("where", ["placed", "waiting"])
@pytest.mark.parametrize("status", ["InTransit", "Delivered"])
async def test_whoever_brings_news_keeps_the_others_time(pool: asyncpg.Pool, where: str, status: str) -> None:
    """Also when the news end the tracker."""
    await register(pool, where)
    _, _, days = await shown(pool)
    await one_after_the_other(pool, f"{CHANGE} {LONGER}", f"{CHANGE} status = '{status}'")
    assert await shown(pool) == (status, status == "Delivered", days + 1)


@pytest.mark.parametrize(
    ("second", "done"), [(LONGER, "UPDATE 1"), ("status = 'InTransit'", "UPDATE 0"), ("status = 'Lost'", "UPDATE 0")]
)
async def test_a_tracker_that_ended_meanwhile_keeps_its_status(pool: asyncpg.Pool, second: str, done: str) -> None:
    """As by REST, where the outcome is ``ended``: whoever comes later changes nothing, and is told that."""
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


async def test_a_status_of_nothing_is_refused(pool: asyncpg.Pool) -> None:
    """It is not taken for no change."""
    await register(pool, "placed")
    with pytest.raises(asyncpg.NotNullViolationError):
        await pool.execute(f"{CHANGE} status = NULL")
