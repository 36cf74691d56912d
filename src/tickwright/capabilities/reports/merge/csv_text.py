"""CSV values as SQL for DuckDB: RFC 4180, and safe to open in a spreadsheet.

::

    number        as it is: 5, -5, 0.10, 1e+300, nan, inf          boolean     true, false
    TIMESTAMPTZ   2026-01-01T00:00:00.000000Z, in UTC              TIMESTAMP   2026-01-01T00:00:00.000000
    DATE          2026-01-01                                       TIME        10:00:00, 10:00:00.5
    BLOB          lower-case hexadecimal digits                    UUID, ENUM  their text
    list, struct, map, JSON   JSON text                            null        nothing; an empty text is ""

A cell that is no number and begins like a formula gets a leading apostrophe. A formula begins with ``= + - @`` or their
full-width forms, also after white space and invisible characters, or with TAB, CR, LF or NUL. A text that is exactly a
negative number is a number: values beyond DuckDB's types, such as a decimal of more than 38 digits, are texts here.
``-Infinity`` and ``-inf`` are such numbers; a spreadsheet may read them as an unknown name, which calls nothing.

NUL is dropped. Only a cell with a comma, a quote, CR or LF, or white space at an end is quoted. In a file of one column
null is ``""`` too: most readers would skip an empty line. DuckDB's own quoting is off.
"""

import re
from collections.abc import Sequence
from enum import Enum, auto
from unicodedata import category

from tickwright.capabilities.reports.merge.sandbox import named, quoted
from tickwright.ports.reports import Column
from tickwright.sources.duckdb_values import json_text

_UNSEEN = r"[\s\p{Z}\p{Cc}\p{Cf}]"
_FORMULA = r"=+\-@＝＋－＠"
_DANGER = rf"^{_UNSEEN}*[{_FORMULA}]|^[\t\r\n\x00]"
_NUMBER = r"^-([0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?|Infinity|inf)\z"
_QUOTE = r'[",\r\n]|^[\s\v\p{Z}]|[\s\v\p{Z}]$|^$'
_ODD = rf'[",\r\n\x00]|^[\p{{Z}}\p{{Cc}}\p{{Cf}}{_FORMULA}\s]|[\s\v\p{{Z}}]$|^$'
"""Cells that need the full check; most cells do not match."""
_BEGINS = frozenset("=+-@＝＋－＠")
_BEGINS_AT_ONCE = frozenset("\t\r\n\0")
BOM = "\ufeff"


class Kind(Enum):
    """The kinds of DuckDB types that are written differently."""

    NUMBER = auto()
    PLAIN = auto()
    DATE = auto()
    INSTANT = auto()
    LOCAL = auto()
    NANOSECONDS = auto()
    BLOB = auto()
    NESTED = auto()
    TEXT = auto()


_WHOLE = "TINYINT SMALLINT INTEGER BIGINT HUGEINT UTINYINT USMALLINT UINTEGER UBIGINT UHUGEINT BIGNUM"
_KINDS = {
    **dict.fromkeys((*_WHOLE.split(), "FLOAT", "DOUBLE"), Kind.NUMBER),
    **dict.fromkeys(("BOOLEAN", "UUID", "BIT", "TIME", "TIME_NS", "TIME WITH TIME ZONE"), Kind.PLAIN),
    "DATE": Kind.DATE,
    "TIMESTAMP WITH TIME ZONE": Kind.INSTANT,
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS"), Kind.LOCAL),
    "TIMESTAMP_NS": Kind.NANOSECONDS,
    "BLOB": Kind.BLOB,
    "VARIANT": Kind.NESTED,
}
_NESTED = re.compile(r"(STRUCT|MAP|UNION)\(|.*\[[0-9]*\]$", re.DOTALL)


def kind_of(type_name: str) -> Kind:
    """Return the kind of a type as ``DESCRIBE`` names it; an unknown type is text, which is always safe."""
    if type_name.startswith("DECIMAL("):
        return Kind.NUMBER if type_name.endswith(")") else Kind.NESTED
    if _NESTED.match(type_name):
        return Kind.NESTED
    return _KINDS.get(type_name, Kind.TEXT)


def plain_text(value: str, type_name: str) -> str:
    """Return SQL for the text of ``value``, not yet safe for a file."""
    match kind_of(type_name):
        case Kind.INSTANT:
            return f"strftime({value} AT TIME ZONE 'UTC', '%Y-%m-%dT%H:%M:%S.%fZ')"
        case Kind.LOCAL:
            return f"strftime(CAST({value} AS TIMESTAMP), '%Y-%m-%dT%H:%M:%S.%f')"
        case Kind.NANOSECONDS:
            return f"strftime({value}, '%Y-%m-%dT%H:%M:%S.%n')"
        case Kind.BLOB:
            return f"lower(hex({value}))"
        case Kind.NESTED:
            return json_text(value, type_name, "merge_refused")
    return f"CAST({value} AS VARCHAR)"


def csv_cell(value: str, type_name: str) -> str:
    """Return SQL for the complete cell of ``value``; null stays null."""
    text = plain_text(value, type_name)
    match kind_of(type_name):
        case Kind.NUMBER | Kind.PLAIN | Kind.BLOB:
            return text
        case Kind.DATE | Kind.INSTANT | Kind.LOCAL | Kind.NANOSECONDS:  # before Christ, or -infinity
            return f"CASE WHEN starts_with({text}, '-') THEN '''' || {text} ELSE {text} END"
    danger = f"{_has(text, _DANGER)} AND NOT {_has(text, _NUMBER)}"
    safe = f"replace(CASE WHEN {danger} THEN '''' || {text} ELSE {text} END, chr(0), '')"
    whole = f"CASE WHEN {_has(safe, _QUOTE)} THEN '\"' || replace({safe}, '\"', '\"\"') || '\"' ELSE {safe} END"
    return f"CASE WHEN {_has(text, _ODD)} THEN {whole} ELSE {text} END"


def csv_values(columns: Sequence[Column], places: Sequence[str], *, bom: bool) -> str:
    """Return the select list of a file: a cell for each column, named as its header cell."""
    cells = [csv_cell(place, column.type) for place, column in zip(places, columns, strict=True)]
    if len(cells) == 1:
        cells = [f"coalesce({cells[0]}, '\"\"')"]
    headers = [header_cell(column.name) for column in columns]
    headers[0] = BOM * bom + headers[0]
    return ", ".join(f"{cell} AS {named(header)}" for cell, header in zip(cells, headers, strict=True))


def header_name(name: str) -> str:
    """Return a column's name, made safe like a cell."""
    begin = next((char for char in name if not _is_unseen(char)), "")
    is_danger = begin in _BEGINS or name[:1] in _BEGINS_AT_ONCE
    return "'" * is_danger + name.replace("\0", "")


def header_cell(name: str) -> str:
    """Return the header cell of a column."""
    safe = header_name(name)
    if safe == "" or _is_space(safe[0]) or _is_space(safe[-1]) or any(char in safe for char in '",\r\n'):
        return '"' + safe.replace('"', '""') + '"'
    return safe


def _has(text: str, pattern: str) -> str:
    return f"regexp_matches({text}, {quoted(pattern)})"


def _is_unseen(char: str) -> bool:
    return category(char) in {"Cc", "Cf"} or _is_space(char)


def _is_space(char: str) -> bool:
    return category(char)[0] == "Z" or char in "\t\n\v\f\r"
