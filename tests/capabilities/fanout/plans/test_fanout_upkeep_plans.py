"""Upkeep of fan-out costs what it deletes, however much stays."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from kit.fix_plans import Plan, Planner
from tickwright.capabilities.fanout.retention import CLAIMS_KEPT, CURSORS_KEPT, SQL, WINDOWS_KEPT
from tickwright.engine.retention import BATCH

ROWS = 50_000
FILL = f"""
INSERT INTO tickwright.fanout_claims (window_at, task_type, entity_code, token, claimed_until)
SELECT now() - (n % 100) * interval '5 minutes', 'LOCATIONS', 'e' || n, 't', now() FROM generate_series(1, {ROWS}) AS n;
INSERT INTO tickwright.fanout_windows (task_type, window_at)
SELECT 'M' || n % 10, now() - (n / 10) * interval '15 minutes' FROM generate_series(1, {ROWS}) AS n;
INSERT INTO tickwright.fanout_cursors (entity_code, task_type, last_window_at)
SELECT 'e' || lpad((n * 7919 % {ROWS})::text, 6, '0'), 'LOCATIONS', now() - interval '40 days'
  FROM generate_series(1, {ROWS}) AS n;
INSERT INTO tickwright.entities (code) SELECT entity_code FROM tickwright.fanout_cursors WHERE fence = 0;
"""


@pytest.fixture(scope="module")
def crowded(module_url: str) -> Iterator[Planner]:
    """A planner on fifty thousand rows of each table."""
    planner = Planner(module_url)
    for name in SQL:
        planner.prepare(name, SQL[name])
    planner.run(FILL)
    planner.run("VACUUM ANALYZE")
    yield planner
    planner.close()


def read(plan: Plan, table: str) -> float:
    """Return how many rows of a table were read."""
    nodes = [node for node in plan.nodes if node.get("Relation Name") == table]
    return float(max(node["Actual Rows"] * node["Actual Loops"] for node in nodes))


@pytest.mark.parametrize(
    ("query", "table", "age"),
    [("delete_claims", "fanout_claims", CLAIMS_KEPT), ("delete_windows", "fanout_windows", WINDOWS_KEPT)],
)
def test_a_batch_is_read_at_the_old_end(crowded: Planner, query: str, table: str, age: timedelta) -> None:
    """A thousand rows are found by the key and deleted; the rest is not read."""
    plan = crowded.explain(query, age, BATCH)
    assert plan.scans_of(table) == {f"{table}_pkey", "tid"}, plan.text
    assert read(plan, table) == BATCH, plan.text


def test_cursors_are_read_a_thousand_at_a_time(crowded: Planner) -> None:
    """From where the last round stopped: no row before or after."""
    plan = crowded.explain("delete_cursors", CURSORS_KEPT, BATCH, "e020000", "LOCATIONS")
    assert plan.scans_of("fanout_cursors") == {"fanout_cursors_pkey", "tid"}, plan.text
    assert read(plan, "fanout_cursors") == BATCH, plan.text
    assert plan.blocks < 20 * BATCH, plan.text
