"""Queries about batches and executions cost what they return, however many there are."""

import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from tickwright.capabilities.batches.definitions import batches
from tickwright.capabilities.batches.executions import executions, explain
from tickwright.store.paging import NEWEST
from tickwright.store.pool import SETTINGS
from tickwright.store.queries import load

BATCHES, EXECUTIONS, CHUNKS, ACTIONS = 3_000, 30_000, 2_000, 40_000
FILL = f"""
INSERT INTO tickwright.batches (name, kind, type)
SELECT 'c' || to_char(n, 'FM00000'), 'campaign', 'MANUAL' FROM generate_series(1, {BATCHES}) AS n;
INSERT INTO tickwright.batch_versions (batch_id, version, terms, made_by)
SELECT id, v, '{{}}', 'x' FROM tickwright.batches, generate_series(1, 5) AS v;
INSERT INTO tickwright.executions (batch_id, slot_at, status, snapshot)
SELECT CASE WHEN n % 2 = 0 THEN 1 ELSE 1 + n % {BATCHES} END, now() - n * interval '1 minute', 'FINISHED',
       jsonb_build_object('n', repeat('x', 200))
  FROM generate_series(1, {EXECUTIONS}) AS n;
INSERT INTO tickwright.execution_chunks (execution_id, number, state, value, seen, began_at, done_at)
SELECT 1, n, 'done', '{{}}', 10, now(), now() + interval '1 second' FROM generate_series(0, {CHUNKS} - 1) AS n;
INSERT INTO tickwright.execution_actions (execution_id, client_id, chunk, client)
SELECT 1, md5(n::text), n % {CHUNKS}, jsonb_build_object('n', n) FROM generate_series(1, {ACTIONS}) AS n;
INSERT INTO tickwright.execution_skips (batch_id, slot_at, until_at, reason)
SELECT 1, now() - n * interval '1 hour', now() - n * interval '1 hour', 'overlap' FROM generate_series(1, 5000) AS n;
"""  # numbers of this file
TABLES = {"batches", "batch_versions", "executions", "execution_chunks", "execution_actions", "execution_skips"}
PLAN_PAGE = load("tickwright.store.sql", "paging.sql")["plan_page"]
SQL = {
    **{f"b.{name}": sql for name, sql in batches.SQL.items()},
    **{f"e.{name}": sql for name, sql in executions.SQL.items()},
    **explain.SQL,
}


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection with the pool's settings, on many rows."""
    filling = await asyncpg.connect(database_url)
    await filling.execute(FILL)
    await filling.execute("VACUUM ANALYZE")
    await filling.close()
    connection = await asyncpg.connect(database_url, server_settings=SETTINGS)
    yield connection
    await connection.close()


def scanned(node: dict[str, Any]) -> set[str]:
    """Return the tables that a plan reads whole."""
    here = {node["Relation Name"]} if node["Node Type"] == "Seq Scan" else set()
    return here.union(*(scanned(inner) for inner in node.get("Plans", [])))


async def test_queries_about_batches_and_executions_read_a_few_pages(connection: asyncpg.Connection) -> None:
    """One batch or execution, a page of them, of versions or of actions, and the reasons: by index, never whole."""
    now = await connection.fetchval("SELECT now()")

    async def blocks_of(name: str, *arguments: Any) -> int:
        async with connection.transaction():
            await connection.execute(PLAN_PAGE)
            sql = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {SQL[name]}"
            plan = json.loads(await connection.fetchval(sql, *arguments))[0]["Plan"]
        assert not scanned(plan) & TABLES, (name, plan)
        return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

    one = {
        "b.get_batch": await blocks_of("b.get_batch", "campaign", "c00001"),
        "b.lock_batch": await blocks_of("b.lock_batch", "campaign", "c00001"),
        "b.lock_batch_of": await blocks_of("b.lock_batch_of", 1),
        "b.list_versions": await blocks_of("b.list_versions", 1, 1000, 51),
        "b.get_version": await blocks_of("b.get_version", "campaign", "c00001", 3),
        "explain_open": await blocks_of("explain_open", 1),
        "explain_last": await blocks_of("explain_last", 1),
        "explain_skips": await blocks_of("explain_skips", 1),
        "explain_slot": await blocks_of("explain_slot", 1, now),
        "e.get_execution": await blocks_of("e.get_execution", 1),
        "e.get_action": await blocks_of("e.get_action", 1, "x"),
        "e.problems": await blocks_of("e.problems", 1),
        "e.pace": await blocks_of("e.pace", 1, 1000),
        "e.lock_open": await blocks_of("e.lock_open", 1),
        "explain_waiting": await blocks_of("explain_waiting", 1),
        "explain_working": await blocks_of("explain_working", 1),
        "explain_before": await blocks_of("explain_before", 1),
    }
    assert max(one.values()) < 30, one
    pages = {
        "batches": await blocks_of("b.list_batches", "campaign", "", "", "~", None, None, 51, 5_000),
        "later batches": await blocks_of("b.list_batches", "campaign", "c01500", "", "~", None, None, 51, 5_000),
        "executions": await blocks_of("e.list_executions", NEWEST, None, None, 51, 5_000),
        "executions of one": await blocks_of("e.list_executions_of", None, "campaign", None, 51, 5_000, "c00001"),
        "later executions of one": await blocks_of("e.list_executions_of", now, "campaign", None, 51, 5_000, "c00001"),
        "actions": await blocks_of("e.list_actions", 1, "", 51),
        "later actions": await blocks_of("e.list_actions", 1, "8", 51),
    }
    assert max(pages.values()) < 700, pages
    unmatched = await blocks_of("e.list_executions", NEWEST, "campaign", ["NEW"], 51, 1_000)
    assert unmatched < 4_000, unmatched  # it reads a thousand rows
