"""Edits of pending jobs: under their version, never of a job that a worker holds, whatever races with them."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import asyncpg
import msgspec
import pytest

from kit.api import ADMIN, RunningApi, allow_all, running_api
from kit.engine import SHORT, connect, insert, job_row, policy, running_engine
from kit.mutants import mutate
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.admin.service import JobService
from tickwright.capabilities.jobs.enqueue import Enqueuer
from tickwright.capabilities.jobs.model import ClaimPlan, ClaimRange, Job
from tickwright.capabilities.jobs.requests import JobEdit, TaskTypeRequest
from tickwright.capabilities.jobs.worker.claims import ClaimRequest, ClaimStore
from tickwright.domain.errors import Rejected
from tickwright.store.pool import Pool

LATER = "now() + interval '1 hour'"
SESSION = (
    "INSERT INTO tickwright.workers (id, name, roles, version, lease_until) "
    "VALUES (7, 'w', '{worker}', '0', now() + interval '1 hour')"
)
BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
CLAIM = ClaimRequest(7, ClaimPlan(("noop",), (10,), 10), [ClaimRange("noop", 0)], timedelta(seconds=1))
BY_SQL = "UPDATE tickwright.scheduled_tasks SET payload = '{\"n\": 2}', priority = 5 WHERE id = $1"


@pytest.fixture
async def service(pool: Pool) -> JobService:
    """The service, a type ``noop``, and a session that can claim."""
    made = JobService(pool, enqueuer=Enqueuer(pool), allow_target=allow_all)
    await made.types.put("noop", TaskTypeRequest(target="python:noop"), caller=ADMIN)
    await pool.execute(SESSION)
    return made


@pytest.fixture
async def api(database_url: str) -> Any:
    """A running API."""
    async with running_api(database_url) as running:
        yield running


async def refused(action: Any) -> Rejected:
    """Return the error of a refused action."""
    with pytest.raises(Rejected) as caught:
        await action
    return caught.value


async def test_an_edit_changes_what_it_names_and_is_a_new_version(api: RunningApi) -> None:
    """Everything else stays; the audit trail says which fields changed, and has no payload and no metadata."""
    job = await insert(api.pool, "noop", at=LATER, payload={"n": 1}, tags=["a"], metadata='{"m": 1}')
    path = f"/v1/jobs/{job}"
    changes: list[dict[str, Any]] = [
        {"payload": {"n": "canary"}}, {"priority": 7}, {"tags": ["b", "c"]}, {"metadata": {"m": "canary"}},
        {"payload": [1], "priority": -1, "tags": [], "metadata": None},
    ]  # fmt: skip
    expected: dict[str, Any] = {"payload": {"n": 1}, "priority": 0, "tags": ["a"], "metadata": {"m": 1}}
    for number, change in enumerate(changes, start=2):
        done = (await api.operator.send("PATCH", path, {**change, "version": number - 1})).json
        assert done == {"id": job, "status": "pending", "outcome": "edited", "execute_at": None, "version": number}
        expected |= change
        shown = (await api.operator.get(path)).json
        assert {name: shown[name] for name in expected} == expected
        assert shown["version"] == number
    row = await job_row(api.pool, job)
    assert (row["tags"], row["metadata"], row["edits"]) == (None, None, 5)
    lines = (await api.admin.get("/v1/audit?action=jobs.edit")).json["items"]
    assert len(lines) == 5
    assert lines[0]["before"] == {"version": 5, "priority": 7, "tags": ["b", "c"]}
    assert lines[0]["after"] == {
        "version": 6, "edited": ["payload", "priority", "tags", "metadata"], "priority": -1, "tags": [],
    }  # fmt: skip
    assert "canary" not in json.dumps(lines)


async def test_an_edit_that_changes_nothing_keeps_the_version(service: JobService, pool: Pool) -> None:
    """The same values again are no edit, by the service and by plain SQL."""
    job = await insert(pool, "noop", at=LATER, payload={"n": 1}, tags=["a"])
    same = JobEdit(payload=msgspec.Raw(b'{"n": 1}'), tags=("a",), priority=0)
    assert (await service.edit(job, same, caller=ADMIN)).version == 1
    await pool.execute("UPDATE tickwright.scheduled_tasks SET payload = payload, priority = 0 WHERE id = $1", job)
    assert (await service.get(job)).version == 1


async def check_versions(service: JobService, pool: Pool) -> None:
    """Of two edits of one version, one is done; the error of the other one has the present version."""
    job = await insert(pool, "noop", at=LATER)
    edits = [service.edit(job, JobEdit(version=1, priority=number), caller=ADMIN) for number in (1, 2)]
    answers = await asyncio.gather(*edits, return_exceptions=True)
    lost = [answer for answer in answers if isinstance(answer, Rejected)]
    assert len(lost) == 1, "EDIT-1 broken: two edits of one version"
    assert (lost[0].code, lost[0].http_status, lost[0].details["version"]) == ("version_conflict", 409, 2)


async def test_one_of_two_edits_of_a_version_is_done(service: JobService, pool: Pool) -> None:
    """EDIT-1."""
    await check_versions(service, pool)


@pytest.mark.mutant
async def test_the_suite_notices_edits_without_the_version(
    service: JobService, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant: the version is not compared."""
    mutate(monkeypatch, JobService.edit, 'edit.version != before["version"]', "False")
    with pytest.raises(AssertionError, match="EDIT-1 broken"):
        await check_versions(service, pool)


