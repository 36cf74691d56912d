"""Which index each hot query of the worker uses, with 50,000 pending jobs and with a plan from an empty table."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from kit.fix_plans import FILL, Planner
from tickwright.capabilities.jobs.admin.search import EXPLAIN
from tickwright.capabilities.jobs.model import ClaimPlan, ClaimRange
from tickwright.capabilities.jobs.worker import claims as claims_store
from tickwright.capabilities.jobs.worker.claims import ClaimRequest

TABLE = "scheduled_tasks"
DUE, PKEY = "scheduled_tasks_due", "scheduled_tasks_pkey"
HORIZON = timedelta(milliseconds=200)
TOKEN = 7
CLAIM = claims_store._CLAIMS["claim"]


def open_session(planner: Planner) -> None:
    """Register the session that claims; a second call is harmless."""
    planner.run(
        "INSERT INTO tickwright.workers (id, name, roles, version, lease_until) "
        "VALUES (7, 'p', '{worker}', '0', now() + interval '1 hour') ON CONFLICT DO NOTHING"
    )


def claim_of(
    rows_max: int, *ranges: ClaimRange, bounded: bool = False, checked: Sequence[ClaimRange] = ()
) -> tuple[Any, ...]:
    """Return the arguments of a claim of so many rows of each range's type."""
    names = tuple(dict.fromkeys(each.task_type for each in ranges))
    plan = ClaimPlan(names, (rows_max,) * len(names), 1000)
    request = ClaimRequest(TOKEN, plan, ranges, HORIZON, bounded=bounded, checked=checked)
    return claims_store._claim_arguments(request)


def result_sql(planner: Planner, name: str) -> str:
    """Return a result's statement for today's history table."""
    history = planner.run("SELECT tickwright.ensure_history(clock_timestamp())")[0][0]
    text = {**claims_store._RESULTS, **claims_store._CLAIMS}[name]
    return text.format(history=history, **claims_store._FRAGMENTS)


@pytest.mark.parametrize("rows_max", [1, 1000])
def test_a_claim_reads_the_due_index_and_never_the_table(crowded: Planner, rows_max: int) -> None:
    """One range of one index per claim range; the rows themselves by their tid."""
    open_session(crowded)
    crowded.prepare(f"claim_{rows_max}", CLAIM)
    plan = crowded.explain(f"claim_{rows_max}", *claim_of(rows_max, ClaimRange("good", 0)))
    assert plan.scans_of(TABLE) == {DUE, "tid"}, plan.text


def test_a_claim_with_nothing_due_reads_few_pages(crowded: Planner) -> None:
    """An idle claim is cheap, whatever is pending for later."""
    open_session(crowded)
    crowded.prepare("claim_idle", CLAIM)
    idle = crowded.explain("claim_idle", *claim_of(1000, ClaimRange("none", 0)))
    assert idle.blocks < 40, idle.text
    assert idle.scans_of(TABLE) <= {DUE, "tid"}


def test_a_claim_probes_each_range_that_may_be_empty_once(crowded: Planner) -> None:
    """A probe is one step into the index, however many jobs a range has."""
    open_session(crowded)
    crowded.prepare("claim_doubting", CLAIM)
    few, many = [
        crowded.explain("claim_doubting", *claim_of(1, ClaimRange("none", 0), checked=checked))
        for checked in ([], [ClaimRange("good", 0), *(ClaimRange("good", priority) for priority in range(1, 101))])
    ]
    assert many.scans_of(TABLE) <= {DUE, "tid"}, many.text
    assert many.blocks - few.blocks < 101 * 5, many.text


def test_a_plan_made_while_the_table_was_empty_still_uses_the_index(planner: Planner) -> None:
    """The pool's settings prevent a scan by a worker that starts on an empty table which fills up."""
    open_session(planner)
    planner.prepare("claim", CLAIM)
    planner.explain("claim", *claim_of(1000, ClaimRange("good", 0)))
    planner.prepare("complete", result_sql(planner, "complete"))
    planner.explain("complete", TOKEN, "{1}")
    planner.prepare("reclaim", result_sql(planner, "reclaim"))
    planner.explain("reclaim", [TOKEN], "lost")
    planner.run(FILL)
    assert planner.explain("claim", *claim_of(1000, ClaimRange("good", 0))).scans_of(TABLE) == {DUE, "tid"}
    assert planner.explain("complete", TOKEN, f"{{{str(list(range(1, 1000)))[1:-1]}}}").scans_of(TABLE) == {PKEY}
    assert "seq" not in planner.explain("reclaim", [TOKEN], "lost").scans_of(TABLE)


RESULTS: dict[str, tuple[Any, ...]] = {
    "complete": ("{1, 2, 3}",),
    "complete_and_forget": ("{1, 2, 3}",),
    "complete_with_result": ([1, 2, 3], ["1", "2", "3"]),
    "retry": ([1, 2, 3], [1, 1, 1], [1.0, 1.0, 1.0], ["failed"] * 3, ["e", "e", "e"]),
    "fail": ([1, 2, 3], ["failed"] * 3, ["e", "e", "e"]),
    "cancel_held": ([1, 2, 3], ["e", "e", "e"]),
    "release": ([1, 2, 3], [1, 1, 1]),
    "release_with_error": ([1, 2, 3], [1, 1, 1], ["e", "e", "e"]),
    "snooze": ([1, 2, 3], [1, 1, 1], [1.0, 1.0, 1.0]),
    "check_held": ([1, 2, 3],),
}


