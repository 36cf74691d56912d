"""When a schedule occurs in its time zone: once, every so many units of time from its first run on, or by cron.

Occurrences count from the first run's wall-clock time, never from the previous occurrence, so nothing drifts.

- MINUTES, HOURS, DAYS and WEEKS are steps in wall-clock time: 6 HOURS from 9:00 is 9:00, 15:00, 21:00, 3:00 on every
  day, including those with a clock change.
- MONTHS have the first run's day and time; in a shorter month its last day, and the 31st again after it.
- A duration, such as 90 seconds, is also a step in wall-clock time; without a first run it counts from a Monday.
- A cron expression defines wall-clock times; it begins at or after the first run, if there is one.

:mod:`~tickwright.domain.calendars.wallclock` has the rule for times that the clocks skip or repeat. The first run
itself is an instant, and is always the first occurrence of a series in units.
"""

from bisect import bisect_left
from calendar import monthrange
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any, Literal, Protocol, get_args

from cronsim import CronSim, CronSimError

from tickwright.domain.calendars.wallclock import (
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
from tickwright.domain.errors import Rejected

# Cron. ``cronsim`` parses the fields and decides which days they match (``L``, ``1#2``, and the rule for a day of the
# month beside a day of the week); :mod:`~tickwright.domain.calendars.wallclock` decides which instants these are.

CRON_CHARS_MAX = 256
CRONS_KEPT = 10_000
"""Parsed expressions in memory, about 2 KiB each."""
SEARCHED_YEARS = 50
"""29 February on a given weekday recurs within 40 years: an expression that does not fire in 50 never does."""
ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
FIELDS = ("minute", "hour", "day-of-month", "month", "day-of-week")
_DAY_ZERO = date(1970, 1, 1).toordinal()
_DAY_MIN, _DAY_MAX = 1 - _DAY_ZERO, date.max.toordinal() - _DAY_ZERO


class Cron:
    """The wall-clock times of an expression.

    Attributes:
        unit_us: For the repeated hour. If the expression matches every hour, the shortest time between two of its
            minutes, so that the schedule continues; otherwise a day, so that each time occurs once.
    """

    def __init__(self, sim: CronSim) -> None:
        self._sim = sim
        minutes = sorted(sim.minutes)
        self._times = [hour * HOUR_US + minute * MINUTE_US for hour in sorted(sim.hours) for minute in minutes]
        steps = [later - minute for minute, later in zip(minutes, [*minutes[1:], minutes[0] + 60], strict=True)]
        self.unit_us = min(steps) * MINUTE_US if len(sim.hours) == 24 else DAY_US

    def first(self, wall: int) -> int | None:
        """Return the first time at or after ``wall``."""
        day, time = divmod(wall, DAY_US)
        if time <= self._times[-1] and self._fires(day):
            return day * DAY_US + self._times[bisect_left(self._times, time)]
        found = next(self._days(day + 1, 1), None)
        return None if found is None else found * DAY_US + self._times[0]

    def last(self, wall: int) -> int | None:
        """Return the last time before ``wall``."""
        day, time = divmod(wall, DAY_US)
        if time > self._times[0] and self._fires(day):
            return day * DAY_US + self._times[bisect_left(self._times, time) - 1]
        found = next(self._days(day - 1, -1), None)
        return None if found is None else found * DAY_US + self._times[-1]

    def count(self, start: int, end: int) -> int:
        """Return how many times there are from ``start`` to before ``end``."""
        if end <= start:
            return 0
        (day, time), (last_day, last_time) = divmod(start, DAY_US), divmod(end, DAY_US)
        whole = sum(map(self._fires, range(day, last_day))) * len(self._times)
        begun = self._fires(day) * bisect_left(self._times, time)
        return whole - begun + self._fires(last_day) * bisect_left(self._times, last_time)

    def _fires(self, day: int) -> bool:
        if not _DAY_MIN <= day <= _DAY_MAX:
            return False
        on = date.fromordinal(_DAY_ZERO + day)
        return on.month in self._sim.months and self._sim.match_day(on)

    def _days(self, day: int, step: int) -> Iterator[int]:
        return filter(self._fires, range(day, day + step * SEARCHED_YEARS * 366, step))


@lru_cache(maxsize=CRONS_KEPT)
def parse_cron(text: str) -> Cron:
    """Return the times of a cron expression.

    Args:
        text: ``minute hour day-of-month month day-of-week`` or a name of :data:`ALIASES`; at most 256 characters.

    Raises:
        Rejected: ``invalid_cron``, with the ``place`` of an invalid field, from 1 on; also for an expression that never
            fires, such as 31 February. Permanent.
    """
    fields = ALIASES.get(text.strip().lower(), text).split() if len(text) <= CRON_CHARS_MAX else []
    if len(fields) != len(FIELDS):
        names = ", ".join(ALIASES)
        raise _refused(f"write five fields, such as 0 9 * * 1-5 ({' '.join(FIELDS)}), or one of {names}")
    for place, (field, name) in enumerate(zip(fields, FIELDS, strict=True), start=1):
        if _read(" ".join(["*"] * (place - 1) + [field] + ["*"] * (len(FIELDS) - place))) is None:
            raise _refused(f"field {place}, {name}: {field[:40]!r} is none", place=place, name=name)
    sim = _read(" ".join(fields))
    cron = None if sim is None else Cron(sim)
    if cron is None or cron.first(0) is None:
        raise _refused(f"{text[:60]!r} never fires: there is no such day")
    return cron


def describe_cron(text: str) -> str:
    """Return the times of an expression in words, such as ``At 03:00 every day``; errors as :func:`parse_cron`."""
    parse_cron(text)
    sim = _read(ALIASES.get(text.strip().lower(), text))
    return text if sim is None else sim.explain()


def _read(text: str) -> CronSim | None:
    try:
        return CronSim(text, datetime(1970, 1, 1))  # noqa: DTZ001 - only days and times are read from it
    except CronSimError:
        return None


def _refused(message: str, **details: Any) -> Rejected:
    return Rejected("invalid_cron", f"cron: {message}", field="cron", **details)


UnitType = Literal["MINUTES", "HOURS", "DAYS", "WEEKS", "MONTHS"]
UNIT_MAX = 1_000_000
NEWEST_MAX = 100_000
YEAR_MIN, YEAR_MAX = 1970, 9998
_STEPS_US = {"MINUTES": MINUTE_US, "HOURS": HOUR_US, "DAYS": DAY_US, "WEEKS": 7 * DAY_US}
_NO_ANCHOR = -HORIZON_US
EVERY_MIN, EVERY_MAX = timedelta(seconds=1), timedelta(days=366)
MONDAY_US = 4 * DAY_US
"""Wall-clock time from which a duration counts where there is no first run: midnight of Monday, 5 January 1970."""


@dataclass(frozen=True, slots=True)
class Missed:
    """Occurrences between two instants: how many, the first, and the requested number of the newest, in order."""

    count: int
    oldest: datetime | None
    slots: tuple[datetime, ...]


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The occurrences of a schedule. Without unit, duration and cron only ``first_at``, once; without that, too, none.

    Attributes:
        first_at: The first run, aware; from 1970 to 9998.
        time_zone: A name of the time zone database, such as ``Europe/Kyiv``.
        unit: 1 to 1,000,000, with its ``unit_type``; needs ``first_at``.
        cron: Five fields or a name such as ``@daily``; not together with a unit or a duration.
        every: Whole seconds, 1 s to 366 days; not together with a unit or cron.

    Raises:
        Rejected: ``invalid_time_zone``, ``invalid_cron``, ``invalid_recurrence``. Permanent.

    Invariants:
        REC-1: occurrences ascend strictly; equal recurrences have equal occurrences on every node.
        REC-2: ``between(a, b)`` and ``between(b, c)`` are ``between(a, c)``; ``next_after(a)`` is the oldest of any
            ``between(a, b)`` that has one.
        REC-3: a series in units never drifts: its wall-clock times are the first one plus multiples of the unit.
    """

    first_at: datetime | None
    time_zone: str
    unit: int | None = None
    unit_type: UnitType | None = None
    cron: str | None = None
    every: timedelta | None = None

    def __post_init__(self) -> None:
        zone_of(self.time_zone)
        _check(self)
        if self.cron is not None:
            parse_cron(self.cron)

    def next_after(self, after: datetime) -> datetime | None:
        """Return the first occurrence strictly after an aware instant; ``None`` when there is none before 9999."""
        if (series := self._series()) is None:
            return self.first_at.astimezone(UTC) if self.first_at is not None and self.first_at > after else None
        found = series.first_after(self._behind(after))
        return None if found is None else instant_at(found)

    def between(self, after: datetime, until: datetime, newest: int) -> Missed:
        """Return the occurrences after ``after`` and at or before ``until``, both aware, however many years apart.

        Of the newest, 0 to 100,000 are returned. Series in units are counted by arithmetic; a cron tests each day,
        about a microsecond each.
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
        if self.every is not None:
            return self._steps(self.every // timedelta(microseconds=1))
        if self.first_at is None or self.unit is None or self.unit_type is None:
            return None
        anchor = instant_us(self.first_at)
        begins = anchor + offset_at(self.time_zone, anchor)
        if self.unit_type == "MONTHS":
            return Series(_Months(begins, self.unit), self.time_zone, anchor)
        return Series(_Steps(begins, self.unit * _STEPS_US[self.unit_type]), self.time_zone, anchor)

    def _steps(self, step_us: int) -> Series:
        if self.first_at is None:
            return Series(_Steps(MONDAY_US, step_us), self.time_zone, _NO_ANCHOR)
        anchor = instant_us(self.first_at)
        return Series(_Steps(anchor + offset_at(self.time_zone, anchor), step_us), self.time_zone, anchor)


def _check(terms: Recurrence) -> None:
    first_at, unit, unit_type, problem = terms.first_at, terms.unit, terms.unit_type, ""
    if first_at is not None and first_at.utcoffset() is None:
        problem = "the first run needs its offset, such as 2030-01-31T09:00:00Z"
    elif first_at is not None and not 0 <= instant_us(first_at) < HORIZON_US:
        problem = f"the first run: from {YEAR_MIN} to {YEAR_MAX}"
    elif unit is None and unit_type is None:
        problem = "" if terms.every is None else _problem_of_every(terms, terms.every)
    elif unit is None or unit_type is None:
        problem = "a unit and its type belong together, such as 6 HOURS"
    elif terms.cron is not None or terms.every is not None:
        problem = "either a unit, a duration or a cron expression, one of them"
    elif first_at is None:
        problem = "units count from the first run: say when that is"
    elif unit_type not in get_args(UnitType):
        problem = f"unit type: {', '.join(get_args(UnitType))}"
    elif type(unit) is not int or not 1 <= unit <= UNIT_MAX:
        problem = f"unit: 1 to {UNIT_MAX:,}"
    if problem:
        raise Rejected("invalid_recurrence", problem)


def _problem_of_every(terms: Recurrence, every: timedelta) -> str:
    if terms.cron is not None:
        return "either a duration or a cron expression, not both"
    if not EVERY_MIN <= every <= EVERY_MAX or every % EVERY_MIN:
        return "every: whole seconds, from 1s to 366d"
    return ""


class _Numbered(Protocol):
    """Walls with numbers: 0 is the first run's."""

    def number(self, wall: int) -> int:
        """Return the lowest number whose wall is at or after ``wall``."""

    def at(self, number: int) -> int | None:
        """Return the wall of a number; ``None`` if it has no date."""

    def first(self, wall: int) -> int | None:
        return self.at(self.number(wall))

    def last(self, wall: int) -> int | None:
        return self.at(self.number(wall) - 1)

    def count(self, start: int, end: int) -> int:
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


def _date(day: int) -> date:
    return date.fromordinal(_DAY_ZERO + day)
