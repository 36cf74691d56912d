"""An awaited result arrives: however the job ends, whenever the wait begins, whatever connection is lost."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from kit.awaiting import AWAITED, ConnectGate, arrives, begin_wait, open_results, stop_polling
from kit.engine import SHORT, Engine, WorkerProcess, connect, insert, job_row, policy, read_events, running_engine
from kit.fix_app_roles import AppRole
from kit.mutants import mutate
from kit.probes import Stops
from kit.waiting import eventually_async
from tickwright import Fail, Job, Retry, Snooze
from tickwright.capabilities.jobs import results as results_module
from tickwright.capabilities.jobs.results import JobResults
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.store.pool import Pool

KINDS = {"t": policy("t"), "forgets": policy("forgets", keep_history=False)}
CANCEL = "UPDATE tickwright.scheduled_tasks SET status = 'cancelled' WHERE id = $1"
DUE = "UPDATE tickwright.scheduled_tasks SET execute_at = now() WHERE id = $1"
LATER = "now() + interval '1 day'"


@pytest.fixture(autouse=True)
def nothing_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every waiter is woken by a notification, or by a connection that opens or ends."""
    stop_polling(monkeypatch)


async def answer(job: Job) -> Any:
    """Do what the payload says."""
    match job.payload.get("do"):
        case "value":
            return {"n": 42}
        case "fail":
            raise Fail("no")
        case "error":
            raise ValueError("wrong")
        case "again" if job.attempt == 1:
            raise Retry("later", after=timedelta())
        case "snooze" if job.fence == 1:
            raise Snooze(timedelta())
        case "wait":
            await asyncio.Event().wait()
    return None


HANDLERS = dict.fromkeys(KINDS, answer)


async def _sql(engine: Engine, sql: str, job_id: int) -> None:
    await engine.pool.execute(sql, job_id)


async def _run(engine: Engine, job_id: int) -> None:
    await engine.pool.execute(DUE, job_id)


async def _cancel_running(engine: Engine, job_id: int) -> None:
    await _run(engine, job_id)
    await engine.until(job_id, "processing")
    await engine.pool.execute(CANCEL, job_id)


async def _expire(engine: Engine, job_id: int) -> None:
    past = "UPDATE tickwright.scheduled_tasks SET expires_at = now() - interval '1 s', execute_at = now() WHERE id = $1"
    await engine.pool.execute(past, job_id)


End = Callable[[Engine, int], Awaitable[None]]
ENDS: dict[str, tuple[str, str, End, str, Any]] = {
    "completed": ("t", "nothing", _run, "completed", None),
    "with a value": ("t", "value", _run, "completed", {"n": 42}),
    "without history": ("forgets", "nothing", _run, "completed", None),
    "a value without history": ("forgets", "value", _run, "completed", {"n": 42}),
    "failed for good": ("t", "fail", _run, "failed", None),
    "last attempt failed": ("t", "error", _run, "failed", None),
    "retried": ("t", "again", _run, "completed", None),
    "snoozed": ("t", "snooze", _run, "completed", None),
    "cancelled while pending": ("t", "nothing", lambda e, j: _sql(e, CANCEL, j), "cancelled", None),
    "cancelled while running": ("t", "wait", _cancel_running, "cancelled", None),
    "expired": ("t", "nothing", _expire, "cancelled", None),
}


async def check_an_end_arrives(url: str, how: str) -> None:
    """RES-1: a waiter whose job is marked is woken by the end, and by nothing before."""
    task_type, do, end, status, value = ENDS[how]
    async with running_engine(url, HANDLERS, kinds=KINDS) as engine, open_results(url) as results:
        job_id = await engine.insert(task_type, at=LATER, payload={"do": do}, max_attempts=1 + (do == "again"))
        waiting = await begin_wait(results, engine.pool, job_id)
        await end(engine, job_id)
        ended = await arrives(waiting)
    assert (ended.id, ended.status) == (job_id, status)
    assert json.loads(ended.result or "null") == value
    assert ended.error or status != "failed"
    assert results.waiting == 0


