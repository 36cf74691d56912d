"""``Retry-After``: how long the other side of an HTTP call asks us to wait. Trusted in nothing but its meaning."""

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

_HEADER_CHARS_MAX = 64


def parse_retry_after(value: str | None, *, now_unix_s: int, most: timedelta) -> timedelta | None:
    """Return how long to wait, 0 to ``most``; ``None`` for nothing or garbage.

    Args:
        value: The header as it came: seconds, or a date.
        now_unix_s: What a date is compared with: :func:`answered_at`.
        most: Longer waits are cut to it.
    """
    if value is None or len(value) > _HEADER_CHARS_MAX:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return most if int(text) >= most.total_seconds() else timedelta(seconds=int(text))
    at = _date(text)
    return None if at is None else min(max(timedelta(0), timedelta(seconds=at.timestamp() - now_unix_s)), most)


def answered_at(date: str | None, *, now_unix_s: int) -> int:
    """Return when an answer was given, by the clock of whoever gave it; by ours where the header ``Date`` says nothing.

    A date to wait until is written by that clock, and ours may be wrong by hours.
    """
    at = None if date is None or len(date) > _HEADER_CHARS_MAX else _date(date.strip())
    return now_unix_s if at is None else int(at.timestamp())


def _date(text: str) -> datetime | None:
    try:
        at = parsedate_to_datetime(text)
        at = at.replace(tzinfo=at.tzinfo or UTC)
        at.timestamp()
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    return at
