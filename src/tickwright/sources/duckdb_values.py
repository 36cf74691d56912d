"""Safe reading of DuckDB's SQL and values: the depth of a text, exact columns, nested values as JSON.

**Depth.** DuckDB's parser takes time and memory with the square of the depth of parentheses, cannot be interrupted, and
holds the interpreter's lock: 4,000 parentheses in 8 KB stopped a whole process for a minute and took 2.6 GB. So the
depth is checked first, by DuckDB's own tokens, because another lexer may disagree about quotes.

**Columns.** A type that Python has stays; every other value is cast to its exact text. Python would lose a nanosecond,
a month of an interval or a year before Christ, and needs a library for time zones.

**Nested values.** They become JSON texts with every digit. ``to_json`` keeps decimals and integers of any size. But it
makes doubles of numbers in nested documents (type ``JSON``), and writes ``NaN`` and ``Infinity``, which JSON lacks. So
a value with documents is assembled from texts. At the end, ``NaN`` and ``Infinity`` become the texts "nan", "inf" and
"-inf" in the text of the whole value: DuckDB plans a condition inside nested lambdas in exponential time.
"""

from typing import TYPE_CHECKING, NamedTuple

from tickwright.domain.errors import Rejected
from tickwright.ports.reports import Column

if TYPE_CHECKING:
    from duckdb.sqltypes import DuckDBPyType


NESTING_MAX = 64
"""Far above hand-written SQL; 64 KB of SQL with this depth everywhere parse in two seconds."""


def nesting(sql: str) -> int:
    """Return the depth of the deepest parenthesis of ``sql``; unmatched closing ones are ignored."""
    import duckdb

    text = sql.encode()
    depth = deepest = 0
    for at, kind in duckdb.tokenize(sql):
        if kind == duckdb.token_type.operator:
            depth = max(0, depth + (text[at] == ord("(")) - (text[at] == ord(")")))
            deepest = max(deepest, depth)
    return deepest


def literal(text: str) -> str:
    """Return ``text`` as a literal of DuckDB's SQL."""
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """Return ``name`` as an identifier of DuckDB's SQL."""
    return '"' + name.replace('"', '""') + '"'


# ---------------------------------------------------------------------- columns

_NATIVE = (
    "BOOLEAN",
    *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"),
    *("FLOAT", "DOUBLE", "VARCHAR"),
)
_TEXTS = {
    "HUGEINT": "HUGEINT",
    "DATE": "DATE",
    "TIME": "TIME",
    "TIMESTAMP": "TIMESTAMP",
    "TIMESTAMP_S": "TIMESTAMP",
    "TIMESTAMP_MS": "TIMESTAMP",
    "TIMESTAMP WITH TIME ZONE": "TIMESTAMPTZ",
    "INTERVAL": "INTERVAL",
    "UUID": "UUID",
}
_NESTED = ("STRUCT", "MAP", "UNION", "VARIANT")


class Selected(NamedTuple):
    """The expression that selects a column, and the resulting column."""

    expression: str
    column: Column


def select(name: str, kind: str, alias: str) -> Selected:
    """Return how to select a column of the type ``kind``.

    Raises:
        Rejected: ``source_refused``: a nested type whose numbers could change. Permanent.
    """
    if kind in _NATIVE:
        return Selected(alias, Column(name, kind))
    if kind == "JSON":
        return Selected(f"CAST({alias} AS VARCHAR)", Column(name, "JSON"))
    if kind.endswith("]") or kind.startswith(_NESTED):
        return Selected(json_text(alias, kind, "source_refused"), Column(name, "JSON"))
    if kind == "BLOB":
        return Selected(f"lower(hex({alias}))", Column(name, "VARCHAR"))
    told = kind if kind.startswith("DECIMAL(") else _TEXTS.get(kind, "VARCHAR")
    return Selected(f"CAST({alias} AS VARCHAR)", Column(name, told))


# ---------------------------------------------------------------------- nested values

