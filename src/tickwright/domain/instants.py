"""Instants as people write and read them: RFC 3339 with an offset in, UTC to the second out."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

from msgspec import Meta

from tickwright.domain.durations import format_duration
from tickwright.domain.errors import Rejected

YEAR_MAX = 9999
_RFC3339 = re.compile(
    r"(?P<year>\d{4,6})-\d\d-\d\d[Tt ]\d\d:\d\d:(?P<second>\d\d)(?:\.\d{1,9})?(?P<offset>[Zz]|[+-]\d\d:\d\d)?",
    re.ASCII,
)
_SHOWN = 40

InstantText = Annotated[
    str,
    Meta(
        description="RFC 3339 with its offset",
        examples=["2030-01-31T09:00:00Z"],
        extra_json_schema={"format": "date-time"},
    ),
]


def parse_instant(text: str, *, field: str) -> datetime:
    """Return the instant that ``text`` says, in UTC.

    Raises:
        Rejected: ``naive_datetime``, ``leap_second``, ``time_out_of_range`` or ``invalid_datetime``. Permanent.
    """
    found = _RFC3339.fullmatch(text) if len(text) <= _SHOWN else None
    if found is None:
        raise Rejected("invalid_datetime", f"{field}: write RFC 3339, such as 2030-01-31T09:00:00Z", field=field)
    if found["offset"] is None:
        raise Rejected("naive_datetime", f"{field}: a time needs its offset, such as 2030-01-31T09:00:00Z", field=field)
    if found["second"] == "60":
        raise Rejected(
            "leap_second", f"{field}: leap seconds cannot be scheduled; use the second after it", field=field
        )
    if len(found["year"]) > 4 or not 1970 <= int(found["year"]) < YEAR_MAX:
        raise Rejected("time_out_of_range", f"{field}: between 1970 and {YEAR_MAX - 1}", field=field)
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise Rejected("invalid_datetime", f"{field}: there is no such day or time", field=field) from None


def instant_text(at: datetime) -> str:
    """Return an instant in UTC for a sentence, to the second."""
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")


def wait_text(wait: timedelta) -> str:
    """Return how long something takes for a sentence, rounded up: to the second, below one to the millisecond."""
    grain = timedelta(milliseconds=1) if wait < timedelta(seconds=1) else timedelta(seconds=1)
    total = wait // grain * grain + grain
    days, rest = divmod(total, timedelta(days=1))
    hours, rest = divmod(rest, timedelta(hours=1))
    minutes, rest = divmod(rest, timedelta(minutes=1))
    parts = [f"{days}d" if days else "", f"{hours}h" if hours else "", f"{minutes}m" if minutes else ""]
    return "".join(parts) + (format_duration(rest) if rest else "") or "0s"
