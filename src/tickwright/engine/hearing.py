"""Hearing that rows have changed: LISTEN on a connection of its own, kept open for as long as somebody wants to hear.

What came while nobody listened is found by looking, so events are also set when hearing begins and when it ends; who
waits looks by itself as often as it has to while ``works`` is false.
"""

import asyncio
from contextlib import suppress

import structlog

from tickwright.domain.errors import TickwrightError
from tickwright.ports.ids import monotonic
from tickwright.store.pool import UNAVAILABLE, connect

LOOK_S = 1.0

_log = structlog.get_logger("tickwright.hearing")


class Hearing:
    """One channel for all loops of a process that want to hear it; a :class:`tickwright.ports.service.Service`.

    Args:
        name: Of the service.
        url: A direct URL; ``None`` where there is none, behind PgBouncer: then nothing is heard.

    Attributes:
        works: Whether notifications can arrive now.
    """

    def __init__(self, name: str, url: str | None, channel: str) -> None:
        self._name, self._url, self._channel = name, url, channel
        self._events: list[asyncio.Event] = []
        self._stopping = asyncio.Event()
        self._ticked_s: float | None = None
        self.works = False

    @property
    def name(self) -> str:
        """Of the service."""
        return self._name

    def subscribe(self) -> asyncio.Event:
        """Return an event that is set with all news from now on; its owner clears it before he looks."""
        event = asyncio.Event()
        self._events.append(event)
        return event

    def tell(self) -> None:
        """Set every event: something in this process changed."""
        for event in self._events:
            event.set()

    async def run(self) -> None:
        """Listen until stopped."""
        if self._url is None:
            _log.warning("hearing.nothing", channel=self._channel, advice="set TICKWRIGHT_DIRECT_DATABASE_URL")
        while not self._stopping.is_set():
            if self._url is not None:
                try:
                    await self._hear(self._url)
                except (*UNAVAILABLE, TickwrightError) as error:
                    _log.warning("hearing.failed", channel=self._channel, error=repr(error))
            await self._rest(self._stopping)

    async def _hear(self, url: str) -> None:
        connection = await connect(url)
        over = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: over.set())
            await connection.add_listener(self._channel, lambda *_: self.tell())
            self._say(works=True)
            while not (over.is_set() or self._stopping.is_set()):
                await self._rest(over)
        finally:
            self._say(works=False)
            with suppress(*UNAVAILABLE):
                await connection.close(timeout=2)

    async def _rest(self, event: asyncio.Event) -> None:
        self._ticked_s = monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await event.wait()

    async def quiesce(self) -> None:
        """Hear on: what still runs may wait for news."""

    async def stop(self) -> None:
        """Hear nothing more, within a second."""
        self._stopping.set()

    def last_tick_age_s(self) -> float | None:
        """Seconds since it looked whether it hears."""
        return None if self._ticked_s is None else monotonic() - self._ticked_s

    def _say(self, *, works: bool) -> None:
        if works != self.works:
            self.works = works
            self.tell()
