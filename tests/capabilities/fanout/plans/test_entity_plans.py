"""Queries about entities cost what they return, however many entities there are."""

from typing import Any

import pytest

from kit.fix_plans import Planner
from tickwright.capabilities.fanout.entities import entities as entities_store
from tickwright.capabilities.fanout.entities.entities import LAST_CODE

ENTITIES = 30_000
FILL = f"""
INSERT INTO tickwright.entities (code, polling_enabled_modules, party)
SELECT 'e' || lpad((n * 7919 % {ENTITIES})::text, 6, '0'), ' locations, Tariffs',
       jsonb_build_object('n', repeat('x', 200))
  FROM generate_series(1, {ENTITIES}) AS n;
INSERT INTO tickwright.fanout_cursors (entity_code, task_type, last_window_at)
SELECT code, name, now() FROM tickwright.entities, unnest('{{LOCATIONS,TARIFFS}}'::text[]) AS name;
"""
QUERIES = entities_store.SQL


@pytest.fixture
def crowded(planner: Planner) -> Planner:
    """A planner on 30,000 entities."""
    planner.run(FILL)
    planner.run("VACUUM ANALYZE")
    return planner


def test_queries_about_entities_read_a_few_pages(crowded: Planner) -> None:
    """One entity with its runs, a page of entities by prefix or filter, a change: by index, never a whole table."""

    def blocks_of(name: str, *arguments: Any) -> int:
        plan = crowded.explain_page(QUERIES[name], *arguments)
        assert "seq" not in plan.scans_of("entities") | plan.scans_of("fanout_cursors"), (name, plan.text)
        return plan.blocks

    [(whole,)] = crowded.run("SELECT relpages FROM pg_class WHERE oid = 'tickwright.entities'::regclass")
    all_codes = ("", LAST_CODE)
    blocks = {
        "get_entity": blocks_of("get_entity", "e015000"),
        "module_states": blocks_of("module_states", "e015000", ["LOCATIONS", "CDRS"]),
        "explain": blocks_of("explain", "e015000", "LOCATIONS"),
        "first page": blocks_of("list_entities", "", *all_codes, None, None, 51, 5_000),
        "later page": blocks_of("list_entities", "e015000", *all_codes, None, None, 51, 5_000),
        "by prefix": blocks_of("list_entities", "", "e0299", "e0299" + LAST_CODE, None, None, 51, 5_000),
        "set_enabled": blocks_of("set_enabled", "e015000", False),
    }
    assert whole > 1_000
    assert max(blocks.values()) < 150, blocks
    bounded = blocks_of("list_entities", "", *all_codes, "NOSUCH", None, 51, 100)
    assert bounded < 400, bounded  # the rows lie in another order than their codes: a page each
