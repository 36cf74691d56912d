"""Rows that listings and explanations read: their index from where they begin, never the whole table."""

from collections.abc import AsyncIterator

import pytest

from tickwright.capabilities.jobs.admin import search
from tickwright.store.pool import Connection, open_pool

ROWS = 20_000


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    """A connection of the product's pool, on a table with jobs that are due in an hour."""
    pool = await open_pool(database_url)
    async with pool.acquire() as made:
        await made.execute(
            "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) "
            "SELECT now() + interval '1 hour', 'noop' FROM generate_series(1, $1::int)",
            ROWS,
        )
        yield made
    await pool.close()


async def plan(connection: Connection, sql: str, types: str, arguments: str) -> str:
    """Return the generic plan of ``sql``, which the product runs, with its row counts."""
    await connection.execute(f"PREPARE asked ({types}) AS {sql}")
    rows = await connection.fetch(f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) EXECUTE asked ({arguments})")
    await connection.execute("DEALLOCATE asked")
    return "\n".join(row[0] for row in rows)


async def test_an_explanation_reads_only_jobs_due_before(connection: Connection) -> None:
    """Jobs that are due later are not read."""
    text = await plan(connection, search.EXPLAIN, "bigint", "5")
    assert f"Rows Removed by Filter: {ROWS}" not in text, text
    assert "scheduled_tasks_due" in text
