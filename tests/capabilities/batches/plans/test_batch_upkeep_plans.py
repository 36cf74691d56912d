"""Alerts of batches, the line of ``top`` and upkeep cost little beside 30,000 executions."""

from collections.abc import Iterator

import pytest

from kit.alerts import RULES
from kit.fix_plans import Planner
from tickwright.capabilities.batches.overview import SQL as OVERVIEW
from tickwright.capabilities.batches.retention import SQL as UPKEEP
from tickwright.plugin.overview import COUNT_MAX

FILL = """
INSERT INTO tickwright.batches (name, kind, type, definition)
SELECT 'b' || n, 'campaign', 'MANUAL', '{"audience": {"source": "crm"}}' FROM generate_series(1, 100) AS n;
INSERT INTO tickwright.executions
  (batch_id, slot_at, status, started_at, finished_at, due_at, chunks, chunks_done, chunks_released)
SELECT 1 + n % 100, now() - interval '1 hour' * n, CASE WHEN n <= 100 THEN 'IN_PROGRESS' WHEN n <= 300 THEN 'NEW'
       WHEN n % 50 = 0 THEN 'EXCEPTION_OCCURRED' ELSE 'FINISHED' END, now() - interval '1 hour',
       CASE WHEN n > 300 THEN now() - interval '4 minutes' * n END, now() - interval '1 hour', 10, 10, 10
  FROM generate_series(1, 30000) AS n;
INSERT INTO tickwright.execution_chunks (execution_id, number, value, state, done_at)
SELECT e.id, n, '{}', 'done', now()
  FROM tickwright.executions e CROSS JOIN generate_series(0, 9) AS n WHERE e.id <= 3000;
"""


@pytest.fixture(scope="module")
def crowded(module_url: str) -> Iterator[Planner]:
    """A planner on a hundred executions at work, two hundred to begin, and 83 days of others."""
    planner = Planner(module_url)
    for rule in RULES:
        if rule.name.startswith("execution_"):
            planner.prepare(rule.name, rule.sql)
    planner.prepare("overview", OVERVIEW["overview"])
    for name in ("old", "give_up"):
        planner.prepare(name, UPKEEP[name])
    planner.run(FILL)
    planner.run("VACUUM ANALYZE")
    yield planner
    planner.close()


@pytest.mark.parametrize(
    ("rule", "index"),
    [
        ("execution_failed", "executions_ended"),
        ("execution_backlog", "executions_to_begin"),
        ("execution_stalled", "executions_at_work"),
    ],
)
def test_a_rule_reads_only_its_own_executions(crowded: Planner, rule: str, index: str) -> None:
    """Those that ended lately, are to begin, or are at work; never the whole table."""
    plan = crowded.explain(rule, *next(one.bounds for one in RULES if one.name == rule))
    assert plan.scans_of("executions") == {index}, plan.text
    assert plan.scans_of("execution_chunks") <= {"execution_chunks_pkey"}, plan.text


def test_an_overview_reads_open_executions_and_the_newest(crowded: Planner) -> None:
    """Those to begin, at work or to be released, and the last one; never the whole table."""
    plan = crowded.explain("overview", COUNT_MAX)
    indexes = {"executions_at_work", "executions_pkey", "executions_to_begin", "executions_to_release"}
    assert plan.scans_of("executions") <= indexes, plan.text
    assert plan.rows_of("executions") <= 1_000, plan.text


@pytest.mark.parametrize("query", ["old", "give_up"])
def test_upkeep_begins_with_the_oldest(crowded: Planner, query: str) -> None:
    """And stops at the first one that is young enough."""
    plan = crowded.explain(query, "90 days", 100)
    assert plan.scans_of("executions") <= {"executions_ended", "executions_pkey"}, plan.text
