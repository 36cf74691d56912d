"""A job worker whose claim loop crashes: it restarts and claims, and keeps no share of a type meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from kit.engine import SHORT, insert, job_row, running_engine
from kit.mutants import mutate
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.handlers import HandlerRegistry, make_handler
from tickwright.capabilities.jobs.model import TaskType
from tickwright.capabilities.jobs.task_types import register_handler
from tickwright.capabilities.jobs.worker.claimer import Claimer
from tickwright.capabilities.jobs.worker.result_writer import ResultWriter
from tickwright.capabilities.jobs.worker.worker import JobWorker, WorkerLimits
from tickwright.domain.retries import RetryPolicy
from tickwright.engine.session import WorkerSession
from tickwright.engine.wakeup.connection import DirectConnection
from tickwright.process.supervisor import ServiceState, Supervisor
from tickwright.store.pool import Pool, open_pool

FEW = TaskType("few", "python:few", concurrency=1)
QUICK = RetryPolicy(base=timedelta(milliseconds=100), cap=timedelta(milliseconds=100))
HOURS = RetryPolicy(base=timedelta(hours=10), cap=timedelta(hours=10))
REFUSES = """
CREATE FUNCTION public.refuses() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'of an operator'; END $$;
CREATE TRIGGER refuses BEFORE UPDATE ON tickwright.scheduled_tasks FOR EACH ROW WHEN (NEW.status = 'processing')
EXECUTE FUNCTION public.refuses()
"""


@dataclass
class Supervised:
    """A worker with one slot under a supervisor; jobs of the type ``few`` wait for ``gate``."""

    pool: Pool
    worker: JobWorker
    supervisor: Supervisor
    gate: asyncio.Event

    @property
    def state(self) -> ServiceState:
        """The worker's state."""
        return self.supervisor.states()[1]

    async def ran(self, job_id: int, within_s: float = 60) -> None:
        """Wait until a job is done."""
        await eventually_async(lambda: self._is_done(job_id), within_s, what="the job ran")

    async def _is_done(self, job_id: int) -> bool:
        row = await job_row(self.pool, job_id)
        return bool(row and row["status"] == "completed")


@asynccontextmanager
async def supervised(url: str, restart: RetryPolicy = QUICK) -> AsyncIterator[Supervised]:
    """Run a supervised worker."""
    pool, registry, gate = await open_pool(url, min_size=1, max_size=8), HandlerRegistry(), asyncio.Event()

    async def work(_job: Any) -> None:
        pass

    async def few(_job: Any) -> None:
        await gate.wait()

    for kind, function in ((TaskType("work", "python:work"), work), (FEW, few)):
        registry.add(make_handler(kind, function))
        await register_handler(pool, kind)
    session = WorkerSession(pool, name="test", roles=["worker"], version="0", terms=SHORT)
    direct = DirectConnection(url)
    worker = JobWorker(pool, session, registry, {}, direct=direct, limits=WorkerLimits(concurrency=1, threads=1))
    supervisor = Supervisor([session, worker, direct], restart=restart)
    task = asyncio.create_task(supervisor.run())
    try:
        await supervisor.started()
        yield Supervised(pool, worker, supervisor, gate)
    finally:
        gate.set()
        supervisor.request_stop()
        await asyncio.wait_for(task, 60)
        await asyncio.wait_for(pool.close(), 10)


