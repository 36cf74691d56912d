"""A process that runs no jobs has a session too, and reclaims those that are lost."""

import asyncio
from datetime import timedelta

from kit.engine import insert, job_row
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.model import ClaimPlan, ClaimRange
from tickwright.capabilities.jobs.worker.claims import ClaimRequest, ClaimStore
from tickwright.engine.session import WorkerSession
from tickwright.process.node import open_node
from tickwright.process.settings import load_settings
from tickwright.store.pool import open_pool


async def test_a_node_without_the_worker_role_does_not_strand_a_dead_workers_jobs(database_url: str) -> None:
    """A2: the process that declares a session lost releases its jobs in the same transaction."""
    pool = await open_pool(database_url, max_size=4)
    dead = WorkerSession(pool, name="dead", roles=["worker"], version="0")
    await dead.open()
    job_id = await insert(pool, "t")
    request = ClaimRequest(dead.token, ClaimPlan(("t",), (5,), 5), [ClaimRange("t", 0)], timedelta(milliseconds=200))
    assert len((await ClaimStore(pool).claim(request)).rows) == 1
    await pool.execute("UPDATE tickwright.workers SET lease_until = '-infinity' WHERE id = $1", dead.token)
    settings = load_settings(database_url=database_url, metrics_bind="127.0.0.1:0")
    lost = "SELECT lost_at IS NOT NULL FROM tickwright.workers WHERE id = $1"
    async with open_node(settings, ("relay",)) as node:
        running = asyncio.create_task(node.run(signals=False))
        await eventually_async(lambda: pool.fetchval(lost, dead.token), what="the dead session is declared lost")
        row = await job_row(pool, job_id)
        node.supervisor.request_stop()
        await running
    await pool.close()
    assert (row["status"], row["owner"]) == ("pending", None)
