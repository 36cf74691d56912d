"""Write a part's rows into one NDJSON file: a line per row, columns in a fixed order, counted and hashed.

Rows come from a source, from a program's function, or over HTTP as NDJSON; the file is the same. A thread encodes and
writes one piece behind the reading. Pieces are small, so that no other thread waits long for the interpreter.

NDJSON over HTTP is read strictly, see :mod:`tickwright.domain.strict_json`: what two parsers could read differently is
refused with its line. A number with more digits than a float holds becomes an exact decimal.
"""

import asyncio
import contextlib
import errno
import hashlib
import json
import os
import re
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from tickwright.capabilities.reports.parts.values import (
    NOTHING,
    NotJsonError,
    check_count,
    check_names,
    check_type,
    encode_column,
    first_not_json,
    refuse_value,
    type_of,
)
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.domain.strict_json import loads
from tickwright.ports.reports import Column, PartFacts, Rows
from tickwright.sources.rows import cells_of, weighed

BYTES_MAX = 16 * 2**30
PIECE_CELLS = 10_000
PIECE_ROWS_MAX = 1_000
PIECE_BYTES = 2**21
PRIVATE_FILE = 0o600
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
Progress = Callable[[int], None]


async def write_part(
    rows: Rows | AsyncIterable[Mapping[str, Any]],
    path: Path,
    *,
    declared: Mapping[str, str],
    progress: Progress | None = None,
    bytes_max: int = BYTES_MAX,
) -> PartFacts:
    """Write all rows into a new file at ``path`` and return its facts.

    Args:
        rows: Of a source, or mappings with the same keys in each. Values are Python's and JSON's types, decimals,
            dates, instants, intervals, UUIDs and bytes.
        path: Of a new file.
        declared: Types by column, which override all others; the only types of a part without rows.
        progress: Called now and then on the event loop with the number of rows.
        bytes_max: Of the file.

    Raises:
        Rejected: ``row_columns_differ``, ``row_value``, ``duplicate_column``, ``invalid_column``,
            ``invalid_column_type``, ``too_many_columns``, ``part_too_large``, ``row_too_large``, and errors of reading
            the rows. Permanent.
        Unavailable: ``no_space``, ``disk_failed``, and errors of reading the rows. Retry.

    Invariants:
        SPL-1: with the returned columns, DuckDB reads every value back exactly.
        SPL-2: the file is whole when this returns, and does not exist when it raises.
    """
    types = {name: check_type(kind) for name, kind in declared.items()}
    reported = getattr(rows, "columns", None)
    pieces = _of_mappings(rows, types) if reported is None else _of_source(rows, reported)  # type: ignore[arg-type]
    file = _PartFile(path, types, bytes_max)
    try:
        async for columns, piece in pieces:
            await file.put(columns, piece)
            if progress is not None:
                progress(file.rows)
        facts = await file.finish()
    except BaseException:
        await file.abandon()
        raise
    if progress is not None:
        progress(facts.rows)
    return facts


Piece = tuple[tuple[Column, ...], Sequence[Sequence[Any]]]


async def _of_source(rows: Rows, columns: Sequence[Column]) -> AsyncIterator[Piece]:
    known = tuple(columns)
    yield known, []
    async for piece in rows:
        yield known, piece


async def _of_mappings(rows: AsyncIterable[Mapping[str, Any]], declared: Mapping[str, str]) -> AsyncIterator[Piece]:
    """Collect mappings into pieces; the first row determines the columns."""
    columns = tuple(Column(name, "") for name in declared)
    names: list[str] | None = None
    gathered: list[Sequence[Any]] = []
    count = size_bytes = cells = 0
    async for row in rows:
        count += 1
        if names is None:
            names = _names_of(row)
            columns = tuple(Column(name, "") for name in names)
        elif len(row) != len(names):
            check_count(len(row), count)
            raise _differs(count, row, names)
        try:
            gathered.append([row[name] for name in names])
        except (KeyError, TypeError):
            raise _differs(count, row, names) from None
        size_bytes += weighed(gathered[-1:], "the listener")
        cells += cells_of(gathered[-1:])
        if cells >= PIECE_CELLS or len(gathered) >= PIECE_ROWS_MAX or size_bytes >= PIECE_BYTES:
            yield columns, gathered
            gathered, size_bytes, cells = [], 0, 0
    yield columns, gathered


