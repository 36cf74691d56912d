"""``Retry-After`` as a date: it is read by the clock of whoever wrote it."""

from datetime import timedelta

import pytest

from tickwright.domain.retry_after import answered_at, parse_retry_after

NOON = 1_795_262_400  # Sat, 21 Nov 2026 12:00:00 GMT
DAY = timedelta(days=1)


@pytest.mark.parametrize("our_clock_s", [NOON - 7200, NOON, NOON + 7200])
def test_a_date_counts_from_the_answers_own_date(our_clock_s: int) -> None:
    """Whatever our clock says, five minutes are five minutes."""
    at = answered_at("Sat, 21 Nov 2026 12:00:00 GMT", now_unix_s=our_clock_s)
    assert parse_retry_after("Sat, 21 Nov 2026 12:05:00 GMT", now_unix_s=at, most=DAY) == timedelta(minutes=5)


@pytest.mark.parametrize("date", [None, "", "yesterday", "x" * 1000, "Sat, 99 Nov 2026 12:00:00 GMT"])
def test_without_a_date_our_clock_has_to_do(date: str | None) -> None:
    """Garbage is none."""
    assert answered_at(date, now_unix_s=NOON) == NOON
    assert parse_retry_after("Sat, 21 Nov 2026 12:05:00 GMT", now_unix_s=NOON, most=DAY) == timedelta(minutes=5)
    assert parse_retry_after("Sat, 21 Nov 2026 11:00:00 GMT", now_unix_s=NOON, most=DAY) == timedelta()
