"""The relay's claim walks lanes by index: neither a dead destination's heap nor its waiting rows are scanned."""

import json
from typing import Any

import asyncpg

from tickwright.store.outbox import LANE_MIN, SQL
from tickwright.store.pool import SETTINGS

HEAP = """
INSERT INTO tickwright.outbox (destination, key, payload)
SELECT 'http://dead/', 'k' || n, '{}' FROM generate_series(1, 20000) n;
INSERT INTO tickwright.outbox (destination, payload) SELECT 'pg:t' || n, '{}' FROM generate_series(1, 50) n;
UPDATE tickwright.outbox SET attempts = 1, next_at = now() + interval '1 hour' WHERE id <= 10000;
ANALYZE tickwright.outbox;
"""


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every node of a plan."""
    return [plan, *(inner for child in plan.get("Plans", []) for inner in nodes(child))]


async def test_the_claim_reads_by_the_lane_index_alone(database_url: str) -> None:
    """20,000 rows of one destination beside 50 others: bounded ranges, no sort, no sequential scan."""
    connection = await asyncpg.connect(database_url, server_settings=SETTINGS)
    await connection.execute(HEAP)
    text = await connection.fetchval(
        f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {SQL['claim_rows']}", LANE_MIN, [], 100, 200, 2**24, []
    )
    await connection.close()
    found = nodes(json.loads(text)[0]["Plan"])
    kinds = {node["Node Type"] for node in found}
    assert not kinds & {"Seq Scan", "Sort", "Bitmap Heap Scan"}, kinds
    scans = [node for node in found if node["Node Type"] in {"Index Scan", "Index Only Scan"}]
    assert {node["Index Name"] for node in scans} == {"outbox_lane"}
    due = [node for node in scans if "next_at" in node.get("Index Cond", "")]
    assert len(due) == 2, "both ranges, new and tried rows, are bounded by the index"
    removed = sum(node.get("Rows Removed by Filter", 0) * node["Actual Loops"] for node in due)
    assert removed == 0, "no row that is not due is looked at"
