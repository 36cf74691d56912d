"""Queries of the operators' views read a bounded number of rows by index, however many there are."""

import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from kit.polling import Ground
from tickwright.capabilities.batches.executions import chunks_store
from tickwright.capabilities.fanout import service as matrix
from tickwright.capabilities.fanout.consumer import run_claims
from tickwright.capabilities.jobs.worker.claims import OWNED
from tickwright.capabilities.operations.actions import SQL as OPERATIONS
from tickwright.capabilities.polling import partners
from tickwright.capabilities.polling.consumer import queue as poll_queue
from tickwright.capabilities.polling.service import SQL as TRACKERS
from tickwright.capabilities.polling.trackers import accounts, freshness
from tickwright.capabilities.polling.wheels import slices
from tickwright.capabilities.reports.parts import store as parts_store
from tickwright.engine.outbox.table import SQL as OUTBOX
from tickwright.process.plugins import PLUGINS
from tickwright.store.pool import SETTINGS

FILL = """
INSERT INTO tickwright.polling_schedule_config (account_id) SELECT 'a' || to_char(n, 'FM0000') FROM generate_series(1, 3000) AS n;
INSERT INTO tickwright.account_lags (account_no, interval_minutes, due_at, polls, fresh, lag)
SELECT n, 120, now(), 10, 10, 1 + n % 7 FROM generate_series(1, 3000) AS n;
INSERT INTO tickwright.account_freshness (account_no, minutes, from_at, keep_until, polls, fresh, lag)
SELECT a, 5, now() - n * interval '5 minutes', now(), 10, 9, 1 FROM generate_series(1, 500) AS a, generate_series(1, 80) AS n;
INSERT INTO tickwright.trackers (id, created_at, tracking_until, account_no, place, partner_no, status, external_id)
SELECT nextval('tickwright.tracker_ids'), now(), now() + interval '60 days', CASE WHEN n % 2 = 0 THEN 1 ELSE 1 + n % 3000 END, n % 7200, 1, 'x', 'X' || n
  FROM generate_series(1, 60000) AS n;
UPDATE tickwright.poll_slots SET prev_due_at = next_due_at - interval '120 minutes';
INSERT INTO tickwright.poll_slices (due_at, slot_id, partner_no, interval_minutes, selected, loads)
SELECT s.prev_due_at - turn * interval '2 hours', s.slot_id, 1, 120, 500, '{83,83,83,83,84,84}'
  FROM tickwright.poll_slots s, generate_series(0, 80) AS turn;
INSERT INTO tickwright.workers (id, name, roles, version, lease_until)
SELECT n, 'host:' || n, '{worker}', '0', now() + interval '1 hour' FROM generate_series(1, 20) AS n;
INSERT INTO tickwright.partner_states (partner_no) VALUES (1);
INSERT INTO tickwright.partner_shares SELECT 1, n, 1 FROM generate_series(1, 20) AS n;
INSERT INTO tickwright.poll_queue (due_at, slot_id, partner_no, ids, account_nos, external_ids, owner)
SELECT now(), 1, 1, '{1,2}', '{1,1}', '{a,b}', CASE WHEN n % 100 = 0 THEN 7 END FROM generate_series(1, 20000) AS n;
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type)
SELECT now() - n * interval '1 second', 'good' FROM generate_series(1, 30000) AS n;
INSERT INTO tickwright.outbox (destination, payload, attempts, next_at)
SELECT 'pg:dead', '{}', 1, now() + interval '1 hour' FROM generate_series(1, 20000) AS n;
INSERT INTO tickwright.outbox (destination, payload) SELECT 'pg:t' || n % 50, '{}' FROM generate_series(1, 10000) AS n;
INSERT INTO tickwright.fanout_windows (task_type, window_at, succeeded)
SELECT m, date_bin('15 minutes', now(), 'epoch') - n * interval '15 minutes', 5
  FROM unnest('{LOCATIONS,CDRS,TARIFFS,SESSIONS}'::text[]) AS m, generate_series(0, 2800) AS n;
INSERT INTO tickwright.fanout_claims (window_at, task_type, entity_code, token, claimed_until, published_at)
SELECT date_bin('15 minutes', now(), 'epoch') - w * interval '15 minutes', 'LOCATIONS', 'E' || n, 't', now(), now()
  FROM generate_series(0, 9) AS w, generate_series(1, 3000) AS n;
INSERT INTO tickwright.entities (code, polling_enabled_modules) SELECT 'E' || n, 'LOCATIONS,CDRS' FROM generate_series(1, 3000) AS n;
INSERT INTO tickwright.fanout_cursors (entity_code, task_type, owner)
SELECT 'E' || n, 'LOCATIONS', CASE WHEN n % 1000 = 0 THEN 7 END FROM generate_series(1, 3000) AS n;
INSERT INTO tickwright.alerts (rule, subject, severity, summary, state) SELECT 'r', 's' || n, 'info', 'x', 'firing' FROM generate_series(1, 3000) AS n;
"""  # noqa: E501
GROWN = {
    "scheduled_tasks", "outbox", "trackers", "tracker_intake", "poll_slices", "poll_queue", "account_freshness",
    "fanout_windows", "fanout_claims", "fanout_cursors", "entities", "alerts", "execution_chunks", "executions",
    "reports", "report_parts",
}  # fmt: skip


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection with the pool's settings, on full tables."""
    async with asyncpg.create_pool(database_url, min_size=1, max_size=1) as pool:
        await Ground(pool).partner()
        await Ground(pool).wheel(120)
        await pool.execute(FILL)
        await pool.execute("VACUUM ANALYZE")
    connection = await asyncpg.connect(database_url, server_settings=SETTINGS)
    yield connection
    await connection.close()


