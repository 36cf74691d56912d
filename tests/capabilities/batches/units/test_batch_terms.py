"""Fields that every batch has: their meaning, their defaults, and that a shown definition can be read again."""

import tomllib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tickwright.capabilities.batches.definitions.schema import (
    BatchSettings,
    Mistakes,
    field_readers,
    first_from,
    settings_of,
)
from tickwright.domain.errors import Rejected


def allow(_: str) -> None:
    """Allow every destination."""


def read(**fields: Any) -> BatchSettings:
    """Return the settings of valid fields."""
    mistakes = Mistakes("batch")
    settings = settings_of(mistakes.read(fields, field_readers(allow)), mistakes)
    mistakes.raise_found()
    assert settings is not None
    return settings


SIX_HOURS: dict[str, Any] = {
    "type": "AUTOMATIC",
    "date_time_execution": "2026-01-05T09:00",
    "time_zone": "Europe/Kyiv",
    "restartable": True,
    "restartable_unit": 6,
    "restartable_unit_type": "HOURS",
}


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("2026-01-05T09:00", "Europe/Kyiv", "2026-01-05T07:00:00Z"),
        ("2026-07-05 09:00:30", "Europe/Kyiv", "2026-07-05T06:00:30Z"),
        ("2026-01-05T09:00:00Z", "Europe/Kyiv", "2026-01-05T09:00:00Z"),
        ("2026-01-05T09:00:00-05:00", "Europe/Kyiv", "2026-01-05T14:00:00Z"),
        ("2026-10-25T03:30", "Europe/Kyiv", "2026-10-25T00:30:00Z"),  # occurs twice: the first instant
        ("2026-01-05T09:00", "UTC", "2026-01-05T09:00:00Z"),
    ],
)
def test_the_first_run_is_an_instant(text: str, zone: str, expected: str) -> None:
    """A local time is in the campaign's zone; one with an offset is taken as it is."""
    settings = read(type="AUTOMATIC", date_time_execution=text, time_zone=zone)
    assert settings.date_time_execution == datetime.fromisoformat(expected)


def test_a_time_that_the_clocks_skip_is_refused() -> None:
    """Its meaning is ambiguous; an instant is always clear."""
    with pytest.raises(Rejected) as caught:
        read(type="AUTOMATIC", date_time_execution="2026-03-29T03:30", time_zone="Europe/Kyiv")
    assert caught.value.code == "invalid_datetime"
    assert "skip 2026-03-29T03:30" in caught.value.message
    read(type="AUTOMATIC", date_time_execution="2026-03-29T01:30:00Z", time_zone="Europe/Kyiv")


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "MANUAL"},
        SIX_HOURS,
        {"type": "AUTOMATIC", "cron": "0  9 * * 1-5", "time_zone": "America/New_York"},
        {**SIX_HOURS, "misfire_grace": "90s", "rate": "3/min", "product_codes": ["B", "A", "B"], "overlap": "queue"},
    ],
)
def test_a_shown_definition_is_read_again_as_the_same(fields: dict[str, Any]) -> None:
    """Every field is shown, with its default where it was left out."""
    settings = read(**fields)
    assert set(settings.document()) == set(field_readers(allow))
    assert read(**settings.document()) == settings
    assert read(**settings.document()).document() == settings.document()


def test_toml_times_are_accepted() -> None:
    """A local one, and one with its offset."""
    local = tomllib.loads('type = "AUTOMATIC"\ntime_zone = "Europe/Kyiv"\ndate_time_execution = 2026-01-05T09:00:00')
    placed = tomllib.loads('type = "AUTOMATIC"\ndate_time_execution = 2026-01-05T09:00:00+02:00')
    assert read(**local).date_time_execution == read(**placed).date_time_execution


def test_the_settings_of_an_execution_have_the_rate_per_second() -> None:
    """However it was written; without one there is no limit."""
    rates = ("1000/s", "60/min", "1800/h", None)
    found = [read(type="MANUAL", rate=rate).for_execution()["rate_per_s"] for rate in rates]
    assert found == [1000.0, 1.0, 0.5, None]


def test_an_occurrence_at_this_very_moment_is_the_next_one() -> None:
    """Activating at nine sharp runs at nine."""
    recurrence = read(**SIX_HOURS).recurrence()
    nine = datetime(2026, 1, 5, 7, tzinfo=UTC)
    assert first_from(recurrence, nine) == nine
    assert first_from(recurrence, nine + timedelta(microseconds=1)) == nine + timedelta(hours=6)


def test_a_code_that_all_errors_share_is_that_of_the_whole() -> None:
    """Otherwise it is the definition's; the position is that of the first error that has one; all are listed."""
    problems = Mistakes("campaign")
    problems.raise_found()
    problem = {"code": "unknown_field", "message": "no", "line": 2, "column": 3}
    placed = Rejected("unknown_field", "no", problems=[problem])
    problems.add_error(placed, "expression")
    with pytest.raises(Rejected) as single:
        problems.raise_found()
    assert (single.value.code, single.value.message) == ("unknown_field", "expression: line 2, column 3: no")
    problems.add_error(
        Rejected("invalid_audience", "x", problems=["audience.key: missing", "audience: no"]), "audience"
    )
    with pytest.raises(Rejected) as many:
        problems.raise_found()
    assert many.value.code == "invalid_campaign"
    assert (many.value.details["line"], many.value.details["column"]) == (2, 3)
    assert [one["field"] for one in many.value.details["problems"]] == ["expression", "audience.key", "audience"]
