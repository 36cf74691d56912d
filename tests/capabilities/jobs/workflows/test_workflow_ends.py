"""Whichever way a job ends, what waits for it is released in that transaction."""

from datetime import timedelta
from typing import Any

import pytest

from kit.workflows import CANCEL, STATE, add, check_no_leftovers, states
from tickwright.capabilities.jobs.retention import SQL as UPKEEP
from tickwright.capabilities.jobs.worker.claims import ClaimStore
from tickwright.store.pool import Pool

CLAIM = (
    "UPDATE ONLY tickwright.scheduled_tasks SET status = 'processing', owner = 7, attempts = attempts + 1, "
    "fence = fence + 1, started_at = now() WHERE id = $1"
)
LIVE = "SELECT count(*) FROM ONLY tickwright.scheduled_tasks WHERE id = $1"
WRITTEN: dict[str, tuple[str, list[Any]]] = {
    "complete": ("completed", []),
    "complete_and_forget": ("completed", []),
    "complete_with_result": ("completed", [["7"]]),
    "fail": ("failed", [["failed"], ["it failed"]]),
    "cancel_held": ("cancelled", [["cancelled while it ran"]]),
    "cancel_unstarted": ("cancelled", [["expired"]]),
}


@pytest.mark.parametrize("kind", WRITTEN)
async def test_a_result_of_a_worker_releases_successors(pool: Pool, kind: str) -> None:
    """Each kind of result, fenced as it is: a second write finds no row and changes nothing."""
    status, columns = WRITTEN[kind]
    root = await add(pool, {"name": "a"}, {"name": "b", "after": ["a"], "on_failed": "run"})
    await pool.execute(CLAIM, root + 1)
    store = ClaimStore(pool)
    assert await store.write(kind, 8, [root + 1], *columns) == 0
    assert await pool.fetchval(LIVE, root + 2) == 0
    for found in (1, 0):
        assert await store.write(kind, 7, [root + 1], *columns) == found
        assert await states(pool, root) == {"a": status, "b": "open"}
        assert await pool.fetchval(LIVE, root + 2) == 1
    await check_no_leftovers(pool)


PLAIN = {
    "update": (CANCEL, "cancelled"),
    "delete": ("DELETE FROM tickwright.scheduled_tasks WHERE id = $1", "cancelled"),
}


@pytest.mark.parametrize("how", PLAIN)
@pytest.mark.parametrize("which", [1, 2], ids=["live", "waiting"])
async def test_plain_sql_ends_jobs_that_run_and_jobs_that_wait(pool: Pool, how: str, which: int) -> None:
    """A cancel and a deletion of a live job, and of one that waits."""
    sql, status = PLAIN[how]
    root = await add(pool, {"name": "a"}, {"name": "b", "after": ["a"]}, {"name": "c", "after": ["b"]})
    await pool.execute(sql, root + which)
    names = ["a", "b", "c"][which - 1 :]
    assert dict.fromkeys("abc", "open") | dict.fromkeys(names, status) == await states(pool, root)
    await check_no_leftovers(pool)


async def test_a_waiting_job_is_set_to_no_other_status(pool: Pool) -> None:
    """Only a cancel is possible; the error says why."""
    root = await add(pool, {"name": "a"}, {"name": "b", "after": ["a"]})
    with pytest.raises(Exception, match="waits for other jobs"):
        await pool.execute("UPDATE tickwright.scheduled_tasks SET status = 'completed' WHERE id = $1", root + 2)


async def test_a_waiting_job_is_edited_within_the_rules_of_live_ones(pool: Pool) -> None:
    """What would be refused when it is released is refused at once; an edit counts in its version."""
    root = await add(pool, {"name": "a"}, {"name": "b", "after": ["a"], "on_failed": "run"})
    for wrong in ("priority = 999", "tags = '{x,x}'", "execute_at = '0001-01-01Z'", "expires_at = '0001-01-01Z'"):
        with pytest.raises(Exception, match="job refused"):
            await pool.execute(f"UPDATE tickwright.scheduled_tasks SET {wrong} WHERE id = $1", root + 2)
    edit = "UPDATE tickwright.scheduled_tasks SET priority = 5, payload = '7' WHERE id = $1"
    await pool.execute(edit, root + 2)
    await pool.execute(CANCEL, root + 1)
    row = await pool.fetchrow("SELECT priority, payload, edits FROM ONLY tickwright.scheduled_tasks")
    assert tuple(row) == (5, "7", 1)


