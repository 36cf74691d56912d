"""Access of fan-out to its stores: whether to ask one at all, and how long a caller waits."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TypeVar

import structlog

from tickwright.domain.errors import Unavailable
from tickwright.ports.ids import monotonic
from tickwright.store.pool import UNAVAILABLE, Connection, Pool

RETRY_S = 2.0

T = TypeVar("T")
_log = structlog.get_logger("tickwright.fanout")


class StoreAvailability:
    """Whether one store answers this process; logs one line when it stops answering and one when it answers again.

    Args:
        event: First part of the log events, such as ``fanout.marks_redis``.
        retry_s: Between two tries while it is unavailable.
    """

    def __init__(self, event: str, *, retry_s: float = RETRY_S) -> None:
        self._event, self._retry_s = event, retry_s
        self._next_try_s = 0.0
        self.unavailable = False

    def should_try(self) -> bool:
        """Return whether to ask it now; while it is unavailable true for one caller in ``retry_s``."""
        if not self.unavailable:
            return True
        now_s = monotonic()
        if now_s < self._next_try_s:
            return False
        self._next_try_s = now_s + self._retry_s
        return True

    async def watch(self, call: Awaitable[T]) -> T:
        """Return the answer, and note whether the store answered.

        Raises:
            Unavailable: It did not. Retry.
        """
        try:
            answer = await call
        except Unavailable as error:
            self._next_try_s = monotonic() + self._retry_s
            if not self.unavailable:
                self.unavailable = True
                _log.warning(f"{self._event}_unavailable", code=error.code, error=error.message)
            raise
        if self.unavailable:
            self.unavailable = False
            _log.warning(f"{self._event}_available")
        return answer


@asynccontextmanager
async def short_connection(pool: Pool, seconds: float, what: str) -> AsyncIterator[Connection]:
    """Yield a connection that is terminated after ``seconds``; acquiring it takes at most as long again.

    A cancel request, and the ROLLBACK after it, would wait for a silent server without a bound. Terminating the
    connection fails everything that waits for it at once. ``what`` is for the error, such as ``publish marks``.

    Raises:
        Unavailable: ``database_unavailable``. The statement may have been executed. Retry.
    """
    try:
        connection = await pool.acquire(timeout=seconds)
        cut = asyncio.get_running_loop().call_later(seconds, connection.terminate)
        try:
            yield connection
        finally:
            cut.cancel()
            await pool.release(connection, timeout=seconds)
    except UNAVAILABLE as error:
        raise Unavailable("database_unavailable", f"no answer about {what}: {error!r}"[:500]) from error
