"""``tickwright top``: the live view on a database: jobs, polls, fan-out, reports and executions."""

import asyncio

from rich.console import Group, RenderableType
from rich.live import Live

from tickwright.cli.other_views import other_json, other_lines, other_pictures
from tickwright.cli.output import console, show_json
from tickwright.cli.view import draw, look, status_line
from tickwright.wiring.link import Link, open_link
from tickwright.wiring.settings import Settings


def run_top(settings: Settings, *, every_s: float, once: bool, as_json: bool) -> None:
    """Look again and again until Ctrl-C, or once."""
    asyncio.run(_run(settings, every_s, once=once, as_json=as_json))


async def _run(settings: Settings, every_s: float, *, once: bool, as_json: bool) -> None:
    async with open_link(settings, declare=False) as link:
        out = console()
        if as_json:
            show_json((await look(link.pool)).as_json() | await other_json(link.pool))
        elif not out.is_terminal:
            out.print(await _lines(link))
        elif once:
            out.print(await _picture(link))
        else:
            with Live(console=out, screen=True, auto_refresh=False) as live:
                while True:
                    live.update(await _picture(link), refresh=True)
                    await asyncio.sleep(every_s)


async def _picture(link: Link) -> RenderableType:
    """Return the jobs, and below them what else there is."""
    return Group(draw(await look(link.pool), _title(link)), *await other_pictures(link.pool))


async def _lines(link: Link) -> str:
    return "\n".join([status_line(await look(link.pool)), *await other_lines(link.pool)])


def _title(link: Link) -> str:
    return f"tickwright top · {link.database.shown} · Ctrl-C ends"
