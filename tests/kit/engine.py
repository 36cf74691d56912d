"""A worker engine for tests: in this process, or in a separate one that can be killed and stopped."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg

from kit.processes import spawn
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.handlers import HandlerRegistry, make_handler
from tickwright.capabilities.jobs.metrics import WorkerCounters
from tickwright.capabilities.jobs.model import TaskType
from tickwright.capabilities.jobs.task_types import register_handler
from tickwright.capabilities.jobs.worker.pools import ALL, WorkerScope
from tickwright.capabilities.jobs.worker.worker import JobWorker, WorkerLimits
from tickwright.domain.leases import LeaseTerms
from tickwright.engine.payload_keys import NO_KEYS, PayloadKeys
from tickwright.engine.session import WorkerSession
from tickwright.engine.wakeup.connection import DirectConnection
from tickwright.ports.broker import Broker
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.store.pool import Pool, open_pool

SHORT = LeaseTerms(timedelta(seconds=1.5), timedelta(seconds=0.3))


@dataclass
class Engine:
    """A running worker with its pool and its session."""

    url: str
    pool: Pool
    session: WorkerSession
    worker: JobWorker
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    async def insert(self, task_type: str, *, at: str = "now()", payload: Any = None, **columns: Any) -> int:
        """Schedule one job by plain SQL; ``at`` is an SQL expression."""
        return await insert(self.pool, task_type, at=at, payload=payload, **columns)

    async def job(self, job_id: int) -> Mapping[str, Any]:
        """Return a job, live or finished."""
        return await job_row(self.pool, job_id)

    async def until(self, job_id: int, *states: str, within_s: float = 10.0) -> Mapping[str, Any]:
        """Wait until a job is in one of ``states``."""

        async def there() -> Any:
            row = await self.job(job_id)
            return row if row["status"] in states else None

        row: Mapping[str, Any] = await eventually_async(there, within_s, what=f"job {job_id} in {states}")
        return row


async def insert(connection: Any, task_type: str, *, at: str = "now()", payload: Any = None, **columns: Any) -> int:
    """Insert one row by plain SQL and return its id."""
    names = "".join(f", {name}" for name in columns)
    places = "".join(f", ${number}" for number in range(3, 3 + len(columns)))
    into = f"INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload{names})"
    sql = f"{into} VALUES ({at}, $1, $2{places}) RETURNING id"
    job_id: int = await connection.fetchval(sql, task_type, json.dumps(payload or {}), *columns.values())
    return job_id


async def job_row(connection: Any, job_id: int) -> Mapping[str, Any]:
    """Return a job by id, live or finished; exactly one row may be there."""
    rows = await connection.fetch("SELECT * FROM tickwright.scheduled_tasks WHERE id = $1", job_id)
    assert len(rows) == 1, f"job {job_id}: {len(rows)} rows"
    row: Mapping[str, Any] = rows[0]
    return row


@asynccontextmanager
async def running_engine(
    url: str,
    handlers: Mapping[str, Callable[..., Any]] | None = None,
    *,
    kinds: Mapping[str, TaskType] | None = None,
    brokers: Mapping[str, Broker] | None = None,
    limits: WorkerLimits | None = None,
    scope: WorkerScope = ALL,
    terms: LeaseTerms | None = None,
    probe: Probe = NO_PROBE,
    direct: bool = True,
    keys: PayloadKeys = NO_KEYS,
) -> AsyncIterator[Engine]:
    """Run a worker with ``handlers`` in this process; stop it in two steps at the end."""
    pool = await open_pool(url, min_size=1, max_size=8)
    registry = HandlerRegistry()
    for name, function in (handlers or {}).items():
        kind = (kinds or {}).get(name) or TaskType(name, f"python:{name}")
        registry.add(make_handler(kind, function))
    async with pool.acquire() as connection:
        for kind in [*(h.defaults for h in registry.all()), *((kinds or {}).values())]:
            await register_handler(connection, kind)
    connection = DirectConnection(url if direct else None)
    session = WorkerSession(
        pool, name="test", roles=["worker"], version="0", terms=terms, direct=connection, probe=probe
    )
    worker = JobWorker(
        pool, session, registry, brokers or {}, direct=connection, limits=limits, scope=scope, keys=keys, probe=probe
    )
    session.facts["payload_keys"] = list(keys.names)
    session.facts["payload_keys_missing"] = worker.encryption.missing
    counted = WorkerCounters(worker)
    session.facts["scope"], session.facts["queues_full"] = worker.scope.facts(), worker.queues_full
    session.facts["handlers"] = registry.names
    session.facts["counters"] = lambda: {"jobs": counted.jobs(), "types": counted.types()}
    await session.open()
    engine = Engine(url, pool, session, worker)
    engine.tasks = [asyncio.create_task(service.run()) for service in (session, worker, connection)]
    try:
        await eventually_async(lambda: worker.last_tick_age_s() is not None, what="first claim")
        if direct and worker.claimer._turns.listens():
            await eventually_async(lambda: worker.wakeup.works, what="it listens")
        yield engine
    finally:
        await worker.stop()
        await session.stop()
        await connection.stop()
        await asyncio.gather(*engine.tasks)
        await asyncio.wait_for(pool.close(), 10)


def policy(name: str, **changes: Any) -> TaskType:
    """Return a Python type with quick retries."""
    from tickwright.domain.retries import RetryPolicy

    quick = RetryPolicy(base=timedelta(milliseconds=200), cap=timedelta(milliseconds=200))
    return TaskType(name, f"python:{name}", **{"retry": quick, **changes})


class WorkerProcess:
    """A worker as a separate process, running ``kit/engine_worker.py``; its log survives ``kill -9``."""

    def __init__(
        self,
        url: str,
        log: Path,
        *,
        lease_s: float = 8.0,
        concurrency: int = 50,
        work_s: float = 0.05,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._log = log
        given = {
            **(environment or {}),
            "ENGINE_URL": url,
            "ENGINE_LOG": str(log),
            "ENGINE_LEASE_S": str(lease_s),
            "ENGINE_CONCURRENCY": str(concurrency),
            "ENGINE_WORK_S": str(work_s),
        }
        script = Path(__file__).with_name("engine_worker.py")
        self.process = spawn([sys.executable, str(script)], log.with_suffix(".out"), given)

    def kill9(self) -> None:
        """``kill -9`` it."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def pause(self) -> None:
        """Stop it with SIGSTOP, like a frozen virtual machine."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a stopped one continue."""
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ask it to stop, and wait."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)


@dataclass(frozen=True)
class Event:
    """One line of a worker's log: ``S`` started, ``E`` ended."""

    tag: str
    job_id: int
    attempt: int
    fence: int
    due_s: float
    at_s: float


def read_events(*logs: Path) -> list[Event]:
    """Return the events of the workers' logs, whole lines only."""
    events = []
    for log in logs:
        if log.exists():
            for line in log.read_text().splitlines():
                parts = line.split()
                if len(parts) == 6:
                    tag, job_id, attempt, fence, due_s, at_s = parts
                    events.append(Event(tag, int(job_id), int(attempt), int(fence), float(due_s), float(at_s)))
    return events


async def connect(url: str) -> asyncpg.Connection:
    """Open a connection for the test."""
    return await asyncpg.connect(url)
