"""The statements that read workflows for operators."""

from collections.abc import Sequence
from typing import Any

from tickwright.store.pool import Pool
from tickwright.store.queries import filled, load

SQL = filled(filled(load("tickwright.capabilities.jobs.workflows.sql", "workflow_views.sql"), "shown"), "node_state")


async def fetch_indexed(pool: Pool, sql: str, *arguments: Any) -> Sequence[Any]:
    """Return the rows of a statement that follows its indexes, whatever the statistics say."""
    async with pool.acquire() as connection, connection.transaction(readonly=True):
        await connection.execute(SQL["plan"])
        rows: Sequence[Any] = await connection.fetch(sql, *arguments)
        return rows
