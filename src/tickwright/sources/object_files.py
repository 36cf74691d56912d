"""CSV and Parquet files of the object store as sources. Each is fetched once into a folder of this process.

A file becomes a DuckDB database, its rows ordered by one column and numbered, so that a range is read without the rest.
The numbers depend only on the file's bytes: two processes with the same object cut the same ranges. An object that was
replaced meanwhile has another checksum and is refused.
"""

import asyncio
import contextlib
import hashlib
import itertools
import shutil
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from weakref import WeakValueDictionary

from tickwright.domain.errors import Rejected, Unavailable
from tickwright.ports.batches import AudienceFile, FileFacts
from tickwright.ports.objects import ObjectStore
from tickwright.sources.file_sources import FileSource
from tickwright.sources.named import SourceSettings
from tickwright.sources.query_process import (
    ROW_NUMBER,
    TOO_MUCH_MEMORY,
    Failed,
    Load,
    Loaded,
    QueryProcess,
    request_of,
    too_many_bytes,
)

TABLE = "members"
OBJECT_BYTES_MAX = 16 * 1024**3
ROWS_MAX = 100_000_000
UNPACKED_BYTES_FREE = 1024**3
UNPACKED_TIMES_MAX = 100
UNPACKED_BYTES_MAX = 64 * 1024**3
"""Bounds a database and its spilled data, at this many times the file's bytes but at least ``UNPACKED_BYTES_FREE``."""
LOADS_AT_ONCE = 2
LOAD_TIME_MAX = timedelta(hours=1)
"""Of one load, including the wait for a slot."""
POLL_S = 0.25
KEPT = 4
READERS_MAX = 8
INTERRUPT_AGAIN_S = 0.05


class ObjectFiles:
    """Implements :class:`tickwright.ports.batches.AudienceFiles`.

    ``folder`` belongs to this process alone; its files are useless after the process. ``kept`` files without a reader
    are kept for the next reader.
    """

    def __init__(self, objects: ObjectStore, folder: Path, *, kept: int = KEPT) -> None:
        self._objects, self._folder, self._kept = objects, folder, kept
        self._here: list[_Local] = []  # the most recently used is last
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._numbers = itertools.count(1)
        self._slots = asyncio.Semaphore(LOADS_AT_ONCE)
        self._threads = ThreadPoolExecutor(2 * LOADS_AT_ONCE, thread_name_prefix="audience-files")  # for checksums, too
        self._closing: set[asyncio.Future[None]] = set()

    @contextlib.asynccontextmanager
    async def open(self, key: str, order: str, expected: FileFacts | None) -> AsyncIterator[AudienceFile]:
        """Fetch the object unless it is here, and yield it for the block.

        Without ``expected`` it is always fetched, because the caller wants the object that is in the store now.

        Raises:
            Rejected: ``audience_changed``, ``audience_unreadable`` (with DuckDB's text), ``object_missing``,
                ``object_store_refused``. Permanent until an operator acts.
            Unavailable: ``object_store_unavailable``, ``audience_folder_full``; ``source_timeout``: its load, or the
                wait for a slot, took too long. Retry.
        """
        lock = self._locks.setdefault((key, order), asyncio.Lock())
        async with lock:
            local = self._find(key, order, expected) or await self._fetch(key, order, expected)
            local.readers += 1
        try:
            yield AudienceFile(local.source, TABLE, ROW_NUMBER, local.facts)
        finally:
            local.readers -= 1
            await self._evict(self._kept)

    async def aclose(self) -> None:
        """Remove files without a reader. May be called twice."""
        await self._evict(0)

    def _find(self, key: str, order: str, expected: FileFacts | None) -> "_Local | None":
        for local in self._here:
            if (local.key, local.order, local.facts) == (key, order, expected):
                self._here.remove(local)
                self._here.append(local)
                return local
        return None

    async def _fetch(self, key: str, order: str, expected: FileFacts | None) -> "_Local":
        size = await self._objects.size(key)
        if size is not None and size > OBJECT_BYTES_MAX:
            raise Rejected("audience_unreadable", f"{key} has more than {OBJECT_BYTES_MAX} bytes")
        number = next(self._numbers)
        raw, database = self._folder / f"audience-{number}.raw", self._folder / f"audience-{number}.duckdb"
        try:
            await self._objects.fetch_file(key, raw)
            facts = await asyncio.get_running_loop().run_in_executor(self._threads, _facts, raw)
            if expected is not None and facts != expected:
                why = f"{key} is not the file any more that this execution was cut from; start a new execution"
                raise Rejected("audience_changed", why)
            local = self._find(key, order, facts)
            if local is not None:
                return local
            # a kilobyte of Parquet can hold gigabytes
            bytes_max = min(UNPACKED_BYTES_MAX, max(UNPACKED_BYTES_FREE, UNPACKED_TIMES_MAX * facts.bytes))
            await self._load(_Load(key, raw, database, bytes_max), order)
        except OSError as error:
            raise Unavailable("audience_folder_full", f"{self._folder} cannot be written: {error.strerror}") from None
        finally:
            raw.unlink(missing_ok=True)
        local = _Local(key, order, facts, database)
        self._here.append(local)
        return local

    async def _load(self, load: "_Load", order: str) -> None:
        """Load a file when a slot is free, in threads that serve nothing but files of the object store."""
        try:
            async with asyncio.timeout(LOAD_TIME_MAX.total_seconds()), self._slots:
                await load.run(order, self._threads)
        except TimeoutError:
            why = f"{load.key} was not loaded within {LOAD_TIME_MAX}, its wait for a place included"
            raise Unavailable("source_timeout", why) from None

    async def _evict(self, kept: int) -> None:
        """Remove files without a reader, also when the caller is cancelled."""
        unread = [local for local in self._here if local.readers == 0]
        for local in unread[: max(0, len(unread) - kept)]:
            self._here.remove(local)
            local.database.unlink(missing_ok=True)
            closing = asyncio.ensure_future(local.source.aclose())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        if self._closing:
            await asyncio.wait([*self._closing])


