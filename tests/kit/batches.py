"""Batches for tests: a database, a program's work that keeps a log, and the role's services in this process."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from kit.claims import open_owners
from kit.forks import Child
from kit.nodes import RoleProcess
from kit.processes import spawn
from kit.waiting import eventually_async
from tickwright.capabilities.batches.executions.checker import Checker
from tickwright.capabilities.batches.executions.chunks_store import ChunksStore
from tickwright.capabilities.batches.executions.consumer import CHANNEL, BatchConsumer
from tickwright.capabilities.batches.executions.producer import BatchSource
from tickwright.capabilities.batches.executions.work import ProcessWorks
from tickwright.domain.leases import LeaseTerms
from tickwright.engine.leases import Leases
from tickwright.engine.occurrences import AT_ONCE, OccurrenceProducer
from tickwright.engine.session import WorkerSession
from tickwright.engine.wakeup.connection import DirectConnection
from tickwright.engine.wakeup.listener import LedWakeup
from tickwright.engine.wakeup.turns import group_of
from tickwright.ports.batches import Action, ChunkResult, OpenChunk, PlannedChunk, Run
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.store.pool import Pool, open_pool

TERMS = LeaseTerms(timedelta(seconds=2), timedelta(seconds=0.3))
TARGET = "pg:actions"
OVER = frozenset({"FINISHED", "EXCEPTION_OCCURRED", "STOPPED", "DISABLED"})
_PUT = """
INSERT INTO tickwright.batches (name, kind, type, status, date_time_execution, time_zone, restartable, restartable_unit,
  restartable_unit_type, cron, overlap, misfire, misfire_max, misfire_grace, definition, next_slot_at)
VALUES ($1, 'program', $2, CASE WHEN $15::timestamptz IS NULL THEN 'IDLE' ELSE 'SCHEDULED' END,
  $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13::jsonb, $14) RETURNING id
"""


@dataclass
class Numbers:
    """Work on the numbers from 0 on: chunks of them, one action each, and a log of the chunks.

    Attributes:
        before: Called with each chunk before it is completed; may raise or wait.
    """

    members: int = 25
    chunk_rows: int = 10
    before: Callable[[OpenChunk], Awaitable[None]] | None = None
    log: list[tuple[int, int]] = field(default_factory=list)

    async def plan(self, run: Run) -> AsyncIterator[PlannedChunk]:
        """Plan the chunks."""
        for begin in range(0, self.members, self.chunk_rows):
            end = min(begin + self.chunk_rows, self.members)
            yield PlannedChunk({"from": begin, "to": end}, end - begin)

    async def work(self, chunk: OpenChunk) -> None:
        """Select every second number."""
        self.log.append((chunk.run.execution_id, chunk.number))
        if self.before is not None:
            await self.before(chunk)
        numbers = range(chunk.value["from"], chunk.value["to"])
        actions = [Action(str(number), json.dumps({"number": number})) for number in numbers if number % 2 == 0]
        async with chunk.complete(ChunkResult(seen=len(numbers), selected=len(actions), actions=actions)):
            pass


class OneWork(ProcessWorks):
    """The same work for every batch of this process."""

    def __init__(self, work: Any, names: Sequence[str]) -> None:
        self._work, self._served = work, [f"program:{name}" for name in names]

    def served(self) -> Sequence[str]:
        """Return the names of the batches that this process works."""
        return self._served

    def of(self, run: Run) -> Any:
        """Return the work."""
        return self._work


@dataclass(kw_only=True)
class Process(RoleProcess):
    """The role's services of one process."""

    session: WorkerSession
    consumer: BatchConsumer

    async def vanish(self) -> None:
        """End at once and release nothing, as after ``kill -9``."""
        for held in [*self.consumer._held.values()]:
            held.lose()
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)


def new_producer(*, at_once: int = AT_ONCE, probe: Probe = NO_PROBE) -> OccurrenceProducer:
    """Return a producer of batches only."""
    return OccurrenceProducer((BatchSource(),), at_once=at_once, probe=probe)


