"""Members as values: what an expression is asked about, and what an action is told, as one JSON text per client.

PostgreSQL and DuckDB have made every field one of its declared type already; SQLite has types per value, so its values
are read here, by the same rules. JSON has no word for a number that is none or has no end: they are null there.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec

from tickwright.ports.batches import FieldType
from tickwright.ports.reports import NOT_UTF8, Column

CLIENT_BYTES_MAX = 65_536
KEY_BYTES_MAX = 1_000
WRITTEN_BYTES_MAX = 2 * 1024 * 1024 - 65_536
"""Of JSON as PostgreSQL writes it out; the outbox takes 2 MiB, with what else a message says."""
NUMBER_CHARS_MORE_MAX = 330
"""Which every number of double precision keeps to."""
_EXPONENT_CHARS_MAX, _FAR = 7, 10**7
_INT64 = 2**63
_WHOLE = re.compile(r"\s*[+-]?[0-9]{1,19}\s*", re.ASCII)
_NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?\s*", re.ASCII)
_NUMBER_CHARS_MAX = 400
_NAN = {"nan", "inf", "+inf", "-inf", "infinity", "+infinity", "-infinity"}
_TRUE, _FALSE = {"true", "t", "yes", "y", "on", "1"}, {"false", "f", "no", "n", "off", "0"}
_INSTANT = re.compile(
    r"(?P<year>[0-9]{4})-[0-9]{2}-[0-9]{2}"
    r"([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?(Z|z|[+-](0[0-9]|1[0-5])(:?[0-5][0-9])?)?)?",
    re.ASCII,
)
_ESCAPED_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
Shape = Callable[[Any], Any]


class Unreadable(ValueError):  # it is what is wrong with a value, and never leaves this package
    """A member cannot be told about; says why."""


def shapes_of(columns: Sequence[Column]) -> list[tuple[int, Shape]]:
    """Return what the values of some columns become before they are JSON, by their places."""
    return [(at, _SHAPES[kind]) for at, column in enumerate(columns) if (kind := _family(column)) in _SHAPES]


def client_text(names: Sequence[str], values: Sequence[Any]) -> str:
    """Return a client as the JSON object that an action carries.

    Raises:
        Unreadable: PostgreSQL could not keep it, or the outbox not carry it: too large, a NUL character, a text or
            document that is none.
    """
    try:
        made = msgspec.json.encode(dict(zip(names, values, strict=True)))
    except (ValueError, TypeError, OverflowError) as error:
        raise Unreadable(f"it is no JSON: {error}") from None
    if len(made) > CLIENT_BYTES_MAX:
        raise Unreadable(f"its fields and columns are larger than {CLIENT_BYTES_MAX} bytes")
    if b"\\u" in made or any(map(_is_document, values)):
        check_json(made)
    return made.decode()


def _is_document(value: Any) -> bool:
    return value.__class__ is msgspec.Raw


def check_json(made: bytes) -> None:
    """Refuse JSON that PostgreSQL does not keep, or writes out as much more than it is.

    PostgreSQL keeps ``1e1000`` as a number of a thousand digits. What this lets pass has at most
    ``WRITTEN_BYTES_MAX``, and 32 times of what it takes as ``jsonb``: the bounds of the outbox and of jobs.

    Raises:
        Unreadable: It is no JSON, has a NUL character, or such numbers.
    """
    longer = 0

    def measure(number: str) -> None:
        nonlocal longer
        more = _written_chars(number) - len(number)
        if more > NUMBER_CHARS_MORE_MAX:
            raise Unreadable(f"the number {number[:40]} is much longer as PostgreSQL writes it out; make it a text")
        longer += max(more, 0)

    try:
        msgspec.json.Decoder(float_hook=measure).decode(made)
    except Unreadable:
        raise
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"it is no JSON: {error}") from None
    blanks = made.count(b",") + made.count(b":")  # PostgreSQL puts one behind each that is not in a text
    if len(made) + blanks + longer > WRITTEN_BYTES_MAX:
        raise Unreadable(f"as PostgreSQL writes it out it is larger than {WRITTEN_BYTES_MAX} bytes")
    if b"\\u0000" in made and _ESCAPED_NUL.search(made):
        raise Unreadable("it has a NUL character")


def _written_chars(number: str) -> int:
    """Return how many characters PostgreSQL takes for a number: all its digits, and no exponent."""
    digits, _, exponent = number.lower().partition("e")
    whole, _, fraction = digits.lstrip("-").partition(".")
    moved = int(exponent or 0) if len(exponent) <= _EXPONENT_CHARS_MAX else _FAR
    return max(len(whole) + moved, 1) + max(len(fraction) - moved, 0) + 2


def check_key(key: Any) -> None:
    """Refuse a key that no action can carry.

    Raises:
        Unreadable: It is empty, too long or has a NUL character.
    """
    if key is NOT_UTF8:
        raise Unreadable("a key is UTF-8")
    if not key or "\0" in key or len(key.encode("utf-8", "surrogatepass")) > KEY_BYTES_MAX:
        raise Unreadable(f"a key has 1 to {KEY_BYTES_MAX} bytes, and no NUL character")


def instant(text: Any) -> Any:
    """Return the instant that a source's text of a timestamp with its zone means."""
    return datetime.fromisoformat(text) if isinstance(text, str) else text


