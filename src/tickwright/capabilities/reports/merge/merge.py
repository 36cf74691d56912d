"""Merge the parts of a report into a file, or into one row of values, by the SELECT of its definition, in DuckDB.

::

    parts (NDJSON) ─▶ views ─▶ SELECT ─▶ COPY ─▶ file ─▶ fsync ─▶ counted, sized, hashed ─▶ MergedFile

A file is returned once it is whole and on disk; a failed merge leaves none. Without ORDER BY, rows are usually in the
order of the parts, which is no promise. All of this runs in a merge process, see :mod:`.program`.

**Parts as tables.** A part is a view over its NDJSON file, with exactly its types. DuckDB's JSON reader is too lenient:
for a BIGINT it reads 2.5 as 2 and true as 1, and it reads decimals through a double. So every type but text is read as
text and cast here. A value that does not fit raises an error with listener, column and row. A document that the file
stores as text keeps each of its digits, because a cast of a text to JSON only validates it.

**CSV.** RFC 4180, and safe to open in a spreadsheet; DuckDB's own quoting is off::

    number        as it is: 5, -5, 0.10, 1e+300, nan, inf          boolean     true, false
    TIMESTAMPTZ   2026-01-01T00:00:00.000000Z, in UTC              TIMESTAMP   2026-01-01T00:00:00.000000
    DATE          2026-01-01                                       TIME        10:00:00, 10:00:00.5
    BLOB          lower-case hexadecimal digits                    UUID, ENUM  their text
    list, struct, map, JSON   JSON text                            null        nothing; an empty text is ""

A cell that is no number and begins like a formula gets a leading apostrophe. A formula begins with ``= + - @`` or their
full-width forms, also after white space and invisible characters, or with TAB, CR, LF or NUL. A text that is exactly a
negative number is a number: values beyond DuckDB's types, such as a decimal of more than 38 digits, are texts here.
``-Infinity`` and ``-inf`` are such numbers; a spreadsheet may read them as an unknown name, which calls nothing. NUL is
dropped. Only a cell with a comma, a quote, CR or LF, or white space at an end is quoted. In a file of one column null
is ``""`` too: most readers would skip an empty line.

**Feeds.** A feed is one row that a stage's parts give to the queries of the next stage, as JSON values::

    integer within 64 bits, floating point, boolean, text     as JSON has them
    DECIMAL, integers beyond 64 bits, nan, inf                 text with all digits
    timestamps, dates, times, UUID, BLOB, intervals            text as in a report's CSV
    list                                                       a list of these; struct, map, JSON as they are, and
                                                               text for a number in them that no double holds

NUL is dropped from texts, because no database accepts it.
"""

import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unicodedata import category

import msgspec

from tickwright.capabilities.reports.merge.sandbox import (
    STATEMENTS,
    MergeBounds,
    open_duck,
    read_select,
    shown,
    too_large,
)
from tickwright.capabilities.reports.parts.values import DOCUMENT_TEXT
from tickwright.capabilities.reports.plan import Format
from tickwright.domain.errors import Rejected, TickwrightError, Unavailable
from tickwright.ports.reports import Column
from tickwright.sources.duckdb_values import identifier, json_text, literal

if TYPE_CHECKING:
    import duckdb
    from duckdb import DuckDBPyConnection


# ---------------------------------------------------------------------- CSV cells


_UNSEEN = r"[\s\p{Z}\p{Cc}\p{Cf}]"
_FORMULA = r"=+\-@＝＋－＠"
_DANGER = rf"^{_UNSEEN}*[{_FORMULA}]|^[\t\r\n\x00]"
_NEGATIVE = r"-([0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?|Infinity|inf)"
_NUMBER = rf"^{_NEGATIVE}\z"
_IS_NUMBER = re.compile(_NEGATIVE).fullmatch
_QUOTE = r'[",\r\n]|^[\s\v\p{Z}]|[\s\v\p{Z}]$|^$'
_ODD = rf'[",\r\n\x00]|^[\p{{Z}}\p{{Cc}}\p{{Cf}}{_FORMULA}\s]|[\s\v\p{{Z}}]$|^$'
"""Cells that need the full check; most cells do not match."""
_BEGINS = frozenset("=+-@＝＋－＠")
_BEGINS_AT_ONCE = frozenset("\t\r\n\0")
BOM = "\ufeff"


