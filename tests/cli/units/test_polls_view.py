"""The picture of polling: bars with their values, and a line that fits into a log."""

import re
from io import StringIO

from rich.console import Console

from tickwright.capabilities.polling.overview import PartnerNow, PollsNow, draw_polls, line_of
from tickwright.plugin.overview import spark

PICTURE = PollsNow(
    trackers=20_000,
    unplaced=0,
    waiting=0,
    oldest_s=0.0,
    unread_records=0,
    published_per_s=None,
    answered_per_s=None,
    fresh_ratio=0.9985,
    lagging_accounts=1,
    judged_accounts=40,
    worst_accounts=["acme (30 min) 140 %"],
    ahead=[10, 11, 9],
    partners=[PartnerNow("dhl", "called", 30, 28, 1, 0, 19.5, "20/s")],
)


def test_the_largest_is_the_highest_bar_and_nothing_is_a_blank() -> None:
    """A level load is a straight line at the top; one peak makes the rest low."""
    assert spark([100, 100, 100]) == "███"
    assert spark([0, 1, 100]) == " ▁█"
    assert spark([]) == ""
    assert spark([0, 0]) == "  "
    assert spark([0.05, None, 0.4]) == "▁ █"


def test_a_line_says_how_level_the_next_minute_is() -> None:
    """The greatest number of one second is beside the sum."""
    assert "next minute 30 polls, at most 11/s" in line_of(PICTURE)
    assert "polled 28, late 1" in line_of(PICTURE)
    assert "fresh 99.85%, 1 of 40 accounts lag" in line_of(PICTURE)


def test_the_picture_sets_the_level_load_against_one_cron_and_each_partner_against_its_limit() -> None:
    """Bars, freshness, and polls a second beside the limits."""
    console = Console(width=200, record=True, file=StringIO())
    console.print(draw_polls(PICTURE))
    shown = console.export_text()
    assert "one cron: all 20000 in its first second" in shown
    assert "fresh 99.85%, 1 of 40 accounts lag" in shown
    assert "acme (30 min) 140 %" in shown
    assert re.search(r"dhl +called +19\.5 +20/s +30 +28 +1 +0", shown)