def walk(node: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every node of a plan."""
    return [node, *(inner for child in node.get("Plans", []) for inner in walk(child))]


async def test_queries_of_the_views_read_few_pages(connection: asyncpg.Connection) -> None:
    """No growing table is scanned, except for the pages of a sample; one thing costs a hundred pages."""

    async def pages_of(sql: str, *arguments: Any) -> int:
        async with connection.transaction():
            text = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {sql}", *arguments)
        plan = json.loads(text)[0]["Plan"]
        scanned = {node["Relation Name"] for node in walk(plan) if node["Node Type"] == "Seq Scan"}
        assert not scanned & GROWN, (scanned, sql[:60])
        return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

    now = await connection.fetchval("SELECT now()")
    lane = await connection.fetchval("SELECT hashtextextended('pg:dead', 0)")
    message = await connection.fetchval("SELECT max(id) FROM tickwright.outbox")
    day = await connection.fetchval("SELECT now() - interval '1 day'")
    one = {
        "burn": await pages_of(freshness._SQL["burn"], 7, [day] * 6),
        "series": await pages_of(freshness._SQL["series"], 7, day, 3000),
        "contract_state": await pages_of(partners._SQL["contract_state"], "dhl"),
        "shares": await pages_of(partners._SQL["shares"], 1),
        "counted": await pages_of(partners._SQL["counted_calls"], "dhl"),
        "worker": await pages_of(OPERATIONS["worker"], 7),
        "acknowledge": await pages_of(OPERATIONS["acknowledge"], 7, "me", None),
        "alert_state": await pages_of(OPERATIONS["alert_state"], 7),
        "leases": await pages_of(OPERATIONS["leases"]),
        "discard": await pages_of(OUTBOX["discard"], message, "x"),
        "published": await pages_of(matrix._SQL["published"], ["LOCATIONS"], [now], 10_000),
        "last_turns": await pages_of(slices._SQL["count_last_minutes"], day, now, 5),
    }
    assert max(one.values()) < 100, one
    pages = {
        "accounts": await pages_of(accounts._SQL["list_accounts"], "", 51, None, 10_000),
        "accounts with a text": await pages_of(accounts._SQL["list_accounts"], "", 51, "zzz", 1_000),
        "lagging": await pages_of(accounts._SQL["list_lagging"], float("inf"), "", 51, None, 1_000),
        "waiting": await pages_of(partners._SQL["waiting_polls"], 1, 500),
        "states": await pages_of(matrix._SQL["states"], ["E1", "E2"], ["LOCATIONS", "CDRS,LOCATIONS"]),
        "windows": await pages_of(matrix._SQL["windows"], day, ["LOCATIONS"], 1_000),
        "lanes": await pages_of(OUTBOX["lanes"], 1_000, "relay:outbox"),
        "lane_standings": await pages_of(OUTBOX["lane_standings"], [lane], 500),
        "by external id": await pages_of(
            TRACKERS["page_by_external"], "X3", None, None, None, None, 51, 500, -1, "X3\U0010ffff"
        ),
        **{sql[:60]: await pages_of(sql, 7, 101) for plugin in PLUGINS for sql in plugin.holdings()},
    }
    assert max(pages.values()) < 1_500, pages
    owned = {
        "jobs": OWNED,
        "chunks": chunks_store.SQL["owned"],
        "parts": parts_store.SQL["owned"],
        "runs": run_claims._SQL["owned"],
        "polls": poll_queue._SQL["owned"],
    }
    assert max([await pages_of(sql, 7) for sql in owned.values()]) < 1_500
    heavy = {
        "heat": await pages_of(slices._SQL["heat"], day, now, None, 5),
        "coming": await pages_of(accounts._SQL["coming_polls"]),
        "counted": await pages_of(accounts._SQL["placed_trackers"], 1, 1_000),
        "retry_now": await pages_of(OUTBOX["retry_now"], "pg:dead", 200),
        "modules": await pages_of(matrix._SQL["modules"], None),
    }
    assert max(heavy.values()) < 4_000, heavy
    budgets = await pages_of(freshness._SQL["budgets"], [f"a{n:04}" for n in range(1, 51)])
    assert budgets < 50 * 100, "a page of accounts reads their own slices, eighty each, and no others"


async def test_a_sample_reads_its_pages_and_a_heat_map_its_range(connection: asyncpg.Connection) -> None:
    """However many trackers and slices there are."""
    whole = await connection.fetchval("SELECT relpages FROM pg_class WHERE oid = 'tickwright.trackers'::regclass")
    sql = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {accounts._SQL['sampled_trackers']}"
    plan = json.loads(await connection.fetchval(sql, 1, whole // 10))[0]["Plan"]
    [sample] = [node for node in walk(plan) if node["Node Type"] == "Sample Scan"]
    assert sample["Shared Hit Blocks"] + sample["Shared Read Blocks"] < whole / 5
    rows = await connection.fetch(accounts._SQL["sampled_trackers"], 1, whole)
    assert [row["trackers"] for row in rows] == [30_000.0]
    now = await connection.fetchval("SELECT now()")
    hour = await connection.fetchval("SELECT now() - interval '1 hour'")
    sql = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {slices._SQL['heat']}"
    plan = json.loads(await connection.fetchval(sql, hour, now, None, 5))[0]["Plan"]
    read = sum(n["Actual Rows"] * n["Actual Loops"] for n in walk(plan) if n.get("Relation Name") == "poll_slices")
    assert read < 200, "an hour has sixty minutes"
