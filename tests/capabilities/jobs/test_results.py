"""Results and progress for callers: values, streams, and what a wait costs workers."""

import asyncio
from contextlib import aclosing
from typing import Any

import asyncpg
import pytest

from kit.awaiting import AWAITED, arrives, begin_wait, open_results, stop_polling
from kit.engine import connect, insert, policy, running_engine
from kit.pgbouncer import PgBouncer
from kit.waiting import eventually_async
from tickwright import Job, Tickwright
from tickwright.capabilities.jobs import results as results_module
from tickwright.capabilities.jobs.results import JobResults
from tickwright.capabilities.jobs.worker import result_writer
from tickwright.capabilities.jobs.worker.idle_sleep import IdleSleep
from tickwright.domain.errors import Rejected
from tickwright.engine.wakeup.connection import DirectConnection
from tickwright.engine.wakeup.listener import ArmedWakeup
from tickwright.engine.wakeup.on_demand import DirectAccess
from tickwright.store.pool import Pool, open_pool

CANCEL = "UPDATE tickwright.scheduled_tasks SET status = 'cancelled' WHERE id = $1"
PROGRESS = "UPDATE ONLY tickwright.scheduled_tasks SET progress = $2 WHERE id = $1"
LATER = "now() + interval '1 day'"
KIND = {"t": policy("t")}


