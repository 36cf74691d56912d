"""Upkeep: partitions ahead of time, old data deleted in bounded batches, stuck jobs released, no traffic blocked."""

import asyncpg
import pytest

from kit.leases import LONG
from kit.nodes import started
from tickwright.capabilities.jobs.retention import JobRetention
from tickwright.capabilities.operations.actions import operations_retention
from tickwright.engine import retention as module
from tickwright.engine.leases import Lease, Leases
from tickwright.engine.retention import RetentionRounds, engine_retention
from tickwright.plugin.settings import Settings

DAYS = "SELECT count(*) FROM pg_class WHERE relname ~ '^scheduled_tasks_[0-9]{8}$'"
OLD = "SELECT to_regclass('tickwright.scheduled_tasks_20200101') IS NOT NULL"


@pytest.fixture
async def lease(pool: asyncpg.Pool) -> Lease:
    """The lease of upkeep."""
    lease = await Leases(pool, owner="test", terms=LONG).take("upkeep")
    assert lease is not None
    return lease


@pytest.fixture
def upkeep() -> RetentionRounds:
    """Upkeep that is not started; the tests run single rounds."""
    return RetentionRounds([JobRetention(), engine_retention(), operations_retention()])


async def test_partitions_exist_before_their_day(pool: asyncpg.Pool, lease: Lease, upkeep: RetentionRounds) -> None:
    """Today's and those of three days more; a second round changes nothing."""
    await upkeep.round(lease)
    await upkeep.round(lease)
    assert await pool.fetchval(DAYS) == 4


async def test_an_old_partition_is_dropped_once_no_reader_has_it(
    pool: asyncpg.Pool, lease: Lease, upkeep: RetentionRounds, database_url: str
) -> None:
    """Retention drops whole days; it blocks no reader, nor does it queue others behind a lock."""
    await pool.execute("SELECT tickwright.ensure_history('2020-01-01Z')")
    reader = await asyncpg.connect(database_url)
    transaction = reader.transaction()
    await transaction.start()
    await reader.fetch("SELECT * FROM tickwright.scheduled_tasks_20200101")
    await upkeep.round(lease)
    assert await pool.fetchval(OLD)
    await transaction.rollback()
    await upkeep.round(lease)
    assert not await pool.fetchval(OLD)
    await reader.close()


