"""Rows of a source as Python's values, for the functions of a program: exact numbers, dates, instants, documents.

Sources give texts where a text is exact and cheap, which suits files. A function that calculates wants more; what
Python cannot hold, such as an infinite date, stays a text.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from tickwright.domain.errors import Rejected
from tickwright.ports.reports import NOT_UTF8, Column

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
    """Give the rows of a piece by the names of their columns."""
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
