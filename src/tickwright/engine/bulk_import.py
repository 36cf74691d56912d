"""Imports a stream of lines in constant memory: reads line by line, commits in batches, in order.

One transaction commits a batch and updates ``committed_lines`` in the import's audit row, so the two always agree. A
bad line is rejected with its number and reason; the other lines are not affected. The capability defines what a line
is and how a batch is written.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Generic, TypeVar

import structlog

from tickwright.domain.errors import Rejected, TickwrightError, Unavailable
from tickwright.domain.lines import LINE_BYTES_MAX, ImportResult, LineSplitter
from tickwright.ports.caller import Caller
from tickwright.store.audit import update_audit, write_audit
from tickwright.store.pool import UNAVAILABLE, Connection, Pool

BATCH_BYTES_MAX = 4_194_304
TURN_LINES = 1_000

T = TypeVar("T")
_log = structlog.get_logger("tickwright.imports")


class BatchedImport(ABC, Generic[T]):
    """One import of one stream; a capability defines how a line is read and how a batch is written.

    Args:
        action: Stable, such as ``trackers.import``.
        rows_max: A batch is full at this many items, or at 4 MiB of lines.
    """

    def __init__(self, pool: Pool, caller: Caller, *, action: str, subject: str, rows_max: int) -> None:
        self._pool, self._caller = pool, caller
        self._action, self._subject = action, subject
        self._rows_max = rows_max
        self._batch: list[T] = []
        self._batch_bytes = 0
        self.result = ImportResult(rejects=[])

    async def run(self, chunks: AsyncIterator[bytes]) -> ImportResult:
        """Import the stream.

        Args:
            chunks: Bytes as they arrive. What it raises (never an ``OSError``) ends the import and passes through.

        Raises:
            Rejected: ``invalid_columns`` (400): the first line of a CSV file has other columns. Permanent.
            Unavailable: ``import_interrupted`` with ``committed_lines``. Retry with the same stream.
        """
        try:
            await self._begin()
            await self._read(chunks)
        except UNAVAILABLE as error:
            committed = self.result.committed_lines
            _log.warning(f"{self._action}_interrupted", lines=committed, error=repr(error))
            raise Unavailable(
                "import_interrupted",
                f"the database became unavailable; lines up to {committed} are committed, the rest is not",
                committed_lines=committed,
            ) from error
        return self.result

    # ------------------------------------------------------------------ what a capability writes

    async def _learn(self, connection: Connection) -> None:
        """Load, once, what lines are checked against."""

    @abstractmethod
    async def _thing(self, line: bytes, number: int) -> T | None:
        """Return the item of a line; ``None`` where the line has none.

        Raises:
            TickwrightError: The line is rejected. With ``invalid_columns`` the whole import is.
        """

    @abstractmethod
    async def _write(self, connection: Connection, batch: Sequence[T]) -> None:
        """Write a batch, which may be empty, and count it in the result."""

    @property
    def _full(self) -> bool:
        return len(self._batch) >= self._rows_max or self._batch_bytes >= BATCH_BYTES_MAX

    async def _commit(self, batch: Sequence[T], lines: int, *, finished: bool) -> None:
        """Write a batch, and record in the same transaction that every line up to ``lines`` is done."""
        committed = self.result.committed_lines
        try:
            async with self._pool.acquire() as connection, connection.transaction():
                await self._write(connection, batch)
                self.result.committed_lines = lines
                await update_audit(connection, self.result.import_id, self._progress(finished=finished))
        except UNAVAILABLE:
            self.result.committed_lines = committed
            raise

    # ------------------------------------------------------------------ shared

    async def _begin(self) -> None:
        """Open the import's audit row."""
        async with self._pool.acquire() as connection:
            await self._learn(connection)
            self.result.import_id = await write_audit(
                connection, self._caller, self._action, self._subject, after=self._progress(finished=False)
            )

    async def _read(self, chunks: AsyncIterator[bytes]) -> None:
        """Read to the end; commit each full batch."""
        splitter = LineSplitter()
        async for chunk in chunks:
            for line in splitter.feed(chunk):
                if line == b"":
                    self.result.lines += 1
                else:
                    await self._take(line)
                    if self._full:
                        await self._import_collected(finished=False)
                if not self.result.lines % TURN_LINES:
                    await asyncio.sleep(0)  # lets the other requests of this process run
            await asyncio.sleep(0)
        for line in splitter.end():
            await self._take(line)
        await self._import_collected(finished=True)

    async def _take(self, line: bytes | None) -> None:
        self.result.lines += 1
        try:
            if line is None:
                raise Rejected("line_too_long", f"a line has at most {LINE_BYTES_MAX} bytes", status=413)
            if line.isspace():
                return
            thing = await self._thing(line, self.result.lines)
        except TickwrightError as error:
            if error.code == "invalid_columns":
                raise
            self.result.reject(self.result.lines, error)
            return
        if thing is not None:
            self._batch.append(thing)
            self._batch_bytes += len(line)

    async def _import_collected(self, *, finished: bool) -> None:
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        await self._commit(batch, self.result.lines, finished=finished)

    def _progress(self, *, finished: bool) -> dict[str, int | bool]:
        result = self.result
        return {
            "committed_lines": result.committed_lines,
            "created": result.created,
            "existing": result.existing,
            "rejected": result.rejected,
            "finished": finished,
        }
