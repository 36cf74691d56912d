"""Finished jobs are in the table of the day on which they finished, and are kept for seven days."""

import asyncio
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from kit.engine import SHORT, policy, running_engine
from kit.leases import LONG
from kit.mutants import mutate
from kit.preloads import WorkerClock
from kit.servers import PostgresServer, started
from kit.waiting import eventually_async
from tickwright import Job
from tickwright.capabilities.jobs import retention as upkeep_module
from tickwright.capabilities.jobs.retention import SQL, JobRetention
from tickwright.capabilities.jobs.worker.claims import ClaimStore
from tickwright.engine.leases import Leases
from tickwright.ports import ids
from tickwright.store.migrate import migrate

TABLE = "SELECT tableoid::regclass::text FROM tickwright.scheduled_tasks WHERE id = $1"
TODAY = "SELECT 'tickwright.' || tickwright.history_table(clock_timestamp())"
OLD = "SELECT to_regclass('tickwright.scheduled_tasks_20200101') IS NOT NULL"
LATE = """
INSERT INTO tickwright.scheduled_tasks_20200101 (id, execute_at, task_type, status, completed_at, payload)
SELECT -n, '2020-01-01Z', 't', 'completed',
       clock_timestamp() - CASE n WHEN $1 THEN interval '6 days' ELSE interval '8 days' END, '{}'
  FROM generate_series(1, 3000) n
"""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerClock]:
    """The clock of a server; what this process read of it is reset after the test."""
    monkeypatch.setattr(ids._Wall, "ahead_s", None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clock = WorkerClock(folder)
        folder.chmod(0o755)
        (folder / "clock").chmod(0o644)
        (folder / "clock_shift.so").chmod(0o755)
        yield clock


async def _upkeep(pool: Any) -> None:
    lease = await Leases(pool, owner="test", terms=LONG).take("upkeep")
    assert lease is not None
    await JobRetention().round(lease)
    await lease.release()


async def check_jobs_are_kept_for_seven_days(clock: WorkerClock) -> None:
    """Days pass while a worker lives on: each result is in the table of its own day and kept for a week."""
    server = PostgresServer()
    server.environment = dict(clock.environment)

    async def handler(job: Job) -> None: ...

    with started(server):
        url = server.create_database("days")
        await asyncio.to_thread(migrate, url)
        async with running_engine(url, {"t": handler}, kinds={"t": policy("t")}, terms=SHORT) as engine:
            first = await engine.insert("t")
            await engine.until(first, "completed", within_s=30)
            last = first
            for day in (6, 8):
                clock.jump(24 * day)
                finished = await engine.insert("t")
                await engine.until(finished, "completed", within_s=30)
                in_table, today = await engine.pool.fetchval(TABLE, finished), await engine.pool.fetchval(TODAY)
                assert in_table == today, "HIST-1 broken: a job in the history of another day"
                await _upkeep(engine.pool)
                assert await engine.pool.fetchval(TABLE, last if day == 8 else finished), "HIST-1 broken: a job is gone"
                last = finished
            assert await engine.pool.fetchval(TABLE, first) is None


async def test_a_worker_that_lives_for_days_has_each_result_in_its_own_day(clock: WorkerClock) -> None:
    """HIST-1, for a worker that runs for days."""
    await check_jobs_are_kept_for_seven_days(clock)


async def test_the_suite_notices_a_worker_that_keeps_its_first_day(
    clock: WorkerClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant: statements are prepared once."""
    mutate(monkeypatch, ClaimStore._write, "if self._day != unix_seconds() // DAY_S:", "if False:")
    with pytest.raises(AssertionError, match="HIST-1 broken"):
        await check_jobs_are_kept_for_seven_days(clock)


async def test_a_session_that_claims_nothing_notices_the_new_day(clock: WorkerClock) -> None:
    """HIST-1 for the result of a job that ran past midnight in a worker without room for another claim."""
    server, release = PostgresServer(), asyncio.Event()
    server.environment = dict(clock.environment)

    async def handler(job: Job) -> None:
        if job.payload.get("waits"):
            await release.wait()

    with started(server):
        url = server.create_database("days")
        await asyncio.to_thread(migrate, url)
        kinds = {"t": policy("t", concurrency=1)}
        async with running_engine(url, {"t": handler}, kinds=kinds, terms=SHORT) as engine:
            first = await engine.insert("t")
            await engine.until(first, "completed", within_s=30)
            job_id = await engine.insert("t", payload={"waits": True})
            await engine.until(job_id, "processing", within_s=30)
            before = ids.unix_seconds()
            clock.jump(24)
            await eventually_async(
                lambda: ids.unix_seconds() > before + 80_000, 30, what="the session has noticed the day"
            )
            release.set()
            await engine.until(job_id, "completed", within_s=30)
            assert await engine.pool.fetchval(TABLE, job_id) == await engine.pool.fetchval(TODAY)


@pytest.mark.parametrize("late", [1, 1500, 3000], ids=["the highest id", "between", "the last page"])
async def test_a_day_in_which_a_job_finished_late_is_kept(pool: asyncpg.Pool, late: int) -> None:
    """HIST-1: retention reads the rows, not the name of their table; the day is dropped once the job's time is up."""
    await pool.execute("SELECT tickwright.ensure_history('2020-01-01Z')")
    await pool.execute(LATE, late)
    await _upkeep(pool)
    assert await pool.fetchval(OLD)
    await pool.execute("DELETE FROM tickwright.scheduled_tasks_20200101 WHERE id = $1", -late)
    await _upkeep(pool)
    assert not await pool.fetchval(OLD)


async def test_a_day_is_not_scanned_whole_before_it_is_dropped(pool: asyncpg.Pool) -> None:
    """A day may have a hundred million rows: only its last pages and its highest ids are read."""
    await pool.execute("SELECT tickwright.ensure_history('2020-01-01Z')")
    await pool.execute(LATE, 0)
    await pool.execute("ANALYZE tickwright.scheduled_tasks_20200101")
    rows = await pool.fetch(
        "EXPLAIN " + SQL["is_day_in_use"].format(name="scheduled_tasks_20200101"), timedelta(days=7)
    )
    plan = "\n".join(row[0] for row in rows)
    assert "Tid Range Scan" in plan, plan
    assert "Seq Scan" not in plan, plan


async def test_a_result_written_into_a_day_that_is_being_dropped_is_kept(
    pool: asyncpg.Pool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HIST-1: retention sees a result that is committed while it waits for its lock, and keeps the day."""
    monkeypatch.setattr(upkeep_module, "LOCK_WAIT_MS", 60_000)
    await pool.execute("SELECT tickwright.ensure_history('2020-01-01Z')")
    writer = await asyncpg.connect(database_url)
    upkeep = JobRetention()
    async with pool.acquire() as connection:
        transaction = writer.transaction()
        await transaction.start()
        await writer.execute(LATE, 3000)
        outer = connection.transaction()
        await outer.start()
        dropping = asyncio.create_task(upkeep._drop_day(connection, "scheduled_tasks_20200101"))
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        await eventually_async(lambda: pool.fetchval(waits), 10, what="the drop waits")
        await transaction.commit()
        assert await dropping is False
        await outer.rollback()
    assert await pool.fetchval(OLD)
    await writer.close()
