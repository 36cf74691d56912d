"""The relay's claim reads lanes by index: it scans neither an unavailable destination's rows nor its waiting ones."""

import json
from typing import Any

import asyncpg
import pytest

from tickwright.capabilities.batches.executions.checker import SQL as RELEASE
from tickwright.engine.outbox import table as outbox
from tickwright.engine.outbox.table import LANE_MIN, SQL
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
        f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {SQL['claim_rows']}", LANE_MIN, [], 100, 200, 2**24, [], 0, 5000
    )
    await connection.close()
    found = nodes(json.loads(text)[0]["Plan"])
    kinds = {node["Node Type"] for node in found}
    assert not kinds & {"Seq Scan", "Sort", "Bitmap Heap Scan"}, kinds
    scans = [node for node in found if node["Node Type"] in {"Index Scan", "Index Only Scan"}]
    assert {node["Index Name"] for node in scans if node["Actual Loops"]} == {"outbox_lane", "outbox_tried_keys"}
    due = [node for node in scans if "next_at" in node.get("Index Cond", "")]
    assert len(due) == 3, "all ranges, tried, new and again tried rows, are bounded by the index"
    removed = sum(node.get("Rows Removed by Filter", 0) * node["Actual Loops"] for node in due)
    assert removed == 0, "only due rows are read"


BEHIND = """
INSERT INTO tickwright.outbox (destination, key, payload, attempts)
SELECT 'http://refuses/', md5(n::text) || repeat('k', 900), '{}', a
  FROM generate_series(1, 20000) n, generate_series(0, 1) a;
INSERT INTO tickwright.outbox (destination, payload) VALUES ('http://other/', '{}');
"""


@pytest.mark.parametrize("is_analyzed", [False, True])
async def test_messages_behind_refused_ones_cost_a_bounded_read(database_url: str, is_analyzed: bool) -> None:
    """20,000 long keys that were refused, and a message behind each: with any statistics a check is one index probe."""
    connection = await asyncpg.connect(database_url, server_settings=SETTINGS)
    await connection.execute(BEHIND)
    if is_analyzed:
        await connection.execute("ANALYZE tickwright.outbox")
    text = await connection.fetchval(
        f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {SQL['claim_rows']}",
        *(LANE_MIN, [], 100, 200, 2**24, [], 0, 1000),
    )
    claimed = await outbox.claim_rows(
        connection, after_lane=LANE_MIN, without=[], careful=[], bounds=outbox.ClaimBounds()
    )
    await connection.close()
    plan = json.loads(text)[0]["Plan"]
    assert not {node["Node Type"] for node in nodes(plan)} & {"Seq Scan", "Sort", "Bitmap Heap Scan", "Materialize"}
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 10_000
    assert "http://other/" in {row.destination for row in claimed.rows}


async def test_messages_to_one_destination_are_counted_by_the_lane_index(database_url: str) -> None:
    """Up to the bound, and without reading the 20,000 messages to another destination."""
    connection = await asyncpg.connect(database_url, server_settings=SETTINGS)
    await connection.execute(HEAP)
    for destination, rows in (("http://dead/", 101), ("pg:t7", 1)):
        text = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {RELEASE['is_full']}", destination, 100)
        scans = [node for node in nodes(json.loads(text)[0]["Plan"]) if node.get("Relation Name") == "outbox"]
        assert [(node["Index Name"], node["Actual Rows"]) for node in scans] == [("outbox_lane", rows)]
    await connection.close()


@pytest.mark.parametrize(("newest", "is_found"), [(outbox.NEWEST_ROWS, True), (0, False)])
async def test_a_new_row_beside_very_many_lanes_waits_for_no_round(
    database_url: str, monkeypatch: pytest.MonkeyPatch, newest: int, is_found: bool
) -> None:
    """The next claim finds it although the round is past its lane; the round continues and finds each lane."""
    monkeypatch.setattr(outbox, "NEWEST_ROWS", newest)
    connection = await asyncpg.connect(database_url, server_settings=SETTINGS)
    await connection.execute(
        "INSERT INTO tickwright.outbox (destination, payload) SELECT 'pg:t' || n, '{}' FROM generate_series(1, 1000) n"
    )

    async def claim(after: int) -> outbox.ClaimedRows:
        return await outbox.claim_rows(
            connection, after_lane=after, without=[], careful=[], bounds=outbox.ClaimBounds(lanes=200)
        )

    first = await claim(LANE_MIN)
    new = await connection.fetchval(
        "INSERT INTO tickwright.outbox (destination, payload) SELECT name, '{}' FROM (SELECT 'pg:new' || n AS name "
        "FROM generate_series(1, 1000) n) AS one WHERE hashtextextended(name, 0) < $1 LIMIT 1 RETURNING destination",
        first.next_lane,
    )
    claimed = second = await claim(first.next_lane)
    found = {row.destination for row in (*first.rows, *second.rows)}
    while claimed.next_lane != LANE_MIN:
        claimed = await claim(claimed.next_lane)
        found |= {row.destination for row in claimed.rows}
    await connection.close()
    assert (new in {row.destination for row in second.rows}) is is_found
    assert len(found - {new}) == 1000


@pytest.mark.parametrize(
    ("destination", "attempts", "rows_max"),
    [("'pg:t' || n", 0, 1001 + 10000 + 2 * 11001 + 1000), ("'http://refuses/' || n % 5", 1, 2 * 10000 + 50)],
)
async def test_the_oldest_messages_are_found_by_index(
    database_url: str, destination: str, attempts: int, rows_max: int
) -> None:
    """20,000 messages, each to its own destination or retried ones to five: as many are read as the query says."""
    connection = await asyncpg.connect(database_url, server_settings=SETTINGS)
    await connection.execute(
        "INSERT INTO tickwright.outbox (destination, payload, attempts, next_at) "
        f"SELECT {destination}, '{{}}', {attempts}, now() - make_interval(secs => n) FROM generate_series(1, 20000) n"
    )
    await connection.execute("ANALYZE tickwright.outbox")
    text = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {SQL['lane_heads']}")
    await connection.close()
    scans = [node for node in nodes(json.loads(text)[0]["Plan"]) if node.get("Relation Name") == "outbox"]
    assert {node.get("Index Name") for node in scans} == {"outbox_pkey", "outbox_lane"}
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in scans) <= rows_max
