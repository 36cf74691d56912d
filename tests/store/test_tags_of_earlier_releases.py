"""Revision 0037: rows of earlier releases get no tags, and the statements of the release before work beside it."""

import asyncpg

from kit.engine import connect, insert
from kit.migrations import upgrade_to
from tickwright.store.migrate import migrate

ENDS = ("completed", "failed", "cancelled")
FILL = """
INSERT INTO tickwright.{day} (id, execute_at, task_type, status) OVERRIDING SYSTEM VALUE
SELECT -n, now(), repeat('t', 50), 'completed' FROM generate_series(1, 150000) AS n
"""
INDEXED = "SELECT tablename FROM pg_indexes WHERE schemaname = 'tickwright' AND indexdef LIKE '%gin (tags%' ORDER BY 1"
COMPLETE = """
WITH done AS (DELETE FROM ONLY tickwright.scheduled_tasks t WHERE t.id = $1 RETURNING t.*)
INSERT INTO tickwright.{day}
       (id, execute_at, task_type, payload, status, attempts, max_attempts, created_at, updated_at, completed_at, fence)
SELECT t.id, t.execute_at, t.task_type, t.payload, 'completed', t.attempts, t.max_attempts, t.created_at, now(), now(),
       t.fence
  FROM done t
"""
EACH = """
SELECT job_id, code FROM tickwright.insert_each(
  NULL, '{now}', '{t}', '{1}', '{3}', '{0}', '{NULL}', '{NULL}', '{NULL}', '{NULL}', '{NULL}', '{NULL}')
"""


async def days(connection: asyncpg.Connection) -> tuple[str, str]:
    """Return the tables of today and tomorrow."""
    sql = "SELECT tickwright.ensure_history(now()), tickwright.ensure_history(now() + interval '1 day')"
    row = await connection.fetchrow(sql)
    return row[0], row[1]


async def test_rows_of_earlier_releases_stay_without_tags(empty_database_url: str) -> None:
    """Live, finished and dead ones. A large table of a day gets no index, that of tomorrow does."""
    upgrade_to(empty_database_url, "0034")
    connection = await connect(empty_database_url)
    ids = [await insert(connection, "t", at="now() + interval '1 hour'") for _ in range(4)]
    for job_id, status in zip(ids[1:], ENDS, strict=True):
        await connection.execute("UPDATE tickwright.scheduled_tasks SET status = $2 WHERE id = $1", job_id, status)
    today, tomorrow = await days(connection)
    await connection.execute(FILL.format(day=today))
    migrate(empty_database_url)
    rows = await connection.fetch("SELECT tags, metadata, edits FROM tickwright.scheduled_tasks WHERE id > 0")
    assert {tuple(row) for row in rows} == {(None, None, None)}
    assert len(rows) == 4
    indexed = [row["tablename"] for row in await connection.fetch(INDEXED)]
    assert indexed == ["scheduled_tasks", tomorrow, "scheduled_tasks_dead"]
    await connection.execute("UPDATE tickwright.scheduled_tasks SET tags = '{a}' WHERE id = $1", ids[0])
    assert await connection.fetchval("SELECT edits FROM tickwright.scheduled_tasks WHERE id = $1", ids[0]) == 1
    await connection.close()


async def test_statements_of_the_release_before_work_beside_it(database_url: str) -> None:
    """A worker of that release moves a job with tags, which are not in its history, and inserts jobs one by one."""
    connection = await connect(database_url)
    today, _ = await days(connection)
    job_id = await insert(connection, "t", tags=["a"], metadata='{"m": 1}')
    assert await connection.execute(COMPLETE.format(day=today), job_id) == "INSERT 0 1"
    assert await connection.fetchval("SELECT tags FROM tickwright.scheduled_tasks WHERE id = $1", job_id) is None
    assert (await connection.fetchrow(EACH))["code"] is None
    await connection.close()
