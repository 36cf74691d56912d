"""Occurrences for any fields, zone and instant: those found by arithmetic are those that the rule gives one by one."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import get_args
from zoneinfo import ZoneInfo

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tickwright.domain.calendars.recurrence import Recurrence, UnitType
from tickwright.domain.calendars.wallclock import changes, instant_at, instant_us
from tickwright.domain.errors import Rejected

CHANGES = {
    "Europe/Kyiv": ("2026-03-29 01:00", "2026-10-25 01:00"),
    "America/New_York": ("2026-03-08 07:00", "2026-11-01 06:00"),
    "Australia/Lord_Howe": ("2026-04-04 15:00", "2026-10-03 15:30"),
    "America/Havana": ("2026-03-08 05:00", "2026-11-01 05:00"),
    "Africa/Cairo": ("2026-04-23 22:00", "2026-10-29 21:00"),
    "America/Santiago": ("2026-04-05 03:00", "2026-09-06 04:00"),
    "Asia/Beirut": ("2026-03-28 22:00", "2026-10-24 21:00"),
    "Africa/Casablanca": ("2026-02-15 02:00", "2026-03-22 02:00"),
    "Antarctica/Troll": ("2026-03-29 01:00", "2026-10-25 01:00"),
    "Antarctica/Casey": ("2018-03-10 17:00", "2018-10-06 20:00"),
    "America/Boa_Vista": ("2000-10-08 04:00", "2000-10-15 03:00"),  # no two changes of a zone are nearer
    "Pacific/Apia": ("2011-12-30 10:00", "2012-03-31 14:00"),
    "Pacific/Kwajalein": ("1993-08-21 12:00",),
    "Asia/Kolkata": ("2026-01-01 00:00",),
    "UTC": ("1999-12-31 23:59",),
}
"""Zones, and when their clocks change (those of the last two do not): by half an hour, by two, three, a whole day."""
MINUTES = st.integers(-4 * 1440, 4 * 1440).map(lambda minutes: timedelta(minutes=minutes))
NEAR = MINUTES | st.integers(-96, 96).map(lambda halves: timedelta(minutes=30 * halves))
UNITS = st.tuples(st.sampled_from([5, 7, 10, 15, 20, 30, 40, 45, 50, 60, 61, 90, 120, 360]), st.just("MINUTES")) | (
    st.tuples(st.integers(1, 40), st.sampled_from(get_args(UnitType)[1:]))
)
CRONS = (
    "*/15 * * * *", "0 * * * *", "5,20 * * * *", "0,50 * * * *", "30 2 * * *", "0,30 0-4 * * *", "*/20 1-3 * * *",
    "0 */6 * * *", "0 0 * * *", "45 23 * * sun", "59 * 29-31 * *", "0 9 L * *", "*/30 * * 3,10 sun#1",
)  # fmt: skip


def at_change(zone: str, number: int) -> datetime:
    """Return when a zone's clock changes."""
    return datetime.fromisoformat(CHANGES[zone][number % len(CHANGES[zone])]).replace(tzinfo=UTC)


@st.composite
def in_units(draw: st.DrawFn) -> tuple[Recurrence, datetime]:
    """Return a series in units, and an instant near a change that it may begin at, or long after."""
    zone = draw(st.sampled_from(list(CHANGES)))
    change = at_change(zone, draw(st.integers(0, 1)))
    unit, unit_type = draw(UNITS)
    long_ago = timedelta(days=10 if unit_type == "MINUTES" else 800)
    first_at = change + draw(NEAR) - draw(st.sampled_from([timedelta(), long_ago]))
    return Recurrence(first_at, zone, unit, unit_type), change  # type: ignore[arg-type]


@st.composite
def by_cron(draw: st.DrawFn) -> tuple[Recurrence, datetime]:
    """Return a cron in a zone, and an instant near a change."""
    zone = draw(st.sampled_from(list(CHANGES)))
    change = at_change(zone, draw(st.integers(0, 1)))
    first_at = draw(st.none() | NEAR.map(lambda near: change + near))
    return Recurrence(first_at, zone, cron=draw(st.sampled_from(CRONS))), change


ANY = in_units() | by_cron()
FOLD = at_change("Europe/Kyiv", 1)


