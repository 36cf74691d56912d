"""Looking for jobs: text as it was written, bounds that hold, and counts that say what they do not know."""

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
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks that end by their rows alone, however busy the machine is."""
    monkeypatch.setattr(looking, "READ_TIME", timedelta(seconds=30))
    monkeypatch.setattr(looking, "COUNT_TIME", timedelta(seconds=30))


async def found(service: JobService, **which: Any) -> list[int]:
    """The ids on the first page."""
    return [job.id for job in (await service.list(ListQuery(**which))).items]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("100%", True), ("100_", False), ("%", True), ("_", False), ("\\", False), ("ZÜRICH", True), ("zürich", True),
        ("rate", True), ("'; --", False), ('"n": 9223372036854775807', True), ("9223372036854775808", False),
    ],
)  # fmt: skip
async def test_each_character_of_a_text_means_itself(
    pool: Pool, service: JobService, text: str, *, matches: bool
) -> None:
    """A percent sign is a percent sign; upper and lower case are the same; 64-bit numbers are found as they are."""
    payload = {"n": 2**63 - 1, "note": "Rate 100% of zürich"}
    job = await insert(pool, "noop", at=LATER, payload=payload)
    assert await found(service, text=text) == ([job] if matches else [])
    assert (await service.count(JobFilter(text=text))).counts["pending"] == matches


@pytest.mark.usefixtures("patient")
async def test_a_text_is_looked_for_in_the_key_the_error_and_the_payload(pool: Pool, service: JobService) -> None:
    """And not in a payload that its caller may not see: who could search there could guess it."""
    by_key = await insert(pool, "noop", at=LATER, idempotency_key="Needle-1")
    by_error = await insert(pool, "noop", at=LATER, error_message="no needle here")
    by_payload = await insert(pool, "noop", at=LATER, payload={"deep": [{"needle": 1}]})
    await insert(pool, "noop", at=LATER)
    assert await found(service, text="NEEDLE") == [by_payload, by_error, by_key]
    assert await found(service, text="needle", in_payload=False) == [by_error, by_key]


@pytest.mark.usefixtures("patient")
async def test_a_page_stops_looking_and_the_next_one_goes_on(
    pool: Pool, service: JobService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No page looks at more rows than the bound, and going through all pages finds each match once."""
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


@pytest.mark.usefixtures("patient")
async def test_a_type_with_few_jobs_is_found_below_any_number_of_others(
    pool: Pool, service: JobService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its live jobs come from the index of the claims; those of the history are merged in where they belong."""
    monkeypatch.setattr(looking, "READ_MAX", 50)
    rare = [await insert(pool, "rare", at=LATER) for _ in range(4)]
    await pool.execute("UPDATE tickwright.scheduled_tasks SET status = 'completed' WHERE id = $1", rare[1])
    await pool.execute(MANY, "noop", 300)
    page = await service.list(ListQuery(task_type="rare"))
    assert [job.id for job in page.items] == sorted(rare, reverse=True)
    assert page.next is None


@pytest.mark.usefixtures("patient")
async def test_what_a_worker_holds_is_found_by_its_session(pool: Pool, service: JobService) -> None:
    """Live ones alone, and of that session alone; the state ``processing`` finds them of all sessions."""
    jobs = [await insert(pool, "noop") for _ in range(3)]
    await pool.execute(HOLD, jobs[0], 7)
    await pool.execute(HOLD, jobs[2], 2**62)
    assert await found(service, worker=7) == [jobs[0]]
    assert await found(service, worker=2**62) == [jobs[2]]
    assert await found(service, worker=8) == []
    assert await found(service, statuses=(JobStatus.PROCESSING,)) == [jobs[2], jobs[0]]
    assert (await service.count(JobFilter(worker=7))).counts == {
        "pending": 0, "processing": 1, "completed": 0, "failed": 0, "cancelled": 0,
    }  # fmt: skip


@pytest.mark.usefixtures("patient")
async def test_counts_are_exact_below_the_bound_and_say_so_above(
    pool: Pool, service: JobService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each state has its count; one that stopped is named, and ``partial`` tells a bounded look from a large number."""
    for state in ("completed", "failed", "cancelled"):
        job = await insert(pool, state, at=LATER)
        await pool.execute("UPDATE tickwright.scheduled_tasks SET status = $2 WHERE id = $1", job, state)
    await pool.execute(MANY, "noop", 20)
    held = await insert(pool, "noop")
    await pool.execute(HOLD, held, 7)
    said = await service.count(JobFilter())
    assert said.counts == {"pending": 20, "processing": 1, "completed": 1, "failed": 1, "cancelled": 1}
    assert (said.at_least, said.partial) == ([], False)
    assert (await service.count(JobFilter(statuses=(JobStatus.FAILED,)))).counts == {"failed": 1}
    assert (await service.count(JobFilter(task_type="failed"))).counts["failed"] == 1
    assert (await service.count(JobFilter(task_type="noop"))).counts["pending"] == 20
    monkeypatch.setattr(looking, "COUNT_MAX", 10)
    capped = await service.count(JobFilter())
    assert capped.counts["pending"] <= 10
    assert "pending" in capped.at_least
    few = await service.count(JobFilter(text="nowhere"))
    assert (few.counts["pending"], "pending" in few.at_least, few.partial) == (0, True, True)


async def test_a_look_whose_time_is_up_says_how_far_it_came(
    pool: Pool, service: JobService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Huge payloads cost time, not rows: a look that has none left ends after one row, and the next goes on there."""
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
def test_looks_at_several_tables_give_every_match_once_and_in_order(
    jobs: list[tuple[bool, bool]], limit: int, rows_max: int
) -> None:
    """Whatever is in which table, and wherever a look stops: page by page all matches, from high ids to low ones."""
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
    """What the statement answers."""
    below = [row for row in rows[::-1] if row[0] < before]
    told = [
        {"id": number, "searched": place, "ended": place == len(below), "matches": match}
        for place, (number, match) in enumerate(below[:rows_max], 1)
        if match or place in {len(below), rows_max}
    ]
    return told[: limit + 1]


def test_an_error_list_written_by_hand_breaks_no_answer() -> None:
    """The column is Tickwright's, but plain SQL may write to it; the row's own attempt is shown all the same."""
    for text in ("{}", "[1]", '"x"', json.dumps([{"attempt": "one"}])):
        row = {"attempt_errors": text, "status": "pending", "started_at": None, "due_at": None}
        assert attempt_log(row) == []
