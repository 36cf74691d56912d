"""Workflows under kill -9 and beside locks: no successor is lost, started early or started twice."""

from functools import partial
from pathlib import Path

from kit.engine import WorkerProcess, connect, read_events
from kit.waiting import eventually_async
from kit.workflows import STATE, add, check_no_leftovers
from tickwright.store.pool import Pool

DUE_LATER = "SELECT count(*) FROM ONLY tickwright.scheduled_tasks WHERE id = $1 AND status = 'pending'"
RUNNING = "SELECT count(*) FROM tickwright.workflows WHERE state = 'running'"


async def test_kill_9_between_the_last_predecessor_and_the_start_of_its_successor(
    database_url: str, pool: Pool, tmp_path: Path
) -> None:
    """The successor is released with the result of the predecessor: another worker starts it, once."""
    root = await add(pool, {"name": "a"}, {"name": "b"}, {"name": "c", "after": ["a", "b"], "delay": "2 seconds"})
    first = WorkerProcess(database_url, tmp_path / "1.log", lease_s=2)
    await eventually_async(lambda: pool.fetchval(DUE_LATER, root + 3), 30, what="the successor is released")
    first.kill9()
    assert root + 3 not in {event.job_id for event in read_events(tmp_path / "1.log")}
    second = WorkerProcess(database_url, tmp_path / "2.log", lease_s=2)
    await eventually_async(lambda: _has_ended(pool, root), 30, what="the workflow ends")
    second.stop()
    starts = [
        event.attempt for event in read_events(tmp_path / "2.log") if (event.tag, event.job_id) == ("S", root + 3)
    ]
    assert starts == [1]
    assert await pool.fetchval(STATE, root) == "completed"
    await check_no_leftovers(pool)


async def _has_ended(pool: Pool, root: int) -> bool:
    return bool(await pool.fetchval(STATE, root) != "running")


async def test_workers_that_are_killed_again_and_again_complete_every_chain(
    database_url: str, pool: Pool, tmp_path: Path
) -> None:
    """Wherever a kill hits: each job completes once, and starts after its predecessor ended for the last time."""
    length, chains = 5, 60
    for chain in range(chains):
        jobs = [{"name": str(n), **({"after": [str(n - 1)]} if n else {}), "max_attempts": 100} for n in range(length)]
        await add(pool, *jobs, key=str(chain))
    logs = [tmp_path / f"{number}.log" for number in range(5)]
    for number, log in enumerate(logs):
        worker = WorkerProcess(database_url, log, lease_s=2, work_s=0.02)
        if number < len(logs) - 1:
            await eventually_async(partial(_has_events, log, 60), 60, what="it works")
            worker.kill9()
        else:
            await eventually_async(lambda: _none_runs(pool), 60, what="all have ended")
            worker.stop()
    events = sorted(read_events(*logs), key=lambda event: event.at_s)
    ends: dict[int, float] = {}
    first_starts: dict[int, float] = {}
    for event in events:
        if event.tag == "E":
            ends[event.job_id] = event.at_s
        first_starts.setdefault(event.job_id, event.at_s)
    edges = await pool.fetch("SELECT predecessor, successor FROM tickwright.workflow_edges")
    assert len(edges) == chains * (length - 1)
    assert all(ends[edge["predecessor"]] <= first_starts[edge["successor"]] for edge in edges)
    counts = await pool.fetch("SELECT id FROM tickwright.scheduled_tasks WHERE status = 'completed'")
    assert len(counts) == len({row["id"] for row in counts}) == chains * length
    await check_no_leftovers(pool)


async def _has_events(log: Path, count: int) -> bool:
    return len(read_events(log)) > count


async def _none_runs(pool: Pool) -> bool:
    return bool(await pool.fetchval(RUNNING) == 0)


async def test_a_backend_that_dies_before_its_commit_ends_nothing(database_url: str, pool: Pool) -> None:
    """Neither the job nor the release of what waits for it."""
    root = await add(pool, {"name": "a"}, {"name": "b", "after": ["a"], "on_failed": "run"})
    connection = await connect(database_url)
    await connection.execute("BEGIN")
    await connection.execute("UPDATE tickwright.scheduled_tasks SET status = 'cancelled' WHERE id = $1", root + 1)
    await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")  # what the commit does first
    assert await connection.fetchval(DUE_LATER, root + 2) == 1
    await pool.execute("SELECT pg_terminate_backend($1)", connection.get_server_pid())
    await eventually_async(lambda: pool.fetchval(DUE_LATER, root + 1), what="its locks are free")
    assert await pool.fetchval(DUE_LATER, root + 2) == 0
    connection.terminate()
    await check_no_leftovers(pool)
