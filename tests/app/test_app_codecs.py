"""Codecs for JSON on the caller's own connection: what is stored is what the caller gave."""

import json
from typing import Any

import asyncpg
from sqlalchemy.ext.asyncio import create_async_engine

from kit.postgres import sqlalchemy_url
from tickwright import Scheduled, Tickwright
from tickwright.app import program
from tickwright.capabilities.jobs import enqueue
from tickwright.capabilities.polling import service as trackers_store
from tickwright.capabilities.reports.requests.store import SQL as RECORDS

STORED = "SELECT payload::text FROM ONLY tickwright.scheduled_tasks ORDER BY id"
MESSAGE = "SELECT payload::text, headers::text FROM tickwright.outbox"


async def _with_codecs(connection: Any) -> None:
    for name in ("json", "jsonb"):
        await connection.set_type_codec(name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")


async def _use(app: Tickwright, connection: Any) -> None:
    job = {"to": "ann"}
    await app.schedule("mail", job, connection=connection)
    first = await app.schedule("mail", job, key="k", connection=connection)
    assert await app.schedule("mail", job, key="k", connection=connection) == Scheduled(first.id, created=False)
    await app.schedule_many([app.new_job("mail", job), app.new_job("mail", job, key="m")], connection=connection)
    await app.publish("pg:topic", {"a": 1}, headers={"x-a": "b"}, connection=connection)


async def test_codecs_of_the_caller_encode_nothing_twice(app: Tickwright, database_url: str, other: Any) -> None:
    """What is stored is what the caller gave, whatever the connection makes of JSON."""
    connection = await asyncpg.connect(database_url)
    await _with_codecs(connection)
    async with connection.transaction():
        await _use(app, connection)
    await connection.close()
    assert [row[0] for row in await other.fetch(STORED)] == ['{"to": "ann"}'] * 4
    assert tuple(await other.fetchrow(MESSAGE)) == ('{"a": 1}', '{"x-a": "b"}')


async def test_codecs_of_the_caller_under_sqlalchemy_encode_nothing_twice(
    app: Tickwright, database_url: str, other: Any
) -> None:
    """SQLAlchemy sets some of its own; the caller may set others after them."""
    engine = create_async_engine(sqlalchemy_url(database_url).replace("+psycopg", "+asyncpg"))
    for sets_own in (False, True):
        async with engine.begin() as connection:
            if sets_own:
                raw = (await connection.get_raw_connection()).driver_connection
                await _with_codecs(raw)
                await app.schedule("mail", {"to": "ann"}, connection=connection)
            else:
                await _use(app, connection)
    await engine.dispose()
    assert [row[0] for row in await other.fetch(STORED)] == ['{"to": "ann"}'] * 5
    assert tuple(await other.fetchrow(MESSAGE)) == ('{"a": 1}', '{"x-a": "b"}')


_STATEMENTS = (
    "insert_plain", "insert_plain_detailed", "insert_keyed", "insert_keyed_detailed", "insert_unique", "find_keys",
)  # fmt: skip


async def test_no_statement_on_a_callers_connection_has_an_argument_of_json() -> None:
    """The rule behind it: such an argument would go through the caller's codecs."""
    theirs = [
        *(enqueue._SQL[name] for name in _STATEMENTS),
        *program._SQL.values(),
        *(trackers_store.SQL[name] for name in ("account_number", "register", "find", "unregister")),
        *(RECORDS[name] for name in ("insert_report", "running_report", "insert_parts", "notify", "announce")),
    ]
    assert [sql for sql in theirs if "::json" in sql] == []
