"""Actions of operators on jobs, beside a running worker: cancel, retry, move, explain."""

import asyncio
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest

from kit.api import ADMIN, allow_all
from kit.engine import SHORT, Engine, insert, job_row, policy, running_engine
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.admin.bulk_actions import BulkCall
from tickwright.capabilities.jobs.admin.search import JobFilter, ListQuery
from tickwright.capabilities.jobs.admin.service import JobService
from tickwright.capabilities.jobs.enqueue import Enqueuer
from tickwright.capabilities.jobs.model import Fail, Job
from tickwright.capabilities.jobs.requests import NewJob, TaskTypeRequest
from tickwright.capabilities.jobs.states import JobStatus
from tickwright.capabilities.jobs.worker.worker import WorkerLimits
from tickwright.domain.errors import Rejected
from tickwright.store.pool import Pool


@pytest.fixture
async def service(pool: Pool) -> JobService:
    """The service, and a type ``noop`` without a worker."""
    made = JobService(pool, enqueuer=Enqueuer(pool), allow_target=allow_all)
    await made.types.put("noop", TaskTypeRequest(target="python:noop"), caller=ADMIN)
    return made


async def refused(action: Any) -> Rejected:
    """Return the error of a refused action."""
    with pytest.raises(Rejected) as caught:
        await action
    return caught.value


async def test_a_cancelled_pending_job_is_final_at_once(pool: Pool, service: JobService) -> None:
    """200 means final: the row is in the history, and a second cancel is refused with its state."""
    job = await insert(pool, "noop", at="now() + interval '1 hour'")
    assert (await service.cancel(job, caller=ADMIN)).outcome == "cancelled"
    row = await job_row(pool, job)
    assert (row["status"], row["completed_at"] is not None) == ("cancelled", True)
    again = await refused(service.cancel(job, caller=ADMIN))
    assert (again.code, again.http_status, again.details["state"]) == ("job_finished", 409, "cancelled")


async def test_cancelling_a_running_job_asks_its_worker_to_stop_it(database_url: str) -> None:
    """202 first; the handler is stopped at once, and the job ends as cancelled."""
    running = asyncio.Event()

    async def slow(job: Job) -> None:
        running.set()
        await asyncio.Event().wait()

    async with running_engine(database_url, {"slow": slow}) as engine:
        service = JobService(engine.pool, enqueuer=Enqueuer(engine.pool), allow_target=allow_all)
        job = await engine.insert("slow")
        await asyncio.wait_for(running.wait(), 30)
        answered = await service.cancel(job, caller=ADMIN)
        assert (answered.outcome, answered.status) == ("requested", "processing")
        assert (await service.explain(job)).reasons[0].code in {"cancel_requested", "cancelled"}
        await engine.until(job, "cancelled")


async def test_a_job_that_was_answered_as_cancelled_never_starts(database_url: str) -> None:
    """J7: 600 jobs come due while they are cancelled; none that was answered ``cancelled`` has started."""
    started: set[int] = set()

    async def note(job: Job) -> None:
        started.add(job.id)

    async with running_engine(database_url, {"note": note}) as engine:
        service = JobService(engine.pool, enqueuer=Enqueuer(engine.pool), allow_target=allow_all)
        jobs = await engine.pool.fetch(
            "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) "
            "SELECT now() + n * interval '8 ms', 'note' FROM generate_series(1, 600) n RETURNING id"
        )
        outcomes = await _cancel_all(service, [row["id"] for row in jobs])
        await _settled(engine)
        cancelled = {job for job, outcome in outcomes.items() if outcome == "cancelled"}
        assert not cancelled & started
        assert cancelled, "no cancel came before a start"
        for job in cancelled:
            assert (await job_row(engine.pool, job))["status"] == "cancelled"


