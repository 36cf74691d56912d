"""Waking a sleeping worker without a NOTIFY on every insert.

NOTIFY takes a global lock in commit: sixteen inserting connections fall from 19 to 5 thousand rows a
second when each of them notifies. So the insert trigger stays silent while some worker is awake. A
worker about to sleep takes an exclusive advisory lock, claims once more, and only then sleeps; the
trigger tries the shared side of that lock and notifies only when it cannot have it. No wake-up is
lost: a silent inserter holds the shared lock until its commit, so a worker cannot take the exclusive
one before it can see the row.

The lock and LISTEN belong to a session, so they need a connection that PgBouncer does not pool.
Without one the worker polls once a second, and says so. Notification is a hint, never the only way.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import asyncpg
import structlog

from tickwright.store.pool import Connection, connect

JOBS_CHANNEL = "tickwright_jobs"
CANCEL_CHANNEL = "tickwright_cancel"
TYPES_CHANNEL = "tickwright_types"
_ARM = "SELECT pg_try_advisory_lock(7313, 1)"
_OTHERS_SLEEP = "SELECT NOT pg_try_advisory_xact_lock_shared(7313, 1)"
_DISARM = "SELECT pg_advisory_unlock(7313, 1)"
RECONNECT_S = 1.0

_log = structlog.get_logger("tickwright.jobs")


class Doorbell:
    """A listening connection of one worker, and its side of the lock.

    Attributes:
        rung: Set when somebody should look: an insert rang, or the worker itself calls.
        heard: An insert rang since this was last set back.
        armed: The exclusive lock is ours, so inserts ring.
    """

    def __init__(self, url: str | None, *, cancelled: Callable[[int], None], types_changed: Callable[[], None]) -> None:
        self._url = url
        self._cancelled = cancelled
        self._types_changed = types_changed
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
            _log.warning("jobs.no_notifications", advice="set TICKWRIGHT_DIRECT_DATABASE_URL; polling once a second")
            return
        while True:
            try:
                await self._listen(self._url)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                _log.warning("jobs.doorbell_away", error=repr(error))
            self.armed = False
            self.rung.set()  # whatever came while nobody listened is found by looking
            await asyncio.sleep(RECONNECT_S)

    async def _listen(self, url: str) -> None:
        connection = await connect(url)
        gone = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: gone.set())
            for channel in (JOBS_CHANNEL, CANCEL_CHANNEL, TYPES_CHANNEL):
                await connection.add_listener(channel, self._heard)
            self._connection = connection
            self.rung.set()
            await gone.wait()
        finally:
            self._connection, self.armed = None, False
            with suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await connection.close(timeout=2)

    def _heard(self, _connection: Any, _pid: int, channel: str, payload: str) -> None:
        if channel == JOBS_CHANNEL:
            self.heard = True
            self.rung.set()
        elif channel == TYPES_CHANNEL:
            self._types_changed()
        elif payload.isdigit():
            self._cancelled(int(payload))

    async def arm(self) -> bool:
        """Ask to be woken by inserts; True when the worker may sleep after one more claim."""
        if self.armed:
            return True
        return await self._ask(_ARM, holds=True) or await self._ask(_OTHERS_SLEEP, holds=False)

    async def disarm(self) -> None:
        """Let inserts be silent again: this worker is awake."""
        if self.armed:
            self.armed = False
            await self._ask(_DISARM, holds=False)

    async def _ask(self, sql: str, *, holds: bool) -> bool:
        async with self._using:
            connection = self._connection
            if connection is None:
                return False
            try:
                answer = bool(await connection.fetchval(sql, timeout=5))
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                return False
            if holds:
                self.armed = answer
            return answer
