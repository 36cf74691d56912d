"""DuckDB as a source: ``duckdb:///absolute/path.duckdb``, and ``files:///folder`` with CSV, Parquet and JSON files.

Each query runs in a process that the kernel bounds, :mod:`tickwright.sources.duckdb_program`; this one holds no more of
it than a piece of rows. A process that has answered a query takes the next one: starting one costs more than most
queries. ADR-0029.
"""

import asyncio
import contextlib
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from tickwright.domain.errors import Rejected, Unavailable
from tickwright.domain.placeholders import bind
from tickwright.ports.batches import Dialect
from tickwright.ports.reports import Column
from tickwright.sources.duckdb_messages import (
    Answer,
    Failed,
    KnownTypes,
    Opened,
    Query,
    Rows,
    request_of,
    too_much_memory,
)
from tickwright.sources.duckdb_process import DuckdbProcess
from tickwright.sources.named import SourceTerms, path_of, scheme_of
from tickwright.sources.plain_values import plain
from tickwright.sources.threaded import ThreadedRows, ThreadedSource

A = TypeVar("A", Opened, Rows)
IDLE_S = 30.0
"""How long a process waits for the next query."""
SPILL_BYTES_MAX = 16 * 1024**3
"""Of one query."""


class DuckdbSource(ThreadedSource):
    """A DuckDB database, or a folder of files.

    Args:
        name: As in ``[sources.NAME]``.
        url: With a path.
        terms: Its bounds.
        folder: Returns where queries may spill, called in their threads; ``None`` is the system's temporary folder.

    Raises:
        Rejected: ``invalid_source``. Permanent.
    """

    dialect: Dialect = "duckdb"

    def __init__(self, name: str, url: str, terms: SourceTerms, folder: Callable[[], Path] | None = None) -> None:
        path, is_folder = path_of(name, url), scheme_of(url) == "files"
        known: KnownTypes = {}
        self.processes = DuckdbProcesses()
        self._ending: asyncio.TimerHandle | None = None

        def make() -> ProcessReader:
            return ProcessReader(name, path, known, self.processes, is_folder=is_folder, folder=folder)

        super().__init__(name, terms, make)

    @contextlib.asynccontextmanager
    async def query(
        self, sql: str, values: Mapping[str, Any], *, timeout: timedelta, within: str | None = None
    ) -> AsyncIterator[ThreadedRows]:
        """Run a query; see :meth:`ThreadedSource.query`."""
        try:
            async with super().query(sql, values, timeout=timeout, within=within) as rows:
                yield rows
        finally:
            if self._ending is not None:
                self._ending.cancel()
            self._ending = asyncio.get_running_loop().call_later(IDLE_S, self.processes.end_idle)

    async def aclose(self) -> None:
        """End the processes and the threads. Twice is harmless."""
        if self._ending is not None:
            self._ending.cancel()
        await asyncio.to_thread(self.processes.close)
        await super().aclose()


class DuckdbProcesses:
    """The processes of one source, of which one may be idle; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: set[DuckdbProcess] = set()
        self._idle: DuckdbProcess | None = None
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """The process ids of those that are there."""
        with self._lock:
            return sorted(process.pid for process in self._all)

    def take(self) -> tuple[DuckdbProcess, bool]:
        """Return a process, and whether it is a new one.

        Raises:
            OSError: It cannot be started.
        """
        with self._lock:
            process, self._idle = self._idle, None
        if process is not None:
            return process, False
        process = DuckdbProcess()
        with self._lock:
            self._all.add(process)
            closed = self._closed
        if closed:
            process.kill()
        return process, True

    def keep(self, process: DuckdbProcess) -> None:
        """Take back one that is idle."""
        with self._lock:
            kept = self._idle is None and not self._closed
            if kept:
                self._idle = process
        if not kept:
            self.end(process)

    def end(self, process: DuckdbProcess) -> None:
        """End one; it is gone afterwards."""
        process.end()
        with self._lock:
            self._all.discard(process)

    def end_idle(self) -> None:
        """End the one that is idle."""
        with self._lock:
            process, self._idle = self._idle, None
        if process is not None:
            self.end(process)

    def close(self) -> None:
        """End the one that is idle, and kill those with a query, which fails. Twice is harmless."""
        with self._lock:
            self._closed = True
            for process in self._all:
                process.kill()
        self.end_idle()


class ProcessReader:
    """One query in a process; implements :class:`tickwright.sources.threaded.Reader`."""

    def __init__(
        self,
        name: str,
        path: Path,
        known: KnownTypes,
        processes: DuckdbProcesses,
        *,
        is_folder: bool,
        folder: Callable[[], Path] | None,
    ) -> None:
        self._name, self._path, self._known, self._processes = name, path, known, processes
        self._is_folder, self._folder = is_folder, folder
        self._lock = threading.Lock()
        self._interrupted = False
        self._process: DuckdbProcess | None = None
        self._spill: Path | None = None
        self._readers: list[tuple[int, Callable[[Any], Any]]] = []

    def open(self, sql: str, values: Mapping[str, Any], within: str | None) -> tuple[Column, ...]:
        """Begin the query and return its columns."""
        bound = bind(sql, values, "${}".format)
        given = _parameters(self._name, bound.values)
        try:
            parent = None if self._folder is None else self._folder()
            self._spill = Path(tempfile.mkdtemp(prefix="tickwright-source-", dir=parent))
            text = sql.casefold()
            known = {path: types for path, types in dict(self._known).items() if path.stem.casefold() in text}
            place = (self._path, self._is_folder, self._spill, SPILL_BYTES_MAX)
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

    def interrupt(self) -> None:
        """Kill the process of the query: nothing that a stranger's SQL does can stop that."""
        with self._lock:
            self._interrupted = True
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        """End the process, unless it is idle, and remove what it spilled."""
        self._release(again=False)
        if self._spill is not None:
            shutil.rmtree(self._spill, ignore_errors=True)

    def _begin(self, request: bytes) -> Opened:
        """Give the query to a process and return its first answer; an idle one may have died."""
        while True:
            process, is_new = self._processes.take()
            with self._lock:
                self._process = process
                if self._interrupted:
                    process.kill()
            if process.begin(request):
                return self._checked(process, process.answer(), Opened)
            if is_new:
                raise self._lost(process)
            self._release(again=False)

    def _checked(self, process: DuckdbProcess, answer: Answer | None, kind: type[A]) -> A:
        if isinstance(answer, Failed):
            self._release(again=answer.again)
            raise answer.problem.error()
        if not isinstance(answer, kind):
            raise self._lost(process)
        return answer

    def _lost(self, process: DuckdbProcess) -> Exception:
        if self._interrupted:  # nobody hears this one
            return self._unavailable("the query was ended")
        how = process.death()
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


def _parameters(name: str, values: Sequence[Any]) -> list[Any]:
    try:
        return [_as_parameter(value) for value in values]
    except (TypeError, AttributeError, ValueError, RecursionError) as error:
        raise Rejected("source_refused", f"source {name} takes no such value: {error}") from None


def _as_parameter(value: Any) -> Any:
    if isinstance(value, Mapping):
        return msgspec.json.encode(dict(value), enc_hook=plain).decode()
    made = plain(value)
    return str(made) if isinstance(made, Decimal | UUID) else made


def _document(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode().replace(b"\n", b" ").replace(b"\r", b" "))


_READERS: Mapping[str, Callable[[str], Any]] = {"JSON": _document, "HUGEINT": int}
"""Of types whose values come as texts."""
