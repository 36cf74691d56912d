"""A program with workflows, and its database."""

import json
from typing import Any

from tickwright import Fail, Job, Tickwright
from tickwright.store.pool import Pool

STATES = """
    SELECT n.name, coalesce(n.status, 'open') AS status FROM tickwright.workflow_nodes n
     WHERE n.root_id = $1 ORDER BY n.id
"""
WAITING = "SELECT count(*) FROM ONLY tickwright.scheduled_tasks_waiting"
CANCEL = "UPDATE tickwright.scheduled_tasks SET status = 'cancelled' WHERE id = $1"
STATE = "SELECT state FROM tickwright.workflows WHERE id = $1"


class FlowShop:
    """A program whose handlers note their calls; those whose name is in ``fails`` fail for good."""

    def __init__(self, database_url: str | None = None) -> None:
        self.app = app = Tickwright(database_url)
        self.calls: list[Any] = []
        self.fails: set[str] = set()

        @app.job("step")
        async def step(_job: Job, name: str) -> str:
            self.calls.append(name)
            if name in self.fails:
                raise Fail(f"{name} fails")
            return name.upper()

        @app.job("join")
        async def join(_job: Job, one: str, more: list[str] | None = None) -> str:
            self.calls.append((one, more))
            return "+".join([one, *(more or [])])

        @app.job("total")
        async def total(job: Job) -> list[Any]:
            found = [(result.name, result.result) async for result in app.workflows.results_of(job.id)]
            self.calls.append(found)
            return found

        self.step, self.join, self.total = step, join, total


async def states(pool: Pool, workflow_id: int) -> dict[str, str]:
    """Return how each node of a workflow is, by its name."""
    return {row["name"]: row["status"] for row in await pool.fetch(STATES, workflow_id)}


async def check_no_leftovers(pool: Pool) -> None:
    """WFL-1: nothing waits that has ended, counters agree with nodes, and no transaction left a note."""
    wrong = await pool.fetch(
        """
        SELECT w.id, w.state, w.open, w.failed, w.cancelled, c.*
          FROM tickwright.workflows w CROSS JOIN LATERAL (
            SELECT count(*) FILTER (WHERE n.status IS NULL) AS is_open,
                   count(*) FILTER (WHERE n.status = 'failed') AS has_failed,
                   count(*) FILTER (WHERE n.status = 'cancelled') AS was_cancelled,
                   count(*) FILTER (WHERE n.status IS NOT NULL AND t.id IS NOT NULL) AS left_over
              FROM tickwright.workflow_nodes n LEFT JOIN ONLY tickwright.scheduled_tasks_waiting t USING (id)
             WHERE n.workflow_id = w.id) AS c
         WHERE (w.open, w.failed, w.cancelled) <> (c.is_open, c.has_failed, c.was_cancelled) OR c.left_over > 0
            OR (w.open = 0) <> (w.ended_at IS NOT NULL) OR (w.state = 'running') <> (w.open > 0)
        """
    )
    assert not wrong, f"WFL-1 broken: {wrong}"
    assert await pool.fetchval("SELECT count(*) FROM tickwright.workflow_ends") == 0


async def add(pool: Pool, *jobs: dict[str, Any], **more: Any) -> int:
    """Add a workflow of jobs of the type ``work`` by plain SQL; return its id. Its nodes have the next ids."""
    given = {"name": "flow", "jobs": [{"task_type": "work", **job} for job in jobs], **more}
    root: int = await pool.fetchval("SELECT tickwright.add_workflow($1::jsonb)", json.dumps(given))
    return root


async def change_function(pool: Pool, signature: str, guard: str, instead: str) -> None:
    """Replace a part of a function of the database that occurs once."""
    text = await pool.fetchval("SELECT pg_get_functiondef($1::regprocedure)", f"tickwright.{signature}")
    assert text.count(guard) == 1, f"{signature} has {text.count(guard)} times: {guard}"
    await pool.execute(text.replace(guard, instead))