async def test_a_job_that_breaks_a_newer_rule_fails_alone(pool: Pool) -> None:
    """It waited while the rule came: its predecessor completes, and it fails with the reason."""
    root = await add(pool, {"name": "a"}, {"name": "b", "after": ["a"]}, {"name": "c", "after": ["a"]})
    await pool.execute("ALTER TABLE tickwright.scheduled_tasks_waiting DISABLE TRIGGER USER")
    await pool.execute("UPDATE ONLY tickwright.scheduled_tasks_waiting SET priority = 999 WHERE id = $1", root + 2)
    await pool.execute("ALTER TABLE tickwright.scheduled_tasks_waiting ENABLE TRIGGER USER")
    await pool.execute(CLAIM, root + 1)
    assert await ClaimStore(pool).write("complete", 7, [root + 1]) == 1
    assert await states(pool, root) == {"a": "completed", "b": "failed", "c": "open"}
    assert await pool.fetchval(LIVE, root + 3) == 1


async def test_a_job_that_was_stuck_for_good_releases_successors(pool: Pool) -> None:
    """Its last attempt was set to processing by hand and not touched."""
    root = await add(pool, {"name": "a", "max_attempts": 1}, {"name": "b", "after": ["a"], "on_failed": "only"})
    await pool.execute(
        "UPDATE ONLY tickwright.scheduled_tasks SET status = 'processing', updated_at = now() - interval '1 h' "
        "WHERE id = $1",
        root + 1,
    )
    await pool.fetch(UPKEEP["return_stuck"], timedelta(minutes=5), 100)
    assert await states(pool, root) == {"a": "failed", "b": "open"}
    assert await pool.fetchval(LIVE, root + 2) == 1


async def test_many_ends_in_one_statement_are_counted_once(pool: Pool) -> None:
    """A fan-in of a thousand that end in two statements of one transaction; an undone savepoint ends none."""
    jobs = [{"name": str(n)} for n in range(1000)]
    root = await add(pool, *jobs, {"name": "end", "after": [str(n) for n in range(1000)], "on_failed": "run"})
    cancel = "UPDATE tickwright.scheduled_tasks SET status = 'cancelled' WHERE id BETWEEN $1 AND $2"
    async with pool.acquire() as connection, connection.transaction():
        undone = connection.transaction()
        await undone.start()
        await connection.execute(cancel, root + 1, root + 1000)
        await undone.rollback()
        await connection.execute(cancel, root + 1, root + 400)
        assert await connection.fetchval(LIVE, root + 1001) == 0
        await connection.execute(cancel, root + 401, root + 999)
    assert await pool.fetchval("SELECT waits_for FROM tickwright.workflow_nodes WHERE name = 'end'") == 1
    await pool.execute(CANCEL, root + 1000)
    assert await pool.fetchval(LIVE, root + 1001) == 1
    await check_no_leftovers(pool)


async def test_results_outlive_the_history_of_a_running_workflow(pool: Pool) -> None:
    """A day of history is dropped: a later job has the result of a job of that day as an argument nevertheless."""
    root = await add(
        pool,
        {"name": "a"},
        {"name": "b", "after": ["a"], "delay": "10 days"},
        {"name": "c", "after": ["b"], "arguments": {"x": "a"}},
    )
    await pool.execute(CLAIM, root + 1)
    await ClaimStore(pool).write("complete_with_result", 7, [root + 1], ["42"])
    day = await pool.fetchval("SELECT tableoid::regclass::text FROM tickwright.scheduled_tasks WHERE id = $1", root + 1)
    await pool.execute(UPKEEP["keep_results"].format(name=day.removeprefix("tickwright.")))
    await pool.execute(f"DELETE FROM {day}")
    await pool.execute(CLAIM, root + 2)
    await ClaimStore(pool).write("complete", 7, [root + 2])
    assert (
        await pool.fetchval("SELECT payload FROM ONLY tickwright.scheduled_tasks WHERE id = $1", root + 3)
        == '{"x": 42}'
    )


async def test_ended_workflows_are_forgotten_after_a_while(pool: Pool) -> None:
    """Their nodes first, in batches, then they themselves; running ones stay."""
    old = await add(
        pool,
        *[{"name": str(n)} for n in range(10)],
        {"name": "i", "after": ["0"], "workflow": "w"},
        workflows=[{"name": "w"}],
    )
    running = await add(pool, {"name": "a"})
    await pool.execute("UPDATE tickwright.scheduled_tasks SET status = 'cancelled' WHERE id < $1", running)
    assert await pool.fetchval(STATE, old) == "cancelled"
    age = timedelta()
    assert [await pool.execute(UPKEEP["delete_workflow_nodes"], age, 8) for _ in range(3)] == [
        "DELETE 8",
        "DELETE 4",
        "DELETE 0",
    ]
    assert await pool.execute(UPKEEP["delete_workflows"], age, 8) == "DELETE 2"
    assert await pool.fetch("SELECT id FROM tickwright.workflows") == [(running,)]
    assert await pool.fetchval("SELECT count(*) FROM tickwright.workflow_edges") == 0
