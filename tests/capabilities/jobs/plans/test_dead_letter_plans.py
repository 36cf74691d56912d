"""Rows that counts and picks of dead letters read, with 20,000 of each kind: up to the bound, from the cursor on."""

from collections.abc import Iterator

import pytest

from kit.fix_plans import Planner
from tickwright.capabilities.jobs.admin import dead_letters, search

FILL = """
INSERT INTO tickwright.outbox_dead (id, destination, payload, headers, created_at, attempts)
SELECT n, 'pg:dead', '{}', '{}', now(), 3 FROM generate_series(1, 20000) AS n;
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) SELECT now(), 'dead' FROM generate_series(1, 20000);
UPDATE tickwright.scheduled_tasks SET status = 'failed';
ANALYZE tickwright.outbox_dead; ANALYZE tickwright.scheduled_tasks_dead;
"""
TABLES = {"job": "scheduled_tasks_dead", "outbox": "outbox_dead"}
PICKS = {
    "job": search.QUERIES["pick_dead"],
    "outbox": dead_letters._SQL["pick_dead_messages"],
}


@pytest.fixture(scope="module")
def dead_letters_planner(module_url: str) -> Iterator[Planner]:
    """A planner on 20,000 dead letters of each kind."""
    planner = Planner(module_url)
    planner.run(FILL)
    yield planner
    planner.close()


@pytest.mark.parametrize("kind", TABLES)
def test_a_count_reads_no_more_rows_than_its_bound(dead_letters_planner: Planner, kind: str) -> None:
    """A hundred of 20,000, whether they match or not; the other kind's table is not read."""
    dead_letters_planner.prepare(f"count_{kind}", dead_letters._SQL["count_dead"])
    plan = dead_letters_planner.explain(f"count_{kind}", kind, None, "nowhere", 100)
    assert plan.rows_of(TABLES[kind]) == 100, plan.text
    (other,) = set(TABLES.values()) - {TABLES[kind]}
    assert plan.rows_of(other) == 0, plan.text


@pytest.mark.parametrize("kind", TABLES)
def test_a_pick_with_a_cursor_reads_the_primary_key_from_there(dead_letters_planner: Planner, kind: str) -> None:
    """Rows before the cursor are not read again."""
    last = dead_letters_planner.run(f"SELECT max(id) FROM tickwright.{TABLES[kind]}")[0][0]
    dead_letters_planner.prepare(f"pick_{kind}", PICKS[kind])
    plan = dead_letters_planner.explain(f"pick_{kind}", None, None, 1000, last - 10)
    assert plan.scans_of(TABLES[kind]) == {f"{TABLES[kind]}_pkey"}, plan.text
    assert plan.rows_of(TABLES[kind]) <= 20, plan.text
    assert plan.blocks < 100, plan.text
