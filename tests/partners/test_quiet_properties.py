"""Quiet hours in SQL: ``tickwright.quiet_at`` agrees with ``quiet_until``, for any windows, zones and instants."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kit.servers import PostgresServer
from tickwright.partners.quiet import DAYS, parse_quiet, quiet_until
from tickwright.partners.settings import QUIET_MAX

ZONES: tuple[str, ...] = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe")
ZONES += (
    "Pacific/Chatham",
    "Africa/Casablanca",
    "America/Santiago",
    "Etc/GMT+5",
    "CET",
    "EET",
    "MET",
    "WET",
    "EST5EDT",
    "GB-Eire",
)
CHANGES = tuple(
    int(datetime(*day, tzinfo=UTC).timestamp())
    for day in ((2026, 3, 8), (2026, 3, 29), (2026, 4, 5), (2026, 9, 6), (2026, 10, 4), (2026, 10, 25), (2026, 11, 1))
)
"""Days on which clocks change in one of those zones."""
MINUTES = st.integers(0, 1439).map(lambda minute: f"{minute // 60:02}:{minute % 60:02}")
HALVES = st.integers(0, 47).map(lambda half: f"{half // 2:02}:{half % 2 * 30:02}")
TIMES = HALVES | MINUTES
ENDS = TIMES | st.just("24:00")
DAY_LISTS = st.just("") | st.lists(st.sampled_from(DAYS), min_size=1, max_size=4).map(lambda days: f"{','.join(days)} ")
WINDOW = st.builds("{}{}-{} {}".format, DAY_LISTS, TIMES, ENDS, st.sampled_from(ZONES)).filter(
    lambda text: text.split()[-2][:5] != text.split()[-2][6:]
)
NEAR = st.builds(
    lambda day_s, minute: day_s + minute * 60, st.sampled_from(CHANGES), st.integers(-1440, 2 * 1440)
) | st.integers(1_700_000_000, 1_900_000_000)

TWICE_S = (
    1_792_886_400 + 30 * 60
)  # 00:30 UTC of 25 October 2026: 02:30 in Berlin for the first time, again an hour later
NEVER_S = 1_774_746_000  # 01:00 UTC of 29 March 2026: Berlin goes from 02:00 to 03:00

UNREADABLE: tuple[Any, ...] = (
    5,
    None,
    {"a": 1},
    [["00:00-24:00 UTC"]],
    [5],
    ["00:00-24:00 UTC", "x"],
    ["00:00-24:00 UTC"] * (QUIET_MAX + 1),
    "",
    "00:00-00:00 UTC",
    "00:00-24:01 UTC",
    "24:00-23:59 UTC",
    "00:60-23:59 UTC",
    "xyz 00:00-24:00 UTC",
    ", 00:00-24:00 UTC",
    "mon,,tue 00:00-24:00 UTC",
    "monday 00:00-24:00 UTC",
    "mon,tue,wed,thu,fri,sat,sun, 00:00-24:00 UTC",
    "00:00-24:00 UTC ",
    "00:00-24:00 UTC\n",
    "00:00-24:00 Europe/Berlinn",
    "00:00-24:00 Europe/../../etc/passwd",
    "00:00-24:00 Europe",
    "00:00-24:00 EDT",
    "00:00-24:00 FOO+3",
    "00:00-24:00 Foo/Bar+3",
    "00:00-24:00 Etc/GMT+99",
    "00:00-24:00 Etc/GMT+13",
    "00:00-24:00 europe/berlin",
    "00:00-24:00 tzdata.zi",
    "00:00-24:00 /",
    f"00:00-24:00 {'A' * 60}",
)


@pytest.fixture(scope="module")
def connection(pg_server: PostgresServer, template_database: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection with a far time zone, which must not matter, to a database of the module's own."""
    url = pg_server.create_database("quiet_hours", template=template_database)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET timezone = 'Pacific/Kiritimati'")
        yield connection
    pg_server.drop_database("quiet_hours")


def quiet_at(connection: psycopg.Connection[Any], quiet: Any, instants_s: list[int]) -> list[bool]:
    """Return the answers of the database."""
    sql = """SELECT tickwright.quiet_at(%s::jsonb, to_timestamp(u.s))
               FROM unnest(%s::bigint[]) WITH ORDINALITY AS u (s, n) ORDER BY u.n"""
    return [row[0] for row in connection.execute(sql, (json.dumps({"quiet": quiet}), instants_s)).fetchall()]


