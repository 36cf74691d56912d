"""Which tables a query of DuckDB reads, from its syntax tree: nothing is bound, opened or run for it.

``get_table_names`` of DuckDB does not serve: it binds the query, so it takes no parameters and opens the files that
functions of the query name.
"""

import re
from collections.abc import Iterator
from typing import Any

import duckdb
import msgspec

from tickwright.store.queries import load

_Q = load("tickwright.sources.sql", "duckdb.sql")
_WORD = re.compile(r"[^\W\d][\w$]*")
_WORDS = re.compile(r"""[^\W\d][\w$]*|"((?:[^"]|"")*)"|'((?:[^']|'')*)'""")
_BY_NAME = frozenset({"query", "query_table"})
"""Functions that read from tables whose names are texts."""


def tables_of(connection: duckdb.DuckDBPyConnection, sql: str) -> frozenset[str]:
    """Return the names of the tables of a query, case folded, without those that it defines itself (``WITH``).

    Where the syntax tree does not tell (``PIVOT``, ``query_table``), they are all words and quoted names of the query.
    """
    try:
        ((text,),) = connection.execute(_Q["tree"], [sql]).fetchall()
        tree = msgspec.json.decode(text)
        nodes = list(_nodes(tree, frozenset()))
    except (duckdb.Error, msgspec.DecodeError, RecursionError):
        return _words_of(sql)
    if tree.get("error") or any(node.get("function_name") in _BY_NAME for node, _ in nodes):
        return _words_of(sql)
    return frozenset(name for node, defined in nodes for name in _tables_of(node, defined))


def _tables_of(node: dict[str, Any], defined: frozenset[str]) -> Iterator[str]:
    """Give the table of one node, if it is one that is read."""
    name = str(node.get("table_name", "")).casefold()
    if node.get("type") == "BASE_TABLE" and (node.get("schema_name") or name not in defined):
        yield name
    elif node.get("type") == "SHOW_REF":
        yield name.removeprefix('"').removesuffix('"').replace('""', '"')


def _nodes(value: Any, defined: frozenset[str]) -> Iterator[tuple[dict[str, Any], frozenset[str]]]:
    """Give every node of a syntax tree, each with the names that ``WITH`` has defined where it stands."""
    if isinstance(value, list):
        for item in value:
            yield from _nodes(item, defined)
    elif isinstance(value, dict):
        if value.get("type") == "RECURSIVE_CTE_NODE":
            defined |= {str(value.get("cte_name", "")).casefold()}
        for entry in (value.get("cte_map") or {}).get("map", ()):
            yield from _nodes(entry["value"], defined)
            defined |= {entry["key"].casefold()}
        yield value, defined
        for key, item in value.items():
            if key != "cte_map":
                yield from _nodes(item, defined)


def _words_of(sql: str) -> frozenset[str]:
    """Return the words of a query and what stands in its quotes, as a whole and each word of it."""
    found: set[str] = set()
    for match in _WORDS.finditer(sql):
        whole = (match[1] or "").replace('""', '"') or (match[2] or "").replace("''", "'") or match[0]
        found |= {whole.casefold(), *(word.casefold() for word in _WORD.findall(whole))}
    return frozenset(found)
