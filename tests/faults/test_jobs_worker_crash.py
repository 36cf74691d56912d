"""A job worker whose claim loop crashes: it is started again and claims, and keeps no share of a type meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from kit.engine import SHORT, insert, job_row, running_engine
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.claimer import Claimer
from tickwright.capabilities.jobs.handlers import HandlerRegistry, make_handler
from tickwright.capabilities.jobs.model import TaskType
from tickwright.capabilities.jobs.types_store import register_handler
from tickwright.capabilities.jobs.worker import JobWorker, WorkerLimits
from tickwright.domain.retries import RetryPolicy
from tickwright.runtime.session import WorkerSession
from tickwright.runtime.supervisor import ServiceState, Supervisor
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
        """How the worker is."""
        return self.supervisor.states()[1]

    async def ran(self, job_id: int) -> None:
        """Wait until a job is done."""
        await eventually_async(lambda: self._is_done(job_id), 60, what="the job ran")

    async def _is_done(self, job_id: int) -> bool:
        row = await job_row(self.pool, job_id)
        return bool(row and row["status"] == "completed")


@asynccontextmanager
async def supervised(url: str, restart: RetryPolicy = QUICK) -> AsyncIterator[Supervised]:
    """Run one."""
    pool, registry, gate = await open_pool(url, min_size=1, max_size=8), HandlerRegistry(), asyncio.Event()

    async def work(_job: Any) -> None:
        pass

    async def few(_job: Any) -> None:
        await gate.wait()

    for kind, function in ((TaskType("work", "python:work"), work), (FEW, few)):
        registry.add(make_handler(kind, function))
        await register_handler(pool, kind)
    session = WorkerSession(pool, name="test", roles=["worker"], version="0", terms=SHORT)
    worker = JobWorker(pool, session, registry, {}, direct_url=url, limits=WorkerLimits(concurrency=1, threads=1))
    supervisor = Supervisor([session, worker], restart=restart)
    task = asyncio.create_task(supervisor.run())
    try:
        await supervisor.started()
        yield Supervised(pool, worker, supervisor, gate)
    finally:
        gate.set()
        supervisor.request()
        await asyncio.wait_for(task, 60)
        await asyncio.wait_for(pool.close(), 10)


def crash_once(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let the next turn of a claim loop fail."""
    turn, left = Claimer._turn_once, [error]

    async def crash(claimer: Claimer) -> None:
        if left:
            raise left.pop()
        await turn(claimer)

    monkeypatch.setattr(Claimer, "_turn_once", crash)


@pytest.mark.parametrize("error", [ValueError("a bug"), asyncio.CancelledError("of a library's own")], ids=type)
async def test_a_claim_loop_that_crashes_is_started_again(
    database_url: str, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Also where asyncio would take it for ended, and the settling beside it would go on alone."""
    async with supervised(database_url) as side:
        crash_once(monkeypatch, error)
        await side.ran(await insert(side.pool, "work"))
        assert side.state.restarts == 1


async def test_a_crash_beside_a_share_that_is_slow_ends_no_later_claims(database_url: str) -> None:
    """What was asked for the share when it crashed is no answer to what is asked later."""
    async with supervised(database_url) as side:
        other, operator = await asyncpg.connect(database_url), await asyncpg.connect(database_url)
        try:
            await insert(side.pool, "few")
            await eventually_async(lambda: side.worker._pacer.withheld, 60, what="its slot is taken: it has no share")
            settling = other.transaction()
            await settling.start()
            await other.execute("SELECT FROM tickwright.task_types FOR UPDATE")
            await operator.execute(REFUSES)
            first = await insert(side.pool, "work")
            side.gate.set()  # it asks for its share, waits, and claims meanwhile
            await eventually_async(lambda: side.state.last_error, 60, what="the claim is refused")
            await operator.execute("DROP TRIGGER refuses ON tickwright.scheduled_tasks")
            await settling.rollback()
            await side.ran(first)
            side.gate.clear()
            await insert(side.pool, "few")
            await eventually_async(lambda: side.worker._pacer.withheld, 60, what="its slot is taken again")
            side.gate.set()
            await side.ran(await insert(side.pool, "work"))
        finally:
            await other.close()
            await operator.close()


async def test_a_worker_that_waits_for_its_next_start_keeps_no_place_of_a_type(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session renews what it has; another worker would not get the only place of a type."""
    async with supervised(database_url, HOURS) as side:
        crash_once(monkeypatch, ValueError("a bug"))
        await eventually_async(lambda: side.state.last_error, 60, what="it has crashed")

        async def few(_job: Any) -> None:
            pass

        async with running_engine(database_url, {"few": few}, kinds={"few": FEW}, terms=SHORT):
            await side.ran(await insert(side.pool, "few"))
        assert side.state.restarts == 0
