"""DuckDB's types as they come out of a query: what is Python's own stays, everything else is cast to its exact text.

Python would lose a nanosecond, a month of an interval, a year before Christ, and needs a library for time zones.
"""

from typing import NamedTuple

from tickwright.ports.reports import Column
from tickwright.sources.duckdb_json import json_text

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
    """A column as it is selected, and what it is then."""

    expression: str
    column: Column


def select(name: str, kind: str, alias: str) -> Selected:
    """Return how a column of the type ``kind`` is selected.

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