async def _cancel_all(service: JobService, jobs: list[int]) -> Mapping[int, str]:
    outcomes: dict[int, str] = {}

    async def cancel(some: list[int]) -> None:
        for job in some:
            try:
                outcomes[job] = (await service.cancel(job, caller=ADMIN)).outcome
            except Rejected as error:
                outcomes[job] = error.code

    await asyncio.gather(*(cancel(jobs[part::4]) for part in range(4)))
    return outcomes


async def _settled(engine: Engine) -> None:
    async def empty() -> bool:
        return not await engine.pool.fetchval("SELECT count(*) FROM ONLY tickwright.scheduled_tasks")

    await eventually_async(empty, 15)


async def test_a_retried_dead_letter_runs_again_under_its_id_with_a_higher_fence(database_url: str) -> None:
    """Same id, execute_at and key; attempts from zero; the fence rises further."""
    fences: list[int] = []

    async def flaky(job: Job) -> None:
        fences.append(job.fence)
        if len(fences) < 3:
            raise Fail("not yet")

    async with running_engine(database_url, {"flaky": flaky}, kinds={"flaky": policy("flaky")}) as engine:
        service = JobService(engine.pool, enqueuer=Enqueuer(engine.pool), allow_target=allow_all)
        job = await engine.insert("flaky", idempotency_key="once")
        first = await engine.until(job, "failed")
        assert (await refused(service.reschedule(job, caller=ADMIN, delay=timedelta()))).code == "job_finished"
        assert (await service.retry(job, caller=ADMIN)).status == "pending"
        await engine.until(job, "failed")
        await service.dead_letters.requeue("job", caller=ADMIN, ids=[job])
        last = await engine.until(job, "completed")
        assert (last["execute_at"], last["idempotency_key"]) == (first["execute_at"], "once")
        assert last["attempts"] == 1
        assert fences == sorted(set(fences))
        again = await service.enqueuer.schedule(NewJob("flaky", key="once"))
        assert (again.id, again.created) == (job, False)


async def test_only_a_failed_job_can_be_retried(pool: Pool, service: JobService) -> None:
    """Pending, cancelled and unknown jobs are refused, each with its own code."""
    job = await insert(pool, "noop", at="now() + interval '1 hour'")
    assert (await refused(service.retry(job, caller=ADMIN))).code == "job_not_failed"
    await service.cancel(job, caller=ADMIN)
    assert (await refused(service.retry(job, caller=ADMIN))).details["state"] == "cancelled"
    assert (await refused(service.retry(999, caller=ADMIN))).code == "job_not_found"


async def test_reschedule_moves_and_run_now_starts(database_url: str) -> None:
    """A pending job follows its new time; run now starts it at once; neither starts it early."""
    seen: list[float] = []

    async def note(job: Job) -> None:
        seen.append(job.due_s)

    async with running_engine(database_url, {"note": note}) as engine:
        service = JobService(engine.pool, enqueuer=Enqueuer(engine.pool), allow_target=allow_all)
        job = await engine.insert("note", at="now() + interval '1 hour'")
        at = datetime(2031, 1, 1, tzinfo=UTC)
        assert (await service.reschedule(job, caller=ADMIN, execute_at=at)).execute_at == at
        assert (await engine.job(job))["execute_at"] == at
        await service.run_now(job, caller=ADMIN)
        done = await engine.until(job, "completed")
        assert done["started_at"] >= done["execute_at"]
        assert (await refused(service.run_now(job, caller=ADMIN))).code == "job_finished"


async def test_bulk_actions_are_bounded_and_say_when_more_is_left(pool: Pool, service: JobService) -> None:
    """An empty filter is refused; a limit leaves the rest, and the next call takes it."""
    assert (await refused(service.many.cancel(BulkCall(JobFilter(), ADMIN)))).code == "empty_filter"
    for _ in range(5):
        await insert(pool, "noop", at="now() + interval '1 hour'")
    other = await insert(pool, "other", at="now() + interval '1 hour'")
    first = await service.many.cancel(BulkCall(JobFilter(task_type="noop"), ADMIN, limit=3))
    assert (first.changed, first.more) == (3, True)
    second = await service.many.cancel(BulkCall(JobFilter(task_type="noop"), ADMIN, limit=3))
    assert (second.changed, second.more) == (2, False)
    assert (await service.get(other)).status == "pending"