def walk(terms: Recurrence, until: datetime) -> list[datetime]:
    """Return all occurrences up to an instant: the rule of ``domain/wallclock.py``, time by time."""
    zone, first = ZoneInfo(terms.time_zone), terms.first_at
    assert first is not None
    assert terms.unit is not None
    start = first.astimezone(zone).replace(tzinfo=None, fold=0)
    found = {first}
    again: list[datetime] = []
    step = {"MINUTES": 1, "HOURS": 60, "DAYS": 1440, "WEEKS": 10080}.get(terms.unit_type or "")
    for number in range(-2000 if step and step * terms.unit < 1440 else 0, 100_000):
        if step is None:
            month = start.year * 12 + start.month - 1 + number * terms.unit
            last = (datetime(month // 12, month % 12 + 1, 28) + timedelta(days=4)).replace(day=1) - timedelta(days=1)  # noqa: DTZ001
            wall = start.replace(year=last.year, month=last.month, day=min(start.day, last.day))
        else:
            wall = start + number * timedelta(minutes=step * terms.unit)
        once, twice = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
        if once > until + timedelta(days=2):
            break
        jumped = once > twice
        if once > first and (number > 0 or not jumped):
            found.add(once)
        if twice > once and twice > first:
            again.append(twice)
    unit = timedelta(minutes=step * terms.unit) if step else timedelta(days=28)
    for twice in sorted(again):
        if twice - max(at for at in found if at < twice) >= unit:
            found.add(twice)
    return sorted(at for at in found if at <= until)


@settings(max_examples=200, deadline=None)
@given(in_units(), NEAR)
@example((Recurrence(FOLD - timedelta(minutes=30), "Europe/Kyiv", 15, "MINUTES"), FOLD), timedelta(hours=2))
def test_occurrences_by_arithmetic_are_those_of_the_rule(drawn: tuple[Recurrence, datetime], near: timedelta) -> None:
    """What is found by arithmetic are the occurrences that the rule gives, walked from the first one on."""
    terms, change = drawn
    until = change + near
    want = walk(terms, until)
    missed = terms.between(datetime(1980, 1, 1, tzinfo=UTC), until, 100_000)
    assert list(missed.slots) == want
    assert missed.count == len(want)
    assert missed.oldest == (want[0] if want else None)


@settings(max_examples=200, deadline=None)
@given(ANY, NEAR, NEAR)
def test_the_next_occurrence_is_later_and_none_in_between_is_left_out(
    drawn: tuple[Recurrence, datetime], one: timedelta, other: timedelta
) -> None:
    """No occurrence twice, none left out, always forward."""
    terms, change = drawn
    after, until = change + min(one, other), change + min(max(one, other), min(one, other) + timedelta(days=2))
    walked, at = [], terms.next_after(after)
    while at is not None and at <= until:
        walked.append(at)
        at = terms.next_after(at)
    assert all(earlier < later for earlier, later in pairwise([after, *walked]))
    missed = terms.between(after, until, 100_000)
    assert list(missed.slots) == walked
    assert missed.count == len(walked)


@settings(max_examples=200, deadline=None)
@given(ANY, st.tuples(NEAR, NEAR, NEAR), st.integers(0, 5))
def test_two_adjacent_spans_have_the_occurrences_of_the_whole(
    drawn: tuple[Recurrence, datetime], near: tuple[timedelta, timedelta, timedelta], newest: int
) -> None:
    """Wherever a span is cut, also in the middle of an hour that comes twice."""
    terms, change = drawn
    start, middle, end = (change + one for one in sorted(near))
    one, other, both = (
        terms.between(*span, 100_000) for span in ((start, middle), (middle, end), (start, end))
    )  # fmt: skip
    assert one.count + other.count == both.count
    assert one.slots + other.slots == both.slots
    assert (one.oldest or other.oldest) == both.oldest
    assert terms.between(start, end, newest).slots == both.slots[len(both.slots) - min(newest, len(both.slots)) :]


@settings(max_examples=200, deadline=None)
@given(by_cron(), NEAR)
def test_cron_occurs_at_its_times_on_the_wall_and_at_no_other(
    drawn: tuple[Recurrence, datetime], near: timedelta
) -> None:
    """Every time on the wall occurs, at its first instant; what occurs besides is the second instant of one."""
    terms, change = drawn
    zone = ZoneInfo(terms.time_zone)
    after = max(change + near, terms.first_at or change + near)
    found = set(terms.between(after, after + timedelta(days=2), 100_000).slots)
    never = Recurrence(None, "UTC", cron=terms.cron)  # the same times, where each one is there once
    begin = after.astimezone(zone).replace(tzinfo=UTC) - timedelta(days=2)
    walls = {at.replace(tzinfo=None) for at in never.between(begin, begin + timedelta(days=6), 100_000).slots}
    first = {wall.replace(tzinfo=zone).astimezone(UTC) for wall in walls}
    assert {at for at in first if after < at <= after + timedelta(days=2)} <= found
    second = {wall.replace(tzinfo=zone, fold=1).astimezone(UTC) for wall in walls}
    assert found <= first | second


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(list(CHANGES)), st.integers(0, 1), NEAR)
def test_every_change_of_a_clock_is_found(zone: str, number: int, near: timedelta) -> None:
    """At its second; between two of them the clock does not change."""
    start = at_change(zone, number) + near
    end = start + timedelta(days=400)
    found = list(changes(zone, instant_us(start), instant_us(end)))
    step, at = timedelta(hours=6), start
    while at < end:
        offsets = [(at + add).astimezone(ZoneInfo(zone)).utcoffset() for add in (timedelta(), step)]
        if offsets[0] != offsets[1] and at + step < end:
            assert [one.at for one in found if at < instant_at(one.at) <= at + step]
        at += step
    for one in found:
        moment, tick = instant_at(one.at), timedelta(microseconds=1)
        assert moment.astimezone(ZoneInfo(zone)).utcoffset() == timedelta(microseconds=one.after)
        assert (moment - tick).astimezone(ZoneInfo(zone)).utcoffset() == timedelta(microseconds=one.before)


@settings(max_examples=500, deadline=None)
@given(st.text(max_size=60) | st.lists(st.text("0123456789*/,-#LW?JANMONFRI ", max_size=8), max_size=7).map(" ".join))
def test_a_cron_is_read_or_refused(text: str) -> None:
    """Whatever is written: times on the wall, or ``invalid_cron``."""
    try:
        terms = Recurrence(None, "Europe/Kyiv", cron=text)
    except Rejected as refused:
        assert refused.code == "invalid_cron"  # noqa: PT017
    else:
        assert terms.next_after(datetime(2026, 11, 22, tzinfo=UTC)) is not None
