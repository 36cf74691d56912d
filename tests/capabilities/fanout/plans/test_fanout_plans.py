"""Marks and run claims in PostgreSQL read only the rows they concern, however many entities and windows there are."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from kit.fix_plans import Planner
from tickwright.capabilities.fanout.consumer import run_claims
from tickwright.capabilities.fanout.scheduler import marks

FILL = """
INSERT INTO tickwright.workers (id, name, roles, version, lease_until)
SELECT n, 'w', '{}', '0', now() + interval '1 h' FROM generate_series(1, 20) AS n;
INSERT INTO tickwright.fanout_cursors (entity_code, task_type, last_window_at, owner, running_window_at)
SELECT 'E' || n, t, now() - interval '1 hour', CASE WHEN n % 100 = 0 THEN n / 100 % 20 + 1 END, now()
  FROM generate_series(1, 10000) AS n, unnest(ARRAY['CDRS', 'LOCATIONS', 'SESSIONS', 'TARIFFS']) AS t;
INSERT INTO tickwright.fanout_claims (window_at, task_type, entity_code, token, claimed_until, published_at)
SELECT to_timestamp(1900000000 + w * 900), 'LOCATIONS', 'E' || n, 'x', now(), now()
  FROM generate_series(1, 10000) AS n, generate_series(0, 4) AS w;
INSERT INTO tickwright.fanout_windows (task_type, window_at)
SELECT 'LOCATIONS', to_timestamp(1900000000 - n * 900) FROM generate_series(1, 3000) AS n;
"""
TABLES = ("workers", "fanout_cursors", "fanout_claims", "fanout_windows")
CODES = [f"E{number}" for number in range(100, 10_000, 100)]
TYPES, WINDOWS = ["LOCATIONS"] * len(CODES), [1_900_000_900] * len(CODES)
CLAIMS, CURSORS = {"fanout_claims_pkey"}, {"fanout_cursors_pkey"}
HELD = CURSORS | {"fanout_cursors_owner"}


@pytest.fixture(scope="module")
def entities(module_url: str) -> Iterator[Planner]:
    """A planner on 40,000 cursors, 400 of them held, and five windows of 10,000 claims."""
    planner = Planner(module_url)
    planner.run(FILL)
    for table in TABLES:
        planner.run(f"ANALYZE tickwright.{table}")
    for prefix, queries in (("marks", marks._MARKS_SQL), ("runs", run_claims._SQL)):
        for name, sql in queries.items():
            planner.prepare(f"{prefix}_{name}", sql)
    yield planner
    planner.close()


@pytest.mark.parametrize("name", ["claim", "seal", "release"])
def test_marks_are_found_by_their_key(entities: Planner, name: str) -> None:
    """About ten pages per place, with its cursor."""
    lease = [timedelta(seconds=10)] if name == "claim" else []
    plan = entities.explain(f"marks_{name}", CODES, TYPES, WINDOWS, "t", *lease)
    assert plan.scans_of("fanout_claims") <= CLAIMS, plan.text
    assert plan.scans_of("fanout_cursors") == (CURSORS if name == "claim" else set()), plan.text
    assert plan.blocks < 20 * len(CODES), plan.text


def test_beginning_reads_the_cursors_of_its_entities(entities: Planner) -> None:
    """And the runs under way, by owner or by entity: never all of them."""
    plan = entities.explain("runs_begin", 1, CODES, TYPES, WINDOWS, [2] * len(CODES), 0, "timed out")
    assert plan.scans_of("fanout_cursors") <= HELD, plan.text
    assert plan.scans_of("workers") == {"workers_pkey"}, plan.text
    assert plan.blocks < 60 * len(CODES), plan.text


def test_locking_entities_reads_a_row_for_each(entities: Planner) -> None:
    """By number, of the 16,384 that there are."""
    plan = entities.explain("runs_lock_entities", CODES)
    assert plan.scans_of("fanout_turns") == {"fanout_turns_pkey"}, plan.text
    assert plan.blocks < 10 * len(CODES), plan.text


def test_ending_and_renewing_read_their_cursors(entities: Planner) -> None:
    """By entity and task type, or by owner: what the session holds; the counts of their windows by window."""
    fences, count = [0] * len(CODES), len(CODES)
    plan = entities.explain("runs_renew", 1, CODES, TYPES, fences)
    assert plan.scans_of("fanout_cursors") <= HELD, plan.text
    assert plan.blocks < 5 * count, plan.text
    ended = [CODES, TYPES, fences, WINDOWS, [1.0] * count, ["NULL"] * count, ["false"] * count]
    plan = entities.explain("runs_end", 1, *ended)
    assert plan.scans_of("fanout_cursors") <= HELD, plan.text
    assert plan.blocks < 30 * count, plan.text
    plan = entities.explain("runs_carry_over", CODES, TYPES, WINDOWS, [1.0] * count)
    assert plan.blocks < 30 * count, plan.text


def test_reclaiming_reads_the_rows_of_lost_sessions(entities: Planner) -> None:
    """By owner, not the whole table."""
    plan = entities.explain("runs_reclaim", [5])
    assert plan.scans_of("fanout_cursors") <= HELD, plan.text
    assert plan.blocks < 1_500, plan.text
