"""Rates as people write them, and their bounds."""

from typing import Any

import pytest

from tickwright.app.declarations import Declarations
from tickwright.domain.errors import Rejected
from tickwright.domain.time_texts import parse_rate
from tickwright.partners.model import STEP_MAX_S, step_of
from tickwright.partners.settings import PartnerSettings, check_settings

TINY = "0." + "0" * 18 + "1/h"


@pytest.mark.parametrize(
    "text", ["0/s", "0.00009/s", "0.35/h", TINY, "0." + "0" * 306 + "1/h", "100001/s", "9" * 400 + "/s"]
)
def test_a_rate_beyond_its_bounds_is_refused(text: str) -> None:
    """The distance between two instants fits into a timestamp, and their number into an integer."""
    with pytest.raises(Rejected, match="at least"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("text", "read"),
    [("0.0001/s", (0.0001, 1)), ("0.36/h", (0.36, 3600)), ("0.006/min", (0.006, 60)), ("100000/s", (100_000.0, 1))],
)
def test_the_bounds_themselves_are_rates(text: str, read: tuple[float, int]) -> None:
    """Whatever the unit."""
    assert parse_rate(text) == read


@pytest.mark.parametrize("declare", ["job", "partner", "batch"])
def test_no_declaration_takes_a_rate_below_the_bound(declare: str) -> None:
    """A program is refused at its start, not at its first call."""
    program = Declarations()

    async def work(_given: Any) -> None: ...

    with pytest.raises(Rejected, match="at least"):
        getattr(program, declare)("slow", rate=TINY)(work)


def test_a_partner_has_no_rate_below_the_bound_and_no_step_that_is_no_timestamp() -> None:
    """Rows are read by the same rule; a step is bounded, whatever the settings came from."""
    with pytest.raises(Rejected, match="at least"):
        check_settings({"rate": TINY})
    assert step_of(PartnerSettings(budgets=((1e-300, 3600),))) == STEP_MAX_S
    assert step_of(check_settings({"per_day": 1})) < STEP_MAX_S
