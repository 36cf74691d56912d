"""Waking a sleeping loop without a NOTIFY on every insert: ADR-0004.

NOTIFY takes a global lock in commit: sixteen inserting connections fall from 19 to 5 thousand rows a second when each
of them notifies. So an insert trigger stays silent while some loop is awake. A loop about to sleep takes the exclusive
side of an advisory lock, looks once more, and only then sleeps. The trigger tries the shared side and notifies only
when it cannot have it. A silent inserter holds the shared side until its commit, so no wake-up is lost: nobody can take
the exclusive side before he can see the row.

The lock and LISTEN belong to a session, so they need a connection that PgBouncer does not pool; without one the loop
polls, and says so. Notification is a hint, never the only way.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Literal

import structlog

from tickwright.store.pool import UNAVAILABLE, Connection, connect
from tickwright.store.queries import load

_SQL = load("tickwright.engine.sql", "bell.sql")
RECONNECT_S = 1.0
ASK_S = 5.0
NOTHING: Mapping[str, Callable[[str], None]] = MappingProxyType({})
Armed = Literal["new", "kept", "refused"]

_log = structlog.get_logger("tickwright.bell")


class Bell:
    """A listening connection and its side of the lock.

    Args:
        url: A direct URL; ``None`` for polling only.
        channel: What the trigger notifies.
        lock: The two numbers of the advisory lock.
        beside: Other channels that are heard on the connection, and who is told what comes there.

    Attributes:
        rung: Set when somebody should look: an insert rang, the connection is new or lost, or the loop itself calls.
        heard: An insert rang since its owner last set this back.
        armed: The exclusive side is ours, so inserts ring.
    """

    def __init__(
        self,
        url: str | None,
        *,
        channel: str,
        lock: tuple[int, int],
        beside: Mapping[str, Callable[[str], None]] = NOTHING,
    ) -> None:
        self._url, self._channel, self._lock, self._beside = url, channel, lock, beside
        self._connection: Connection | None = None
        self._using = asyncio.Lock()
        self.rung = asyncio.Event()
        self.heard = False
        self.armed = False

    @property
    def works(self) -> bool:
        """Whether notifications can arrive now."""
        return self._connection is not None and not self._connection.is_closed()

    async def run(self) -> None:
        """Keep the listening connection open until cancelled."""
        if self._url is None:
            _log.warning("bell.no_notifications", channel=self._channel, advice="set TICKWRIGHT_DIRECT_DATABASE_URL")
            return
        while True:
            try:
                await self._listen(self._url)
            except UNAVAILABLE as error:
                _log.warning("bell.away", channel=self._channel, error=repr(error))
            self.armed = False
            self.rung.set()  # whatever came while nobody listened is found by looking
            await asyncio.sleep(RECONNECT_S)

    async def _listen(self, url: str) -> None:
        connection = await connect(url)
        gone = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: gone.set())
            for channel in (self._channel, *self._beside):
                await connection.add_listener(channel, self._heard)
            self._connection = connection
            self.rung.set()
            await gone.wait()
        finally:
            self._connection, self.armed = None, False
            with suppress(*UNAVAILABLE):
                await connection.close(timeout=2)

    def _heard(self, _connection: Any, _pid: int, channel: str, payload: str) -> None:
        if channel == self._channel:
            self.heard = True
            self.rung.set()
        else:
            self._beside[channel](payload)

    async def arm(self) -> Armed:
        """Ask to be woken by inserts.

        Returns:
            ``new``: from now on; look once more, then sleep. ``kept``: as before, or another one who sleeps has the
            lock and inserts ring for everybody; sleep. ``refused``: an insert is on its way, or nobody listens; stay
            awake.
        """
        if self.armed:
            return "kept"
        if await self._ask("arm"):
            self.armed = True
            return "new"
        return "kept" if await self._ask("others_sleep") else "refused"

    async def disarm(self) -> None:
        """Let inserts be silent again: this loop is awake."""
        if self.armed:
            self.armed = False
            await self._ask("disarm")

    async def _ask(self, query: str) -> bool:
        async with self._using:
            if self._connection is None:
                return False
            try:
                return bool(await self._connection.fetchval(_SQL[query], *self._lock, timeout=ASK_S))
            except UNAVAILABLE:
                return False
