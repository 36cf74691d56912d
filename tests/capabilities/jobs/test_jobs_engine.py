"""The worker engine on a real database: the guarantees of a job."""

import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import asyncpg
import pytest

from kit.engine import SHORT, connect, insert, job_row, policy, running_engine
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.model import Fail, Job, Retry, Snooze, TaskType
from tickwright.capabilities.jobs.worker import claimer, frontier
from tickwright.capabilities.jobs.worker.claims import ClaimedJobs, ClaimRequest, ClaimStore
from tickwright.capabilities.jobs.worker.worker import WorkerLimits
from tickwright.domain.errors import Rejected, Unavailable

NEVER_S = 1e9


async def test_a_job_inserted_by_plain_sql_runs_and_is_kept_as_completed(database_url: str) -> None:
    """The public contract: three columns, any language, one row afterwards."""
    seen: list[Any] = []

    async def handler(job: Job, number: int) -> None:
        seen.append((job.id, job.attempt, number))

    async with running_engine(database_url, {"hello": handler}) as engine:
        job_id = await engine.insert("hello", payload={"number": 7, "ignored": True})
        row = await engine.until(job_id, "completed")
    assert seen == [(job_id, 1, 7)]
    assert row["completed_at"] is not None
    assert row["attempts"] == 1


async def test_no_job_starts_before_its_instant_by_the_databases_clock(database_url: str) -> None:
    """Never early; a late start is only measured."""
    starts: dict[int, float] = {}

    async def handler(job: Job) -> None:
        starts[job.id] = time.time() - job.due_s

    async with running_engine(database_url, {"tick": handler}) as engine:
        await engine.pool.execute(
            "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) "
            "SELECT now() + random() * interval '1.5 seconds', 'tick' FROM generate_series(1, 500)"
        )
        await eventually_async(lambda: len(starts) == 500)
    assert min(starts.values()) >= 0


async def test_a_rolled_back_transaction_schedules_nothing(database_url: str) -> None:
    """A job belongs to the transaction that inserted it."""
    async with running_engine(database_url, {"tick": _nothing}) as engine:
        connection = await connect(database_url)
        transaction = connection.transaction()
        await transaction.start()
        lost = await insert(connection, "tick")
        await transaction.rollback()
        kept = await insert(connection, "tick")
        await engine.until(kept, "completed")
        assert await connection.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks WHERE id = $1", lost) == 0
        await connection.close()


async def test_a_failing_job_waits_between_attempts_and_ends_as_a_dead_letter(database_url: str) -> None:
    """A retry waits by the policy, never changes execute_at, and the last failure is kept."""
    starts: list[float] = []

    async def handler(job: Job) -> None:
        starts.append(time.monotonic())
        raise ValueError(f"no luck {job.attempt}")

    async with running_engine(database_url, {"flaky": handler}, kinds={"flaky": policy("flaky")}) as engine:
        job_id = await engine.insert("flaky")
        before = (await engine.job(job_id))["execute_at"]
        row = await engine.until(job_id, "failed")
        letters = await engine.pool.fetch("SELECT id FROM tickwright.dead_letters WHERE kind = 'job'")
    assert row["attempts"] == 3
    assert row["error_message"] == "ValueError: no luck 3"
    assert row["execute_at"] == before
    assert [letter["id"] for letter in letters] == [job_id]
    assert all(later - earlier >= 0.1 for earlier, later in pairwise(starts))


async def test_outcomes_are_values(database_url: str) -> None:
    """Fail ends at once, Retry waits as requested, Snooze costs no attempt, a returned value is the result."""
    calls: dict[str, int] = {}

    async def handler(job: Job, what: str) -> Any:
        calls[what] = calls.get(what, 0) + 1
        first = calls[what] == 1
        if what == "fail":
            raise Fail("never mind")
        if what == "retry" and first:
            raise Retry("later", after=timedelta(milliseconds=300))
        if what == "snooze" and first:
            raise Snooze(timedelta(milliseconds=300))
        return {"what": what}

    async with running_engine(database_url, {"t": handler}) as engine:
        ids = {what: await engine.insert("t", payload={"what": what}) for what in ("fail", "retry", "snooze", "ok")}
        rows = {what: await engine.until(job_id, "completed", "failed") for what, job_id in ids.items()}
    assert rows["fail"]["status"] == "failed"
    assert rows["fail"]["attempts"] == 1
    assert rows["retry"]["attempts"] == 2
    assert rows["snooze"]["attempts"] == 1
    assert rows["snooze"]["fence"] == 2
    assert rows["ok"]["result"] == '{"what": "ok"}'


