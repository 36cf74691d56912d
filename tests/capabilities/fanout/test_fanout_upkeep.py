"""Upkeep of fan-out deletes old rows in bounded batches, under a lease, and no others."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from kit.leases import LONG, run_out
from tickwright.capabilities.fanout import retention
from tickwright.capabilities.fanout.retention import FanoutRetention
from tickwright.engine import retention as engine_retention
from tickwright.engine.leases import Lease, Leases
from tickwright.engine.retention import EVERY_S

NAME = "fanout-upkeep"
CLAIMS = """
INSERT INTO tickwright.fanout_claims (window_at, task_type, entity_code, token, claimed_until)
SELECT now() - $1::interval, 'LOCATIONS', $2 || n, 't', now() FROM generate_series(1, $3::integer) AS n
"""
WINDOWS = """
INSERT INTO tickwright.fanout_windows (task_type, window_at)
SELECT 'M' || n, now() - $1::interval FROM generate_series(1, $2::integer) AS n
"""
CURSOR = """
INSERT INTO tickwright.fanout_cursors (entity_code, task_type, last_window_at, last_success_at, last_error_at, owner)
VALUES ($1, 'LOCATIONS', now() - $2::interval, now() - $2::interval, now() - $3::interval, $4)
"""
LONG_AGO, LATELY = timedelta(days=31), timedelta(days=29)


@pytest.fixture
async def lease(pool: asyncpg.Pool) -> Lease:
    """Return the lease of upkeep."""
    lease = await Leases(pool, owner="test", terms=LONG).take(NAME)
    assert lease is not None
    return lease


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use batches of ten."""
    for module in (retention, engine_retention):
        monkeypatch.setattr(module, "BATCH", 10)


async def left(pool: asyncpg.Pool, table: str) -> int:
    """Return how many rows a table has."""
    return int(await pool.fetchval(f"SELECT count(*) FROM tickwright.{table}"))


async def test_claims_of_windows_that_are_over_go_and_others_stay(pool: asyncpg.Pool, lease: Lease) -> None:
    """An hour after the longest window; a longer window keeps more."""
    await pool.execute("UPDATE tickwright.modules SET interval_seconds = 3600")
    await pool.execute(CLAIMS, timedelta(hours=2, minutes=1), "old", 25)
    await pool.execute(CLAIMS, timedelta(hours=1, minutes=59), "new", 15)
    await FanoutRetention().round(lease)
    assert await left(pool, "fanout_claims") == 15
    await pool.execute("UPDATE tickwright.modules SET interval_seconds = 60")
    await FanoutRetention().round(lease)
    assert await left(pool, "fanout_claims") == 0


async def test_counts_of_windows_are_kept_for_thirty_days(pool: asyncpg.Pool, lease: Lease) -> None:
    """More than one batch of old ones is deleted; the others stay."""
    await pool.execute(WINDOWS, LONG_AGO, 25)
    await pool.execute(WINDOWS, LATELY, 15)
    await FanoutRetention().round(lease)
    assert await left(pool, "fanout_windows") == 15


async def test_cursors_go_thirty_days_after_the_last_run_of_an_entity_that_is_gone(
    pool: asyncpg.Pool, lease: Lease
) -> None:
    """Cursors of entities that exist stay, and so do those of recent runs or failures and of a run under way."""
    await pool.execute("INSERT INTO tickwright.entities (code) SELECT 'THERE' || n FROM generate_series(1, 15) AS n")
    for number in range(1, 16):
        await pool.execute(CURSOR, f"THERE{number}", LONG_AGO, LONG_AGO, None)
        await pool.execute(CURSOR, f"GONE{number}", LONG_AGO, None if number % 2 else LONG_AGO, None)
    await pool.execute(CURSOR, "RAN", LATELY, LONG_AGO, None)
    await pool.execute(CURSOR, "FAILED", LONG_AGO, LATELY, None)
    await pool.execute(CURSOR, "RUNS", LONG_AGO, LONG_AGO, 7)
    upkeep = FanoutRetention()
    for _ in range(4):
        await upkeep.round(lease)
    codes = {row["entity_code"] for row in await pool.fetch("SELECT entity_code FROM tickwright.fanout_cursors")}
    assert codes == {"RAN", "FAILED", "RUNS", *(f"THERE{number}" for number in range(1, 16))}
    await pool.execute(CURSOR, "ANOTHER", LONG_AGO, LONG_AGO, None)
    for _ in range(3):
        await upkeep.round(lease)
    assert await left(pool, "fanout_cursors") == len(codes), "it starts again from the first one"


async def test_a_round_is_bounded_and_the_next_comes_at_once(
    pool: asyncpg.Pool, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a long outage of Redis there are millions of claims: other work runs between the rounds."""
    monkeypatch.setattr(engine_retention, "BATCHES_MAX", 2)
    await pool.execute(CLAIMS, LONG_AGO, "old", 25)
    upkeep = FanoutRetention()
    assert await upkeep.round(lease) == 0
    assert await left(pool, "fanout_claims") == 5
    assert await upkeep.round(lease) == EVERY_S
    assert await left(pool, "fanout_claims") == 0


async def test_locked_rows_wait_for_the_next_round(pool: asyncpg.Pool, lease: Lease, database_url: str) -> None:
    """Upkeep never waits for a consumer, nor a consumer for it."""
    await pool.execute(WINDOWS, LONG_AGO, 3)
    await pool.execute(CURSOR, "GONE", LONG_AGO, None, None)
    other = await asyncpg.connect(database_url)
    transaction = other.transaction()
    await transaction.start()
    await other.execute("UPDATE tickwright.fanout_windows SET failed = 1 WHERE task_type = 'M1'")
    await other.execute("UPDATE tickwright.fanout_cursors SET fence = 5")
    async with asyncio.timeout(30):
        await FanoutRetention().round(lease)
    await transaction.rollback()
    await other.close()
    assert await left(pool, "fanout_windows") == 1
    assert await left(pool, "fanout_cursors") == 1
    await FanoutRetention().round(lease)
    assert await left(pool, "fanout_windows") == await left(pool, "fanout_cursors") == 0


async def test_upkeep_without_the_lease_changes_nothing(pool: asyncpg.Pool, lease: Lease) -> None:
    """An overtaken holder deletes nothing."""
    await pool.execute(CLAIMS, LONG_AGO, "old", 5)
    await pool.execute(WINDOWS, LONG_AGO, 5)
    await pool.execute(CURSOR, "GONE", LONG_AGO, None, None)
    await run_out(pool, NAME)
    assert await Leases(pool, owner="heir", terms=LONG).take(NAME) is not None
    await FanoutRetention().round(lease)
    assert await left(pool, "fanout_claims") == await left(pool, "fanout_windows") == 5
    assert await left(pool, "fanout_cursors") == 1
