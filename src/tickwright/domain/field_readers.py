"""Fields that are read one by one from JSON, TOML or keyword arguments, so that every mistake is reported at once.

A reader converts one value, or raises ``Rejected`` with the remedy. Each kind of document has its own fields.
"""

import difflib
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from tickwright.domain.errors import Rejected
from tickwright.domain.time_texts import parse_duration

Reader = Callable[[Any], Any]


def read_fields(
    table: Mapping[str, Any], readers: Mapping[str, Reader], problems: list[str], *, where: str
) -> dict[str, Any]:
    """Return the values of ``table``, converted by ``readers``; unknown keys and invalid values become problems."""
    values = {}
    for key, value in table.items():
        read = readers.get(key)
        if read is None:
            near = difflib.get_close_matches(str(key), readers, n=1)
            hint = f"did you mean {near[0]}?" if near else f"allowed: {', '.join(readers)}"
            problems.append(f"{where}.{key}: unknown key; {hint}")
            continue
        try:
            values[key] = read(value)
        except Rejected as error:
            problems.append(f"{where}.{key}: {error.message.removeprefix('duration: ')}")
    return values


def bad(remedy: str) -> Rejected:
    """Return an error with the remedy as its message."""
    return Rejected("invalid_value", remedy)


def whole(low: int, high: int) -> Reader:
    """Return a reader of integers within bounds."""

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise bad(f"a whole number from {low} to {high}")
        return value

    return read


def lasting(low: timedelta, high: timedelta) -> Reader:
    """Return a reader of durations within bounds: ``"30s"``, or a ``timedelta``."""

    def read(value: Any) -> timedelta:
        if not isinstance(value, str | timedelta):
            raise bad('write a duration with its unit, such as "30s"')
        duration = parse_duration(value) if isinstance(value, str) else value
        if not low <= duration <= high:
            raise bad(f"between {low} and {high}")
        return duration

    return read


def one_of(*allowed: str) -> Reader:
    """Return a reader of one of a few texts."""

    def read(value: Any) -> str:
        if value not in allowed:
            raise bad(f"one of {', '.join(allowed)}")
        return str(value)

    return read


def flag(value: Any) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise bad("true or false")
    return value
