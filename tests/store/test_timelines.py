"""A database that goes on from another history: every number that was given out stays the only one of its kind."""

import asyncio
import re
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from kit.fix_app_roles import AppRole
from tickwright.domain.leases import LeaseTerms
from tickwright.engine.session import WorkerSession
from tickwright.store.pool import Pool, connect

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


async def test_a_new_timeline_repeats_no_number_and_ends_every_session(pool: Pool) -> None:
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


async def test_of_many_connections_one_notices_the_new_timeline(database_url: str, pool: Pool) -> None:
    """The others wait until it is done, and do not jump again."""
    await pool.execute(MOVE)
    connections = [await asyncpg.connect(database_url) for _ in range(8)]
    found = await asyncio.gather(*(connection.fetchval(NOTICE) for connection in connections))
    assert sorted(found) == [False] * 7 + [True]
    assert await pool.fetchval("SELECT count(*) FROM tickwright.timelines") == 2
    for connection in connections:
        await connection.close()


HOLD = "PREPARE p AS UPDATE tickwright.timelines SET timeline = ''"
ROW_LOCK = "ORDER BY no DESC LIMIT 1 FOR UPDATE;"
TABLE_LOCK = "ORDER BY no DESC LIMIT 1; LOCK TABLE tickwright.timelines IN SHARE ROW EXCLUSIVE MODE;"


async def test_a_weak_lock_of_any_role_keeps_no_process_out(app_role: AppRole, pool: Pool) -> None:
    """Preparing a statement asks for no right to the table; the mutant that locks the table waits behind it."""
    await pool.execute(MOVE)
    holder = await asyncpg.connect(app_role.url)
    await holder.execute(f"BEGIN; {HOLD}")
    entered = await connect(app_role.owner_url)
    assert not await entered.fetchval(NOTICE), "it was noticed when it connected"
    text = await pool.fetchval("SELECT pg_get_functiondef('tickwright.enter_timeline'::regproc)")
    assert text.count(ROW_LOCK) == 1
    await pool.execute(text.replace(ROW_LOCK, TABLE_LOCK).replace("'5s'", "'100ms'"))
    await pool.execute(MOVE)
    with pytest.raises(asyncpg.LockNotAvailableError):
        await connect(app_role.owner_url)
    holder.terminate()
    await entered.close()


async def test_a_table_without_rows_is_an_unknown_history(database_url: str, pool: Pool) -> None:
    """As of a restore without data: of many connections one notices, and every number jumps."""
    await pool.execute("DELETE FROM tickwright.timelines")
    connections = [await asyncpg.connect(database_url) for _ in range(8)]
    found = await asyncio.gather(*(connection.fetchval(NOTICE) for connection in connections))
    assert sorted(found) == [False] * 7 + [True]
    rows = await pool.fetch("SELECT no, timeline = 'unknown' AS unknown FROM tickwright.timelines ORDER BY no")
    assert [tuple(row) for row in rows] == [(0, True), (1, False)]
    assert await pool.fetchval(FLOOR) == JUMP
    for connection in connections:
        await connection.close()


async def test_any_role_may_ask_which_history_it_is(pool: Pool) -> None:
    """No superuser is needed, neither for the owner of the schema nor for a role for plain SQL."""
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("CREATE ROLE plain_of_timelines; SET LOCAL ROLE plain_of_timelines")
        assert await connection.fetchval("SELECT count(*) FROM pg_control_system()") == 1
        assert await connection.fetchval("SELECT length(pg_walfile_name(pg_current_wal_lsn()))") == 24
        await connection.execute("RESET ROLE; DROP ROLE plain_of_timelines")


async def test_after_a_restore_in_place_the_documented_statement_changes_the_timeline(pool: Pool) -> None:
    """The same server has the same timeline; the operator says that it was restored."""
    text = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    [statement] = re.findall(r"^UPDATE tickwright\.timelines .*;$", text, re.MULTILINE)
    assert not await pool.fetchval(NOTICE)
    await pool.execute(statement)
    assert await pool.fetchval(NOTICE)


async def test_of_two_processes_with_one_token_only_the_one_that_registered_renews_it(pool: Pool) -> None:
    """Without that statement a token is given out twice: the sequence has gone back."""
    first, second = (WorkerSession(pool, name=name, roles=["worker"], version="0") for name in ("first", "second"))
    await first.open()
    await pool.execute("DELETE FROM tickwright.workers")
    await pool.execute("SELECT setval('tickwright.fence_seq', $1, false)", first.token)
    await second.open()
    assert second.token == first.token
    for session in (first, second):
        await session.renew()
    assert (first.token, second.token) != (0, 0)
    assert first.token == 0, "two processes work under one session"
