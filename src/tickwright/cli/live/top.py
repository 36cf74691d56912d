"""``tickwright top``: the overview in a terminal, through the API if its URL is set, otherwise from the database."""

import asyncio
import os
import sys
import termios
import tty
from typing import Any, Self

from rich.live import Live
from rich.text import Text

from tickwright.cli.kit.gateway import Gateway, open_gateway
from tickwright.cli.kit.output import console, show_json
from tickwright.cli.live.view import draw, lines
from tickwright.domain.errors import Unavailable
from tickwright.plugin.overview import OverviewParts
from tickwright.plugin.settings import Settings
from tickwright.ports.ids import monotonic
from tickwright.process.installation import overview_parts
from tickwright.store.dsn import shown_url

KNOWN_WITHIN_S = 5.0
AGAIN_S = 0.3


def run_top(settings: Settings, *, every_s: float, once: bool, as_json: bool) -> None:
    """Show the overview until ``q`` or Ctrl-C, or once."""
    asyncio.run(_run(settings, every_s, once=once, as_json=as_json))


async def _run(settings: Settings, every_s: float, *, once: bool, as_json: bool) -> None:
    out, parts = console(), overview_parts()
    async with open_gateway(settings) as gateway:
        if as_json:
            show_json(await _known(gateway))
        elif not out.is_terminal:
            out.print("\n".join(lines(parts.read(await _known(gateway)), parts)), markup=False)
        elif once:
            out.print(draw(parts.read(await _known(gateway)), parts, _title(settings)))
        else:
            with Live(console=out, screen=True, auto_refresh=False) as live, _Keys() as keys:
                await _watch(gateway, parts, live, keys, title=_title(settings), every_s=every_s)


async def _known(gateway: Gateway) -> Any:
    """Query until the rates are known, which takes two heartbeats of a process, or for at most five seconds."""
    until_s = monotonic() + KNOWN_WITHIN_S
    while True:
        try:
            found = await gateway.ask("GET", "/overview")
        except Unavailable:  # a database under load can need another attempt
            if monotonic() > until_s:
                raise
        else:
            if (jobs := found["jobs"]) is None or jobs["started_per_s"] is not None or monotonic() > until_s:
                return found
        await asyncio.sleep(AGAIN_S)


async def _watch(
    gateway: Gateway, parts: OverviewParts, live: Live, keys: "_Keys", *, title: str, every_s: float
) -> None:
    while not keys.ended.is_set():
        if not keys.is_held:
            try:
                live.update(draw(parts.read(await gateway.ask("GET", "/overview")), parts, title), refresh=True)
            except Unavailable as error:
                live.update(Text(f"{title}\n\n{error.message}", style="red"), refresh=True)
        await keys.rest(every_s)


class _Keys:
    """Single keys of a terminal: ``q`` ends, ``p`` pauses and resumes the view. The terminal's mode is restored."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.is_held = False
        self._pressed = asyncio.Event()
        self._before: list[Any] | None = None

    def __enter__(self) -> Self:
        if sys.stdin.isatty():
            self._before = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._key_pressed)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)

    def _key_pressed(self) -> None:
        for key in os.read(sys.stdin.fileno(), 64).decode(errors="replace").lower():
            if key == "q":
                self.ended.set()
            elif key == "p":
                self.is_held = not self.is_held
        self._pressed.set()

    async def rest(self, seconds: float) -> None:
        """Wait until the next update is due or a key is pressed."""
        self._pressed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._pressed.wait()
        except TimeoutError:
            return


def _title(settings: Settings) -> str:
    where = settings.api_url
    if where is None:
        url = settings.database_url
        where = "the embedded PostgreSQL" if url is None else shown_url(url.get_secret_value())
    return f"tickwright top · {where} · q ends, p holds"