async def test_dead_letters_of_both_kinds_are_listed_and_requeued(pool: Pool, service: JobService) -> None:
    """Jobs and outbox messages; a second requeue takes nothing again."""
    job = await insert(pool, "noop", at="now() + interval '1 hour'")
    await pool.execute("UPDATE tickwright.scheduled_tasks SET status = 'failed' WHERE id = $1", job)
    await pool.execute(
        "INSERT INTO tickwright.outbox_dead (id, destination, key, payload, headers, created_at, attempts) "
        """VALUES (5, 'pg:x', 'k', '{"a":1}', '{"h":"1"}', now(), 3)"""
    )
    listed = await service.dead_letters.list(limit=1)
    rest = await service.dead_letters.list(limit=1, cursor=listed.next)
    assert {(item.kind, item.id) for item in [*listed.items, *rest.items]} == {("job", job), ("outbox", 5)}
    for expected in ([5], []):
        done = await service.dead_letters.requeue("outbox", caller=ADMIN, subject="pg:x")
        assert done.ids == expected
    message = await pool.fetchrow("SELECT * FROM tickwright.outbox WHERE id = 5")
    assert (message["key"], message["payload"], message["attempts"]) == ("k", '{"a": 1}', 0)
    assert (await service.dead_letters.requeue("job", caller=ADMIN, subject="noop")).ids == [job]
    assert (await service.get(job)).status == "pending"


@pytest.mark.parametrize("kind", ["job", "outbox"])
async def test_a_requeue_that_continues_takes_nothing_twice(
    pool: Pool, service: JobService, kind: Literal["job", "outbox"]
) -> None:
    """A row that dies again meanwhile is left to the next requeue; ``count`` includes it."""
    ids = [await make_dead(pool, kind) for _ in range(3)]
    dead = service.dead_letters
    counted = await dead.count(kind, subject="pg:x")
    assert (counted.requeued, counted.ids, counted.more, counted.dry_run) == (3, [], False, True)
    first = await dead.requeue(kind, caller=ADMIN, subject="pg:x", limit=2)
    assert (first.ids, first.more) == (ids[:2], True)
    await make_dead(pool, kind, ids[0])
    second = await dead.requeue(kind, caller=ADMIN, subject="pg:x", limit=2, cursor=first.next)
    assert (second.ids, second.more, second.next) == (ids[2:], False, None)
    assert (await dead.count(kind, subject="pg:x")).requeued == 1
    assert (await dead.count(kind, subject="pg:y")).requeued == 0
    for empty in (dead.count(kind), dead.requeue(kind, caller=ADMIN, ids=())):
        error = await refused(empty)
        assert (error.code, error.message) == ("empty_filter", "say which dead letters: ids or subject")
    other = dead.requeue(kind, caller=ADMIN, subject="pg:y", cursor=first.next)
    assert (await refused(other)).code == "invalid_cursor"


async def make_dead(pool: Pool, kind: str, again: int | None = None) -> int:
    """Make a dead letter of the subject ``pg:x``, or of a requeued one again."""
    if kind == "job":
        job = again or await insert(pool, "pg:x")
        await pool.execute("UPDATE tickwright.scheduled_tasks SET status = 'failed' WHERE id = $1", job)
        return job
    sql = """
    INSERT INTO tickwright.outbox_dead (id, destination, key, payload, headers, created_at, attempts)
    VALUES (coalesce($1, 1 + (SELECT count(*) FROM tickwright.outbox_dead)), 'pg:x', 'k', '{}', '{}', now(), 3)
    RETURNING id
    """
    await pool.execute("DELETE FROM tickwright.outbox WHERE id = $1", again)
    return int(await pool.fetchval(sql, again))


