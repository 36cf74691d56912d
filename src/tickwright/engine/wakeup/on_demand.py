"""A channel that a process listens to only while something in it waits for a notification.

Each listening connection of a database costs PostgreSQL a transaction for each commit that notifies, whatever the
channel. So a process that waits for nothing does not listen. A process with roles uses the direct connection that its
roles have. A program without roles opens one with the first use, and closes it some seconds after the last.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from typing import NamedTuple

from tickwright.engine.tasks import is_set_within
from tickwright.engine.wakeup.connection import DirectConnection, Take

LINGER_S = 5.0
"""How long a process listens after the last use."""


class DirectAccess(NamedTuple):
    """How a process may listen.

    Attributes:
        url: A direct URL; ``None`` behind a pooler, or where notifications are off: then it does not listen.
        shared: The direct connection of the process's roles, if it has roles.
    """

    url: str | None
    shared: DirectConnection | None = None


class OnDemandListener:
    """Listens to one channel while it is used; one per process and channel.

    Args:
        take: Called with the payload of each notification.
        changed: Called when it begins to listen and when the connection ends; notifications before may be lost.
    """

    def __init__(self, access: DirectAccess, channel: str, take: Take, changed: Callable[[], None]) -> None:
        self._access, self._channel, self._take, self._changed = access, channel, take, changed
        self._users = 0
        self._unused, self._used_again = asyncio.Event(), asyncio.Event()
        self._direct: DirectConnection | None = None
        self._serving: asyncio.Task[None] | None = None
        self._closed = False
        if access.shared is not None:
            access.shared.on_change(changed)

    @property
    def can_listen(self) -> bool:
        """Whether this process may listen at all."""
        return self._access.url is not None

    @property
    def works(self) -> bool:
        """Whether notifications arrive now."""
        return self._direct is not None and self._direct.works

    @contextmanager
    def used(self) -> Iterator[None]:
        """Listen while the block runs; it does not wait until the connection is open."""
        self._users += 1
        self._unused.clear()
        self._used_again.set()
        if self._serving is None:
            self._start()
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._used_again.clear()
                self._unused.set()

    async def aclose(self) -> None:
        """Listen no more."""
        self._closed = True
        if (serving := self._serving) is not None:
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving

    def _start(self) -> None:
        if self.can_listen and not self._closed:
            self._serving = asyncio.create_task(self._serve(), context=Context())  # it outlives the request

    async def _serve(self) -> None:
        try:
            if self._access.shared is None:
                await self._serve_alone(DirectConnection(self._access.url))
            else:
                await self._serve_shared(self._access.shared)
        finally:
            self._serving = None
            if self._users:  # used again while it ended
                self._start()

    async def _serve_alone(self, direct: DirectConnection) -> None:
        direct.subscribe(self._channel, self._take)
        direct.on_change(self._changed)
        running = asyncio.create_task(direct.run())
        self._direct = direct
        try:
            await self._wait_until_unused()
        finally:
            self._direct = None
            await direct.stop()
            await running

    async def _serve_shared(self, direct: DirectConnection) -> None:
        channels = {self._channel: self._take}
        await direct.listen(channels)
        self._direct = direct
        self._changed()
        try:
            await self._wait_until_unused()
        finally:
            self._direct = None
            await direct.unlisten(channels)

    async def _wait_until_unused(self) -> None:
        """Return when nothing has used it for ``LINGER_S``."""
        while True:
            await self._unused.wait()
            if not await is_set_within(self._used_again, LINGER_S):
                return
