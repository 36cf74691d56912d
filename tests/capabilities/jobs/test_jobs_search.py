"""Search for jobs: text is taken literally, bounds hold, and counts say when they are partial."""

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.api import allow_all
from kit.engine import insert
from tickwright.capabilities.jobs.admin import search as looking
from tickwright.capabilities.jobs.admin.search import JobFilter, ListQuery, SearchPage, merge, read_rows
from tickwright.capabilities.jobs.admin.service import JobService
from tickwright.capabilities.jobs.admin.views import attempt_log
from tickwright.capabilities.jobs.enqueue import Enqueuer
from tickwright.capabilities.jobs.states import JobStatus
from tickwright.store.pool import Pool

LATER = "now() + interval '1 hour'"
MANY = (
    "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) "
    "SELECT now() + interval '1 hour', $1 FROM generate_series(1, $2::int)"
)
HOLD = (
    "UPDATE tickwright.scheduled_tasks "
    "SET status = 'processing', owner = $2, started_at = now(), attempts = 1, fence = 1 WHERE id = $1"
)


@pytest.fixture
def service(pool: Pool) -> JobService:
    """The service."""
    return JobService(pool, enqueuer=Enqueuer(pool), allow_target=allow_all)


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches end by their rows alone, however busy the machine is."""
    monkeypatch.setattr(looking, "READ_TIME", timedelta(seconds=30))
    monkeypatch.setattr(looking, "COUNT_TIME", timedelta(seconds=30))


async def found(service: JobService, **which: Any) -> list[int]:
    """Return the ids on the first page."""
    return [job.id for job in (await service.list(ListQuery(**which))).items]


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("100%", True), ("100_", False), ("%", True), ("_", False), ("\\", False), ("ZÜRICH", True), ("zürich", True),
        ("rate", True), ("'; --", False), ('"n": 9223372036854775807', True), ("9223372036854775808", False),
    ],
)  # fmt: skip
async def test_a_searched_text_is_taken_literally(pool: Pool, service: JobService, text: str, *, matches: bool) -> None:
    """A percent sign matches a percent sign; case is ignored; 64-bit numbers are found as they are."""
    payload = {"n": 2**63 - 1, "note": "Rate 100% of zürich"}
    job = await insert(pool, "noop", at=LATER, payload=payload)
    assert await found(service, text=text) == ([job] if matches else [])
    assert (await service.count(JobFilter(text=text))).counts["pending"] == matches


@pytest.mark.usefixtures("unhurried")
async def test_a_text_is_searched_in_the_key_the_error_and_the_payload(pool: Pool, service: JobService) -> None:
    """But not in a payload that the caller may not see: a search there would let it guess the payload."""
    by_key = await insert(pool, "noop", at=LATER, idempotency_key="Needle-1")
    by_error = await insert(pool, "noop", at=LATER, error_message="no needle here")
    by_payload = await insert(pool, "noop", at=LATER, payload={"deep": [{"needle": 1}]})
    await insert(pool, "noop", at=LATER)
    assert await found(service, text="NEEDLE") == [by_payload, by_error, by_key]
    assert await found(service, text="needle", in_payload=False) == [by_error, by_key]


@pytest.mark.usefixtures("unhurried")
async def test_a_page_ends_at_its_bound_and_the_next_one_continues(
    pool: Pool, service: JobService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No page reads more rows than the bound, and all pages together have each match once."""
    monkeypatch.setattr(looking, "READ_MAX", 40)
    monkeypatch.setattr(looking, "FEW_MAX", 3)
    await pool.execute(MANY, "noop", 90)
    wanted = [await insert(pool, "noop", at=LATER, payload={"t": "needle"}) for _ in range(3)]
    await pool.execute(MANY, "noop", 90)
    seen: list[int] = []
    pages, cursor = [], None
    while True:
        page = await service.list(ListQuery(text="needle", task_type="noop", cursor=cursor, limit=2))
        seen += [job.id for job in page.items]
        pages.append(page.searched)
        cursor = page.next
        if cursor is None:
            break
    assert seen == sorted(wanted, reverse=True)
    assert max(pages) <= 40
    assert sum(pages) >= 183


