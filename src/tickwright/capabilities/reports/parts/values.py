"""Values of parts as JSON that DuckDB reads back exactly, and the DuckDB types of their columns. Pure.

64-bit numbers, finite floats, texts, booleans and nested values are JSON's own. Decimals, larger integers, infinities,
dates, instants in UTC, intervals, UUIDs and bytes (hexadecimal) are texts. Another value is refused with its place. A
missing value of another library, such as ``pandas.NaT``, is null. A column of one type costs a few passes in C.

A column's type is declared, reported by the source, or derived from its values. Deriving it is a join over all values:
it depends neither on their order nor on how they were divided. A derived type holds every value exactly; otherwise it
is text.

DuckDB's reader makes doubles of the numbers in a document. So a source's document with a number that a double may
change is written as ``{"json text": "…"}``; :mod:`tickwright.capabilities.reports.merge.merge` restores the document.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import IntFlag
from functools import reduce
from operator import sub
from typing import Any, NamedTuple, Self
from uuid import UUID

import msgspec

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


def type_of(reported: str, seen: Seen) -> str:
    """Return a column's type from its source's type (``""`` if unknown) and its values."""
    if reported == ANY_DECIMAL:
        return NO_DIGITS if seen.kinds == Kind.NONE else seen.type
    if not reported or (reported.startswith("DECIMAL(") and seen.kinds & Kind.INEXACT):
        return seen.type
    return "JSON" if reported.endswith("[]") and seen.deep else reported


# ---------------------------------------------------------------------- values

DEPTH_MAX = 32
_NONE = type(None)
_FINITE_DIGITS_MAX = 1000
_LARGEST = 10**_FINITE_DIGITS_MAX
DOCUMENT_TEXT = "json text"
"""The only name in an object that holds a document as text."""
_MAY_CHANGE = re.compile(r"[0-9][0-9.]{15}|[0-9][eE]")
_LONG_NUMBERS = re.compile(r'("(?:[^"\\]|\\.)*")|-?[0-9](?:[0-9.]{15}[0-9.]*(?:[eE][0-9+-]+)?|[0-9.]*[eE][0-9+-]+)')
_SPACES = re.compile(r'("(?:[^"\\]|\\.)*")|\s+')


class NotJsonError(Exception):
    """A value without a JSON form; the caller adds its row and column."""


class EncodedColumn(NamedTuple):
    """The values of one column, ready for the encoder, and their properties."""

    values: Sequence[Any]
    seen: Seen


def encode_column(values: Sequence[Any], reported: str = "") -> EncodedColumn:
    """Return a column's values for JSON. ``reported`` is the type that the source reports.

    Raises:
        NotJsonError: A value has no JSON form; :func:`first_not_json` finds it. Permanent.
    """
    if reported.startswith("DECIMAL"):
        are_texts = set(map(type, values)) <= {str, _NONE}
        return EncodedColumn(values, _seen_of_texts(values, reported)) if are_texts else _one_by_one(values, reported)
    kinds = set(map(type, values))
    kinds.discard(_NONE)
    if not kinds:
        return EncodedColumn(values, Seen())
    whole = _WHOLE.get(next(iter(kinds))) if len(kinds) == 1 else None
    return whole(values) if whole is not None else _one_by_one(values, reported)


def first_not_json(values: Sequence[Any], reported: str = "") -> int | None:
    """Return the position of the first value without a JSON form."""
    for place, value in enumerate(values):
        try:
            msgspec.json.encode(encode_column((value,), reported).values)
        except (NotJsonError, UnicodeEncodeError):
            return place
    return None


def _seen_of_texts(values: Sequence[Any], reported: str) -> Seen:
    """Return the properties of exact numbers as texts; with known digits, only NaN matters."""
    if reported != ANY_DECIMAL:
        return Seen(Kind.INEXACT if "NaN" in values else Kind.DECIMAL)
    texts = list(filter(None, values))
    points = [text.find(".") for text in texts]
    if texts and -1 not in points:
        behind = map(sub, map(len, texts), points)
        seen = Seen(Kind.DECIMAL, 0, max(points), max(behind) - 1)
        if seen.digits + seen.scale <= DIGITS_MAX:
            return seen
    return reduce(Seen.join, map(_seen_of_text, texts), Seen())


def _seen_of_text(text: str) -> Seen:
    whole, _, behind = text.removeprefix("-").partition(".")
    if not whole.isdecimal():
        return Seen(Kind.INEXACT)
    return Seen(Kind.DECIMAL, 0, len(whole.lstrip("0")), len(behind))


def _integers(values: Sequence[Any]) -> EncodedColumn:
    numbers = [value for value in values if value is not None]
    high, low = max(numbers), min(numbers)
    size = max(high, ~low)
    if size <= INT64_MAX:
        return EncodedColumn(values, Seen(Kind.INTEGER, size))
    return _one_by_one(values)


def _floats(values: Sequence[Any]) -> EncodedColumn:
    if math.isfinite(sum(filter(None, values))):
        return EncodedColumn(values, Seen(Kind.FLOAT))
    return _one_by_one(values)


_WHOLE: Mapping[type, Callable[[Sequence[Any]], EncodedColumn]] = {
    str: lambda values: EncodedColumn(values, Seen(Kind.TEXT)),
    bool: lambda values: EncodedColumn(values, Seen(Kind.BOOLEAN)),
    int: _integers,
    float: _floats,
}


def _one_by_one(values: Iterable[Any], reported: str = "") -> EncodedColumn:
    made: list[Any] = []
    seen = Seen()
    for value in values:
        if value is None:
            made.append(None)
            continue
        spelled, found = _SPELL.get(type(value), _derived)(value)
        made.append(_document(spelled, reported) if found.kinds == Kind.JSON else spelled)
        seen = seen.join(found)
    return EncodedColumn(made, seen)


def _document(value: Any, reported: str) -> Any:
    """Return a nested value in a form that DuckDB reads without changing a number."""
    is_document = reported in {"", "JSON"}
    if not (_has_raw(value) or (is_document and _is_marked(value))):
        return value
    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeDecodeError:
        raise NotJsonError("a text that is not UTF-8") from None
    if text[:1] == '"' or not (_is_marked(value) or _MAY_CHANGE.search(text) or DOCUMENT_TEXT in text):
        return value
    text = _SPACES.sub(r"\1", text)
    if reported.startswith("JSON["):
        raise NotJsonError(
            "a list of documents with a number of more than 15 digits or an exponent (declare it as JSON)"
        )
    if reported.endswith("[]"):
        return msgspec.Raw(_LONG_NUMBERS.sub(lambda found: found[1] or f'"{found[0]}"', text).encode())
    return {DOCUMENT_TEXT: text} if is_document else text


def _has_raw(value: Any) -> bool:
    return isinstance(value, msgspec.Raw) or (isinstance(value, list) and any(map(_has_raw, value)))


def _is_marked(value: Any) -> bool:
    return isinstance(value, dict) and next(iter(value), None) == DOCUMENT_TEXT


def _derived(value: Any) -> tuple[Any, Seen]:
    """Write a value of a derived type, such as an ``Enum`` of texts."""
    if not isinstance(value, float | Decimal) and _is_missing(value):
        return None, Seen()
    for kind, spelled in _SPELL.items():
        if isinstance(value, kind):
            return spelled(_plain(value))
    raise NotJsonError(f"a {type(value).__name__}")


def _is_missing(value: Any) -> bool:
    """Whether a value means "missing": ``pandas.NaT`` differs from itself, and ``pandas.NA`` compares to ``<NA>``."""
    try:
        return str(value != value) in {"True", "<NA>"}  # noqa: PLR0124
    except Exception:  # noqa: BLE001  # a user's class; its type is refused by name
        return False


def _plain(value: Any) -> Any:
    """Return an instant or a duration as Python's own type; refuse pandas' nanoseconds and years outside its range."""
    plain = value
    try:
        if isinstance(value, datetime):
            day, clock = date(value.year, value.month, value.day), datetime.timetz(value)
            plain = datetime.combine(day, clock)
        elif isinstance(value, timedelta):
            plain = timedelta(value.days, value.seconds, value.microseconds)
    except (ValueError, OverflowError):
        raise NotJsonError(f"a {type(value).__name__} beyond the years 1 to 9999") from None
    if plain is not value and plain != value:
        raise NotJsonError(f"a {type(value).__name__} with nanoseconds (round it to microseconds)")
    return plain


def _integer(value: int) -> tuple[Any, Seen]:
    value = int(value)
    if abs(value) > _LARGEST:
        raise NotJsonError(f"an integer of more than {_FINITE_DIGITS_MAX} digits")
    size = value if value >= 0 else ~value
    return value if size <= INT64_MAX else str(value), Seen(Kind.INTEGER, size)


def _float(value: float) -> tuple[Any, Seen]:
    value = float(value)
    return value if math.isfinite(value) else _odd(value), Seen(Kind.FLOAT)


def _odd(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _decimal(value: Decimal) -> tuple[Any, Seen]:
    if not value.is_finite():
        return _odd(float("nan") if value.is_nan() else float(value)), Seen(Kind.INEXACT)
    _, digits, exponent = value.as_tuple()
    scale = max(-int(exponent), 0)
    whole = max(len(digits) + int(exponent), 0) if value else 0
    if max(scale, whole) > _FINITE_DIGITS_MAX:
        return str(value), Seen(Kind.INEXACT)
    return format(value, "f"), Seen(Kind.DECIMAL, 0, min(whole, DIGITS_MAX + 1), min(scale, DIGITS_MAX + 1))


def _instant(value: datetime) -> tuple[Any, Seen]:
    if value.tzinfo is None:
        return datetime.isoformat(value), Seen(Kind.TIMESTAMP)
    try:
        return datetime.isoformat(value.astimezone(UTC)), Seen(Kind.TIMESTAMPTZ)
    except OverflowError:
        raise NotJsonError("an instant beyond the years 1 to 9999") from None


def _duration(value: timedelta) -> str:
    hours, rest = divmod(value.seconds, 3600)
    clock = f"{hours:02}:{rest // 60:02}:{rest % 60:02}.{value.microseconds:06}"
    return f"{value.days} days {clock}"


def _nested(value: Any) -> tuple[Any, Seen]:
    deep = not isinstance(value, Mapping) and any(isinstance(item, list | tuple) for item in value)
    return _within(value, 1), Seen(Kind.JSON, deep=deep)


def _within(value: Any, depth: int) -> Any:
    if depth > DEPTH_MAX:
        raise NotJsonError(f"a value of more than {DEPTH_MAX} levels")
    if not isinstance(value, Mapping):
        return [_inside(item, depth) for item in value]
    for key in value:
        if not isinstance(key, str):
            raise NotJsonError(f"an object with a key that is a {type(key).__name__}")
    return {key: _inside(item, depth) for key, item in value.items()}


def _inside(value: Any, depth: int) -> Any:
    if value is None:
        return None
    if isinstance(value, Mapping | list | tuple):
        return _within(value, depth + 1)
    return _SPELL.get(type(value), _derived)(value)[0]


def _always(kind: Kind, spelled: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, Seen]]:
    """Return the spelling of a type whose values are all of one kind."""
    seen = Seen(kind)
    return lambda value: (spelled(value), seen)


_bytes = _always(Kind.TEXT, lambda value: bytes(value).hex())
_SPELL: Mapping[type, Callable[[Any], tuple[Any, Seen]]] = {
    str: _always(Kind.TEXT, str.__str__),
    bool: _always(Kind.BOOLEAN, bool),
    int: _integer,
    float: _float,
    Decimal: _decimal,
    datetime: _instant,
    date: _always(Kind.DATE, date.isoformat),
    time: lambda value: (value.isoformat(), Seen(Kind.TIME if value.tzinfo is None else Kind.TEXT)),
    timedelta: _always(Kind.INTERVAL, _duration),
    UUID: _always(Kind.UUID, str),
    bytes: _bytes,
    bytearray: _bytes,
    memoryview: _bytes,
    msgspec.Raw: _always(Kind.JSON, lambda value: value),
    dict: _nested,
    list: _nested,
    tuple: _nested,
    Mapping: _nested,
}
"""The order matters: a boolean is an integer too, and an instant a date."""


def refuse_value(column: str, row: int, what: str) -> Rejected:
    """Return the error of a value without a JSON form."""
    return Rejected("row_value", f"row {row}, column {column}: {what} has no place in a report", column=column, row=row)
