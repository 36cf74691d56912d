"""Revision 0044: rows of earlier releases have no steps, and the statements of the release before work beside it."""

import json

from kit.engine import connect, insert
from kit.migrations import upgrade_to
from tickwright.store.migrate import migrate

KEPT = json.dumps({"first": {"result": 1, "at": "2026-01-01T00:00:00Z", "attempt": 1}})
RETRY = """
UPDATE ONLY tickwright.scheduled_tasks SET status = 'pending', owner = NULL, retry_at = now() WHERE id = $1
"""
COMPLETE = """
WITH done AS (DELETE FROM ONLY tickwright.scheduled_tasks t WHERE t.id = $1 RETURNING t.*)
INSERT INTO tickwright.{day}
       (id, execute_at, task_type, payload, status, attempts, max_attempts, created_at, updated_at, completed_at, fence)
SELECT t.id, t.execute_at, t.task_type, t.payload, 'completed', t.attempts, t.max_attempts, t.created_at, now(), now(),
       t.fence
  FROM done t
"""
STEPS = "SELECT steps FROM tickwright.scheduled_tasks WHERE id = $1"


async def test_rows_of_earlier_releases_have_no_steps(empty_database_url: str) -> None:
    """Live and finished ones; a cancel by plain SQL carries what is written afterwards."""
    upgrade_to(empty_database_url, "0037")
    connection = await connect(empty_database_url)
    live, ended = [await insert(connection, "t", at="now() + interval '1 hour'") for _ in range(2)]
    await connection.execute("UPDATE tickwright.scheduled_tasks SET status = 'cancelled' WHERE id = $1", ended)
    migrate(empty_database_url)
    assert [await connection.fetchval(STEPS, job_id) for job_id in (live, ended)] == [None, None]
    await connection.execute("UPDATE tickwright.scheduled_tasks SET steps = $2 WHERE id = $1", live, KEPT)
    await connection.execute("UPDATE tickwright.scheduled_tasks SET status = 'cancelled' WHERE id = $1", live)
    assert json.loads(await connection.fetchval(STEPS, live)) == json.loads(KEPT)
    await connection.close()


async def test_statements_of_the_release_before_keep_steps_until_the_end(database_url: str) -> None:
    """A worker of that release retries a job with its steps, and completes it without them."""
    connection = await connect(database_url)
    today = await connection.fetchval("SELECT tickwright.ensure_history(now())")
    job_id = await insert(connection, "t")
    await connection.execute("UPDATE tickwright.scheduled_tasks SET steps = $2 WHERE id = $1", job_id, KEPT)
    await connection.execute(RETRY, job_id)
    assert json.loads(await connection.fetchval(STEPS, job_id)) == json.loads(KEPT)
    assert await connection.execute(COMPLETE.format(day=today), job_id) == "INSERT 0 1"
    assert await connection.fetchval(STEPS, job_id) is None
    await connection.close()
