"""Wall-clock times to instants, in zones with clock changes: the calendar rule, in one place.

A *schedule* is a set of wall-clock times (every six hours from nine, 09:00 on weekdays), without a zone. Only this
module decides at which instants it occurs in a zone:

- A time that exists once occurs at its instant.
- A time that the clocks skip (spring) occurs later by the length of the jump: at the instant that PEP 495 assigns with
  ``fold=0``. If another time of the schedule has that instant already, it is one occurrence.
- A time that exists twice (autumn) occurs at its first instant. It occurs at its second one only if the schedule's
  ``unit`` has passed since the previous occurrence. So every 15 MINUTES and 1 HOURS continue through the repeated hour
  without a gap, and 6 HOURS or a day occur once.

Between two changes an instant is a wall-clock time less a constant, so occurrences are found and counted by arithmetic,
not by iteration. All numbers are whole microseconds: an *instant* since 1970 UTC, a *wall* since 1970 wall-clock time.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from heapq import merge
from itertools import islice
from typing import NamedTuple, Protocol
from zoneinfo import ZoneInfo

from tickwright.domain.errors import Rejected

MINUTE_US, HOUR_US, DAY_US = 60_000_000, 3_600_000_000, 86_400_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HORIZON_US = (datetime(9999, 1, 1, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
"""Nothing occurs from here on: a later wall-clock time may have no date."""
REACH_US = 2 * DAY_US
"""More than the distance of an instant from its wall, and than any clock change since 1970 (a day)."""
PROBED_EVERY_US = 3 * DAY_US
"""Two changes of one zone since 1970 are at least 6.9 days apart, so at most one is between two probes."""
_YEAR_US, _WINDOW_US = 120 * PROBED_EVERY_US, 6 * DAY_US
_ZONE_NAME = re.compile(r"(?!posix|right/|localtime|Factory)[A-Za-z0-9_+/-]{1,60}")


class Walls(Protocol):
    """A schedule as wall-clock times, without a beginning or an end."""

    @property
    def unit_us(self) -> int:
        """Time that must have passed since the previous occurrence for a repeated time to occur again."""

    def first(self, wall: int) -> int | None:
        """Return the first time at or after ``wall``; ``None`` when none is near enough to have a date."""

    def last(self, wall: int) -> int | None:
        """Return the last time before ``wall``; ``None`` when none is near enough to have a date."""

    def count(self, start: int, end: int) -> int:
        """Return how many times there are from ``start`` to before ``end``."""


class Piece(NamedTuple):
    """Occurrences between two changes: walls in ``[start, end)`` less ``offset``, and the instants ``moved``."""

    start: int
    end: int
    offset: int
    moved: tuple[int, ...] = ()


class Change(NamedTuple):
    """A clock change at the instant ``at``: the offset from UTC is ``before`` until then, and ``after`` since."""

    at: int
    before: int
    after: int


def instant_us(at: datetime) -> int:
    """Return an aware instant in microseconds since 1970."""
    return (at - EPOCH) // timedelta(microseconds=1)


def instant_at(instant: int) -> datetime:
    """Return an instant as a datetime in UTC."""
    return EPOCH + timedelta(microseconds=instant)


@lru_cache(maxsize=256)
def zone_of(name: str) -> ZoneInfo:
    """Return the time zone of that name.

    Raises:
        Rejected: ``invalid_time_zone``: unknown, or a zone that counts leap seconds or differs between machines.
            Permanent.
    """
    text = f"there is no time zone {name[:60]!r}; write one such as Europe/Kyiv or UTC"
    if not _ZONE_NAME.fullmatch(name):
        raise Rejected("invalid_time_zone", text, field="time_zone")
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        raise Rejected("invalid_time_zone", text, field="time_zone") from None


def offset_at(zone: str, instant: int) -> int:
    """Return the offset of the wall clock from UTC."""
    offset = instant_at(instant).astimezone(zone_of(zone)).utcoffset()
    return (offset or timedelta()) // timedelta(microseconds=1)


@lru_cache(maxsize=4096)
def _changes_of(zone: str, year: int) -> tuple[Change, ...]:
    found, at = [], year * _YEAR_US
    before = offset_at(zone, at)
    for probe in range(at + PROBED_EVERY_US, at + _YEAR_US + 1, PROBED_EVERY_US):
        after = offset_at(zone, probe)
        if after != before:
            found.append(_change(zone, at, probe))
        at, before = probe, after
    return tuple(found)


def _change(zone: str, start: int, end: int) -> Change:
    before, after = offset_at(zone, start), offset_at(zone, end)
    while end - start > 1:
        middle = (start + end) // 2
        start, end = (middle, end) if offset_at(zone, middle) == before else (start, middle)
    return Change(end, before, after)


def changes(zone: str, start: int, end: int) -> Iterator[Change]:
    """Yield the clock changes of a zone after ``start`` and before ``end``, in order."""
    for year in range(start // _YEAR_US, end // _YEAR_US + 1):
        yield from (change for change in _changes_of(zone, year) if start < change.at < end)


@dataclass(frozen=True, slots=True)
class Series:
    """A schedule in a zone: its occurrences as instants.

    Attributes:
        anchor: The very first occurrence, if the schedule counts from one: earlier clock changes neither remove nor
            add occurrences. Instants before it are not valid arguments.

    Invariants:
        WAL-1: occurrences ascend strictly, through all clock changes.
        WAL-2: the occurrences of ``(a, b]`` and ``(b, c]`` together are those of ``(a, c]``.
    """

    walls: Walls
    zone: str
    anchor: int

    def first_after(self, after: int) -> int | None:
        """Return the first occurrence after ``after``; ``None`` when there is none before the year 9999."""
        while (wall := self.walls.first(after - REACH_US)) is not None:
            after = max(after, wall - REACH_US)
            if after >= HORIZON_US - 1:
                return None
            until = min(after + _WINDOW_US, HORIZON_US - 1)
            for piece in self.pieces(after, until):
                plain = self.walls.first(piece.start)
                found = [] if plain is None or plain >= piece.end else [plain - piece.offset]
                if found := [*found, *piece.moved[:1]]:
                    return min(found)
            after = until
        return None

    def count(self, after: int, until: int) -> int:
        """Return how many occurrences there are in ``(after, until]``."""
        return sum(self.walls.count(piece.start, piece.end) + len(piece.moved) for piece in self.pieces(after, until))

    def newest(self, after: int, until: int, most: int) -> list[int]:
        """Return the newest occurrences in ``(after, until]``, at most ``most``, in order."""
        found: list[int] = []
        for piece in reversed(list(self.pieces(after, until))):
            plain = (wall - piece.offset for wall in _each_back(self.walls, piece.start, piece.end))
            found.extend(islice(merge(plain, reversed(piece.moved), reverse=True), most - len(found)))
        return found[::-1]

    def pieces(self, after: int, until: int) -> Iterator[Piece]:
        """Divide the occurrences in ``(after, until]`` at the clock changes; in order, each in one piece."""
        start = after - REACH_US
        offset = offset_at(self.zone, start)
        change = Change(start, offset, offset)
        for following in changes(self.zone, start, until + 1):
            yield self._piece(change, after, min(until, following.at - 1))
            change = following
        yield self._piece(change, after, until)

    def _piece(self, change: Change, after: int, until: int) -> Piece:
        after = max(after, change.at - 1)
        start, end = after + change.after + 1, until + change.after + 1
        moved: tuple[int, ...] = ()
        if change.at > self.anchor and change.after < change.before:
            start = max(start, _behind_repeated(self.walls, change))
        elif change.at > self.anchor and change.after > change.before:
            moved = tuple(_moved(self.walls, change, after, until))
        return Piece(start, max(start, end), change.after, moved)


def _behind_repeated(walls: Walls, change: Change) -> int:
    """Return the wall from which on times occur again. Of repeated times only the first can follow too soon."""
    begins, ends = change.at + change.after, change.at + change.before
    if walls.unit_us > ends - begins:
        return ends
    again, last = walls.first(begins), walls.last(ends)
    if again is None or last is None or again >= ends:
        return begins
    passed_us = (again - change.after) - (last - change.before)
    return begins if passed_us >= walls.unit_us else again + 1


def _moved(walls: Walls, change: Change, after: int, until: int) -> Iterator[int]:
    """Yield the instants of skipped walls, unless another wall has the same instant."""
    jump_us = change.after - change.before
    if change.at + jump_us <= after:
        return
    wall = walls.first(change.at + change.before)
    while wall is not None and wall < change.at + change.after:
        if after < wall - change.before <= until and walls.first(wall + jump_us) != wall + jump_us:
            yield wall - change.before
        wall = walls.first(wall + 1)


def _each_back(walls: Walls, start: int, end: int) -> Iterator[int]:
    wall = walls.last(end)
    while wall is not None and wall >= start:
        yield wall
        wall = walls.last(wall)
