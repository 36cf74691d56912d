"""Rows that another transaction has locked, and the marks that locks leave: no claim waits, and no row is missed."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from kit.engine import connect, running_engine
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.model import ClaimPlan, ClaimRange, Job, TaskType
from tickwright.capabilities.jobs.task_types import register_handler
from tickwright.capabilities.jobs.worker.claims import ClaimRequest, ClaimStore
from tickwright.capabilities.jobs.worker.shared_limits import SharedLimits
from tickwright.capabilities.jobs.worker.type_state import TypeState
from tickwright.domain.leases import LeaseTerms
from tickwright.engine.session import WorkerSession
from tickwright.store.pool import Pool, open_pool
from tickwright.store.queries import load

LOCK = "SELECT FROM ONLY tickwright.scheduled_tasks WHERE id = ANY ($1::bigint[]) FOR UPDATE"
MARKS = {
    "locked, rolled back": (LOCK, False),
    "locked, committed": (LOCK, True),
    "share-locked, committed": (LOCK.replace("UPDATE", "KEY SHARE"), True),
    "updated, rolled back": (
        "UPDATE ONLY tickwright.scheduled_tasks SET payload = '{}' WHERE id = ANY ($1::bigint[])",
        False,
    ),
}
LONG = LeaseTerms(timedelta(hours=1), timedelta(minutes=1))
WAIT_MAX_S = 5.0


class ClaimOwner:
    """A registered session on a database, which claims jobs of type ``t``."""

    def __init__(self, pool: Pool, session: WorkerSession) -> None:
        self.pool, self.session = pool, session

    async def claim(self, *, bounded: bool) -> list[int]:
        """Return the ids that one claim takes; fail when it waits."""
        plan, ranges = ClaimPlan(("t",), (1000,), 1000), [ClaimRange("t", 0, frontier_s=1.0)]
        request = ClaimRequest(self.session.token, plan, ranges, timedelta(seconds=1), bounded=bounded)
        claimed = await asyncio.wait_for(ClaimStore(self.pool).claim(request), WAIT_MAX_S)
        return sorted(row.id for row in claimed.rows)


@asynccontextmanager
async def open_owner(url: str) -> AsyncIterator[ClaimOwner]:
    """Register a session with a lease longer than the test."""
    pool = await open_pool(url, min_size=1, max_size=2)
    session = WorkerSession(pool, name="owner", roles=[], version="0", terms=LONG)
    await session.open()
    try:
        yield ClaimOwner(pool, session)
    finally:
        await pool.close()


async def fill(connection: Any, count: int, task_type: str = "t") -> list[int]:
    """Insert due jobs, each a little later than the one before, and return their ids in this order."""
    rows = await connection.fetch(
        "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) "
        "SELECT now() - interval '1 hour' + n * interval '1 millisecond', $2 FROM generate_series(1, $1) AS n "
        "RETURNING id",
        count,
        task_type,
    )
    return sorted(row[0] for row in rows)


@asynccontextmanager
async def marking(url: str, mark: str, ids: list[int]) -> AsyncIterator[None]:
    """Hold rows in a user's open transaction; at the end only the mark is left on them."""
    sql, commits = MARKS[mark]
    connection: asyncpg.Connection = await connect(url)
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.fetch(sql, ids)
        yield
        await (transaction.commit() if commits else transaction.rollback())
    finally:
        await connection.close()


@pytest.mark.parametrize("bounded", [False, True], ids=["from the head", "bounded"])
@pytest.mark.parametrize("mark", MARKS)
async def test_a_claim_passes_over_rows_that_an_open_transaction_holds(
    database_url: str, mark: str, bounded: bool
) -> None:
    """A user's lock delays the rows that it covers and no other, for as long as it is held."""
    async with open_owner(database_url) as owner:
        ids = await fill(owner.pool, 20)
        async with marking(database_url, mark, ids[:10]):
            assert await owner.claim(bounded=bounded) == ids[10:]


@pytest.mark.parametrize("mark", MARKS)
async def test_a_claim_from_the_head_takes_rows_that_carry_an_old_mark(database_url: str, mark: str) -> None:
    """PostgreSQL leaves the number of a transaction on a row that it locked; the lock itself has ended."""
    async with open_owner(database_url) as owner:
        ids = await fill(owner.pool, 20)
        async with marking(database_url, mark, ids[::2]):
            pass
        assert await owner.claim(bounded=False) == ids


async def test_a_bounded_claim_takes_rows_that_waiters_marked(database_url: str) -> None:
    """A wait for a result delays no job, though its mark looks like a lock."""
    async with open_owner(database_url) as owner:
        ids = await fill(owner.pool, 20)
        await owner.pool.fetch(load("tickwright.capabilities.jobs.sql", "awaited.sql")["mark"], ids[::2])
        assert await owner.claim(bounded=True) == ids


