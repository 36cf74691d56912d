"""Definitions that are no workflows: one rule and one code for programs, the API and plain SQL."""

import json
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from kit.engine import policy
from kit.postgres import sqlalchemy_url
from kit.workflows import FlowShop
from tickwright import Rejected
from tickwright.app.workflows import Flow
from tickwright.capabilities.jobs.task_types import register_handler
from tickwright.capabilities.jobs.type_catalog import TypeCatalog
from tickwright.capabilities.jobs.workflows.definition import (
    DEFINITION_BYTES_MAX,
    WorkflowDefinition,
    WorkflowJob,
    read_definition,
)
from tickwright.capabilities.jobs.workflows.service import Workflows
from tickwright.store.pool import Pool

ADD = "SELECT tickwright.add_workflow($1::jsonb)"
JOB = {"name": "a", "task_type": "t"}
LATER = {"name": "b", "task_type": "t", "after": ["a"]}
INSIDE = {"workflow": "i"}
INNER = [{"name": "i"}]
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("order", {"jobs": [{**JOB, "after": ["b"]}, LATER]}),  # a cycle
    ("order", {"jobs": [{**JOB, "after": ["a"]}]}),
    ("order", {"jobs": [LATER, JOB]}),
    ("order", {"jobs": [{**JOB, **INSIDE}, {**LATER, "after": ["i"], **INSIDE}], "workflows": INNER}),
    ("unknown_name", {"jobs": [JOB, {**LATER, "after": ["x"]}]}),
    ("unknown_name", {"jobs": [JOB, {**LATER, "arguments": {"n": ["a", "x"]}}]}),
    ("unknown_name", {"jobs": [{**JOB, "workflow": "i"}], "workflows": [{"name": "i", "after": ["x"]}]}),
    ("unknown_workflow", {"jobs": [{**JOB, "workflow": "x"}]}),
    ("unknown_workflow", {"jobs": [{**JOB, "workflow": "i"}], "workflows": [{"name": "i", "workflow": "x"}]}),
    ("name_twice", {"jobs": [JOB, JOB]}),
    ("empty", {"jobs": [JOB], "workflows": [{"name": "i"}]}),
    ("too_many", {"jobs": []}),
    ("job", {"jobs": [{**JOB, "on_failed": "x"}]}),
    ("job", {"jobs": [{**JOB, "name": "x" * 201}]}),
    ("job", {"jobs": [{"name": "a"}]}),
    ("job", {"jobs": [JOB, {**LATER, "payload": [], "arguments": {"n": "a"}}]}),
    ("value", {"jobs": [{**JOB, "delay": "soon"}]}),
    ("deadline", {"jobs": [JOB], "deadline": "1 ms"}),
    ("name", {"jobs": [JOB], "name": ""}),
    ("unknown_field", {"jobs": [{**JOB, "status": "pending"}]}),
    ("unknown_field", {"jobs": [JOB], "state": "running"}),
    ("shape", {"jobs": {}}),
    ("shape", {"jobs": [7]}),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "wrong"), WRONG)
async def test_plain_sql_refuses_what_is_no_workflow(pool: Pool, rule: str, wrong: dict[str, Any]) -> None:
    """With a constraint that names the rule, and a hint; nothing of it is added."""
    with pytest.raises(asyncpg.CheckViolationError) as raised:
        await pool.execute(ADD, json.dumps({"name": "flow"} | wrong))
    assert raised.value.constraint_name == f"workflows_{rule}"
    assert raised.value.hint
    assert await pool.fetchval("SELECT count(*) FROM tickwright.workflow_nodes") == 0


async def test_a_job_that_is_none_is_refused_as_everywhere(pool: Pool) -> None:
    """The rules of new jobs hold for those that wait, too."""
    for job in ({**JOB, "priority": 999}, {**LATER, "priority": 999}, {**LATER, "tags": ["x", "x"]}):
        with pytest.raises(asyncpg.CheckViolationError, match="job refused"):
            await pool.execute(ADD, json.dumps({"name": "flow", "jobs": [JOB, {**job, "name": "c"}]}))


