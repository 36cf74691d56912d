"""Durations are numbers with units; nothing else is one."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickwright.domain.durations import DURATION_MAX, parse_duration, show_duration
from tickwright.domain.errors import Rejected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30s", timedelta(seconds=30)),
        ("250ms", timedelta(milliseconds=250)),
        ("1.5h", timedelta(minutes=90)),
        ("1m30s", timedelta(seconds=90)),
        ("2d", timedelta(days=2)),
        ("0s", timedelta()),
    ],
)
def test_a_number_with_a_unit_is_a_duration(text: str, expected: timedelta) -> None:
    """Every unit counts, alone, with a fraction, or in a row."""
    assert parse_duration(text) == expected


@pytest.mark.parametrize("text", ["5", "", "s", "-5s", "5 s", "5sec", "1e3s", "5s ", "٥s", "s5", "5.s", "1_0s", "∞"])
def test_anything_else_is_refused_with_a_remedy(text: str) -> None:
    """No unit, no sign, no space, no foreign digit, no guess."""
    with pytest.raises(Rejected, match="30s") as refused:
        parse_duration(text)
    assert refused.value.code == "invalid_duration"


def test_a_bare_number_is_told_how_to_become_seconds() -> None:
    """The commonest mistake gets its own remedy."""
    with pytest.raises(Rejected, match='write "5s" for seconds'):
        parse_duration("5")


def test_a_duration_beyond_ten_years_is_refused() -> None:
    """A limit on everything."""
    with pytest.raises(Rejected, match="at most"):
        parse_duration("999999999999d")


@given(st.timedeltas(min_value=timedelta(), max_value=DURATION_MAX))
def test_what_is_shown_can_be_read_back(duration: timedelta) -> None:
    """DUR-1: nothing is lost on the way through text."""
    assert parse_duration(show_duration(duration)) == duration
