"""The process that leads its group is killed or stopped: its deputy does what it would have begun."""

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from kit.cli import environment
from kit.fleets import TESTS, has
from kit.forks import Child
from kit.ports import free_port
from kit.processes import kill_group, spawn
from kit.waiting import eventually_async
from tickwright import Tickwright
from tickwright.engine.wakeup.turns import ROUND_S
from tickwright.store.pool import Pool

ROLES = ("report-listener", "campaign-consumer")
PROCESSES = 3
CHUNKS = 3
FINISHED = "SELECT count(*) FROM tickwright.executions WHERE status = 'FINISHED'"
LOST = "SELECT count(*) FROM tickwright.workers WHERE lost_at IS NOT NULL"
KNOW_EACH_OTHER = """
SELECT count(*) FROM tickwright.workers
 WHERE lost_at IS NULL AND seen_at > (SELECT max(started_at) FROM tickwright.workers)
"""
NEXT_ROUND = """
SELECT pg_sleep($1::float8 + 0.3 - mod(date_part('epoch', clock_timestamp())::numeric, $1::float8::numeric)::float8)
"""
"""A little later than its begin, so that each process knows its rank."""
ROUND = "SELECT floor(date_part('epoch', clock_timestamp()) / $1::float8)"
NOTIFIED_ONLY = """
from release_program import app
from tickwright.engine.tasks import is_set_within
from tickwright.engine.wakeup import listener

async def wait(self, event, seconds):
    await is_set_within(event, 3600)

listener.LedWakeup.wait = wait
"""
NO_DEPUTY = f"{NOTIFIED_ONLY}\nlistener.DEPUTY_AFTER_S = 3600\n"


class _Group:
    """Processes with the same roles, each with a log of its runs."""

    def __init__(self, url: str, folder: Path, program: str) -> None:
        self._url, self._folder, self._program = url, folder, program
        self.processes: list[Child] = []

    def start(self) -> None:
        """Start one more."""
        log = self._folder / f"{len(self.processes)}.log"
        env = environment(
            DATABASE_URL=self._url,
            APP=self._program,
            HOME=str(self._folder),
            OBJECT_STORE=self._folder.as_uri(),
            METRICS_BIND=f"127.0.0.1:{free_port()}",
        )
        env |= {
            "RELEASE_LOG": str(log.with_suffix(".runs")),
            "PYTHONPATH": f"{TESTS / 'kit'}:{self._folder}:{env.get('PYTHONPATH', '')}",
        }
        self.processes.append(spawn([sys.executable, "-m", "tickwright", "run", *ROLES], log, env))

    def runs(self, kind: str) -> Mapping[Child, int]:
        """Return how many runs of a kind each process has begun."""
        texts = [self._folder / f"{number}.runs" for number in range(len(self.processes))]
        counts = [text.read_text().count(f"{kind} ") if text.exists() else 0 for text in texts]
        return dict(zip(self.processes, counts, strict=True))


@asynccontextmanager
async def _group(pool: Pool, url: str, folder: Path, program: str) -> AsyncIterator[_Group]:
    group = _Group(url, folder, program)
    try:
        for _ in range(PROCESSES):
            group.start()
        await eventually_async(lambda: has(pool, KNOW_EACH_OTHER, PROCESSES), 120, what="they know of each other")
        yield group
    finally:
        for process in group.processes:
            kill_group(process)


async def _leader(pool: Pool, group: _Group, app: Tickwright) -> Child:
    """Return the process that alone did an execution, in the round that goes on."""
    for finished in range(1, 20):
        await pool.execute(NEXT_ROUND, ROUND_S)
        before, number = group.runs("chunk"), await pool.fetchval(ROUND, ROUND_S)
        await app.start_batch("months.close")
        await eventually_async(partial(has, pool, FINISHED, finished), 60, what="the execution is over")
        did = [process for process, count in group.runs("chunk").items() if count - before[process] == CHUNKS]
        if did and await pool.fetchval(ROUND, ROUND_S) == number:
            return did[0]
    raise AssertionError("in no round one process did an execution")


@asynccontextmanager
async def _requested_of_a_leader_that_is_gone(
    pool: Pool, url: str, folder: Path, fault: signal.Signals, program: str
) -> AsyncIterator[Callable[[], bool]]:
    """Let the process fail that leads this round, then request more; yield whether the others have done it."""
    (folder / "leaders_program.py").write_text(program)
    async with _group(pool, url, folder, "leaders_program:app") as group, Tickwright(url) as app:
        leader = await _leader(pool, group, app)
        before = group.runs("chunk")
        os.kill(leader.pid, fault)
        await app.start_batch("months.close")
        await app.request_report("numbers", {}, requester="u")

        def done() -> bool:
            parts, chunks = group.runs("part"), group.runs("chunk")
            others = [process for process in group.processes if process is not leader]
            return (
                sum(parts[process] for process in others) >= 1
                and sum(chunks[process] - before[process] for process in others) >= CHUNKS
            )

        yield done


@pytest.mark.matrix
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
async def test_work_does_not_wait_for_a_leader_that_is_gone(
    pool: Pool, database_url: str, tmp_path: Path, fault: signal.Signals
) -> None:
    """Its deputy begins the execution and the report, where nothing but their notifications wakes a process."""
    async with _requested_of_a_leader_that_is_gone(pool, database_url, tmp_path, fault, NOTIFIED_ONLY) as done:
        await eventually_async(done, 120, what="others have done both")


@pytest.mark.mutant
async def test_the_suite_notices_a_leader_without_a_deputy(pool: Pool, database_url: str, tmp_path: Path) -> None:
    """The end of the leader's session wakes none, either."""
    leaves = _requested_of_a_leader_that_is_gone(pool, database_url, tmp_path, signal.SIGSTOP, NO_DEPUTY)
    async with leaves as done:
        await eventually_async(lambda: has(pool, LOST, 1), 120, what="the leader's session has ended")
        assert not done()
