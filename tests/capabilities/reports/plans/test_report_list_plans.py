"""Queries of users about reports read a bounded number of pages, however many reports there are."""

from typing import Any

import pytest

from kit.fix_plans import Planner
from tickwright.capabilities.reports.requests.records import LISTING
from tickwright.store.paging import NEWEST

REPORTS = 30_000
FILL = f"""
INSERT INTO tickwright.reports (type, query_key, requester, department, status, plan, deadline_at, step_at, conditions,
                                finished_at, checksum, file_key, bytes, file_expires_at)
SELECT 'type' || n % 7, md5((n % 5000)::text) || md5('x'), 'r' || n % 1000, 'd' || n % 20, 'finished',
       '{{"listeners": [], "merge": ""}}', now(), NULL, jsonb_build_object('n', repeat('x', 300)),
       now() - n * interval '1 second', md5(n::text), 'reports/' || n, n, now() + interval '7 days'
  FROM generate_series(1, {REPORTS}) AS n;
INSERT INTO tickwright.report_parts (report_id, listener, stage, kind, served_by, required, state, place, checksum)
SELECT id, listener, 1, 'function', 'function:' || listener, true, 'done', 'redis', 'x'
  FROM tickwright.reports, unnest('{{users,payments,orders}}'::text[]) AS listener;
"""


@pytest.fixture
def crowded(planner: Planner) -> Planner:
    """Many reports, each with three parts."""
    planner.run(FILL)
    planner.run("VACUUM ANALYZE")
    return planner


def test_queries_about_reports_read_a_few_pages(crowded: Planner) -> None:
    """One report with its parts, a page of them by requester or filter, a recent one of a key: never a whole table."""

    def blocks_of(name: str, *arguments: Any) -> int:
        plan = crowded.explain_page(LISTING[name], *arguments)
        assert "seq" not in plan.scans_of("reports") | plan.scans_of("report_parts"), (name, plan.text)
        return plan.blocks

    [(whole,)] = crowded.run("SELECT relpages FROM pg_class WHERE oid = 'tickwright.reports'::regclass")
    [(one, requester, key)] = crowded.run("SELECT id, requester, query_key FROM tickwright.reports ORDER BY id LIMIT 1")
    asked = {
        "get_report": blocks_of("get_report", one),
        "get_parts": blocks_of("get_parts", one),
        "report_file": blocks_of("report_file", one),
        "service_part": blocks_of("service_part", one, "users"),
        "explain_report": blocks_of("explain_report", one),
        "explain_parts": blocks_of("explain_parts", one),
        "recent_report": blocks_of("recent_report", requester, key, 86_400.0),
        "receiver_known": blocks_of("receiver_known", "unknown"),
    }
    assert whole > 1_000
    assert max(asked.values()) < 30, asked
    pages = {
        "first page": blocks_of("list_reports", NEWEST, None, None, None, 51, 5_000, None),
        "later page": blocks_of("list_reports", one + 15_000, None, None, None, 51, 5_000, None),
        "by department": blocks_of("list_reports", NEWEST, "d3", None, None, 51, 1_000, None),
        "first page of one": blocks_of("list_reports", NEWEST, None, None, None, 51, 5_000, "r5"),
        "later page of one": blocks_of("list_reports", one + 15_000, None, None, None, 51, 5_000, "r5"),
    }
    assert max(pages.values()) < 600, pages
    unmatched = blocks_of("list_reports", NEWEST, None, None, ["failed"], 51, 1_000, None)
    assert unmatched < 200, unmatched  # it reads a thousand reports, and none of their parts
