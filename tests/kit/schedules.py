"""Schedules for tests: a database with a task type, and producers that hold the lease or wrongly believe so."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from kit.forks import Child
from kit.processes import spawn
from tickwright.capabilities.jobs.schedules.producer import ScheduleSource
from tickwright.capabilities.jobs.schedules.service import Schedules
from tickwright.capabilities.jobs.task_types import TypeCatalog
from tickwright.domain.leases import LeaseTerms
from tickwright.engine.leases import Leases
from tickwright.engine.occurrences import AT_ONCE, OccurrenceProducer
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.store.pool import Pool, open_pool

TERMS = LeaseTerms(timedelta(seconds=2), timedelta(seconds=0.3))
PROCESS = Path(__file__).with_name("schedule_process.py")
TYPE = "tidy"
_TYPE = "INSERT INTO tickwright.task_types (name, target) VALUES ($1, 'python:tidy') ON CONFLICT DO NOTHING"


class NoLease:
    """A holder that wrongly believes in its lease: only the rows separate it from the others."""

    fence = 0

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def holds(self) -> bool:
        """Return its belief."""
        return True

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """Open a transaction like any other."""
        async with self._pool.acquire() as connection, connection.transaction():
            yield connection


class ScheduleWorld:
    """One test's schedules."""

    def __init__(self, pool: Pool, url: str) -> None:
        self.pool, self.url = pool, url
        self.schedules = Schedules(pool, TypeCatalog(pool))

    async def now(self) -> datetime:
        """Return the database's clock."""
        found: datetime = await self.pool.fetchval("SELECT clock_timestamp()")
        return found

    async def put(self, name: str = "nightly", *, since: timedelta | None = None, **columns: Any) -> None:
        """Insert a schedule by plain SQL; ``since`` lets it count from so long ago, as after an outage."""
        values = {"name": name, "task_type": TYPE, **columns}
        names, places = ", ".join(values), ", ".join(f"${number + 1}" for number in range(len(values)))
        await self.pool.execute(f"INSERT INTO tickwright.schedules ({names}) VALUES ({places})", *values.values())
        if since is not None:
            sql = "UPDATE tickwright.schedules SET counts_from = clock_timestamp() - $2::interval WHERE name = $1"
            await self.pool.execute(sql, name, since)

    async def put_due(
        self,
        name: str = "nightly",
        *,
        slots: int = 1,
        step: timedelta = timedelta(days=1),
        ago: timedelta = timedelta(minutes=10),
        **columns: Any,
    ) -> datetime:
        """Insert a schedule with undecided slots, the last of them ``ago``, none of them too late; return that one."""
        last = (await self.now()).replace(microsecond=0) - ago
        first = last - (slots - 1) * step
        await self.put(name, every=step, first_at=first, **{"misfire_grace": slots * step, **columns})
        await self.pool.execute("UPDATE tickwright.schedules SET counts_from = $2 WHERE name = $1", name, first)
        return last

    async def row(self, name: str = "nightly") -> Mapping[str, Any]:
        """Return a schedule's row; ``read_at`` is when it is read again, if that is known."""
        read_at = "CASE WHEN isfinite(due_at) THEN due_at END AS read_at"
        sql = f"SELECT *, {read_at} FROM tickwright.schedules WHERE name = $1"
        found = await self.pool.fetchrow(sql, name)
        assert found is not None
        return dict(found)

    async def jobs(self, name: str = "nightly") -> list[Mapping[str, Any]]:
        """Return its jobs of every state, by slot; the key ends with the slot."""
        sql = """
            SELECT *, tableoid::regclass::text AS place FROM tickwright.scheduled_tasks
             WHERE idempotency_key LIKE 'schedule:' || $1 || ':%' ORDER BY execute_at, id
        """
        return [dict(row) for row in await self.pool.fetch(sql, name)]

    async def skips(self, name: str = "nightly") -> list[tuple[Any, ...]]:
        """Return the recorded skips: from, to, how many, why."""
        columns = "slot_at, until_at, slots, reason"
        sql = f"SELECT {columns} FROM tickwright.schedule_skips WHERE schedule = $1 ORDER BY slot_at"
        return [tuple(row) for row in await self.pool.fetch(sql, name)]

    async def produce(self, producer: OccurrenceProducer | None = None) -> float:
        """Make one round of a producer that holds the lease."""
        lease = await Leases(self.pool, owner="producer", terms=TERMS).take("campaign-producer")
        assert lease is not None
        try:
            return await (producer or new_producer()).round(lease)
        finally:
            await lease.release()


def new_producer(*, at_once: int = AT_ONCE, probe: Probe = NO_PROBE) -> OccurrenceProducer:
    """Return a producer of schedules only."""
    return OccurrenceProducer((ScheduleSource(),), at_once=at_once, probe=probe)


@asynccontextmanager
async def schedule_world(url: str) -> AsyncIterator[ScheduleWorld]:
    """A world on this database."""
    pool = await open_pool(url, max_size=12)
    try:
        await pool.execute(_TYPE, TYPE)
        yield ScheduleWorld(pool, url)
    finally:
        pool.terminate()


def start_producer(world: ScheduleWorld, log: Path, **more: str) -> Child:
    """Start a producer as a separate process; kill it with ``kill_group``."""
    return spawn([sys.executable, str(PROCESS)], log, {**os.environ, "SCHEDULE_DATABASE": world.url, **more})


def utc(text: str) -> datetime:
    """Return an instant in UTC, such as ``2026-03-29 01:00``."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


async def gather_rounds(world: ScheduleWorld, producers: int, rounds: int, **options: Any) -> list[OccurrenceProducer]:
    """Let producers that all believe in their lease make rounds at once; return them."""
    made = [new_producer(**options) for _ in range(producers)]
    for _ in range(rounds):
        await asyncio.gather(*(one.round(NoLease(world.pool)) for one in made))
    return made
