"""Pure values: durations, leases."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickwright.domain.errors import Rejected
from tickwright.domain.leases import LeaseTerms
from tickwright.domain.time_texts import DURATION_MAX, format_duration, parse_duration

MICROSECOND = timedelta(microseconds=1)


@given(st.integers(0, DURATION_MAX // MICROSECOND))
def test_a_duration_reads_back_as_it_was_written(microseconds: int) -> None:
    """DUR-1: nothing is lost on the way through text."""
    duration = timedelta(microseconds=microseconds)
    assert parse_duration(format_duration(duration)) == duration


@given(st.integers(0, 999), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_a_duration_is_the_sum_of_its_parts(days: int, hours: int, minutes: int, seconds: int, ms: int) -> None:
    """Largest unit first, each once."""
    text = f"{days}d{hours}h{minutes}m{seconds}s{ms}ms"
    expected = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=ms)
    assert parse_duration(text) == expected


@given(st.text(max_size=60))
def test_any_text_is_a_duration_in_range_or_refused_with_its_code(text: str) -> None:
    """No text makes the parser fail in another way."""
    duration, code = timedelta(), "invalid_duration"
    try:
        duration = parse_duration(text)
    except Rejected as error:
        code = error.code
    assert code == "invalid_duration"
    assert timedelta() <= duration <= DURATION_MAX


@pytest.mark.parametrize("text", ["1s1s", "1s1m", "1h1d", "99999999999d"])
def test_units_out_of_order_or_out_of_range_are_refused(text: str) -> None:
    """One duration has one spelling order, and an end."""
    with pytest.raises(Rejected):
        parse_duration(text)


@given(st.floats(0.5, 60), st.floats(0.01, 0.49), st.floats(0, 1e6), st.floats(0, 120))
def test_a_holder_stops_before_its_deadline_and_may_miss_two_renewals(
    ttl_s: float, share: float, renewed_s: float, later_s: float
) -> None:
    """The holder's own clock ends the lease a margin early; three renewals fit into one lease."""
    terms = LeaseTerms(timedelta(seconds=ttl_s), timedelta(seconds=ttl_s * share))
    if terms.holds(renewed_s, renewed_s + later_s):
        assert later_s < ttl_s
    assert terms.renew_every * 3 <= terms.ttl + MICROSECOND * 3
    assert terms.holds(renewed_s, renewed_s)
