"""Making one file, or one row of values, of a report's parts: the SELECT of its definition, carried out by DuckDB.

::

    parts (NDJSON) ─▶ views ─▶ SELECT ─▶ COPY ─▶ file ─▶ fsync ─▶ counted, sized, hashed ─▶ MergedFile

Nothing is said of a file before it is whole and on the disk; what failed leaves none. Rows stand in the order that the
SELECT says; without ORDER BY, in the order of the parts where DuckDB keeps it, which is no promise.

It is carried out in a merge process, see :mod:`merge_program`; the others ask for it, see :mod:`merge_processes`.
"""

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tickwright.capabilities.reports.merge.csv_text import csv_values, header_name
from tickwright.capabilities.reports.merge.duck import (
    STATEMENTS,
    MergeBounds,
    named,
    open_duck,
    quoted,
    shown,
    too_large,
)
from tickwright.capabilities.reports.merge.feed import check_sizes, feed_sizes, feed_table, feed_texts, feed_values
from tickwright.capabilities.reports.merge.part_tables import PartFile, hidden, make_views, unreadable, value_problem
from tickwright.capabilities.reports.types.plan import Format
from tickwright.capabilities.reports.types.select_check import check_select, read_select
from tickwright.domain.errors import Rejected, TickwrightError, Unavailable
from tickwright.ports.reports import Column

if TYPE_CHECKING:
    import duckdb
    from duckdb import DuckDBPyConnection

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
    """A file that is whole: its rows without the header, its size, and the SHA-256 of its bytes."""

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
    """Write what ``sql`` gives of the parts into ``out``, which must not be there yet.

    Args:
        parts: Tables by their listeners' names; each in a file that only this report has.
        sql: One SELECT; checked again here.
        out: In ``folder``; on the disk when this returns, gone when it fails.
        form: ``csv`` (see :mod:`csv_text`) or ``parquet`` (DuckDB's types, zstd).
        bom: Whether CSV begins with a byte order mark.
        folder: For this merge alone; what is spilled goes there, and is gone afterwards.
        bounds: What it may use. How long it may take is the caller's.

    Raises:
        Rejected: ``invalid_sql``, ``merge_refused`` (the SQL does not fit these parts, or failed on a value),
            ``part_unreadable``, ``merge_too_large``. Permanent: the same parts give the same error.
        Unavailable: ``no_space``: the disk is full; ``disk_unavailable``. Retry.
    """
    with _over_parts(parts, sql, folder, bounds or MergeBounds(), out) as (connection, select):
        return _write(connection, select, out=out, form=form, bom=bom)


def feed(parts: Sequence[PartFile], sql: str, *, folder: Path, bounds: MergeBounds | None = None) -> dict[str, Any]:
    """Return the one row that ``sql`` gives of the parts, as JSON values by column; see :mod:`feeding`.

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
    """Give a connection where the parts are tables, and the SELECT; every foreign error becomes one of ours."""
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
    """Return the columns of a SELECT; names that are the same for a reader are refused."""
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
    except duckdb.IOException as error:  # which DuckDB raises for this value, too
        if _NEGATIVE_INTERVAL in str(error):
            raise Rejected("merge_refused", _NOT_FOR_PARQUET) from error
        raise
    return _finished(out, rows)


def _finished(out: Path, rows: int) -> MergedFile:
    """Bring the file to the disk, then read it once more as it is there."""
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
    """Return what a SELECT has to list so that types are kept: DuckDB writes 128-bit integers as DOUBLE."""
    return ", ".join(
        f"{_kept(place, column.type)} AS {named(column.name)}" for place, column in zip(places, columns, strict=True)
    )


def _kept(value: str, type_name: str) -> str:
    kept = type_name.replace('"NULL"', "VARCHAR", 1) if type_name.startswith('"NULL"') else type_name
    if '"' not in kept:  # which would begin a name
        kept = kept.replace("UHUGEINT", "HUGEINT").replace("HUGEINT", _PARQUET_WHOLE)
    return value if kept == type_name else f"CAST({value} AS {kept})"


def _translated(
    error: "duckdb.Error", connection: "DuckDBPyConnection", parts: Sequence[PartFile], marker: str, folder: Path
) -> TickwrightError:
    """Return what an error of DuckDB's is for the report."""
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
