"""A connection for a few statements: a server that goes silent is hung up on, whatever the driver waits for."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tickwright.domain.errors import Unavailable
from tickwright.store.pool import UNAVAILABLE, Connection, Pool


@asynccontextmanager
async def brief(pool: Pool, seconds: float, unknown: str) -> AsyncIterator[Connection]:
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
