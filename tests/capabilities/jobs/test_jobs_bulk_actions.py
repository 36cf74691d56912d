"""Actions on all jobs that match a filter: bounded, repeatable, and without effect on jobs that a worker holds."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kit.api import ADMIN, allow_all
from kit.engine import insert, job_row, running_engine
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.admin import bulk_actions
from tickwright.capabilities.jobs.admin import search as looking
from tickwright.capabilities.jobs.admin.bulk_actions import BulkCall, BulkMove
from tickwright.capabilities.jobs.admin.search import JobFilter
from tickwright.capabilities.jobs.admin.service import JobService
from tickwright.capabilities.jobs.enqueue import Enqueuer
from tickwright.capabilities.jobs.model import Job
from tickwright.capabilities.jobs.states import JobStatus
from tickwright.domain.errors import Rejected
from tickwright.store.pool import Pool

LATER = "now() + interval '1 hour'"
MANY = (
    "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) "
    "SELECT now() + interval '1 hour', 'noop' FROM generate_series(1, $1::int)"
)
HOLD = "UPDATE tickwright.scheduled_tasks SET status = 'processing', owner = 7, fence = 1, attempts = 1 WHERE id = $1"
ALL = JobFilter(task_type="noop")


@pytest.fixture
def service(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> JobService:
    """The service; its searches end by their rows alone."""
    monkeypatch.setattr(looking, "READ_TIME", timedelta(seconds=30))
    return JobService(pool, enqueuer=Enqueuer(pool), allow_target=allow_all)


def call(which: JobFilter = ALL, limit: int = 1000, **more: Any) -> BulkCall:
    """Return one call of an admin."""
    return BulkCall(which, ADMIN, limit, **more)


async def test_run_now_is_repeated_without_a_cursor_until_nothing_is_left(pool: Pool, service: JobService) -> None:
    """Due jobs are not moved, so that repeated calls come to an end."""
    await pool.execute(MANY, 25)
    calls = 0
    while (done := await service.many.run_now(call(limit=10))).more:
        calls += 1
        assert len(done.ids) == 10
        assert calls < 5
    assert (calls, len(done.ids)) == (2, 5)
    assert (await service.many.run_now(call())).ids == []
    assert await pool.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks WHERE execute_at <= now()") == 25


async def test_a_shift_moves_each_job_once_however_many_calls_it_takes(pool: Pool, service: JobService) -> None:
    """The cursor has the instant of the first call: jobs moved since are skipped, also those that came in below."""
    await pool.execute(MANY, 25)
    before = dict(await pool.fetch("SELECT id, execute_at FROM tickwright.scheduled_tasks"))
    cursor, moved = None, list[int]()
    while True:
        done = await service.many.reschedule(call(limit=10, cursor=cursor), BulkMove(shift=timedelta(hours=-2)))
        moved += done.ids
        cursor = done.next
        if not done.more:
            break
    after = dict(await pool.fetch("SELECT id, execute_at FROM tickwright.scheduled_tasks"))
    assert sorted(moved) == sorted(before)
    assert {after[job] - before[job] for job in before} == {timedelta(hours=-2)}


async def test_a_delay_counts_from_the_first_call_and_a_fixed_instant_needs_no_cursor(
    pool: Pool, service: JobService
) -> None:
    """All jobs of one action get one time; jobs that have it already are not moved again."""
    await pool.execute(MANY, 5)
    first = await service.many.reschedule(call(limit=3), BulkMove(delay=timedelta(hours=3)))
    await service.many.reschedule(call(limit=3, cursor=first.next), BulkMove(delay=timedelta(hours=3)))
    assert await pool.fetchval("SELECT count(DISTINCT execute_at) FROM tickwright.scheduled_tasks") == 1
    at = datetime(2031, 1, 1, tzinfo=UTC)
    assert (await service.many.reschedule(call(limit=3), BulkMove(execute_at=at))).more
    assert (await service.many.reschedule(call(limit=3), BulkMove(execute_at=at))).changed == 2
    assert (await service.many.reschedule(call(limit=3), BulkMove(execute_at=at))).changed == 0


async def test_a_dry_run_returns_the_number_and_changes_nothing(pool: Pool, service: JobService) -> None:
    """Pending and held ones apart, as the real call would answer; neither jobs nor the audit change."""
    await pool.execute(MANY, 12)
    held = await insert(pool, "noop")
    await pool.execute(HOLD, held)
    dead = await insert(pool, "noop", at=LATER)
    await pool.execute("UPDATE tickwright.scheduled_tasks SET status = 'failed' WHERE id = $1", dead)
    before = await pool.fetch("SELECT id, xmin::text FROM tickwright.scheduled_tasks ORDER BY id")
    cancel = await service.many.cancel(call(limit=5, dry_run=True))
    assert (cancel.changed, cancel.requested, cancel.ids, cancel.more, cancel.dry_run) == (12, 1, [], False, True)
    assert (await service.many.run_now(call(dry_run=True))).changed == 12
    assert (await service.many.reschedule(call(dry_run=True), BulkMove(shift=timedelta(hours=1)))).changed == 12
    assert (await service.many.retry(call(dry_run=True))).requeued == 1
    assert await pool.fetch("SELECT id, xmin::text FROM tickwright.scheduled_tasks ORDER BY id") == before
    assert await pool.fetchval("SELECT count(*) FROM tickwright.audit") == 0


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        (JobFilter(text="100%"), [1]),
        (JobFilter(idempotency_key="k2"), [2]),
        (JobFilter(idempotency_key="none"), []),
        (JobFilter(statuses=(JobStatus.PENDING,), task_type="other"), [0]),
        (JobFilter(statuses=(JobStatus.COMPLETED,)), []),
        (JobFilter(execute_to=datetime(2000, 1, 1, tzinfo=UTC)), []),
    ],
)
async def test_an_action_has_the_filter_of_the_listing(
    pool: Pool, service: JobService, which: JobFilter, expected: list[int]
) -> None:
    """What a filter shows is what an action on it changes, and no other job."""
    jobs = [
        await insert(pool, "other", at=LATER),
        await insert(pool, "noop", at=LATER, payload={"share": "100%"}),
        await insert(pool, "noop", at=LATER, idempotency_key="k2"),
    ]
    assert (await service.many.cancel(call(which))).ids == [jobs[place] for place in expected]


async def test_a_job_that_is_claimed_between_search_and_lock_is_left_to_its_worker(
    pool: Pool, service: JobService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search takes no lock; the state under the lock decides, so a held job is not moved and keeps its fence."""
    jobs = [await insert(pool, "noop", at=LATER) for _ in range(3)]
    lock = bulk_actions._lock

    async def claimed_first(connection: Any, wanted: Any, ids: Any) -> list[int]:
        await pool.execute(HOLD, jobs[1])
        return await lock(connection, wanted, ids)

    monkeypatch.setattr(bulk_actions, "_lock", claimed_first)
    assert (await service.many.run_now(call())).ids == [jobs[0], jobs[2]]
    row = await job_row(pool, jobs[1])
    assert (row["status"], row["owner"], row["fence"]) == ("processing", 7, 1)
    assert row["execute_at"] > row["created_at"] + timedelta(minutes=30)


