"""Parts and steps of reports are found by the index that each statement names, however many reports have ended."""

from collections.abc import Iterator
from datetime import timedelta
from itertools import product
from typing import Any

import pytest

from kit.fix_plans import Planner
from tickwright.capabilities.reports.parts.store import SQL as PARTS
from tickwright.capabilities.reports.requests.store import SQL as RECORDS
from tickwright.capabilities.reports.retention import SQL as UPKEEP

ROWS = 20_000
FILL = f"""
INSERT INTO tickwright.reports
       (type, query_key, requester, plan, status, deadline_at, step_at, check_at, checksum, finished_at, file_key,
        file_expires_at, owner)
SELECT 'sales', md5(n::text) || md5(n::text), 'u' || n % 100, '{{}}', o.status, now() + interval '1 h',
       CASE WHEN o.open THEN now() + (n % 100 - 5) * interval '1 s' END, now(), CASE WHEN NOT o.open THEN 'x' END,
       CASE WHEN NOT o.open THEN now() - n * interval '1 min' END, CASE WHEN NOT o.open THEN 'k' || n END,
       CASE WHEN NOT o.open THEN now() + (n - 300) * interval '1 min' END, CASE WHEN o.open AND n % 1000 = 0 THEN 7 END
  FROM generate_series(1, {ROWS}) AS n,
       LATERAL (SELECT n % 50 = 0 AS open, CASE WHEN n % 50 = 0 THEN 'querying' ELSE 'finished' END AS status) AS o;
UPDATE tickwright.reports SET cleared_at = now() WHERE id % 50 <> 0 AND id > 200;
UPDATE tickwright.reports SET file_key = NULL WHERE id % 50 <> 0 AND id % 10 = 1 AND id > 200;
INSERT INTO tickwright.report_parts
       (report_id, listener, stage, kind, served_by, required, state, due_at, owner, place, checksum)
SELECT r.id, l, 1, 'function', 'function:' || l, true,
       CASE WHEN o.over THEN 'done' WHEN o.held THEN 'running' ELSE 'due' END,
       now() + (r.id % 100 - 5) * interval '1 s', CASE WHEN o.held THEN 7 END, CASE WHEN o.over THEN 'redis' END,
       CASE WHEN o.over THEN 'x' END
  FROM tickwright.reports r CROSS JOIN LATERAL (SELECT r.finished_at IS NOT NULL AS over, r.owner = 7 AS held) AS o,
       unnest(ARRAY['lefts', 'rights']) AS l;
INSERT INTO tickwright.report_data (report_id, listener, epoch, data)
SELECT report_id, listener, 1, 'x' FROM tickwright.report_parts WHERE state = 'done' LIMIT 5000;
"""
TABLES = ("reports", "report_parts", "report_data")
KEYS = {"reports": "reports_pkey", "report_parts": "report_parts_pkey", "report_data": "report_data_pkey"}
PKEY, PARTS_PKEY, DATA_PKEY = ({key} for key in KEYS.values())
RECORD_CASES = {
    "running_report": (["u0", "x" * 64], {"reports": {"reports_running"}}),
    "lock_report": ([50], {"reports": PKEY}),
    "note_querying": ([[50, 100]], {"reports": PKEY}),
    "note_part_end": ([50, 1], {"reports": PKEY, "report_parts": PARTS_PKEY}),
    "claim_steps": ([1, 4, 0, ["sales"], 1], {"reports": {"reports_steps", "reports_pkey"}}),
    "next_step_in": ([], {"reports": {"reports_steps"}}),
    "report_parts": ([50], {"report_parts": PARTS_PKEY}),
    "confirm_steps": ([[50, 100], [0, 0], 7], {"reports": PKEY | {"reports_owner"}}),
    "waiting_steps": ([7], {"reports": {"reports_steps", "reports_owner"}}),
    "leave_step": ([50, 0, 7, None], {"reports": PKEY}),
    "wait_for_slot": ([50, 0, 7], {"reports": PKEY}),
    "count_check": ([50, 0, 7, 60.0], {"reports": PKEY}),
    "begin_merge": ([50, 0, 7, 1], {"reports": PKEY}),
    "begin_try": ([50, 0, 7], {"reports": PKEY}),
    "drop_open_parts": ([50], {"report_parts": PARTS_PKEY}),
    "next_stage": ([50, 0, 7, "{}", 60.0], {"reports": PKEY}),
    "open_stage": ([50, 2, 5.0], {"report_parts": PARTS_PKEY}),
    "restart_report": ([50, 0, 7, 60.0], {"reports": PKEY}),
    "reset_parts": ([50, 2, 5.0], {"report_parts": PARTS_PKEY}),
    "delete_data": ([50], {"report_data": DATA_PKEY}),
    "finish_report": ([50, 0, 7, 1, "a", "k", 1, 1, "x", "{}", 60.0], {"reports": PKEY}),
    "fail_report": ([50, 0, 7, "c", "t", "{}"], {"reports": PKEY}),
    "cancel_report": ([50], {"reports": PKEY}),
    "notify_end": ([50], {"reports": PKEY}),
    "release_unknown_steps": ([7, [50], [1]], {"reports": {"reports_owner"}}),
    "reclaim_steps": ([[7]], {"reports": {"reports_owner"}}),
}
OWNED = {"reports": {"reports_owner"}, "report_parts": {"report_parts_owner"}}
PART_CASES = {
    "next_part_in": ([["function:lefts", "function:rights"]], {"report_parts": {"report_parts_due"}}),
    "confirm_parts": ([[1000], ["lefts"], [0], [5], 7], {"report_parts": PARTS_PKEY | {"report_parts_owner"}}),
    "finish_part": ([1000, "lefts", 1, 0, 7, 1, 1, "x", "[]", "redis", None], {"report_parts": PARTS_PKEY}),
    "deliver_part": ([50, "lefts", 1, "now", 1, 1, "x", "[]", "redis", None], {"report_parts": PARTS_PKEY}),
    "get_data": ([1, "lefts", 1], {"report_data": DATA_PKEY}),
    "fail_part": ([1000, "lefts", 1, 0, 7, "e", None], {"report_parts": PARTS_PKEY}),
    "refuse_part": ([50, "lefts", 1, "e"], {"report_parts": PARTS_PKEY}),
    "release_part": ([1000, "lefts", 0, 7], {"report_parts": PARTS_PKEY}),
    "release_unknown_parts": ([7, [50], ["lefts"], [1]], {"report_parts": {"report_parts_owner"}}),
    "reclaim_parts": ([[7]], {"report_parts": {"report_parts_owner"}}),
    "held": ([7, 100], OWNED),
    "owned": ([7], OWNED),
}
LONG, HOUR = timedelta(days=3), timedelta(hours=1)
UPKEEP_CASES = {
    "expired_files": ([100], {"reports": {"reports_expiry"}}),
    "forget_files": ([[1, 2]], {"reports": PKEY}),
    "reports_to_clear": ([HOUR, 100], {"reports": {"reports_clearing"}}),
    "note_cleared": ([[1, 2]], {"reports": PKEY}),
    "old_reports": ([LONG, 100], {"reports": {"reports_old"}}),
    "delete_reports": ([[1, 2]], {"reports": PKEY}),
    "unknown_reports": ([[1, 2, 10**9]], {"reports": PKEY}),
}
CASES = {"records": (RECORDS, RECORD_CASES), "parts": (PARTS, PART_CASES), "upkeep": (UPKEEP, UPKEEP_CASES)}


