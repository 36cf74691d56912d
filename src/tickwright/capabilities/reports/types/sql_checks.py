"""Who understands SQL when a report type is set up. DuckDB is loaded when it is first asked; it carries nothing out."""

import json
from typing import Any

from tickwright.capabilities.reports.merge.duck import STATEMENTS
from tickwright.capabilities.reports.types.definition_checks import SqlChecks
from tickwright.capabilities.reports.types.select_check import check_select
from tickwright.domain.placeholders import one_query, placeholders


def sql_checks() -> SqlChecks:
    """Return the checks of this release; each takes some milliseconds."""
    return SqlChecks(check_select, values_of, columns_of)


def values_of(sql: str) -> frozenset[str]:
    """Return the names of the values that a listener's query asks for.

    Raises:
        Rejected: ``invalid_sql``: the text is not one query. What it may do its source decides. Permanent.
    """
    return placeholders(one_query(sql))


def columns_of(sql: str) -> frozenset[str] | None:
    """Return the names of a SELECT's columns as its text says them; ``None`` where only running it would tell.

    A column without a name of its own, such as ``count(*)``, gets one that no query can ask for; it is left out.

    Args:
        sql: One SELECT, checked.
    """
    import duckdb

    with duckdb.connect(":memory:", config={"threads": 1, "enable_external_access": False}) as connection:
        tree = json.loads(str(connection.execute(STATEMENTS["syntax_tree"], [sql]).fetchall()[0][0]))
    if tree.get("error") or tree["statements"][0]["node"]["type"] != "SELECT_NODE":
        return None
    columns = tree["statements"][0]["node"]["select_list"]
    return None if any(map(_may_be_many, columns)) else frozenset(filter(str.isidentifier, map(_name, columns)))


def _may_be_many(column: Any) -> bool:
    """Whether a star, ``COLUMNS()`` or ``unnest()`` is in it: one expression that is several columns."""
    if isinstance(column, list):
        return any(map(_may_be_many, column))
    if not isinstance(column, dict):
        return False
    if column.get("class") == "STAR" or str(column.get("function_name", "")).lower() == "unnest":
        return True
    return column.get("class") != "SUBQUERY" and any(map(_may_be_many, column.values()))


def _name(column: dict[str, Any]) -> str:
    own = column["column_names"][-1] if column["class"] == "COLUMN_REF" else ""
    return str(column.get("alias") or own)
