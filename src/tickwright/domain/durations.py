"""Durations as people write them: ``"30s"``, ``"500ms"``, ``"1h30m"``.

A bare number is refused: nobody can tell whether ``5`` means seconds or minutes. One spelling for
requests, TOML, the command line and answers.
"""

import re
from datetime import timedelta
from typing import Annotated

from msgspec import Meta

from tickwright.domain.errors import Rejected

DURATION_MAX = timedelta(days=36_500)
TEXT_CHARS_MAX = 40
_UNITS_US = {"d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1_000, "us": 1}
_SHAPE = re.compile(r"(?:[0-9]{1,16}(?:\.[0-9]{1,6})?(?:d|h|ms|us|m|s))+")
_PART = re.compile(r"([0-9]+)(?:\.([0-9]+))?(d|h|ms|us|m|s)")

DurationText = Annotated[
    str,
    Meta(
        description="A number with its unit: d h m s ms",
        examples=["30s"],
        extra_json_schema={"pattern": "^[0-9].*(d|h|m|s)$"},
    ),
]
"""A duration in the body of a request; :func:`parse_duration` reads it."""


def parse_duration(text: str, *, field: str = "duration") -> timedelta:
    """Return the duration that ``text`` says.

    Args:
        text: Numbers with units, largest unit first: ``d h m s ms us``; ``"1h30m"``, ``"1.5s"``.
        field: What the error calls it.

    Returns:
        Zero or more, at most 36,500 days, in whole microseconds.

    Raises:
        Rejected: ``invalid_duration``. Permanent: do not retry.

    Invariants:
        DUR-1: ``parse_duration(format_duration(d)) == d`` for every duration that this returns.
    """
    parts = _PART.findall(text) if len(text) <= TEXT_CHARS_MAX and _SHAPE.fullmatch(text) else []
    units = [list(_UNITS_US).index(unit) for _, _, unit in parts]
    if not parts or units != sorted(set(units)):
        raise Rejected(
            "invalid_duration",
            f'{field}: write a number with its unit, such as "500ms", "30s", "2h" or "1d"; a bare number has none',
            field=field,
        )
    total_us = sum(_part_us(whole, fraction, _UNITS_US[unit]) for whole, fraction, unit in parts)
    if total_us > DURATION_MAX // timedelta(microseconds=1):
        raise Rejected("invalid_duration", f"{field}: at most {DURATION_MAX.days} days", field=field)
    return timedelta(microseconds=total_us)


def _part_us(whole: str, fraction: str, unit_us: int) -> int:
    scale: int = 10 ** len(fraction)
    return int(whole) * unit_us + int(fraction or "0") * unit_us // scale


def format_duration(duration: timedelta) -> str:
    """Return ``duration`` (zero or more) in the largest unit that says it as a whole number: ``"90s"``, ``"2h"``."""
    total_us = duration // timedelta(microseconds=1)
    for unit, unit_us in _UNITS_US.items():
        if total_us and total_us % unit_us == 0:
            return f"{total_us // unit_us}{unit}"
    return "0s"
