"""When a batch occurs: once, every so many units of the calendar from its first run on, or by cron, in its time zone.

Everything counts from the first run's time on the wall of the zone, never from the occurrence before: nothing drifts.

- MINUTES, HOURS, DAYS and WEEKS are steps on the wall: 6 HOURS from 9:00 is 9:00, 15:00, 21:00, 3:00 on every day,
  those included on which the clocks change.
- MONTHS have the first run's day and time; where a month is too short, its last day, and the 31st again behind it.
- A cron expression means times on the wall; it begins at or after the first run, where there is one.

What becomes of a time that the clocks jump over, or that comes twice, is :mod:`tickwright.domain.wallclock`'s rule: one
for all of them. The first run itself is an instant, and is always the first occurrence of a series in units.
"""

from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Literal, Protocol, get_args

from tickwright.domain.cron import parse_cron
from tickwright.domain.errors import Rejected
from tickwright.domain.wallclock import (
    DAY_US,
    HORIZON_US,
    HOUR_US,
    MINUTE_US,
    Series,
    instant_at,
    instant_us,
    offset_at,
    zone_of,
)

UnitType = Literal["MINUTES", "HOURS", "DAYS", "WEEKS", "MONTHS"]
UNIT_MAX = 1_000_000
NEWEST_MAX = 100_000
YEAR_MIN, YEAR_MAX = 1970, 9998
_STEPS_US = {"MINUTES": MINUTE_US, "HOURS": HOUR_US, "DAYS": DAY_US, "WEEKS": 7 * DAY_US}
_NO_ANCHOR = -HORIZON_US


