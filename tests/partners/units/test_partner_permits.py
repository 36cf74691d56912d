"""The permits of a partner in one process report their share, so that the shared row shrinks only afterwards."""

from datetime import timedelta
from typing import TYPE_CHECKING, cast

import pytest

from tickwright.domain.dbclock import DbClock
from tickwright.partners.model import Grant
from tickwright.partners.outcomes import ANSWERED, Throttled, outcome_of
from tickwright.partners.permits import PartnerPermits
from tickwright.ports.ids import monotonic

if TYPE_CHECKING:
    from tickwright.ports.session import Session


class Held:
    """A session that is held."""

    def holds(self) -> bool:
        """Return that it is held."""
        return True


SESSION = cast("Session", Held())


def test_a_report_has_the_share_in_use_until_its_answer_arrives() -> None:
    """PAR-4: none at first; then the granted one; none after closing."""
    lane = PartnerPermits(1, DbClock(), SESSION, lambda: None)
    assert lane.report()[0].share == 0
    lane.grant(Grant(1.0, share=7), asked_s=0.0, now_s=0.0, listed=True)
    assert lane.report()[0].share == 7
    lane.close()
    assert lane.report()[0].share == 0


def test_a_429_without_a_wait_is_counted_as_throttled_and_is_a_failure_for_the_breaker() -> None:
    """Operators see that there were too many calls; only the breaker slows them down."""
    lane = PartnerPermits(1, DbClock(), SESSION, lambda: None)
    for status, wait in ((429, None), (429, "9"), (503, None)):
        lane.ended(outcome_of(status, wait, now_unix_s=0), trial=False, stale=False)
    lane.ended(ANSWERED, trial=False, stale=False)
    assert lane.outcomes == {"throttled": 2, "failed": 1, "answered": 1}
    seen = lane.report()[0]
    assert (seen.failed, seen.ok) == (2, 1)


def test_a_lost_session_leaves_the_silence_to_report() -> None:
    """CON-2: other counts are dropped with the grants, since the shared state counts calls of live sessions only."""
    lane = PartnerPermits(1, DbClock(), SESSION, lambda: None)
    lane.clock.sample(1000.0, monotonic(), monotonic())
    for outcome in (ANSWERED, Throttled(timedelta(minutes=1))):
        lane.ended(outcome, trial=False, stale=False)
    lane.forget()
    report = lane.report()[0]
    assert report.ok == 0
    assert report.blocked_until_s == pytest.approx(1060, abs=1)