@pytest.mark.parametrize("name", RESULTS)
def test_every_result_finds_its_jobs_by_primary_key(crowded: Planner, name: str) -> None:
    """A batch of results costs a probe per job, however many wait."""
    crowded.prepare(f"result_{name}", result_sql(crowded, name))
    plan = crowded.explain(f"result_{name}", TOKEN, *RESULTS[name])
    assert plan.scans_of(TABLE) == {PKEY}, plan.text


def test_a_reclaim_reads_the_due_index(crowded: Planner) -> None:
    """It reads due jobs, not those pending for later, and takes the lost ones by primary key."""
    crowded.prepare("reclaim", result_sql(crowded, "reclaim"))
    plan = crowded.explain("reclaim", [TOKEN], "lost")
    assert plan.scans_of(TABLE) == {DUE, PKEY}, plan.text
    due = crowded.run("SELECT count(*) FROM ONLY tickwright.scheduled_tasks WHERE execute_at <= now()")[0][0]
    assert 1000 <= due < 1100  # the first pending ones become due while the suite runs
    assert plan.blocks < 4 * due, f"{plan.blocks} pages for {due} due jobs of 50,000"


def test_stray_jobs_of_a_session_are_found_by_the_due_index(crowded: Planner) -> None:
    """It reads due jobs, not those pending for later, and releases by primary key."""
    crowded.prepare("release_unknown", result_sql(crowded, "release_unknown"))
    plan = crowded.explain("release_unknown", TOKEN, list(range(1000)), [0] * 1000)
    assert plan.scans_of(TABLE) == {DUE, PKEY}, plan.text
    due = crowded.run("SELECT count(*) FROM ONLY tickwright.scheduled_tasks WHERE execute_at <= now()")[0][0]
    assert plan.blocks < 4 * due, f"{plan.blocks} pages for {due} due jobs of 50,000"


def test_whether_a_session_owns_a_job_is_read_from_the_due_index(crowded: Planner) -> None:
    """The query of a session that leaves."""
    crowded.prepare("owns", claims_store.OWNED)
    plan = crowded.explain("owns", TOKEN)
    assert plan.scans_of(TABLE) == {DUE}, plan.text
    due = crowded.run("SELECT count(*) FROM ONLY tickwright.scheduled_tasks WHERE execute_at <= now()")[0][0]
    assert plan.blocks < 4 * due, f"{plan.blocks} pages for {due} due jobs of 50,000"


@pytest.mark.parametrize("name", ["reclaim", "release_unknown"])
def test_releasing_jobs_reads_no_ranges_of_unknown_task_types(planner: Planner, name: str) -> None:
    """Beside jobs of 20,000 unknown task types the held job is found, in the ranges of the known ones."""
    open_session(planner)
    planner.run(
        "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) "
        "SELECT now() + interval '1 d', 'unknown' || n FROM generate_series(1, 20000) n"
    )
    planner.run("INSERT INTO tickwright.task_types (name, target, paused_at) VALUES ('work', 'py', now())")
    planner.run("INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) VALUES (now(), 'work')")
    planner.run(
        "UPDATE ONLY tickwright.scheduled_tasks SET status = 'processing', owner = 7, attempts = 1, fence = 1 "
        "WHERE task_type = 'work'"
    )
    planner.prepare(name, result_sql(planner, name))
    values = ([TOKEN], "lost") if name == "reclaim" else (TOKEN, [], [])
    plan = planner.explain(name, *values)
    assert plan.blocks < 10_000, f"{plan.blocks} pages beside 20,000 names"
    written = "'{7}', 'lost'" if name == "reclaim" else "7, '{}', '{}'"
    assert planner.run(f"EXECUTE {name} ({written})")[0][0] == 1, "the held job is found"


@pytest.mark.parametrize("limit", [None, 5])
def test_why_a_job_waits_is_read_from_a_bounded_part_of_the_due_index(planner: Planner, limit: int | None) -> None:
    """Of its own range, and of the others where its type is limited: one index range each, however many jobs wait."""
    planner.run(
        "INSERT INTO tickwright.task_types (name, target, concurrency) VALUES ('good', 'python:good', %s)", limit
    )
    planner.prepare("why", EXPLAIN)
    planner.run(FILL)
    planner.run(
        "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, priority) "
        "SELECT now(), 'good', n FROM generate_series(1, 100) n"
    )
    [(job_id,)] = planner.run("SELECT max(id) FROM ONLY tickwright.scheduled_tasks WHERE priority = 0")
    plan = planner.explain("why", job_id)
    scans = {name for name in plan.scans_of(TABLE) if not name.endswith("_pkey")}
    assert scans == {DUE, "scheduled_tasks_grouped", "scheduled_tasks_in_order"}, plan.text
    others = 0 if limit is None else 100
    due = planner.run("SELECT count(*) FROM ONLY tickwright.scheduled_tasks WHERE execute_at <= now()")[0][0]
    assert plan.rows_of(TABLE) < due + 3 * others, plan.text
    assert plan.blocks < 4 * due + 20 * others, f"{plan.blocks} pages for {due} due jobs of 50,000"
