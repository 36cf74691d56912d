"""Workers that take turns are killed, stopped and cut off: the others start the jobs, before any lease expires."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg
import pytest

from kit.engine import WorkerProcess, connect, read_events
from kit.tcp_proxy import TcpProxy
from kit.waiting import eventually_async

LEASE_S = 600.0
INSERT = (
    "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) SELECT now(), 'work' FROM generate_series(1, 5)"
)
KNOWN = "SELECT count(*) = 3 FROM tickwright.workers WHERE work_groups[1] LIKE 'jobs:%'"
LEFT = "SELECT count(*) FROM ONLY tickwright.scheduled_tasks"
FAULTS: dict[str, Callable[[WorkerProcess, TcpProxy], None]] = {
    "killed": lambda process, _: process.kill9(),
    "stopped": lambda process, _: process.pause(),
    "cut off": lambda _, link: link.blackhole(),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_the_last_worker_starts_the_jobs_of_a_group(database_url: str, tmp_path: Path, fault: str) -> None:
    """Of three workers two fail, one after the other, and with them the one that listens; none is declared lost."""
    logs = [tmp_path / f"{number}.log" for number in range(3)]
    port = int(database_url.rpartition(":")[2].partition("/")[0])
    async with AsyncExitStack() as stack:
        beside = await connect(database_url)
        stack.push_async_callback(beside.close)
        links = [await stack.enter_async_context(TcpProxy("127.0.0.1", port)) for _ in logs]
        urls = [link.rewrite(database_url) for link in links]
        workers = [WorkerProcess(url, log, lease_s=LEASE_S) for url, log in zip(urls, logs, strict=True)]
        for worker in workers:
            stack.callback(worker.kill9)
        await eventually_async(lambda: beside.fetchval(KNOWN), 30, what="three workers")
        for failing in (None, 0, 1):
            if failing is not None:
                await eventually_async(lambda: _none_is_held(beside), 30, what="it holds nothing")
                FAULTS[fault](workers[failing], links[failing])
            await beside.execute(INSERT)
            await eventually_async(lambda: _none_is_held(beside), 30, what="all jobs are done")
        assert await beside.fetchval("SELECT count(*) FROM tickwright.workers WHERE lost_at IS NOT NULL") == 0
    events = [event for event in read_events(*logs) if event.tag == "S"]
    assert len(events) == len({event.job_id for event in events}) == 15


async def _none_is_held(connection: asyncpg.Connection) -> bool:
    return bool(await connection.fetchval(LEFT) == 0)
