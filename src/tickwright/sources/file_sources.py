"""Files as sources, each query in a process that the kernel bounds.

``sqlite:///absolute/path``, ``duckdb:///absolute/path``, and ``files:///folder`` with CSV, Parquet and JSON files.

The libraries run in :mod:`tickwright.sources.query_program`. This process holds one piece of a query's rows at a time.
It ends a query by a kill: one function call of either library can last for days and cannot be interrupted. A process
that has answered takes the next query, because a start costs more than most queries. See ADR-0029.
"""

import asyncio
import contextlib
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar, cast
from uuid import UUID

import msgspec

from tickwright.domain.errors import Rejected, Unavailable
from tickwright.domain.placeholders import bind
from tickwright.ports.reports import Column, Dialect
from tickwright.sources.named import SourceSettings, path_of, scheme_of
from tickwright.sources.query_process import (
    Answer,
    Failed,
    Kind,
    KnownTypes,
    Opened,
    Query,
    QueryProcess,
    Rows,
    request_of,
    too_much_memory,
)
from tickwright.sources.rows import plain

A = TypeVar("A", Opened, Rows)
T = TypeVar("T")
IDLE_S = 30.0
"""How long an idle process waits for the next query."""
SPILL_BYTES_MAX = 16 * 1024**3
"""Per query."""


