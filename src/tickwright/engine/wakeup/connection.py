"""The direct connection of a process: LISTEN, the locks of its sleepers, and the renewals of its session.

PgBouncer does not pool it. One connection serves all roles of a process, because each listening connection of a
database costs PostgreSQL a transaction for each notification, whatever its channel.

A notification is a hint. Those that were sent while no connection listened are lost, so its users are also told when
the connection opens and when it ends; they check for work then, and poll while there is none.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import structlog

from tickwright.domain.errors import TickwrightError
from tickwright.engine.service import LoopService
from tickwright.engine.tasks import is_set_within
from tickwright.store.pool import CANNOT_CONNECT, UNAVAILABLE, Connection, connect

RECONNECT_S = 1.0
QUERY_S = 5.0
CLOSE_S = 2.0

_log = structlog.get_logger("tickwright.wakeup")

Take = Callable[[str], None]
"""Called with the payload of each notification of a channel."""
Change = Callable[[Connection, Iterable[tuple[str, Take]]], Awaitable[None]]


class DirectConnection(LoopService):
    """One connection outside the pool, reopened when it ends; a :class:`tickwright.ports.service.Service`.

    Args:
        url: A direct URL; ``None`` behind a pooler, or where notifications are off: then it never opens.
    """

    name = "direct-connection"

    def __init__(self, url: str | None) -> None:
        super().__init__()
        self._url = url
        self._connection: Connection | None = None
        self._listeners: list[tuple[str, Take]] = []
        self._changed: list[Callable[[], None]] = []
        self._using = asyncio.Lock()
        self._ended = asyncio.Event()

    @property
    def works(self) -> bool:
        """Whether it is open."""
        return self._connection is not None and not self._connection.is_closed()

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call ``changed()`` when the connection has opened, and when it has ended."""
        self._changed.append(changed)

    # ------------------------------------------------------------------ service

    async def _work(self) -> None:
        if self._url is None:
            _log.warning("wakeup.polling_only", advice="set TICKWRIGHT_DIRECT_DATABASE_URL")
        while not self.stopping.is_set():
            if self._url is not None:
                try:
                    await self._keep_open(self._url)
                except (*CANNOT_CONNECT, TickwrightError) as error:
                    _log.warning("wakeup.listen_failed", error=repr(error))
            self.tick()
            await self.rest(RECONNECT_S)

    async def _keep_open(self, url: str) -> None:
        connection = await connect(url)
        self._ended.clear()
        connection.add_termination_listener(lambda _: self._ended.set())
        try:
            async with self._using:
                await _listen(connection, self._listeners)
                self._connection = connection
            self._tell()
            while not (self._ended.is_set() or self.stopping.is_set()):
                self.tick()
                await is_set_within(self._ended, RECONNECT_S)
        finally:
            self._connection = None
            self._tell()
            with suppress(*UNAVAILABLE):
                await connection.close(timeout=CLOSE_S)

    def _tell(self) -> None:
        for changed in self._changed:
            changed()

    def request_stop(self) -> None:
        """Ask the connection to close, without waiting."""
        super().request_stop()
        self._ended.set()

    async def quiesce(self) -> None:
        """Stay open: tasks that still run may wait for notifications."""

    async def stop(self) -> None:
        """Close at once."""
        self.request_stop()

    # ------------------------------------------------------------------ use

    def subscribe(self, channel: str, take: Take) -> None:
        """Listen to a channel from the next opening on: for what is built before the connection opens."""
        self._listeners.append((channel, take))

    async def listen(self, channels: Mapping[str, Take]) -> None:
        """Listen to channels, now or as soon as the connection is open."""
        async with self._using:
            self._listeners += channels.items()
            await self._change(_listen, channels)

    async def unlisten(self, channels: Mapping[str, Take]) -> None:
        """End what :meth:`listen` began."""
        async with self._using:
            for listener in channels.items():
                self._listeners.remove(listener)
            await self._change(_unlisten, channels)

    async def _change(self, change: Change, channels: Mapping[str, Take]) -> None:
        """Change what an open connection listens to. One that does not answer is opened again, with all channels."""
        connection = self._connection
        if connection is None:
            return
        try:
            async with asyncio.timeout(QUERY_S):
                await change(connection, channels.items())
        except UNAVAILABLE:
            connection.terminate()

    async def fetchval(self, sql: str, *args: Any) -> Any:
        """Return one value; ``None`` while the connection is not open."""
        async with self.lent() as connection:
            if connection is None:
                return None
            try:
                return await connection.fetchval(sql, *args, timeout=QUERY_S)
            except UNAVAILABLE:
                return None

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[Connection | None]:
        """Lend the connection for a short use; ``None`` while it is not open. An error of the user ends it."""
        async with self._using:
            connection = self._connection if self.works else None
            try:
                yield connection
            except BaseException:
                if connection is not None:
                    connection.terminate()
                raise


async def _listen(connection: Connection, listeners: Iterable[tuple[str, Take]]) -> None:
    async with connection.transaction():  # one for all channels
        for channel, take in listeners:
            await connection.add_listener(channel, _Receiver(take))


async def _unlisten(connection: Connection, listeners: Iterable[tuple[str, Take]]) -> None:
    async with connection.transaction():
        for channel, take in listeners:
            await connection.remove_listener(channel, _Receiver(take))


@dataclass(frozen=True, slots=True)
class _Receiver:
    """A callback of the driver; equal if it calls the same function."""

    take: Take

    def __call__(self, _connection: object, _pid: int, _channel: str, payload: str) -> None:
        self.take(payload)
