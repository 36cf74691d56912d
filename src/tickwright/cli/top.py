"""``tickwright top``: the live view on a database."""

import asyncio

from rich.live import Live

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
            show_json((await look(link.pool)).as_json())
        elif once or not out.is_terminal:
            out.print(
                draw(await look(link.pool), _title(link)) if out.is_terminal else status_line(await look(link.pool))
            )
        else:
            with Live(console=out, screen=True, auto_refresh=False) as live:
                while True:
                    live.update(draw(await look(link.pool), _title(link)), refresh=True)
                    await asyncio.sleep(every_s)


def _title(link: Link) -> str:
    return f"tickwright top · {link.database.shown} · Ctrl-C ends"