async def test_a_claim_and_a_retry_are_new_versions(service: JobService, pool: Pool) -> None:
    """A version that was read before the claim is refused after it, also where the job is pending again."""
    job = await insert(pool, "noop", max_attempts=3)
    store = ClaimStore(pool)
    (row,) = (await store.claim(CLAIM)).rows
    held = await refused(service.edit(job, JobEdit(version=1, priority=1), caller=ADMIN))
    assert (held.code, held.details["state"]) == ("job_not_pending", "processing")
    await store.write("release", 7, [job], [row.fence])
    late = await refused(service.edit(job, JobEdit(version=1, priority=1), caller=ADMIN))
    assert (late.code, late.details["version"]) == ("version_conflict", 1 + row.fence)
    assert (await service.edit(job, JobEdit(version=1 + row.fence, priority=1), caller=ADMIN)).version == 2 + row.fence


@pytest.mark.parametrize("status", ["cancelled", "completed", "failed"])
async def test_a_finished_job_is_not_edited(service: JobService, pool: Pool, status: str) -> None:
    """Its state is in the error; plain SQL changes no row."""
    job = await insert(pool, "noop", at=LATER)
    await pool.execute("UPDATE tickwright.scheduled_tasks SET status = $2 WHERE id = $1", job, status)
    ended = await refused(service.edit(job, JobEdit(priority=1), caller=ADMIN))
    assert (ended.code, ended.http_status, ended.details["state"]) == ("job_finished", 409, status)
    assert await pool.execute(BY_SQL, job) == "UPDATE 0"


async def test_an_edit_without_a_change_and_of_no_job_is_refused(service: JobService) -> None:
    """With what to send, and 404."""
    assert (await refused(service.edit(1, JobEdit(version=1), caller=ADMIN))).code == "empty_edit"
    assert (await refused(service.edit(1, JobEdit(priority=1), caller=ADMIN))).code == "job_not_found"
    assert (await refused(service.edit(1, JobEdit(priority=101), caller=ADMIN))).code == "invalid_priority"
    large = JobEdit(payload=msgspec.Raw(b'"' + b"x" * 70_000 + b'"'))
    assert (await refused(service.edit(1, large, caller=ADMIN))).code == "payload_too_large"


async def check_held(pool: Pool) -> None:
    """A job that a worker holds keeps the payload that the worker has read."""
    job = await insert(pool, "noop", payload={"n": 1})
    assert len((await ClaimStore(pool).claim(CLAIM)).rows) == 1
    sets = ("payload = '2'", "priority = 5", "tags = '{a}'", "metadata = '{\"a\": 1}'")
    for change in sets:
        update = pool.execute(f"UPDATE tickwright.scheduled_tasks SET {change} WHERE id = $1", job)
        answers: tuple[Any, ...] = await asyncio.gather(update, return_exceptions=True)
        answer = answers[0]
        assert isinstance(answer, asyncpg.CheckViolationError), f"EDIT-2 broken: {change} of a held job"
        assert (answer.constraint_name, bool(answer.hint)) == ("scheduled_tasks_running", True)


async def test_plain_sql_edits_no_held_job(service: JobService, pool: Pool) -> None:
    """EDIT-2, for each of the columns."""
    await check_held(pool)