async def test_a_payload_that_does_not_fit_never_starts_the_handler(database_url: str) -> None:
    """Arguments are checked before the handler runs, and the error names the wrong one."""
    async with running_engine(
        database_url, {"typed": _typed}, kinds={"typed": policy("typed", max_attempts=1)}
    ) as engine:
        job_id = await engine.insert("typed", payload={"number": "seven"}, max_attempts=1)
        row = await engine.until(job_id, "failed")
    assert row["error_message"].startswith("payload_invalid: ")
    assert "number" in row["error_message"]


async def test_a_timeout_stops_the_handler_and_counts_as_a_failed_attempt(database_url: str) -> None:
    """The job's own timeout outranks its type's."""
    stopped = asyncio.Event()

    async def handler(_job: Job) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with running_engine(database_url, {"slow": handler}) as engine:
        job_id = await engine.insert("slow", timeout_ms=100, max_attempts=1)
        row = await engine.until(job_id, "failed")
    assert stopped.is_set()
    assert row["error_message"].startswith("timeout: ")


async def test_a_sync_handler_that_overruns_keeps_its_slot_and_its_result_is_dropped(database_url: str) -> None:
    """A thread cannot be killed: the attempt ends at once, and its slot is free when the thread returns."""
    release, saw_cancel = threading.Event(), threading.Event()

    def handler(job: Job) -> str:
        release.wait(10)
        if job.cancelled:
            saw_cancel.set()
        return "too late"

    async with running_engine(database_url, {"stuck": handler}, limits=WorkerLimits(2, 1)) as engine:
        job_id = await engine.insert("stuck", timeout_ms=100, max_attempts=1)
        row = await engine.until(job_id, "failed")
        assert engine.worker.runner.busy == 1
        release.set()
        await eventually_async(lambda: engine.worker.runner.busy == 0)
        assert (await engine.job(job_id))["result"] is None
    assert row["error_message"].startswith("timeout: ")
    assert saw_cancel.is_set()


async def test_cancelling_a_pending_job_by_sql_is_final(database_url: str) -> None:
    """UPDATE … SET status = 'cancelled' on a pending job: it never starts, and the row is kept."""
    async with running_engine(database_url, {"tick": _nothing}) as engine:
        job_id = await engine.insert("tick", at="now() + interval '1 hour'")
        tag = await engine.pool.execute(
            "UPDATE tickwright.scheduled_tasks SET status = 'cancelled' WHERE id = $1", job_id
        )
        row = await engine.job(job_id)
    assert tag == "UPDATE 1"
    assert (row["status"], row["attempts"]) == ("cancelled", 0)


async def test_cancelling_a_running_job_by_sql_stops_its_handler(database_url: str) -> None:
    """The running job is asked to stop, and is cancelled once it has stopped."""
    started, stopped = asyncio.Event(), asyncio.Event()

    async def handler(_job: Job) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with running_engine(database_url, {"long": handler}) as engine:
        job_id = await engine.insert("long")
        await started.wait()
        await engine.pool.execute("UPDATE tickwright.scheduled_tasks SET status = 'cancelled' WHERE id = $1", job_id)
        row = await engine.until(job_id, "cancelled")
    assert stopped.is_set()
    assert row["cancel_requested_at"] is not None


async def test_a_notification_alone_cancels_nothing(database_url: str) -> None:
    """Every user of the database may notify; only the row says that a job is cancelled."""
    started = []

    async def handler(job: Job) -> None:
        started.append(job.id)
        await asyncio.Event().wait()

    async with running_engine(database_url, {"long": handler}) as engine:
        kept, cancelled = await engine.insert("long"), await engine.insert("long")
        await eventually_async(lambda: len(started) == 2)
        for payload in (str(kept), "²", "9" * 30, "", "-1"):
            await engine.pool.execute("SELECT pg_notify('tickwright_cancel', $1)", payload)
        await engine.pool.execute("UPDATE tickwright.scheduled_tasks SET status = 'cancelled' WHERE id = $1", cancelled)
        await engine.until(cancelled, "cancelled")
        assert (await engine.job(kept))["status"] == "processing"
        assert [job.id for job in engine.worker.runner.running()] == [kept]


