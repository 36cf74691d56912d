"""Retention of batches: old executions are deleted with all their rows, and nothing of one that could go on."""

import pytest

from kit.batches import BatchWorld
from tickwright.capabilities.batches import retention as module
from tickwright.capabilities.batches.retention import BatchRetention

OLD = "UPDATE tickwright.executions SET finished_at = now() - interval '91 days' WHERE id = $1"
FILL = """
WITH chunks AS (
  INSERT INTO tickwright.execution_chunks (execution_id, number, value, state)
  SELECT $1, n, '{}', 'done' FROM generate_series(0, 9) AS n
)
INSERT INTO tickwright.execution_actions SELECT $1, 'c' || n, n % 10, '{}' FROM generate_series(1, 50) AS n
"""
LEFT = """
SELECT (SELECT count(*) FROM tickwright.executions WHERE id = $1), (SELECT count(*) FROM tickwright.execution_chunks
         WHERE execution_id = $1), (SELECT count(*) FROM tickwright.execution_actions WHERE execution_id = $1)
"""


async def ended(world: BatchWorld, status: str, *, old: bool = True, released: bool = True) -> int:
    """Return an execution with ten chunks and fifty actions that ended ``status``, 91 days ago."""
    batch_id = await world.put(f"{status}-{old}-{released}")
    execution_id = await world.start(batch_id)
    await world.pool.execute(FILL, execution_id)
    await world.end(execution_id, status)
    counts = "UPDATE tickwright.executions SET chunks = 10, chunks_done = 10, chunks_released = $2 WHERE id = $1"
    await world.pool.execute(counts, execution_id, 10 if released else 9)
    if old:
        await world.pool.execute(OLD, execution_id)
    return execution_id


async def clear(world: BatchWorld) -> float:
    """Run one round."""
    return await world.check(BatchRetention(), owner="upkeep")  # type: ignore[arg-type]  # a round like the checker's


async def left(world: BatchWorld, execution_id: int) -> tuple[int, ...]:
    """Return how many rows, chunks and actions an execution has."""
    return tuple(await world.pool.fetchrow(LEFT, execution_id))


@pytest.mark.parametrize("status", ["FINISHED", "STOPPED", "DISABLED", "EXCEPTION_OCCURRED"])
async def test_an_old_execution_is_deleted_with_chunks_and_actions(batches: BatchWorld, status: str) -> None:
    """Whatever its last status."""
    execution_id = await ended(batches, status)
    assert await clear(batches) > 0
    assert await left(batches, execution_id) == (0, 0, 0)


async def test_an_execution_that_could_go_on_or_is_young_stays(batches: BatchWorld) -> None:
    """One that releases, one that ended lately, one that has been open for long."""
    kept = [
        await ended(batches, "FINISHED", released=False),
        await ended(batches, "FINISHED", old=False),
        await ended(batches, "EXCEPTION_OCCURRED", old=False),
    ]
    open_id = await batches.start(await batches.put("open"))
    await batches.pool.execute(FILL, open_id)
    aged = "UPDATE tickwright.executions SET created_at = now() - interval '1 year' WHERE id = $1"
    await batches.pool.execute(aged, open_id)
    await clear(batches)
    assert [await left(batches, one) for one in [*kept, open_id]] == [(1, 10, 50)] * 4
    assert (await batches.execution(kept[2]))["status"] == "EXCEPTION_OCCURRED"


async def test_a_failed_execution_cannot_be_retried_while_its_chunks_are_deleted(
    batches: BatchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round that is cut off leaves it stopped; the next ones delete the rest, its row last."""
    monkeypatch.setattr(module, "BATCH", 20)
    monkeypatch.setattr(module, "BATCHES_MAX", 1)
    execution_id = await ended(batches, "EXCEPTION_OCCURRED")
    assert await clear(batches) == 0
    assert await left(batches, execution_id) == (1, 10, 30)
    assert (await batches.execution(execution_id))["status"] == "STOPPED"
    monkeypatch.setattr(module, "BATCHES_MAX", 100)
    assert await clear(batches) > 0
    assert await left(batches, execution_id) == (0, 0, 0)


async def test_old_records_of_skips_are_deleted(batches: BatchWorld) -> None:
    """Not one whose last occurrence is younger."""
    batch_id = await batches.put()
    sql = (
        "INSERT INTO tickwright.execution_skips (batch_id, slot_at, reason, until_at) "
        "SELECT $1, now() - interval '1 day' * d, 'misfire', now() - interval '1 day' * u "
        "FROM (VALUES (100, 95), (99, 1), (2, 2)) AS v (d, u)"
    )
    await batches.pool.execute(sql, batch_id)
    await clear(batches)
    assert await batches.pool.fetchval("SELECT count(*) FROM tickwright.execution_skips") == 2


async def test_a_failed_execution_that_is_locked_keeps_all_its_rows(
    batches: BatchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock may be of a retry: until the execution is stopped, none of its rows is deleted."""
    monkeypatch.setattr(module, "BATCHES_MAX", 1)
    execution_id = await ended(batches, "EXCEPTION_OCCURRED")
    async with batches.pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM tickwright.executions WHERE id = $1 FOR UPDATE", execution_id)
        await clear(batches)
        assert await left(batches, execution_id) == (1, 10, 50)