async def test_the_listing_shows_live_and_finished_jobs_under_one_name(pool: Pool, service: JobService) -> None:
    """Every state is in one listing; a filter by state finds it in any table."""
    states = ("pending", "completed", "failed", "cancelled")
    for state in states:
        job = await insert(pool, "noop", at="now() + interval '1 hour'")
        if state != "pending":
            await pool.execute("UPDATE tickwright.scheduled_tasks SET status = $2 WHERE id = $1", job, state)
    assert [job.status for job in (await service.list(ListQuery())).items] == list(reversed(states))
    for state in states:
        found = await service.list(ListQuery(statuses=(JobStatus(state),)))
        assert [job.status for job in found.items] == [state]


LATER = "now() + interval '1 hour'"
WORKER = (
    "INSERT INTO tickwright.workers (id, name, roles, version, lease_until) "
    "VALUES (1, 'w', '{worker}', '0', now() + interval '1 minute'); "
)
FACTS = """UPDATE tickwright.workers SET facts = '{{"{}": ["{}"]}}'"""
AT_HTTP = "UPDATE tickwright.task_types SET target = 'http://localhost/';"
GRANTED = (
    WORKER + "UPDATE tickwright.task_types SET concurrency = 2; "
    "INSERT INTO tickwright.workers (id, name, roles, version, lease_until, facts) "
    "VALUES (2, 'v', '{worker}', '0', now() + interval '1 minute', '{\"handlers\": [\"noop\"]}'); "
    "INSERT INTO tickwright.type_grants VALUES ('noop', 1, 0), ('noop', 2, 2);"
)
FULL = """UPDATE tickwright.workers SET facts = facts || '{"counters": {"jobs": {"running": 4, "slots": 4}}}';"""
ROOM = """UPDATE tickwright.workers SET facts = facts || '{"counters": {"jobs": {"running": 3, "slots": 4}}}'"""
SHARED = """UPDATE tickwright.workers
   SET facts = '{"counters": {"jobs": {"running": 3, "slots": 4}, "types": {"noop": {"running": 3}}}}'"""
LIMITED = (
    "UPDATE tickwright.task_types SET rate_per_s = 0.01; "
    "INSERT INTO tickwright.type_rates VALUES ('noop', now() + interval '1 minute')"
)
RAISED = LIMITED + "; UPDATE tickwright.task_types SET rate_per_s = 1"
HELD = "UPDATE tickwright.scheduled_tasks SET status = 'processing', owner = 1, started_at = now()"


