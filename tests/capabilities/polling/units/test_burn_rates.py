"""Burn rates: windows, thresholds, and when an account burns."""

from datetime import UTC, datetime, timedelta

import pytest

from tickwright.capabilities.polling.trackers.freshness import SLICE, WINDOWS, JudgedCounts, begins, burn_rates

UNTIL = datetime(2030, 5, 17, 13, 7, tzinfo=UTC)


def rates(*shares: float, objective: float = 0.99) -> list[float | None]:
    """Return the rates of six windows of a thousand polls, with these shares stale."""
    counts = [JudgedCounts(1000, 1000 - round(1000 * share)) for share in shares]
    return [one for burn in burn_rates(UNTIL, objective, counts) for one in (burn.rate, burn.short_rate)]


def test_a_window_begins_at_the_border_of_a_slice_and_the_longest_at_midnight() -> None:
    """So that each slice and each folded day is in it whole or not at all."""
    hour, five, six, half, days, six_again = begins(UNTIL)
    assert hour == datetime(2030, 5, 17, 12, 5, tzinfo=UTC)
    assert five == datetime(2030, 5, 17, 13, 0, tzinfo=UTC)
    assert half == datetime(2030, 5, 17, 12, 35, tzinfo=UTC)
    assert six == six_again == datetime(2030, 5, 17, 7, 5, tzinfo=UTC)
    assert days == datetime(2030, 5, 14, tzinfo=UTC)


def test_a_window_is_never_shorter_than_its_name() -> None:
    """Whatever minute was judged last."""
    for minute in range(60):
        until = UNTIL + minute * timedelta(minutes=1)
        long = begins(until)[::2]
        for begin, window in zip(long, WINDOWS, strict=True):
            slack = timedelta(days=1) if window.name == "3d" else SLICE
            assert window.length <= until - begin < window.length + slack


def test_a_rate_of_one_is_what_the_objective_allows() -> None:
    """Without judged polls there is none."""
    assert rates(0.01, 0.02, 0.0, 0.01, 1.0, 0.5) == pytest.approx([1.0, 2.0, 0.0, 1.0, 100.0, 50.0])
    [hour, *_] = burn_rates(UNTIL, 0.99, [JudgedCounts(0, 0)] * 6)
    assert (hour.rate, hour.short_rate, hour.budget_used, hour.burning) == (None, None, None, False)


@pytest.mark.parametrize(
    ("long", "short", "burning"), [(0.15, 0.15, True), (0.15, 0.1, False), (0.1, 0.15, False), (0.144, 0.2, False)]
)
def test_it_burns_when_both_windows_are_above_the_threshold(long: float, short: float, burning: bool) -> None:
    """Neither a problem that is over nor one of a minute counts."""
    counts = [JudgedCounts(1000, 1000 - round(1000 * share)) for share in (long, short)] + [JudgedCounts(0, 0)] * 4
    assert burn_rates(UNTIL, 0.99, counts)[0].burning is burning


def test_an_hour_at_the_threshold_takes_two_hundredths_of_a_month() -> None:
    """As the workbook has it: 14.4 an hour is 2 % of thirty days, 6 over six hours 5 %, 1 over three days 10 %."""
    counts = [JudgedCounts(100_000, 100_000 - round(share * 100_000)) for share in (0.144, 0, 0.06, 0, 0.01, 0)]
    used = [one.budget_used for one in burn_rates(UNTIL, 0.99, counts)]
    assert used == pytest.approx([0.02, 0.05, 0.1])
