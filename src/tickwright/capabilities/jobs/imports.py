"""Jobs by the million: NDJSON, one job per line, in constant memory.

Lines are committed in batches, in their order. A bad line is rejected with its number and reason and costs
no other line. When the stream breaks off, the batches before are committed and nothing of the unfinished
batch is; an unfinished last line is never read as a job. What is committed stands in the audit trail
(``jobs.import``, ``committed_lines``), written in each batch's own transaction, so it is never more and never
less. With a key for the whole upload every line gets a key of its own (``import:KEY:LINE``): the same
upload, sent again after a cut, goes on where it was and makes no job twice.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import datetime

import asyncpg
import msgspec
import structlog

from tickwright.capabilities.jobs.audit import update_audit, write_audit
from tickwright.capabilities.jobs.enqueue import KEY_LENGTH_MAX, Enqueuer, NewJob, Scheduled
from tickwright.capabilities.jobs.requests import BOUNDS, ScheduleBounds, read_job, with_digest
from tickwright.domain.errors import Rejected, TickwrightError, Unavailable
from tickwright.ports.caller import Caller
from tickwright.store.pool import Connection, Pool

LINE_BYTES_MAX = 262_144
PLAIN_ROWS_MAX = 5_000
KEYED_ROWS_MAX = 1_000  # one statement, its keys in one order: two uploads of one file cannot deadlock
BATCH_BYTES_MAX = 4_194_304
REJECTS_SHOWN_MAX = 1_000
UPLOAD_KEY_CHARS_MAX = 200

_AWAY = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)
_REFUSED = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError)
_log = structlog.get_logger("tickwright.jobs")


class LineReject(msgspec.Struct):
    """A line that made no job: its number from 1, a stable code and the reason."""

    line: int
    code: str
    message: str


class ImportResult(msgspec.Struct):
    """What an import did.

    Attributes:
        import_id: The row of the audit trail.
        lines: All that came, empty ones too.
        created: Jobs made by this call.
        existing: Lines whose key had made its job before.
        rejected: Lines that made no job; the first 1,000 are in ``rejects``.
        committed_lines: Every line up to this one is settled for good.
    """

    import_id: int = 0
    lines: int = 0
    created: int = 0
    existing: int = 0
    rejected: int = 0
    committed_lines: int = 0
    rejects: list[LineReject] = []
    rejects_left_out: int = 0

    def reject(self, line: int, error: TickwrightError) -> None:
        """Count a line that makes no job."""
        self.rejected += 1
        if len(self.rejects) < REJECTS_SHOWN_MAX:
            self.rejects.append(LineReject(line, error.code, error.message))
        else:
            self.rejects_left_out += 1


@dataclass(slots=True)
class _Batch:
    """Lines that are read and not committed."""

    jobs: list[tuple[int, NewJob]] = field(default_factory=list)
    size_bytes: int = 0
    keyed: int = 0

    def add(self, line: int, job: NewJob) -> None:
        self.jobs.append((line, job))
        self.size_bytes += len(job.payload)
        self.keyed += job.key is not None

    @property
    def full(self) -> bool:
        return self.keyed >= KEYED_ROWS_MAX or len(self.jobs) >= PLAIN_ROWS_MAX or self.size_bytes >= BATCH_BYTES_MAX


class LineSplitter:
    """Cuts a stream into lines; one that is too long is dropped while it comes, not kept."""

    def __init__(self) -> None:
        self._kept = b""
        self._dropping = False

    def feed(self, chunk: bytes) -> Iterator[bytes | None]:
        """Return the lines that ``chunk`` completes; ``None`` stands for one that was too long."""
        *lines, rest = (self._kept + chunk).split(b"\n")
        for number, line in enumerate(lines):
            dropped = self._dropping and number == 0
            self._dropping = self._dropping and number > 0
            yield None if dropped or len(line) > LINE_BYTES_MAX else line
        if lines:
            self._dropping = False
        self._kept = rest
        if len(rest) > LINE_BYTES_MAX or self._dropping:
            self._kept, self._dropping = b"", True

    def end(self) -> Iterator[bytes | None]:
        """Return a last line without a line end."""
        if self._kept or self._dropping:
            yield None if self._dropping else self._kept
        self._kept, self._dropping = b"", False


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
        run = _Run(self._pool, self._enqueuer, caller, key=key, now=now, bounds=bounds)
        try:
            await run.begin()
            await run.read(chunks)
        except _AWAY as error:
            _log.warning("jobs.import_interrupted", lines=run.result.committed_lines, error=repr(error))
            raise Unavailable(
                "import_interrupted",
                f"the database went away; lines up to {run.result.committed_lines} are committed, the rest is not",
                committed_lines=run.result.committed_lines,
            ) from error
        return run.result


class _Run:
    """One import under way."""

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
        self._pool, self._enqueuer, self._caller = pool, enqueuer, caller
        self._key, self._now, self._bounds = key, now, bounds
        self._batch = _Batch()
        self._types: dict[str, TickwrightError | None] = {}
        self.result = ImportResult(rejects=[])

    async def begin(self) -> None:
        """Open the line of the audit trail."""
        subject = "jobs" if self._key is None else f"import:{self._key}"
        async with self._pool.acquire() as connection:
            self.result.import_id = await write_audit(
                connection, self._caller, "jobs.import", subject, after=self._progress(finished=False)
            )

    async def read(self, chunks: AsyncIterator[bytes]) -> None:
        """Read to the end; commit each batch when it is full."""
        splitter = LineSplitter()
        async for chunk in chunks:
            for line in splitter.feed(chunk):
                await self._take(line)
            await asyncio.sleep(0)  # the other requests of this process have their turn
        for line in splitter.end():
            await self._take(line)
        await self._commit(finished=True)

    async def _take(self, line: bytes | None) -> None:
        self.result.lines += 1
        number = self.result.lines
        try:
            if line is None:
                raise Rejected("line_too_long", f"a line has at most {LINE_BYTES_MAX} bytes", status=413)
            if line.strip():
                self._batch.add(number, await self._job(line, number))
        except TickwrightError as error:
            self.result.reject(number, error)
        if self._batch.full:
            await self._commit(finished=False)

    async def _job(self, line: bytes, number: int) -> NewJob:
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
        return job

    async def _commit(self, *, finished: bool) -> None:
        batch, self._batch = self._batch, _Batch()
        self._types.clear()
        await self._commit_part(batch.jobs, finished=finished)

    async def _commit_part(self, jobs: list[tuple[int, NewJob]], *, finished: bool) -> None:
        """Commit; when PostgreSQL refuses a row that passed our checks, halve until only that row is left out."""
        counts = self.result.created, self.result.existing, self.result.rejected, len(self.result.rejects)
        try:
            async with self._pool.acquire() as connection, connection.transaction():
                await self._insert(connection, jobs)
                if finished or jobs:
                    self.result.committed_lines = self.result.lines if finished else jobs[-1][0]
                    await update_audit(connection, self.result.import_id, self._progress(finished=finished))
        except _REFUSED as error:
            self.result.created, self.result.existing, self.result.rejected, shown = counts
            del self.result.rejects[shown:]
            if len(jobs) <= 1:
                self.result.reject(jobs[0][0], Rejected("refused_by_database", str(error)[:200]))
                await self._commit_part([], finished=finished)
                return
            half = len(jobs) // 2
            await self._commit_part(jobs[:half], finished=False)
            await self._commit_part(jobs[half:], finished=finished)

    async def _insert(self, connection: Connection, jobs: list[tuple[int, NewJob]]) -> None:
        plain = [job for _, job in jobs if job.key is None]
        if plain:
            self.result.created += await self._enqueuer.copy(plain, connection=connection)
        keyed = [(line, job) for line, job in jobs if job.key is not None]
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

    def _progress(self, *, finished: bool) -> dict[str, int | bool]:
        result = self.result
        return {
            "committed_lines": result.committed_lines,
            "created": result.created,
            "existing": result.existing,
            "rejected": result.rejected,
            "finished": finished,
        }
