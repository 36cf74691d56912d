"""Values of a query as what Python itself has, whatever a program makes of them.

A member of an enum, a text or a number of a class of the program's own is pickled by the name of its class, so that
whoever reads it imports the program. What is sent to another process is made plain first.
"""

from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

PLAIN: Final[tuple[type, ...]] = (datetime, date, time, timedelta, timezone, Decimal, UUID)
"""What a plain value is made of, besides what needs no import."""


def plain(value: Any) -> Any:
    """Return ``value`` with nothing in it that is of a class of somebody's own.

    Raises:
        TypeError: It is none of a query's values.
        ValueError, RecursionError: It cannot be made, or is endless.
    """
    if value is None or value.__class__ in _AS_IT_IS:
        return value
    for kind, made in _MADE.items():
        if isinstance(value, kind):
            return made(value)
    raise TypeError(f"a {type(value).__name__} cannot be given to a query")


def _datetime(value: datetime) -> datetime:
    """With a fixed offset, so that no class of a time zone is needed: it is the same instant."""
    when = (value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond)
    return datetime(*when, tzinfo=_zone(value.utcoffset()))


def _time(value: time) -> time:
    return time(value.hour, value.minute, value.second, value.microsecond, tzinfo=_zone(value.utcoffset()))


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
    time: _time,
    timedelta: lambda value: timedelta(value.days, value.seconds, value.microseconds),
    list: lambda value: [*map(plain, value)],
    tuple: lambda value: [*map(plain, value)],
    Mapping: lambda value: {plain(name): plain(one) for name, one in value.items()},
    Enum: lambda value: plain(value.value),
}
"""Earlier kinds first: a member of a ``StrEnum`` is a text, a ``datetime`` a date with a time."""
