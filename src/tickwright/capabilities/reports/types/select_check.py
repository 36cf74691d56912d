"""Whether a text is one SELECT over the parts and nothing else: the outer of the two fences around an operator's SQL.

DuckDB's own parser reads it, and what it found is walked through by what may be there, not by what may not: tables
are parts or names of the SELECT itself, table functions are the few that read nothing, and every other kind of table
or query, such as the INSERT in a WITH, is refused by not being known. Functions that tell of the server or hold up a
thread are refused by name.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tickwright.capabilities.reports.merge.duck import DEPTH_MAX, STATEMENTS, shown
from tickwright.domain.errors import Rejected
from tickwright.sources.duckdb_text import NESTING_MAX, nesting

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SQL_CHARACTERS_MAX = 65_536
NODES_MAX = 50_000
_ERROR = '{"error":true'
_QUERIES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
_TABLES = frozenset({"BASE_TABLE", "SUBQUERY", "JOIN", "TABLE_FUNCTION", "EMPTY", "EXPRESSION_LIST", "PIVOT"})
_PIECES = frozenset(
    {"ORDER_MODIFIER", "LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER", "DISTINCT_MODIFIER"}
    | {"ORDER_DEFAULT", "ASCENDING", "DESCENDING"}
)
_TABLE_FUNCTIONS = frozenset({"unnest", "range", "generate_series", "json_each", "json_tree"})
_REFUSED_WORDS = (
    "current_setting current_query getvariable getenv write_log pg_sleep sleep_ms nextval setval setseed "
    "pg_get_viewdef pg_get_expr pg_get_constraintdef"
)
_FUNCTIONS_REFUSED = frozenset(_REFUSED_WORDS.split())


def check_select(sql: str, listeners: Sequence[str]) -> None:
    """Refuse what is not exactly one SELECT over the tables named ``listeners``. Takes some milliseconds.

    Raises:
        Rejected: ``invalid_sql``, with line and column where there is a place. Permanent.
    """
    import duckdb

    config: dict[str, str | bool | int | float | list[str]] = {"threads": 1, "enable_external_access": False}
    with duckdb.connect(":memory:", config=config) as connection:
        connection.execute(f"SET max_expression_depth = {DEPTH_MAX}").fetchall()
        read_select(connection, sql, listeners)


def read_select(connection: "DuckDBPyConnection", sql: str, listeners: Sequence[str]) -> str:
    """Return the SELECT without what ends it, after the checks of :func:`check_select`; any connection can parse."""
    statement, tree = _parse(connection, sql)
    nodes = list(_nodes(tree))
    known = {name.lower() for name in listeners}
    known |= {str(node["key"]).lower() for node in nodes if "key" in node and "value" in node}
    known |= {str(node["cte_name"]).lower() for node in nodes if "cte_name" in node}
    for node in nodes:
        _check_node(node, known, sql, listeners)
    return statement


def _parse(connection: "DuckDBPyConnection", sql: str) -> tuple[str, Any]:
    import duckdb

    if len(sql) > SQL_CHARACTERS_MAX:
        raise _invalid(f"it has {len(sql)} characters; at most {SQL_CHARACTERS_MAX} are read")
    if "\0" in sql:
        raise _invalid("it contains a NUL character")
    if nesting(sql) > NESTING_MAX:
        raise _invalid(f"its parentheses are nested too deeply; {NESTING_MAX} is the most")
    try:
        statements = connection.extract_statements(sql)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            what = f"{len(statements)} statements" if len(statements) != 1 else statements[0].type.name
            raise _invalid(f"write exactly one select statement; this is {what}")
        select = _without_end(sql)
        tree = _tree(connection, select)
        if not tree.startswith(_ERROR) and _tree(connection, f"({select}\n)").startswith(_ERROR):
            raise _invalid("it is a statement only alone; leave out its first semicolon")
    except duckdb.Error as error:
        raise _invalid(_placed(str(error))) from error
    try:
        found = json.loads(tree)
    except RecursionError:
        raise _invalid("it is nested too deeply") from None
    if found.get("error"):
        raise _invalid(str(found.get("error_message")))
    return select, found["statements"]


def _without_end(sql: str) -> str:
    """Return the one statement without the semicolon that may end it and what is behind that."""
    import duckdb

    text = sql.encode()
    for at, kind in duckdb.tokenize(sql):  # a semicolon in a quote or a comment does not end it
        if kind == duckdb.token_type.operator and text[at] == ord(";"):
            return text[:at].decode()
    return sql


def _tree(connection: "DuckDBPyConnection", sql: str) -> str:
    return str(connection.execute(STATEMENTS["syntax_tree"], [sql]).fetchall()[0][0])


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Give every object of the tree, without recursion: how deep it is, the SQL says."""
    left, count = [tree], 0
    while left:
        one = left.pop()
        if isinstance(one, dict):
            count += 1
            if count > NODES_MAX:
                raise _invalid("it is too large")
            yield one
            left.extend(one.values())
        elif isinstance(one, list):
            left.extend(one)


def _check_node(node: dict[str, Any], known: set[str], sql: str, listeners: Sequence[str]) -> None:
    kind = node.get("type")
    if "class" in node:
        _check_expression(node, sql)
    elif not isinstance(kind, str):
        return
    elif kind == "BASE_TABLE":
        path = [str(piece) for piece in node["qualified_name"]["path"]]
        if len(path) != 1 or path[0].lower() not in known:
            there = ", ".join(sorted(listeners)) or "none"
            raise _invalid(f"there is no table {'.'.join(path)[:100]}; tables are the parts: {there[:500]}", node, sql)
    elif kind == "TABLE_FUNCTION":
        name = str(node["function"].get("function_name")).lower()
        if name not in _TABLE_FUNCTIONS:
            raise _invalid(f"{name[:100]}() is not there in a report; tables are the parts", node, sql)
    elif kind not in _QUERIES | _TABLES | _PIECES:
        raise _invalid(
            f"write a plain select statement; {kind.removesuffix('_NODE')} is not there in a report", node, sql
        )


def _check_expression(node: dict[str, Any], sql: str) -> None:
    name = str(node.get("function_name", "")).lower()
    if name in _FUNCTIONS_REFUSED:
        raise _invalid(f"{name}() is not there in a report", node, sql)
    if node["class"] == "PARAMETER":
        raise _invalid("no values are given to it; a report's values go to its queries", node, sql)


def _invalid(why: str, node: dict[str, Any] | None = None, sql: str = "") -> Rejected:
    return Rejected("invalid_sql", shown(why + _place(node, sql), []))


def _place(node: dict[str, Any] | None, sql: str) -> str:
    offset = node.get("query_location") if node is not None else None
    before = sql.encode()[:offset] if isinstance(offset, int) and offset < len(sql.encode()) else None
    if before is None:
        return ""
    lines = before.decode(errors="replace").split("\n")
    return f" (line {len(lines)}, column {len(lines[-1]) + 1})"


def _placed(message: str) -> str:
    """Return a message of DuckDB's parser with line and column; it draws the place below the line."""
    found = re.search(r"^LINE (\d+): (.*)\n( *)\^", message, re.MULTILINE)
    if found is None:
        return message
    column = len(found[3]) - len(f"LINE {found[1]}: ") + 1
    return f"{message[: found.start()].strip()} (line {found[1]}, column {column})"