@pytest.mark.parametrize("how", ENDS)
async def test_an_end_arrives(database_url: str, how: str) -> None:
    """RES-1, for each way to end by a worker or a user."""
    await check_an_end_arrives(database_url, how)


@pytest.mark.mutant
async def test_the_suite_notices_ends_that_do_not_notify(database_url: str, pool: Pool) -> None:
    """A mutant of the trigger's condition: it fires for jobs with keys only."""
    await pool.execute(
        "CREATE OR REPLACE TRIGGER scheduled_tasks_deleted AFTER DELETE ON tickwright.scheduled_tasks FOR EACH ROW "
        "WHEN (OLD.idempotency_key IS NOT NULL) EXECUTE FUNCTION tickwright.end_job()"
    )
    with pytest.raises(AssertionError, match="RES-1 broken"):
        await check_an_end_arrives(database_url, "with a value")


async def test_a_deleted_job_ends_its_wait(database_url: str, pool: Pool) -> None:
    """Its user deleted the row: nothing is left to return."""
    async with open_results(database_url) as results:
        job_id = await insert(pool, "t", at=LATER)
        waiting = await begin_wait(results, pool, job_id)
        await pool.execute("DELETE FROM tickwright.scheduled_tasks WHERE id = $1", job_id)
        with pytest.raises(Rejected) as refused:
            await arrives(waiting)
    assert refused.value.code == "job_not_found"


async def test_a_job_with_a_key_notifies_and_keeps_its_key(database_url: str) -> None:
    """The same trigger does both."""
    async with running_engine(database_url, HANDLERS, kinds=KINDS) as engine, open_results(database_url) as results:
        job_id = await engine.insert("t", at=LATER, idempotency_key="k")
        waiting = await begin_wait(results, engine.pool, job_id)
        await _run(engine, job_id)
        assert (await arrives(waiting)).status == "completed"
        assert await engine.pool.fetchval("SELECT job_id FROM tickwright.job_keys WHERE key = 'k'") == job_id


async def test_a_wait_that_begins_after_the_end_reads_the_result(database_url: str) -> None:
    """RES-1; of a job that left nothing behind there is nothing to read."""
    async with running_engine(database_url, HANDLERS, kinds=KINDS) as engine, open_results(database_url) as results:
        job_id = await engine.insert("t", payload={"do": "value"})
        await engine.until(job_id, "completed")
        assert (await arrives(results.wait(job_id))).result == '{"n": 42}'
        forgotten = await engine.insert("forgets")
        gone = "SELECT NOT EXISTS (SELECT FROM tickwright.scheduled_tasks WHERE id = $1)"
        await eventually_async(lambda: engine.pool.fetchval(gone, forgotten), what="it has ended")
        with pytest.raises(Rejected, match="keeps no history"):
            await arrives(results.wait(forgotten))


async def check_a_mark_that_comes_after_the_end(url: str) -> None:
    """RES-1: the job ends between the beginning of the wait and its mark."""
    stops = Stops()
    stops.close("results.before_mark")
    async with (
        running_engine(url, HANDLERS, kinds=KINDS) as engine,
        open_results(url, probe=stops) as results,
    ):
        job_id = await engine.insert("t", at=LATER, payload={"do": "value"})
        waiting = asyncio.create_task(results.wait(job_id))
        await eventually_async(lambda: stops.reached_times["results.before_mark"], what="it is about to mark")
        await eventually_async(lambda: results.listens, what="it listens")
        await _run(engine, job_id)
        await engine.until(job_id, "completed")
        stops.open("results.before_mark")
        assert (await arrives(waiting)).result == '{"n": 42}'


