"""The parts as tables of the merging SQL: one view per listener over its NDJSON file, with exactly its types.

DuckDB's reader of JSON is lenient where a report must not be: it makes 2 of 2.5 for a BIGINT, 1 of true, and takes a
decimal that stands as a JSON number through a double. So what is not text is read as text and cast here; a value that
does not fit is an error that names listener, column and row, never another value. A document that the file has as a
text keeps each of its digits, because a cast of a text to JSON only checks it.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tickwright.capabilities.reports.merge.duck import STATEMENTS, named, quoted, shown
from tickwright.capabilities.reports.parts.json_values import DOCUMENT_TEXT
from tickwright.domain.errors import Rejected
from tickwright.ports.reports import Column

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_WHOLE_WORDS = (
    "TINYINT INT1 SMALLINT INT2 SHORT INTEGER INT INT4 SIGNED BIGINT INT8 LONG HUGEINT INT128 "
    "UTINYINT USMALLINT UINTEGER UBIGINT UHUGEINT"
)
_CAST_WORDS = (
    "DOUBLE FLOAT8 FLOAT FLOAT4 REAL TIME TIMETZ TIMESTAMP DATETIME TIMESTAMPTZ TIMESTAMP_S TIMESTAMP_MS TIMESTAMP_NS "
    "INTERVAL UUID"
)
_WHOLE = frozenset(_WHOLE_WORDS.split())
_CAST = frozenset(_CAST_WORDS.split()) | {
    "DOUBLE PRECISION",
    "TIMESTAMP WITH TIME ZONE",
    "TIMESTAMP WITHOUT TIME ZONE",
    "TIME WITH TIME ZONE",
}
_DECIMAL = re.compile(r"(?:DECIMAL|NUMERIC|DEC)(?:\((\d+)(?:,(\d+))?\))?")
_DOCUMENT_BEGINS = f'{{"{DOCUMENT_TEXT}":'
EXACT_CHARACTERS = 17
"""Of a JSON number with a fraction: sign, point and 15 digits, as many as a double holds exactly."""


class PartFile(NamedTuple):
    """One part as a file: NDJSON, an object per row; an empty file is a part without rows."""

    listener: str
    path: Path
    columns: tuple[Column, ...]


def make_views(connection: "DuckDBPyConnection", parts: Sequence[PartFile], marker: str) -> None:
    """Make a view of each part, named after its listener.

    Args:
        connection: Which may read the parts' files.
        parts: With listeners whose names differ for SQL, which knows no case.
        marker: Begins the message of an error about a value, so that no other message is taken for one.

    Raises:
        Rejected: ``part_unreadable``: its columns are none. Permanent.
    """
    import duckdb

    for number, part in enumerate(parts):
        values = ", ".join(_checked(column, f"{marker}:{number}:{place}:") for place, column in enumerate(part.columns))
        statement = STATEMENTS["part_view" if part.columns else "part_without_columns"]
        try:
            connection.execute(statement.format(name=named(part.listener), values=values, rows=_rows(part))).fetchall()
        except duckdb.Error as error:
            raise unreadable(part, shown(str(error), hidden(parts), 300)) from error


def unreadable(part: PartFile, why: str) -> Rejected:
    """Return the error of a part that is not what its columns say."""
    return Rejected("part_unreadable", f"the part of {part.listener}: {why}", listener=part.listener)


def hidden(parts: Sequence[PartFile]) -> list[tuple[str, str]]:
    """Return what must not be seen in messages, and what stands there instead."""
    return [(str(part.path), part.listener) for part in parts]


def value_problem(
    connection: "DuckDBPyConnection", parts: Sequence[PartFile], marker: str, message: str
) -> Rejected | None:
    """Return the error that ``message`` is about, if it is one about a value; finds the row, which reads the part."""
    import duckdb

    found = re.search(rf"{marker}:(\d+):(\d+):", message)
    if found is None:
        return None
    part = parts[int(found[1])]
    column = part.columns[int(found[2])]
    row, value = 0, ""
    search = STATEMENTS["misfit"].format(name=named(column.name), rows=_rows(part), fitted=_fitted("raw", column))
    with suppress(duckdb.Error):  # interrupted, or out of memory: the message does without the row
        row, value = (connection.execute(search).fetchall() or [(0, "")])[0]
    where = f"row {row}, " if row else ""
    return unreadable(part, f"{where}column {column.name}: no {column.type}: {shown(str(value), [], 80)}")


def _rows(part: PartFile) -> str:
    columns = ", ".join(f"{quoted(column.name)}: {quoted(_raw(column.type))}" for column in part.columns)
    return STATEMENTS["part_rows"].format(path=quoted(str(part.path)), columns=columns)


def _checked(column: Column, marker: str) -> str:
    """Return SQL for a column of a view; a value that does not fit is an error that begins with ``marker``."""
    name = named(column.name)
    fitted = _fitted(name, column)
    if fitted == name:
        return name
    problem = f"error({quoted(marker)} || left(CAST({name} AS VARCHAR), 80))"
    return f"CASE WHEN {name} IS NULL THEN NULL ELSE coalesce({fitted}, {problem}) END AS {name}"


def _raw(type_name: str) -> str:
    """Return the type that a column is read as from the file: JSON where it matters whether a value stood in quotes."""
    word = _word(type_name)
    if _DECIMAL.fullmatch(word):
        return "JSON"
    return "VARCHAR" if word in _WHOLE or word in _CAST or word in {"", "BOOLEAN", "BOOL", "DATE"} else type_name


def _fitted(raw: str, column: Column) -> str:
    """Return SQL for the value of a cell that is not null: null when it does not fit."""
    word = _word(column.type)
    cast = f"TRY_CAST({raw} AS {column.type})"
    if word in _WHOLE:
        return f"CASE WHEN regexp_full_match({raw}, '[+-]?[0-9]+') THEN {cast} END"
    if word == "DATE":
        return f"CASE WHEN NOT contains({raw}, ':') THEN {cast} END"
    if word in {"BOOLEAN", "BOOL"}:
        return f"CASE WHEN {raw} IN ('true', 'false') THEN {cast} END"
    if word in _CAST:
        return cast
    if word == "JSON":
        is_text = f"starts_with(CAST({raw} AS VARCHAR), {quoted(_DOCUMENT_BEGINS)})"
        return f"CASE WHEN {is_text} THEN TRY_CAST({raw} ->> {quoted(DOCUMENT_TEXT)} AS JSON) ELSE {raw} END"
    decimal = _DECIMAL.fullmatch(word)
    return _exact(raw, column.type, int(decimal[2] or (0 if decimal[1] else 3))) if decimal else raw


def _exact(raw: str, type_name: str, scale: int) -> str:
    """Return SQL for a decimal that stands in the file without more digits than the type has; rounding is refused."""
    text = f"CAST({raw} AS VARCHAR)"
    bare = f"trim({text}, '\"')"
    digits = rf"[+-]?[0-9]*\.?[0-9]{{0,{scale}}}0*"
    return (
        f"CASE WHEN regexp_full_match({text}, '\"{digits}\"|-?[0-9]+') THEN TRY_CAST({bare} AS {type_name}) "
        f"WHEN length({text}) <= {EXACT_CHARACTERS} AND regexp_full_match({text}, '{digits}') "
        f"THEN TRY_CAST({bare} AS {type_name}) "
        f"WHEN TRY_CAST({bare} AS DOUBLE) = CAST(TRY_CAST({bare} AS {type_name}) AS DOUBLE) "
        f"AND contains(lower({bare}), 'e') THEN TRY_CAST({bare} AS {type_name}) END"
    )


def _word(type_name: str) -> str:
    """Return a type in capital letters, without a space that does not matter."""
    return re.sub(r"\s*([(),])\s*", r"\1", " ".join(type_name.upper().split()))
