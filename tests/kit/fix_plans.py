"""Shared by tests of query plans: a crowded database, and EXPLAIN of a query as production runs it."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import ClientCursor

from kit.alerts import RULES, RULES_SQL
from kit.servers import PostgresServer
from tickwright.store.pool import SETTINGS
from tickwright.store.queries import load

PLAN_PAGE = load("tickwright.store.sql", "paging.sql")["plan_page"]
FILL = """
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload)
SELECT now() + interval '1 second' * (CASE WHEN n % 50 = 0 THEN -60 ELSE n END), 'good', '{"n": 1}'
  FROM generate_series(1, 50000) AS n
"""


class Plan:
    """One executed plan: its nodes and what it read."""

    def __init__(self, root: dict[str, Any]) -> None:
        self.root = root
        self.nodes = list(self._walk(root))

    @classmethod
    def _walk(cls, node: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield node
        for child in node.get("Plans", []):
            yield from cls._walk(child)

    def scans_of(self, table: str) -> set[str]:
        """Return how a table is read: index names, ``tid``, or ``seq``."""
        found = set()
        for node in self.nodes:
            kind = node["Node Type"]
            if node.get("Relation Name") == table and kind in {"Seq Scan", "Sample Scan"}:
                found.add("seq")
            elif node.get("Relation Name") == table and kind == "Tid Scan":
                found.add("tid")
            elif str(node.get("Index Name", "")).startswith(table):
                found.add(node["Index Name"])
        return found

    def rows_of(self, table: str) -> float:
        """Return how many rows of a table, or of its indexes, were read."""
        nodes = [node for node in self.nodes if node.get("Relation Name") == table]
        return float(sum(node["Actual Rows"] * node["Actual Loops"] for node in nodes))

    @property
    def blocks(self) -> int:
        """Pages read, in memory or not."""
        return int(self.root["Shared Hit Blocks"] + self.root["Shared Read Blocks"])

    @property
    def text(self) -> str:
        """The plan as JSON, for a failing test's message."""
        return json.dumps(self.root, indent=1)[:4000]


class Planner:
    """A connection with the pool's settings, whose prepared plans are those that a worker would have cached."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True, cursor_factory=ClientCursor)
        for name, value in SETTINGS.items():
            self.run("SELECT set_config(%s, %s, false)", name, value)

    def run(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement of the test."""
        cursor = self._connection.execute(sql, values or None)
        return cursor.fetchall() if cursor.description else []

    def prepare(self, name: str, sql: str) -> None:
        """Prepare a named query, as a worker does with its first use."""
        self._connection.execute(f"PREPARE {name} AS {sql}")

    def explain(self, name: str, *values: Any) -> Plan:
        """Execute a prepared query, undo it, and return its plan."""
        places = f"({', '.join(['%s'] * len(values))})" if values else ""
        with self._connection.transaction(force_rollback=True):
            sql = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {name} {places}"
            return Plan(self.run(sql, *(_spelled(value) for value in values))[0][0][0]["Plan"])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Undo what the statements inside do, settings and prepared queries too."""
        with self._connection.transaction(force_rollback=True):
            yield
        self.run("DEALLOCATE ALL")

    def prepare_rules(self, prefix: str) -> None:
        """Prepare the alert rules whose names begin with a prefix."""
        for name, sql in RULES_SQL.items():
            if name.startswith(prefix) and sql:
                self.prepare(f"rule_{name}", sql)

    def explain_rule(self, name: str) -> Plan:
        """Execute a prepared rule with its bounds; return its plan."""
        return self.explain(f"rule_{name}", *next(rule.bounds for rule in reversed(RULES) if rule.name == name))

    def explain_page(self, sql: str, *values: Any) -> Plan:
        """Execute a query as ``store.paging.fetch_page`` does, with the plan that a process would cache; return it."""
        with self._connection.transaction(force_rollback=True):
            self.run(PLAN_PAGE)
            self.prepare("page", sql)
            try:
                return self.explain("page", *values)
            finally:
                self.run("DEALLOCATE page")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _spelled(value: Any) -> Any:
    """Return a value as psycopg writes a literal of the parameter's type."""
    if isinstance(value, timedelta):
        return f"{value.total_seconds()} seconds"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "{" + ",".join("" if item is None else str(item) for item in value) + "}"
    return value


@pytest.fixture(scope="module")
def module_url(pg_server: PostgresServer, template_database: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """A migrated, empty database that the tests of one module share."""
    name = f"plans_{request.module.__name__.rpartition('.')[2]}"
    yield pg_server.create_database(name, template=template_database)
    pg_server.drop_database(name)


@pytest.fixture
def planner(database_url: str) -> Iterator[Planner]:
    """A planner on an empty database of the test."""
    planner = Planner(database_url)
    yield planner
    planner.close()


@pytest.fixture(scope="module")
def crowded(module_url: str) -> Iterator[Planner]:
    """A planner on 50,000 pending jobs, a thousand of them due."""
    planner = Planner(module_url)
    planner.run(FILL)
    planner.run("ANALYZE tickwright.scheduled_tasks")
    yield planner
    planner.close()
