"""A database that goes on from another history: every number that was given out stays the only one of its kind."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from tickwright.domain.leases import LeaseTerms
from tickwright.runtime.session import WorkerSession
from tickwright.store.pool import Pool

MOVE = "UPDATE tickwright.timelines SET timeline = '00000077', noticed_at = noticed_at - interval '1 day'"
NOTICE = "SELECT tickwright.enter_timeline() IS NOT NULL"
FLOOR = "SELECT tickwright.fence_floor()"
JUMP = 1_000_000_000
SMALL_JUMP = 1_000_000
MUTANTS = {
    "sequences go on": ("PERFORM tickwright.move_sequences();", ""),
    "sessions go on": ("SET lease_until = 'epoch' WHERE", "SET lease_until = lease_until WHERE"),
    "fences begin again": ("before.fence_floor + 1000000000", "before.fence_floor"),
}


async def numbers(pool: Pool) -> dict[str, tuple[int, int]]:
    """Return the last number of each sequence, and the most it may be."""
    rows = await pool.fetch(
        "SELECT sequencename, coalesce(last_value, start_value) AS last, max_value "
        "FROM pg_sequences WHERE schemaname = 'tickwright'"
    )
    return {row["sequencename"]: (row["last"], row["max_value"]) for row in rows}


async def faults(pool: Pool) -> set[str]:
    """Let the timeline change under a session; return what went on as if nothing had happened."""
    terms = LeaseTerms(ttl=timedelta(seconds=60))
    session = WorkerSession(pool, name="survivor", roles=["worker"], version="0", terms=terms)
    await session.open()
    token = session.token
    before = await numbers(pool)
    await pool.execute(MOVE)
    assert await pool.fetchval(NOTICE)
    found = set()
    for name, (last, most) in (await numbers(pool)).items():
        if last - before[name][0] < (JUMP if most > 2**31 else SMALL_JUMP):
            found.add(f"{name} went on")
    await session.renew()
    if session.token != 0:
        found.add("a session went on")
    await session.open()
    if session.token < token + JUMP:
        found.add("a session began with an old token")
    if await pool.fetchval(FLOOR) < JUMP:
        found.add("fences begin again")
    if await pool.fetchval(NOTICE):
        found.add("it is noticed again")
    if await pool.fetchval("SELECT count(*) FROM tickwright.audit WHERE action = 'database.timeline_changed'") != 1:
        found.add("the audit trail does not have it once")
    return found


async def test_no_number_and_no_holder_goes_on(pool: Pool) -> None:
    """Sequences jump, sessions end, later fences are higher; once, and in the audit trail."""
    assert await faults(pool) == set()


@pytest.mark.parametrize("mutant", MUTANTS)
async def test_each_part_of_the_jump_is_needed(pool: Pool, mutant: str) -> None:
    """Without it the test above fails."""
    guard, instead = MUTANTS[mutant]
    text = await pool.fetchval("SELECT pg_get_functiondef('tickwright.enter_timeline'::regproc)")
    assert text.count(guard) == 1
    await pool.execute(text.replace(guard, instead))
    assert await faults(pool)


async def test_of_many_connections_one_notices(database_url: str, pool: Pool) -> None:
    """Whoever comes at the same time waits until it is done, and jumps no second time."""
    await pool.execute(MOVE)
    connections = [await asyncpg.connect(database_url) for _ in range(8)]
    found = await asyncio.gather(*(connection.fetchval(NOTICE) for connection in connections))
    assert sorted(found) == [False] * 7 + [True]
    assert await pool.fetchval("SELECT count(*) FROM tickwright.timelines") == 2
    for connection in connections:
        await connection.close()


async def test_any_role_may_ask_which_history_it_is(pool: Pool) -> None:
    """No superuser is needed, neither for the owner of the schema nor for a role for plain SQL."""
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("CREATE ROLE plain_of_timelines; SET LOCAL ROLE plain_of_timelines")
        assert await connection.fetchval("SELECT count(*) FROM pg_control_system()") == 1
        assert await connection.fetchval("SELECT length(pg_walfile_name(pg_current_wal_lsn()))") == 24
        await connection.execute("RESET ROLE; DROP ROLE plain_of_timelines")