@pytest.mark.parametrize("pairs", [400])
async def test_a_cancelled_job_never_starts_afterwards(database_url: str, pairs: int) -> None:
    """J7: when the UPDATE left the row cancelled, no start follows; here cancel and claim race."""
    started: set[int] = set()

    async def handler(job: Job) -> None:
        started.add(job.id)

    async with running_engine(database_url, {"race": handler}):
        connection = await connect(database_url)
        ids = [
            row[0]
            for row in await connection.fetch(
                "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) "
                "SELECT now() + n * interval '2 milliseconds' + interval '100 milliseconds', 'race' "
                "FROM generate_series(1, $1) n RETURNING id",
                pairs,
            )
        ]
        cancelled = set()
        for job_id in reversed(ids):  # from the far end, so that cancels and claims meet on a machine of any speed
            await connection.execute("UPDATE tickwright.scheduled_tasks SET status = 'cancelled' WHERE id = $1", job_id)
            if (await job_row(connection, job_id))["status"] == "cancelled" and job_id not in started:
                cancelled.add(job_id)
        await eventually_async(lambda: _nothing_live(connection))
        await connection.close()
    assert cancelled
    assert not cancelled & started


async def test_a_second_worker_takes_over_the_jobs_of_a_lost_one(database_url: str) -> None:
    """The end of the lease releases the job, counted; the zombie's result changes nothing (its fence is old)."""
    hold = asyncio.Event()
    started: list[int] = []

    async def first(job: Job) -> str:
        started.append(job.fence)
        while not hold.is_set():  # a handler that ignores its cancellation
            try:
                await hold.wait()
            except asyncio.CancelledError:
                continue
        return "zombie"

    async def second(job: Job) -> str:
        return f"second {job.fence}"

    async with running_engine(database_url, {"h": first}, terms=SHORT) as lost:
        job_id = await lost.insert("h")
        await eventually_async(lambda: started)
        lost.tasks[0].cancel()  # its heartbeat stops, its handler continues
        await asyncio.wait([lost.tasks[0]])
        lost.tasks.pop(0)
        async with running_engine(database_url, {"h": second}, terms=SHORT) as taker:
            row = await taker.until(job_id, "completed")
            hold.set()
            await eventually_async(lambda: lost.worker.runner.busy == 0)
            await lost.worker.result_writer.drained()
            after = await taker.job(job_id)
    assert (row["result"], row["attempts"], row["fence"]) == ('"second 2"', 2, 2)
    assert after["result"] == '"second 2"'
    assert lost.worker.lost_results >= 1 or not lost.session.holds()


async def test_a_stop_releases_unfinished_jobs_without_counting_their_attempts(database_url: str) -> None:
    """A deploy costs no attempt: interrupted and unstarted jobs are pending again with the attempts they had."""
    started = asyncio.Event()

    async def handler(_job: Job) -> None:
        started.set()
        await asyncio.Event().wait()

    async with running_engine(database_url, {"long": handler}, limits=WorkerLimits(1, 1)) as engine:
        ids = [await engine.insert("long") for _ in range(3)]
        await started.wait()
    connection = await connect(database_url)
    rows = [await job_row(connection, job_id) for job_id in ids]
    await connection.close()
    assert [(row["status"], row["attempts"], row["owner"]) for row in rows] == [("pending", 0, None)] * 3


async def test_a_job_of_an_unknown_type_waits_and_never_fails(database_url: str) -> None:
    """During a deploy an older worker does not claim types that it does not know."""
    async with running_engine(database_url, {"known": _nothing}) as engine:
        unknown = await engine.insert("from.the.future")
        known = await engine.insert("known")
        await engine.until(known, "completed")
        assert (await engine.job(unknown))["status"] == "pending"


