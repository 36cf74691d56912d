"""Which occurrences get work: for any policies and outage each one is decided once; through clock changes by table."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickwright.domain.calendars.occurrences import ON_TIME_MAX, Decision, Policies, decide, spread_offset
from tickwright.domain.calendars.recurrence import Recurrence, describe_cron
from tickwright.domain.errors import Rejected

START = datetime(2026, 3, 28, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
NEW_YORK = "America/New_York"
TICK = timedelta(microseconds=1)
SOME_S = st.integers(0, 30_000).map(lambda seconds: timedelta(seconds=seconds))
RECURRENCES = st.sampled_from([
    Recurrence(None, "UTC", every=MINUTE),
    Recurrence(None, "Europe/Kyiv", every=timedelta(minutes=7)),
    Recurrence(None, "Europe/Kyiv", cron="*/15 * * * *"),
    Recurrence(None, "America/New_York", cron="30 2,14 * * *"),
    Recurrence(START, "America/New_York", every=timedelta(hours=5)),
    Recurrence(START + HOUR, "UTC"),
])  # fmt: skip
POLICIES = st.builds(
    Policies,
    overlap=st.sampled_from(["allow", "skip", "queue", "replace"]),
    misfire=st.sampled_from(["one", "all", "none"]),
    misfire_max=st.integers(1, 20),
    grace=st.sampled_from([timedelta(), MINUTE, HOUR, timedelta(days=7)]),
)


def covered(recurrence: Recurrence, decision: Decision) -> list[datetime]:
    """Return every slot that a decision is about, each as often as it is."""
    slots = list(decision.new)
    for skip in decision.skips:
        found = recurrence.between(skip.slot_at - TICK, skip.until_at, 100_000)
        slots += [slot for slot in found.slots if slot not in decision.new][: skip.slots]
        assert found.count >= skip.slots
    return sorted(slots)


@given(RECURRENCES, SOME_S, SOME_S, POLICIES, st.booleans(), st.sampled_from([timedelta(), 2 * SECOND]))
def test_every_occurrence_is_decided_once(  # noqa: PLR0917  the facts of a decision
    recurrence: Recurrence, begins: timedelta, outage: timedelta, policies: Policies, is_open: bool, ahead: timedelta
) -> None:
    """OCC-1, OCC-2 and OCC-3, after any outage: it has work or is in a skip, and the next slot is later."""
    first = recurrence.next_after(START + begins - TICK)
    if first is None:
        return
    now = first + outage
    decision = decide(recurrence, first, now, policies, is_open=is_open, ahead=ahead)
    again = decide(recurrence, first, now, policies, is_open=is_open, ahead=ahead)
    due = recurrence.between(first - TICK, now + ahead, 100_000)
    counted = len(decision.new) + sum(skip.slots for skip in decision.skips)
    assert again == decision
    assert counted == due.count
    assert set(decision.new) <= set(due.slots)
    assert decision.new == tuple(sorted(set(decision.new)))
    assert decision.next_slot_at == recurrence.next_after(now + ahead)
    if policies.overlap in {"skip", "replace"}:
        assert len(decision.new) <= 1
    assert not (policies.overlap == "skip" and is_open and decision.new)
    assert decision.is_replacing == (policies.overlap == "replace" and bool(decision.new))


@given(RECURRENCES, st.lists(SOME_S, min_size=1, max_size=6), POLICIES)
def test_decisions_one_after_another_leave_nothing_out(
    recurrence: Recurrence, pauses: list[timedelta], policies: Policies
) -> None:
    """OCC-3: however late the producer comes each time, the slots of all its decisions are the occurrences, once."""
    first = recurrence.next_after(START - TICK)
    slots: list[datetime] = []
    now = START
    while first is not None and pauses:
        now = max(now, first) + pauses.pop()
        decision = decide(recurrence, first, now, policies, is_open=False)
        slots += covered(recurrence, decision)
        assert decision.next_slot_at is None or decision.next_slot_at > first
        first = decision.next_slot_at
    assert len(slots) == len(set(slots))
    assert sorted(slots) == list(recurrence.between(START - TICK, now, 100_000).slots)


def test_a_decision_before_the_first_slot_decides_nothing() -> None:
    """A row that is read early keeps its next slot."""
    hourly = Recurrence(None, "UTC", every=HOUR)
    decision = decide(hourly, START + 3 * HOUR, START, Policies(), is_open=False)
    assert decision == Decision((), (), is_replacing=False, next_slot_at=START + 3 * HOUR)


def test_the_work_of_one_decision_is_bounded() -> None:
    """Of more on-time slots the newest get work."""
    minutely = Recurrence(None, "UTC", every=SECOND)
    policies = Policies("allow", grace=timedelta(days=7))
    decision = decide(minutely, START, START + HOUR, policies, is_open=False)
    assert len(decision.new) == ON_TIME_MAX
    assert decision.new[-1] == START + HOUR
    assert [(skip.slots, skip.reason) for skip in decision.skips] == [(3601 - ON_TIME_MAX, "misfire")]


def clocks(recurrence: Recurrence, since: str, until: str) -> list[str]:
    """Return what a wall clock shows at each occurrence that a producer decides about in between."""
    zone = ZoneInfo(recurrence.time_zone)
    begin, end = (datetime.fromisoformat(text).replace(tzinfo=UTC) for text in (since, until))
    first = recurrence.next_after(begin - TICK)
    assert first is not None
    policies = Policies("allow", "all", grace=timedelta(days=7))
    decision = decide(recurrence, first, end, policies, is_open=False)
    assert decision.skips == ()
    return [slot.astimezone(zone).strftime("%d %H:%M%z") for slot in decision.new]


@pytest.mark.parametrize(
    ("zone", "since", "until", "want"),
    [
        ("Europe/Kyiv", "2026-03-28 00:00", "2026-03-30 12:00", ["28 03:30+0200", "29 04:30+0300", "30 03:30+0300"]),
        ("Europe/Kyiv", "2026-10-24 00:00", "2026-10-26 12:00", ["24 03:30+0300", "25 03:30+0300", "26 03:30+0200"]),
        (NEW_YORK, "2026-03-07 06:00", "2026-03-09 12:00", ["07 03:30-0500", "08 03:30-0400", "09 03:30-0400"]),
        (NEW_YORK, "2026-10-31 06:00", "2026-11-02 12:00", ["31 03:30-0400", "01 03:30-0500", "02 03:30-0500"]),
    ],
)  # fmt: skip
def test_a_daily_job_runs_once_on_the_day_of_a_clock_change(zone: str, since: str, until: str, want: list[str]) -> None:
    """A skipped time occurs later by the length of the jump; one that comes twice, at its first instant."""
    assert clocks(Recurrence(None, zone, cron="30 3 * * *"), since, until) == want


@pytest.mark.parametrize(
    ("zone", "cron", "since", "until", "want"),
    [
        ("America/New_York", "30 2 * * *", "2026-03-08 00:00", "2026-03-09 00:00", ["08 03:30-0400"]),
        ("America/New_York", "30 1 * * *", "2026-11-01 00:00", "2026-11-02 00:00", ["01 01:30-0400"]),
    ],
)
def test_a_time_in_the_changed_hour_of_new_york_occurs_once(
    zone: str, cron: str, since: str, until: str, want: list[str]
) -> None:
    """In spring it is moved, in autumn it is not repeated."""
    assert clocks(Recurrence(None, zone, cron=cron), since, until) == want


@pytest.mark.parametrize(
    ("zone", "since", "until", "count"),
    [
        ("Europe/Kyiv", "2026-03-28 22:00", "2026-03-29 21:00", 23),
        ("Europe/Kyiv", "2026-10-24 21:00", "2026-10-25 22:00", 25),
        ("America/New_York", "2026-03-08 05:00", "2026-03-09 04:00", 23),
        ("America/New_York", "2026-11-01 04:00", "2026-11-02 05:00", 25),
    ],
)
@pytest.mark.parametrize(
    ("times", "an_hour"), [({"every": timedelta(minutes=15)}, 4), ({"cron": "*/15 * * * *"}, 4), ({"every": HOUR}, 1)]
)
def test_a_short_step_goes_on_through_a_clock_change(  # noqa: PLR0917  a table
    zone: str, since: str, until: str, count: int, times: dict[str, object], an_hour: int
) -> None:
    """A day of 23 hours has 23 of them, one of 25 hours 25: no gap, and none twice."""
    found = clocks(Recurrence(None, zone, **times), since, until)  # type: ignore[arg-type]
    assert len(found) == len(set(found)) == count * an_hour + 1


@pytest.mark.parametrize(
    ("every", "first_at", "want"),
    [
        (timedelta(days=7), None, ["2026-03-30T00:00+03:00", "2026-04-06T00:00+03:00"]),
        (timedelta(hours=6), None, ["2026-03-28T06:00+02:00", "2026-03-28T12:00+02:00"]),
        (timedelta(days=1), START + timedelta(minutes=90), ["2026-03-28T03:30+02:00", "2026-03-29T04:30+03:00"]),
    ],
)
def test_a_step_counts_from_its_first_run_or_from_a_monday(
    every: timedelta, first_at: datetime | None, want: list[str]
) -> None:
    """Equal on every node and after every edit, and never drifting."""
    steps = Recurrence(first_at, "Europe/Kyiv", every=every)
    first = steps.next_after(START + HOUR)
    assert first is not None
    found = [first, steps.next_after(first)]
    zone = ZoneInfo("Europe/Kyiv")
    assert [slot.astimezone(zone).isoformat(timespec="minutes") for slot in found if slot] == want


@pytest.mark.parametrize(
    "every", [timedelta(0), timedelta(milliseconds=900), timedelta(days=367), timedelta(seconds=1.5)]
)
def test_a_step_has_bounds(every: timedelta) -> None:
    """Whole seconds, from one to a year."""
    with pytest.raises(Rejected, match="every: whole seconds"):
        Recurrence(None, "UTC", every=every)


@pytest.mark.parametrize("other", [{"cron": "@daily"}, {"unit": 1, "unit_type": "HOURS", "first_at": START}])
def test_a_step_is_not_combined(other: dict[str, object]) -> None:
    """One of them says when it occurs."""
    with pytest.raises(Rejected) as refused:
        Recurrence(**{"first_at": None, "time_zone": "UTC", "every": HOUR, **other})  # type: ignore[arg-type]
    assert refused.value.code == "invalid_recurrence"


@given(st.text(min_size=1, max_size=100), st.timedeltas(timedelta(), timedelta(days=1)))
def test_a_spread_is_inside_its_window_and_stays(key: str, window: timedelta) -> None:
    """SPR-1, and the lower bound."""
    offset = spread_offset(key, window)
    assert timedelta() <= offset < max(window, TICK)
    assert offset == spread_offset(key, window)


def test_a_spread_is_even_and_the_same_in_every_release() -> None:
    """SPR-1 by value; ten bins of 10,000 names differ from level by less than a tenth."""
    assert spread_offset("nightly", HOUR) == timedelta(milliseconds=1_307_926)
    bins = [0] * 10
    for number in range(10_000):
        bins[spread_offset(f"s{number}", 10 * MINUTE) // MINUTE] += 1
    assert min(bins) > 900
    assert max(bins) < 1_100


def test_a_cron_expression_is_described_in_words() -> None:
    """For lists and forms; names of expressions too."""
    assert describe_cron("0 3 * * *") == "At 03:00 every day"
    assert describe_cron("@weekly") == "At 00:00 on Sunday"
