"""How fan-out asks a store: whether to ask it at all, and for how long it may keep a caller waiting."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TypeVar

import structlog

from tickwright.domain.errors import Unavailable
from tickwright.ports.ids import monotonic
from tickwright.store.pool import UNAVAILABLE, Connection, Pool

TRY_AGAIN_S = 2.0

T = TypeVar("T")
_log = structlog.get_logger("tickwright.fanout")


class StoreAvailability:
    """One store as this process sees it; says one line when it goes and one when it is back.

    Args:
        event: First part of the line, such as ``marks.redis``.
        again_s: Between two tries while it is away, in seconds.
    """

    def __init__(self, event: str, *, again_s: float = TRY_AGAIN_S) -> None:
        self._event, self._again_s = event, again_s
        self._next_s = 0.0
        self.away = False

    def worth_a_try(self) -> bool:
        """Whether to ask it now; while it is away this is true once in a while, for one caller."""
        if not self.away:
            return True
        now = monotonic()
        if now < self._next_s:
            return False
        self._next_s = now + self._again_s
        return True

    async def ask(self, question: Awaitable[T]) -> T:
        """Return the answer, and remember whether there was one.

        Raises:
            Unavailable: There was none. Retry.
        """
        try:
            answer = await question
        except Unavailable as error:
            self._next_s = monotonic() + self._again_s
            if not self.away:
                self.away = True
                _log.warning(f"{self._event}_away", code=error.code, error=error.message)
            raise
        if self.away:
            self.away = False
            _log.warning(f"{self._event}_back")
        return answer


@asynccontextmanager
async def short_connection(pool: Pool, seconds: float, unknown: str) -> AsyncIterator[Connection]:
    """Give a connection that is cut after ``seconds``; getting one takes at most as long again.

    A polite cancel, and the ROLLBACK behind it, would wait for an answer without a bound. A cut connection fails
    everything that waits for it at once.

    Args:
        pool: Where it comes from.
        seconds: For all statements together.
        unknown: What cannot be said when the server does not answer, such as ``who publishes``.

    Raises:
        Unavailable: ``database_unavailable``. What was asked may have been done. Retry.
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
        raise Unavailable("database_unavailable", f"{unknown} is not known: {error!r}"[:500]) from error