@pytest.mark.mutant
async def test_the_suite_notices_edits_of_held_jobs(service: JobService, pool: Pool) -> None:
    """A mutant of the trigger: it does not look at the owner."""
    text = await pool.fetchval("SELECT pg_get_functiondef('tickwright.edit_job'::regproc)")
    assert text.count("OLD.owner IS NOT NULL") == 1
    await pool.execute(text.replace("OLD.owner IS NOT NULL", "false"))
    with pytest.raises(AssertionError, match="EDIT-2 broken"):
        await check_held(pool)


@pytest.mark.parametrize("way", ["service", "SQL"])
async def test_an_edit_that_waits_for_a_claim_finds_the_job_held(
    service: JobService, pool: Pool, database_url: str, way: str
) -> None:
    """The claim commits between the edit's start and its write."""
    job = await insert(pool, "noop", payload={"n": 1})
    claiming = await connect(database_url)
    async with claiming.transaction():
        (row,) = (await ClaimStore(pool).claim(CLAIM, claiming)).rows
        edit = (
            service.edit(job, JobEdit(version=1, priority=5), caller=ADMIN)
            if way == "service"
            else pool.execute(BY_SQL, job)
        )
        editing = asyncio.ensure_future(edit)
        await eventually_async(lambda: pool.fetchval(BLOCKED), what="the edit waits")
    with pytest.raises((Rejected, asyncpg.CheckViolationError)) as caught:
        await editing
    assert getattr(caught.value, "code", "job_not_pending") == "job_not_pending"
    assert ((await job_row(pool, job))["priority"], row.payload) == (0, '{"n": 1}')
    await claiming.close()


async def test_a_claim_passes_by_a_job_that_is_edited_and_takes_it_afterwards(
    service: JobService, pool: Pool, database_url: str
) -> None:
    """It gets the edited payload, in the new order of priorities; it never waits for the edit."""
    job = await insert(pool, "noop", payload={"n": 1})
    editing = await connect(database_url)
    async with editing.transaction():
        await editing.execute(BY_SQL, job)
        assert (await ClaimStore(pool).claim(CLAIM)).rows == []
    (row,) = (await ClaimStore(pool).claim(CLAIM)).rows or (
        await ClaimStore(pool).claim(
            ClaimRequest(7, ClaimPlan(("noop",), (10,), 10), [ClaimRange("noop", 5)], timedelta(seconds=1))
        )
    ).rows
    assert (row.id, row.payload, row.priority) == (job, '{"n": 2}', 5)
    await editing.close()


async def test_a_running_worker_starts_an_edited_job_with_what_it_has_now(database_url: str) -> None:
    """Also where it was edited while the worker slept, and after a failed attempt."""
    seen = []

    async def work(job: Job) -> None:
        seen.append((job.payload, job.tags))
        if job.attempt == 1:
            raise ValueError("again")

    kinds = {"work": policy("work", max_attempts=3)}
    async with running_engine(database_url, {"work": work}, kinds=kinds, terms=SHORT) as engine:
        service = JobService(engine.pool, enqueuer=Enqueuer(engine.pool), allow_target=allow_all)
        job = await engine.insert("work", at=LATER, payload={"n": 1})
        await service.edit(job, JobEdit(payload=msgspec.Raw(b'{"n":2}'), priority=9, tags=("t",)), caller=ADMIN)
        await service.run_now(job, caller=ADMIN)
        row = await engine.until(job, "completed")
    assert seen == [({"n": 2}, ["t"])] * 2
    assert (row["edits"], row["fence"], row["tags"]) == (1, 2, ["t"])


async def test_a_requeued_dead_letter_has_a_higher_version(service: JobService, pool: Pool) -> None:
    """Its edits are kept with its fence, so that no version comes twice."""
    job = await insert(pool, "noop", at=LATER)
    await service.edit(job, JobEdit(priority=1), caller=ADMIN)
    await pool.execute("UPDATE tickwright.scheduled_tasks SET status = 'failed' WHERE id = $1", job)
    assert (await service.get(job)).version == 2
    await service.retry(job, caller=ADMIN)
    assert (await service.get(job)).version == 2
    assert (await service.edit(job, JobEdit(priority=2, version=2), caller=ADMIN)).version == 3
