"""DuckDB for an operator's SQL: the text is checked first, and the connection that runs it is confined.

The text must be one SELECT over the parts. DuckDB's own parser reads it, and only listed nodes of the syntax tree are
allowed: tables are parts or names that the SELECT defines, and table functions are the few that read nothing. Any other
kind of table or query, such as an INSERT in a WITH, is unknown and refused. Functions that reveal the server or block a
thread are refused by name.

In case the check fails, the connection has no extensions, no network, no variables of the program and locked settings.
Of the file system it has only the parts, its own output file and its spill folder. A connection serves one merge.
DuckDB's memory bound does not cover what it allocates for a single value; the bound of its process does.
"""

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tickwright.capabilities.reports.schema import SqlChecks
from tickwright.domain.errors import Rejected
from tickwright.domain.placeholders import one_query, placeholders
from tickwright.sources.duckdb_values import NESTING_MAX, literal, nesting
from tickwright.store.queries import load

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


STATEMENTS = {
    name: re.sub(r"^--.*\n", "", text, flags=re.MULTILINE)  # a message counts lines of the SQL alone
    for name, text in load("tickwright.capabilities.reports.sql", "duck.sql").items()
}
TWO_THREADS_BYTES = 512 * 1024 * 1024
SPILL = "spill"
"""The spill folder in the folder of a merge."""
DEPTH_MAX = 250
"""How deep an expression may be nested: far above hand-written SQL, far below what a thread's stack holds."""


class MergeBounds(NamedTuple):
    """The resources that one merge may use.

    Attributes:
        memory_bytes: Of DuckDB, 128 MiB or more: a JSON reader takes 32. The process may allocate 256 MiB and an eighth
            of it on top; :mod:`.program` has what merges were measured to use.
        threads: 1 to 64. Each takes its share of the memory: with 256 MiB, two threads ran out of memory in a join that
            one thread does in the same time; see :func:`threads_for`.
        disk_bytes: Of spilled data and the file together.
        cpu_s: Of all threads together, in case the worker cannot end the merge earlier.
    """

    memory_bytes: int = 256 * 1024 * 1024
    threads: int = 1
    disk_bytes: int = 64 * 1024**3
    cpu_s: int = 24 * 3600


def threads_for(memory_bytes: int) -> int:
    """Return the number of threads for a merge: two from 512 MiB on."""
    return 2 if memory_bytes >= TWO_THREADS_BYTES else 1


@contextmanager
def open_duck(
    folder: Path, bounds: MergeBounds, files: Sequence[Path], out: Path | None = None
) -> Iterator["DuckDBPyConnection"]:
    """Yield a connection for the block; remove its spilled data afterwards.

    Args:
        folder: An existing folder for spilled data.
        bounds: Resource limits.
        files: Other files that it may read.
        out: The file that it writes, if any; removed when the block fails.
    """
    spill, done = folder / SPILL, False
    try:
        with _connected(spill, bounds, [*files, *([out] if out else [])]) as connection:
            yield connection
        done = True
    finally:
        shutil.rmtree(spill, ignore_errors=True)
        if not done and out is not None:
            out.unlink(missing_ok=True)


def _connected(spill: Path, bounds: MergeBounds, files: Sequence[Path]) -> "DuckDBPyConnection":
    import duckdb

    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{bounds.memory_bytes}B",
        "threads": bounds.threads,
        "temp_directory": str(spill),
        "python_enable_replacements": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_community_extensions": False,
        "allow_persistent_secrets": False,
    }
    connection = duckdb.connect(":memory:", config=config)
    allowed = ", ".join(literal(str(path)) for path in files)
    for statement in (
        f"SET max_temp_directory_size = '{bounds.disk_bytes}B'",  # has no effect in the configuration above
        "SET enable_progress_bar = false",  # drawn for a program without a file, such as a merge process
        "SET TimeZone = 'UTC'",
        f"SET max_expression_depth = {DEPTH_MAX}",
        f"SET allowed_paths = [{allowed}]",
        "SET enable_external_access = false",
        "SET lock_configuration = true",
    ):
        connection.execute(statement).fetchall()
    return connection