async def test_a_mark_that_comes_after_the_end_reads_the_result(database_url: str) -> None:
    """The race, on the side of the end."""
    await check_a_mark_that_comes_after_the_end(database_url)


async def test_an_end_that_waits_for_a_mark_notifies(database_url: str, other: asyncpg.Connection) -> None:
    """The race, on the side of the mark: the DELETE waits for the mark's commit, and reads the row again."""
    notified = asyncio.Event()
    await other.add_listener(results_module.CHANNEL, lambda *_: notified.set())
    marker = await connect(database_url)
    stops = Stops()
    stops.close("jobs.before_result")
    async with running_engine(database_url, HANDLERS, kinds=KINDS, probe=stops) as engine:
        job_id = await engine.insert("t", payload={"do": "value"})
        await eventually_async(lambda: stops.reached_times["jobs.before_result"], what="it has ended")
        transaction = marker.transaction()
        await transaction.start()
        [row] = await marker.fetch(results_module._SQL["mark"], [job_id])
        assert row["marked"]
        stops.open("jobs.before_result")
        waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"
        await eventually_async(lambda: other.fetchval(waits), what="the result waits for the mark")
        await transaction.commit()
        await engine.until(job_id, "completed")
        await asyncio.wait_for(notified.wait(), 20)
    await marker.close()


@pytest.mark.parametrize("commits", [True, False], ids=["committed", "rolled back"])
async def test_a_row_that_is_being_ended_is_marked_again(database_url: str, pool: Pool, commits: bool) -> None:
    """RES-3: the mark waits for no lock, and RES-1 in both cases."""
    ending = await connect(database_url)
    async with open_results(database_url) as results:
        job_id = await insert(pool, "t", at=LATER)
        transaction = ending.transaction()
        await transaction.start()
        await ending.execute(CANCEL, job_id)
        waiting = asyncio.create_task(results.wait(job_id))
        await eventually_async(lambda: results.listens, what="it listens")
        assert not await pool.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")
        await (transaction.commit() if commits else transaction.rollback())
        if not commits:
            await eventually_async(lambda: pool.fetchval(AWAITED, job_id), what="it is marked")
            await pool.execute(CANCEL, job_id)
        assert (await arrives(waiting)).status == "cancelled"
    await ending.close()


async def check_ends_while_the_connection_is_lost(url: str, patch: pytest.MonkeyPatch) -> None:
    """RES-1: a hundred waiters of jobs that end while the listening connection is lost."""
    gate = ConnectGate(patch)
    pool = await asyncpg.create_pool(url, min_size=1, max_size=3)
    async with pool, open_results(url) as results:
        ids = [await insert(pool, "t", at=LATER) for _ in range(100)]
        waiting = [await begin_wait(results, pool, job_id) for job_id in ids]
        assert gate.connected == 1, "RES-2 broken: a connection for each waiter"
        gate.close()
        listening = results._listener._direct._connection.get_server_pid()  # type: ignore[union-attr]
        await pool.execute("SELECT pg_terminate_backend($1)", listening)
        await eventually_async(lambda: not results.listens, what="it is lost")
        await asyncio.sleep(0)  # the loss wakes every waiter, which reads
        await eventually_async(lambda: not results._read._waiting and results._read._running is None, what="all read")
        await pool.execute("UPDATE tickwright.scheduled_tasks SET status = 'cancelled' WHERE id = ANY ($1)", ids)
        gate.open()
        ended = await asyncio.gather(*(arrives(one) for one in waiting))
    assert {one.status for one in ended} == {"cancelled"}