async def test_a_paused_type_waits_until_it_is_enabled(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause takes effect with the next claim, and so does a resume, without a poll."""
    monkeypatch.setattr(claimer, "POLL_S", NEVER_S)
    async with running_engine(database_url, {"p": _nothing, "q": _nothing}) as engine:
        await engine.pool.execute("UPDATE tickwright.task_types SET paused_at = now() WHERE name = 'p'")
        await eventually_async(lambda: engine.worker.types()["p"].task_type.waits)
        await engine.until(await engine.insert("q"), "completed")  # a claim that was under way has ended
        waiting, other = await engine.insert("p"), await engine.insert("q")
        await engine.until(other, "completed")
        assert (await engine.job(waiting))["status"] == "pending"
        await engine.pool.execute("UPDATE tickwright.task_types SET paused_at = NULL WHERE name = 'p'")
        await engine.until(waiting, "completed")


async def test_higher_priorities_run_first_among_due_work(database_url: str) -> None:
    """Priority orders what is due; within one priority the older instant comes first."""
    order: list[int] = []

    async def handler(job: Job, number: int) -> None:
        order.append(number)

    async with running_engine(database_url, {"p": handler}, limits=WorkerLimits(1, 1)) as engine:
        await engine.pool.execute(  # in one statement: a claim sees all of them or none
            "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload, priority) "
            "SELECT now() - make_interval(secs => 100 - n), 'p', jsonb_build_object('number', n - 1), priority "
            "FROM unnest(ARRAY[0, -5, 10, 0, 100]) WITH ORDINALITY AS one (priority, n)"
        )
        await eventually_async(lambda: len(order) == 5)
    assert order == [4, 2, 0, 3, 1]


@pytest.mark.matrix
@pytest.mark.parametrize("rate_per_s", [None, 100_000.0])
async def test_priorities_without_jobs_cost_claims_nothing(
    database_url: str, monkeypatch: pytest.MonkeyPatch, rate_per_s: float | None
) -> None:
    """A claim reads each priority that ever had a job until it is empty; a priority that gets a job again is found."""
    lanes: list[int] = []
    claim = ClaimStore.claim

    async def spy(store: ClaimStore, request: ClaimRequest, connection: Any = None) -> ClaimedJobs:
        lanes.append(len(request.ranges))
        return await claim(store, request, connection)

    monkeypatch.setattr(ClaimStore, "claim", spy)
    kinds = {"p": TaskType("p", "python:p", rate_per_s=rate_per_s)}
    async with running_engine(database_url, {"p": _nothing}, kinds=kinds) as engine:
        await engine.pool.execute(
            "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, priority) "
            "SELECT now(), 'p', n FROM generate_series(-100, 100) AS n"
        )
        later = await engine.insert("p", at="now() + interval '1 hour'", priority=50)
        await eventually_async(lambda: lanes and lanes[-1] == 2, 30)
        assert max(lanes) > 20, "many were read"
        assert (await engine.job(later))["status"] == "pending"
        await engine.until(await engine.insert("p", priority=-7), "completed")


async def test_many_priorities_in_use_cost_other_types_little(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim reads the priorities of a few types at a time; jobs of all types run, those due later at their time."""
    monkeypatch.setattr(frontier, "RANGES_MAX", 64)
    lanes: list[int] = []
    claim = ClaimStore.claim

    async def spy(store: ClaimStore, request: ClaimRequest, connection: Any = None) -> ClaimedJobs:
        lanes.append(len(request.ranges))
        return await claim(store, request, connection)

    handlers = {f"t{number}": _nothing for number in range(10)}
    async with running_engine(database_url, handlers) as engine:
        await engine.pool.execute(
            "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, priority) "
            "SELECT now() + interval '1 hour', 't' || t, n FROM generate_series(0, 9) AS t, generate_series(1, 40) AS n"
        )
        await eventually_async(lambda: len(engine.worker.claimer._frontier.whole_scope(handlers).ranges) == 410, 30)
        monkeypatch.setattr(ClaimStore, "claim", spy)
        for name in handlers:
            soon = [await engine.insert(name, at=f"now() + interval '{s} s'", priority=7) for s in (0, 0.4)]
            for job_id in soon:
                await engine.until(job_id, "completed")
        assert max(lanes) <= 64 + 10 + len(handlers)


async def test_the_concurrency_of_a_type_is_shared_by_all_workers(database_url: str) -> None:
    """Two workers together never run more of a type than its concurrency."""
    running, most = 0, 0

    async def handler(_job: Job) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.03)
        running -= 1

    kinds = {"few": TaskType("few", "python:few", concurrency=3)}
    async with (
        running_engine(database_url, {"few": handler}, kinds=kinds, terms=SHORT) as one,
        running_engine(database_url, {"few": handler}, kinds=kinds, terms=SHORT) as two,
    ):
        await one.pool.execute(
            "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) "
            "SELECT now(), 'few' FROM generate_series(1, 60)"
        )
        await eventually_async(lambda: _nothing_live(two.pool), 20)
        grants = await one.pool.fetchval("SELECT sum(granted) FROM tickwright.type_grants")
    assert most <= 3
    assert grants <= 3


