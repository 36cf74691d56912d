"""The database of a process: the configured URL, or the embedded server.

This module also decides whether a connection may keep a session (LISTEN, session locks, prepared statements). A pooler
answers with a process id of its own, which differs from the backend's. Behind any pooler only single transactions are
used, unless there is a direct URL. In session mode that is correct too, and slightly slower.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import asyncpg
import structlog

from tickwright.domain.errors import TickwrightError
from tickwright.plugin.settings import Settings
from tickwright.store.dsn import shown_url
from tickwright.store.pool import UNAVAILABLE, Pool, connect_to, unavailable

if TYPE_CHECKING:
    from tickwright.embedded import EmbeddedServer

T = TypeVar("T")
POLL_S = 1.0
_log = structlog.get_logger("tickwright.process")


@dataclass(frozen=True, slots=True)
class Database:
    """A database that answers.

    ``direct_url``, for LISTEN and migrations, is ``None`` if there is only a pooler; ``behind_pooler`` if ``url`` is a
    pooler's. ``pool`` is set if all of the process uses one pool that exists; its owner closes it.
    """

    url: str
    direct_url: str | None
    behind_pooler: bool = False
    embedded: bool = False
    pool: Pool | None = None

    @property
    def shown(self) -> str:
        """``url`` without its password."""
        return "the embedded PostgreSQL" if self.embedded else shown_url(self.url)


@asynccontextmanager
async def open_database(settings: Settings) -> AsyncIterator[Database]:
    """Yield the database of this process; without a URL, start the embedded server and stop it at the end.

    Raises:
        Unavailable: It does not answer. Retry.
    """
    if settings.database_url is not None:
        yield await _named_database(settings, settings.database_url.get_secret_value())
        return
    from tickwright.embedded import EmbeddedServer

    server = EmbeddedServer(_server_home(settings.home_folder))
    try:
        # the starting thread cannot be interrupted: wait for it, so that what it started is stopped again
        url = await _finish(asyncio.ensure_future(asyncio.to_thread(_start, server)))
        watching = asyncio.create_task(_keep_running(server))
        try:
            yield Database(url, url, embedded=True)
        finally:
            watching.cancel()
            await asyncio.wait([watching])
    finally:
        await _finish(asyncio.ensure_future(asyncio.to_thread(server.stop)))


async def _keep_running(server: "EmbeddedServer") -> None:
    """Restart the embedded server when it was killed; every process that uses the home does this."""
    while True:
        await asyncio.sleep(POLL_S)
        if await _finish(asyncio.ensure_future(asyncio.to_thread(lambda: server.is_running))):
            continue
        _log.warning("database.embedded_server_gone", advice="starting it again")
        try:
            await _finish(asyncio.ensure_future(asyncio.to_thread(server.start)))
        except TickwrightError as error:
            _log.error("database.embedded_server_not_back", code=error.code, reason=error.message)


async def _finish(task: "asyncio.Future[T]") -> T:
    """Await ``task`` even after a cancellation; then raise the cancellation."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _start(server: "EmbeddedServer") -> str:
    from tickwright.embedded import ensure_database

    server.start()
    return ensure_database(server.dsn)


def _server_home(home: Path) -> Path:
    """Return the server's folder; others may enter ``home``, because the server may run as another user."""
    if not home.exists():
        home.mkdir(parents=True, mode=0o711)
        home.chmod(0o711)  # regardless of the umask
    return home / "postgres"


async def _named_database(settings: Settings, url: str) -> Database:
    direct = settings.direct_database_url
    behind_pooler = await goes_through_pooler(url)
    if direct is not None:
        return Database(url, direct.get_secret_value(), behind_pooler=behind_pooler)
    if behind_pooler:
        _log.warning(
            "database.pooled",
            url=shown_url(url),
            advice="set TICKWRIGHT_DIRECT_DATABASE_URL; without it jobs are found by polling once a second",
        )
        return Database(url, None, behind_pooler=True)
    return Database(url, url)


async def goes_through_pooler(url: str) -> bool:
    """Return whether a pooler such as PgBouncer answers at ``url``.

    Raises:
        Unavailable: ``database_unavailable``; one line, no password. Retry.
    """
    try:
        connection = await connect_to(url, statement_cache_size=0, command_timeout=10)
    except (*UNAVAILABLE, asyncpg.PostgresError, ValueError) as error:
        raise unavailable(url, error) from error
    try:
        return bool(connection.get_server_pid() != await connection.fetchval("SELECT pg_backend_pid()"))
    except UNAVAILABLE as error:
        raise unavailable(url, error) from error
    finally:
        await connection.close(timeout=5)


@contextmanager
def translated() -> Iterator[None]:
    """Translate the database driver's errors in the block to ours; for statements, not for files.

    The first statements of a process run before the loops that retry; the process then ends with one sentence.

    Raises:
        Unavailable: ``database_unavailable``, ``database_read_only``, ``disk_full``, ``busy`` or ``query_too_slow``.
            Retry.
    """
    try:
        yield
    except Exception as error:
        from tickwright.rest.problems import translate

        known = translate(error, of_a_change=False)
        if known is None or known is error:
            raise
        raise known from error
