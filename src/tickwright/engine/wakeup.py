"""Wake-up notifications: LISTEN on a connection that PgBouncer does not pool, and that is reopened when it ends.

A notification is a hint; a loop also polls. Notifications that were sent while no connection listened are lost, so
events are also set when listening begins and ends. While no notification can arrive, loops poll more often.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from types import MappingProxyType
from typing import Literal

import structlog

from tickwright.domain.errors import TickwrightError
from tickwright.engine.service import LoopService
from tickwright.engine.tasks import is_set_within
from tickwright.store.pool import CANNOT_CONNECT, UNAVAILABLE, Connection, connect
from tickwright.store.queries import load

_SQL = load("tickwright.engine.sql", "wakeup.sql")
RECONNECT_S = 1.0
QUERY_S = 5.0
CLOSE_S = 2.0
_NO_CHANNELS: Mapping[str, Callable[[str], None]] = MappingProxyType({})

_log = structlog.get_logger("tickwright.wakeup")


@asynccontextmanager
async def _listening(
    url: str, channels: Mapping[str, Callable[[str], None]]
) -> AsyncIterator[tuple[Connection, asyncio.Event]]:
    """Listen to channels, each with the function for its payloads; the event is set when the connection ends."""
    connection = await connect(url)
    ended = asyncio.Event()
    try:
        connection.add_termination_listener(lambda _: ended.set())
        for channel, take in channels.items():
            await connection.add_listener(channel, lambda _c, _pid, _channel, payload, take=take: take(payload))
        yield connection, ended
    finally:
        with suppress(*UNAVAILABLE):
            await connection.close(timeout=CLOSE_S)


def _log_polling(channel: str) -> None:
    _log.warning("wakeup.polling_only", channel=channel, advice="set TICKWRIGHT_DIRECT_DATABASE_URL")


class WakeupListener(LoopService):
    """One channel for all loops of a process that wait for it; a :class:`tickwright.ports.service.Service`.

    Without a direct ``url``, behind PgBouncer, no notification arrives. ``works`` shows whether notifications can
    arrive.
    """

    def __init__(self, name: str, url: str | None, channel: str) -> None:
        super().__init__()
        self.name, self._url, self._channel = name, url, channel
        self._events: list[asyncio.Event] = []
        self.works = False

    def subscribe(self) -> asyncio.Event:
        """Return an event that every notification sets; its owner clears it before it checks for work."""
        event = asyncio.Event()
        self._events.append(event)
        return event

    def notify(self) -> None:
        """Set every event, after a change in this process."""
        for event in self._events:
            event.set()

    async def _work(self) -> None:
        if self._url is None:
            _log_polling(self._channel)
        while not self.stopping.is_set():
            if self._url is not None:
                try:
                    await self._listen(self._url)
                except (*CANNOT_CONNECT, TickwrightError) as error:
                    _log.warning("wakeup.listen_failed", channel=self._channel, error=repr(error))
            self.tick()
            await self.rest(RECONNECT_S)

    async def _listen(self, url: str) -> None:
        async with _listening(url, {self._channel: lambda _: self.notify()}) as (_, ended):
            try:
                self._set_works(works=True)
                while not (ended.is_set() or self.stopping.is_set()):
                    self.tick()
                    await is_set_within(ended, RECONNECT_S)
            finally:
                self._set_works(works=False)

    def _set_works(self, *, works: bool) -> None:
        if works != self.works:
            self.works = works
            self.notify()

    async def quiesce(self) -> None:
        """Keep listening: tasks that still run may wait for notifications."""

    async def stop(self) -> None:
        """Stop listening within a second."""
        self.request_stop()


class ArmedWakeup:
    """Wakes one sleeping loop without a NOTIFY at every insert: ADR-0004.

    NOTIFY takes a global lock at commit: with it, sixteen inserting connections fall from 19 to 5 thousand rows a
    second. An insert trigger therefore notifies only while a loop sleeps. A loop that is about to sleep takes the
    exclusive side of an advisory lock, checks once more, and only then sleeps. The trigger tries the shared side, and
    notifies only when it cannot have it. An insert that does not notify holds the shared side until its commit. So no
    wake-up is lost: the exclusive side is free only once the row is visible.

    Args:
        url: A direct URL; ``None`` for polling only.
        lock: The two numbers of the advisory lock.
        others: Other channels on the same connection, each with the function for its payloads.

    Attributes:
        woken: Set when the loop must check for work: an insert notified, the connection is new or lost, or the loop
            set it.
        notified: An insert notified since the loop last cleared this.
        armed: This process has the exclusive side, so inserts notify.
    """

    def __init__(
        self,
        url: str | None,
        *,
        channel: str,
        lock: tuple[int, int],
        others: Mapping[str, Callable[[str], None]] = _NO_CHANNELS,
    ) -> None:
        self._url, self._channel, self._lock = url, channel, lock
        self._channels = {channel: self._notified, **others}
        self._connection: Connection | None = None
        self._using = asyncio.Lock()
        self.woken = asyncio.Event()
        self.notified = False
        self.armed = False

    @property
    def works(self) -> bool:
        """Whether notifications can arrive now."""
        return self._connection is not None and not self._connection.is_closed()

    async def run(self) -> None:
        """Keep the listening connection open until cancelled."""
        if self._url is None:
            _log_polling(self._channel)
            return
        while True:
            try:
                await self._listen(self._url)
            except CANNOT_CONNECT as error:
                _log.warning("wakeup.listen_failed", channel=self._channel, error=repr(error))
            self.armed = False
            self.woken.set()
            await asyncio.sleep(RECONNECT_S)

    async def _listen(self, url: str) -> None:
        async with _listening(url, self._channels) as (connection, ended):
            try:
                self._connection = connection
                self.woken.set()
                await ended.wait()
            finally:
                self._connection, self.armed = None, False

    def _notified(self, _payload: str) -> None:
        self.notified = True
        self.woken.set()

    async def nap(self, seconds: float) -> bool:
        """Wait until ``woken`` is set, at most ``seconds``; clear it and return whether it was."""
        if not await is_set_within(self.woken, seconds):
            return False
        self.woken.clear()
        return True

    async def arm(self) -> Literal["new", "kept", "refused"]:
        """Ask inserts to notify.

        Returns:
            ``new``: inserts notify from now on; check once more, then sleep. ``kept``: armed before, or another sleeper
            has the lock and inserts notify every listener; sleep. ``refused``: an insert is in progress, or there is no
            listening connection; stay awake.
        """
        if self.armed:
            return "kept"
        if await self._query("arm"):
            self.armed = True
            return "new"
        return "kept" if await self._query("others_sleep") else "refused"

    async def disarm(self) -> None:
        """Let inserts skip the notification: this loop is awake."""
        if self.armed:
            self.armed = False
            await self._query("disarm")

    async def _query(self, query: str) -> bool:
        async with self._using:
            if self._connection is None:
                return False
            try:
                return bool(await self._connection.fetchval(_SQL[query], *self._lock, timeout=QUERY_S))
            except UNAVAILABLE:
                return False
