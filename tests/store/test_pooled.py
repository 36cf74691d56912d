"""The worker behind PgBouncer in transaction mode, with nothing else: no LISTEN, no session, no prepared statement."""

import asyncio
from datetime import timedelta

from kit.engine import job_row, policy
from kit.servers import PgBouncer
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.handlers import HandlerRegistry, make_handler
from tickwright.capabilities.jobs.model import Job
from tickwright.capabilities.jobs.task_types import register_handler
from tickwright.capabilities.jobs.worker.worker import JobWorker
from tickwright.domain.leases import LeaseTerms
from tickwright.engine.session import WorkerSession
from tickwright.engine.wakeup.connection import DirectConnection
from tickwright.store.pool import open_pool

SCHEDULE = (
    "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload) "
    "SELECT now() + n * interval '2 milliseconds', $1, jsonb_build_object('number', n) "
    "FROM generate_series(1, 500) AS n RETURNING id"
)


async def test_a_worker_behind_a_pooler_without_a_direct_url_drains_its_jobs(
    pgbouncer: PgBouncer, database_url: str
) -> None:
    """It polls instead of listening, and everything else is as without a pooler: once each, retried, kept."""
    seen: list[int] = []

    async def handler(job: Job, number: int) -> int:
        if number == 7 and job.attempt == 1:
            raise ValueError("once more")
        seen.append(number)
        return number

    url = pgbouncer.database_url(database_url.rpartition("/")[2])
    pool = await open_pool(url, max_size=6, behind_pooler=True)
    registry = HandlerRegistry()
    registry.add(make_handler(policy("pooled"), handler))
    async with pool.acquire() as connection:
        await register_handler(connection, policy("pooled"))
    terms = LeaseTerms(timedelta(seconds=1.5), timedelta(seconds=0.3))
    session = WorkerSession(pool, name="pooled", roles=["worker"], version="0", terms=terms)
    await session.open()
    worker = JobWorker(pool, session, registry, {}, direct=DirectConnection(None))
    tasks = [asyncio.create_task(session.run()), asyncio.create_task(worker.run())]
    try:
        ids = [row["id"] for row in await pool.fetch(SCHEDULE, "pooled")]
        await eventually_async(lambda: len(seen) == 500, 30, what="500 jobs through the pooler")
        await worker.quiesce()
        rows = [await job_row(pool, job_id) for job_id in ids[:20]]
    finally:
        await worker.stop()
        await session.stop()
        await asyncio.gather(*tasks)
        await asyncio.wait_for(pool.close(), 10)
    assert sorted(seen) == list(range(1, 501))
    assert not worker.wakeup.works
    assert {row["status"] for row in rows} == {"completed"}
    assert rows[6]["attempts"] == 2
