"""Quiet hours: when a partner is not called, by its local time, summer time included. Pure.

Written ``[DAYS ]HH:MM-HH:MM ZONE``: ``"22:00-06:00 Europe/Berlin"`` begins every evening and ends the next
morning; ``"sat,sun 00:00-24:00 Europe/Berlin"`` is the weekend. The days are those on which a window begins.

When clocks are set back, an hour repeats: a window that begins in it begins at the first occurrence, one that ends in
it ends at the second. A window that begins or ends in a skipped hour does so at the jump.
"""

import re
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from tickwright.domain.errors import Rejected

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_S = 86_400
JOINED_MAX = 64
_SHAPE = re.compile(
    r"(?:(?P<days>[a-z]{3}(?:,[a-z]{3})*) )?(\d\d):(\d\d)-(\d\d):(\d\d) (?P<zone>[A-Za-z0-9_+/-]{1,60})"
)


class QuietHours(msgspec.Struct, frozen=True, kw_only=True):
    """One window.

    Attributes:
        days: On which it begins; 0 is Monday.
        begins_min: Minutes of the local day, 0 to 1,439.
        ends_min: 1 to 1,440; a value up to ``begins_min`` is on the next day.
        zone: Name in the time zone database.
    """

    days: frozenset[int]
    begins_min: int
    ends_min: int
    zone: str

    @property
    def length_s(self) -> int:
        """Length on a day without a change of the clock."""
        return ((self.ends_min - self.begins_min) % 1440 or 1440) * 60


def parse_quiet(text: Any) -> QuietHours:
    """Return the window of ``text``.

    Raises:
        Rejected: ``invalid_value``. Permanent.
    """
    match = _SHAPE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise Rejected("invalid_value", 'write "[mon,tue ]HH:MM-HH:MM ZONE", such as "22:00-06:00 Europe/Berlin"')
    hours = [int(match[group]) for group in (2, 3, 4, 5)]
    begins, ends = hours[0] * 60 + hours[1], hours[2] * 60 + hours[3]
    days = match["days"].split(",") if match["days"] else list(DAYS)
    if not set(days) <= set(DAYS):
        raise Rejected("invalid_value", f"days are {', '.join(DAYS)}")
    if hours[1] > 59 or hours[3] > 59 or begins >= 1440 or not 0 < (ends or 1440) <= 1440 or begins == ends:
        raise Rejected("invalid_value", "from 00:00 to 24:00, and not empty")
    _zone(match["zone"])
    return QuietHours(
        days=frozenset(DAYS.index(day) for day in days), begins_min=begins, ends_min=ends or 1440, zone=match["zone"]
    )


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        raise Rejected("invalid_value", f"there is no time zone {name!r}; such as Europe/Berlin or UTC") from None


def quiet_until(now_s: float, windows: tuple[QuietHours, ...]) -> float | None:
    """Return when calls are allowed again, in seconds since 1970; ``None`` when they are allowed now.

    Windows that touch each other count as one; at most 64 are joined.
    """
    at_s = now_s
    for _ in range(JOINED_MAX):
        ends_s = max((_end(at_s, window) or at_s for window in windows), default=at_s)
        if ends_s <= at_s:
            break
        at_s = ends_s
    return at_s if at_s > now_s else None


def quiet_next(now_s: float, windows: tuple[QuietHours, ...]) -> tuple[float, float] | None:
    """Return when quiet hours begin next and when these end, in seconds since 1970; ``None`` without any.

    A window that touches the present ones belongs to them: pass their end as ``now_s``.
    """
    begins_s = min((at for window in windows for at in _begins(now_s, window) if at > now_s), default=None)
    if begins_s is None:
        return None
    return begins_s, quiet_until(begins_s, windows) or begins_s


def _begins(now_s: float, window: QuietHours) -> list[float]:
    zone = _zone(window.zone)
    today = datetime.fromtimestamp(now_s, zone).date()
    days = (today + timedelta(days=n) for n in range(9))
    return [_instant(day, window.begins_min, zone) for day in days if day.weekday() in window.days]


def _end(at_s: float, window: QuietHours) -> float | None:
    zone = _zone(window.zone)
    today = datetime.fromtimestamp(at_s, zone).date()
    for day in (today - timedelta(days=1), today):
        if day.weekday() not in window.days:
            continue
        begins_s = _instant(day, window.begins_min, zone)
        last = day if window.ends_min > window.begins_min else day + timedelta(days=1)
        ends_s = _instant(last, window.ends_min, zone, last=True)
        if begins_s <= at_s < ends_s:
            return ends_s
    return None


def _instant(day: date, minute: int, zone: ZoneInfo, *, last: bool = False) -> float:
    """Return the instant of a local time; if it occurs twice, the first or the last; if it is skipped, the jump."""
    day, minute = (day + timedelta(days=1), 0) if minute == 1440 else (day, minute)
    wall = datetime.combine(day, time(minute // 60, minute % 60))
    one, other = (wall.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1))
    if one <= other:  # they differ in the repeated hour
        return other if last else one
    before, jump = int(other), int(one)
    while jump - before > 1:
        middle = (before + jump) // 2
        is_before = datetime.fromtimestamp(middle, zone).replace(tzinfo=None) < wall
        before, jump = (middle, jump) if is_before else (before, middle)
    return float(jump)


def open_seconds_max(windows: tuple[QuietHours, ...]) -> int:
    """Return a bound of the seconds in any 24 hours in which calls are allowed.

    Only the longest window of every day counts; an hour is added for the change to summer time.
    """
    daily = [window.length_s for window in windows if len(window.days) == len(DAYS)]
    return DAY_S if not daily else min(DAY_S, max(1, DAY_S - max(daily) + 3600))
