"""Grants of limited types: none is written for a lost session, counts for it, or is used by its next session."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType

import pytest

from kit.engine import SHORT, Engine, WorkerProcess, running_engine
from kit.probes import Stops
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.model import Job, TaskType
from tickwright.capabilities.jobs.task_types import register_handler
from tickwright.capabilities.jobs.worker import shared_limits
from tickwright.capabilities.jobs.worker.claims import ClaimStore
from tickwright.capabilities.jobs.worker.shared_limits import SharedLimits
from tickwright.capabilities.jobs.worker.type_state import TypeState
from tickwright.capabilities.jobs.worker.worker import WorkerLimits
from tickwright.engine.session import _SQL as SESSIONS
from tickwright.engine.session import WorkerSession
from tickwright.store.pool import Pool, open_pool

RENEWAL = "session.before_renewal"
ONE = TaskType("few", "python:few", concurrency=1)
LOST = "SELECT count(*) FROM tickwright.workers WHERE lost_at IS NOT NULL"
HELD = "SELECT count(*) FROM ONLY tickwright.scheduled_tasks WHERE task_type = 'few' AND status = 'processing'"
GRANTS = "SELECT array_agg(granted ORDER BY worker) FROM tickwright.type_grants"
SETTLED = "SELECT count(*) FROM tickwright.type_grants"
GRANTS_OF_LOST = """
SELECT count(*) FROM tickwright.type_grants g JOIN tickwright.workers w ON w.id = g.worker
 WHERE w.lost_at IS NOT NULL"""
WAITS = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"


async def _few(_job: Job) -> None:
    return None


async def _granted(pool: Pool, session: WorkerSession) -> int:
    """Return how many jobs of ``few`` a session is granted when it settles."""
    entry, pacer = TypeState(ONE, _few, is_async=True), SharedLimits(pool, ClaimStore(pool), session)
    async with pool.acquire() as connection, connection.transaction():
        committed = await pacer.share_out(connection, {"few": entry}, dict)
    committed()
    return entry.granted or 0


async def check_grants_end_with_their_session(url: str) -> None:
    """A session that is being declared lost, or is lost, is granted nothing; its earlier grant does not count."""
    async with await open_pool(url) as pool, pool.acquire() as other:
        await register_handler(pool, ONE)
        unopened, lost, live = [
            WorkerSession(pool, name=name, roles=[], version="0") for name in ("no", "lost", "live")
        ]
        await lost.open()
        await live.open()
        assert await _granted(pool, unopened) == 0
        assert await _granted(pool, lost) == 1
        await pool.execute("UPDATE tickwright.workers SET lease_until = 'epoch' WHERE id = $1", lost.token)
        async with other.transaction():
            assert [row["id"] for row in await other.fetch(SESSIONS["declare_lost"])] == [lost.token]
            await other.execute(SESSIONS["forget_grants"], [lost.token])
            settling = asyncio.create_task(_granted(pool, lost))
            await eventually_async(
                lambda: pool.fetchval(WAITS), what="the grant waits for the transaction on its session"
            )
        assert (await settling, await _granted(pool, lost)) == (0, 0), "a lost session was granted a share"
        assert await pool.fetchval(GRANTS_OF_LOST) == 0, "a lost session was granted a share"
        await pool.execute("INSERT INTO tickwright.type_grants VALUES ('few', $1, 1)", lost.token)
        assert await _granted(pool, live) == 1, "the grant of a lost session counts"


async def test_grants_end_with_their_session(database_url: str) -> None:
    """J6; and no type waits for a worker that is lost."""
    await check_grants_end_with_their_session(database_url)


@pytest.mark.parametrize(
    "guard",
    ["WHERE id = $1 AND lost_at IS NULL", " FOR KEY SHARE", "AND live.lost_at IS NULL"],
    ids=["ignores the loss", "locks no session", "counts lost sessions"],
)
async def test_the_suite_notices_grants_that_outlive_their_session(
    database_url: str, monkeypatch: pytest.MonkeyPatch, guard: str
) -> None:
    """Mutants of the statement that settles grants."""
    text = shared_limits._SQL["share_out"]
    assert text.count(guard) == 1, "the mutation no longer fits the statement"
    mutated = text.replace(guard, "WHERE id = $1" if guard.startswith("WHERE") else "")
    monkeypatch.setattr(shared_limits, "_SQL", MappingProxyType({**shared_limits._SQL, "share_out": mutated}))
    with pytest.raises(AssertionError, match="a lost session"):
        await check_grants_end_with_their_session(database_url)


async def test_a_worker_that_settles_grants_before_it_notices_its_loss_gets_none(database_url: str) -> None:
    """Its renewals are held up, others declare it lost, and it settles its grants; the type runs in the others."""
    stops, may_end = Stops(), asyncio.Event()

    async def slow(_job: Job) -> None:
        await may_end.wait()

    full = WorkerLimits(concurrency=1)
    async with running_engine(database_url, {"few": _few}, kinds={"few": ONE}, terms=SHORT, probe=stops) as zombie:
        await eventually_async(lambda: zombie.worker.types()["few"].granted == 1)
        async with running_engine(database_url, {"few": _few, "slow": slow}, terms=SHORT, limits=full) as two:
            await two.insert("slow")
            await eventually_async(lambda: two.worker._limits.withheld, 30, what="the other has no share")
            async with _renewals_held_up(stops):
                await eventually_async(lambda: two.pool.fetchval(LOST), 30, what="it is lost")
                before = zombie.worker._refreshing
                await two.pool.execute("SELECT pg_notify('tickwright_types', '')")
                await eventually_async(lambda: _refreshed(zombie, before), what="it has settled")
                assert await two.pool.fetchval(GRANTS_OF_LOST) == 0
                may_end.set()
                await two.until(await two.insert("few"), "completed", within_s=30)


async def test_a_worker_paused_beyond_its_lease_uses_no_grant_of_its_lost_session(
    database_url: str, tmp_path: Path
) -> None:
    """J6: under its next session it settles before it claims; the other workers have its share by then."""
    kinds, may_end = {"few": TaskType("few", "python:few", concurrency=2)}, asyncio.Event()

    async def few(_job: Job) -> None:
        await may_end.wait()

    paused = WorkerProcess(database_url, tmp_path / "1.log", lease_s=5, work_s=300, environment={"ENGINE_FEW": "2"})
    try:
        async with running_engine(database_url, {"few": few}, kinds=kinds, terms=SHORT) as two:
            await eventually_async(lambda: _is(two, GRANTS, [1, 1]), 30, what="each has its share")
            paused.pause()
            await eventually_async(lambda: two.pool.fetchval(LOST), 30, what="it is lost")
            for _ in range(8):
                await two.insert("few")
            await eventually_async(
                lambda: two.worker.runner.busy == 2, 30, what="the other runs as many as the concurrency"
            )
            paused.resume()
            await eventually_async(lambda: _is(two, SETTLED, 2), 30, what="it has settled under its next session")
            assert await two.pool.fetchval(HELD) == 2
            may_end.set()
    finally:
        paused.kill9()


async def _is(engine: Engine, sql: str, value: object) -> bool:
    return bool(await engine.pool.fetchval(sql) == value)


@asynccontextmanager
async def _renewals_held_up(stops: Stops) -> AsyncIterator[None]:
    stops.close(RENEWAL)
    try:
        yield
    finally:
        stops.open(RENEWAL)


def _refreshed(engine: Engine, before: object) -> bool:
    now = engine.worker._refreshing
    return now is not None and now is not before and now.done()