async def test_progress_is_streamed_until_the_job_ends(
    database_url: str, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoded values, each once, in their order; the stream ends with the job."""
    stop_polling(monkeypatch)
    async with open_results(database_url) as results:
        job_id = await insert(pool, "t", at=LATER)
        await pool.execute(PROGRESS, job_id, '{"done": 0}')
        async with aclosing(results.progress(job_id)) as stream:
            assert await anext(stream) == {"done": 0}
            following = asyncio.ensure_future(anext(stream))
            await eventually_async(lambda: results.listens, what="it listens")
            await eventually_async(lambda: pool.fetchval(AWAITED, job_id), what="it is marked")
            await pool.execute(PROGRESS, job_id, '{"done": 1}')
            assert await following == {"done": 1}
            following = asyncio.ensure_future(anext(stream))
            await pool.execute(PROGRESS, job_id, '{"done": 1}')
            await pool.execute(CANCEL, job_id)
            with pytest.raises(StopAsyncIteration):
                await following
        assert results.waiting == 0


async def test_a_stream_of_an_ended_or_unknown_job_ends_at_once(database_url: str, pool: Pool) -> None:
    """The last value of the ended one is shown; for the other there is an error."""
    async with open_results(database_url) as results:
        job_id = await insert(pool, "t", at=LATER)
        await pool.execute(PROGRESS, job_id, "7")
        await pool.execute(CANCEL, job_id)
        assert [value async for value in results.progress(job_id)] == [7]
        assert [state.status async for state in results.follow(job_id)] == ["cancelled"]
        with pytest.raises(Rejected, match="there is no job 99"):
            await anext(results.progress(99))


async def test_a_program_gets_the_result_decoded(database_url: str) -> None:
    """``job.result`` is a Python value, as are payload and progress, whatever numbers they hold."""
    app = Tickwright(database_url=database_url)

    @app.job("value")
    async def value(_job: Job, n: int) -> dict[str, int]:
        return {"n": n}

    async with app:
        worker = asyncio.create_task(app.run_worker(roles=["worker"]))
        made = await app.schedule("value", {"n": 5})
        results = app._open.of(JobResults)
        assert (await arrives(results.wait(made.id))).result == '{"n": 5}'
        job = await app.get(made.id)
        assert (job.payload, job.result, job.progress) == ({"n": 5}, {"n": 5}, None)
        large = await insert(app.pool, "value", at=LATER)
        await app.pool.execute(PROGRESS, large, "1e9000")
        assert (await app.get(large)).progress == float("inf")
        assert await anext(results.progress(large)) == float("inf")
        worker.cancel()
        await asyncio.wait([worker])


async def test_results_arrive_behind_a_pooler(
    database_url: str, pgbouncer: PgBouncer, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a direct URL waiters read once a second, and say so once."""
    monkeypatch.setattr(results_module, "POLL_S", 0.05)
    said: list[str] = []
    monkeypatch.setattr(results_module._log, "warning", lambda event, **_: said.append(event))
    pooled = await open_pool(pgbouncer.database_url(database_url.rpartition("/")[2]), behind_pooler=True)
    results = JobResults(pooled, DirectAccess(None))
    ids = [await insert(pool, "t", at=LATER) for _ in range(3)]
    waiting = [asyncio.create_task(results.wait(job_id)) for job_id in ids]
    marked = "SELECT count(*) = 3 FROM ONLY tickwright.scheduled_tasks WHERE awaited"
    await eventually_async(lambda: pool.fetchval(marked), what="they are marked")
    assert not results.listens
    await pool.execute("UPDATE tickwright.scheduled_tasks SET status = 'cancelled' WHERE id = ANY ($1)", ids)
    assert {(await arrives(one)).status for one in waiting} == {"cancelled"}
    assert said == ["results.polling_only"]
    await results.aclose()
    await pooled.close()


async def test_waiters_that_begin_together_share_their_statements(database_url: str, pool: Pool) -> None:
    """A thousand waiters cost a few statements, and each job is marked once."""
    async with open_results(database_url) as results:
        ids = await pool.fetchval(
            "WITH made AS (INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) "
            "SELECT now() + interval '1 day', 't' FROM generate_series(1, 1000) RETURNING id) "
            "SELECT array_agg(id) FROM made"
        )
        statements = 0
        fetch = results._pool.fetch

        async def counted(*args: Any) -> Any:
            nonlocal statements
            statements += 1
            return await fetch(*args)

        results._pool.fetch = counted
        waiting = [asyncio.create_task(results.wait(job_id)) for job_id in (*ids, ids[0])]
        marked = "SELECT count(*) = 1000 FROM ONLY tickwright.scheduled_tasks WHERE awaited"
        await eventually_async(lambda: pool.fetchval(marked), what="they are marked")
        await eventually_async(lambda: results.listens, what="it listens")
        await pool.execute("UPDATE tickwright.scheduled_tasks SET status = 'cancelled' WHERE id = ANY ($1)", ids)
        assert {(await arrives(one)).status for one in waiting} == {"cancelled"}
        assert statements < 200


async def test_the_mark_of_a_due_job_wakes_a_worker_that_passed_it_by(database_url: str, pool: Pool) -> None:
    """A claim skips a row that is being marked, so that the mark notifies a sleeping worker as the insert did."""
    worker = await connect(database_url)
    heard: list[str] = []
    await worker.add_listener("tickwright_jobs", lambda *given: heard.append(given[-1]))
    due, later = await insert(pool, "t"), await insert(pool, "t", at=LATER)
    await worker.execute("SELECT pg_advisory_lock(7313, 1)")  # as a worker that sleeps
    for job_id, expected in ((later, 0), (due, 1), (due, 1)):
        await pool.fetch(results_module._SQL["mark"], [job_id])
        await worker.execute("SELECT 1")  # notifications of commits before it have arrived
        assert len(heard) == expected
    await worker.close()


async def test_a_notification_that_comes_during_a_claim_is_not_forgotten(database_url: str) -> None:
    """The claim may have missed what was announced: the worker claims once more before it sleeps."""
    direct = DirectConnection(database_url)
    running = asyncio.create_task(direct.run())
    wakeup = ArmedWakeup(direct, channel="tickwright_jobs", lock=1)
    await eventually_async(lambda: direct.works, what="it is open")
    await wakeup.listen()
    sleep = IdleSleep(wakeup)
    wakeup.woken.clear()
    await sleep.sleep(3600)  # arms: claim once more
    assert wakeup.armed
    wakeup.woken.set()
    await asyncio.wait_for(sleep.sleep(3600), 20)
    asleep = asyncio.create_task(sleep.sleep(3600))
    await asyncio.sleep(0)
    assert not asleep.done()
    wakeup.woken.set()
    await asyncio.wait_for(asleep, 20)
    await direct.stop()
    await running


async def test_results_with_values_do_not_wait_for_others(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those without are collected for longer: nothing of them is waited for but their end."""
    monkeypatch.setattr(result_writer, "FLUSH_GAP_S", 3600.0)

    async def value(job: Job) -> int:
        return job.id

    async with running_engine(database_url, {"t": value}, kinds=KIND) as engine:
        for _ in range(3):  # the first one after a quiet time is written at once
            job_id = await engine.insert("t")
            await engine.until(job_id, "completed")
        engine.worker.result_writer._full.set()  # else the writer collects for an hour


async def test_a_wait_adds_no_column_to_the_history(database_url: str) -> None:
    """A finished row says nothing of waiters."""
    async with running_engine(database_url, {"t": lambda _job: 1}, kinds=KIND) as engine:
        async with open_results(database_url) as results:
            job_id = await engine.insert("t", at=LATER)
            waiting = await begin_wait(results, engine.pool, job_id)
            await engine.pool.execute("UPDATE tickwright.scheduled_tasks SET execute_at = now() WHERE id = $1", job_id)
            await arrives(waiting)
        assert not (await engine.job(job_id))["awaited"]


async def test_plain_jobs_notify_nothing(database_url: str, other: asyncpg.Connection) -> None:
    """Only awaited jobs cost a notification."""
    heard: list[Any] = []
    await other.add_listener(results_module.CHANNEL, lambda *given: heard.append(given))
    async with running_engine(database_url, {"t": lambda _job: 1}, kinds=KIND) as engine:
        job_id = await engine.insert("t", idempotency_key="k")
        await engine.until(job_id, "completed")
    await other.execute("SELECT 1")
    assert heard == []