class FileSource:
    """A database file, or a folder of files, named as in ``[sources.NAME]``, with ``connections_max`` threads.

    ``folder`` returns the folder for spilled data and is called in these threads; ``None`` means the system's.

    Raises:
        Rejected: ``invalid_source``. Permanent.
    """

    def __init__(self, name: str, url: str, terms: SourceSettings, folder: Callable[[], Path] | None = None) -> None:
        self.name, self.processes = name, QueryProcesses()
        self._path, self._kind = path_of(name, url), cast("Kind", scheme_of(url))
        self._terms, self._folder = terms, folder
        self._known: KnownTypes = {}
        self._slots = asyncio.Semaphore(terms.connections_max)
        self._threads = ThreadPoolExecutor(terms.connections_max, thread_name_prefix=f"source-{name}")
        self._ending: asyncio.TimerHandle | None = None

    @property
    def dialect(self) -> Dialect:
        """The SQL dialect of the source."""
        return "sqlite" if self._kind == "sqlite" else "duckdb"

    @contextlib.asynccontextmanager
    async def query(
        self, sql: str, values: Mapping[str, Any], *, timeout: timedelta, within: str | None = None
    ) -> AsyncIterator["FileRows"]:
        """Run a query and yield its rows as they arrive; leaving early ends it.

        ``within`` is the operator's part of ``sql``, which Tickwright has put in parentheses. It must be one query by
        itself, so that it cannot close them.

        Raises:
            Rejected: ``source_refused`` with the library's text, ``missing_value``, ``invalid_sql``. Permanent.
            Unavailable: ``source_unavailable``, ``source_timeout``. Retry.
        """
        allowed = min(timeout, self._terms.statement_timeout)
        reader = ProcessReader(self.name, self._kind, self._path, self._known, self.processes, folder=self._folder)
        rows = FileRows(self.name, self._threads, reader, allowed)
        async with rows.in_time():
            await self._slots.acquire()
        try:
            await rows.open(sql, values, within)
            yield rows
        finally:
            try:
                await rows.close()
            finally:
                self._slots.release()
                self._end_later()

    async def aclose(self) -> None:
        """End the processes and the threads. May be called twice."""
        if self._ending is not None:
            self._ending.cancel()
        await asyncio.to_thread(self.processes.close)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _end_later(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
        self._ending = asyncio.get_running_loop().call_later(IDLE_S, self.processes.end_idle)


class FileRows:
    """An open query on the event loop; blocking work runs in a thread."""

    def __init__(self, name: str, threads: ThreadPoolExecutor, reader: "ProcessReader", allowed: timedelta) -> None:
        self._name, self._threads, self._reader = name, threads, reader
        self._until = asyncio.get_running_loop().time() + allowed.total_seconds()
        self.columns: tuple[Column, ...] = ()

    @contextlib.asynccontextmanager
    async def in_time(self) -> AsyncIterator[None]:
        """Bound the block by the query's time."""
        try:
            async with asyncio.timeout_at(self._until):
                yield
        except TimeoutError:
            raise Unavailable("source_timeout", f"source {self._name} did not finish the query in time") from None

    async def open(self, sql: str, values: Mapping[str, Any], within: str | None) -> None:
        """Start the query."""
        self.columns = await self._call(lambda: self._reader.open(sql, values, within))

    async def __aiter__(self) -> AsyncIterator[Sequence[Sequence[Any]]]:
        """Yield the rows in pieces."""
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
        """Kill the query's process, then wait for the thread, which ends with it."""
        self._reader.kill()
        while not running.done():
            with contextlib.suppress(asyncio.CancelledError):  # also after a second cancellation
                await asyncio.wait({running})
        if not running.cancelled():
            running.exception()


class QueryProcesses:
    """The processes of one source, at most one of them idle. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: set[QueryProcess] = set()
        self._idle: QueryProcess | None = None
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """The ids of the live processes."""
        with self._lock:
            return sorted(process.pid for process in self._all)

    def take(self) -> tuple[QueryProcess, bool]:
        """Return a process, and whether it is a new one.

        Raises:
            OSError: It cannot be started.
        """
        with self._lock:
            process, self._idle = self._idle, None
        if process is not None:
            return process, False
        process = QueryProcess()
        with self._lock:
            self._all.add(process)
            closed = self._closed
        if closed:
            process.kill()
        return process, True

    def keep(self, process: QueryProcess) -> None:
        """Keep an idle process for the next query, or end it if there already is one."""
        with self._lock:
            kept = self._idle is None and not self._closed
            if kept:
                self._idle = process
        if not kept:
            self.end(process)

    def end(self, process: QueryProcess) -> None:
        """End a process and wait until it is gone."""
        process.end()
        with self._lock:
            self._all.discard(process)

    def end_idle(self) -> None:
        """End the idle process."""
        with self._lock:
            process, self._idle = self._idle, None
        if process is not None:
            self.end(process)

    def close(self) -> None:
        """End the idle process and kill the others, whose queries fail. May be called twice."""
        with self._lock:
            self._closed = True
            for process in self._all:
                process.kill()
        self.end_idle()


class ProcessReader:
    """One query in a process. Call every method but ``kill`` in the query's thread, one at a time."""

    def __init__(
        self,
        name: str,
        kind: Kind,
        path: Path,
        known: KnownTypes,
        processes: QueryProcesses,
        *,
        folder: Callable[[], Path] | None,
    ) -> None:
        self._name, self._kind, self._path = name, kind, path
        self._known, self._processes, self._folder = known, processes, folder
        self._lock = threading.Lock()
        self._killed = False
        self._process: QueryProcess | None = None
        self._spill: Path | None = None
        self._readers: list[tuple[int, Callable[[Any], Any]]] = []

    def open(self, sql: str, values: Mapping[str, Any], within: str | None) -> tuple[Column, ...]:
        """Start the query and return its columns."""
        bound = bind(sql, values, ("?{}" if self._kind == "sqlite" else "${}").format)
        given = _parameters(self._name, bound.values, _for_sqlite if self._kind == "sqlite" else _for_duckdb)
        try:
            parent = None if self._folder is None else self._folder()
            self._spill = Path(tempfile.mkdtemp(prefix="tickwright-source-", dir=parent))
            text = sql.casefold()
            known = {path: types for path, types in dict(self._known).items() if path.stem.casefold() in text}
            place = (self._kind, self._path, self._spill, SPILL_BYTES_MAX)
            texts = (str.__str__(bound.sql), given, None if within is None else str.__str__(within))
            opened = self._begin(request_of(Query(self._name, *place, known, *texts)))
        except OSError as error:
            raise self._unavailable(str(error.strerror)) from None
        self._known.update((Path(path), types) for path, types in opened.known.items())
        kinds = enumerate(column.type for column in opened.columns)
        self._readers = [(place, _READERS[kind]) for place, kind in kinds if kind in _READERS]
        return opened.columns

    def fetch(self) -> Sequence[Sequence[Any]]:
        """Return the next rows."""
        if self._process is None:
            return []
        answer = self._checked(self._process, self._process.answer(), Rows)
        if not answer.rows:
            self._release(again=answer.again)
        if not self._readers:
            return answer.rows
        return [self._read(row) for row in answer.rows]

    def kill(self) -> None:
        """Kill the query's process, also one that is taken later; no SQL can prevent it. Harmless after the query."""
        with self._lock:
            self._killed = True
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        """End the process, unless it is idle, and remove spilled data."""
        self._release(again=False)
        if self._spill is not None:
            shutil.rmtree(self._spill, ignore_errors=True)

    def _begin(self, request: bytes) -> Opened:
        """Send the query to a process and return its first answer. Take another process if an idle one has died."""
        while True:
            process, is_new = self._processes.take()
            with self._lock:
                self._process = process
                if self._killed:
                    process.kill()
            if process.begin(request):
                return self._checked(process, process.answer(), Opened)
            if is_new:
                raise self._lost(process)
            self._release(again=False)

    def _checked(self, process: QueryProcess, answer: Answer | None, kind: type[A]) -> A:
        if isinstance(answer, Failed):
            self._release(again=answer.again)
            raise answer.problem.error()
        if not isinstance(answer, kind):
            raise self._lost(process)
        return answer

    def _lost(self, process: QueryProcess) -> Exception:
        if self._killed:  # this error is not shown
            return self._unavailable("the query was ended")
        how = process.exit_reason()
        if how is None:
            return too_much_memory(f"source {self._name}")
        return self._unavailable(f"its process died ({how})")

    def _release(self, *, again: bool) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return
        if again:
            self._processes.keep(process)
        else:
            self._processes.end(process)

    def _read(self, row: Sequence[Any]) -> Sequence[Any]:
        values = list(row)
        for place, read in self._readers:
            if values[place] is not None:
                values[place] = read(values[place])
        return tuple(values)

    def _unavailable(self, why: str) -> Unavailable:
        return Unavailable("source_unavailable", f"source {self._name} is not available: {why}")


def _parameters(name: str, values: Sequence[Any], made: Callable[[Any], Any]) -> list[Any]:
    try:
        return [made(value) for value in values]
    except (TypeError, AttributeError, ValueError, RecursionError) as error:
        raise Rejected("source_refused", f"source {name} takes no such value: {error}") from None


def _for_duckdb(value: Any) -> Any:
    if isinstance(value, Mapping):
        return msgspec.json.encode(dict(value), enc_hook=plain).decode()
    made = plain(value)
    return str(made) if isinstance(made, Decimal | UUID) else made


def _for_sqlite(value: Any) -> Any:
    """Convert a value to a number, text or bytes; a list or document becomes a text for ``json_each``."""
    made = plain(value)
    if isinstance(made, dict | list):
        return msgspec.json.encode(made).decode()
    if isinstance(made, Decimal | UUID):
        return str(made)
    return made.isoformat() if isinstance(made, date | time) else made


def _document(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode().replace(b"\n", b" ").replace(b"\r", b" "))


_READERS: Mapping[str, Callable[[str], Any]] = {"JSON": _document, "HUGEINT": int}
"""Conversions for types whose values arrive as texts."""
