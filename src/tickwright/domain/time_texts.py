"""Durations (``"30s"``, ``"1h30m"``), rates (``"50/s"``) and instants (RFC 3339) as text, in one spelling everywhere.

A number without a unit is refused, and so is a time without an offset, which is not an instant.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from msgspec import Meta

from tickwright.domain.errors import Rejected

DURATION_MAX = timedelta(days=36_500)
TEXT_CHARS_MAX = 40
_UNITS_US = {"d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1_000, "us": 1}
_SHAPE = re.compile(r"(?:[0-9]{1,16}(?:\.[0-9]{1,6})?(?:d|h|ms|us|m|s))+")
_PART = re.compile(r"([0-9]+)(?:\.([0-9]+))?(d|h|ms|us|m|s)")

_DURATION_SCHEMA = {"pattern": "^[0-9].*(d|h|m|s)$"}
DurationText = Annotated[
    str,
    Meta(description="A number with its unit: d h m s ms", examples=["30s"], extra_json_schema=_DURATION_SCHEMA),
]
"""A duration in the body of a request; :func:`parse_duration` reads it."""


def parse_duration(text: str, *, field: str = "duration") -> timedelta:
    """Return the duration of ``text``: numbers with units, largest first, such as ``"1h30m"`` or ``"1.5s"``.

    Units are ``d h m s ms us``. The result is zero or more, at most 36,500 days, in whole microseconds.

    Raises:
        Rejected: ``invalid_duration``. Permanent.

    Invariants:
        DUR-1: ``parse_duration(format_duration(d)) == d`` for every returned duration.
    """
    parts = _PART.findall(text) if len(text) <= TEXT_CHARS_MAX and _SHAPE.fullmatch(text) else []
    units = [list(_UNITS_US).index(unit) for _, _, unit in parts]
    if not parts or units != sorted(set(units)):
        form = 'write a number with its unit, such as "500ms", "30s", "2h" or "1d"; a bare number has none'
        raise Rejected("invalid_duration", f"{field}: {form}", field=field)
    total_us: int = sum(
        int(whole) * _UNITS_US[unit] + int(fraction or "0") * _UNITS_US[unit] // 10 ** len(fraction)
        for whole, fraction, unit in parts
    )
    if total_us > DURATION_MAX // timedelta(microseconds=1):
        raise Rejected("invalid_duration", f"{field}: at most {DURATION_MAX.days} days", field=field)
    return timedelta(microseconds=total_us)


def format_duration(duration: timedelta) -> str:
    """Return ``duration`` (zero or more) as a whole number of the largest possible unit: ``"90s"``, ``"2h"``."""
    total_us = duration // timedelta(microseconds=1)
    for unit, unit_us in _UNITS_US.items():
        if total_us and total_us % unit_us == 0:
            return f"{total_us // unit_us}{unit}"
    return "0s"


RATE_PER_S_MAX = 100_000.0
RATE_PER_S_MIN = 0.0001
"""One in 10,000 seconds: at a lower rate, the distance between two instants may not fit into a timestamp."""
_RATE = re.compile(r"(?P<count>\d+(?:\.\d+)?)\s*/\s*(?P<unit>s|sec|second|m|min|minute|h|hour)")
_UNIT_S = {"s": 1, "m": 60, "h": 3600}


def parse_rate(value: Any) -> tuple[float, int]:
    """Return the rate of ``value`` as a count and the seconds in which it is allowed.

    Raises:
        Rejected: ``invalid_value``. Permanent.
    """
    match = _RATE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise Rejected("invalid_value", 'write a rate with its unit, such as "50/s", "10/min" or "3/h"')
    count, unit_s = float(match["count"]), _UNIT_S[match["unit"][0]]
    if not RATE_PER_S_MIN <= round(count / unit_s, 9) <= RATE_PER_S_MAX:
        raise Rejected("invalid_value", f"at least {RATE_PER_S_MIN}/s (0.36/h) and at most {RATE_PER_S_MAX:.0f}/s")
    return count, unit_s


YEAR_MAX = 9999
_RFC3339 = re.compile(
    r"(?P<year>\d{4,6})-\d\d-\d\d[Tt ]\d\d:\d\d:(?P<second>\d\d)(?:\.\d{1,9})?(?P<offset>[Zz]|[+-]\d\d:\d\d)?",
    re.ASCII,
)
InstantText = Annotated[
    str,
    Meta(
        description="RFC 3339 with its offset",
        examples=["2030-01-31T09:00:00Z"],
        extra_json_schema={"format": "date-time"},
    ),
]


def parse_instant(text: str, *, field: str) -> datetime:
    """Return the instant of ``text``, in UTC.

    Raises:
        Rejected: ``naive_datetime``, ``leap_second``, ``time_out_of_range`` or ``invalid_datetime``. Permanent.
    """

    def rejected(code: str, problem: str) -> Rejected:
        return Rejected(code, f"{field}: {problem}", field=field)

    found = _RFC3339.fullmatch(text) if len(text) <= TEXT_CHARS_MAX else None
    if found is None:
        raise rejected("invalid_datetime", "write RFC 3339, such as 2030-01-31T09:00:00Z")
    if found["offset"] is None:
        raise rejected("naive_datetime", "a time needs its offset, such as 2030-01-31T09:00:00Z")
    if found["second"] == "60":
        raise rejected("leap_second", "leap seconds cannot be scheduled; use the second after it")
    if len(found["year"]) > 4 or not 1970 <= int(found["year"]) < YEAR_MAX:
        raise rejected("time_out_of_range", f"between 1970 and {YEAR_MAX - 1}")
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise rejected("invalid_datetime", "there is no such day or time") from None


def instant_text(at: datetime) -> str:
    """Return an instant in UTC for a sentence, to the second."""
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")


def wait_text(wait: timedelta) -> str:
    """Return a duration for a sentence, rounded up: to the second, below one to the millisecond."""
    grain = timedelta(milliseconds=1) if wait < timedelta(seconds=1) else timedelta(seconds=1)
    total = wait // grain * grain + grain
    days, rest = divmod(total, timedelta(days=1))
    hours, rest = divmod(rest, timedelta(hours=1))
    minutes, rest = divmod(rest, timedelta(minutes=1))
    parts = [f"{days}d" if days else "", f"{hours}h" if hours else "", f"{minutes}m" if minutes else ""]
    return "".join(parts) + (format_duration(rest) if rest else "") or "0s"