@dataclass(frozen=True, slots=True)
class Missed:
    """Occurrences between two instants.

    Attributes:
        count: All of them, exactly.
        oldest: The first of them.
        slots: The newest of them, as many as were asked for, in their order.
    """

    count: int
    oldest: datetime | None
    slots: tuple[datetime, ...]


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The occurrences of a batch. With neither unit nor cron only ``first_at``, once; without that one either, none.

    Attributes:
        first_at: The first run, aware; from 1970 to 9998.
        time_zone: A name of the time zone database, such as ``Europe/Kyiv``.
        unit: 1 to 1,000,000, with its ``unit_type``; needs ``first_at``.
        cron: Five fields or a name such as ``@daily``; not beside a unit.

    Raises:
        Rejected: ``invalid_time_zone``, ``invalid_cron``, ``invalid_recurrence``. Permanent.

    Invariants:
        REC-1: occurrences ascend strictly; the same terms have the same ones on every node.
        REC-2: ``between(a, b)`` and ``between(b, c)`` are ``between(a, c)``; ``next_after(a)`` is the oldest of any
            ``between(a, b)`` that has one.
        REC-3: a series in units never drifts: its times on the wall are the first one and multiples of the unit.
    """

    first_at: datetime | None
    time_zone: str
    unit: int | None = None
    unit_type: UnitType | None = None
    cron: str | None = None

    def __post_init__(self) -> None:
        zone_of(self.time_zone)
        _check_first(self.first_at)
        _check_unit(self)
        if self.cron is not None:
            parse_cron(self.cron)

    def next_after(self, after: datetime) -> datetime | None:
        """Return the first occurrence strictly after an aware instant; ``None`` when there is none before 9999."""
        if (series := self._series()) is None:
            return self.first_at.astimezone(UTC) if self.first_at is not None and self.first_at > after else None
        found = series.first_after(self._behind(after))
        return None if found is None else instant_at(found)

    def between(self, after: datetime, until: datetime, newest: int) -> Missed:
        """Return what occurs behind an instant and at or before another one, however many years that is.

        Series in units are counted by arithmetic; a cron looks at each day, about a microsecond each.

        Args:
            after: Aware. What occurs then is not among it.
            until: Aware. What occurs then is.
            newest: How many of the newest to give, 0 to 100,000.
        """
        if not 0 <= newest <= NEWEST_MAX:
            raise Rejected("invalid_recurrence", f"newest: 0 to {NEWEST_MAX:,}")
        oldest = self.next_after(after)
        if oldest is None or oldest > until:
            return Missed(0, None, ())
        if (series := self._series()) is None:
            return Missed(1, oldest, (oldest,)[:newest])
        span = self._behind(after), min(instant_us(until), HORIZON_US - 1)
        return Missed(series.count(*span), oldest, tuple(map(instant_at, series.newest(*span, newest))))

    def _behind(self, after: datetime) -> int:
        return max(instant_us(after), -1 if self.first_at is None else instant_us(self.first_at) - 1)

    def _series(self) -> Series | None:
        if self.cron is not None:
            return Series(parse_cron(self.cron), self.time_zone, _NO_ANCHOR)
        if self.first_at is None or self.unit is None or self.unit_type is None:
            return None
        anchor = instant_us(self.first_at)
        begins = anchor + offset_at(self.time_zone, anchor)
        if self.unit_type == "MONTHS":
            return Series(_Months(begins, self.unit), self.time_zone, anchor)
        return Series(_Steps(begins, self.unit * _STEPS_US[self.unit_type]), self.time_zone, anchor)


def _check_first(first_at: datetime | None) -> None:
    if first_at is None:
        return
    if first_at.utcoffset() is None:
        raise Rejected("invalid_recurrence", "the first run needs its offset, such as 2030-01-31T09:00:00Z")
    if not 0 <= instant_us(first_at) < HORIZON_US:
        raise Rejected("invalid_recurrence", f"the first run: from {YEAR_MIN} to {YEAR_MAX}")


def _check_unit(terms: Recurrence) -> None:
    if terms.unit is None and terms.unit_type is None:
        return
    if terms.unit is None or terms.unit_type is None:
        raise Rejected("invalid_recurrence", "a unit and its type belong together, such as 6 HOURS")
    if terms.cron is not None:
        raise Rejected("invalid_recurrence", "either a unit or a cron expression, not both")
    if terms.first_at is None:
        raise Rejected("invalid_recurrence", "units count from the first run: say when that is")
    if terms.unit_type not in get_args(UnitType):
        raise Rejected("invalid_recurrence", f"unit type: {', '.join(get_args(UnitType))}")
    if type(terms.unit) is not int or not 1 <= terms.unit <= UNIT_MAX:
        raise Rejected("invalid_recurrence", f"unit: 1 to {UNIT_MAX:,}")


class _Numbered(Protocol):
    """Walls that have numbers: 0 is the first run's."""

    def number(self, wall: int) -> int:
        """Return the lowest number whose wall is at or after ``wall``."""
        ...

    def at(self, number: int) -> int | None:
        """Return that wall; ``None`` where it has no date."""
        ...

    def first(self, wall: int) -> int | None:
        """Return the first time at or after ``wall``."""
        return self.at(self.number(wall))

    def last(self, wall: int) -> int | None:
        """Return the last time before ``wall``."""
        return self.at(self.number(wall) - 1)

    def count(self, start: int, end: int) -> int:
        """Return how many there are from ``start`` on and before ``end``."""
        return max(0, self.number(end) - self.number(start))


@dataclass(frozen=True, slots=True)
class _Steps(_Numbered):
    begins: int
    unit_us: int

    def number(self, wall: int) -> int:
        return -((self.begins - wall) // self.unit_us)

    def at(self, number: int) -> int | None:
        return self.begins + number * self.unit_us


class _Months(_Numbered):
    unit_us = 28 * DAY_US

    def __init__(self, begins: int, months: int) -> None:
        day, self._time = divmod(begins, DAY_US)
        self._date = _date(day)
        self._month = self._date.year * 12 + self._date.month - 1
        self._months = months

    def number(self, wall: int) -> int:
        on = _date(wall // DAY_US)
        number = (on.year * 12 + on.month - 1 - self._month) // self._months
        at = self.at(number)
        return number + 1 if at is None or at < wall else number

    def at(self, number: int) -> int | None:
        year, month = divmod(self._month + number * self._months, 12)
        if not date.min.year <= year <= date.max.year:
            return None
        day = min(self._date.day, monthrange(year, month + 1)[1])
        return (date(year, month + 1, day).toordinal() - _DAY_ZERO) * DAY_US + self._time


_DAY_ZERO = date(YEAR_MIN, 1, 1).toordinal()


def _date(day: int) -> date:
    return date.fromordinal(_DAY_ZERO + day)