_TOKENS = r'(?s)"(?:[^"\\]|\\.)*"|NaN|-?Infinity|[^"NI-]+|.'
"""Tokens that together cover a JSON text; a number inside a string is part of the string."""
_FINITE = (
    f"array_to_string(list_transform(regexp_extract_all(json, '{_TOKENS}'), lambda token: CASE token "
    """WHEN 'NaN' THEN '"nan"' WHEN 'Infinity' THEN '"inf"' WHEN '-Infinity' THEN '"-inf"' ELSE token END), '')"""
)


def json_text(value: str, type_name: str, code: str) -> str:
    """Return SQL for the JSON text of a nested value; null stays null.

    Args:
        value: SQL without side effects; it is repeated.
        type_name: As ``DESCRIBE`` names it.
        code: Of the error.

    Raises:
        Rejected: The type can hold documents whose numbers cannot be kept (``VARIANT``, or ``UNION`` and ``TUPLE`` of
            ``JSON``). Permanent.
    """
    import duckdb

    try:
        kind = duckdb.sqltype(type_name)
        text = _text(value, kind, 0)
    except _NotKept:
        why = "numbers in it could change; cast it, such as to STRUCT(amount DECIMAL(18,2)), MAP, a list or VARCHAR"
        raise Rejected(code, f"a value of the type {type_name[:200]} has no exact JSON: {why}") from None
    if not _has_floating(kind):
        return text
    repaired = f"CASE WHEN contains(json, 'NaN') OR contains(json, 'Infinity') THEN {_FINITE} ELSE json END"
    return f"list_transform([{text}], lambda json: {repaired})[1]"


class _NotKept(Exception):
    """The documents of a type cannot be extracted one by one."""


def _text(value: str, kind: "DuckDBPyType", depth: int) -> str:
    if str(kind) == "JSON":
        return f"CAST({value} AS VARCHAR)"
    if not _has_documents(kind):
        return f"CAST(to_json({value}) AS VARCHAR)"
    inner, element = dict(_children(kind)), f"v{depth}"
    if kind.id in {"list", "array"}:
        return _joined("[]", value, _each(value, element, _there(element, inner["child"], depth + 1)))
    if kind.id == "map":
        name = f"CAST(to_json(CAST({element}.key AS VARCHAR)) AS VARCHAR)"
        entry = f"{name} || ':' || {_there(f'{element}.value', inner['value'], depth + 1)}"
        return _joined("{}", value, _each(f"map_entries({value})", element, entry))
    if kind.id != "struct":
        raise _NotKept
    fields = [
        f"CAST(to_json({literal(name)}) AS VARCHAR) || ':' || "
        + _there(f"struct_extract({value}, {literal(name)})", field, depth)
        for name, field in _children(kind)
    ]
    return _joined("{}", value, f"[{', '.join(fields)}]")


def _has_documents(kind: "DuckDBPyType") -> bool:
    if kind.id == "variant" or str(kind) == "JSON":
        return True
    return any(_has_documents(child) for _, child in _children(kind))


def _has_floating(kind: "DuckDBPyType") -> bool:
    return kind.id in {"float", "double"} or any(_has_floating(child) for _, child in _children(kind))


def _children(kind: "DuckDBPyType") -> "list[tuple[str, DuckDBPyType]]":
    """Return the child types of a type, with their names."""
    if kind.id not in {"list", "array", "map", "struct", "union", "tuple"}:
        return []
    return [(name, child) for name, child in kind.children if not isinstance(child, int | list)]


def _there(value: str, kind: "DuckDBPyType", depth: int) -> str:
    return f"coalesce({_text(value, kind, depth)}, 'null')"


def _each(values: str, one: str, made: str) -> str:
    return f"list_transform({values}, lambda {one}: {made})"


def _joined(around: str, value: str, texts: str) -> str:
    joined = f"'{around[0]}' || array_to_string({texts}, ',') || '{around[1]}'"
    return f"CASE WHEN {value} IS NOT NULL THEN {joined} END"
