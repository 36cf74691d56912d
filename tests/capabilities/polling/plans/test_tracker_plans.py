"""Queries about trackers read about what they return, however many trackers there are."""

import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from kit.polling import Ground
from tickwright.capabilities.polling import service as polling_service
from tickwright.capabilities.polling.wheels import slices
from tickwright.store.paging import NEWEST
from tickwright.store.pool import SETTINGS

TRACKERS = 60_000
FILL = f"""
INSERT INTO tickwright.polling_schedule_config (account_id) SELECT 'a' || n FROM generate_series(0, 9) AS n;
INSERT INTO tickwright.polling_schedule_config (account_id) VALUES ('small');
INSERT INTO tickwright.trackers (id, created_at, tracking_until, account_no, place, partner_no, status, external_id)
SELECT nextval('tickwright.tracker_ids'), now() - interval '1 day', now() + interval '60 days',
       CASE WHEN n % 6000 = 0 THEN 11 ELSE 1 + n % 10 END, n * 7919 % 7200, 1, 'registered', 'X' || n
  FROM generate_series(1, {TRACKERS}) AS n;
INSERT INTO tickwright.tracker_intake (account_no, partner_no, external_id, tracking_until)
SELECT 1, 1, 'W' || n, now() + interval '60 days' FROM generate_series(1, 20000) AS n;
UPDATE tickwright.poll_slots SET prev_due_at = next_due_at - interval '120 minutes';
INSERT INTO tickwright.poll_done (slot_id, due_at, partner_no, done_at, ids)
SELECT t.place / 60, s.prev_due_at + t.place % 60 * interval '1 second', 1, now(), array_agg(t.id)
  FROM tickwright.trackers t JOIN tickwright.poll_slots s ON s.slot_id = t.place / 60
 GROUP BY t.place / 60, t.place % 60, 2;
INSERT INTO tickwright.poll_slices (due_at, slot_id, partner_no, interval_minutes, selected)
SELECT s.prev_due_at - turn * interval '2 hours', s.slot_id, 1, 120, 500
  FROM tickwright.poll_slots s, generate_series(0, 80) AS turn;
"""


class ExecutedQuery:
    """One executed query: how tables were read, and how many pages that touched."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.pages = int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
        self.scanned = {node["Relation Name"] for node in walk(plan) if node["Node Type"] == "Seq Scan"}


def walk(node: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every node of a plan."""
    return [node, *(inner for child in node.get("Plans", []) for inner in walk(child))]


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection with the pool's settings to a filled database."""
    async with asyncpg.create_pool(database_url, min_size=1, max_size=1) as pool:
        await Ground(pool).partner()
        await Ground(pool).wheel(120)
        await pool.execute(FILL)
        await pool.execute("VACUUM ANALYZE")
    connection = await asyncpg.connect(database_url, server_settings=SETTINGS)
    yield connection
    await connection.close()


async def test_queries_about_trackers_read_a_few_pages(connection: asyncpg.Connection) -> None:
    """One tracker, a page of them, explain: by index, and without a scan of a table that grows with trackers."""

    async def execute(sql: str, *arguments: Any) -> ExecutedQuery:
        text = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {sql}", *arguments)
        return ExecutedQuery(json.loads(text)[0]["Plan"])

    queries = polling_service.SQL
    grown = {"trackers", "tracker_intake", "poll_done", "poll_slices"}
    middle = TRACKERS // 2
    whole = await connection.fetchval("SELECT relpages FROM pg_class WHERE oid = 'tickwright.trackers'::regclass")
    executed = {
        "get": await execute(polling_service._GET, list(range(middle, middle + 50))),
        "explain": await execute(queries["explain"], middle),
        "find": await execute(queries["find"], f"X{middle}", "dhl"),
        "page": await execute(queries["page"], NEWEST, None, None, None, None, 51, 100),
        "page after": await execute(queries["page"], middle, 3, None, "registered", ["placed"], 51, 100),
        "page by external": await execute(
            queries["page_by_external"], "X3", None, None, None, None, 51, 100, -1, "X3\U0010ffff"
        ),
        "page_of_few": await execute(queries["page_of_few"], NEWEST, 11, None, None, None, 51, 100),
        "end": await execute(queries["end_placed"], middle, "request"),
        "is_few": await execute(queries["is_few"], 3, 500),
        "slices": await execute(slices._SQL["before"], await connection.fetchval("SELECT now()"), None),
    }
    assert {name: one.scanned & grown for name, one in executed.items() if one.scanned & grown} == {}
    pages = {name: one.pages for name, one in executed.items()}
    assert whole > 600
    assert max(pages[name] for name in ("explain", "find", "end", "is_few", "slices")) < 60, pages
    assert pages["get"] / 50 < 20, pages
    assert max(pages["page"], pages["page after"], pages["page_of_few"]) < 60, pages


async def test_an_account_with_few_trackers_is_read_by_its_own_index(connection: asyncpg.Connection) -> None:
    """Without waiting trackers the page goes down to the first id, along the account's index, not along all ids."""
    await connection.execute("TRUNCATE tickwright.tracker_intake")
    sql = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {polling_service.SQL['page_of_few']}"
    executed = ExecutedQuery(
        json.loads(await connection.fetchval(sql, NEWEST, 11, None, None, None, 51, 100))[0]["Plan"]
    )
    assert executed.pages < 60


async def test_a_replay_reads_its_slot(connection: asyncpg.Connection) -> None:
    """A slot's trackers and answers, and the outbox, which holds a minute or two: nothing of other slots."""
    due = await connection.fetchval("SELECT prev_due_at FROM tickwright.poll_slots WHERE slot_id = 5")
    sql = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {slices._COUNT}"
    executed = ExecutedQuery(json.loads(await connection.fetchval(sql, 5, due, None, False))[0]["Plan"])
    assert not executed.scanned & {"trackers", "poll_done"}
    assert executed.pages < 700, executed.pages  # a tracker a page, as they lie in the order of their ids
