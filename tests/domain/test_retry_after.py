"""``Retry-After``: a date is read by the clock of the side that wrote it, and seconds are a number."""

from datetime import timedelta

import pytest

from tickwright.domain.retries import answered_at, parse_retry_after

NOON = 1_795_262_400  # Sat, 21 Nov 2026 12:00:00 GMT
DAY = timedelta(days=1)


@pytest.mark.parametrize("our_clock_s", [NOON - 7200, NOON, NOON + 7200])
def test_a_date_counts_from_the_answers_own_date(our_clock_s: int) -> None:
    """Whatever our clock says, five minutes are five minutes."""
    at = answered_at("Sat, 21 Nov 2026 12:00:00 GMT", now_unix_s=our_clock_s)
    assert parse_retry_after("Sat, 21 Nov 2026 12:05:00 GMT", now_unix_s=at, most=DAY) == timedelta(minutes=5)


@pytest.mark.parametrize("date", [None, "", "yesterday", "x" * 1000, "Sat, 99 Nov 2026 12:00:00 GMT"])
def test_without_a_date_the_local_clock_is_used(date: str | None) -> None:
    """An invalid date counts as none."""
    assert answered_at(date, now_unix_s=NOON) == NOON
    assert parse_retry_after("Sat, 21 Nov 2026 12:05:00 GMT", now_unix_s=NOON, most=DAY) == timedelta(minutes=5)
    assert parse_retry_after("Sat, 21 Nov 2026 11:00:00 GMT", now_unix_s=NOON, most=DAY) == timedelta()


@pytest.mark.parametrize(
    ("header", "wait"),
    [
        ("0", timedelta()),
        ("0000060", timedelta(minutes=1)),
        (" 86399 ", DAY - timedelta(seconds=1)),
        ("86400", DAY),
        ("9" * 64, DAY),
        ("0" * 64, timedelta()),
        ("0" * 65, None),
    ],
)
def test_seconds_are_the_number_that_is_written(header: str, wait: timedelta | None) -> None:
    """Leading zeros do not change it; a day at most here, and an oversized header is ignored."""
    assert parse_retry_after(header, now_unix_s=NOON, most=DAY) == wait