async def test_old_rows_are_deleted_in_batches_and_new_ones_stay(
    pool: asyncpg.Pool, lease: Lease, upkeep: RetentionRounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dead letters, keys, workers and alerts, more than one batch of each; young rows and those of live jobs stay."""
    monkeypatch.setattr(module, "BATCH", 10)
    await pool.execute(
        """
        INSERT INTO tickwright.scheduled_tasks_dead (id, execute_at, task_type, status, completed_at)
        SELECT -n, now(), 't', 'failed', now() - CASE WHEN n <= 25 THEN interval '31 days' ELSE interval '1 day' END
          FROM generate_series(1, 30) n;
        INSERT INTO tickwright.outbox_dead (id, destination, payload, headers, created_at, attempts, died_at)
        SELECT n, 'pg:x', '{}', '{}', now(), 1,
               now() - CASE WHEN n <= 25 THEN interval '31 days' ELSE interval '1 day' END
          FROM generate_series(1, 30) n;
        INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, idempotency_key) VALUES (now(), 't', 'live');
        UPDATE tickwright.job_keys SET created_at = now() - interval '8 days';
        INSERT INTO tickwright.job_keys (key, job_id, created_at)
        SELECT 'k' || n, -n, now() - CASE WHEN n <= 25 THEN interval '8 days' ELSE interval '1 day' END
          FROM generate_series(1, 30) n;
        INSERT INTO tickwright.workers (id, name, roles, version, lease_until, lost_at)
        SELECT n, 'w', '{worker}', '1', now(), CASE n WHEN 1 THEN now() - interval '2 days' WHEN 2 THEN now() END
          FROM generate_series(1, 3) n;
        INSERT INTO tickwright.alerts (rule, subject, severity, summary, state, resolved_at)
        VALUES ('r', 'old', 'info', '', 'resolved', now() - interval '31 days'),
               ('r', 'new', 'info', '', 'resolved', now()),
               ('r', 'on', 'info', '', 'firing', NULL);
        INSERT INTO tickwright.api_keys (name, role, prefix, hash) VALUES ('k', 'viewer', 'tw_', 'k');
        INSERT INTO tickwright.sessions (hash, key_id, idle_until, expires_at)
        SELECT n::text::bytea, k.id, now() + (n - 2) * interval '1 hour', now() + (4 - n) * interval '1 hour'
          FROM generate_series(1, 4) n, tickwright.api_keys k;
        """
    )
    await upkeep.round(lease)
    left = {
        table: await pool.fetchval(f"SELECT count(*) FROM tickwright.{table}")
        for table in ("scheduled_tasks_dead", "outbox_dead", "job_keys", "workers", "alerts", "sessions")
    }
    assert left == {
        "scheduled_tasks_dead": 5,
        "outbox_dead": 5,
        "job_keys": 6,
        "workers": 2,
        "alerts": 2,
        "sessions": 1,
    }
    assert await pool.fetchval("SELECT count(*) FROM tickwright.job_keys WHERE key = 'live'") == 1


async def test_a_locked_dead_letter_does_not_end_the_round(
    pool: asyncpg.Pool, lease: Lease, upkeep: RetentionRounds, database_url: str
) -> None:
    """The others are deleted, and this one in a later round."""
    await pool.execute(
        "INSERT INTO tickwright.scheduled_tasks_dead (id, execute_at, task_type, status, completed_at) "
        "SELECT -n, now(), 't', 'failed', now() - interval '31 days' FROM generate_series(1, 3) n"
    )
    left = "SELECT array_agg(id ORDER BY id) FROM tickwright.scheduled_tasks_dead"
    other = await asyncpg.connect(database_url)
    async with other.transaction():
        await other.execute("SELECT FROM tickwright.scheduled_tasks WHERE id = -2 FOR UPDATE")
        await upkeep.round(lease)
        assert await pool.fetchval(left) == [-2]
    await upkeep.round(lease)
    assert await pool.fetchval(left) is None
    await other.close()


async def test_a_job_that_another_program_left_in_processing_is_released(
    pool: asyncpg.Pool, lease: Lease, upkeep: RetentionRounds
) -> None:
    """Five minutes in processing without an owner: pending again, the attempt counted; failed after the last one."""
    await pool.execute(
        "INSERT INTO tickwright.workers (id, name, roles, version, lease_until) "
        "VALUES (5, 'alive', '{worker}', '0', now() + interval '1 hour')"
    )
    ids = [
        row["id"]
        for row in await pool.fetch(
            "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, max_attempts) "
            "SELECT now() - interval '1 hour', 't', m FROM unnest(ARRAY[3, 1, 3, 3]) AS m RETURNING id"
        )
    ]
    await pool.execute(
        "UPDATE tickwright.scheduled_tasks SET status = 'processing', updated_at = now() - interval '6 minutes' "
        "WHERE id = ANY ($1)",
        ids[:2],
    )
    await pool.execute(
        "UPDATE tickwright.scheduled_tasks SET status = 'processing', updated_at = now() WHERE id = $1", ids[2]
    )
    await pool.execute(
        "UPDATE tickwright.scheduled_tasks "
        "SET status = 'processing', owner = 5, updated_at = now() - interval '1 hour' WHERE id = $1",
        ids[3],
    )
    await upkeep.round(lease)
    rows = await pool.fetch("SELECT id, status, attempts FROM tickwright.scheduled_tasks ORDER BY id")
    assert [(row["status"], row["attempts"]) for row in rows] == [
        ("pending", 1),
        ("failed", 1),
        ("processing", 0),
        ("processing", 0),
    ]
    assert await pool.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks_dead") == 1


async def test_upkeep_without_the_lease_changes_nothing(
    pool: asyncpg.Pool, lease: Lease, upkeep: RetentionRounds
) -> None:
    """A scheduler that lost the lease neither drops nor deletes."""
    await pool.execute("SELECT tickwright.ensure_history('2020-01-01Z')")
    await Leases(pool, owner="operator").break_lease("upkeep")
    await upkeep.round(lease)
    assert await pool.fetchval(OLD)


async def test_the_setting_says_how_long_a_job_may_be_stuck(pool: asyncpg.Pool, lease: Lease) -> None:
    """``TICKWRIGHT_STUCK_AFTER``: a program that works rows by hand for an hour keeps them so long."""
    job_id = await pool.fetchval(
        "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) VALUES (now(), 'x') RETURNING id"
    )
    await pool.execute(
        "UPDATE tickwright.scheduled_tasks SET status = 'processing', updated_at = now() - interval '6 minutes'"
    )
    for stuck_after, status in (("1h", "processing"), ("5m", "pending")):
        settings = Settings(stuck_after=stuck_after)
        async with started(pool, settings, "scheduler") as context:
            assert "upkeep" in {loop.name for loop in context.leased}
            await RetentionRounds(context.retention).round(lease)
        sql = "SELECT status FROM tickwright.scheduled_tasks WHERE id = $1"
        assert await pool.fetchval(sql, job_id) == status