@pytest.mark.parametrize(
    ("at", "before", "codes"),
    [
        (LATER, "SELECT 1", ["not_due", "no_worker"]),
        ("now()", "SELECT 1", ["no_worker"]),
        ("now()", "UPDATE tickwright.task_types SET paused_at = now()", ["type_paused", "no_worker"]),
        ("now()", "UPDATE tickwright.task_types SET gone_at = now()", ["type_gone", "no_worker"]),
        ("now()", "DELETE FROM tickwright.task_types", ["type_unknown", "no_worker"]),
        ("now()", WORKER, ["due"]),
        ("now()", WORKER + FACTS.format("handlers", "other"), ["no_handler"]),
        ("now()", WORKER + FACTS.format("handlers", "noop"), ["due"]),
        ("now()", WORKER + AT_HTTP + FACTS.format("brokers", "kafka"), ["no_handler"]),
        ("now()", WORKER + AT_HTTP + FACTS.format("brokers", "http"), ["due"]),
        ("now()", WORKER + "UPDATE tickwright.workers SET facts = '{\"handlers\": null}'", ["due"]),
        ("now()", GRANTED, ["due"]),
        ("now()", GRANTED + "UPDATE tickwright.workers SET lost_at = now() WHERE id = 2", ["no_place_granted"]),
        (
            "now()",
            GRANTED + "UPDATE tickwright.workers SET facts = '{\"handlers\": []}' WHERE id = 2",
            ["no_place_granted"],
        ),
        ("now()", WORKER + FULL, ["workers_full"]),
        (LATER, WORKER + FULL, ["not_due"]),
        ("now()", WORKER + ROOM, ["due"]),
        ("now()", WORKER + SHARED, ["workers_full"]),
        ("now()", WORKER + 'UPDATE tickwright.workers SET facts = \'{"counters": {"jobs": {"running": 4}}}\'', ["due"]),
        ("now()", GRANTED + FULL, ["workers_full"]),
        ("now()", GRANTED + FULL + ROOM + " WHERE id = 2", ["due"]),
        ("now()", GRANTED + FULL + ROOM + " WHERE id = 1", ["no_place_granted"]),
        ("now()", LIMITED, ["no_worker", "rate_limited"]),
        ("now()", RAISED, ["no_worker"]),
        (
            LATER,
            "UPDATE tickwright.scheduled_tasks SET retry_at = now() + interval '9 s'",
            ["waits_for_retry", "no_worker"],
        ),
        (LATER, "UPDATE tickwright.scheduled_tasks SET expires_at = now()", ["not_due", "expires", "no_worker"]),
        ("now()", "UPDATE tickwright.scheduled_tasks SET status = 'completed'", ["completed"]),
        ("now()", "UPDATE tickwright.scheduled_tasks SET status = 'failed'", ["dead_letter"]),
        ("now()", "UPDATE tickwright.scheduled_tasks SET status = 'cancelled'", ["cancelled"]),
        ("now()", WORKER + HELD, ["held"]),
        ("now()", HELD, ["lease_expired"]),
    ],
)
async def test_explain_names_each_obstacle(
    pool: Pool, service: JobService, at: str, before: str, codes: list[str]
) -> None:
    """Each cause has its code and text, in the order of the chain."""
    job = await insert(pool, "noop", at=at)
    await pool.execute(before)
    explanation = await service.explain(job)
    assert [reason.code for reason in explanation.reasons] == codes
    assert explanation.summary == explanation.reasons[0].text


async def test_explain_counts_held_jobs_and_those_before(pool: Pool, service: JobService) -> None:
    """For a saturated type it says how many run and how many jobs are before this one."""
    await pool.execute("UPDATE tickwright.task_types SET concurrency = 1")
    await pool.execute(WORKER)
    first, _, last = [await insert(pool, "noop") for _ in range(3)]
    await pool.execute(
        "UPDATE tickwright.scheduled_tasks SET status = 'processing', owner = 1, started_at = now() WHERE id = $1",
        first,
    )
    reasons = {reason.code: reason.text for reason in (await service.explain(last)).reasons}
    assert set(reasons) == {"concurrency_saturated", "queued_behind"}
    assert reasons["queued_behind"].startswith("1 due")
    assert reasons["concurrency_saturated"].startswith("1 of 1")


@pytest.mark.parametrize("priority", [5, 0, -5])
async def test_explain_counts_held_jobs_of_every_priority(pool: Pool, service: JobService, priority: int) -> None:
    """A limit and a worker's slots apply to the whole type; the jobs before this one are of its priority only."""
    await pool.execute(GRANTED + "UPDATE tickwright.type_grants SET granted = 1 WHERE worker = 2")
    held, waits = await insert(pool, "noop", priority=priority), await insert(pool, "noop")
    await insert(pool, "noop", priority=7, at="now() - interval '1 hour'")
    await pool.execute(HELD.replace("owner = 1", "owner = 2") + f" WHERE id = {held}")
    assert [reason.code for reason in (await service.explain(waits)).reasons] == ["no_place_granted"]
    await pool.execute("UPDATE tickwright.task_types SET concurrency = 1")
    [reason] = (await service.explain(waits)).reasons
    assert reason.code == "concurrency_saturated"
    assert reason.text.startswith("1 of 1")


