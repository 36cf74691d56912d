"""Each due occurrence becomes one execution, with any number of producers; others are recorded as skipped."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kit.batches import BatchWorld, new_producer

HOUR = timedelta(hours=1)


class NoLease:
    """A holder that wrongly believes in its lease: only the rows separate it from the others."""

    fence = 0

    def __init__(self, batches: BatchWorld) -> None:
        self._pool = batches.pool

    def holds(self) -> bool:
        """Return its belief."""
        return True

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """Open a transaction like any other."""
        async with self._pool.acquire() as connection, connection.transaction():
            yield connection


async def now(batches: BatchWorld) -> datetime:
    """Return the start of the database's current hour."""
    found: datetime = await batches.pool.fetchval("SELECT date_trunc('hour', clock_timestamp())")
    return found


async def slots(batches: BatchWorld, batch_id: int) -> list[datetime]:
    """Return the slots that have an execution, in order."""
    sql = "SELECT slot_at FROM tickwright.executions WHERE batch_id = $1 ORDER BY slot_at"
    return [row["slot_at"] for row in await batches.pool.fetch(sql, batch_id)]


async def skips(batches: BatchWorld, batch_id: int) -> list[tuple[Any, ...]]:
    """Return the recorded skips."""
    sql = "SELECT slot_at, until_at, slots, reason FROM tickwright.execution_skips WHERE batch_id = $1 ORDER BY slot_at"
    return [tuple(row) for row in await batches.pool.fetch(sql, batch_id)]


async def test_a_due_slot_becomes_one_execution_and_the_next_is_set(batches: BatchWorld) -> None:
    """The execution is NEW, and nothing runs."""
    hour = await now(batches)
    batch_id = await batches.put(first_at=hour, every=(1, "HOURS"), next_slot_at=hour, grace=2 * HOUR)
    assert 0 < await batches.produce() <= 3600
    row = await batches.pool.fetchrow("SELECT * FROM tickwright.executions")
    assert (row["slot_at"], row["status"], row["owner"]) == (hour, "NEW", None)
    assert await batches.pool.fetchval("SELECT next_slot_at FROM tickwright.batches") == hour + HOUR
    assert await skips(batches, batch_id) == []


async def test_a_batch_without_repetition_runs_once(batches: BatchWorld) -> None:
    """It has no next slot."""
    hour = await now(batches)
    batch_id = await batches.put(first_at=hour, next_slot_at=hour, grace=2 * HOUR)
    await batches.produce()
    await batches.produce()
    assert await slots(batches, batch_id) == [hour]
    assert await batches.pool.fetchval("SELECT next_slot_at FROM tickwright.batches") is None


@pytest.mark.parametrize(("misfire", "made"), [("one", [-1]), ("all", [-3, -2, -1]), ("none", [])])
async def test_missed_slots_are_caught_up_by_the_policy(batches: BatchWorld, misfire: str, made: list[int]) -> None:
    """Slots that are not are counted, in one row."""
    hour = await now(batches) + timedelta(minutes=30)
    first = hour - 10 * HOUR
    batch_id = await batches.put(
        first_at=first,
        every=(1, "HOURS"),
        next_slot_at=first,
        misfire=misfire,
        misfire_max=3,
        overlap="queue",
        grace=timedelta(),
    )
    await batches.pool.execute(
        "UPDATE tickwright.batches SET date_time_execution = $1, next_slot_at = $1", first - HOUR
    )
    await batches.produce()
    found = await slots(batches, batch_id)
    last = await batches.pool.fetchval("SELECT next_slot_at FROM tickwright.batches")
    assert found == [last + offset * HOUR for offset in made]
    ((slot_at, until_at, count, reason),) = await skips(batches, batch_id)
    assert (slot_at, reason) == (first - HOUR, "misfire")
    assert until_at == last - (1 + len(made)) * HOUR
    assert count == (until_at - slot_at) / HOUR + 1


@pytest.mark.parametrize(
    ("overlap", "statuses", "skipped"),
    [("skip", ["NEW"], 1), ("queue", ["NEW", "NEW"], 0), ("replace", ["STOPPED", "NEW"], 0)],
)
async def test_an_open_execution_is_handled_by_the_policy(
    batches: BatchWorld, overlap: str, statuses: list[str], skipped: int
) -> None:
    """The slot is skipped and recorded, queued behind it, or replaces it."""
    hour = await now(batches)
    batch_id = await batches.put(first_at=hour, every=(1, "HOURS"), next_slot_at=hour, grace=2 * HOUR, overlap=overlap)
    sql = "INSERT INTO tickwright.executions (batch_id, slot_at) VALUES ($1, $2)"
    await batches.pool.execute(sql, batch_id, hour - HOUR)
    await batches.produce()
    rows = await batches.pool.fetch("SELECT status FROM tickwright.executions ORDER BY slot_at")
    assert [row["status"] for row in rows] == statuses
    assert [reason for *_, reason in await skips(batches, batch_id)] == ["overlap"] * skipped


async def test_five_producers_at_once_make_each_execution_once(batches: BatchWorld) -> None:
    """Even if all of them believe that they hold the lease."""
    hour = await now(batches)
    first = hour - 19 * HOUR
    for number in range(60):
        await batches.put(
            f"b{number}", first_at=first, every=(1, "HOURS"), next_slot_at=first, misfire="all", overlap="queue"
        )
    producers = [new_producer() for _ in range(5)]
    for _ in range(3):
        await asyncio.gather(*(one.round(NoLease(batches)) for one in producers))
    counts = await batches.pool.fetch("SELECT count(*) AS n FROM tickwright.executions GROUP BY batch_id")
    assert [row["n"] for row in counts] == [20] * 60
    assert sum(one.counts["executions"] for one in producers) == 1200


async def test_an_unreadable_calendar_does_not_hold_up_the_others(batches: BatchWorld) -> None:
    """It is read again later; a zone may be gone from the machine's table."""
    hour = await now(batches)
    wrong = await batches.put("wrong", first_at=hour, zone="Mars/Olympus", every=(1, "HOURS"), next_slot_at=hour - HOUR)
    right = await batches.put("right", first_at=hour, every=(1, "HOURS"), next_slot_at=hour, grace=2 * HOUR)
    await batches.produce()
    assert await slots(batches, wrong) == []
    assert await slots(batches, right) == [hour]
    assert await batches.pool.fetchval("SELECT next_slot_at > now() FROM tickwright.batches WHERE name = 'wrong'")


async def test_a_lost_lease_writes_nothing(batches: BatchWorld) -> None:
    """An overtaken producer gets no transaction."""

    class Lost(NoLease):
        @asynccontextmanager
        async def transaction(self) -> AsyncIterator[Any]:
            yield None

    hour = datetime(2026, 1, 1, tzinfo=UTC)
    batch_id = await batches.put(first_at=hour, next_slot_at=hour)
    assert await new_producer().round(Lost(batches)) == 0
    assert await slots(batches, batch_id) == []
