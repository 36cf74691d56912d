"""Durations as people write them."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickwright.domain.errors import Rejected
from tickwright.domain.time_texts import DURATION_MAX, format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("500ms", 0.5),
        ("2h", 7200),
        ("1d", 86400),
        ("1h30m", 5400),
        ("1.5s", 1.5),
        ("0s", 0),
        ("15us", 15e-6),
    ],
)
def test_a_number_with_its_unit_is_a_duration(text: str, seconds: float) -> None:
    """Units are d h m s ms us; several go from large to small."""
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "s",
        "-5s",
        "+5s",
        "5 s",
        " 5s",
        "5s\n",
        "5S",
        "5x",
        "1e3s",
        "30s1m",
        "1m1m",
        "1,5s",
        "٥s",
        "36501d",
        "9" * 50 + "s",
        ".5s",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    """A bare number has no unit, so its meaning is unknown."""
    with pytest.raises(Rejected) as caught:
        parse_duration(text, field="timeout")
    assert (caught.value.code, caught.value.details["field"]) == ("invalid_duration", "timeout")


@given(st.timedeltas(min_value=timedelta(), max_value=DURATION_MAX))
def test_what_is_shown_can_be_read_again(duration: timedelta) -> None:
    """DUR-1."""
    assert parse_duration(format_duration(duration)) == duration
