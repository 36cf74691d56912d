"""Opening a program's app on a database of tests, isolated in one transaction or committing for real."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, cast

from tickwright import Tickwright
from tickwright.app.program import Bench
from tickwright.domain.errors import Rejected
from tickwright.engine.payload_keys import PayloadKeys
from tickwright.process.database import Database
from tickwright.process.settings import load_settings
from tickwright.store.pool import Pool, open_pool
from tickwright.testing.clock import DatabaseClock
from tickwright.testing.databases import ScratchDatabase
from tickwright.testing.isolation import isolated_pool

CONNECTIONS_MAX = 8
TEST_KEYS = PayloadKeys([("test", bytes(range(32)))])
"""Of apps that were created without keys, so that encrypted types work in tests."""


class SharedPool:
    """The pool of one test: opened with the first of its apps, and closed with the last."""

    def __init__(self, database: ScratchDatabase, *, isolated: bool) -> None:
        self.database, self._isolated = database, isolated
        self._users = 0
        self._stack = AsyncExitStack()
        self._pool: Pool | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Pool]:
        """Yield the pool."""
        if self._pool is None:
            self._pool = await self._stack.enter_async_context(self._open())
        self._users += 1
        try:
            yield self._pool
        finally:
            self._users -= 1
            if not self._users:
                self._pool = None
                await self._stack.aclose()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Pool]:
        if self._isolated:
            async with isolated_pool(self.database.url) as isolated:
                yield cast("Pool", isolated)
            return
        pool = await open_pool(self.database.url, max_size=CONNECTIONS_MAX)
        try:
            yield pool
        finally:
            pool.terminate()  # a test that failed may still hold a connection


class AppUnderTest:
    """Opens an app on a test's database: ``async with``, or ``with`` in a synchronous test; yields the app.

    Settings of the environment do not count, except those that the app was created with. The app's lifespans open when
    a drain begins, unless ``resources`` take their place.

    Raises:
        Rejected: ``app_already_open``; what opening raises. Permanent.
    """

    def __init__(
        self, app: Tickwright, pool: SharedPool, *, isolated: bool, resources: Mapping[str, Any] | None = None
    ) -> None:
        self._app, self._pool, self._isolated, self._resources = app, pool, isolated, resources

    async def __aenter__(self) -> Tickwright:
        self._prepare()
        try:
            return await self._app.__aenter__()
        except BaseException:
            self._app.bench = None
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._app.__aexit__(kind, error, trace)
        finally:
            self._app.bench = None

    def __enter__(self) -> Tickwright:
        self._prepare()
        try:
            return self._app.__enter__()
        except BaseException:
            self._app.bench = None
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._app.__exit__(kind, error, trace)
        finally:
            self._app.bench = None

    def _prepare(self) -> None:
        if self._app.bench is not None:
            raise Rejected("app_already_open", "this app object is open already; use it, or make another one")
        given = {"payload_keys": TEST_KEYS, **self._app.own_settings, "database_url": self._pool.database.url}
        settings = load_settings(**given)
        self._app.bench = Bench(settings, self._database, self._resources)

    @asynccontextmanager
    async def _database(self) -> AsyncIterator[Database]:
        database, bench = self._pool.database, self._app.bench
        async with self._pool.opened() as pool:
            if database.is_movable and bench is not None:
                bench.clock = DatabaseClock(pool)
            direct = None if self._isolated else database.url
            yield Database(database.url, direct, pool=pool)


OpenApp = Callable[..., AppUnderTest]
"""The fixture ``tickwright_app``: ``tickwright_app(app, isolated=True, resources=None)``."""
