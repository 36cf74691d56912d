"""When a batch occurs: 9:00, 15:00, 21:00 stay what they are, also on the days on which clocks change."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from tickwright.domain.calendars.recurrence import Recurrence, UnitType
from tickwright.domain.errors import Rejected

KYIV, YORK, HOWE, HAVANA, CAIRO, APIA = (
    "Europe/Kyiv", "America/New_York", "Australia/Lord_Howe", "America/Havana", "Africa/Cairo", "Pacific/Apia",
)  # fmt: skip


def utc(text: str) -> datetime:
    """Return an instant in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def local(text: str, zone: str, fold: int = 0) -> datetime:
    """Return an instant by the clock on the wall of a zone."""
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)


def occurrences(terms: Recurrence, after: str, most: int) -> list[str]:
    """Return what occurs from ``after`` on, in UTC."""
    found: list[str] = []
    at = utc(after) - timedelta(microseconds=1)
    while len(found) < most and (following := terms.next_after(at)) is not None:
        at = following
        found.append(at.isoformat(sep=" ").removesuffix(":00+00:00"))
    return found


def every(unit: int, unit_type: UnitType, first_at: datetime, zone: str) -> Recurrence:
    """Return a series in units."""
    return Recurrence(first_at, zone, unit, unit_type)


SIX_HOURS = {
    # The wall goes from 03:00 to 04:00 (01:00 UTC): the 3:00 of that day is at 4:00, the others are where they were.
    (KYIV, "2026-03-28 09:00"): (
        "2026-03-28 07:00", "2026-03-28 13:00", "2026-03-28 19:00", "2026-03-29 01:00",
        "2026-03-29 06:00", "2026-03-29 12:00", "2026-03-29 18:00", "2026-03-30 00:00", "2026-03-30 06:00",
    ),
    # It goes from 04:00 back to 03:00 (01:00 UTC): 3:00 comes twice, and occurs at its first instant.
    (KYIV, "2026-10-24 09:00"): (
        "2026-10-24 06:00", "2026-10-24 12:00", "2026-10-24 18:00", "2026-10-25 00:00",
        "2026-10-25 07:00", "2026-10-25 13:00", "2026-10-25 19:00", "2026-10-26 01:00", "2026-10-26 07:00",
    ),
    # From 02:00 to 03:00 (07:00 UTC): 3:00 is the first time that there is.
    (YORK, "2026-03-07 09:00"): (
        "2026-03-07 14:00", "2026-03-07 20:00", "2026-03-08 02:00", "2026-03-08 07:00",
        "2026-03-08 13:00", "2026-03-08 19:00", "2026-03-09 01:00", "2026-03-09 07:00", "2026-03-09 13:00",
    ),
    # From 02:00 back to 01:00 (06:00 UTC): none of them comes twice.
    (YORK, "2026-10-31 09:00"): (
        "2026-10-31 13:00", "2026-10-31 19:00", "2026-11-01 01:00", "2026-11-01 08:00",
        "2026-11-01 14:00", "2026-11-01 20:00", "2026-11-02 02:00", "2026-11-02 08:00", "2026-11-02 14:00",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("zone", "first"), SIX_HOURS)
def test_nine_fifteen_and_twenty_one_stay_on_the_days_of_a_change(zone: str, first: str) -> None:
    """6 HOURS from 9:00, in UTC by hand."""
    want = SIX_HOURS[zone, first]
    terms = every(6, "HOURS", local(first, zone), zone)
    assert occurrences(terms, want[0], len(want)) == list(want)
    shown = {at.astimezone(ZoneInfo(zone)).strftime("%H:%M") for at in map(utc, want)}
    assert shown <= {"09:00", "15:00", "21:00", "03:00", "04:00"}


LONG_AGO = datetime(2020, 1, 1, 9, tzinfo=UTC)

THROUGH_A_CHANGE = [
    pytest.param((15, "MINUTES"), KYIV, "2026-03-29 00:30",
                 ["00:30", "00:45", "01:00", "01:15", "01:30"], id="15 minutes over the gap"),
    pytest.param((15, "MINUTES"), KYIV, "2026-10-24 23:45",
                 ["23:45", "00:00", "00:15", "00:30", "00:45", "01:00", "01:15", "01:30", "01:45", "02:00", "02:15"],
                 id="15 minutes through the repeated hour"),
    pytest.param((1, "HOURS"), KYIV, "2026-03-28 23:00",
                 ["23:00", "00:00", "01:00", "02:00", "03:00"], id="an hour over the gap"),
    pytest.param((1, "HOURS"), KYIV, "2026-10-24 23:00",
                 ["23:00", "00:00", "01:00", "02:00", "03:00"], id="an hour through the repeated hour"),
    pytest.param((1, "HOURS"), YORK, "2026-11-01 04:00",
                 ["04:00", "05:00", "06:00", "07:00", "08:00"], id="an hour through the repeated one of New York"),
    # 00:00 UTC is 3:00 for the first time; the second one is an hour later, less than two. 5:00 is 03:00 UTC.
    pytest.param((2, "HOURS"), KYIV, "2026-10-24 22:00",
                 ["22:00", "00:00", "03:00", "05:00"], id="two hours: 1:00, 3:00 once, 5:00"),
    # Half an hour twice: 1:30 and 1:45 again, 15 minutes after the last 1:45.
    pytest.param((15, "MINUTES"), HOWE, "2026-04-04 14:15",
                 ["14:15", "14:30", "14:45", "15:00", "15:15", "15:30"], id="15 minutes through half an hour"),
    # An hour is longer than what is repeated: 1:00 (14:00 UTC), then 2:00 (15:30 UTC).
    pytest.param((1, "HOURS"), HOWE, "2026-04-04 13:00",
                 ["13:00", "14:00", "15:30", "16:30"], id="an hour where half of one is repeated"),
    # 2:00 to 2:30 are jumped over: 2:00 is at 2:30 (15:30 UTC), and 3:00 where it is (16:00 UTC).
    pytest.param((1, "HOURS"), HOWE, "2026-10-03 14:30",
                 ["14:30", "15:30", "16:00", "17:00"], id="an hour over half an hour that is not there"),
    # 3:00 would follow the first 3:40 after 20 minutes: only 3:40 occurs again (01:40 UTC).
    pytest.param((40, "MINUTES"), KYIV, "2026-10-24 23:20",
                 ["23:20", "00:00", "00:40", "01:40", "02:20"], id="40 minutes through the repeated hour"),
]  # fmt: skip


@pytest.mark.parametrize(("unit", "zone", "after", "times"), THROUGH_A_CHANGE)
def test_short_units_go_on_through_a_change(
    unit: tuple[int, UnitType], zone: str, after: str, times: list[str]
) -> None:
    """No hole longer than the unit in the repeated hour, no time twice in the one that is not there; in UTC by hand."""
    first = local("2020-01-01 01:00", zone)
    found = occurrences(every(*unit, first, zone), after, len(times))
    assert [text[11:] for text in found] == times


CALENDAR = [
    # Kyiv: 03:00 to 04:00 is not there on 29 March, and there twice on 25 October.
    ("DAYS at 02:30, gap", every(1, "DAYS", local("2026-03-27 02:30", KYIV), KYIV),
     ["2026-03-27 00:30", "2026-03-28 00:30", "2026-03-29 00:30", "2026-03-29 23:30"]),
    ("DAYS at 03:30, gap", every(1, "DAYS", local("2026-03-27 03:30", KYIV), KYIV),
     ["2026-03-27 01:30", "2026-03-28 01:30", "2026-03-29 01:30", "2026-03-30 00:30"]),
    ("DAYS at 02:30, fold", every(1, "DAYS", local("2026-10-23 02:30", KYIV), KYIV),
     ["2026-10-22 23:30", "2026-10-23 23:30", "2026-10-24 23:30", "2026-10-26 00:30"]),
    ("DAYS at 03:30, fold", every(1, "DAYS", local("2026-10-24 03:30", KYIV), KYIV),
     ["2026-10-24 00:30", "2026-10-25 00:30", "2026-10-26 01:30"]),
    ("DAYS at 02:30, New York's gap", every(1, "DAYS", local("2026-03-07 02:30", YORK), YORK),
     ["2026-03-07 07:30", "2026-03-08 07:30", "2026-03-09 06:30"]),
    ("DAYS from the second 03:30 on", every(1, "DAYS", local("2026-10-25 03:30", KYIV, fold=1), KYIV),
     ["2026-10-25 01:30", "2026-10-26 01:30", "2026-10-27 01:30"]),
    ("15 MINUTES from the second 03:30 on", every(15, "MINUTES", local("2026-10-25 03:30", KYIV, fold=1), KYIV),
     ["2026-10-25 01:30", "2026-10-25 01:45", "2026-10-25 02:00"]),
    ("15 MINUTES from the first 03:30 on", every(15, "MINUTES", local("2026-10-25 03:30", KYIV), KYIV),
     ["2026-10-25 00:30", "2026-10-25 00:45", "2026-10-25 01:00", "2026-10-25 01:15"]),
    ("40 MINUTES from just behind a gap on", every(40, "MINUTES", local("2026-03-29 04:00", KYIV), KYIV),
     ["2026-03-29 01:00", "2026-03-29 01:40", "2026-03-29 02:20"]),
    ("40 MINUTES over a gap: 4:20 for 3:20", every(40, "MINUTES", local("2026-03-28 04:00", KYIV), KYIV),
     ["2026-03-29 00:40", "2026-03-29 01:00", "2026-03-29 01:20", "2026-03-29 01:40"]),
    ("MONTHS from the 31st", every(1, "MONTHS", local("2026-01-31 09:00", KYIV), KYIV),
     ["2026-01-31 07:00", "2026-02-28 07:00", "2026-03-31 06:00", "2026-04-30 06:00", "2026-05-31 06:00"]),
    ("12 MONTHS from 29 February", every(12, "MONTHS", local("2028-02-29 09:00", YORK), YORK),
     ["2028-02-29 14:00", "2029-02-28 14:00", "2030-02-28 14:00", "2031-02-28 14:00", "2032-02-29 14:00"]),
    ("MONTHS into a gap", every(1, "MONTHS", local("2026-01-29 03:30", KYIV), KYIV),
     ["2026-01-29 01:30", "2026-02-28 01:30", "2026-03-29 01:30", "2026-04-29 00:30"]),
    ("WEEKS over both changes", every(2, "WEEKS", local("2026-03-15 09:00", KYIV), KYIV),
     ["2026-03-15 07:00", "2026-03-29 06:00", "2026-04-12 06:00"]),
    ("WEEKS in autumn", every(1, "WEEKS", local("2026-10-25 03:00", KYIV), KYIV),
     ["2026-10-25 00:00", "2026-11-01 01:00", "2026-11-08 01:00"]),
    ("DAYS at midnight, which Cairo jumps over", every(1, "DAYS", local("2026-04-23 00:00", CAIRO), CAIRO),
     ["2026-04-22 22:00", "2026-04-23 22:00", "2026-04-24 21:00"]),
    ("DAYS at midnight, which Havana has twice", every(1, "DAYS", local("2026-10-31 00:00", HAVANA), HAVANA),
     ["2026-10-31 04:00", "2026-11-01 04:00", "2026-11-02 05:00"]),
    # 30 December 2011 is not there: its 9:00 is that of the 31st (19:00 UTC of the 30th).
    ("DAYS where Apia skips one", every(1, "DAYS", local("2011-12-28 09:00", APIA), APIA),
     ["2011-12-28 19:00", "2011-12-29 19:00", "2011-12-30 19:00", "2011-12-31 19:00"]),
    ("6 HOURS where Apia skips a day", every(6, "HOURS", local("2011-12-29 15:00", APIA), APIA),
     ["2011-12-30 01:00", "2011-12-30 07:00", "2011-12-30 13:00", "2011-12-30 19:00"]),
]  # fmt: skip


@pytest.mark.parametrize(("terms", "want"), [row[1:] for row in CALENDAR], ids=[row[0] for row in CALENDAR])
def test_the_calendar_counts_from_the_first_run(terms: Recurrence, want: list[str]) -> None:
    """The same time on the wall, never drifting; each row in UTC by hand."""
    assert occurrences(terms, want[0], len(want)) == want


CRON = [
    ("30 2 * * *", YORK, "2026-03-07 00:00", ["2026-03-07 07:30", "2026-03-08 07:30", "2026-03-09 06:30"]),
    ("30 1 * * *", YORK, "2026-10-31 00:00", ["2026-10-31 05:30", "2026-11-01 05:30", "2026-11-02 06:30"]),
    ("0 9 * * 1-5", KYIV, "2026-03-27 00:00", ["2026-03-27 07:00", "2026-03-30 06:00", "2026-03-31 06:00"]),
    ("0 9 * * mon-fri", KYIV, "2026-10-23 00:00", ["2026-10-23 06:00", "2026-10-26 07:00", "2026-10-27 07:00"]),
    ("@hourly", KYIV, "2026-10-25 00:00", ["2026-10-25 00:00", "2026-10-25 01:00", "2026-10-25 02:00"]),
    ("*/30 * * * *", KYIV, "2026-10-25 00:00",
     ["2026-10-25 00:00", "2026-10-25 00:30", "2026-10-25 01:00", "2026-10-25 01:30", "2026-10-25 02:00"]),
    # Not every hour: four times a day stay four, in the gap and in the fold.
    ("*/30 3 * * *", KYIV, "2026-03-28 12:00",
     ["2026-03-29 01:00", "2026-03-29 01:30", "2026-03-30 00:00", "2026-03-30 00:30"]),
    ("*/30 3 * * *", KYIV, "2026-10-24 12:00",
     ["2026-10-25 00:00", "2026-10-25 00:30", "2026-10-26 01:00", "2026-10-26 01:30"]),
    ("*/30 2,3,4 * * *", KYIV, "2026-03-29 00:00",
     ["2026-03-29 00:00", "2026-03-29 00:30", "2026-03-29 01:00", "2026-03-29 01:30", "2026-03-29 23:00"]),
    ("45 * * * *", HOWE, "2026-04-04 13:00", ["2026-04-04 13:45", "2026-04-04 14:45", "2026-04-04 16:15"]),
    ("0 * * * *", HOWE, "2026-04-04 14:00", ["2026-04-04 14:00", "2026-04-04 15:30", "2026-04-04 16:30"]),
    ("0 0 31 * *", "UTC", "2026-01-01 00:00", ["2026-01-31 00:00", "2026-03-31 00:00", "2026-05-31 00:00"]),
    ("0 0 L * *", "UTC", "2026-01-01 00:00", ["2026-01-31 00:00", "2026-02-28 00:00", "2026-03-31 00:00"]),
    ("0 0 13 * 5", "UTC", "2026-11-01 00:00", ["2026-11-06 00:00", "2026-11-13 00:00", "2026-11-20 00:00"]),
    ("0 0 29 2 *", "UTC", "2096-01-01 00:00", ["2096-02-29 00:00", "2104-02-29 00:00"]),
    ("0 0 * 2 MON#5", "UTC", "2072-03-01 00:00", ["2112-02-29 00:00", "2140-02-29 00:00"]),
    ("@weekly", "UTC", "2026-11-22 00:00", ["2026-11-22 00:00", "2026-11-29 00:00"]),
    ("@monthly", "UTC", "2026-11-22 00:00", ["2026-12-01 00:00", "2027-01-01 00:00"]),
    ("@yearly", "UTC", "2026-11-22 00:00", ["2027-01-01 00:00", "2028-01-01 00:00"]),
    ("@daily", KYIV, "2026-11-22 00:00", ["2026-11-22 22:00", "2026-11-23 22:00"]),
]  # fmt: skip


@pytest.mark.parametrize(("cron", "zone", "after", "want"), CRON)
def test_cron_is_read_by_the_clock_on_the_wall(cron: str, zone: str, after: str, want: list[str]) -> None:
    """One calendar rule for cron and for units; each row in UTC by hand."""
    assert occurrences(Recurrence(None, zone, cron=cron), after, len(want)) == want


def test_cron_begins_at_the_first_run_or_after_it() -> None:
    """The first run is a bound: it occurs only where the expression says so."""
    terms = Recurrence(utc("2026-11-22 09:00"), "UTC", cron="0 * * * *")
    assert terms.next_after(utc("1990-01-01")) == utc("2026-11-22 09:00")
    terms = Recurrence(utc("2026-11-22 09:00:01"), "UTC", cron="0 * * * *")
    assert terms.next_after(utc("1990-01-01")) == utc("2026-11-22 10:00")
    assert terms.between(utc("1990-01-01"), utc("2026-11-22 12:00"), 1).count == 3


def test_without_a_unit_and_a_cron_it_occurs_once() -> None:
    """At the first run, to the microsecond; never without one."""
    at = datetime(2026, 11, 22, 9, 0, 0, 5, tzinfo=ZoneInfo(KYIV))
    once = Recurrence(at, KYIV)
    assert once.next_after(at - timedelta(microseconds=1)) == at
    assert once.next_after(at) is None
    missed = once.between(at - timedelta(days=1), at, 10)
    assert (missed.count, missed.oldest, missed.slots) == (1, at, (at,))
    assert once.between(at, at + timedelta(days=1), 10).count == 0
    assert Recurrence(None, "UTC").next_after(utc("1990-01-01")) is None


def test_the_first_run_keeps_its_microseconds_and_so_does_what_follows() -> None:
    """A slot is a key: nothing is rounded."""
    first = utc("2026-11-22 09:00:00.000007")
    assert every(1, "DAYS", first, KYIV).next_after(first) == first + timedelta(days=1)


def test_what_was_missed_in_thirty_years_is_counted_exactly() -> None:
    """Every minute of them; the newest are in their order, the oldest is the first."""
    terms = every(1, "MINUTES", utc("1990-01-01"), YORK)
    missed = terms.between(utc("1980-01-01"), utc("2020-01-01"), 3)
    assert missed.count == (utc("2020-01-01") - utc("1990-01-01")) // timedelta(minutes=1) + 1
    assert missed.oldest == utc("1990-01-01")
    assert missed.slots == (utc("2019-12-31 23:58"), utc("2019-12-31 23:59"), utc("2020-01-01"))


def test_the_newest_may_be_more_than_there_are() -> None:
    """Then all of them are returned; none are where none are requested."""
    terms = every(6, "HOURS", utc("2026-11-22 09:00"), "UTC")
    missed = terms.between(utc("2026-11-22 09:00"), utc("2026-11-22 21:00"), 10)
    assert missed.slots == (utc("2026-11-22 15:00"), utc("2026-11-22 21:00"))
    missed = terms.between(utc("2026-11-22 09:00"), utc("2026-11-22 21:00"), 0)
    assert (missed.count, missed.slots) == (2, ())


def test_time_ends_before_the_year_9999() -> None:
    """A series without an end has no next occurrence there, whatever its unit."""
    late = utc("9998-12-31 23:00")
    assert every(1, "HOURS", late, "Pacific/Kiritimati").next_after(late) is None
    assert every(1_000_000, "MONTHS", utc("2026-01-31"), KYIV).next_after(utc("2026-01-31")) is None
    assert every(1_000_000, "WEEKS", utc("2026-01-31"), KYIV).next_after(utc("2026-01-31")) is None
    assert Recurrence(None, KYIV, cron="* * * * *").next_after(utc("9999-12-31 23:00")) is None
    assert every(1, "DAYS", late, YORK).between(utc("9998-12-31"), utc("9999-12-31"), 10).count == 1


@pytest.mark.parametrize(
    "zone",
    ["", "Europe/Kyivv", "europe kyiv", "../etc/passwd", "/etc/localtime", "localtime", "right/Europe/Kyiv",
     "posixrules", "posix/UTC", "Europe", "Factory", "UTC\n", "x" * 500, "Europe/Kyiv\0"],
)  # fmt: skip
def test_an_unknown_time_zone_is_refused(zone: str) -> None:
    """Also what is a path, means another zone on every machine, or counts leap seconds."""
    with pytest.raises(Rejected) as refused:
        Recurrence(None, zone)
    assert refused.value.code == "invalid_time_zone"


@pytest.mark.parametrize(
    ("cron", "place"),
    [
        ("", None),
        ("* * * *", None),
        ("* * * * * *", None),
        ("@reboot", None),
        ("60 * * * *", 1),
        ("*/0 * * * *", 1),
        ("* 24 * * *", 2),
        ("* * 0 * *", 3),
        ("* * 32 * *", 3),
        ("* * ? * *", 3),
        ("* * * 13 *", 4),
        ("* * * * 8", 5),
        ("* * * * fri-mon", 5),
        ("* * * * 1#6", 5),
        ("0 0 31 2 *", None),
        ("0 0 31 4,6 *", None),
        ("0 0 */20 * 1L", None),
        ("1" * 300 + " * * * *", None),
        ("9" * 200 + " * * * *", 1),
        ("² * * * *", 1),
    ],
)
def test_an_invalid_cron_is_refused_with_its_place(cron: str, place: int | None) -> None:
    """Fields are counted from 1; an expression that never occurs is refused where it is written."""
    with pytest.raises(Rejected) as refused:
        Recurrence(None, "UTC", cron=cron)
    assert refused.value.code == "invalid_cron"
    assert refused.value.details.get("place") == place
    assert len(refused.value.message) < 300


@pytest.mark.parametrize(
    "fields",
    [
        {"first_at": datetime(2026, 1, 1), "time_zone": "UTC"},  # noqa: DTZ001
        {"first_at": datetime(1969, 12, 31, tzinfo=UTC), "time_zone": "UTC"},
        {"first_at": datetime(9999, 1, 1, tzinfo=UTC), "time_zone": "UTC"},
        {"first_at": datetime.min.replace(tzinfo=ZoneInfo(KYIV)), "time_zone": "UTC"},
        {"first_at": None, "time_zone": "UTC", "unit": 6, "unit_type": "HOURS"},
        {"first_at": LONG_AGO, "time_zone": "UTC", "unit": 6},
        {"first_at": LONG_AGO, "time_zone": "UTC", "unit_type": "HOURS"},
        {"first_at": LONG_AGO, "time_zone": "UTC", "unit": 0, "unit_type": "HOURS"},
        {"first_at": LONG_AGO, "time_zone": "UTC", "unit": -1, "unit_type": "HOURS"},
        {"first_at": LONG_AGO, "time_zone": "UTC", "unit": 1_000_001, "unit_type": "HOURS"},
        {"first_at": LONG_AGO, "time_zone": "UTC", "unit": True, "unit_type": "HOURS"},
        {"first_at": LONG_AGO, "time_zone": "UTC", "unit": 1.5, "unit_type": "HOURS"},
        {"first_at": LONG_AGO, "time_zone": "UTC", "unit": 1, "unit_type": "SECONDS"},
        {"first_at": LONG_AGO, "time_zone": "UTC", "unit": 1, "unit_type": "HOURS", "cron": "@daily"},
    ],
)
def test_fields_that_contradict_each_other_are_refused(fields: dict[str, object]) -> None:
    """With what to write instead."""
    with pytest.raises(Rejected) as refused:
        Recurrence(**fields)  # type: ignore[arg-type]
    assert refused.value.code == "invalid_recurrence"


@pytest.mark.parametrize("newest", [-1, 100_001])
def test_the_number_of_newest_slots_is_bounded(newest: int) -> None:
    """A request for a million slots at once is refused."""
    with pytest.raises(Rejected):
        every(1, "DAYS", LONG_AGO, "UTC").between(LONG_AGO, utc("2026-01-01"), newest)