async def test_explain_says_that_the_workers_are_full(database_url: str) -> None:
    """Each heartbeat reports a worker's slots and how many are taken; the reason has both numbers."""
    may_end = asyncio.Event()

    async def long(_job: Job) -> None:
        await may_end.wait()

    async def other(_job: Job) -> None:
        return None

    handlers, limits = {"long": long, "other": other}, WorkerLimits(concurrency=2)
    async with running_engine(database_url, handlers, terms=SHORT, limits=limits) as engine:
        for _ in range(2):
            await engine.until(await engine.insert("long"), "processing")
        await eventually_async(lambda: engine.worker.runner.busy == 2)
        waits = await engine.insert("other")
        service = JobService(engine.pool, enqueuer=Enqueuer(engine.pool), allow_target=allow_all)

        async def full() -> str:
            [reason] = (await service.explain(waits)).reasons
            return reason.text if reason.code == "workers_full" else ""

        assert await eventually_async(full) == (
            "the live workers that can run it (1) have no free slot for it: 2 of 2 run jobs"
        )
        may_end.set()
        await engine.until(waits, "completed")


async def test_explain_says_that_the_type_has_its_share_of_the_slots(database_url: str) -> None:
    """The free quarter is for other types: a worker of 256 slots runs 192 jobs of one type."""
    may_end = asyncio.Event()

    async def long(_job: Job) -> None:
        await may_end.wait()

    limits = WorkerLimits(concurrency=4)
    async with running_engine(database_url, {"long": long}, terms=SHORT, limits=limits) as engine:
        for _ in range(3):
            await engine.until(await engine.insert("long"), "processing")
        waits = await engine.insert("long")
        service = JobService(engine.pool, enqueuer=Enqueuer(engine.pool), allow_target=allow_all)

        async def full() -> str:
            reasons = (await service.explain(waits)).reasons
            return next((reason.text for reason in reasons if reason.code == "workers_full"), "")

        assert (await eventually_async(full)).endswith(
            "3 of 4 run jobs; one type may take three quarters of the slots that others leave"
        )
        may_end.set()
        await engine.until(waits, "completed")


async def test_one_refused_row_does_not_fail_the_calls_collected_with_it(pool: Pool, service: JobService) -> None:
    """PostgreSQL refuses a row that passed the checks: the other callers of the batch still have their jobs."""
    jobs = [NewJob("noop", payload='"ok"'), NewJob("noop", payload="not json"), NewJob("noop", payload="2")]
    answers = await asyncio.gather(*(service.enqueuer.schedule(job) for job in jobs), return_exceptions=True)
    assert [isinstance(answer, Exception) for answer in answers] == [False, True, False]
    assert await pool.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks") == 2


async def test_explain_says_that_the_type_has_its_share_of_the_threads(database_url: str) -> None:
    """A regression: with free slots and hanging synchronous handlers, it said that the next claim takes the job."""
    may_end = threading.Event()

    def hangs(_job: Job) -> None:
        may_end.wait(60)

    limits = WorkerLimits(concurrency=16, threads=4)
    async with running_engine(database_url, {"hangs": hangs}, terms=SHORT, limits=limits) as engine:
        try:
            for _ in range(3):
                await engine.until(await engine.insert("hangs"), "processing")
            waits = await engine.insert("hangs")
            service = JobService(engine.pool, enqueuer=Enqueuer(engine.pool), allow_target=allow_all)

            async def full() -> str:
                reasons = (await service.explain(waits)).reasons
                return next((reason.text for reason in reasons if reason.code == "workers_full"), "")

            assert await eventually_async(full) == (
                "the live workers that can run it (1) have no free thread for it: 3 of 4 run jobs; "
                "one type may take three quarters of the threads that others leave"
            )
        finally:
            may_end.set()
        await engine.until(waits, "completed")
