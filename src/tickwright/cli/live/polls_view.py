"""What is polled now, as a picture: how level the next minute is, and what became of the last turns."""

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tickwright.capabilities.operations.overview.views import PollsNow
from tickwright.cli.live.spark import spark

_STATES = {"called": "green", "breaker open": "red", "paused": "yellow"}


def polls_line(picture: PollsNow) -> str:
    """Return a picture in one line."""
    polled, late = (sum(getattr(one, name) for one in picture.partners) for name in ("polled", "late"))
    return (
        f"trackers ≈{picture.trackers} · next minute {sum(picture.ahead)} polls, at most {max(picture.ahead)}/s · "
        f"last ten minutes: polled {polled}, late {late} · {_fresh(picture)}"
    )


def _fresh(picture: PollsNow) -> str:
    if picture.fresh_ratio is None:
        return "fresh: no poll is judged yet"
    return f"fresh {picture.fresh_ratio:.2%}, {picture.lagging_accounts} of {picture.judged_accounts} accounts lag"


def draw_polls(picture: PollsNow) -> RenderableType:
    """Return a picture for a terminal: sixty seconds ahead as bars, one cron beside it, a line per partner."""
    load_ = Text.assemble(
        ("next minute  ", "dim"),
        (spark(picture.ahead), "cyan"),
        f"  {sum(picture.ahead)} polls, at most {max(picture.ahead)}/s",
        ("   (one cron: all ", "dim"),
        (str(picture.trackers), "red"),
        (" in its first second)", "dim"),
    )
    fresh = Text.assemble(
        ("accounts     ", "dim"), _fresh(picture), ("   highest lag ", "dim"), ", ".join(picture.worst_accounts)
    )
    partners = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("partner", "now", "polls/s", "allowed", "selected/10 min", "polled", "late", "superseded"):
        partners.add_column(column, no_wrap=True, justify="left" if column in {"partner", "now"} else "right")
    for one in picture.partners:
        shown = ("polls_per_s", "allowed", "selected", "polled", "late", "superseded")
        numbers = (escape(str(getattr(one, name))) for name in shown)
        partners.add_row(escape(one.name), Text(one.state, style=_STATES.get(one.state, "magenta")), *numbers)
    return Group(load_, fresh, Text(), partners)
