"""Workers that take turns are killed and stopped: the others start the jobs, before any lease expires."""

from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from kit.engine import WorkerProcess, connect, read_events
from kit.waiting import eventually_async

LEASE_S = 600.0
INSERT = (
    "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) SELECT now(), 'work' FROM generate_series(1, 5)"
)
KNOWN = "SELECT count(*) = 3 FROM tickwright.workers WHERE work_groups[1] LIKE 'jobs:%'"
LEFT = "SELECT count(*) FROM ONLY tickwright.scheduled_tasks"
FAULTS: dict[str, Callable[[WorkerProcess], None]] = {"killed": WorkerProcess.kill9, "stopped": WorkerProcess.pause}


@pytest.mark.parametrize("fault", FAULTS)
async def test_the_last_worker_starts_the_jobs_of_a_group(database_url: str, tmp_path: Path, fault: str) -> None:
    """Of three workers two fail, one after the other, and with them the one that listens; none is declared lost."""
    logs = [tmp_path / f"{number}.log" for number in range(3)]
    workers = [WorkerProcess(database_url, log, lease_s=LEASE_S) for log in logs]
    beside = await connect(database_url)
    try:
        await eventually_async(lambda: beside.fetchval(KNOWN), 30, what="three workers")
        for failing in (None, *workers[:2]):
            if failing is not None:
                await eventually_async(lambda: _none_is_held(beside), 30, what="it holds nothing")
                FAULTS[fault](failing)
            await beside.execute(INSERT)
            await eventually_async(lambda: _none_is_held(beside), 30, what="all jobs are done")
        assert await beside.fetchval("SELECT count(*) FROM tickwright.workers WHERE lost_at IS NOT NULL") == 0
    finally:
        for worker in workers:
            worker.stop()
        await beside.close()
    events = [event for event in read_events(*logs) if event.tag == "S"]
    assert len(events) == len({event.job_id for event in events}) == 15


async def _none_is_held(connection: asyncpg.Connection) -> bool:
    return bool(await connection.fetchval(LEFT) == 0)
