"""Sources that are read in a thread, by a library or from a process: a query is interrupted when nobody waits.

What a query may take and how it ends is the same for all of them; a reader only opens, fetches and closes.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from tickwright.domain.errors import Unavailable
from tickwright.ports.reports import Column
from tickwright.sources.named import SourceTerms

INTERRUPT_AGAIN_S = 0.05
T = TypeVar("T")


class Reader(Protocol):
    """One query; every method but ``interrupt`` is called in the query's thread, one at a time.

    Errors are ``Rejected`` or ``Unavailable`` as :class:`tickwright.ports.reports.Source` says.
    """

    def open(self, sql: str, values: Mapping[str, Any], within: str | None) -> tuple[Column, ...]:
        """Begin the query and return its columns; ``within`` as in :meth:`ThreadedSource.query`."""
        ...

    def fetch(self) -> Sequence[Sequence[Any]]:
        """Return the next rows, some hundreds; none at the end."""
        ...

    def interrupt(self) -> None:
        """Make what runs in the thread end soon. Harmless when nothing runs."""
        ...

    def close(self) -> None:
        """Give back everything. Harmless when nothing was opened."""
        ...


class ThreadedSource:
    """A source of such readers.

    Args:
        name: As in ``[sources.NAME]``.
        terms: Its bounds; ``connections_max`` is the number of threads.
        make: Makes a reader.
    """

    def __init__(self, name: str, terms: SourceTerms, make: Callable[[], Reader]) -> None:
        self.name = name
        self._terms, self._make = terms, make
        self._places = asyncio.Semaphore(terms.connections_max)
        self._threads = ThreadPoolExecutor(terms.connections_max, thread_name_prefix=f"source-{name}")

    @contextlib.asynccontextmanager
    async def query(
        self, sql: str, values: Mapping[str, Any], *, timeout: timedelta, within: str | None = None
    ) -> AsyncIterator["ThreadedRows"]:
        """Run a query and give its rows while they come; leaving early ends it.

        ``within`` is what in ``sql`` is an operator's, in parentheses of ours: one query by itself, so that it cannot
        close them.

        Raises:
            Rejected: ``source_refused`` with what the library says, ``missing_value``, ``invalid_sql``. Permanent.
            Unavailable: ``source_unavailable``, ``source_timeout``. Retry.
        """
        allowed = min(timeout, self._terms.statement_timeout)
        rows = ThreadedRows(self.name, self._threads, self._make(), allowed)
        async with rows.in_time():
            await self._places.acquire()
        try:
            await rows.open(sql, values, within)
            yield rows
        finally:
            try:
                await rows.close()
            finally:
                self._places.release()

    async def aclose(self) -> None:
        """End the threads. Twice is harmless."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class ThreadedRows:
    """An open query."""

    def __init__(self, name: str, threads: ThreadPoolExecutor, reader: Reader, allowed: timedelta) -> None:
        self._name, self._threads, self._reader = name, threads, reader
        self._until = asyncio.get_running_loop().time() + allowed.total_seconds()
        self.columns: tuple[Column, ...] = ()

    @contextlib.asynccontextmanager
    async def in_time(self) -> AsyncIterator[None]:
        """Do what is inside until the query's time is over."""
        try:
            async with asyncio.timeout_at(self._until):
                yield
        except TimeoutError:
            raise Unavailable("source_timeout", f"source {self._name} did not finish the query in time") from None

    async def open(self, sql: str, values: Mapping[str, Any], within: str | None) -> None:
        """Begin the query."""
        self.columns = await self._call(lambda: self._reader.open(sql, values, within))

    async def __aiter__(self) -> AsyncIterator[Sequence[Sequence[Any]]]:
        """Give the rows piece by piece."""
        while piece := await self._call(self._reader.fetch):
            yield piece

    async def close(self) -> None:
        """End the query; its thread is free afterwards."""
        loop = asyncio.get_running_loop()
        try:
            closing = loop.run_in_executor(self._threads, self._reader.close)
        except RuntimeError:  # the source was closed meanwhile
            closing = loop.run_in_executor(None, self._reader.close)
        await self._ended(closing)

    async def _call(self, work: Callable[[], T]) -> T:
        async with self.in_time():
            running = asyncio.get_running_loop().run_in_executor(self._threads, work)
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                await self._ended(running)
                raise

    async def _ended(self, running: "asyncio.Future[Any]") -> None:
        """Interrupt until the thread has ended: the first time may have come before the query began."""
        while not running.done():
            self._reader.interrupt()
            with contextlib.suppress(asyncio.CancelledError):  # whoever cancels twice waits for the thread all the same
                await asyncio.wait({running}, timeout=INTERRUPT_AGAIN_S)
        if not running.cancelled():
            running.exception()