def crash_once(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let the next round of a claim loop fail."""
    claim_once, left = Claimer._claim_once, [error]

    async def crash(claimer: Claimer) -> None:
        if left:
            raise left.pop()
        await claim_once(claimer)

    monkeypatch.setattr(Claimer, "_claim_once", crash)


@pytest.mark.parametrize("error", [ValueError("a bug"), asyncio.CancelledError("of a library's own")], ids=type)
async def test_a_claim_loop_that_crashes_is_started_again(
    database_url: str, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Also where asyncio takes it for ended while its writer of results continues alone."""
    async with supervised(database_url) as side:
        crash_once(monkeypatch, error)
        await side.ran(await insert(side.pool, "work"))
        assert side.state.restarts == 1


async def test_a_crash_during_a_slow_share_request_ends_no_later_claims(database_url: str) -> None:
    """The answer to the request for a share at the crash does not answer a later one."""
    async with supervised(database_url) as side:
        other, operator = await asyncpg.connect(database_url), await asyncpg.connect(database_url)
        try:
            await insert(side.pool, "few")
            await eventually_async(
                lambda: side.worker._limits.withheld, 60, what="its slot is taken, so it has no share"
            )
            settling = other.transaction()
            await settling.start()
            await other.execute("SELECT FROM tickwright.task_types FOR UPDATE")
            await operator.execute(REFUSES)
            first = await insert(side.pool, "work")
            side.gate.set()  # it requests its share, waits, and claims meanwhile
            await eventually_async(lambda: side.state.last_error, 60, what="the claim is refused")
            await operator.execute("DROP TRIGGER refuses ON tickwright.scheduled_tasks")
            await settling.rollback()
            await side.ran(first)
            side.gate.clear()
            await insert(side.pool, "few")
            await eventually_async(lambda: side.worker._limits.withheld, 60, what="its slot is taken again")
            side.gate.set()
            await side.ran(await insert(side.pool, "work"))
        finally:
            await other.close()
            await operator.close()


async def test_a_worker_that_waits_for_its_restart_keeps_no_share_of_a_type(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session lives on; another worker would not get the only grant of a type."""
    async with supervised(database_url, HOURS) as side:
        crash_once(monkeypatch, ValueError("a bug"))
        await eventually_async(lambda: side.state.last_error, 60, what="it has crashed")

        async def few(_job: Any) -> None:
            pass

        async with running_engine(database_url, {"few": few}, kinds={"few": FEW}, terms=SHORT):
            await side.ran(await insert(side.pool, "few"))
        assert side.state.restarts == 0


@asynccontextmanager
async def crashed_in_rest(
    url: str, monkeypatch: pytest.MonkeyPatch, restart: RetryPolicy
) -> AsyncIterator[tuple[Supervised, int]]:
    """A worker whose claim loop crashes between two writes of results; the second result, of this job, waits."""
    resting, rest, claim_once = list[ResultWriter](), ResultWriter._pause, Claimer._claim_once
    crashes = [ValueError("a bug")]

    async def rest_until_cancelled(result_writer: ResultWriter) -> None:
        if not resting:
            resting.append(result_writer)
            await asyncio.Event().wait()
        await rest(result_writer)

    async def crash_after_second(claimer: Claimer) -> None:
        if crashes and resting and resting[0].kept:
            raise crashes.pop()
        await claim_once(claimer)

    monkeypatch.setattr(ResultWriter, "_pause", rest_until_cancelled)
    monkeypatch.setattr(Claimer, "_claim_once", crash_after_second)
    async with supervised(url, restart) as side:
        await side.ran(await insert(side.pool, "work"))
        assert resting
        second = await insert(side.pool, "work")
        await eventually_async(lambda: side.state.last_error, 60, what="it has crashed")
        yield side, second


async def check_results_are_written(url: str, monkeypatch: pytest.MonkeyPatch, within_s: float = 60) -> None:
    """Results that wait at the crash, and those of jobs that end after the restart."""
    async with crashed_in_rest(url, monkeypatch, QUICK) as (side, second):
        third = await insert(side.pool, "work")
        for job_id in (second, third):
            await side.ran(job_id, within_s)


async def test_results_that_wait_at_a_crash_are_written_after_it(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A regression: neither these nor later results were written, and a kill ran all those jobs again."""
    await check_results_are_written(database_url, monkeypatch)


async def test_the_suite_notices_a_writer_that_waits_for_an_earlier_runs_signal(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results signal once that they are there."""
    mutate(monkeypatch, ResultWriter.run, "self._woken.set()", "pass")
    with pytest.raises(AssertionError, match="the job ran"):
        await check_results_are_written(database_url, monkeypatch, within_s=5)


async def test_a_worker_that_is_drained_after_a_crash_writes_its_results(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not restarted, so nothing else would write them; a regression: the drain waited until it was cut off."""
    async with crashed_in_rest(database_url, monkeypatch, HOURS) as (side, second):
        side.supervisor.request_stop()
        await side.ran(second)


async def test_a_drain_that_waits_while_the_writer_crashes_writes_what_is_left(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A regression: it waited for a run that had ended."""
    async with crashed_in_rest(database_url, monkeypatch, HOURS) as (side, second):
        result_writer, never = side.worker.result_writer, asyncio.Event()
        with monkeypatch.context() as patch:
            patch.setattr(ResultWriter, "_pause", lambda _writer: never.wait())
            patch.setattr(ResultWriter, "_start_writes", lambda _writer: None)
            run, drain = asyncio.create_task(result_writer.run()), asyncio.create_task(result_writer.drained())
            await asyncio.sleep(0)
        run.cancel()
        await asyncio.wait_for(drain, 60)
        await side.ran(second)