async def test_the_service_answers_with_the_same_rules(pool: Pool) -> None:
    """Their codes begin with ``workflow_``; an unknown type is refused before."""
    workflows = Workflows(pool, TypeCatalog(pool))
    definition = {"name": "flow", "jobs": [JOB, {**LATER, "after": ["x"]}]}
    with pytest.raises(Rejected) as raised:
        await workflows.add(read_definition(json.dumps(definition).encode()))
    assert raised.value.code == "unknown_task_type"
    await register_handler(pool, policy("t"))
    with pytest.raises(Rejected) as raised:
        await workflows.add(read_definition(json.dumps(definition).encode()))
    assert (raised.value.code, raised.value.http_status) == ("workflow_unknown_name", 422)


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b"])
async def test_a_text_that_cannot_be_stored_is_refused_with_a_code(pool: Pool, text: str) -> None:
    """In a name or a key of a program."""
    await register_handler(pool, policy("t"))
    for definition in (
        WorkflowDefinition(name=text, jobs=[WorkflowJob(task_type="t")]),
        WorkflowDefinition(name="flow", jobs=[WorkflowJob(task_type="t")], key=text),
    ):
        with pytest.raises(Rejected) as raised:
            await Workflows(pool, TypeCatalog(pool)).add(definition)
        assert raised.value.code == "workflow_value"


def _twice(flow: Flow, shop: FlowShop) -> None:
    for _ in range(2):
        flow.add(shop.step, name="a", after=[], node="same")


async def _refused_on(shop: FlowShop, connection: Any) -> None:
    with pytest.raises(Rejected) as raised:
        async with shop.app.workflow("flow", connection=connection) as flow:
            _twice(flow, shop)
    assert raised.value.code == "workflow_name_twice"
    assert "\n" not in raised.value.message


def _refused_on_sync(shop: FlowShop, connection: Any) -> None:
    with (
        pytest.raises(Rejected, match="two have one name") as raised,
        shop.app.workflow("flow", connection=connection) as flow,
    ):
        _twice(flow, shop)
    assert raised.value.code == "workflow_name_twice"


async def test_every_driver_of_a_caller_gets_the_same_codes(database_url: str) -> None:
    """asyncpg, psycopg, SQLAlchemy with both, and the synchronous ones."""
    shop = FlowShop(database_url)
    async with shop.app as app:
        async with app.pool.acquire() as own, own.transaction():
            await _refused_on(shop, own)
        async with await psycopg.AsyncConnection.connect(database_url) as connection:
            await _refused_on(shop, connection)
        for url in (sqlalchemy_url(database_url), sqlalchemy_url(database_url).replace("+psycopg", "+asyncpg")):
            engine = create_async_engine(url)
            async with engine.connect() as connected:
                await _refused_on(shop, connected)
            await engine.dispose()
        with psycopg.connect(database_url) as sync:
            _refused_on_sync(shop, sync)
        plain = sqlalchemy.create_engine(sqlalchemy_url(database_url))
        with plain.connect() as plainly:
            _refused_on_sync(shop, plainly)
        plain.dispose()


async def test_a_definition_of_more_than_ten_megabytes_is_refused_unread() -> None:
    """By its length, before it is decoded."""
    with pytest.raises(Rejected) as raised:
        read_definition(b"[" * (DEFINITION_BYTES_MAX + 1))
    assert (raised.value.code, raised.value.http_status) == ("workflow_too_large", 413)
    with pytest.raises(Rejected, match='no field "x"'):
        read_definition(b'{"name": "flow", "jobs": [], "x": 1}')


@pytest.mark.parametrize("field", ["execute_at", "expires_at"])
async def test_an_instant_without_its_offset_is_refused(field: str) -> None:
    """As for every job; the database would read it in its own time zone."""
    given = {"name": "flow", "jobs": [{"task_type": "t", field: "2030-01-01T09:00:00"}]}
    with pytest.raises(Rejected, match="timezone") as raised:
        read_definition(json.dumps(given).encode())
    assert raised.value.code == "invalid_value"
    given["jobs"] = [{"task_type": "t", field: "2030-01-01T09:00:00Z"}]
    assert read_definition(json.dumps(given).encode()).task_types == {"t"}


async def test_a_chain_of_ten_thousand_is_cancelled_at_once(pool: Pool) -> None:
    """What can no longer run is found in one statement, not level by level."""
    jobs = [JOB] + [
        {"name": str(n), "task_type": "t", "after": [str(n - 1) if n > 1 else "a"]} for n in range(1, 10_001)
    ]
    root = await pool.fetchval(ADD, json.dumps({"name": "flow", "jobs": jobs}))
    await pool.execute("UPDATE tickwright.scheduled_tasks SET status = 'cancelled' WHERE id = $1", root + 1)
    row = await pool.fetchrow("SELECT state, cancelled FROM tickwright.workflows WHERE id = $1", root)
    assert tuple(row) == ("cancelled", 10_001)
