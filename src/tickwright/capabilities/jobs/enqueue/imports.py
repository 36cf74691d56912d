"""Jobs by the million: NDJSON, one job per line, in constant memory.

When the stream breaks off, the batches before are committed and nothing of the unfinished batch is; an unfinished last
line is never read as a job. With a key for the whole upload every line gets a key of its own (``import:KEY:LINE``): the
same upload, sent again after a cut, goes on where it was and makes no job twice. How lines are read and committed is
:mod:`tickwright.engine.bulk_import`.
"""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime

import asyncpg
import msgspec

from tickwright.capabilities.jobs.enqueue.enqueue import KEY_LENGTH_MAX, TOGETHER, Enqueuer, NewJob, Scheduled
from tickwright.capabilities.jobs.enqueue.requests import BOUNDS, ScheduleBounds, read_job, with_digest
from tickwright.domain.errors import Rejected, TickwrightError
from tickwright.domain.lines import ImportResult
from tickwright.engine.bulk_import import BatchedImport
from tickwright.observe import traces
from tickwright.ports.caller import Caller
from tickwright.store.pool import Connection, Pool

PLAIN_ROWS_MAX = 5_000
KEYED_ROWS_MAX = 1_000  # one statement, its keys in one order: two uploads of one file cannot deadlock
UPLOAD_KEY_CHARS_MAX = 200

_REFUSED = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError)


class Imports:
    """Streams of jobs into the table."""

    def __init__(self, pool: Pool, enqueuer: Enqueuer) -> None:
        self._pool, self._enqueuer = pool, enqueuer

    async def run(
        self,
        chunks: AsyncIterator[bytes],
        *,
        caller: Caller,
        key: str | None = None,
        now: datetime | None = None,
        bounds: ScheduleBounds = BOUNDS,
    ) -> ImportResult:
        """Import a stream.

        Args:
            chunks: Bytes as they come; what it raises (never an ``OSError``) ends the import and passes through.
            caller: For the audit trail.
            key: Of the whole upload, at most 200 characters.
            now: The database's clock as far as known; ``None`` skips the horizon.
            bounds: How far from now a job may be due.

        Raises:
            Rejected: ``invalid_key``. Permanent.
            Unavailable: ``import_interrupted`` with ``committed_lines``. Send the rest, or all under the same key.
        """
        if key is not None and not 1 <= len(key) <= UPLOAD_KEY_CHARS_MAX:
            raise Rejected(
                "invalid_key", f"the key of an upload has 1 to {UPLOAD_KEY_CHARS_MAX} characters", status=409
            )
        with traces.working("send", TOGETHER) as span:
            done = await _JobImport(self._pool, self._enqueuer, caller, key=key, now=now, bounds=bounds).run(chunks)
            span.set_attribute("messaging.batch.message_count", done.created)
            return done


class _JobImport(BatchedImport[tuple[int, NewJob]]):
    """One import under way; a job goes with the number of its line."""

    def __init__(
        self,
        pool: Pool,
        enqueuer: Enqueuer,
        caller: Caller,
        *,
        key: str | None,
        now: datetime | None,
        bounds: ScheduleBounds,
    ) -> None:
        subject = "jobs" if key is None else f"import:{key}"
        super().__init__(pool, caller, action="jobs.import", subject=subject, rows_max=PLAIN_ROWS_MAX)
        self._enqueuer = enqueuer
        self._key, self._now, self._bounds = key, now, bounds
        self._keyed = 0
        self._types: dict[str, TickwrightError | None] = {}

    @property
    def _full(self) -> bool:
        return self._keyed >= KEYED_ROWS_MAX or super()._full

    async def _thing(self, line: bytes, number: int) -> tuple[int, NewJob]:
        job = read_job(line, now=self._now, bounds=self._bounds)
        if self._key is not None and job.key is None:
            job = with_digest(msgspec.structs.replace(job, key=f"import:{self._key}:{number}"[:KEY_LENGTH_MAX]))
        if job.task_type not in self._types:
            try:
                await self._enqueuer.types.get(job.task_type)
                self._types[job.task_type] = None
            except Rejected as error:
                self._types[job.task_type] = error
        if (unknown := self._types[job.task_type]) is not None:
            raise unknown
        self._keyed += job.key is not None
        return number, job

    async def _commit(self, batch: Sequence[tuple[int, NewJob]], lines: int, *, finished: bool) -> None:
        """Commit; when PostgreSQL refuses a row that passed our checks, halve until only that row is left out."""
        self._keyed = 0
        self._types.clear()
        counts = self.result.created, self.result.existing, self.result.rejected, len(self.result.rejects)
        try:
            await super()._commit(batch, lines, finished=finished)
        except _REFUSED as error:
            self.result.created, self.result.existing, self.result.rejected, shown = counts
            del self.result.rejects[shown:]
            if len(batch) <= 1:
                self.result.reject(batch[0][0], Rejected("refused_by_database", str(error)[:200]))
                await self._commit([], lines, finished=finished)
                return
            half = len(batch) // 2
            await self._commit(batch[:half], batch[half - 1][0], finished=False)
            await self._commit(batch[half:], lines, finished=finished)

    async def _write(self, connection: Connection, batch: Sequence[tuple[int, NewJob]]) -> None:
        plain = [job for _, job in batch if job.key is None]
        if plain:
            self.result.created += await self._enqueuer.copy(plain, connection=connection)
        keyed = [(line, job) for line, job in batch if job.key is not None]
        if not keyed:
            return
        answers = await self._enqueuer.schedule_each([job for _, job in keyed], connection=connection)
        for (line, _), answer in zip(keyed, answers, strict=True):
            if not isinstance(answer, Scheduled):
                self.result.reject(line, answer)
            elif answer.created:
                self.result.created += 1
            else:
                self.result.existing += 1
