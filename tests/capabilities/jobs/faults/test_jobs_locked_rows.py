"""Rows of running jobs that another session keeps locked: each lock delays its own job only."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from types import MappingProxyType

import asyncpg
import pytest

from kit.consumers import LONG
from kit.engine import Engine, insert, running_engine
from kit.fix_app_roles import AppRole
from kit.mutants import mutate
from kit.waiting import eventually_async
from tickwright import Job
from tickwright.capabilities.jobs import retention as upkeep
from tickwright.capabilities.jobs.model import ClaimPlan, ClaimRange
from tickwright.capabilities.jobs.worker import claims as claims_store
from tickwright.capabilities.jobs.worker.claims import ClaimedJobs, ClaimRequest, ClaimStore
from tickwright.capabilities.jobs.worker.result_writer import ResultWriter
from tickwright.store.pool import Pool, open_pool

LEFT = "SELECT count(*) FROM ONLY tickwright.scheduled_tasks WHERE task_type = $1"
MANY = "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) SELECT now(), $1 FROM generate_series(1, $2)"


@asynccontextmanager
async def _locking(role: AppRole, ids: list[int]) -> AsyncIterator[asyncpg.Connection]:
    """Lock rows as a role for plain SQL may do, until the end of the block."""
    connection = await asyncpg.connect(role.url)
    try:
        async with connection.transaction():
            locked = "SELECT id FROM tickwright.scheduled_tasks WHERE id = ANY ($1::bigint[]) FOR UPDATE"
            assert len(await connection.fetch(locked, ids)) == len(ids)
            yield connection
    finally:
        await connection.close()


async def _is_done(engine: Engine, task_type: str, left: int = 0) -> bool:
    return bool(await engine.pool.fetchval(LEFT, task_type) == left)


# ---------------------------------------------------------------------- results


async def check_locked_rows_delay_their_own_results(role: AppRole, within_s: float) -> None:
    """Results of two kinds wait, one for each write that a worker makes at once; all others are written."""
    runs: Counter[int] = Counter()
    go = asyncio.Event()

    async def slow(job: Job) -> str | None:
        runs[job.id] += 1
        await go.wait()
        return job.payload.get("result")  # type: ignore[no-any-return]

    async def quick(job: Job) -> None:
        runs[job.id] += 1

    async with running_engine(role.owner_url, {"slow": slow, "quick": quick}, terms=LONG) as engine:
        ids = [await engine.insert("slow"), await engine.insert("slow", payload={"result": "kept"})]
        await eventually_async(lambda: len(runs) == 2, what="both run")
        async with _locking(role, ids):
            go.set()
            await engine.pool.execute(MANY, "quick", 2000)
            done = lambda: _is_done(engine, "quick")  # noqa: E731
            await eventually_async(done, within_s, what="the results of other jobs are written")
            assert await _is_done(engine, "slow", 2)
            assert engine.worker.backlog() == 0, "results of locked rows keep a worker from claiming"
        await eventually_async(
            lambda: _is_done(engine, "slow"), what="the results of the rows that were locked are written"
        )
        assert [(await engine.job(one))["status"] for one in ids] == ["completed"] * 2
    assert set(runs.values()) == {1}


async def test_locked_rows_delay_their_own_results_only(app_role: AppRole) -> None:
    """Only while the rows are locked; no result is written twice, and no job runs again."""
    await check_locked_rows_delay_their_own_results(app_role, 60)


async def test_the_suite_notices_writes_that_wait_for_locked_rows(
    app_role: AppRole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant of the guard: a write is repeated with the locked row in it."""
    mutate(monkeypatch, ResultWriter._write, "monotonic() + PASSES_LOCKED_S", "0.0")
    with pytest.raises(AssertionError, match="the results of other jobs are written"):
        await check_locked_rows_delay_their_own_results(app_role, 10)


async def test_a_worker_stops_beside_a_locked_row_and_its_job_is_released(app_role: AppRole) -> None:
    """Upkeep releases the job, whose result could not be written, once the row is free."""
    begun = asyncio.Event()

    async def slow(_job: Job) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with running_engine(app_role.owner_url, {"slow": slow}, terms=LONG) as engine:
        job_id = await engine.insert("slow")
        await begun.wait()
        async with _locking(app_role, [job_id]):
            stop = asyncio.create_task(engine.worker.stop())
            await eventually_async(
                lambda: engine.worker.result_writer.known() == [(job_id, 1)], what="its release waits"
            )
            assert not stop.done()
        await stop
        assert (await engine.job(job_id))["status"] == "pending"


# ---------------------------------------------------------------------- jobs of lost sessions


async def _claims(pool: Pool, token: int, count: int) -> ClaimedJobs:
    lanes, plan = [ClaimRange("t", 0)], ClaimPlan(("t",), (count,), count)
    return await ClaimStore(pool).claim(ClaimRequest(token, plan, lanes, timedelta(seconds=1)))


async def _session(pool: Pool) -> int:
    token: int = await pool.fetchval(
        "INSERT INTO tickwright.workers (id, name, roles, version, lease_until) VALUES "
        "(nextval('tickwright.fence_seq'), 'dead', '{worker}', '0', now() + interval '1 minute') RETURNING id"
    )
    return token


