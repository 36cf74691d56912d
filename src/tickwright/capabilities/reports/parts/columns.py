"""The DuckDB type of a part's column: declared, reported by the source, or derived from its values. Pure.

The derived type does not depend on the order of rows or on their division. It holds every value exactly, else it is
text.
"""

import re
from collections.abc import Sequence
from enum import IntFlag
from typing import NamedTuple, Self

from tickwright.domain.errors import Rejected

DIGITS_MAX = 38
NAME_CHARS_MAX = 255
COLUMNS_MAX = 1_000
"""Of a part, declared or not: each column takes time and memory of the process that writes it."""
INT64_MAX, INT128_MAX = 2**63 - 1, 2**127 - 1
EXACT_FLOAT_MAX = 2**53
ANY_DECIMAL = "DECIMAL"
NO_DIGITS = "DECIMAL(18,3)"
"""The type of an exact number without values."""

_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
_INSTANTS = ("DATE", "TIME", "TIMESTAMP", "TIMESTAMPTZ", "INTERVAL")
_PLAIN = ("BOOLEAN", *_INTEGERS, "FLOAT", "DOUBLE", "VARCHAR", *_INSTANTS, "UUID", "JSON")
_ALIASES = {
    "BOOL": "BOOLEAN",
    "INT": "INTEGER",
    "INT2": "SMALLINT",
    "INT4": "INTEGER",
    "INT8": "BIGINT",
    "REAL": "FLOAT",
    "FLOAT4": "FLOAT",
    "FLOAT8": "DOUBLE",
    "DOUBLE PRECISION": "DOUBLE",
    "TEXT": "VARCHAR",
    "STRING": "VARCHAR",
    "DATETIME": "TIMESTAMP",
    "TIMESTAMP WITH TIME ZONE": "TIMESTAMPTZ",
}
_DECIMAL = re.compile(r"(?:DECIMAL|NUMERIC)\s*\(\s*(\d{1,2})\s*(?:,\s*(\d{1,2})\s*)?\)")
_NESTED_MAX = 3


