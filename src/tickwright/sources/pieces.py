"""Rows on their way are gathered: some hundred at a time, since each hand-over costs, and fewer where they are large.

What a row takes is only known when it is there. So libraries are asked for a few rows at a time, and whoever reads has
no more in memory than one piece and those few.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

CHUNK_ROWS = 20
PIECE_ROWS = 500
PIECE_BYTES = 4 * 1024 * 1024

_TEXTS = frozenset({str, bytes, bytearray})
_SMALL = frozenset({int, float, bool, type(None), Decimal, date, datetime, UUID})
Row = Sequence[Any]


def gathered(fetch: Callable[[int], Sequence[Row]]) -> list[Row]:
    """Return the next rows of ``fetch``, which is asked for twenty at a time; none at the end.

    At most 500 rows, and at most 4 MiB before the last twenty.
    """
    rows: list[Row] = []
    size_bytes = 0
    while len(rows) < PIECE_ROWS and size_bytes < PIECE_BYTES:
        some = fetch(CHUNK_ROWS)
        if not some:
            break
        rows += some
        size_bytes += weight_bytes(some)
    return rows


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
