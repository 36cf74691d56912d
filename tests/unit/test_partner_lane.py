"""What a lane tells of its share, so that the shared row shrinks after it."""

from tickwright.domain.dbclock import DbClock
from tickwright.partners.lane import Lane
from tickwright.partners.model import Grant


class _Held:
    def holds(self) -> bool:
        return True


def test_a_report_says_which_share_is_used_until_its_answer_comes() -> None:
    """PAR-4: nothing at first; then what was granted; a lane that is closed uses none."""
    lane = Lane(1, DbClock(), _Held(), lambda: None)
    assert lane.report()[0].share == 0
    lane.grant(Grant(1.0, share=7), asked_s=0.0, now_s=0.0, listed=True)
    assert lane.report()[0].share == 7
    lane.close()
    assert lane.report()[0].share == 0