async def check_a_locked_row_delays_no_reclaim_of_others(role: AppRole, within_s: float) -> None:
    """Nineteen of twenty jobs of a dead worker run; the last one once its row is free, with its attempt counted."""
    runs: Counter[int] = Counter()

    async def handler(job: Job) -> None:
        runs[job.id] = job.attempt

    async with await open_pool(role.owner_url) as pool:
        ids = [await insert(pool, "t") for _ in range(20)]
        token = await _session(pool)
        assert len((await _claims(pool, token, 20)).rows) == 20
        await pool.execute("UPDATE tickwright.scheduled_tasks SET updated_at = now() - interval '1 hour'")
        async with running_engine(role.owner_url, {"t": handler}) as engine:
            async with _locking(role, ids[7:8]):
                await pool.execute("UPDATE tickwright.workers SET lease_until = 'epoch' WHERE id = $1", token)
                await eventually_async(
                    lambda: len(runs) == 19, within_s, what="the jobs of a lost session are reclaimed"
                )
                assert await pool.fetch(upkeep.SQL["return_stuck"], timedelta(minutes=5), 100) == []
            [returned] = await pool.fetch(upkeep.SQL["return_stuck"], timedelta(minutes=5), 100)
            assert tuple(returned) == (ids[7], "pending")
            await eventually_async(lambda: _is_done(engine, "t"), what="the last one has run")
    assert set(runs.values()) == {2}


async def test_a_locked_row_delays_no_reclaim_of_others(app_role: AppRole) -> None:
    """A claimed job ends, once, whichever rows beside it are locked."""
    await check_a_locked_row_delays_no_reclaim_of_others(app_role, 60)


async def test_the_suite_notices_a_reclaim_that_waits_for_locked_rows(
    app_role: AppRole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant of the guard: a reclaim waits for one row, and all jobs of lost sessions wait with it."""
    mutated = claims_store._CLAIMS["reclaim"].replace("FOR UPDATE OF t SKIP LOCKED", "")
    monkeypatch.setattr(claims_store, "_CLAIMS", MappingProxyType({**claims_store._CLAIMS, "reclaim": mutated}))
    with pytest.raises(AssertionError, match="the jobs of a lost session are reclaimed"):
        await check_a_locked_row_delays_no_reclaim_of_others(app_role, 10)


# ---------------------------------------------------------------------- last attempts and unknown jobs


async def test_a_last_attempt_whose_row_is_locked_begins_later_and_others_at_once(
    app_role: AppRole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no slot meanwhile, and counts as one attempt."""
    runs: Counter[int] = Counter()
    caught: list[int] = []
    free, locks = asyncio.Event(), []
    begin_last = ClaimStore.begin_last

    async def locked_first(store: ClaimStore, token: int, ids: list[int], fences: list[int]) -> dict[int, bool]:
        if not caught:
            caught.append(ids[0])
            held = asyncio.Event()
            locks.append(asyncio.create_task(_hold(app_role, ids[0], held, free)))
            await held.wait()
        return await begin_last(store, token, ids, fences)

    async def handler(job: Job) -> None:
        runs[job.id] = job.attempt

    monkeypatch.setattr(ClaimStore, "begin_last", locked_first)
    async with running_engine(app_role.owner_url, {"t": handler}) as engine:
        for _ in range(20):
            await engine.insert("t", max_attempts=1)
        await eventually_async(lambda: _is_done(engine, "t", 1), 60, what="all others have begun and ended")
        assert set(runs) & {*caught} == set()
        assert engine.worker.runner.busy == 0
        free.set()
        await asyncio.gather(*locks)
        await eventually_async(lambda: _is_done(engine, "t"), 60, what="the last one has ended")
    assert set(runs.values()) == {1}


async def _hold(role: AppRole, job_id: int, held: asyncio.Event, free: asyncio.Event) -> None:
    async with _locking(role, [job_id]):
        held.set()
        await free.wait()


async def test_a_stray_job_whose_row_is_locked_keeps_no_worker_from_claiming(app_role: AppRole) -> None:
    """CLG-1: the process knows the job from then on, and releases it once its row is free."""
    runs: Counter[int] = Counter()

    async def handler(job: Job) -> None:
        runs[job.id] = job.attempt

    async with running_engine(app_role.owner_url, {"other": handler}) as engine:
        unknown = [await engine.insert("t") for _ in range(2)]
        assert len((await _claims(engine.pool, engine.session.token, 2)).rows) == 2
        async with _locking(app_role, unknown[:1]):
            async with engine.worker.gate._entering:  # a claim that is under way would find the job without settling
                await engine.worker.gate._none_in_progress.wait()
                engine.worker.gate.unsure = True
            await engine.insert("other")
            await eventually_async(lambda: _is_done(engine, "other"), 60, what="the worker claims")
            assert [(await engine.job(one))["status"] for one in unknown] == ["processing", "pending"]
        await engine.until(unknown[0], "pending", within_s=60)
        assert (await engine.job(unknown[0]))["attempts"] == 0


async def test_a_reclaim_may_take_longer_than_other_statements(database_url: str) -> None:
    """It is slow beside millions of large due rows; within the usual timeout it would never succeed."""
    slow = (
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.5); RETURN new; END $$;"
        "CREATE TRIGGER a_slow BEFORE UPDATE ON tickwright.scheduled_tasks FOR EACH ROW EXECUTE FUNCTION slow()"
    )
    async with await open_pool(database_url, max_size=1) as pool:
        job_id = await insert(pool, "t")
        assert len((await _claims(pool, await _session(pool), 1)).rows) == 1
        await pool.execute(f"{slow}; SET statement_timeout = 100")
        async with pool.acquire() as connection, connection.transaction():
            token = await connection.fetchval("SELECT owner FROM tickwright.scheduled_tasks WHERE id = $1", job_id)
            assert await ClaimStore(pool).reclaim(connection, [token]) == (1, 0)
