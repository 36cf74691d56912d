"""Cron expressions as a set of days and a set of times of day: five fields, as Debian's cron reads them, or a name.

``cronsim`` reads the fields and says which days they mean (``L``, ``1#2``, and the rule about a day of the month beside
a day of the week); when that is in a zone is the calendar rule's (:mod:`tickwright.domain.wallclock`), not cron's own.
"""

from bisect import bisect_left
from collections.abc import Iterator
from datetime import date, datetime
from functools import lru_cache
from typing import Any

from cronsim import CronSim, CronSimError

from tickwright.domain.errors import Rejected
from tickwright.domain.wallclock import DAY_US, HOUR_US, MINUTE_US

CRON_CHARS_MAX = 256
SEARCHED_YEARS = 50
"""29 February on a given weekday is 40 years from the next one at most: what does not fire in this time never does."""
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
        unit_us: For the hour that comes twice. Where every hour is meant, the shortest time between two of the minutes,
            so that the schedule goes on; a day otherwise, so that each time occurs once.
    """

    def __init__(self, sim: CronSim) -> None:
        self._sim = sim
        self._times = [
            hour * HOUR_US + minute * MINUTE_US for hour in sorted(sim.hours) for minute in sorted(sim.minutes)
        ]
        minutes = sorted(sim.minutes)
        steps = [later - one for one, later in zip(minutes, [*minutes[1:], minutes[0] + 60], strict=True)]
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
        """Return how many there are from ``start`` on and before ``end``."""
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


@lru_cache(maxsize=256)
def parse_cron(text: str) -> Cron:
    """Return the times that ``text`` means.

    Args:
        text: ``minute hour day-of-month month day-of-week`` or a name of :data:`ALIASES`; at most 256 characters.

    Raises:
        Rejected: ``invalid_cron`` with the ``place`` of the field, from 1 on, where one is at fault; also for what
            never fires, such as 31 February. Permanent.
    """
    fields = ALIASES.get(text.strip().lower(), text).split() if len(text) <= CRON_CHARS_MAX else []
    if len(fields) != len(FIELDS):
        names = ", ".join(ALIASES)
        raise _refused(f"write five fields, such as 0 9 * * 1-5 ({' '.join(FIELDS)}), or one of {names}")
    for place, field in enumerate(fields, start=1):
        alone = ["*"] * len(FIELDS)
        alone[place - 1] = field
        if _read(" ".join(alone)) is None:
            name = FIELDS[place - 1]
            raise _refused(f"field {place}, {name}: {field[:40]!r} is none", place=place, name=name)
    sim = _read(" ".join(fields))
    cron = None if sim is None else Cron(sim)
    if cron is None or cron.first(0) is None:
        raise _refused(f"{text[:60]!r} never fires: there is no such day")
    return cron


def _read(text: str) -> CronSim | None:
    try:
        return CronSim(text, datetime(1970, 1, 1))  # noqa: DTZ001 - days and times are read off it, never an instant
    except CronSimError:
        return None


def _refused(message: str, **details: Any) -> Rejected:
    return Rejected("invalid_cron", f"cron: {message}", field="cron", **details)
