"""Durations as people write them: a number with its unit, ``30s``, ``1.5h``, ``1m30s``.

A bare number is refused, because ``5`` means seconds to one reader and minutes to the next.
"""

import re
from datetime import timedelta

from tickwright.domain.errors import Rejected

DURATION_MAX = timedelta(days=3660)
_UNITS_US = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_PART = re.compile(r"(?P<number>[0-9]{1,12}(?:\.[0-9]{1,9})?)(?P<unit>us|ms|s|m|h|d)")
_WHOLE = re.compile(rf"(?:{_PART.pattern.replace('?P<number>', '?:').replace('?P<unit>', '?:')})+")


def parse_duration(text: str) -> timedelta:
    """Return the duration that ``text`` names.

    Args:
        text: Numbers, each with one of ``us ms s m h d``; no sign, no spaces. At most ten years.

    Raises:
        Rejected: ``invalid_duration``; the message says how to write it. Permanent: do not retry.
    """
    if not _WHOLE.fullmatch(text):
        hint = f'; write "{text}s" for seconds' if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) else ""
        raise Rejected("invalid_duration", f'a duration has a unit, such as "30s", "5m", "1h30m" or "250ms"{hint}')
    total_us = sum(float(part["number"]) * _UNITS_US[part["unit"]] for part in _PART.finditer(text))
    if total_us > DURATION_MAX / timedelta(microseconds=1):
        raise Rejected("invalid_duration", "a duration is at most 3660 days")
    return timedelta(microseconds=round(total_us))


def show_duration(duration: timedelta) -> str:
    """Return ``duration`` as :func:`parse_duration` reads it, with the largest units first: ``1h30m``.

    Invariants:
        DUR-1: ``parse_duration(show_duration(d)) == d`` for every ``0 <= d <= DURATION_MAX``.
    """
    left_us = duration // timedelta(microseconds=1)
    parts = []
    for unit, size_us in sorted(_UNITS_US.items(), key=lambda item: -item[1]):
        count, left_us = divmod(left_us, size_us)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