async def test_the_rate_of_a_type_is_shared_by_all_workers(database_url: str) -> None:
    """Each job of a rate-limited type has its own instant, in whichever worker it starts."""
    instants: list[float] = []
    early: list[int] = []

    async def handler(job: Job) -> None:
        instants.append(job.fire_s)
        if time.time() < job.fire_s:
            early.append(job.id)

    kinds = {"slow": TaskType("slow", "python:slow", rate_per_s=40)}
    async with (
        running_engine(database_url, {"slow": handler}, kinds=kinds) as one,
        running_engine(database_url, {"slow": handler}, kinds=kinds) as two,
    ):
        await one.pool.execute(
            "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) "
            "SELECT now(), 'slow' FROM generate_series(1, 60)"
        )
        await eventually_async(lambda: _nothing_live(two.pool), 20)
    instants.sort()
    assert len(instants) == 60
    assert early == []
    assert min(later - earlier for earlier, later in pairwise(instants)) >= 1 / 40 - 0.000_01
    assert instants[-1] - instants[0] < 15, "most of the rate is lost"


async def test_an_expired_job_is_not_started(database_url: str) -> None:
    """expires_at is a deadline: a job that could not start before it is cancelled with the reason."""
    async with running_engine(database_url, {"tick": _nothing}) as engine:
        job_id = await engine.insert("tick", at="now() - interval '1 minute'", expires_at=_past())
        row = await engine.until(job_id, "cancelled")
    assert row["error_message"].startswith("expired")
    assert (row["attempts"], row["fence"]) == (0, 1)


async def test_progress_has_an_upper_bound(database_url: str) -> None:
    """As that of remote workers; what was written before stays."""
    codes: list[str] = []

    async def handler(job: Job) -> None:
        assert await job.progress("é" * 32_767)
        with pytest.raises(Rejected) as refused:
            await job.progress("é" * 32_768)
        codes.append(refused.value.code)

    async with running_engine(database_url, {"p": handler}) as engine:
        row = await engine.until(await engine.insert("p"), "completed")
    assert codes == ["progress_too_large"]
    assert row["progress"] == f'"{"é" * 32_767}"'


async def test_progress_is_fenced(database_url: str) -> None:
    """``progress`` raises in a handler that lost its job."""
    answers: list[bool] = []
    taken_away = asyncio.Event()

    async def handler(job: Job) -> None:
        answers.append(await job.progress({"done": 1}))
        await taken_away.wait()
        answers.append(await job.progress({"done": 2}))

    async with running_engine(database_url, {"p": handler}) as engine:
        job_id = await engine.insert("p")
        await eventually_async(lambda: answers)
        assert (await engine.job(job_id))["progress"] == '{"done": 1}'
        await engine.pool.execute(  # and not due: a claim under way would take it again for this worker
            "UPDATE tickwright.scheduled_tasks SET status = 'pending', retry_at = now() + interval '1 hour' "
            "WHERE id = $1",
            job_id,
        )
        taken_away.set()
        await eventually_async(lambda: len(answers) == 2)
    assert answers == [True, False]