def _names_of(row: Mapping[str, Any]) -> list[str]:
    names = list(row) if isinstance(row, Mapping) else []  # type: ignore[redundant-expr]  # a user may yield anything
    if not names or not all(isinstance(name, str) for name in names):
        raise Rejected("row_value", "row 1: a row is a mapping from the names of its columns to their values", row=1)
    check_count(len(names), 1)
    return names


def _differs(number: int, row: Mapping[str, Any], names: Sequence[str]) -> Rejected:
    missing = [name for name in names if name not in row]
    more = [str(name)[:60] for name in row if name not in names]
    lines = [f"{what} {', '.join(found[:5])}" for what, found in (("lacks", missing), ("also has", more)) if found]
    return Rejected(
        "row_columns_differ", f"row {number} {' and '.join(lines)}: all rows have the first one's columns", row=number
    )


class _PartFile:
    """The file, the properties of its values, and the one piece that is being written."""

    def __init__(self, path: Path, declared: Mapping[str, str], bytes_max: int) -> None:
        self._path, self._declared, self._bytes_max = path, declared, bytes_max
        self._columns: tuple[Column, ...] | None = None
        self._line: Any = None
        self._encoder = msgspec.json.Encoder()
        self._hash = hashlib.sha256()
        self._file: Any = None
        self._writing: asyncio.Future[None] | None = None
        self._piece_rows = PIECE_ROWS_MAX
        self.rows = self._bytes = 0

    async def put(self, columns: tuple[Column, ...], rows: Sequence[Sequence[Any]]) -> None:
        """Start to write a piece, after the piece before is written."""
        await self._written()
        if self._columns is None:
            self._begin(columns)
        self._writing = asyncio.ensure_future(asyncio.to_thread(self._write, rows))

    async def finish(self) -> PartFacts:
        """Wait for the last piece and close the file."""
        await self._written()
        await asyncio.to_thread(self._close)
        columns = tuple(
            Column(name, self._declared.get(name) or type_of(reported, seen))
            for (name, reported), seen in zip(self._columns or (), self._seen, strict=True)
        )
        return PartFacts(columns, self.rows, self._bytes, self._hash.hexdigest())

    async def abandon(self) -> None:
        """Wait for a running write, and remove the file."""
        if self._writing is not None:
            await asyncio.wait({self._writing})
            self._writing.exception()
        await asyncio.to_thread(self._remove)

    async def _written(self) -> None:
        if self._writing is not None:
            await asyncio.shield(self._writing)
            self._writing = None

    def _begin(self, columns: tuple[Column, ...]) -> None:
        names = [column.name for column in columns]
        check_names(names)
        for name in self._declared:
            if name not in names:
                raise Rejected("row_columns_differ", f"the column {name} is declared, and the rows do not have it")
        fields = [f"c{number}" for number in range(len(names))]
        self._line = msgspec.defstruct("Line", fields, rename=dict(zip(fields, names, strict=True)), gc=False)
        self._seen = [NOTHING] * len(names)
        self._reported = [self._declared.get(name) or reported for name, reported in columns]
        self._columns = columns

    def _write(self, rows: Sequence[Sequence[Any]]) -> None:
        try:
            if self._file is None:
                self._file = private_file(self._path)
            start = 0
            while start < len(rows):
                start = self._write_some(rows, start)
        except OSError as error:
            raise _disk(error) from error

    def _write_some(self, rows: Sequence[Sequence[Any]], start: int) -> int:
        """Write as many rows as take a few milliseconds, estimated from the rows before."""
        some = rows[start : start + self._piece_rows]
        data = self._encode(some)
        self._hash.update(data)
        self._file.write(data)
        self.rows += len(some)
        self._bytes += len(data)
        if self._bytes > self._bytes_max:
            raise Rejected(
                "part_too_large", f"the part has more than {self._bytes_max} bytes", bytes_max=self._bytes_max
            )
        by_bytes = PIECE_BYTES * len(some) // max(len(data), 1)
        self._piece_rows = max(1, min(PIECE_ROWS_MAX, PIECE_CELLS // max(1, len(self._reported)), by_bytes))
        return start + len(some)

    def _encode(self, rows: Sequence[Sequence[Any]]) -> bytes:
        columns = list(zip(*rows, strict=True))
        try:
            spelled = [
                encode_column(values, reported) for values, reported in zip(columns, self._reported, strict=True)
            ]
            data = self._encoder.encode_lines(list(map(self._line, *(column.values for column in spelled))))
        except (NotJsonError, UnicodeEncodeError) as error:
            raise self._unspellable(columns, error) from None
        self._seen = [before.join(column.seen) for before, column in zip(self._seen, spelled, strict=True)]
        return data

    def _unspellable(self, columns: Sequence[Sequence[Any]], error: Exception) -> Rejected:
        what = str(error) if isinstance(error, NotJsonError) else "text with half of a surrogate pair"
        for column, values, reported in zip(self._columns or (), columns, self._reported, strict=True):
            place = first_not_json(values, reported)
            if place is not None:
                return refuse_value(column.name, self.rows + place + 1, what)
        raise error

    def _close(self) -> None:
        try:
            if self._file is None:
                self._file = private_file(self._path)
            self._file.close()
        except OSError as error:
            raise _disk(error) from error

    def _remove(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._path.unlink(missing_ok=True)


def private_file(path: Path, flags: int = os.O_EXCL) -> BinaryIO:
    """Open a file for rows that no other user of the machine can read; by default it must not exist."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flags, PRIVATE_FILE), "wb")


def _disk(error: OSError) -> Unavailable:
    if error.errno in _FULL:
        return Unavailable("no_space", "no space is left for a part's file")
    return Unavailable("disk_failed", f"a part's file cannot be written: {error.strerror or type(error).__name__}")


# ---------------------------------------------------------------------- NDJSON over HTTP

LINE_BYTES_MAX = 2**20
_LONG_NUMBER = re.compile(rb"[0-9][0-9.]{15}")


async def rows_of(stream: AsyncIterable[bytes]) -> AsyncIterator[dict[str, Any]]:
    """Yield the rows of a stream of arbitrary chunks; the last line may lack its line feed.

    Raises:
        Rejected: ``line_too_long``, ``row_value``: a line is no object; ``invalid_json``, ``duplicate_key``,
            ``non_finite_number``, ``number_out_of_range``, ``too_deep``, ``unsupported_character``; all with ``line``;
            ``too_many_columns`` with ``row``. Permanent.
    """
    number, kept = 0, bytearray()  # kept: an incomplete line, which grows in place
    async for chunk in stream:
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            number += 1
            yield _row(bytes(kept) + line if kept else line, number)
            kept.clear()
        kept += rest
        if len(kept) > LINE_BYTES_MAX:
            raise _too_long(number + 1)
    if kept:
        yield _row(bytes(kept), number + 1)


def _row(line: bytes, number: int) -> dict[str, Any]:
    if len(line) > LINE_BYTES_MAX:
        raise _too_long(number)
    try:
        row = loads(line)
    except Rejected as error:
        details = {**error.details, "line": number}
        raise Rejected(error.code, f"line {number}: {error.message}", status=error.http_status, **details) from None
    if not isinstance(row, dict):
        raise Rejected("row_value", f"line {number}: write one JSON object with the columns of the row", line=number)
    check_count(len(row), number)
    return json.loads(line, parse_float=_exact) if _LONG_NUMBER.search(line) else row


def _exact(text: str) -> float | Decimal:
    number, exact = float(text), Decimal(text)
    return number if Decimal(repr(number)) == exact else exact


def _too_long(number: int) -> Rejected:
    return Rejected("line_too_long", f"line {number} has more than {LINE_BYTES_MAX} bytes", status=413, line=number)
