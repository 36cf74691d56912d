"""Alert rules of fan-out are cheap beside 20,000 entities of four modules."""

from collections.abc import Iterator

import pytest

from kit.alerts import RULES
from kit.fix_plans import Planner

ENTITIES = 20_000
FILL = f"""
INSERT INTO tickwright.partners (name, promised_since, settings)
SELECT 'p' || n, now() - interval '9 days', '{{"quiet": "22:00-06:00 Europe/Berlin"}}'
  FROM generate_series(1, 100) AS n;
INSERT INTO tickwright.entities (code, party, polling_enabled_modules, partner, created_at, updated_at)
SELECT 'e' || lpad((n * 7919 % {ENTITIES})::text, 6, '0'), jsonb_build_object('n', repeat('x', 1000)),
       CASE n % 3 WHEN 0 THEN 'LOCATIONS,SESSIONS,TARIFFS,CDRS' WHEN 1 THEN 'locations, sessions, tariffs, cdrs'
                  ELSE 'CDRS,TARIFFS,SESSIONS,LOCATIONS' END,
       CASE WHEN n % 2 = 0 THEN 'p' || (1 + n % 100) END, now() - interval '9 days', now() - interval '9 days'
  FROM generate_series(1, {ENTITIES}) AS n;
UPDATE tickwright.modules SET updated_at = now() - interval '9 days';
INSERT INTO tickwright.workers (id, name, roles, version, lease_until, facts)
VALUES (1, 's', '{{scheduler}}', '0', now() + interval '1 hour', '{{"gates": {{"SESSIONS": true}}}}'),
       (2, 'c', '{{fanout-consumer}}', '0', now() + interval '1 hour', '{{"modules": ["LOCATIONS"]}}');
INSERT INTO tickwright.fanout_cursors (entity_code, task_type, last_window_at, last_success_at, failures, last_error_at)
SELECT e.code, m.name, now(), now() - (CASE WHEN e.code < 'e000100' THEN '5 hours' ELSE '1 minute' END)::interval,
       CASE WHEN e.code BETWEEN 'e000050' AND 'e000150' THEN 4 ELSE 0 END, now()
  FROM tickwright.entities e CROSS JOIN tickwright.modules m;
"""


@pytest.fixture(scope="module")
def crowded(module_url: str) -> Iterator[Planner]:
    """A planner on 20,000 entities, of which a hundred are stale and a hundred fail."""
    planner = Planner(module_url)
    planner.prepare_rules("fanout_")
    planner.run(FILL)
    planner.run("VACUUM ANALYZE")
    yield planner
    planner.close()


@pytest.mark.parametrize("rule", ["fanout_no_handler", "fanout_unknown_module"])
def test_lists_of_modules_are_read_from_an_index(crowded: Planner, rule: str) -> None:
    """Lists of 20,000 entities, many of them equal, are a few pages; no row and no party is read."""
    plan = crowded.explain_rule(rule)
    assert plan.scans_of("entities") == {"entities_polled"}, plan.text
    assert plan.blocks < 100, plan.text


def test_with_a_live_consumer_no_entity_is_read(crowded: Planner) -> None:
    """While one lives, what entities name does not matter."""
    plan = crowded.explain_rule("fanout_no_consumer")
    assert plan.rows_of("entities") == 0, plan.text
    assert plan.blocks < 20, plan.text


def test_failing_entities_are_read_and_no_others(crowded: Planner) -> None:
    """A hundred of 20,000, each with its row, found by an index that has no other."""
    plan = crowded.explain_rule("fanout_failing")
    assert plan.root["Actual Rows"] == 4
    assert plan.scans_of("fanout_cursors") == {"fanout_cursors_failing"}, plan.text
    assert plan.rows_of("fanout_cursors") <= 4 * 101, plan.text
    assert plan.blocks < 2000, plan.text


def test_stale_entities_are_found_in_one_pass(crowded: Planner) -> None:
    """It reads the lists and the ledger once each, not per module or entity; it runs once a minute only."""
    plan = crowded.explain_rule("fanout_stale")
    assert plan.root["Actual Rows"] == 4
    assert plan.rows_of("fanout_cursors") <= 4 * ENTITIES, plan.text
    assert plan.rows_of("entities") <= 3 * ENTITIES, plan.text
    assert plan.rows_of("partners") <= 400, plan.text
    assert next(one for one in RULES if one.name == "fanout_stale").every.total_seconds() >= 60


@pytest.mark.parametrize("rule", ["fanout_no_handler", "fanout_unknown_module", "fanout_many_lists"])
def test_at_most_a_thousand_different_lists_are_read(planner: Planner, rule: str) -> None:
    """Of 10,000 lists with 50 names of their own each, a tenth is read, and no more of the entities."""
    planner.prepare_rules("fanout_")
    planner.run(
        "INSERT INTO tickwright.entities (code, polling_enabled_modules) "
        "SELECT 'e' || n, (SELECT string_agg('M' || n || 'X' || k, ',') FROM generate_series(1, 50) AS k) "
        "  FROM generate_series(1, 10000) AS n"
    )
    planner.run(
        "INSERT INTO tickwright.workers (id, name, roles, version, lease_until, facts) "
        """VALUES (1, 'c', '{fanout-consumer}', '0', now() + interval '1 hour', '{"modules": []}')"""
    )
    plan = planner.explain_rule(rule)
    assert plan.rows_of("entities") <= 3 * 1001, plan.text
    split = [node["Actual Rows"] * node["Actual Loops"] for node in plan.nodes if node["Node Type"] == "Function Scan"]
    assert sum(split) <= 50 * 1001, plan.text
