"""Alert rules and the overview of reports read few rows, with 32,000 reports."""

from collections.abc import Iterator

import pytest

from kit.fix_plans import Planner
from tickwright.capabilities.reports.overview import SQL
from tickwright.plugin.overview import COUNT_MAX

FILL = """
INSERT INTO tickwright.reports
  (type, query_key, requester, status, plan, deadline_at, step_at, finished_at, error, checksum)
SELECT 't' || n % 10, repeat('a', 64), 'r' || n,
       CASE n % 50 WHEN 0 THEN 'failed' ELSE 'finished' END, jsonb_build_object('n', repeat('x', 1000)), now(), NULL,
       now() - interval '1 second' * n, CASE n % 50 WHEN 0 THEN 'broken' END,
       CASE n % 50 WHEN 0 THEN NULL ELSE 'sum' END
  FROM generate_series(1, 30000) AS n;
INSERT INTO tickwright.reports (type, query_key, requester, status, plan, deadline_at, step_at)
SELECT 't' || n % 10, repeat('b', 64), 'r' || n, 'querying', jsonb_build_object('n', repeat('x', 1000)),
       now() + interval '1 second' * (n - 50), now() + interval '1 second' * (n - 50)
  FROM generate_series(-50, 2000) AS n;
INSERT INTO tickwright.report_parts
  (report_id, listener, stage, kind, served_by, required, state, due_at, place, checksum)
SELECT r.id, l.name, 1, 'function', 'function:' || l.name, true,
       CASE r.status WHEN 'querying' THEN 'due' ELSE 'done' END,
       now() - interval '1 minute', 'redis', 'sum'
  FROM tickwright.reports r CROSS JOIN (VALUES ('users'), ('scores'), ('orders')) AS l (name);
INSERT INTO tickwright.workers (id, name, roles, version, lease_until, facts)
VALUES (1, 'l', '{report-listener}', '0', now() + interval '1 hour', '{"serves": ["function:users"]}');
"""


@pytest.fixture(scope="module")
def crowded(module_url: str) -> Iterator[Planner]:
    """Many reports: 18 failed lately, a hundred are overdue, two of three functions are unserved."""
    planner = Planner(module_url)
    planner.prepare_rules("report_")
    planner.prepare("overview", SQL["overview"])
    planner.run(FILL)
    planner.run("VACUUM ANALYZE")
    yield planner
    planner.close()


def test_report_failed_reads_only_reports_that_ended_lately(crowded: Planner) -> None:
    """Those of a quarter of an hour, newest first."""
    plan = crowded.explain_rule("report_failed")
    assert plan.scans_of("reports") == {"reports_finished"}, plan.text
    assert plan.rows_of("reports") <= 1000, plan.text


def test_report_overdue_reads_only_due_reports(crowded: Planner) -> None:
    """Reports that have time left, or have ended, are not read."""
    plan = crowded.explain_rule("report_overdue")
    assert plan.scans_of("reports") == {"reports_steps"}, plan.text
    assert 0 < plan.rows_of("reports") <= 200, plan.text


def test_report_unserved_probes_the_index_once_for_each_name(crowded: Planner) -> None:
    """Three names among six thousand due parts; only parts that no process serves are counted."""
    plan = crowded.explain_rule("report_unserved")
    assert plan.root["Actual Rows"] == 2
    assert plan.scans_of("report_parts") == {"report_parts_due"}, plan.text
    assert plan.rows_of("report_parts") <= 2 * 2051 + 10, plan.text


def test_the_overview_reads_only_reports_that_it_counts(crowded: Planner) -> None:
    """Running reports, those that ended within an hour, and a thousand: never all that ended."""
    plan = crowded.explain("overview", COUNT_MAX)
    assert plan.scans_of("reports") == {"reports_steps", "reports_finished"}, plan.text
    assert plan.rows_of("reports") <= 2_100 + 3_700 + 1_000, plan.text
