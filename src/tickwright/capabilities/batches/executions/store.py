"""The rows of ``tickwright.executions`` as operators look at them and act on them.

An execution is never acted on without its batch: that row is locked first, as the producer does.
"""

from collections.abc import Sequence
from typing import Any

from tickwright.store.pool import Connection
from tickwright.store.queries import filled, load

SQL = filled(filled(load("tickwright.capabilities.batches.sql", "executions.sql"), "shown"), "has_left")
SQL = filled(SQL, "action", of=load("tickwright.capabilities.batches.sql", "release.sql"))
_BATCHES = load("tickwright.capabilities.batches.sql", "batches.sql")


async def lock(connection: Connection, execution_id: int) -> Any:
    """Lock an execution behind its batch until the end of the transaction; ``None`` where there is none.

    Returns:
        ``id status paused_at chunks chunks_released``.
    """
    if await connection.fetchrow(_BATCHES["lock_batch_of"], execution_id) is None:
        return None
    return await connection.fetchrow(SQL["lock_execution"], execution_id)


async def open_of(connection: Connection, batch_id: int) -> Sequence[Any]:
    """Lock the open executions of a locked batch and return ``id status`` of each, the oldest slot first."""
    rows: Sequence[Any] = await connection.fetch(SQL["lock_open"], batch_id)
    return rows


async def releasing_of(connection: Connection, batch_id: int) -> Sequence[Any]:
    """Do the same for those that are finished and still release."""
    rows: Sequence[Any] = await connection.fetch(SQL["lock_releasing"], batch_id)
    return rows


async def end(connection: Connection, ids: Sequence[int], status: str, why: str) -> None:
    """End locked executions; whoever works on them loses, and nothing more of them is released."""
    await connection.execute(SQL["end_executions"], list(ids), status, why)


async def start(connection: Connection, batch_id: int, started_by: str) -> Any:
    """Write an execution of a locked batch for this moment and return ``id slot_at status``."""
    return await connection.fetchrow(SQL["start"], batch_id, started_by)
