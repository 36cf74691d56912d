"""Merge the parts of a report into a file, or into one row of values, by the SELECT of its definition, in DuckDB.

::

    parts (NDJSON) ─▶ views ─▶ SELECT ─▶ COPY ─▶ file ─▶ fsync ─▶ counted, sized, hashed ─▶ MergedFile

A file is returned once it is whole and on disk; a failed merge leaves none. Without ORDER BY, rows are usually in the
order of the parts, which is no promise. All of this runs in a merge process, see :mod:`.program`.

**Parts as tables.** A part is a view over its NDJSON file, with exactly its types. DuckDB's JSON reader is too lenient:
for a BIGINT it reads 2.5 as 2 and true as 1, and it reads decimals through a double. So every type but text is read as
text and cast here. A value that does not fit raises an error with listener, column and row. A document that the file
stores as text keeps each of its digits, because a cast of a text to JSON only validates it.

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
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tickwright.capabilities.reports.merge.csv_text import Kind, csv_values, header_name, kind_of, plain_text
from tickwright.capabilities.reports.merge.sandbox import (
    STATEMENTS,
    MergeBounds,
    check_select,
    named,
    open_duck,
    quoted,
    read_select,
    shown,
    too_large,
)
from tickwright.capabilities.reports.parts.values import DOCUMENT_TEXT
from tickwright.capabilities.reports.plan import Format
from tickwright.domain.errors import Rejected, TickwrightError, Unavailable
from tickwright.ports.reports import Column
from tickwright.sources.duckdb_values import json_text

if TYPE_CHECKING:
    import duckdb
    from duckdb import DuckDBPyConnection


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
            connection.execute(statement.format(name=named(part.listener), values=values, rows=_rows(part))).fetchall()
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
    search = STATEMENTS["misfit"].format(name=named(column.name), rows=_rows(part), fitted=_fitted("raw", column))
    with suppress(duckdb.Error):  # interrupted, or out of memory: the message has no row
        row, value = (connection.execute(search).fetchall() or [(0, "")])[0]
    where = f"row {row}, " if row else ""
    return unreadable(part, f"{where}column {column.name}: no {column.type}: {shown(str(value), [], 80)}")


def _rows(part: PartFile) -> str:
    columns = ", ".join(f"{quoted(column.name)}: {quoted(_raw(column.type))}" for column in part.columns)
    return STATEMENTS["part_rows"].format(path=quoted(str(part.path)), columns=columns)


def _checked(column: Column, marker: str) -> str:
    """Return SQL for a column of a view; a value that does not fit raises an error that begins with ``marker``."""
    name = named(column.name)
    fitted = _fitted(name, column)
    if fitted == name:
        return name
    problem = f"error({quoted(marker)} || left(CAST({name} AS VARCHAR), 80))"
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
        is_text = f"starts_with(CAST({raw} AS VARCHAR), {quoted(_DOCUMENT_BEGINS)})"
        return f"CASE WHEN {is_text} THEN TRY_CAST({raw} ->> {quoted(DOCUMENT_TEXT)} AS JSON) ELSE {raw} END"
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


def feed_table(select: str, columns: Sequence[Column]) -> str:
    """Return the statement that runs ``select`` once and keeps its first two rows, each value as JSON."""
    places = [f"c{number}" for number in range(len(columns))]
    values = [f"{json_value(place, column.type)} AS {place}" for place, column in zip(places, columns, strict=True)]
    return STATEMENTS["feed_table"].format(values=", ".join(values), select=select, places=", ".join(places))


def feed_sizes(columns: Sequence[Column]) -> str:
    """Return the SELECT for the JSON bytes of each kept row."""
    sizes = " + ".join(f"coalesce(strlen(CAST(c{number} AS VARCHAR)), 4)" for number in range(len(columns)))
    return STATEMENTS["feed_sizes"].format(sizes=sizes)


def feed_texts(columns: Sequence[Column]) -> str:
    """Return the SELECT for the row, a JSON text for each column."""
    texts = ", ".join(f"CAST(c{number} AS VARCHAR)" for number in range(len(columns)))
    return STATEMENTS["feed_texts"].format(texts=texts)


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


def check_sizes(sizes: Sequence[int]) -> None:
    """Refuse a feed that is not exactly one row, or too large.

    Raises:
        Rejected: ``feed_not_one_row``, ``feed_too_large``. Permanent.
    """
    if len(sizes) != 1:
        raise Rejected("feed_not_one_row", f"a feed gives one row; this one gave {'none' if not sizes else 'several'}")
    if sizes[0] > JSON_BYTES_MAX:
        raise Rejected("feed_too_large", f"a feed has at most {JSON_BYTES_MAX} bytes of JSON; this one has {sizes[0]}")


def feed_values(columns: Sequence[Column], texts: Sequence[str | None]) -> dict[str, Any]:
    """Return the values by column name.

    Raises:
        Rejected: ``feed_too_large``: more than 100,000 values. Permanent.
    """
    values = {
        column.name: None if text is None else _decoded(column, text)
        for column, text in zip(columns, texts, strict=True)
    }
    count = sum(len(value) if isinstance(value, list) else 1 for value in values.values())
    if count > VALUES_MAX:
        raise Rejected("feed_too_large", f"a feed has at most {VALUES_MAX} values; this one has {count}")
    return values


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


__all__ = ["MergeBounds", "MergedFile", "PartFile", "check_select", "feed", "merge"]

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
        form: ``csv`` (see :mod:`csv_text`) or ``parquet`` (DuckDB's types, zstd).
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
        connection.execute(feed_table(select, columns)).fetchall()
        check_sizes([row[0] for row in connection.execute(feed_sizes(columns)).fetchall()])
        return feed_values(columns, connection.execute(feed_texts(columns)).fetchall()[0])


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
    copy = STATEMENTS[f"copy_{form}"].format(result=result, out=quoted(str(out)))
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
        f"{_kept(place, column.type)} AS {named(column.name)}" for place, column in zip(places, columns, strict=True)
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