async def test_a_job_that_left_the_filter_before_the_lock_is_left_alone(
    pool: Pool, service: JobService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The filter is evaluated again under the lock: a job that no longer matches is not cancelled."""
    jobs = [await insert(pool, "noop", at=LATER, payload={"t": "needle"}) for _ in range(3)]
    lock = bulk_actions._lock

    async def edited_first(connection: Any, wanted: Any, ids: Any) -> list[int]:
        await pool.execute("UPDATE tickwright.scheduled_tasks SET payload = '{}' WHERE id = $1", jobs[1])
        return await lock(connection, wanted, ids)

    monkeypatch.setattr(bulk_actions, "_lock", edited_first)
    assert (await service.many.cancel(call(JobFilter(text="needle")))).ids == [jobs[0], jobs[2]]
    assert (await job_row(pool, jobs[1]))["status"] == "pending"


async def test_a_job_that_a_user_moved_since_the_first_call_is_skipped(pool: Pool, service: JobService) -> None:
    """An action of many calls takes effect as of its first one; a later change by another user is kept."""
    await pool.execute(MANY, 6)
    first = await service.many.reschedule(call(limit=3), BulkMove(shift=timedelta(hours=1)))
    last = await pool.fetchval("SELECT max(id) FROM tickwright.scheduled_tasks")
    moved = await service.reschedule(last, caller=ADMIN, delay=timedelta(days=9))
    rest = await service.many.reschedule(call(cursor=first.next), BulkMove(shift=timedelta(hours=1)))
    assert (len(rest.ids), last in rest.ids) == (2, False)
    assert (await job_row(pool, last))["execute_at"] == moved.execute_at


async def test_a_row_that_a_user_holds_locked_is_skipped(pool: Pool, service: JobService) -> None:
    """One open transaction does not delay a thousand other jobs."""
    jobs = [await insert(pool, "noop", at=LATER) for _ in range(3)]
    async with pool.acquire() as other, other.transaction():
        await other.execute("SELECT FROM tickwright.scheduled_tasks WHERE id = $1 FOR UPDATE", jobs[0])
        assert (await service.many.cancel(call())).ids == jobs[1:]


@pytest.mark.matrix
@pytest.mark.parametrize("action", ["cancel", "run_now", "reschedule"])
async def test_many_actions_beside_workers_run_each_job_once_or_not_at_all(database_url: str, action: str) -> None:
    """Whatever is cancelled, moved or run now: no job starts twice, none early, none after its cancel."""
    started: list[int] = []

    async def note(job: Job) -> None:
        started.append(job.id)

    async with running_engine(database_url, {"note": note}) as engine:
        service = JobService(engine.pool, enqueuer=Enqueuer(engine.pool), allow_target=allow_all)
        which = JobFilter(task_type="note")
        rows = await engine.pool.fetch(
            "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) "
            "SELECT now() + n * interval '4 ms', 'note' FROM generate_series(1, 400) n RETURNING id"
        )
        cancelled: set[int] = set()
        for _ in range(25):
            if action == "cancel":
                answer = await service.many.cancel(call(which, limit=7))
                gone = await engine.pool.fetch(
                    "SELECT id FROM tickwright.scheduled_tasks WHERE id = ANY ($1) AND status = 'cancelled'", answer.ids
                )
                cancelled |= {row["id"] for row in gone} - set(started)
            elif action == "run_now":
                await service.many.run_now(call(which, limit=20))
            else:
                await service.many.reschedule(call(which, limit=20), BulkMove(delay=timedelta(milliseconds=50)))
            await asyncio.sleep(0)

        async def empty() -> bool:
            return not await engine.pool.fetchval("SELECT count(*) FROM ONLY tickwright.scheduled_tasks")

        await eventually_async(empty, 30)
        assert len(started) == len(set(started))
        assert not cancelled & set(started)
        states = dict(
            await engine.pool.fetch("SELECT status, count(*) FROM tickwright.scheduled_tasks GROUP BY status")
        )
        assert sum(states.values()) == len(rows)
        assert states.get("completed", 0) == len(started)
        early = "SELECT count(*) FROM tickwright.scheduled_tasks WHERE completed_at < execute_at AND status = $1"
        assert await engine.pool.fetchval(early, "completed") == 0


@pytest.mark.parametrize(
    ("move", "code"),
    [
        (BulkMove(), "execute_at_or_delay"),
        (BulkMove(delay=timedelta(), shift=timedelta(1)), "execute_at_or_delay"),
        (BulkMove(shift=timedelta()), "invalid_shift"),
        (BulkMove(shift=timedelta(days=-4000)), "invalid_shift"),
    ],
)
async def test_a_move_needs_exactly_one_time_within_bounds(service: JobService, move: BulkMove, code: str) -> None:
    """One of the three fields, and a shift within ten years."""
    with pytest.raises(Rejected) as refused:
        await service.many.reschedule(call(), move)
    assert refused.value.code == code


async def test_a_shift_out_of_the_calendar_moves_nothing(pool: Pool, service: JobService) -> None:
    """One job out of range keeps all where they are: the answer applies to all."""
    jobs = [await insert(pool, "noop", at=LATER), await insert(pool, "noop", at="'9998-12-01Z'")]
    before = await pool.fetch("SELECT id, execute_at FROM tickwright.scheduled_tasks ORDER BY id")
    with pytest.raises(Rejected) as refused:
        await service.many.reschedule(call(JobFilter(ids=tuple(jobs))), BulkMove(shift=timedelta(days=300)))
    assert refused.value.code == "time_out_of_range"
    assert refused.value.message.endswith("nothing was moved")
    assert await pool.fetch("SELECT id, execute_at FROM tickwright.scheduled_tasks ORDER BY id") == before


async def test_a_cursor_of_another_filter_is_refused(pool: Pool, service: JobService) -> None:
    """Its position has no meaning there."""
    await pool.execute(MANY, 5)
    done = await service.many.run_now(call(limit=2))
    for which in (JobFilter(task_type="other"), JobFilter(task_type="noop", text="x")):
        with pytest.raises(Rejected) as refused:
            await service.many.run_now(call(which, cursor=done.next))
        assert refused.value.code == "invalid_cursor"
    with pytest.raises(Rejected) as refused:
        await service.many.cancel(call(cursor=done.next))
    assert refused.value.code == "invalid_cursor"


async def test_a_retry_takes_no_filter_by_state(service: JobService) -> None:
    """Only failed jobs can be retried, so another state is refused."""
    with pytest.raises(Rejected) as refused:
        await service.many.retry(call(JobFilter(statuses=(JobStatus.PENDING,))))
    assert refused.value.code == "only_failed"
