"""Workflows, and their mutants: with a guard taken out, the check of its promise has to fail."""

import asyncio
from collections.abc import Awaitable, Callable

import asyncpg
import pytest

from kit.waiting import eventually_async
from kit.workflows import CANCEL, add, change_function, check_no_leftovers, states
from tickwright.store.pool import Pool

Check = Callable[[Pool], Awaitable[None]]
LIVE = "SELECT count(*) FROM ONLY tickwright.scheduled_tasks WHERE id = $1"
BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'"
NOW = "SET CONSTRAINTS ALL IMMEDIATE"
"""What a commit does first."""


async def check_an_end_and_its_release_are_one(pool: Pool) -> None:
    """WFL-2: once the last predecessor has ended, its successor is live; a kill finds no state between."""
    root = await add(pool, {"name": "a"}, {"name": "b", "after": ["a"], "on_failed": "run"})
    await pool.execute(CANCEL, root + 1)
    assert await pool.fetchval(LIVE, root + 2) == 1, "WFL-2 broken: ended, and what waits for it is not released"


async def check_the_last_two_predecessors_may_end_at_once(pool: Pool) -> None:
    """WFL-3: of two transactions that end the last two, the second releases the successor."""
    root = await add(pool, {"name": "a"}, {"name": "b"}, {"name": "c", "after": ["a", "b"], "on_failed": "run"})
    async with pool.acquire() as one, pool.acquire() as other:
        first, second = one.transaction(), other.transaction()
        await first.start()
        await second.start()
        await one.execute(CANCEL, root + 1)
        await other.execute(CANCEL, root + 2)
        await one.execute(NOW)
        waiting = asyncio.ensure_future(other.execute(NOW))
        await eventually_async(lambda: pool.fetchval(BLOCKED, other.get_server_pid()), what="it waits its turn")
        await first.commit()
        await waiting
        await second.commit()
    assert await pool.fetchval(LIVE, root + 3) == 1, "WFL-3 broken: each has left the release to the other"
    await check_no_leftovers(pool)


async def check_a_locked_waiting_job_holds_up_no_end(pool: Pool) -> None:
    """WFL-4: a session that locks a waiting job delays only this one: the next sweep releases it."""
    root = await add(pool, {"name": "a"}, {"name": "b", "after": ["a"], "on_failed": "run"})
    async with pool.acquire() as other, other.transaction():
        await other.execute("SELECT FROM tickwright.scheduled_tasks WHERE id = $1 FOR UPDATE", root + 2)
        async with pool.acquire() as connection:
            await connection.execute("SET lock_timeout = '300ms'")
            try:
                await connection.execute(CANCEL, root + 1)
            except asyncpg.LockNotAvailableError:
                raise AssertionError("WFL-4 broken: the end of a job waits for the lock") from None
            finally:
                await connection.execute("RESET lock_timeout")
        assert await states(pool, root) == {"a": "cancelled", "b": "open"}
    assert await pool.fetchval("SELECT tickwright.sweep_workflows(10)") == 1
    assert await pool.fetchval(LIVE, root + 2) == 1
    await check_no_leftovers(pool)


async def check_a_second_end_counts_once(pool: Pool) -> None:
    """WFL-5: a node ends once; a job that is noted again changes nothing."""
    root = await add(pool, {"name": "a"}, {"name": "b"}, {"name": "c", "after": ["a", "b"], "on_failed": "run"})
    await pool.execute(CANCEL, root + 1)
    await pool.execute("SELECT tickwright.note_end($1, $2, false)", root, root + 1)
    assert await pool.fetchval(LIVE, root + 3) == 0, "WFL-5 broken: one predecessor was counted for two"
    await check_no_leftovers(pool)


CHECKS: list[Check] = [
    check_an_end_and_its_release_are_one,
    check_the_last_two_predecessors_may_end_at_once,
    check_a_locked_waiting_job_holds_up_no_end,
    check_a_second_end_counts_once,
]


@pytest.mark.parametrize("check", CHECKS)
async def test_workflows_keep_their_promises(pool: Pool, check: Check) -> None:
    """The checks hold for the product."""
    await check(pool)


@pytest.mark.mutant
async def test_mutant_ends_that_release_nothing(pool: Pool) -> None:
    """The release is left to a process that may be killed before."""
    await pool.execute("ALTER TABLE tickwright.workflow_ends DISABLE TRIGGER workflow_ends_advance")
    with pytest.raises(AssertionError, match="WFL-2 broken"):
        await check_an_end_and_its_release_are_one(pool)


@pytest.mark.mutant
async def test_mutant_no_turns(pool: Pool) -> None:
    """Two transactions advance one workflow beside each other."""
    await change_function(pool, "lock_workflows(bigint[])", "FOR NO KEY UPDATE", "")
    with pytest.raises(AssertionError, match="WFL-3 broken"):
        await check_the_last_two_predecessors_may_end_at_once(pool)


@pytest.mark.mutant
async def test_mutant_a_release_that_waits_for_locks(pool: Pool) -> None:
    """The release waits for the row of a waiting job."""
    await change_function(pool, "release_waiting(bigint[])", "FOR UPDATE SKIP LOCKED", "FOR UPDATE")
    with pytest.raises(AssertionError, match="WFL-4 broken"):
        await check_a_locked_waiting_job_holds_up_no_end(pool)


@pytest.mark.mutant
async def test_mutant_ends_that_count_again(pool: Pool) -> None:
    """A node that has ended ends again."""
    await change_function(pool, "set_ends(bigint[],text[])", " AND n.status IS NULL", "")
    with pytest.raises(AssertionError, match="WFL-5 broken"):
        await check_a_second_end_counts_once(pool)