async def test_a_claim_from_the_head_takes_marked_rows_that_a_bounded_one_skipped(database_url: str) -> None:
    """A bounded claim skips rows with any mark: it may leave them to a later claim, and never loses them."""
    async with open_owner(database_url) as owner:
        ids = await fill(owner.pool, 20)
        async with marking(database_url, "locked, committed", ids[:10]):
            pass
        assert await owner.claim(bounded=True) == ids[10:]
        assert await owner.claim(bounded=False) == ids[:10]


@pytest.mark.parametrize("mark", MARKS)
async def test_a_drain_leaves_no_marked_row_behind(database_url: str, mark: str) -> None:
    """Every tenth of several thousand jobs was locked once: each of them runs, once."""
    runs: Counter[int] = Counter()

    async def handler(job: Job) -> None:
        runs[job.id] += 1

    async with open_owner(database_url) as owner:
        ids = await fill(owner.pool, 3000)
        async with marking(database_url, mark, ids[::10]):
            pass
        async with running_engine(database_url, {"t": handler}):
            await eventually_async(lambda: _nothing_live(owner.pool), 30)
    assert runs == Counter(ids)


@pytest.mark.matrix
@pytest.mark.parametrize("concurrency", [None, 50], ids=["free", "limited"])
@pytest.mark.parametrize("dragging", [False, True], ids=["quick", "dragging"])
async def test_rows_that_were_held_during_a_drain_run_when_their_transaction_ends(
    database_url: str, dragging: bool, concurrency: int | None
) -> None:
    """The drain continues without the first hundred jobs, and the same worker claims them later.

    While dead rows slow claims down, all of them are bounded: then its sweeps find these jobs.
    """
    runs: Counter[int] = Counter()

    async def handler(job: Job) -> None:
        runs[job.id] += 1

    kinds = {"t": TaskType("t", "python:t", concurrency=concurrency)}
    async with open_owner(database_url) as owner:
        ids = await fill(owner.pool, 1500)
        async with AsyncExitStack() as held:
            await held.enter_async_context(marking(database_url, "locked, committed", ids[:100]))
            async with running_engine(database_url, {"t": handler}, kinds=kinds) as engine:
                if dragging:
                    engine.worker.claimer._frontier._drag_until_s = float("inf")
                await eventually_async(lambda: runs.keys() >= set(ids[100:]), 30)
                assert runs.keys().isdisjoint(ids[:100])
                await held.aclose()
                await eventually_async(lambda: _nothing_live(owner.pool), 30)
    assert runs == Counter(ids)


async def test_a_claim_that_is_answered_during_a_wait_for_a_grant_counts_once(database_url: str) -> None:
    """Its jobs are held; if they also counted as requested, the type's limit would be granted twice."""
    kind = TaskType("few", "python:few", concurrency=3)
    entry, coming = TypeState(kind, lambda *_: None, is_async=False), {"few": 3}
    async with open_owner(database_url) as owner, owner.pool.acquire() as connection:
        await register_handler(owner.pool, kind)
        pacer, holder = SharedLimits(owner.pool, ClaimStore(owner.pool), owner.session), await connect(database_url)
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute("SELECT FROM tickwright.task_types WHERE name = 'few' FOR UPDATE")
        settling = asyncio.create_task(pacer.share_out(connection, {"few": entry}, lambda: coming))
        blocked = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"
        await eventually_async(lambda: holder.fetchval(blocked))
        entry.held, coming = 3, {}
        await transaction.rollback()
        (await settling)()
        assert await holder.fetchval("SELECT granted FROM tickwright.type_grants") == entry.granted == 3
        await holder.close()


async def test_a_grant_counts_when_it_is_committed(database_url: str) -> None:
    """A renewal that is rolled back grants nothing: the worker may have no more than it has in use."""
    kind = TaskType("few", "python:few", concurrency=3)
    entry = TypeState(kind, lambda *_: None, is_async=False)
    async with open_owner(database_url) as owner, owner.pool.acquire() as connection:
        await register_handler(owner.pool, kind)
        pacer, nothing = SharedLimits(owner.pool, ClaimStore(owner.pool), owner.session), dict[str, int]
        transaction = connection.transaction()
        await transaction.start()
        overtaken = await pacer.share_out(connection, {"few": entry}, nothing)
        assert entry.granted == 0
        await transaction.rollback()
        async with connection.transaction():
            committed = await pacer.share_out(connection, {"few": entry}, nothing)
            assert entry.granted == 0
        overtaken()
        assert entry.granted == 0
        committed()
        assert entry.granted == 3


async def _nothing_live(connection: Any) -> bool:
    return not await connection.fetchval("SELECT EXISTS (SELECT FROM ONLY tickwright.scheduled_tasks)")
