"""Rows of sources: collected into pieces, and their values made plain for a process or converted for a program.

**Pieces.** A piece has some hundred rows, because each hand-over costs time, and fewer if rows are large. The size of a
row is known only after it is read. So libraries return a few rows at a time, the size of a row is bounded, and a reader
holds no more than one piece and those few rows.

**Plain values.** A value of a program's own class, such as an enum, is pickled by the name of its class, so that its
reader would import the program. So values are made plain before they go to another process.

**Python's values.** Sources return texts where a text is exact and cheap, which suits files. A function gets exact
numbers, dates, instants and documents. A value that Python cannot hold, such as an infinite date, stays a text.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

import msgspec

from tickwright.domain.errors import Rejected
from tickwright.ports.reports import NOT_UTF8, Column

CHUNK_ROWS = 5
PIECE_ROWS = 500
PIECE_CELLS = 50_000
"""Each cell takes some tens of bytes, whatever its value, and time."""
PIECE_BYTES = 4 * 1024 * 1024
ROW_BYTES_MAX = 16 * 1024 * 1024
"""Of texts and bytes; a merge accepts no longer line."""

_TEXTS = frozenset({str, bytes, bytearray})
_NESTED: frozenset[type] = frozenset({list, tuple, dict})
_SMALL = frozenset({int, float, bool, type(None), Decimal, date, datetime, UUID})
Row = Sequence[Any]


def gathered(fetch: Callable[[int], Sequence[Row]], of: str) -> list[Row]:
    """Return the next rows of ``fetch``, which is called for five at a time; none at the end.

    At most 500 rows, and at most 4 MiB and 50,000 cells before the last five.

    Raises:
        Rejected: ``row_too_large``, as :func:`weighed`. Permanent.
    """
    rows: list[Row] = []
    size_bytes = cells = 0
    while not is_full(len(rows), size_bytes, cells):
        some = fetch(CHUNK_ROWS)
        if not some:
            break
        rows += some
        size_bytes += weighed(some, of)
        cells += cells_of(some)
    return rows


def is_full(rows: int, size_bytes: int, cells: int) -> bool:
    """Whether a piece of this size is complete."""
    return rows >= PIECE_ROWS or size_bytes >= PIECE_BYTES or cells >= PIECE_CELLS


def weighed(rows: Sequence[Row], of: str) -> int:
    """Return the size of a few rows in bytes.

    Raises:
        Rejected: ``row_too_large``: one of them exceeds ``ROW_BYTES_MAX``; ``of`` names the origin, such as
            ``"source crm"``. Permanent.
    """
    size_bytes = weight_bytes(rows)
    if size_bytes > ROW_BYTES_MAX and max(map(weight_bytes, rows)) > ROW_BYTES_MAX:
        raise row_too_large(of)
    return size_bytes


def row_too_large(of: str) -> Rejected:
    """Return the error of a row above ``ROW_BYTES_MAX``."""
    text = (
        f"{of} gives a row of more than {ROW_BYTES_MAX // 2**20} MiB of text; select fewer columns, cut long values "
        "(left, substr), or put them into rows of their own"
    )
    return Rejected("row_too_large", text, bytes_max=ROW_BYTES_MAX)


def cells_of(rows: Sequence[Row]) -> int:
    """Return the number of values in rows, including items of lists; counting ends at ``PIECE_CELLS``."""
    left: list[Any] = list(rows)
    cells = 0
    while left:
        value = left.pop()
        cells += len(value)
        if cells >= PIECE_CELLS:
            break
        left += [one for one in (value.values() if isinstance(value, dict) else value) if one.__class__ in _NESTED]
    return cells


def weight_bytes(value: Any) -> int:
    """Return the approximate bytes of texts and bytes at any depth; other values are small and count nothing."""
    kind = value.__class__
    if kind in _TEXTS:
        return len(value)
    if kind in _SMALL:
        return 0
    if isinstance(value, Mapping):
        return sum(map(weight_bytes, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(weight_bytes, value))
    return len(value) if isinstance(value, str | bytes | memoryview) else 0


# ---------------------------------------------------------------------- plain values

PLAIN: Final[tuple[type, ...]] = (datetime, date, time, timedelta, timezone, Decimal, UUID)
"""The types of plain values besides those that need no import."""


def plain(value: Any) -> Any:
    """Return ``value`` without instances of a program's own classes.

    Raises:
        TypeError: It is no value for a query.
        ValueError, RecursionError: It cannot be converted, or is endless.
    """
    if value is None or value.__class__ in _AS_IT_IS:
        return value
    for kind, made in _MADE.items():
        if isinstance(value, kind):
            return made(value)
    raise TypeError(f"a {type(value).__name__} cannot be given to a query")


def _datetime(value: datetime) -> datetime:
    """Return the same instant with a fixed offset, so that no class of a time zone is needed."""
    when = (value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond)
    return datetime(*when, tzinfo=_zone(value.utcoffset()))


def _zone(offset: timedelta | None) -> timezone | None:
    return None if offset is None else timezone(timedelta(offset.days, offset.seconds, offset.microseconds))


_AS_IT_IS = frozenset({str, bool, int, float, bytes, Decimal})
_MADE: Mapping[type, Callable[[Any], Any]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: lambda value: bytes(memoryview(value)),
    bytearray: lambda value: bytes(memoryview(value)),
    memoryview: bytes,
    Decimal: Decimal,
    UUID: lambda value: UUID(int=value.int),
    datetime: _datetime,
    date: lambda value: date(value.year, value.month, value.day),
    time: lambda value: time(value.hour, value.minute, value.second, value.microsecond, _zone(value.utcoffset())),
    timedelta: lambda value: timedelta(value.days, value.seconds, value.microseconds),
    list: lambda value: [*map(plain, value)],
    tuple: lambda value: [*map(plain, value)],
    Mapping: lambda value: {plain(name): plain(one) for name, one in value.items()},
    Enum: lambda value: plain(value.value),
}
"""The order matters: a member of a ``StrEnum`` is a ``str``, and a ``datetime`` is a ``date``."""


# ---------------------------------------------------------------------- Python's values

_READERS: Mapping[str, Callable[[Any], Any]] = {
    "DECIMAL": Decimal,
    "DATE": date.fromisoformat,
    "TIME": time.fromisoformat,
    "TIMESTAMP": datetime.fromisoformat,
    "TIMESTAMPTZ": datetime.fromisoformat,
    "UUID": UUID,
    "JSON": msgspec.json.decode,
}


def mappings_of(columns: Sequence[Column], piece: Sequence[Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a piece as mappings by column name."""
    names = [column.name for column in columns]
    readers = [(place, _READERS[kind]) for place, kind in enumerate(map(_kind, columns)) if kind in _READERS]
    for row in piece:
        values = list(row)
        if NOT_UTF8 in values:
            raise Rejected("source_refused", f"column {names[values.index(NOT_UTF8)]}: a text that is not UTF-8")
        for place, read in readers:
            if isinstance(values[place], str | msgspec.Raw):
                with contextlib.suppress(ValueError, ArithmeticError):
                    values[place] = read(values[place])
        yield dict(zip(names, values, strict=True))


def _kind(column: Column) -> str:
    return column.type.partition("(")[0]