def case(prefix: str, name: str) -> tuple[list[Any], dict[str, set[str]]]:
    """Return the values of a statement, and the indexes that it may use by table."""
    found: Any = CASES[prefix][1]
    values, expected = found[name]
    return values, expected


@pytest.fixture(scope="module")
def reports(module_url: str) -> Iterator[Planner]:
    """A planner on twenty thousand reports with two parts each; one in fifty is under way."""
    planner = Planner(module_url)
    planner.run(FILL)
    for table in TABLES:
        planner.run(f"VACUUM ANALYZE tickwright.{table}")
    for prefix, (queries, _) in CASES.items():
        for name, sql in queries.items():
            planner.prepare(f"{prefix}_{name}", sql)
    yield planner
    planner.close()


@pytest.mark.parametrize(("prefix", "name"), [(prefix, name) for prefix, (_, cases) in CASES.items() for name in cases])
def test_a_statement_uses_the_index_that_it_names(reports: Planner, prefix: str, name: str) -> None:
    """No table is read as a whole, and few pages are read."""
    values, expected = case(prefix, name)
    plan = reports.explain(f"{prefix}_{name}", *values)
    for table in TABLES:
        found = {index for index in plan.scans_of(table) if index in {"seq", "tid"} or index.startswith(f"{table}_")}
        wanted = expected.get(table, set())
        own = found - {index for other in TABLES if other != table for index in expected.get(other, set())}
        assert own <= wanted, plan.text
    assert plan.blocks < 1500, plan.text


def test_a_claim_of_parts_reads_due_parts_only(reports: Planner) -> None:
    """By function or source, in the order of their due instants; each record by its key, also to pass over a type."""
    names = ["function:lefts", "function:rights"]
    for announced, but in product(((None, None), (50, "lefts")), ([], ["function:lefts sales"])):
        plan = reports.explain("parts_claim_parts", 1, names, [4, 4], *announced, 0, but)
        assert plan.scans_of("report_parts") == {"report_parts_due", "report_parts_pkey"}, plan.text
        assert "seq" not in plan.scans_of("reports"), plan.text
        assert plan.blocks < 1500, plan.text
    statements = {*RECORD_CASES, "insert_report", "insert_parts", "notify", "announce"}
    assert {*RECORDS} == statements, "a new statement of records.sql has a case here"
    assert {*PARTS} == {*PART_CASES, "claim_parts", "put_data", "queries_on", "services"}, (
        "so has a new one of parts.sql"
    )
    assert {*UPKEEP} == {*UPKEEP_CASES}
