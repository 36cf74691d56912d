"""The commands of workflows: they do what the routes do, and a mistake has its code."""

import asyncio
import json
from pathlib import Path
from typing import Any

import asyncpg

from kit.cli import Said, environment, tickwright

FLOW = {
    "name": "order",
    "jobs": [
        {"name": "charge", "task_type": "noop", "delay": "1 hour"},
        {"name": "pack", "task_type": "noop", "after": ["charge"]},
        {"name": "tell", "task_type": "noop", "after": ["pack"]},
    ],
}
TYPE = "INSERT INTO tickwright.task_types (name, target) VALUES ('noop', 'python:noop')"


async def execute(url: str, sql: str) -> None:
    """Run a statement by hand."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


def test_the_commands_do_what_the_routes_do(database_url: str, tmp_path: Path) -> None:
    """Add, list, show, nodes, explain, cancel and retry, of the whole and from a job on."""
    asyncio.run(execute(database_url, TYPE))
    env = environment(DATABASE_URL=database_url, HOME=str(tmp_path))
    file = tmp_path / "flow.json"
    file.write_text(json.dumps(FLOW))

    def ok(*words: str) -> Said:
        said = tickwright("workflows", *words, env=env)
        assert said.code == 0, said
        return said

    def answer(*words: str) -> Any:
        return ok(*words, "--json").json

    made = answer("add", str(file), "--key", "order-1")
    assert made["created"] is True
    workflow_id = str(made["id"])
    assert ok("add", str(file), "--key", "order-1").out == f"workflow {workflow_id} (its key had made it)\n"
    assert [one["name"] for one in answer("list", "--state", "running", "--text", "ORD")["items"]] == ["order"]
    shown = answer("show", workflow_id)
    assert (shown["states"], len(shown["graph"]["groups"])) == ({"pending": 1, "waiting": 2}, 3)
    assert "1 waiting" in ok("show", workflow_id).out
    ids = {one["name"]: str(one["id"]) for one in answer("nodes", workflow_id)["items"]}
    assert [one["name"] for one in answer("nodes", workflow_id, "--status", "pending")["items"]] == ["charge"]
    assert f"charge (#{ids['charge']}) is due in" in ok("explain", workflow_id).out
    jobs = tickwright("jobs", "list", "--workflow", workflow_id, "--status", "waiting", "--json", env=env).json["items"]
    assert [str(job["id"]) for job in jobs] == [ids["tell"], ids["pack"]]
    assert ok("cancel", workflow_id, "--from", ids["pack"]).out == (
        f"workflow {workflow_id} is running: 2 jobs cancelled\n"
    )
    assert answer("cancel", workflow_id)["state"] == "cancelled"
    assert answer("retry", workflow_id)["jobs"] == 3
    for words, code in (
        (("show", "999999"), "workflow_not_found"),
        (("retry", workflow_id), "workflow_nothing_to_retry"),
    ):
        refused = tickwright("workflows", *words, "--json", env=env)
        assert (refused.code, refused.error["code"]) == (1, code)
    assert tickwright("workflows", "add", str(tmp_path / "none.json"), env=env).code == 2
    file.write_text(json.dumps({**FLOW, "jobs": [{**FLOW["jobs"][1]}]}))  # type: ignore[dict-item]
    refused = tickwright("workflows", "add", str(file), "--json", env=env)
    assert (refused.code, refused.error["code"]) == (1, "workflow_unknown_name")