class BatchWorld:
    """One test's batches."""

    def __init__(self, pool: Pool, url: str, stack: AsyncExitStack) -> None:
        self.pool, self.url, self._stack = pool, url, stack
        self.store = ChunksStore(pool)

    async def put(
        self,
        name: str = "numbers",
        definition: Mapping[str, Any] | None = None,
        *,
        first_at: datetime | None = None,
        every: tuple[int, str] | None = None,
        cron: str | None = None,
        zone: str = "UTC",
        overlap: str = "skip",
        misfire: str = "one",
        misfire_max: int = 100,
        grace: timedelta = timedelta(minutes=1),
        next_slot_at: datetime | None = None,
    ) -> int:
        """Store a batch of a program; scheduled if it has a next slot."""
        unit, kind = every or (None, None)
        type_ = "AUTOMATIC" if next_slot_at else "MANUAL"
        whole = {"action": {"target": TARGET, "release": "finished"}, **(definition or {})}
        batch_id: int = await self.pool.fetchval(
            _PUT, name, type_, first_at, zone, every is not None, unit, kind, cron, overlap, misfire, misfire_max,
            grace, json.dumps(whole), next_slot_at, next_slot_at,
        )  # fmt: skip
        return batch_id

    async def start(self, batch_id: int) -> int:
        """Create an execution now, as an operator's start does."""
        sql = "INSERT INTO tickwright.executions (batch_id, slot_at) VALUES ($1, clock_timestamp()) RETURNING id"
        execution_id: int = await self.pool.fetchval(sql, batch_id)
        return execution_id

    async def execution(self, execution_id: int) -> Any:
        """Return its row."""
        return await self.pool.fetchrow("SELECT * FROM tickwright.executions WHERE id = $1", execution_id)

    async def over(self, execution_id: int, within_s: float = 30) -> Any:
        """Wait until it has ended; return its row."""

        async def ended() -> bool:
            return (await self.execution(execution_id))["status"] in OVER

        await eventually_async(ended, within_s, what=f"execution {execution_id} has ended")
        return await self.execution(execution_id)

    async def end(self, execution_id: int, status: str = "STOPPED") -> None:
        """End it, as an operator does."""
        sql = "UPDATE tickwright.executions SET status = $2, finished_at = clock_timestamp() WHERE id = $1"
        await self.pool.execute(sql, execution_id, status)

    async def actions(self, execution_id: int) -> list[str]:
        """Return the clients that have an action, in order."""
        sql = "SELECT client_id FROM tickwright.execution_actions WHERE execution_id = $1 ORDER BY client_id"
        return [row["client_id"] for row in await self.pool.fetch(sql, execution_id)]

    async def sent(self) -> list[Any]:
        """Return the messages that wait in the outbox."""
        rows = await self.pool.fetch(
            "SELECT destination, key, payload::text, headers::text FROM tickwright.outbox ORDER BY id"
        )
        return [dict(row) for row in rows]

    async def process(
        self,
        work: Any,
        *,
        names: Sequence[str] = ("numbers",),
        at_once: int = 2,
        probe: Probe = NO_PROBE,
        pool: Pool | None = None,
    ) -> Process:
        """Run a consumer until the test ends, or it is stopped."""
        store = self.store if pool is None else ChunksStore(pool)
        session = WorkerSession(pool or self.pool, name="test", roles=["campaign-consumer"], version="0", terms=TERMS)
        session.on_reclaim(store.reclaim)
        direct = DirectConnection(self.url)
        wakeups = LedWakeup(direct, CHANNEL, session, group_of("executions", sorted(names)))
        consumer = BatchConsumer(store, session, wakeups, OneWork(work, names), at_once=at_once, probe=probe)
        process = Process(session=session, consumer=consumer, services=[session, direct, consumer])
        await session.open()
        process.begin()
        self._stack.push_async_callback(process.vanish)
        return process

    async def produce(self, producer: OccurrenceProducer | None = None, *, owner: str = "producer") -> float:
        """Make one round of a producer that holds the lease."""
        return await self._round((producer or new_producer()).round, "campaign-producer", owner)

    async def check(self, checker: Checker | None = None, *, owner: str = "checker") -> float:
        """Make one round of a checker that holds the lease, a separate one by default."""
        return await self._round((checker or Checker()).round, f"campaign-{owner}", owner)

    async def _round(self, round_: Any, name: str, owner: str) -> float:
        lease = await Leases(self.pool, owner=owner, terms=TERMS).take(name)
        assert lease is not None
        try:
            rest_s: float = await round_(lease)
        finally:
            await lease.release()
        return rest_s


@asynccontextmanager
async def batch_world(url: str) -> AsyncIterator[BatchWorld]:
    """A world on this database."""
    async with AsyncExitStack() as stack:
        pool = await open_pool(url, max_size=12)
        stack.callback(pool.terminate)
        await open_owners(pool)
        yield BatchWorld(pool, url, await stack.enter_async_context(AsyncExitStack()))


# Shared by tests of faults: batches worked by processes that are killed or stopped, and the conditions afterwards.

PROCESS = Path(__file__).with_name("batch_process.py")
MEMBERS = 60
SELECTED = {str(number) for number in range(0, MEMBERS, 2)}
AGAIN_S = 50
"""Enough for a lease of two seconds, the next round, and a busy machine."""


def start(world: BatchWorld, role: str, log: Path, **more: str) -> Child:
    """Start a role as a separate process; kill it with ``kill_group``."""
    environment = {"BATCH_DATABASE": world.url, "BATCH_ROLE": role, **more}
    return spawn([sys.executable, str(PROCESS)], log, {**os.environ, **environment})


async def is_right(world: BatchWorld, execution_id: int) -> None:
    """C2: finished, and exactly the selected members have an action, one each."""
    row = await world.execution(execution_id)
    assert row["status"] == "FINISHED", (row["status"], row["error_code"], row["error_message"])
    assert set(await world.actions(execution_id)) == SELECTED
    assert (row["chunks_done"], row["members"], row["seen"]) == (row["chunks"], MEMBERS, MEMBERS)
    assert row["actions"] == len(SELECTED)


async def redone(world: BatchWorld) -> int:
    """Return how many claims of chunks were not the first one."""
    return int(await world.pool.fetchval("SELECT coalesce(sum(fence - 1), 0) FROM tickwright.execution_chunks"))


async def sent_once(world: BatchWorld, execution_id: int) -> None:
    """C2: one message per selected member was sent, and none twice."""
    sent = [one for one in await world.sent() if one["destination"] == TARGET]
    keys = [one["key"] for one in sent]
    assert sorted(keys) == sorted(f"{execution_id}:{number}" for number in SELECTED)