async def test_ends_arrive_though_the_listening_connection_is_killed(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RES-1 and RES-2, for a hundred waiters."""
    await check_ends_while_the_connection_is_lost(database_url, monkeypatch)


@pytest.mark.mutant
async def test_the_suite_notices_waiters_that_do_not_read_after_a_loss(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant: only notifications wake waiters."""
    mutate(monkeypatch, JobResults._wake_all, "notified.set()", "pass")
    with pytest.raises(AssertionError, match="RES-1 broken"):
        await check_ends_while_the_connection_is_lost(database_url, monkeypatch)


@pytest.mark.mutant
async def test_the_suite_notices_waits_without_a_mark(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant of the mark: it reports rows as marked that it leaves as they are, and so does the read behind it."""
    mark = JobResults._marking.replace("SET awaited = true", "SET awaited = false")
    assert mark != JobResults._marking
    monkeypatch.setattr(JobResults, "_marking", mark)
    read = JobResults._reading.replace("SELECT t.awaited, ", "SELECT true AS awaited, ")
    assert read != JobResults._reading
    monkeypatch.setattr(JobResults, "_reading", read)
    monkeypatch.setattr("kit.awaiting.AWAITED", "SELECT $1::bigint > 0")
    with pytest.raises(AssertionError, match="RES-1 broken"):
        await check_an_end_arrives(database_url, "with a value")


async def test_a_worker_that_is_killed_in_the_handler_ends_no_wait(database_url: str, tmp_path: Path) -> None:
    """The second attempt, which follows the reclaim, does."""
    log = tmp_path / "events.log"
    first = WorkerProcess(database_url, log, lease_s=1.5, work_s=3600)
    pool = await asyncpg.create_pool(database_url, min_size=1, max_size=3)
    async with pool, open_results(database_url) as results:
        job_id = await insert(pool, "work")
        await eventually_async(lambda: read_events(log), 30, what="the handler runs")
        waiting = await begin_wait(results, pool, job_id)
        first.kill9()

        async def work(_job: Job) -> str:
            return "done"

        async with running_engine(database_url, {"work": work}, terms=SHORT):
            ended = await arrives(waiting, 60)
    assert (ended.status, ended.result, ended.attempts) == ("completed", '"done"', 2)


async def test_a_lost_last_attempt_ends_the_wait(database_url: str) -> None:
    """The reclaim itself ends the job."""
    async with running_engine(database_url, HANDLERS, kinds=KINDS) as engine, open_results(database_url) as results:
        job_id = await engine.insert("t", at=LATER, payload={"do": "wait"}, max_attempts=1)
        waiting = await begin_wait(results, engine.pool, job_id)
        await _run(engine, job_id)
        await engine.until(job_id, "processing")
        begun = "SELECT started_at IS NOT NULL FROM ONLY tickwright.scheduled_tasks WHERE id = $1"
        await eventually_async(lambda: engine.pool.fetchval(begun, job_id), what="it has begun")
        await engine.pool.execute("UPDATE tickwright.workers SET lease_until = now() - interval '1 hour'")
        async with running_engine(database_url, {"other": answer}, terms=SHORT):
            ended = await arrives(waiting, 60)
    assert ended.status == "failed"
    assert "lost" in (ended.error or "")


async def test_a_release_with_a_requested_cancel_ends_the_wait(database_url: str) -> None:
    """A worker that stops releases its jobs; one that its user cancelled ends instead."""
    async with open_results(database_url) as results, running_engine(database_url, HANDLERS, kinds=KINDS) as engine:
        job_id = await engine.insert("t", at=LATER, payload={"do": "again"})
        waiting = await begin_wait(results, engine.pool, job_id)
        stops = Stops()
        stops.close("jobs.before_result")
        engine.worker.result_writer._probe = stops
        await _run(engine, job_id)
        await eventually_async(lambda: stops.reached_times["jobs.before_result"], what="the attempt failed")
        held = "UPDATE ONLY tickwright.scheduled_tasks SET cancel_requested_at = now() WHERE id = $1"
        await engine.pool.execute(held, job_id)
        stops.open("jobs.before_result")
        assert (await arrives(waiting)).status == "cancelled"


async def test_a_job_that_an_operator_retried_unnoticed_is_marked_again(database_url: str, pool: Pool) -> None:
    """The retried job is a new row without a mark."""
    async with open_results(database_url) as results:
        job_id = await insert(pool, "t", at=LATER)
        waiting = await begin_wait(results, pool, job_id)
        await pool.execute("UPDATE ONLY tickwright.scheduled_tasks SET awaited = false WHERE id = $1", job_id)
        await pool.execute("SELECT pg_notify('tickwright_results', $1)", str(job_id))
        await eventually_async(lambda: pool.fetchval(AWAITED, job_id), what="it is marked again")
        await pool.execute(CANCEL, job_id)
        assert (await arrives(waiting)).status == "cancelled"


async def test_a_user_with_few_rights_ends_no_wait(database_url: str, pool: Pool, app_role: AppRole) -> None:
    """A notification is a hint, and the mark is not for users."""
    user = await connect(app_role.url)
    async with open_results(database_url) as results:
        job_id = await insert(pool, "t", at=LATER)
        waiting = await begin_wait(results, pool, job_id)
        for payload in (str(job_id), "", "x", "²", "9" * 19, "-1", "1" * 500):
            await user.execute("SELECT pg_notify('tickwright_results', $1)", payload)
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await user.execute("UPDATE tickwright.scheduled_tasks SET awaited = false WHERE id = $1", job_id)
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await user.execute(
                "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, awaited) VALUES (now(), 't', true)"
            )
        await pool.execute("SELECT pg_notify('tickwright_results', $1)", str(job_id))
        await eventually_async(
            lambda: not results._read._waiting and results._read._running is None, what="it has read"
        )
        assert not waiting.done()
        await user.execute(CANCEL, job_id)
        assert (await arrives(waiting)).status == "cancelled"
    await user.close()


async def test_a_wait_ends_with_its_time_and_leaves_nothing(database_url: str, pool: Pool) -> None:
    """The error has a stable code, and says that the job goes on."""
    async with open_results(database_url) as results:
        job_id = await insert(pool, "t", at=LATER)
        with pytest.raises(Unavailable) as over:
            await results.wait(job_id, timedelta(milliseconds=20))
        assert (over.value.code, over.value.retriable, over.value.http_status) == ("result_timeout", True, 504)
        waiting = await begin_wait(results, pool, job_id)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert not results._waiting
        assert (await job_row(pool, job_id))["status"] == "pending"


async def test_a_wait_for_a_job_that_never_was_is_refused(database_url: str) -> None:
    """At once, whatever the time."""
    async with open_results(database_url) as results:
        with pytest.raises(Rejected) as refused:
            await arrives(results.wait(10**15))
    assert (refused.value.code, refused.value.http_status) == ("job_not_found", 404)


async def test_waits_survive_a_database_that_refuses_statements(
    database_url: str, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement that fails for lack of the database is repeated."""
    monkeypatch.setattr(results_module, "POLL_S", 0.01)
    async with open_results(database_url) as results:
        job_id = await insert(pool, "t", at=LATER)
        fetch, failed = results._pool.fetch, 0

        async def broken(*args: Any) -> Any:
            nonlocal failed
            if failed < 3:
                failed += 1
                raise asyncpg.CannotConnectNowError("it starts")
            return await fetch(*args)

        monkeypatch.setattr(results._pool, "fetch", broken, raising=False)
        waiting = await begin_wait(results, pool, job_id)
        assert failed == 3
        await pool.execute(CANCEL, job_id)
        assert (await arrives(waiting)).status == "cancelled"


async def test_a_wait_that_its_process_ends_says_so(database_url: str, pool: Pool) -> None:
    """Every waiter ends; the job goes on."""
    async with open_results(database_url) as results:
        job_id = await insert(pool, "t", at=LATER)
        waiting = await begin_wait(results, pool, job_id)
        await results.aclose()
        with pytest.raises(Unavailable) as ended:
            await arrives(waiting)
    assert ended.value.code == "draining"
