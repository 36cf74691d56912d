"""What stands below the jobs in ``up`` and ``top``: polls, fan-out, reports, executions, where there is any of it."""

from rich.console import RenderableType
from rich.text import Text

from tickwright.capabilities.operations.overview.views import OverviewView
from tickwright.cli.live.executions_view import execution_lines
from tickwright.cli.live.fanout_view import fanout_line
from tickwright.cli.live.polls_view import draw_polls, polls_line
from tickwright.cli.live.reports_view import reports_line


def other_lines(view: OverviewView) -> list[str]:
    """Return a line for each, for a log or a pipe."""
    lines = [polls_line(view.polls)] if _polls(view) else []
    return lines + _plain_lines(view)


def other_pictures(view: OverviewView) -> list[RenderableType]:
    """Return the same for a terminal, an empty line before each kind."""
    parts: list[RenderableType] = [Text(), draw_polls(view.polls)] if _polls(view) else []
    if lines := _plain_lines(view):
        parts += [Text(), *(Text(line) for line in lines)]
    return parts


def _polls(view: OverviewView) -> bool:
    return bool(view.polls.trackers or view.polls.unplaced)


def _plain_lines(view: OverviewView) -> list[str]:
    fanout, reports = view.fanout, view.reports
    lines = [fanout_line(fanout)] if fanout.entities or fanout.consumers else []
    if reports.waiting or reports.running or reports.finished or reports.failed or reports.last is not None:
        lines.append(reports_line(reports))
    return lines + execution_lines(view.executions.latest)
