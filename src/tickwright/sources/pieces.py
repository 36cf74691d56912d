"""Rows on their way are gathered: some hundred at a time, since each hand-over costs, and fewer where they are large.

What a row takes is only known when it is there. So libraries are asked for a few rows at a time, a row has a bound, and
a reader has no more in memory than one piece and those few.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from tickwright.domain.errors import Rejected

CHUNK_ROWS = 5
PIECE_ROWS = 500
PIECE_CELLS = 50_000
"""Each takes some tens of bytes whatever is in it, and time."""
PIECE_BYTES = 4 * 1024 * 1024
ROW_BYTES_MAX = 16 * 1024 * 1024
"""Of texts and bytes; what merges the parts takes no longer line."""

_TEXTS = frozenset({str, bytes, bytearray})
_NESTED: frozenset[type] = frozenset({list, tuple, dict})
_SMALL = frozenset({int, float, bool, type(None), Decimal, date, datetime, UUID})
Row = Sequence[Any]


def gathered(fetch: Callable[[int], Sequence[Row]], of: str) -> list[Row]:
    """Return the next rows of ``fetch``, which is asked for five at a time; none at the end.

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
    """Whether a piece that has so much is handed over."""
    return rows >= PIECE_ROWS or size_bytes >= PIECE_BYTES or cells >= PIECE_CELLS


def weighed(rows: Sequence[Row], of: str) -> int:
    """Return what a few rows weigh.

    Raises:
        Rejected: ``row_too_large``: one of them is above the bound; ``of`` says what gives it, such as ``"source
            crm"``. Permanent.
    """
    size_bytes = weight_bytes(rows)
    if size_bytes > ROW_BYTES_MAX and max(map(weight_bytes, rows)) > ROW_BYTES_MAX:
        raise row_too_large(of)
    return size_bytes


def row_too_large(of: str) -> Rejected:
    """Return the error for a row above the bound."""
    text = (
        f"{of} gives a row of more than {ROW_BYTES_MAX // 2**20} MiB of text; select fewer columns, cut long values "
        "(left, substr), or put them into rows of their own"
    )
    return Rejected("row_too_large", text, bytes_max=ROW_BYTES_MAX)


def cells_of(rows: Sequence[Row]) -> int:
    """Return how many values are in rows, the items of a list included; above ``PIECE_CELLS`` no more are counted."""
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
    """Return about how many bytes texts and bytes take, at any depth; everything else is small and counts nothing."""
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