async def test_a_progress_that_is_not_written_is_an_error_with_a_code(database_url: str) -> None:
    """A handler can catch it, and go on; here another transaction has locked the job's row for longer than a wait."""
    began, locked, codes = asyncio.Event(), asyncio.Event(), []

    async def handler(job: Job) -> None:
        began.set()
        await locked.wait()
        try:
            await job.progress({"done": 1})
        except Unavailable as error:
            codes.append(error.code)

    async with running_engine(database_url, {"p": handler}) as engine:
        job_id = await engine.insert("p")
        await began.wait()
        other = await asyncpg.connect(database_url)  # without the bounds of the product's connections
        async with other.transaction():
            await other.execute("SELECT FROM tickwright.scheduled_tasks WHERE id = $1 FOR UPDATE", job_id)
            locked.set()
            await eventually_async(lambda: codes)
        await other.close()
        await engine.until(job_id, "completed")
    assert codes == ["database_unavailable"]


@pytest.mark.parametrize(
    ("columns", "constraint"),
    [
        ({"status": "processing"}, "scheduled_tasks_new"),
        ({"attempts": 1}, "scheduled_tasks_new"),
        ({"max_attempts": 0}, "scheduled_tasks_max_attempts"),
        ({"priority": 101}, "scheduled_tasks_priority"),
        ({"timeout_ms": 0}, "scheduled_tasks_timeout"),
        ({"at": "'infinity'"}, "scheduled_tasks_execute_at"),
        ({"task_type": "no spaces"}, "scheduled_tasks_task_type"),
        ({"payload": {"big": "x" * 1_100_000}}, "scheduled_tasks_payload"),
    ],
)
async def test_plain_sql_cannot_break_a_job(database_url: str, columns: dict[str, Any], constraint: str) -> None:
    """A value that SQL may not set is refused by name, in the user's own transaction."""
    connection = await connect(database_url)
    with pytest.raises(asyncpg.CheckViolationError) as refused:
        await insert(connection, **{"task_type": "tick", **columns})
    await connection.close()
    assert refused.value.constraint_name == constraint
    assert refused.value.hint


async def test_plain_sql_cannot_edit_a_job_into_a_broken_one(database_url: str) -> None:
    """The same bounds hold for UPDATE."""
    connection = await connect(database_url)
    job_id = await insert(connection, "tick", at="now() + interval '1 hour'")
    for assignment, constraint in (("priority = 101", "priority"), ("execute_at = 'infinity'", "execute_at")):
        with pytest.raises(asyncpg.CheckViolationError) as refused:
            await connection.execute(f"UPDATE tickwright.scheduled_tasks SET {assignment} WHERE id = $1", job_id)
        assert refused.value.constraint_name == f"scheduled_tasks_{constraint}"
    await connection.close()


async def test_a_finished_job_cannot_be_set_back_by_sql(database_url: str) -> None:
    """A final state never changes: cancelling has no effect, reopening is refused with a hint."""
    async with running_engine(database_url, {"tick": _nothing}) as engine:
        job_id = await engine.insert("tick")
        await engine.until(job_id, "completed")
        sql = "UPDATE tickwright.scheduled_tasks SET status = $2 WHERE id = $1"
        assert await engine.pool.execute(sql, job_id, "cancelled") == "UPDATE 0"
        with pytest.raises(asyncpg.CheckViolationError) as refused:
            await engine.pool.execute(sql, job_id, "pending")
    assert refused.value.constraint_name == "scheduled_tasks_final"
    assert "retry" in (refused.value.hint or "")


async def test_a_key_schedules_once_also_after_the_job_has_run(database_url: str) -> None:
    """J6: the same idempotency key is the same job, live or finished."""
    runs: list[int] = []

    async def handler(job: Job) -> None:
        runs.append(job.id)

    async with running_engine(database_url, {"tick": handler}) as engine:
        job_id = await engine.insert("tick", idempotency_key="k")
        await engine.until(job_id, "completed")
        assert await engine.insert("tick", idempotency_key="k") is None
        later = await engine.insert("tick", at="now() + interval '1 hour'", idempotency_key="l")
        with pytest.raises(asyncpg.UniqueViolationError):
            await engine.insert("tick", idempotency_key="l")
        conflict = (
            "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload, idempotency_key) "
            "VALUES (now(), 'tick', '{}', 'l') ON CONFLICT DO NOTHING RETURNING id"
        )
        assert await engine.pool.fetchval(conflict) is None
        assert (await engine.job(later))["status"] == "pending"
    assert runs == [job_id]


async def test_without_notifications_a_job_starts_at_the_next_poll(database_url: str) -> None:
    """A notification is a hint: without it the poll of the next second finds the job."""
    async with running_engine(database_url, {"tick": _nothing}, direct=False) as engine:
        job_id = await engine.insert("tick")
        await engine.until(job_id, "completed")