Kind = Enum("Kind", "NUMBER PLAIN DATE INSTANT LOCAL NANOSECONDS BLOB NESTED TEXT")
"""The kinds of DuckDB types that are written differently."""
_NUMBERS = "TINYINT SMALLINT INTEGER BIGINT HUGEINT UTINYINT USMALLINT UINTEGER UBIGINT UHUGEINT BIGNUM"
_KINDS = {
    **dict.fromkeys((*_NUMBERS.split(), "FLOAT", "DOUBLE"), Kind.NUMBER),
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
    return ", ".join(f"{cell} AS {identifier(header)}" for cell, header in zip(cells, headers, strict=True))


def header_name(name: str) -> str:
    """Return a column's name, made safe like a cell."""
    begin = next((char for char in name if not _is_unseen(char)), "")
    is_danger = (begin in _BEGINS or name[:1] in _BEGINS_AT_ONCE) and not _IS_NUMBER(name)
    return "'" * is_danger + name.replace("\0", "")


def header_cell(name: str) -> str:
    """Return the header cell of a column."""
    safe = header_name(name)
    if safe == "" or _is_space(safe[0]) or _is_space(safe[-1]) or any(char in safe for char in '",\r\n'):
        return '"' + safe.replace('"', '""') + '"'
    return safe


def _has(text: str, pattern: str) -> str:
    return f"regexp_matches({text}, {literal(pattern)})"


def _is_unseen(char: str) -> bool:
    return category(char) in {"Cc", "Cf"} or _is_space(char)


def _is_space(char: str) -> bool:
    return category(char)[0] == "Z" or char in "\t\n\v\f\r"


# ---------------------------------------------------------------------- parts as tables

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
"""Of a JSON number with a fraction: sign, point and the 15 digits that a double holds exactly."""


class PartFile(NamedTuple):
    """One part as NDJSON, an object per row; an empty file is a part without rows."""

    listener: str
    path: Path
    columns: tuple[Column, ...]


def make_views(connection: "DuckDBPyConnection", parts: Sequence[PartFile], marker: str) -> None:
    """Create a view of each part, named after its listener.

    Args:
        connection: May read the parts' files.
        parts: Their listeners' names differ without regard to case.
        marker: Distinguishes errors about a value, whose message it begins.

    Raises:
        Rejected: ``part_unreadable``: its columns are invalid. Permanent.
    """
    import duckdb

    for number, part in enumerate(parts):
        values = ", ".join(_checked(column, f"{marker}:{number}:{place}:") for place, column in enumerate(part.columns))
        statement = STATEMENTS["part_view" if part.columns else "part_without_columns"]
        try:
            connection.execute(
                statement.format(name=identifier(part.listener), values=values, rows=_rows(part))
            ).fetchall()
        except duckdb.Error as error:
            raise unreadable(part, shown(str(error), hidden(parts), 300)) from error


def unreadable(part: PartFile, why: str) -> Rejected:
    """Return the error of a part that does not match its columns."""
    return Rejected("part_unreadable", f"the part of {part.listener}: {why}", listener=part.listener)


def hidden(parts: Sequence[PartFile]) -> list[tuple[str, str]]:
    """Return the paths to hide in messages, with their replacements."""
    return [(str(part.path), part.listener) for part in parts]


def value_problem(
    connection: "DuckDBPyConnection", parts: Sequence[PartFile], marker: str, message: str
) -> Rejected | None:
    """Return the error of a value that ``message`` reports, or ``None``; reads the part to find the row."""
    import duckdb

    found = re.search(rf"{marker}:(\d+):(\d+):", message)
    if found is None:
        return None
    part = parts[int(found[1])]
    column = part.columns[int(found[2])]
    row, value = 0, ""
    search = STATEMENTS["misfit"].format(name=identifier(column.name), rows=_rows(part), fitted=_fitted("raw", column))
    with suppress(duckdb.Error):  # interrupted, or out of memory: the message has no row
        row, value = (connection.execute(search).fetchall() or [(0, "")])[0]
    where = f"row {row}, " if row else ""
    return unreadable(part, f"{where}column {column.name}: no {column.type}: {shown(str(value), [], 80)}")


def _rows(part: PartFile) -> str:
    columns = ", ".join(f"{literal(column.name)}: {literal(_raw(column.type))}" for column in part.columns)
    return STATEMENTS["part_rows"].format(path=literal(str(part.path)), columns=columns)


def _checked(column: Column, marker: str) -> str:
    """Return SQL for a column of a view; a value that does not fit raises an error that begins with ``marker``."""
    name = identifier(column.name)
    fitted = _fitted(name, column)
    if fitted == name:
        return name
    problem = f"error({literal(marker)} || left(CAST({name} AS VARCHAR), 80))"
    return f"CASE WHEN {name} IS NULL THEN NULL ELSE coalesce({fitted}, {problem}) END AS {name}"


def _raw(type_name: str) -> str:
    """Return the type to read a column as: JSON if it matters whether a value is quoted."""
    word = _word(type_name)
    if _DECIMAL.fullmatch(word):
        return "JSON"
    return "VARCHAR" if word in _WHOLE or word in _CAST or word in {"", "BOOLEAN", "BOOL", "DATE"} else type_name


def _fitted(raw: str, column: Column) -> str:
    """Return SQL for the value of a cell that is not null; the result is null if it does not fit."""
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
        is_text = f"starts_with(CAST({raw} AS VARCHAR), {literal(_DOCUMENT_BEGINS)})"
        return f"CASE WHEN {is_text} THEN TRY_CAST({raw} ->> {literal(DOCUMENT_TEXT)} AS JSON) ELSE {raw} END"
    decimal = _DECIMAL.fullmatch(word)
    return _exact(raw, column.type, int(decimal[2] or (0 if decimal[1] else 3))) if decimal else raw


def _exact(raw: str, type_name: str, scale: int) -> str:
    """Return SQL for a decimal whose digits all fit the type; it never rounds."""
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
    """Return a type in capital letters, without insignificant spaces."""
    return re.sub(r"\s*([(),])\s*", r"\1", " ".join(type_name.upper().split()))


# ---------------------------------------------------------------------- feeds

VALUES_MAX = 100_000
JSON_BYTES_MAX = 1024 * 1024
INT64_MAX = 2**63 - 1


def json_value(value: str, type_name: str, depth: int = 0) -> str:
    """Return SQL for ``value`` as JSON."""
    element = _element(type_name)
    if element == "JSON" or kind_of(element) is Kind.NESTED:
        return f"CAST({json_text(value, type_name, 'merge_refused')} AS JSON)"
    if type_name.endswith("]"):
        one = f"v{depth}"
        inner = json_value(one, type_name[: type_name.rindex("[")], depth + 1)
        return f"to_json(list_transform({value}, lambda {one}: {inner}))"
    kind = kind_of(type_name)
    text = f"to_json({plain_text(value, type_name)})"
    if type_name == "BOOLEAN":
        return f"to_json({value})"
    if kind is not Kind.NUMBER or type_name.startswith("DECIMAL") or type_name == "BIGNUM":
        return text
    fits = f"{value} BETWEEN {-INT64_MAX - 1} AND {INT64_MAX}"
    if type_name in {"FLOAT", "DOUBLE"}:
        fits = f"isfinite({value})"
    return f"CASE WHEN {fits} THEN to_json({value}) ELSE {text} END"


def _element(type_name: str) -> str:
    """Return the innermost element type of a list; another type is its own."""
    while type_name.endswith("]"):
        type_name = type_name[: type_name.rindex("[")]
    return type_name


def _decoded(column: Column, text: str) -> Any:
    try:
        value = _DECODER.decode(text)
        return _without_nul(value) if "\\u0000" in text else value
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Rejected("merge_refused", f"column {column.name} of the feed is no JSON: {error}") from None


def _number(text: str) -> float | str:
    number = float(text)
    return number if Decimal(repr(number)) == Decimal(text) else text


_DECODER = msgspec.json.Decoder(float_hook=_number)


def _without_nul(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\0", "")
    if isinstance(value, list):
        return [_without_nul(one) for one in value]
    if isinstance(value, dict):
        return {_without_nul(name): _without_nul(one) for name, one in value.items()}
    return value


__all__ = ["MergeBounds", "MergedFile", "PartFile", "feed", "merge"]

READ_BYTES = 1024 * 1024
_PARQUET_WHOLE = "DECIMAL(38,0)"
_TOO_LONG_FOR_PARQUET = (
    "a whole number of the result has more than 38 digits, and Parquet has no type for it: cast its column in the SQL, "
    "such as CAST(n AS VARCHAR), which keeps each digit; CSV has them as they are"
)
_NEGATIVE_INTERVAL = "Parquet files do not support negative intervals"
_NOT_FOR_PARQUET = (
    "an interval of the result is negative, and Parquet has no value for it: cast its column in the SQL, such as "
    "CAST(v AS VARCHAR); CSV has it as it is"
)
_NO_SPACE = ("No space left on device", "Disk quota exceeded", "File too large")


class MergedFile(NamedTuple):
    """A whole file: its rows without the header, its size, and the SHA-256 of its bytes."""

    rows: int
    bytes: int
    checksum: str


def merge(
    parts: Sequence[PartFile],
    sql: str,
    out: Path,
    *,
    form: Format,
    bom: bool,
    folder: Path,
    bounds: MergeBounds | None = None,
) -> MergedFile:
    """Write the result of ``sql`` over the parts into ``out``, a new file. The caller limits the time.

    Args:
        parts: Tables by listener name; each file belongs to this report alone.
        sql: One SELECT; checked again here.
        out: In ``folder``; on disk when this returns, removed when it fails.
        form: ``csv`` or ``parquet`` (DuckDB's types, zstd).
        bom: Whether CSV begins with a byte order mark.
        folder: For this merge alone; spilled data goes there and is removed afterwards.
        bounds: Resource limits.

    Raises:
        Rejected: ``invalid_sql``, ``merge_refused`` (the SQL does not fit these parts, or failed on a value),
            ``part_unreadable``, ``merge_too_large``. Permanent: the same parts give the same error.
        Unavailable: ``no_space``: the disk is full; ``disk_unavailable``. Retry.
    """
    with _over_parts(parts, sql, folder, bounds or MergeBounds(), out) as (connection, select):
        return _write(connection, select, out=out, form=form, bom=bom)


def feed(parts: Sequence[PartFile], sql: str, *, folder: Path, bounds: MergeBounds | None = None) -> dict[str, Any]:
    """Return the one row of ``sql`` over the parts, as JSON values by column.

    Raises:
        Rejected: ``feed_not_one_row``; ``feed_too_large``: above 100,000 values or 1 MiB of JSON; and those of
            :func:`merge`. Permanent.
        Unavailable: As :func:`merge`. Retry.
    """
    with _over_parts(parts, sql, folder, bounds or MergeBounds()) as (connection, select):
        columns = _columns(connection, select)
        names = [f"c{number}" for number in range(len(columns))]
        values = [f"{json_value(name, column.type)} AS {name}" for name, column in zip(names, columns, strict=True)]
        table = STATEMENTS["feed_table"].format(values=", ".join(values), select=select, places=", ".join(names))
        connection.execute(table).fetchall()
        size = " + ".join(f"coalesce(strlen(CAST({name} AS VARCHAR)), 4)" for name in names)
        sizes = [row[0] for row in connection.execute(STATEMENTS["feed_sizes"].format(sizes=size)).fetchall()]
        if len(sizes) != 1:
            text = f"a feed gives one row; this one gave {'several' if sizes else 'none'}"
            raise Rejected("feed_not_one_row", text)
        if sizes[0] > JSON_BYTES_MAX:
            text = f"a feed has at most {JSON_BYTES_MAX} bytes of JSON; this one has {sizes[0]}"
            raise Rejected("feed_too_large", text)
        texts = STATEMENTS["feed_texts"].format(texts=", ".join(f"CAST({name} AS VARCHAR)" for name in names))
        found = connection.execute(texts).fetchall()[0]
        row = {
            column.name: None if text is None else _decoded(column, text)
            for column, text in zip(columns, found, strict=True)
        }
        count = sum(len(value) if isinstance(value, list) else 1 for value in row.values())
        if count > VALUES_MAX:
            raise Rejected("feed_too_large", f"a feed has at most {VALUES_MAX} values; this one has {count}")
        return row


@contextmanager
def _over_parts(
    parts: Sequence[PartFile], sql: str, folder: Path, bounds: MergeBounds, out: Path | None = None
) -> Iterator[tuple["DuckDBPyConnection", str]]:
    """Yield a connection with the parts as tables, and the SELECT; translate DuckDB's and the disk's errors."""
    import duckdb

    marker = f"part-{secrets.token_hex(8)}"
    with open_duck(folder, bounds, [part.path for part in parts], out) as connection:
        try:
            select = read_select(connection, sql, [part.listener for part in parts])
            make_views(connection, parts, marker)
            yield connection, select
        except duckdb.Error as error:
            raise _translated(error, connection, parts, marker, folder) from error
        except MemoryError as error:
            raise too_large("it ran out of memory") from error
        except OSError as error:
            raise _disk(error.strerror or "the disk") from error


def _columns(connection: "DuckDBPyConnection", select: str) -> list[Column]:
    """Return the columns of a SELECT; refuse names that readers cannot distinguish."""
    columns = [
        Column(row[0], row[1]) for row in connection.execute(STATEMENTS["describe"].format(select=select)).fetchall()
    ]
    seen: set[str] = set()
    for column in columns:
        name = header_name(column.name).casefold()
        if name in seen:
            raise Rejected("merge_refused", f"two columns of the result are called {column.name}; name them with AS")
        seen.add(name)
    return columns


def _write(connection: "DuckDBPyConnection", select: str, *, out: Path, form: Format, bom: bool) -> MergedFile:
    import duckdb

    columns = _columns(connection, select)
    places = [f"c{number}" for number in range(len(columns))]
    values = csv_values(columns, places, bom=bom) if form == "csv" else _parquet_values(columns, places)
    result = STATEMENTS["result"].format(values=values, select=select, places=", ".join(places))
    copy = STATEMENTS[f"copy_{form}"].format(result=result, out=literal(str(out)))
    try:
        rows = connection.execute(copy).fetchall()[0][0]
    except duckdb.ConversionException as error:
        if form == "parquet" and f"to {_PARQUET_WHOLE}" in str(error):
            raise Rejected("merge_refused", _TOO_LONG_FOR_PARQUET) from error
        raise
    except duckdb.IOException as error:  # DuckDB raises it for this value, too
        if _NEGATIVE_INTERVAL in str(error):
            raise Rejected("merge_refused", _NOT_FOR_PARQUET) from error
        raise
    return _finished(out, rows)


def _finished(out: Path, rows: int) -> MergedFile:
    """Sync the file to disk, then read it back."""
    digest, size = sha256(), 0
    with out.open("rb") as file:
        os.fsync(file.fileno())
        while piece := file.read(READ_BYTES):
            digest.update(piece)
            size += len(piece)
    folder = os.open(out.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return MergedFile(rows, size, digest.hexdigest())


def _parquet_values(columns: Sequence[Column], places: Sequence[str]) -> str:
    """Return a select list that keeps types: DuckDB would write 128-bit integers as DOUBLE."""
    return ", ".join(
        f"{_kept(place, column.type)} AS {identifier(column.name)}"
        for place, column in zip(places, columns, strict=True)
    )


def _kept(value: str, type_name: str) -> str:
    kept = type_name.replace('"NULL"', "VARCHAR", 1) if type_name.startswith('"NULL"') else type_name
    if '"' not in kept:  # a quote would begin a name
        kept = kept.replace("UHUGEINT", "HUGEINT").replace("HUGEINT", _PARQUET_WHOLE)
    return value if kept == type_name else f"CAST({value} AS {kept})"


def _translated(
    error: "duckdb.Error", connection: "DuckDBPyConnection", parts: Sequence[PartFile], marker: str, folder: Path
) -> TickwrightError:
    """Translate an error of DuckDB."""
    import duckdb

    message = str(error)
    if any(text in message for text in _NO_SPACE):
        return _disk("No space left on device")
    if isinstance(error, duckdb.OutOfMemoryException):
        return too_large("it needs more memory than it may use, or more than it may spill")
    if (found := value_problem(connection, parts, marker, message)) is not None:
        return found
    words = shown(message, [*hidden(parts), (str(folder), "")])
    for part in parts:
        if f'in file "{part.path}"' in message:
            return unreadable(
                part, shown(message.partition("\nTry setting")[0].partition("\n\nLINE")[0], hidden(parts), 300)
            )
    if isinstance(error, duckdb.IOException):
        return Unavailable("disk_unavailable", f"a file of the merge could not be read or written: {words}")
    bare = [part.listener for part in parts if not part.columns]
    if bare and isinstance(error, duckdb.BinderException):
        words += f"\nWithout rows, nothing is known of the columns of: {', '.join(bare)}; name them in the definition"
    return Rejected("merge_refused", f"the SQL cannot be carried out on these parts: {words}"[:1000])


def _disk(why: str) -> Unavailable:
    code = "no_space" if why in _NO_SPACE else "disk_unavailable"
    return Unavailable(code, f"the merge could not write: {why}")