def warm_up() -> None:
    """Load DuckDB, which takes 0.1 s once per process; call it before jobs arrive."""
    import duckdb

    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        connection.execute(STATEMENTS["warm"]).fetchall()


def too_large(why: str) -> Rejected:
    """Return the error of a merge that needs more than it may use."""
    return Rejected("merge_too_large", f"the merge is too large: {why}; ask for less, or raise its bounds")


def shown(message: str, hidden: Sequence[tuple[str, str]], most: int = 1000) -> str:
    """Return a message of DuckDB for people: without paths, at most ``most`` characters."""
    for path, name in hidden:
        message = message.replace(path, name)
    return re.sub(r"\n{2,}", "\n", message.replace("\0", "")).strip()[:most]


# ---------------------------------------------------------------------- check of a SELECT

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
    """Refuse a text that is not exactly one SELECT over the tables named ``listeners``. Takes some milliseconds.

    Raises:
        Rejected: ``invalid_sql``, with line and column if known. Permanent.
    """
    import duckdb

    config: dict[str, str | bool | int | float | list[str]] = {"threads": 1, "enable_external_access": False}
    with duckdb.connect(":memory:", config=config) as connection:
        connection.execute(f"SET max_expression_depth = {DEPTH_MAX}").fetchall()
        read_select(connection, sql, listeners)


def read_select(connection: "DuckDBPyConnection", sql: str, listeners: Sequence[str]) -> str:
    """Return the SELECT without its semicolon, after the checks of :func:`check_select`; any connection can parse."""
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
    """Return the one statement up to the semicolon that may end it."""
    import duckdb

    text = sql.encode()
    for at, kind in duckdb.tokenize(sql):  # a semicolon in a quote or a comment does not end it
        if kind == duckdb.token_type.operator and text[at] == ord(";"):
            return text[:at].decode()
    return sql


def _tree(connection: "DuckDBPyConnection", sql: str) -> str:
    return str(connection.execute(STATEMENTS["syntax_tree"], [sql]).fetchall()[0][0])


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield every object of the tree, without recursion, because the SQL determines the depth."""
    left, count = [tree], 0
    while left:
        node = left.pop()
        if isinstance(node, dict):
            count += 1
            if count > NODES_MAX:
                raise _invalid("it is too large")
            yield node
            left.extend(node.values())
        elif isinstance(node, list):
            left.extend(node)


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
    """Return a message of DuckDB's parser with line and column, which the parser draws below the line."""
    found = re.search(r"^LINE (\d+): (.*)\n( *)\^", message, re.MULTILINE)
    if found is None:
        return message
    column = len(found[3]) - len(f"LINE {found[1]}: ") + 1
    return f"{message[: found.start()].strip()} (line {found[1]}, column {column})"


# ---------------------------------------------------------------------- names in a query and a SELECT


def sql_checks() -> SqlChecks:
    """Return the checks of this release; each takes some milliseconds."""
    return SqlChecks(check_select, values_of, columns_of)


def values_of(sql: str) -> frozenset[str]:
    """Return the names of the values in a listener's query.

    Raises:
        Rejected: ``invalid_sql``: the text is not one query. The source decides what the query may do. Permanent.
    """
    return placeholders(one_query(sql))


def columns_of(sql: str) -> frozenset[str] | None:
    """Return the column names in the text of a checked SELECT; ``None`` if only running it would show them.

    A column without a name of its own, such as ``count(*)``, is left out: no query can refer to it.
    """
    import duckdb

    with duckdb.connect(":memory:", config={"threads": 1, "enable_external_access": False}) as connection:
        tree = json.loads(str(connection.execute(STATEMENTS["syntax_tree"], [sql]).fetchall()[0][0]))
    if tree.get("error") or tree["statements"][0]["node"]["type"] != "SELECT_NODE":
        return None
    columns = tree["statements"][0]["node"]["select_list"]
    return None if any(map(_may_be_many, columns)) else frozenset(filter(str.isidentifier, map(_name, columns)))


def _may_be_many(column: Any) -> bool:
    """Whether an expression may be several columns: a star, ``COLUMNS()`` or ``unnest()``."""
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
