"""Rows that searches by tags and metadata read beside 50,000 jobs without any."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from kit.fix_plans import FILL, Planner
from tickwright.capabilities.jobs.admin.search import SEARCHES, JobFilter, JobQuery, details_sql

TABLE, PKEY = "scheduled_tasks", "scheduled_tasks_pkey"
LIVE = "ONLY tickwright.scheduled_tasks"
LONG, NEWEST, READ_MAX = timedelta(seconds=60), 2**63 - 1, 2_000
DETAILS = "scheduled_tasks_details"
TAGGED = """
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, tags, metadata)
SELECT now(), 'tagged', CASE WHEN n % 5000 = 0 THEN '{all,rare}'::text[] ELSE '{all}' END,
       jsonb_build_object('tenant', n / 5, 'n', n)
  FROM generate_series(1, 10000) AS n
"""
BOUND = SEARCHES["bound_detailed"].replace("$1", "'60s'")


@pytest.fixture(scope="module")
def crowd(module_url: str) -> Iterator[Planner]:
    """A planner on jobs without tags and 10,000 with them."""
    planner = Planner(module_url)
    for sql in (FILL, TAGGED, "ANALYZE tickwright.scheduled_tasks"):
        planner.run(sql)
    yield planner
    planner.close()


@pytest.mark.parametrize(
    ("which", "rows"),
    [
        (JobFilter(tags=("rare",)), 2),
        (JobFilter(tags=("all", "rare")), 2),
        (JobFilter(metadata=("tenant=7",)), 5),
        (JobFilter(tags=("all",), metadata=("tenant=7", "n=36")), 1),
        (JobFilter(tags=("none",)), 0),
    ],
)
def test_tags_and_metadata_that_few_jobs_have_are_read_from_their_index(
    crowd: Planner, which: JobFilter, rows: int
) -> None:
    """As many rows as match, among 50,000 without any and 10,000 with others."""
    tags, metadata = which.details()
    sql = details_sql(which, [LIVE])
    with crowd.transaction():
        crowd.run(BOUND)
        crowd.prepare("detailed", sql)
        plan = crowd.explain("detailed", tags, metadata, 5001)
    assert plan.scans_of(TABLE) == {DETAILS}, plan.text
    assert max(node["Actual Rows"] for node in plan.nodes) == rows, plan.text


def test_a_tag_of_many_jobs_is_read_up_to_the_bound(crowd: Planner) -> None:
    """One row more than a narrowed search takes: then the search walks."""
    with crowd.transaction():
        crowd.run(BOUND)
        crowd.prepare("detailed", details_sql(JobFilter(tags=("all",)), [LIVE]))
        plan = crowd.explain("detailed", ["all"], None, 101)
    assert plan.root["Actual Rows"] == 101, plan.text


def test_a_search_of_a_frequent_tag_walks_up_to_its_bound(crowd: Planner) -> None:
    """As any other search, from the primary key."""
    which = JobFilter(tags=("all",), metadata=("n=-1",))
    sql = JobQuery(which).sql("search_newest", source=LIVE, within="")
    plan = crowd.explain_page(sql, *JobQuery(which).arguments(), LONG, NEWEST, READ_MAX, 51)
    assert plan.scans_of(TABLE) == {PKEY}, plan.text
    assert plan.rows_of(TABLE) <= READ_MAX + 1, plan.text


def test_a_claim_changes_no_indexed_column_of_a_job_with_tags(crowd: Planner) -> None:
    """It is a HOT update: no index gets an entry, that of tags and metadata among them."""
    crowd.run("SELECT pg_stat_force_next_flush()")
    sql = "SELECT n_tup_upd - n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'scheduled_tasks'"
    before = crowd.run(sql)
    crowd.run(
        "UPDATE tickwright.scheduled_tasks SET status = 'processing', owner = 1, fence = 1 WHERE tags @> '{rare}'"
    )
    crowd.run("SELECT pg_stat_force_next_flush()")
    crowd.run("SELECT pg_stat_clear_snapshot()")
    assert crowd.run(sql) == before