def check_type(text: str) -> str:
    """Return a declared type in canonical form: a plain type, ``DECIMAL(p,s)``, or a list such as ``BIGINT[]``.

    Raises:
        Rejected: ``invalid_column_type``. Permanent.
    """
    spelled = " ".join(text.upper().split())
    base = spelled.rstrip("[]")
    lists = spelled[len(base) :]
    found = _ALIASES.get(base.strip(), base.strip())
    if match := _DECIMAL.fullmatch(found):
        digits, scale = int(match[1]), int(match[2] or 0)
        found = f"DECIMAL({digits},{scale})" if 1 <= digits <= DIGITS_MAX and scale <= digits else ""
    elif found not in _PLAIN:
        found = ""
    if not found or lists != "[]" * (len(lists) // 2) or len(lists) > 2 * _NESTED_MAX:
        allowed = ", ".join((*_PLAIN, "DECIMAL(digits up to 38, scale)"))
        raise Rejected("invalid_column_type", f"{text[:60]!r} is no type of a column; one of {allowed}, or a list, T[]")
    return found + lists


def check_count(columns: int, row: int | None = None) -> None:
    """Refuse more columns than a part may have; ``row`` is the number of the row with these columns.

    Raises:
        Rejected: ``too_many_columns``. Permanent.
    """
    if columns > COLUMNS_MAX:
        where, details = ("", {}) if row is None else (f"row {row}: ", {"row": row})
        text = (
            f"{where}a part has {COLUMNS_MAX} columns at the most, and these are {columns}: leave out what the report "
            "does not need, or put values into one column as an object"
        )
        raise Rejected("too_many_columns", text, columns_max=COLUMNS_MAX, **details)


def check_names(names: Sequence[str]) -> None:
    """Refuse columns that a merge could not distinguish or name, and too many of them.

    Raises:
        Rejected: ``duplicate_column``, ``invalid_column``, ``too_many_columns``. Permanent.
    """
    check_count(len(names))
    seen: set[str] = set()
    for name in names:
        if not 0 < len(name) <= NAME_CHARS_MAX or not name.isprintable():
            raise Rejected("invalid_column", f"a column has a name of 1 to {NAME_CHARS_MAX} printable characters")
        if name.lower() in seen:
            raise Rejected("duplicate_column", f"two columns are called {name}; give one another name with AS")
        seen.add(name.lower())


class Kind(IntFlag):
    """Kinds of values in a column; null has none."""

    NONE = 0
    BOOLEAN = 1
    INTEGER = 2
    FLOAT = 4
    DECIMAL = 8
    TEXT = 16
    DATE = 32
    TIME = 64
    TIMESTAMP = 128
    TIMESTAMPTZ = 256
    INTERVAL = 512
    UUID = 1024
    JSON = 2048
    INEXACT = 4096
    """A decimal that DECIMAL cannot hold: not a number, infinite, or far too large."""


_ALONE = {
    Kind.NONE: "VARCHAR",
    Kind.BOOLEAN: "BOOLEAN",
    Kind.FLOAT: "DOUBLE",
    Kind.TEXT: "VARCHAR",
    Kind.DATE: "DATE",
    Kind.TIME: "TIME",
    Kind.TIMESTAMP: "TIMESTAMP",
    Kind.TIMESTAMPTZ: "TIMESTAMPTZ",
    Kind.INTERVAL: "INTERVAL",
    Kind.UUID: "UUID",
}


class Seen(NamedTuple):
    """The properties of one column's values so far.

    Attributes:
        size: The largest integer; a negative one counts as its bitwise complement.
        digits: Before the point, of decimals and integers beside them.
        scale: Digits after the point, of decimals.
        deep: Whether a list contains lists.

    Invariants:
        COL-1: ``join`` is commutative, associative and idempotent.
        COL-2: ``type`` holds every seen value exactly.
    """

    kinds: Kind = Kind.NONE
    size: int = 0
    digits: int = 0
    scale: int = 0
    deep: bool = False

    def join(self, other: Self) -> "Seen":
        """Return the properties of both together."""
        return Seen(
            self.kinds | other.kinds,
            max(self.size, other.size),
            max(self.digits, other.digits),
            max(self.scale, other.scale),
            self.deep or other.deep,
        )

    @property
    def type(self) -> str:
        """The type that holds every value."""
        if self.kinds & Kind.JSON:
            return "JSON"
        if self.kinds == Kind.INTEGER:
            return self._integer()
        if self.kinds | Kind.INTEGER == Kind.DECIMAL | Kind.INTEGER:
            return self._decimal()
        if self.kinds == Kind.FLOAT | Kind.INTEGER and self.size <= EXACT_FLOAT_MAX:
            return "DOUBLE"
        return _ALONE.get(self.kinds, "VARCHAR")

    def _integer(self) -> str:
        if self.size <= INT64_MAX:
            return "BIGINT"
        return "HUGEINT" if self.size <= INT128_MAX else "VARCHAR"

    def _decimal(self) -> str:
        whole = max(self.digits, len(str(self.size + 1)) if self.kinds & Kind.INTEGER else 0)
        needed = max(whole + self.scale, 1)
        if needed > DIGITS_MAX:
            return "VARCHAR"
        return f"DECIMAL({18 if needed <= 18 else DIGITS_MAX},{self.scale})"


NOTHING = Seen()


def type_of(told: str, seen: Seen) -> str:
    """Return a column's type from its source's type (``""`` if unknown) and its values."""
    if told == ANY_DECIMAL:
        return NO_DIGITS if seen.kinds == Kind.NONE else seen.type
    if not told or (told.startswith("DECIMAL(") and seen.kinds & Kind.INEXACT):
        return seen.type
    return "JSON" if told.endswith("[]") and seen.deep else told