def _family(column: Column) -> str:
    return column.type.partition("(")[0] if not column.type.endswith("]") else ""


def _zoned(text: Any) -> Any:
    return f"{text.replace(' ', 'T', 1)}:00" if isinstance(text, str) and text.endswith("+00") else text


def _local(text: Any) -> Any:
    return text.replace(" ", "T", 1) if isinstance(text, str) else text


def _decimal(text: Any) -> Any:
    if not isinstance(text, str):
        return text
    return msgspec.Raw(text.encode()) if text[-1].isdigit() else None


_SHAPES: Mapping[str, Shape] = {"TIMESTAMPTZ": _zoned, "TIMESTAMP": _local, "DECIMAL": _decimal}


def read_stored(kind: FieldType, value: Any) -> Any:
    """Return a value of SQLite as one of the field's type, timestamps as texts in UTC.

    Raises:
        Unreadable: It is none.
    """
    if value is None:
        return None
    if value is NOT_UTF8:
        raise Unreadable("its text is not UTF-8")
    with suppress(ValueError, OverflowError):
        read = _READERS[kind](value)
        if read is not None:
            return read
    raise Unreadable("")


def stored(value: Any) -> Any:
    """Return a value of SQLite that is only told about.

    Raises:
        Unreadable: It is none.
    """
    if value is NOT_UTF8:
        raise Unreadable("its text is not UTF-8")
    return value.hex() if isinstance(value, bytes) else value


def _int(value: Any) -> int | None:
    if isinstance(value, str) and not _WHOLE.fullmatch(value):
        return None
    if isinstance(value, bytes) or (isinstance(value, float) and not value.is_integer()):
        return None
    read = int(value)
    return read if -_INT64 <= read < _INT64 else None


def _double(value: Any) -> float | None:
    if isinstance(value, bytes):
        return None
    if isinstance(value, str):
        words = value.strip().lower()
        if words in _NAN:
            return float(words)
        if len(value) > _NUMBER_CHARS_MAX or not _NUMBER.fullmatch(value) or float(value) in {_ENDLESS, -_ENDLESS}:
            return None
    return float(value)


_ENDLESS = float("inf")


def _string(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _bool(value: Any) -> bool | None:
    word = value.strip().lower() if isinstance(value, str) else str(value)
    return True if word in _TRUE else False if word in _FALSE else None


def _timestamp(value: Any) -> str | None:
    found = _INSTANT.fullmatch(value) if isinstance(value, str) else None
    if found is None or not 2 <= int(found["year"]) <= 9998:  # a zone may lead out of the years 1 to 9999
        return None
    read = datetime.fromisoformat(value)
    return (read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)).isoformat()


_READERS: Mapping[FieldType, Shape] = {
    "int": _int,
    "double": _double,
    "string": _string,
    "bool": _bool,
    "timestamp": _timestamp,
}
