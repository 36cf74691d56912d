"""An idempotency key belongs to one job until seven days after the end of that job."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from kit.engine import Engine, policy, running_engine
from kit.leases import LONG
from kit.waiting import eventually_async
from tickwright import Fail, Job
from tickwright.capabilities.jobs.retention import JobRetention
from tickwright.engine.leases import Leases

ONCE = """
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, idempotency_key) VALUES (now(), $2, $1)
ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING RETURNING id
"""
AGED = "UPDATE tickwright.job_keys SET created_at = created_at - $1::interval"
BEFORE = Path(__file__).parents[4] / "src/tickwright/store/migrations/versions/0001_foundation.sql"
KINDS = {"t": policy("t"), "forgets": policy("forgets", keep_history=False)}
LIVE = "SELECT count(*) FROM ONLY tickwright.scheduled_tasks"
ENDS = ["completed", "failed", "cancelled", "forgotten"]


async def _upkeep(pool: Any) -> None:
    lease = await Leases(pool, owner="test", terms=LONG).take("upkeep")
    assert lease is not None
    await JobRetention().round(lease)
    await lease.release()


async def _age(pool: Any, days: float) -> None:
    await pool.execute(AGED, timedelta(days=days))


async def _handler(job: Job) -> None:
    if job.payload.get("fails"):
        raise Fail("no")


async def _end(engine: Engine, how: str, job_id: int) -> None:
    """End a pending job."""
    if how == "cancelled":
        await engine.pool.execute("UPDATE tickwright.scheduled_tasks SET status = 'cancelled' WHERE id = $1", job_id)
    else:
        payload = '{"fails": true}' if how == "failed" else "{}"
        await engine.pool.execute(
            "UPDATE tickwright.scheduled_tasks SET execute_at = now(), payload = $2 WHERE id = $1", job_id, payload
        )
    if how != "forgotten":
        await engine.until(job_id, "completed" if how == "completed" else how, within_s=30)


async def check_a_key_lives_seven_days_after_its_job(url: str, how: str) -> None:
    """KEY-2, for a job that was scheduled long before it ended."""
    task_type = "forgets" if how == "forgotten" else "t"
    async with running_engine(url, {"t": _handler, "forgets": _handler}, kinds=KINDS) as engine:
        pool = engine.pool
        job_id = await engine.insert(task_type, at="now() + interval '1 day'", idempotency_key="k")
        await _age(pool, 30)
        await _upkeep(pool)
        await _end(engine, how, job_id)
        await eventually_async(lambda: pool.fetchval(f"SELECT ({LIVE}) = 0"), 30, what="it has ended")
        await _upkeep(pool)
        assert await pool.fetchval(ONCE, "k", task_type) is None, "KEY-2 broken: a second job"
        await _age(pool, 6.9)
        await _upkeep(pool)
        assert await pool.fetchval(ONCE, "k", task_type) is None, "KEY-2 broken: a second job"
        await _age(pool, 0.2)
        await _upkeep(pool)
        assert await pool.fetchval(ONCE, "k", task_type) is not None


@pytest.mark.parametrize("how", ENDS)
async def test_a_key_lives_seven_days_after_its_job(database_url: str, how: str) -> None:
    """KEY-2, for each way to end."""
    await check_a_key_lives_seven_days_after_its_job(database_url, how)


async def test_the_suite_notices_keys_whose_age_counts_from_their_insert(database_url: str, pool: asyncpg.Pool) -> None:
    """A mutant: the trigger of earlier releases."""
    text = BEFORE.read_text()
    begin = text.index("CREATE TRIGGER scheduled_tasks_deleted")
    trigger = text[begin : text.index(";", begin)]
    trigger = trigger.replace("CREATE TRIGGER", "CREATE OR REPLACE TRIGGER").replace("free_job_key", "end_job")
    await pool.execute(trigger)
    with pytest.raises(AssertionError, match="KEY-2 broken"):
        await check_a_key_lives_seven_days_after_its_job(database_url, "completed")


async def test_a_job_that_ends_soon_writes_nothing_to_its_key(database_url: str) -> None:
    """The usual end costs a probe of the key's index."""
    async with running_engine(database_url, {"t": _handler}, kinds=KINDS) as engine:
        version = "SELECT xmin::text FROM tickwright.job_keys"
        job_id = await engine.insert("t", at="now() + interval '1 hour'", idempotency_key="k")
        before = await engine.pool.fetchval(version)
        await _end(engine, "completed", job_id)
        assert await engine.pool.fetchval(version) == before


async def test_a_job_that_its_user_deletes_frees_its_key(pool: asyncpg.Pool) -> None:
    """Deletion by plain SQL."""
    first = await pool.fetchval(ONCE, "k", "t")
    await pool.execute("DELETE FROM tickwright.scheduled_tasks WHERE id = $1", first)
    assert await pool.fetchval(ONCE, "k", "t") is not None
