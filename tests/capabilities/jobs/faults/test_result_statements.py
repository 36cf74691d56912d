"""The fences of every statement that writes a result of an attempt, one by one.

`test_jobs_fences.py` shows with real workers that a zombie's result changes nothing. Here each statement meets its two
enemies directly: a session that no longer owns the job, and the owner's own write of an earlier attempt.
"""

from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from tickwright.capabilities.jobs.worker import claims as claims_store
from tickwright.capabilities.jobs.worker.claims import ClaimStore
from tickwright.capabilities.jobs.worker.result_writer import FENCED_BY_JOB
from tickwright.store.pool import Pool, open_pool

OWNER, ZOMBIE = 2, 1
FENCE = 7
COLUMNS: Mapping[str, tuple[list[Any], ...]] = {
    "complete": (),
    "complete_and_forget": (),
    "complete_with_result": (["{}"],),
    "retry": ([0.0], ["failed"], ["no luck"]),
    "fail": (["timed_out"], ["no luck"]),
    "cancel_held": (["stopped"],),
    "cancel_unstarted": (["expired"],),
    "release": (),
    "release_with_error": (["stopped"],),
    "snooze": ([0.0],),
    "defer": ([1.0], ["no key"]),
}
NEW_JOB = "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) VALUES (now(), 'h') RETURNING id"
RUN = """
UPDATE ONLY tickwright.scheduled_tasks SET status = 'processing', owner = $2, attempts = 2, fence = $3 WHERE id = $1
"""


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[Pool]:
    """A pool of connections to a new database."""
    pool = await open_pool(database_url)
    yield pool
    await pool.close()


async def _written(pool: Pool, name: str, token: int, fence: int) -> bool:
    """Return whether a result for a running job of `OWNER` changed its row; the count says the same."""
    live = "SELECT t::text FROM ONLY tickwright.scheduled_tasks t WHERE id = $1"
    job_id = await pool.fetchval(NEW_JOB)
    await pool.execute(RUN, job_id, OWNER, FENCE)
    before, store = await pool.fetchval(live, job_id), ClaimStore(pool)
    if name == "report_progress":
        counted = int(await store.report_progress(token, job_id, fence, '{"percent": 50}'))
    else:
        fences = ([fence],) if name in FENCED_BY_JOB else ()
        counted = await store.write(name, token, [job_id], *fences, *COLUMNS[name])
    changed = before != await pool.fetchval(live, job_id)
    assert counted == int(changed)
    return bool(changed)


def _remove(monkeypatch: pytest.MonkeyPatch, name: str, guard: str, harmless: str) -> None:
    original = claims_store._RESULTS[name]
    mutated = original.replace(guard, harmless)
    assert mutated != original
    monkeypatch.setattr(claims_store, "_RESULTS", MappingProxyType({**claims_store._RESULTS, name: mutated}))


def test_every_statement_is_tested() -> None:
    """A new statement gets its line here."""
    assert {*COLUMNS, "report_progress"} == {*claims_store._RESULTS}


@pytest.mark.parametrize("name", [*COLUMNS, "report_progress"])
async def test_a_result_counts_for_the_owner_only(pool: Pool, name: str) -> None:
    """J3: a session without the job changes nothing, even if it knows the present fence."""
    assert not await _written(pool, name, ZOMBIE, FENCE)
    assert await _written(pool, name, OWNER, FENCE)


@pytest.mark.parametrize("name", [*sorted(FENCED_BY_JOB), "report_progress"])
async def test_a_late_write_of_an_earlier_attempt_changes_nothing(pool: Pool, name: str) -> None:
    """J3: the owner's own second write, after a lost answer, does not meet its next attempt of the job."""
    assert not await _written(pool, name, OWNER, FENCE - 1)


@pytest.mark.parametrize("name", [*COLUMNS, "report_progress"])
async def test_the_suite_notices_a_result_without_its_owner(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Without the owner in the statement a zombie's result counts."""
    _remove(monkeypatch, name, "t.owner = $1", "$1::bigint IS NOT NULL")
    assert await _written(pool, name, ZOMBIE, FENCE)


@pytest.mark.parametrize("name", [*sorted(FENCED_BY_JOB), "report_progress"])
async def test_the_suite_notices_a_result_without_the_fence_of_its_job(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Without the job's fence a late write ends the next attempt."""
    guard = "t.fence = $4" if name == "report_progress" else "t.fence = o.fence"
    _remove(monkeypatch, name, guard, "$4::bigint IS NOT NULL" if name == "report_progress" else "true")
    assert await _written(pool, name, OWNER, FENCE - 1)