async def _nothing(_job: Job) -> None:
    return None


async def _typed(_job: Job, number: int) -> None:
    raise AssertionError("must not start")


async def _nothing_live(connection: Any) -> bool:
    return not await connection.fetchval("SELECT EXISTS (SELECT FROM ONLY tickwright.scheduled_tasks)")


def _past() -> datetime:
    return datetime(2000, 1, 1, tzinfo=UTC)


async def test_an_insert_wakes_both_sleeping_workers(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wake-up notification reaches every sleeping worker, also without the claim lock; none of them polls here."""
    monkeypatch.setattr(claimer, "POLL_S", NEVER_S)

    async def handler(_job: Job) -> None:
        return None

    async with (
        running_engine(database_url, {"one": handler}) as one,
        running_engine(database_url, {"two": handler}) as two,
    ):
        await eventually_async(lambda: one.worker.wakeup.armed or two.worker.wakeup.armed)
        for name in ("one", "two") * 5:
            await eventually_async(lambda: one.worker.wakeup.armed or two.worker.wakeup.armed)
            job_id = await insert(one.pool, name)
            await one.until(job_id, "completed")


async def test_an_inserter_that_stays_open_does_not_keep_a_worker_busy(database_url: str) -> None:
    """While a transaction stays open after an insert the worker polls less and less, and never waits for it."""
    async with running_engine(database_url, {"tick": _nothing}) as engine:
        await eventually_async(lambda: engine.worker.wakeup.armed)
        first = await engine.insert("tick")
        await engine.until(first, "completed")
        connection = await connect(database_url)
        transaction = connection.transaction()
        await transaction.start()
        held = await insert(connection, "tick")
        await eventually_async(lambda: engine.worker.claimer.sleep.arm_failures > 6 or engine.worker.wakeup.armed)
        other = await engine.insert("tick")
        await engine.until(other, "completed")
        await transaction.commit()
        await engine.until(held, "completed")
        await connection.close()


async def test_a_job_cancelled_after_its_claim_and_before_its_start_costs_no_attempt(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is 'requested'; then the heartbeat finds that it never started."""
    monkeypatch.setattr(claimer, "HORIZON", timedelta(seconds=4))  # enough time between the claim and the start
    started: list[int] = []

    async def handler(job: Job) -> None:
        started.append(job.id)

    async with running_engine(database_url, {"tick": handler}) as engine:
        await eventually_async(lambda: engine.worker.wakeup.armed)
        job_id = await engine.insert("tick", at="clock_timestamp() + interval '3900 milliseconds'")
        await eventually_async(lambda: engine.worker.runner.queued == 1)
        await engine.pool.execute("UPDATE tickwright.scheduled_tasks SET status = 'cancelled' WHERE id = $1", job_id)
        row = await engine.until(job_id, "cancelled", "completed")
    assert (row["status"], row["attempts"], started) == ("cancelled", 0, [])


async def test_deleting_a_pending_job_frees_its_key(database_url: str) -> None:
    """The key of a job that its user deleted schedules a new one; the key of a job that has run does not."""
    async with running_engine(database_url, {"tick": _nothing}) as engine:
        first = await engine.insert("tick", at="now() + interval '1 hour'", idempotency_key="k")
        await engine.pool.execute("DELETE FROM tickwright.scheduled_tasks WHERE id = $1", first)
        second = await engine.insert("tick", idempotency_key="k")
        await engine.until(second, "completed")
        assert await engine.insert("tick", idempotency_key="k") is None


async def test_a_running_row_with_an_unknown_owner_is_not_claimed_again(database_url: str) -> None:
    """Upkeep repairs a hand-written owner; until then no worker claims the job."""
    async with running_engine(database_url, {"tick": _nothing}) as engine:
        job_id = await engine.insert("tick", at="now() + interval '1 hour'")
        await engine.pool.execute(
            "UPDATE tickwright.scheduled_tasks SET status = 'processing', owner = 777 WHERE id = $1", job_id
        )
        other = await engine.insert("tick")
        await engine.until(other, "completed")
        assert (await engine.job(job_id))["status"] == "processing"