class _Local:
    """One object, ordered by one of its columns, in this process's folder."""

    def __init__(self, key: str, order: str, facts: FileFacts, database: Path) -> None:
        self.key, self.order, self.facts, self.database = key, order, facts, database
        url = database.as_uri().replace("file", "duckdb", 1)
        terms = SourceSettings(url="", connections_max=READERS_MAX)
        self.source = FileSource(key, url, terms, lambda: database.parent)
        self.readers = 0


class _Load:
    """Makes the database of one file, in a process that is killed when the caller leaves."""

    def __init__(self, key: str, raw: Path, database: Path, bytes_max: int) -> None:
        self.key, self._raw, self._database, self._bytes_max = key, raw, database, bytes_max
        self._wal, self._spill = Path(f"{database}.wal"), database.with_suffix(".spill")
        self._process: QueryProcess | None = None

    async def run(self, order: str, threads: ThreadPoolExecutor) -> None:
        """Load the file and check the size of the database every ``POLL_S``; on failure, remove everything."""
        running = asyncio.get_running_loop().run_in_executor(threads, self._load, order)
        try:
            while not running.done():
                await asyncio.wait({running}, timeout=POLL_S)
                self._check_bytes()
            running.result()
        except BaseException:
            while not running.done():
                if self._process is not None:
                    self._process.kill()
                with contextlib.suppress(asyncio.CancelledError):  # also after a second cancellation
                    await asyncio.wait({running}, timeout=INTERRUPT_AGAIN_S)  # the first kill may precede the process
            if not running.cancelled():
                running.exception()
            self._database.unlink(missing_ok=True)
            self._wal.unlink(missing_ok=True)
            shutil.rmtree(self._spill, ignore_errors=True)
            raise

    def _check_bytes(self) -> None:
        paths, written = [self._database, self._wal], 0
        with contextlib.suppress(FileNotFoundError):  # nothing is spilled, or it is already removed
            paths.extend(self._spill.iterdir())
        for path in paths:
            with contextlib.suppress(FileNotFoundError):  # DuckDB removes files that it no longer needs
                written += path.stat().st_size
        if written > self._bytes_max:
            raise too_many_bytes(self.key, self._bytes_max)

    def _load(self, order: str) -> None:
        """Load the file in a process that the kernel bounds: the file is untrusted."""
        process = self._process = QueryProcess()
        try:
            wanted = Load(self.key, self._raw, self._database, self._spill, self._bytes_max, ROWS_MAX, order)
            answer = process.answer() if process.begin(request_of(wanted)) else None
            if isinstance(answer, Failed):
                raise answer.problem.error()
            if not isinstance(answer, Loaded):
                how = process.exit_reason()
                if how is None:
                    raise Rejected("audience_unreadable", f"{self.key} cannot be read: {TOO_MUCH_MEMORY}")
                raise Unavailable("source_unavailable", f"{self.key} is not loaded: the process died ({how})")
        finally:
            process.end()


def _facts(path: Path) -> FileFacts:
    with path.open("rb") as opened:
        return FileFacts(path.stat().st_size, hashlib.file_digest(opened, "sha256").hexdigest())
