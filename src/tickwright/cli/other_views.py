"""What stands below the jobs in ``up`` and ``top``: polls, fan-out, reports, executions, where there is any of it."""

from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from tickwright.cli.executions_view import execution_lines, look_at_executions
from tickwright.cli.fanout_view import fanout_line, look_at_fanout
from tickwright.cli.polls_view import draw_polls, look_at_polls, polls_line
from tickwright.cli.reports_view import look_at_reports, reports_line
from tickwright.store.pool import Pool


async def other_lines(pool: Pool) -> list[str]:
    """Return a line for each, for a log or a pipe."""
    lines = []
    if (polls := await look_at_polls(pool)) is not None:
        lines.append(polls_line(polls))
    if (fanout := await look_at_fanout(pool)) is not None:
        lines.append(fanout_line(fanout))
    if (reports := await look_at_reports(pool)) is not None:
        lines.append(reports_line(reports))
    return lines + execution_lines(await look_at_executions(pool))


async def other_pictures(pool: Pool) -> list[RenderableType]:
    """Return the same for a terminal, an empty line before each."""
    parts: list[RenderableType] = []
    if (polls := await look_at_polls(pool)) is not None:
        parts += [Text(), draw_polls(polls)]
    if (fanout := await look_at_fanout(pool)) is not None:
        parts += [Text(), Text(fanout_line(fanout))]
    if (reports := await look_at_reports(pool)) is not None:
        parts += [Text(), Text(reports_line(reports))]
    if executions := await look_at_executions(pool):
        parts += [Text(), *(Text(line) for line in execution_lines(executions))]
    return parts


async def other_json(pool: Pool) -> dict[str, Any]:
    """Return the same as plain values; ``None`` where there is nothing of it."""
    polls, fanout, reports = await look_at_polls(pool), await look_at_fanout(pool), await look_at_reports(pool)
    return {
        "polls": polls and asdict(polls),
        "fanout": fanout and asdict(fanout),
        "reports": reports and asdict(reports),
        "executions": [asdict(one) for one in await look_at_executions(pool)],
    }
