"""The producer and the pages of schedules cost what they return, beside 10,000 schedules and many jobs with keys."""

import json
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import asyncpg
import pytest

from tickwright.capabilities.jobs.schedules import producer, service
from tickwright.store.pool import SETTINGS
from tickwright.store.queries import load

SCHEDULES, JOBS = 10_000, 8_000
FILL = f"""
INSERT INTO tickwright.schedules (name, task_type, every)
SELECT 's' || to_char(n, 'FM00000'), 't', '1 hour' FROM generate_series(1, {SCHEDULES}) AS n;
UPDATE tickwright.schedules
   SET next_slot_at = now() + interval '1 hour', due_at = now() + (1 + random()) * interval '1 hour';
UPDATE tickwright.schedules SET due_at = now() - interval '1 minute' WHERE name < 's00003';
INSERT INTO tickwright.schedule_skips (schedule, slot_at, until_at, slots, reason)
SELECT 's00001', now() - n * interval '1 hour', now() - n * interval '1 hour', 1, 'overlap'
  FROM generate_series(1, 100) AS n;
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload, idempotency_key)
SELECT now() + interval '1 hour', 't', '{{}}', 'schedule:s' || to_char(n, 'FM00000') || ':2026-01-01T00:00:00Z'
  FROM generate_series(1, {JOBS}) AS n;
"""
TABLES = {"schedules", "schedule_skips", "scheduled_tasks", "job_keys"}
PLAN_PAGE = load("tickwright.store.sql", "paging.sql")["plan_page"]
SQL = {**producer.SQL, **service.SQL}


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


async def test_a_round_and_a_page_read_a_few_pages(connection: asyncpg.Connection) -> None:
    """By index, never a table as a whole; a generic plan, too."""
    now: datetime = await connection.fetchval("SELECT now()")
    names = [f"s{number:05}" for number in range(1, 101)]
    asked: dict[str, tuple[int, tuple[Any, ...]]] = {
        "due_schedules": (30, (200,)),
        "next_due_in": (10, ()),
        "open_schedules": (1_000, (names,)),
        "lock_open_jobs": (1_500, (names,)),
        "put_skips": (300, (["s00002"], [now], [now], [1], ["misfire"])),
        "drop_old_skips": (100, (["s00001"], 100)),
        "move_schedules": (200, (names[:2], [now] * 2, [now] * 2, [now] * 2, [1] * 2)),
        "list": (200, ("s05000", "", "~", None, 51)),
        "get": (20, ("s05000",)),
        "skips": (30, ("s00001", 10)),
        "skip_of": (30, ("s00001", now)),
        "job_of": (100, ("schedule:s00001:2026-01-01T00:00:00Z",)),
        "surroundings": (60, ("s05000",)),
    }
    for mode in ("force_custom_plan", "force_generic_plan"):
        for name, (blocks_max, arguments) in asked.items():
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute(f"SET LOCAL plan_cache_mode = {mode}")
            if name == "list":
                await connection.execute(PLAN_PAGE)
            sql = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {SQL[name]}"
            plan = json.loads(await connection.fetchval(sql, *arguments))[0]["Plan"]
            await transaction.rollback()
            blocks = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
            assert not scanned(plan) & TABLES, (mode, name, plan)
            assert blocks < blocks_max, (mode, name, blocks)
