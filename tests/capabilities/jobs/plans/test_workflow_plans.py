"""What callers see of workflows costs what it returns, beside 12,000 nodes of other workflows."""

import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import asyncpg
import pytest

from tickwright.capabilities.jobs.workflows import queries, service
from tickwright.store.pool import SETTINGS

FLOWS, NODES = 12, 1_000
TABLES = {"workflows", "workflow_nodes", "workflow_edges", "scheduled_tasks", "scheduled_tasks_waiting"}
ADD = "SELECT tickwright.add_workflow($1::jsonb)"
SQL = {**queries.SQL, **service.SQL}


class Filled(NamedTuple):
    """A connection with the pool's settings, and one of the workflows."""

    connection: asyncpg.Connection
    root: int


@pytest.fixture
async def filled(database_url: str) -> AsyncIterator[Filled]:
    """Chains of ten, one behind the other, in workflows of a thousand jobs."""
    filling = await asyncpg.connect(database_url)
    jobs = [{"name": f"n{n}", "task_type": "t", **({"after": [f"n{n - 1}"]} if n % 10 else {})} for n in range(NODES)]
    roots = [await filling.fetchval(ADD, json.dumps({"name": f"f{n}", "jobs": jobs})) for n in range(FLOWS)]
    await filling.execute("VACUUM ANALYZE")
    await filling.close()
    connection = await asyncpg.connect(database_url, server_settings=SETTINGS)
    yield Filled(connection, roots[FLOWS // 2])
    await connection.close()


def scanned(node: dict[str, Any]) -> set[str]:
    """Return the tables that a plan reads whole."""
    here = {node["Relation Name"]} if node["Node Type"] == "Seq Scan" else set()
    return here.union(*(scanned(inner) for inner in node.get("Plans", [])))


async def test_views_of_a_workflow_read_a_few_pages(filled: Filled) -> None:
    """By index, never a table as a whole; a generic plan, too."""
    connection, root = filled
    some, last = list(range(root + 1, root + 51)), root + NODES
    asked: dict[str, tuple[int, tuple[Any, ...]]] = {
        "search": (60, (None, None, None, None, 2**62, 50, 50)),
        "get_many": (20, ([root],)),
        "get": (10, (root,)),
        "structure": (1_000, (root, root, last, 100)),
        "states": (4_000, (root, root, root + 500)),
        "nodes": (600, (some,)),
        "named": (50, (root, "n99", "n9:", 20)),
        "predecessors": (30, (root + 2, 100)),
        "successors": (30, (root + 2, 100)),
        "live": (3_000, (root, root, last, 20)),
        "blocking": (1_000, (root, some, 20)),
        "job_errors": (30, (some[:5],)),
        "node_of": (30, (root + 2,)),
        "surroundings": (40, (root + 2,)),
        "ids": (500, (root,)),
        "results": (500, (root + 2, 0, 200)),
    }
    for mode in ("force_custom_plan", "force_generic_plan"):
        for name, (blocks_max, arguments) in asked.items():
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute(f"SET LOCAL plan_cache_mode = {mode}")
            sql = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {SQL[name]}"
            plan = json.loads(await connection.fetchval(sql, *arguments))[0]["Plan"]
            await transaction.rollback()
            blocks = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
            assert not scanned(plan) & TABLES, (mode, name, plan)
            assert blocks < blocks_max, (mode, name, blocks)
