"""Reading one range of an audience costs what is in the range, whatever the key's type, collation and the filter."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from kit.audiences import OlderThan
from tickwright.capabilities.batches.audience.schema import read_audience
from tickwright.capabilities.batches.audience.sql_text import AudienceSql, KeyKind, Statement
from tickwright.domain.placeholders import bind
from tickwright.ports.reports import Column

MEMBERS = 50_000
COLUMNS = [Column("id", ""), Column("age", "INTEGER"), Column("email", "VARCHAR")]
NOW = datetime(2026, 1, 31, tzinfo=UTC)
TEXT: tuple[str, KeyKind, Any, Any] = (
    "'client ' || lpad(n::text, 8, '0')",
    "text",
    "client 00020000",
    "client 00020500",
)
KEYS: dict[str, tuple[str, KeyKind, Any, Any]] = {
    "bigint": ("n", "int", 20_000, 20_500),
    "integer": ("n", "int", 20_000, 20_500),
    "text": TEXT,
    'varchar(50) COLLATE "en-x-icu"': TEXT,
    "char(50)": TEXT,
    "uuid": (
        "lpad(to_hex(n), 32, '0')::uuid", "uuid",
        "00000000-0000-0000-0000-000000004e20", "00000000-0000-0000-0000-000000005014",
    ),
}  # fmt: skip


@pytest.fixture
async def connection(empty_database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A database of its own."""
    opened = await asyncpg.connect(empty_database_url)
    yield opened
    await opened.close()


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every node of a plan."""
    return [plan, *(inner for part in plan.get("Plans", []) for inner in nodes(part))]


async def explained(connection: asyncpg.Connection, asked: Statement) -> list[dict[str, Any]]:
    """Return the nodes of a statement's plan, its values sent as texts without a type, as the source sends them."""
    bound = bind(asked.sql, asked.values, "${}".format)
    sql = bound.sql
    for number, value in reversed(list(enumerate(bound.values, 1))):
        sql = sql.replace(f"${number}", f"'{value}'")
    rows = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT json) {sql}")
    return nodes(json.loads(rows)[0]["Plan"])


@pytest.mark.parametrize("kind", list(KEYS))
async def test_a_range_is_read_by_the_key_s_index(connection: asyncpg.Connection, kind: str) -> None:
    """500 of 50,000 members: no other row is read, and the filter applies to those."""
    made, key, after, until = KEYS[kind]
    await connection.execute(f"CREATE TABLE clients (id {kind} PRIMARY KEY, age integer, email text)")
    await connection.execute(
        f"INSERT INTO clients SELECT {made}, n % 90, 'mail' || n FROM generate_series(1, {MEMBERS}) AS n"
    )
    await connection.execute("VACUUM ANALYZE clients")
    document = {"source": "crm", "table": "clients", "key": "id", "fields": {"age": "int"}, "columns": ["email"]}
    asking = AudienceSql(read_audience(document), "postgresql")
    members, condition = asking.range(key, after, until), OlderThan(30).sql("postgresql", asking.column, NOW)
    assert condition is not None
    for asked in (asking.read(members, COLUMNS), asking.select(members, COLUMNS, condition)):
        found = await explained(connection, asked)
        read = [node for node in found if node.get("Relation Name") == "clients"]
        assert len(read) == 1
        assert "Index Cond" in read[0] or any("Index Cond" in node for node in found)
        assert (read[0]["Actual Rows"], read[0].get("Rows Removed by Filter", 0)) == (500, 0)
    (cut,) = [node for node in await explained(connection, asking.cut(key, 500)) if "Relation Name" in node]
    assert cut["Actual Rows"] == MEMBERS
