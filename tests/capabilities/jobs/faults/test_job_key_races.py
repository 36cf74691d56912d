"""The same idempotency key while its first job is being ended: one job, however close the two transactions are."""

import asyncio
from collections import Counter
from pathlib import Path

import asyncpg
import pytest

from kit.engine import connect, running_engine
from kit.waiting import eventually_async
from tickwright import Job

ONCE = """
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, idempotency_key) VALUES (now(), 't', $1)
ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING RETURNING id
"""
PLAIN = ONCE.replace("ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING", "")
HELD = "UPDATE tickwright.scheduled_tasks SET status = 'processing', owner = 1, fence = 1, attempts = 1 WHERE id = $1"
END = "DELETE FROM ONLY tickwright.scheduled_tasks WHERE id = $1"
LIVE = "SELECT count(*) FROM ONLY tickwright.scheduled_tasks"
BEFORE = Path(__file__).parents[4] / "src/tickwright/store/migrations/versions/0001_foundation.sql"


async def check_a_key_whose_job_is_ending_makes_no_second_job(url: str, insert: str, *, commits: bool) -> None:
    """KEY-1: whether the ending transaction commits or not."""
    ending, other = await connect(url), await connect(url)
    first = await ending.fetchval(ONCE, "k")
    await ending.execute(HELD, first)
    transaction = ending.transaction()
    await transaction.start()
    await ending.execute(END, first)
    second = asyncio.create_task(other.fetchval(insert, "k"))
    waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    await eventually_async(lambda: True if second.done() else ending.fetchval(waits), what="the second insert")
    await (transaction.commit() if commits else transaction.rollback())
    try:
        assert await second is None, "KEY-1 broken: two jobs"
    except asyncpg.UniqueViolationError:
        assert not commits
    assert await other.fetchval(LIVE) == (0 if commits else 1), "KEY-1 broken: two jobs"
    assert await other.fetchval("SELECT job_id FROM tickwright.job_keys WHERE key = 'k'") == first
    for one in (ending, other):
        await one.close()


@pytest.mark.parametrize("commits", [True, False], ids=["committed", "rolled back"])
@pytest.mark.parametrize("insert", [ONCE, PLAIN], ids=["on conflict", "plain"])
async def test_a_key_whose_job_is_ending_makes_no_second_job(database_url: str, insert: str, commits: bool) -> None:
    """KEY-1, for both inserts, with and without the commit."""
    await check_a_key_whose_job_is_ending_makes_no_second_job(database_url, insert, commits=commits)


async def test_the_suite_notices_a_key_that_is_looked_up_without_a_lock(database_url: str) -> None:
    """A mutant of the guard: the function of the first release."""
    text = BEFORE.read_text()
    begin = text.index("CREATE FUNCTION tickwright.claim_job_key()")
    function = text[begin : text.index("END $$;", begin) + len("END $$;")]
    connection = await connect(database_url)
    await connection.execute(function.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"))
    await connection.close()
    with pytest.raises(AssertionError, match="KEY-1 broken"):
        await check_a_key_whose_job_is_ending_makes_no_second_job(database_url, ONCE, commits=True)


async def test_a_live_job_stays_until_the_insert_with_its_key_is_committed(database_url: str) -> None:
    """A plain insert with the key of a live job is refused as usual, and the job runs afterwards."""
    connection = await connect(database_url)
    first = await connection.fetchval(ONCE, "k")
    with pytest.raises(asyncpg.UniqueViolationError):
        await connection.fetchval(PLAIN, "k")
    async with connection.transaction():
        assert await connection.fetchval(ONCE, "k") is None
        assert await connection.fetchval("SELECT id FROM ONLY tickwright.scheduled_tasks") == first
    await connection.close()


async def test_keys_that_are_repeated_while_their_jobs_run_make_one_job_each(database_url: str) -> None:
    """KEY-1 under a worker that ends each job at once: no key runs twice."""
    runs: Counter[str] = Counter()

    async def handler(job: Job) -> None:
        runs[job.payload["key"]] += 1

    insert = ONCE.replace("idempotency_key)", "idempotency_key, payload)", 1).replace(
        "'t', $1)", "'t', $1::varchar, jsonb_build_object('key', $1::varchar))"
    )
    async with running_engine(database_url, {"t": handler}) as engine:
        for number in range(200):
            key = f"k{number}"
            await asyncio.gather(*(_repeat(engine.pool, insert, key, pause) for pause in (0.0, 0.004, 0.008, 0.016)))
        done = lambda: engine.pool.fetchval(f"SELECT ({LIVE}) = 0")  # noqa: E731
        await eventually_async(done, 60, what="all have ended")
    assert len(runs) == 200
    assert set(runs.values()) == {1}, "KEY-1 broken: a key ran twice"


async def _repeat(pool: asyncpg.Pool, insert: str, key: str, pause: float) -> None:
    await asyncio.sleep(pause)
    await pool.fetchval(insert, key)
