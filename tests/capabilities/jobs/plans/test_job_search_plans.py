"""Rows that searches and counts of jobs read beside 200,000 others: up to their bound, or by the index of the few."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from kit.fix_plans import Planner
from tickwright.capabilities.jobs.admin import search
from tickwright.capabilities.jobs.admin.search import SEARCHES, JobFilter, JobQuery
from tickwright.store.queries import load

TABLE = "scheduled_tasks"
DUE, PKEY = "scheduled_tasks_due", "scheduled_tasks_pkey"
LIVE = "ONLY tickwright.scheduled_tasks"
LONG = timedelta(seconds=60)
NEWEST = 2**63 - 1
READ_MAX = 2_000
FILL = """
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload)
SELECT now() + interval '1 second' * (CASE WHEN n % 2 = 0 THEN -n ELSE n END), 'bulk', jsonb_build_object('n', n)
  FROM generate_series(1, 200000) AS n
"""
RARE = "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) SELECT now(), 'rare' FROM generate_series(1, 3)"
NOTHING: tuple[Any, ...] = (None, None, None, None, None, "", None, None, None, None, None)
MISSED: tuple[Any, ...] = (None, None, None, None, ["%nowhere%", "%nowhere%"], "", None, None, None, None, None)


@pytest.fixture(scope="module")
def crowd(module_url: str) -> Iterator[Planner]:
    """A planner whose plans were made while the table was empty, on 200,000 jobs and three of another type below."""
    planner = Planner(module_url)
    planner.run(RARE)
    planner.run(FILL)
    planner.run("ANALYZE tickwright.scheduled_tasks")
    yield planner
    planner.close()


def sql_of(name: str, *, text: str | None = None, **parts: str) -> str:
    """Return the statement of a search or a count as it is run."""
    return JobQuery(JobFilter(text=text)).sql(name, **parts)


@pytest.mark.parametrize("name", ["search_newest", "search_oldest"])
def test_a_search_that_finds_nothing_reads_no_more_rows_than_its_bound(crowd: Planner, name: str) -> None:
    """Two thousand rows of 200,000, from the primary key, and nothing is sorted."""
    sql = sql_of(name, text="nowhere", source=LIVE, within="")
    start = NEWEST if name == "search_newest" else 0
    plan = crowd.explain_page(sql, *MISSED, LONG, start, READ_MAX, 51)
    assert plan.scans_of(TABLE) == {PKEY}, plan.text
    assert plan.rows_of(TABLE) <= READ_MAX + 1, plan.text


def test_a_page_without_a_filter_reads_what_it_shows(crowd: Planner) -> None:
    """A search ends when its page is full."""
    plan = crowd.explain_page(sql_of("search_newest", source=LIVE, within=""), *NOTHING, LONG, NEWEST, READ_MAX, 51)
    assert plan.rows_of(TABLE) <= 60, plan.text


def test_a_search_by_ids_probes_for_each(crowd: Planner) -> None:
    """Three ids cost three probes, however many other jobs there are."""
    sql = sql_of("search_newest", source=LIVE, within=SEARCHES["within"])
    plan = crowd.explain_page(sql, *NOTHING, LONG, NEWEST, READ_MAX, 51, [1, 2, 3])
    assert plan.scans_of(TABLE) == {PKEY}, plan.text
    assert plan.rows_of(TABLE) <= 3, plan.text


def test_the_few_jobs_of_a_type_are_read_from_the_due_index(crowd: Planner) -> None:
    """Three rows are read to find three among 200,000."""
    plan = crowd.explain_page(SEARCHES["of_type"], "rare", 5001)
    assert plan.scans_of(TABLE) == {DUE}, plan.text
    assert plan.rows_of(TABLE) <= 3, plan.text


def test_a_workers_jobs_are_searched_among_the_first_of_each_claim_range(crowd: Planner) -> None:
    """A backlog of 100,000 is not read to find three running jobs."""
    plan = crowd.explain_page(SEARCHES["held_by"], 7, READ_MAX, 1000)
    assert plan.scans_of(TABLE) == {DUE}, plan.text
    assert plan.rows_of(TABLE) <= READ_MAX + 20, plan.text


@pytest.mark.parametrize("values", [NOTHING, MISSED])
def test_counts_of_live_jobs_are_bounded(crowd: Planner, values: tuple[Any, ...]) -> None:
    """Twice the bound, for pending and for running jobs, also where nothing matches."""
    sql = sql_of("count_live", text="x" if values is MISSED else None)
    plan = crowd.explain_page(sql, *values, LONG, READ_MAX, READ_MAX)
    assert plan.scans_of(TABLE) == {DUE}, plan.text
    assert plan.rows_of(TABLE) <= 2 * READ_MAX + 20, plan.text


def test_a_count_of_one_type_reads_that_type_alone(crowd: Planner) -> None:
    """200,000 others are not read to count three."""
    plan = crowd.explain_page(sql_of("count_live"), None, "rare", *NOTHING[2:], LONG, READ_MAX, READ_MAX)
    assert plan.rows_of(TABLE) <= 20, plan.text


def test_counts_of_finished_jobs_are_bounded(crowd: Planner) -> None:
    """The newest ones up to the bound, read backwards."""
    plan = crowd.explain_page(sql_of("count_walk", source=LIVE), *NOTHING, LONG, READ_MAX)
    assert plan.scans_of(TABLE) == {PKEY}, plan.text
    assert plan.rows_of(TABLE) <= READ_MAX, plan.text


def test_an_action_locks_and_moves_by_primary_key(crowd: Planner) -> None:
    """A thousand ids cost a thousand probes."""
    crowd.prepare("lock_many", sql_of("lock_many"))
    assert crowd.explain("lock_many", *NOTHING, [1, 2, 3]).scans_of(TABLE) == {PKEY}
    crowd.prepare("move_many", SEARCHES["move_many"])
    assert crowd.explain("move_many", [1, 2, 3], None, None).scans_of(TABLE) == {PKEY}
    crowd.prepare("count_ids", sql_of("count_ids"))
    plan = crowd.explain("count_ids", *NOTHING, [1, 2, 3])
    assert PKEY in plan.scans_of(TABLE)
    assert plan.rows_of(TABLE) <= 3, plan.text
    crowd.prepare("get_many", search.GET_MANY)
    assert crowd.explain("get_many", [1, 2, 3]).rows_of(TABLE) <= 3


def test_the_smallest_statements_read_few_rows(crowd: Planner) -> None:
    """The days come from the catalogue, and facts of sessions from a row each."""
    crowd.prepare("days", SEARCHES["days"])
    assert crowd.explain("days").scans_of(TABLE) == set()
    crowd.prepare("counters", load("tickwright.capabilities.jobs.sql", "overview.sql")["type_counters"])
    assert crowd.explain("counters").rows_of("workers") <= 1000