@settings(max_examples=300, deadline=None)
@example(["02:15-02:45 Europe/Berlin"], [TWICE_S - 60, TWICE_S, TWICE_S + 900, TWICE_S + 3600])
@example(["22:00-02:30 Europe/Berlin"], [NEVER_S - 60, NEVER_S, NEVER_S + 1799, NEVER_S + 1800])
@example(["02:30-05:00 Europe/Berlin"], [NEVER_S - 60, NEVER_S, NEVER_S + 1799, NEVER_S + 1800])
@given(st.lists(WINDOW, min_size=1, max_size=3), st.lists(NEAR, min_size=1, max_size=30))
def test_the_database_and_python_agree_on_what_is_quiet(
    connection: psycopg.Connection[Any], windows: list[str], instants_s: list[int]
) -> None:
    """Also in the hour that does not occur and in the one that occurs twice, whatever zone the session has."""
    parsed = tuple(parse_quiet(window) for window in windows)
    want = [quiet_until(at_s, parsed) is not None for at_s in instants_s]
    assert quiet_at(connection, windows, instants_s) == want
    if len(windows) == 1:
        assert quiet_at(connection, windows[0], instants_s) == want


def clock_says(window: str, around_s: int) -> set[int]:
    """Return the quiet minutes of three days, read off the local clock minute by minute."""
    *days, hours, zone = window.split()
    begins, ends = (int(one[:2]) * 60 + int(one[3:]) for one in hours.split("-"))
    walls = {at_s: datetime.fromtimestamp(at_s, ZoneInfo(zone)).replace(tzinfo=None)
             for at_s in range(around_s - 3 * 86_400, around_s + 4 * 86_400, 60)}  # fmt: skip
    quiet = set[int]()
    for day in {wall.date() for at_s, wall in walls.items() if abs(at_s - around_s) <= 2 * 86_400}:
        if days and DAYS[day.weekday()] not in days[0].split(","):
            continue
        midnight = datetime.combine(day, time())
        begin = midnight + timedelta(minutes=begins)
        end = midnight + timedelta(minutes=ends if ends > begins else ends + 1440)
        first_s = min(at_s for at_s, wall in walls.items() if wall >= begin)
        last_s = max(at_s for at_s, wall in walls.items() if wall <= end)
        quiet |= set(range(first_s, last_s if walls[last_s] == end else last_s + 60, 60))
    return quiet


@pytest.mark.storm
@settings(max_examples=40, deadline=None)
@example("22:00-02:30 Europe/Berlin", TWICE_S)
@example("02:15-02:45 Europe/Berlin", TWICE_S)
@example("22:00-02:00 Europe/Berlin", TWICE_S)
@example("02:30-06:00 Europe/Berlin", NEVER_S)
@example("22:00-02:30 Europe/Berlin", NEVER_S)
@example("02:15-02:45 Europe/Berlin", NEVER_S)
@given(WINDOW, st.sampled_from(CHANGES))
def test_quiet_hours_follow_the_local_clock(connection: psycopg.Connection[Any], window: str, day_s: int) -> None:
    """From the first instant at which it begins to the last at which it ends, also when clocks change."""
    want, parsed = clock_says(window, day_s), (parse_quiet(window),)
    minutes = list(range(day_s - 86_400, day_s + 86_400, 60))
    assert {at_s for at_s in minutes if quiet_until(at_s, parsed) is not None} == want & set(minutes)
    said = quiet_at(connection, window, minutes)
    assert {at_s for at_s, is_quiet in zip(minutes, said, strict=True) if is_quiet} == want & set(minutes)


@pytest.mark.parametrize("quiet", UNREADABLE, ids=lambda quiet: json.dumps(quiet)[:40])
def test_unreadable_quiet_hours_are_not_quiet_and_raise_nothing(
    connection: psycopg.Connection[Any], quiet: Any
) -> None:
    """An operator's error in SQL stops neither a judgement nor an alert; one bad window of several voids them all."""
    assert quiet_at(connection, quiet, [1_800_000_000]) == [False]


def test_settings_without_quiet_hours_are_never_quiet(connection: psycopg.Connection[Any]) -> None:
    """Nor is a NULL or infinite instant."""
    everyday = """'{"quiet": "00:00-24:00 UTC"}'::jsonb"""
    assert connection.execute(
        f"""SELECT tickwright.quiet_at('{{}}', now()), tickwright.quiet_at({everyday}, NULL),
                   tickwright.quiet_at({everyday}, 'infinity'), tickwright.quiet_at({everyday}, now())"""
    ).fetchone() == (False, False, False, True)