@pytest.mark.usefixtures("unhurried")
async def test_a_type_with_few_jobs_is_found_among_any_number_of_others(
    pool: Pool, service: JobService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its live jobs are read from the due index; those of the history are merged in by id."""
    monkeypatch.setattr(looking, "READ_MAX", 50)
    rare = [await insert(pool, "rare", at=LATER) for _ in range(4)]
    await pool.execute("UPDATE tickwright.scheduled_tasks SET status = 'completed' WHERE id = $1", rare[1])
    await pool.execute(MANY, "noop", 300)
    page = await service.list(ListQuery(task_type="rare"))
    assert [job.id for job in page.items] == sorted(rare, reverse=True)
    assert page.next is None


@pytest.mark.usefixtures("unhurried")
async def test_held_jobs_are_found_by_their_session(pool: Pool, service: JobService) -> None:
    """Only live ones, and only of that session; the state ``processing`` finds those of all sessions."""
    jobs = [await insert(pool, "noop") for _ in range(3)]
    await pool.execute(HOLD, jobs[0], 7)
    await pool.execute(HOLD, jobs[2], 2**62)
    assert await found(service, worker=7) == [jobs[0]]
    assert await found(service, worker=2**62) == [jobs[2]]
    assert await found(service, worker=8) == []
    assert await found(service, statuses=(JobStatus.PROCESSING,)) == [jobs[2], jobs[0]]
    assert (await service.count(JobFilter(worker=7))).counts == {
        "waiting": 0, "pending": 0, "processing": 1, "completed": 0, "failed": 0, "cancelled": 0,
    }  # fmt: skip


@pytest.mark.usefixtures("unhurried")
async def test_counts_are_exact_below_the_bound_and_marked_above(
    pool: Pool, service: JobService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each state has its count; one that ended early is named, and ``partial`` tells it from a large exact number."""
    for state in ("completed", "failed", "cancelled"):
        job = await insert(pool, state, at=LATER)
        await pool.execute("UPDATE tickwright.scheduled_tasks SET status = $2 WHERE id = $1", job, state)
    await pool.execute(MANY, "noop", 20)
    held = await insert(pool, "noop")
    await pool.execute(HOLD, held, 7)
    counted = await service.count(JobFilter())
    assert counted.counts == {"waiting": 0, "pending": 20, "processing": 1, "completed": 1, "failed": 1, "cancelled": 1}
    assert (counted.at_least, counted.partial) == ([], False)
    assert (await service.count(JobFilter(statuses=(JobStatus.FAILED,)))).counts == {"failed": 1}
    assert (await service.count(JobFilter(task_type="failed"))).counts["failed"] == 1
    assert (await service.count(JobFilter(task_type="noop"))).counts["pending"] == 20
    monkeypatch.setattr(looking, "COUNT_MAX", 10)
    capped = await service.count(JobFilter())
    assert capped.counts["pending"] <= 10
    assert "pending" in capped.at_least
    few = await service.count(JobFilter(text="nowhere"))
    assert (few.counts["pending"], "pending" in few.at_least, few.partial) == (0, True, True)


async def test_a_search_whose_time_is_up_returns_its_position(
    pool: Pool, service: JobService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large payloads cost time, not rows: a search out of time ends after one row, and the next continues there."""
    monkeypatch.setattr(looking, "READ_TIME", timedelta())
    jobs = [await insert(pool, "noop", at=LATER, payload={"t": "needle"}) for _ in range(3)]
    seen, cursor = [], None
    for _ in jobs:
        page = await service.list(ListQuery(cursor=cursor, text="needle"))
        assert page.searched == 1
        seen += [job.id for job in page.items]
        cursor = page.next
    assert (seen, cursor) == (jobs[::-1], None)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=30), st.integers(1, 6), st.integers(1, 12))
def test_searches_of_several_tables_return_every_match_once_and_in_order(
    jobs: list[tuple[bool, bool]], limit: int, rows_max: int
) -> None:
    """Wherever rows are and searches end: the pages together have all matches, from high ids to low ones."""
    tables: dict[bool, list[tuple[int, bool]]] = {True: [], False: []}
    for number, (table, match) in enumerate(jobs, 1):
        tables[table].append((number, match))
    wanted = [number for number, (_, match) in enumerate(jobs, 1) if match][::-1]
    seen: list[int] = []
    before: int | None = 10**9
    for _ in range(100):
        if before is None:
            break
        parts = [
            read_rows(_rows(rows, before, rows_max, limit), rows_max, limit, down=True) for rows in tables.values()
        ]
        page: SearchPage = merge(parts, limit)
        assert len(page.ids) <= limit
        assert page.position is None or page.position < before
        seen += page.ids
        before = page.position
    assert (seen, before) == (wanted, None)


def _rows(rows: list[tuple[int, bool]], before: int, rows_max: int, limit: int) -> Sequence[Any]:
    """Return what the statement would."""
    below = [row for row in rows[::-1] if row[0] < before]
    visible = [
        {"id": number, "searched": place, "ended": place == len(below), "matches": match}
        for place, (number, match) in enumerate(below[:rows_max], 1)
        if match or place in {len(below), rows_max}
    ]
    return visible[: limit + 1]


def test_a_malformed_attempt_log_breaks_no_answer() -> None:
    """Plain SQL may write to the column; the attempt of the row itself is shown all the same."""
    for text in ("{}", "[1]", '"x"', json.dumps([{"attempt": "one"}])):
        row = {"attempt_errors": text, "status": "pending", "started_at": None, "due_at": None}
        assert attempt_log(row) == []
