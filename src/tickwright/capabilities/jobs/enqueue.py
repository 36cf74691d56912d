"""Insert jobs: checks, batching, idempotency keys.

Single calls are batched without a timer: while one statement runs, further calls wait and go together into the next
one. Sixteen callers then share one commit. A call returns when its job is committed.

One statement inserts a batch, so all of it is committed or nothing. Jobs with keys and jobs without are separate
batches. Where one job stops the statement, a second statement inserts the jobs one by one inside the database and
returns the error of each. Jobs whose key an open transaction holds wait in a third collector.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

import asyncpg
import msgspec

from tickwright.capabilities.jobs.copy_rows import CopyRows
from tickwright.capabilities.jobs.requests import (
    BOUNDS,
    KEY_LENGTH_MAX,
    NewJob,
    ScheduleBounds,
    check_new_job,
    read_job,
    with_digest,
)
from tickwright.capabilities.jobs.sealing import seal_job
from tickwright.capabilities.jobs.type_catalog import TypeCatalog, with_uniqueness
from tickwright.domain.errors import Contended, Rejected, TickwrightError
from tickwright.domain.lines import ImportResult
from tickwright.engine.bulk_import import BatchedImport
from tickwright.engine.call_batcher import CallBatcher
from tickwright.engine.payload_keys import NO_KEYS, PayloadKeys
from tickwright.observe import traces
from tickwright.ports.caller import Caller
from tickwright.store.borrowed import server_error
from tickwright.store.bounds import TookTooLong, for_all_callers, outcome_unknown, within
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load, with_shared

_SQL = with_shared(
    _FILE := load("tickwright.capabilities.jobs.sql", "enqueue.sql"), "given_columns", "given_values", of=_FILE
)
COLLECT_MAX = 1000
COLLECTED_S = 10.0
"""Limit of one write of a batch; behind it, the callers get the error ``outcome_unknown``."""
HELD_AFTER, HELD_ALONE_AFTER, HELD_FOR = "20ms", "2ms", "4s"
"""How long a statement waits for a held key: in a batch, one by one to find which key it is, and apart."""
COPY_ROWS = 50_000
MANY_JOBS = "jobs"
"""The destination in spans of calls that schedule several jobs."""


class Scheduled(msgspec.Struct, frozen=True):
    """The result: the job's id, and what this call did.

    Attributes:
        id: Of the job.
        created: Whether this call inserted it.
        replaced: Of a unique job that existed: what this call replaced, ``payload``, ``time``, ``priority``.
        status: Of a unique job that existed: its status then.
    """

    id: int
    created: bool
    replaced: tuple[str, ...] = ()
    status: str | None = None

    @property
    def outcome(self) -> str:
        """What happened: ``inserted``, ``existing`` or ``replaced``."""
        return "inserted" if self.created else "replaced" if self.replaced else "existing"


_Pair = tuple[NewJob, int]
_REFUSED = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError)
_PLAIN_RULE = "its task type is encrypted"
"""A part of the message of ``tickwright.refuse_plain``, which ``insert_each`` passes on without its constraint."""
_CHECK_VIOLATION = "23514"
_LOCKED = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError)


class _Collector(CallBatcher[_Pair, Scheduled]):
    """Writes jobs in batches. It keeps one connection while there is work, because releasing one costs time."""

    def __init__(self, pool: Pool, write: Callable[[Connection, Sequence[_Pair]], Awaitable[list[Any]]]) -> None:
        super().__init__(items_max=COLLECT_MAX)
        self._pool, self._write_on = pool, write

    async def _write_waiting(self) -> None:
        taken: list[tuple[_Pair, asyncio.Future[Scheduled]]] = []
        try:
            with for_all_callers(), within(COLLECTED_S) as bound:
                async with self._pool.acquire() as connection:
                    while not connection.is_closed() and (taken := await self._gather()):
                        bound.again()
                        self._answer(taken, await self._write_on(connection, [pair for pair, _ in taken]))
                        taken = []
        except Exception as error:  # noqa: BLE001  the callers' boundary
            taken = taken or self._take()
            self._answer(taken, [outcome_unknown() if isinstance(error, TookTooLong) else error] * len(taken))

    async def _gather(self) -> "list[tuple[_Pair, asyncio.Future[Scheduled]]]":
        """Wait one turn for new calls of the callers that have just got a result, then take what waits."""
        await asyncio.sleep(0)
        return self._take()


class _PatientCollector:
    """Collectors for jobs that another transaction can hold up: by their key, or by the digest of their arguments.

    A job that waits for another transaction is written apart, and so are those that follow it under the same name.
    """

    def __init__(self, pool: Pool, write: Callable[..., Awaitable[list[Any]]]) -> None:
        self._quick = _Collector(pool, partial(write, lock_timeout=HELD_AFTER))
        self._apart = _Collector(pool, partial(write, lock_timeout=HELD_FOR))
        self._held: Counter[str] = Counter()

    async def write(self, name: str, pair: _Pair) -> Scheduled:
        """Write a job that waits for others of the same ``name``."""
        if name not in self._held:
            with suppress(*_LOCKED):
                return await self._quick(pair)
        self._held[name] += 1
        try:
            return await self._apart(pair)
        finally:
            self._held[name] -= 1
            if not self._held[name]:
                del self._held[name]


class Enqueuer:
    """Schedules jobs; one per process and pool. ``keys`` seal the payloads of encrypted types."""

    def __init__(self, pool: Pool, keys: PayloadKeys = NO_KEYS) -> None:
        self._pool, self.keys = pool, keys
        self.types = TypeCatalog(pool)
        self._plain = _Collector(pool, self._write)
        self._keyed = _PatientCollector(pool, self._write)
        self._unique = _PatientCollector(pool, self._write)
        self.conflicts: Counter[tuple[str, str]] = Counter()
        """Requests by task type and outcome that a unique job answered."""

    async def schedule(self, job: NewJob, *, connection: Connection | None = None) -> Scheduled:
        """Schedule one job; inside the caller's asyncpg transaction when ``connection`` is given.

        Raises:
            Rejected: The job is not within the bounds, or its type is unknown. Do not retry.
            Contended: ``key_reused``: the key belongs to another request. Do not retry with this key.
            Unavailable: ``outcome_unknown``: the database did not answer in time. Retry with a key.
                ``payload_keys_missing``: its type is encrypted, and this process has no keys. Retry in another one.
        """
        pair = await self._checked(job)
        if not traces.recording():
            return await self._schedule_sealed(pair, job, connection)
        with traces.working("send", job.task_type) as span:
            made = await self._schedule_sealed(pair, job, connection)
            span.set_attribute("messaging.message.id", f"job_{made.id}")
            return made

    async def _schedule_sealed(self, pair: _Pair, job: NewJob, connection: Connection | None) -> Scheduled:
        """Schedule a checked job, once more where its type has become encrypted since it was read."""
        try:
            return await self._schedule(_in_trace(pair[0]), pair[1], connection)
        except Exception as error:  # noqa: BLE001  of the caller's driver, too
            await self._renew_types(error, connection)
            sealed, attempts = await self._checked(job)
            return await self._schedule(_in_trace(sealed), attempts, None)

    async def _renew_types(self, error: Exception, connection: Connection | None) -> None:
        """Read the types again where one has become encrypted; raise other errors, and in a caller's transaction."""
        if not _is_plain(error):
            raise error
        await self.types.renew()
        if connection is not None:
            text = "a task type has just become encrypted; try again in a new transaction"
            raise Contended("payload_not_encrypted", text) from error

    async def _schedule(self, job: NewJob, attempts: int, connection: Connection | None) -> Scheduled:
        if connection is not None:
            answers: list[Scheduled] = await self._insert(connection, [(job, attempts)])
            return answers[0]
        if job.uniqueness is not None:
            return await self._unique.write(job.uniqueness, (job, attempts))
        if job.key is None:
            return await self._plain((job, attempts))
        return await self._keyed.write(job.key, (job, attempts))

    async def _write(
        self, connection: Connection, pairs: Sequence[_Pair], *, lock_timeout: str | None = None
    ) -> list[Any]:
        """Insert a batch. Where one job stops the statement, only that job gets the error.

        Either all jobs are unique, or all have a key, or none is either; ``lock_timeout`` is set except for the last.
        So one statement inserts them, and one that fails has changed nothing.
        """
        try:
            return await self._insert(connection, pairs, strict=False, lock_timeout=lock_timeout)
        except (*_REFUSED, *_LOCKED) as error:
            is_of_all = lock_timeout is None and isinstance(error, _LOCKED)  # the table is locked, not a key
            if is_of_all or len(pairs) == 1:
                return [error] * len(pairs)
            return await self._insert_each(connection, pairs, lock_timeout and HELD_ALONE_AFTER)

    async def _checked(self, job: NewJob) -> _Pair:
        """Check a job and its type; return it as it is stored, and its number of attempts."""
        kind = self.types.fresh(check_new_job(job).task_type) or await self.types.get(job.task_type)
        if job.unique or kind.unique is not None:
            job = with_uniqueness(job, kind)  # from the plain arguments
        if kind.encrypted:
            job = seal_job(job, self.keys)
        return job, job.max_attempts or kind.max_attempts

    async def schedule_many(self, jobs: Sequence[NewJob], *, connection: Connection | None = None) -> list[Scheduled]:
        """Schedule several jobs in one transaction; return one result per job, in order."""
        with traces.working("send", MANY_JOBS, {"messaging.batch.message_count": len(jobs)}):
            try:
                return await self._schedule_many(jobs, connection)
            except Exception as error:  # noqa: BLE001  of the caller's driver, too
                await self._renew_types(error, connection)
                return await self._schedule_many(jobs, None)

    async def _schedule_many(self, jobs: Sequence[NewJob], connection: Connection | None) -> list[Scheduled]:
        pairs = [await self._checked(_in_trace(job)) for job in jobs]
        if connection is not None:
            return await self._insert_parts(connection, pairs)
        async with self._pool.acquire() as own, own.transaction():
            return await self._insert_parts(own, pairs)

    async def schedule_each(
        self, jobs: Sequence[NewJob], *, connection: Connection
    ) -> list[Scheduled | TickwrightError]:
        """Schedule at most ``COLLECT_MAX`` jobs, in one statement per kind; return the result or error of each."""
        pairs = [await self._checked(_in_trace(job)) for job in jobs[:COLLECT_MAX]]
        return await self._insert(connection, pairs, strict=False)

    async def _insert_parts(self, connection: Connection, pairs: list[_Pair]) -> list[Scheduled]:
        answers: list[Scheduled] = []
        for start in range(0, len(pairs), COLLECT_MAX):
            answers += await self._insert(connection, pairs[start : start + COLLECT_MAX])
        return answers

    async def copy(self, jobs: Iterable[NewJob], *, connection: Connection | None = None) -> int:
        """Schedule many jobs without keys by COPY, the fastest way, all or none; return how many.

        Rows are made while PostgreSQL stores earlier ones, so the slower side decides the speed, not the sum of both. A
        task type that is not known yet ends a COPY, and so do the first job that is due at the database's now, and the
        first one with tags or metadata. What its row lacks is read, and the next COPY continues, with its columns.

        Raises:
            Rejected: ``unknown_task_type``, ``key_in_bulk``, ``unique_in_bulk``, or a job is not within the bounds.
                Permanent.
        """
        if connection is None:
            async with self._pool.acquire() as own, own.transaction():
                return await self.copy(jobs, connection=own)
        rows = CopyRows(jobs, self.types, self.keys)
        while await rows.ready(connection):
            await connection.copy_records_to_table(
                "scheduled_tasks", schema_name="tickwright", columns=rows.columns, records=rows.some(COPY_ROWS)
            )
        return rows.count

    async def _insert(
        self, connection: Connection, pairs: Sequence[_Pair], *, strict: bool = True, lock_timeout: str | None = None
    ) -> list[Any]:
        if any(pair[0].uniqueness is not None for pair in pairs):
            return await self._insert_mixed(connection, pairs, strict=strict, lock_timeout=lock_timeout)
        plain = [pair for pair in pairs if pair[0].key is None]
        ids = iter(await self._insert_plain(connection, plain)) if plain else iter(())
        keyed = await self._insert_keyed(connection, [pair for pair in pairs if pair[0].key is not None], lock_timeout)
        answers: list[Any] = [
            keyed[job.key] if job.key is not None else Scheduled(next(ids), created=True) for job, _ in pairs
        ]
        _mark_repeated_keys(pairs, answers, keyed)
        if strict:
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
        return answers

    async def _insert_mixed(
        self, connection: Connection, pairs: Sequence[_Pair], *, strict: bool, lock_timeout: str | None
    ) -> list[Any]:
        """Insert unique jobs and others, each kind by its own statement; return the answers in order."""
        others = [pair for pair in pairs if pair[0].uniqueness is None]
        made = iter(await self._insert(connection, others, strict=strict, lock_timeout=lock_timeout) if others else ())
        unique = [pair for pair in pairs if pair[0].uniqueness is not None]
        answers = iter(await self._insert_unique(connection, unique, lock_timeout))
        ordered = [next(made if job.uniqueness is None else answers) for job, _ in pairs]
        if strict:
            for answer in ordered:
                if isinstance(answer, Exception):
                    raise answer
        return ordered

    async def _insert_unique(
        self, connection: Connection, pairs: Sequence[_Pair], lock_timeout: str | None, *, each: bool = False
    ) -> list[Any]:
        columns = zip(*((*_record(job, attempts), job.key, job.digest) for job, attempts in pairs), strict=True)
        details = [job.details for job, _ in pairs]
        rows = await connection.fetch(_SQL["insert_unique"], each, *map(list, columns), details, lock_timeout)
        answers = [(job, _unique_outcome(row)) for (job, _), row in zip(pairs, rows, strict=True)]
        found = await _find(connection, [job.key for job, answer in answers if answer is None])
        self.conflicts.update(
            (job.task_type, answer.outcome)
            for job, answer in answers
            if isinstance(answer, Scheduled) and not answer.created
        )
        return [_of_taken(found, job) if answer is None else answer for job, answer in answers]

    async def _insert_plain(self, connection: Connection, pairs: Sequence[_Pair]) -> list[int]:
        columns = zip(*(_record(job, attempts) for job, attempts in pairs), strict=True)
        name, details = _variant("insert_plain", pairs)
        return [row[0] for row in await connection.fetch(_SQL[name], *map(list, columns), *details)]

    async def _insert_keyed(
        self, connection: Connection, pairs: Sequence[_Pair], lock_timeout: str | None
    ) -> Mapping[str | None, Any]:
        if not pairs:
            return {}
        by_key = {job.key: (job, attempts) for job, attempts in reversed(pairs)}
        first = {key: by_key[key] for key in sorted(by_key, key=str)}  # sorted keys: no deadlock
        columns = zip(
            *((*_record(job, attempts), job.key, job.digest) for job, attempts in first.values()), strict=True
        )
        name, details = _variant("insert_keyed", list(first.values()))
        created = await connection.fetch(_SQL[name], *map(list, columns), *details, lock_timeout)
        answers: dict[str | None, Any] = {row[0]: Scheduled(row[1], created=True) for row in created}
        taken = [key for key in first if key not in answers]
        found = await _find(connection, taken)
        return answers | {key: _of_taken(found, first[key][0]) for key in taken}

    async def import_lines(
        self,
        chunks: AsyncIterator[bytes],
        *,
        caller: Caller,
        key: str | None = None,
        now: datetime | None = None,
        bounds: ScheduleBounds = BOUNDS,
    ) -> ImportResult:
        """Schedule a stream of jobs, one per line of NDJSON, in constant memory.

        Args:
            chunks: The bytes. An exception that it raises (never an ``OSError``) ends the import and propagates.
            caller: For the audit trail.
            key: The key of the whole upload, at most 200 characters.
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
        with traces.working("send", MANY_JOBS) as span:
            done = await _JobImport(self._pool, self, caller, key=key, now=now, bounds=bounds).run(chunks)
            span.set_attribute("messaging.batch.message_count", done.created)
            return done

    async def _insert_each(self, connection: Connection, pairs: Sequence[_Pair], lock_timeout: str | None) -> list[Any]:
        """Insert jobs one by one in one transaction; return the job of each, or why PostgreSQL refused it."""
        if pairs[0][0].uniqueness is not None:
            return await self._insert_unique(connection, pairs, lock_timeout, each=True)
        columns = zip(*((*_record(job, attempts), job.key, job.digest) for job, attempts in pairs), strict=True)
        details = [job.details for job, _ in pairs]
        rows = await connection.fetch(_SQL["insert_each"], *map(list, columns), details, lock_timeout)
        answers = [(job, _outcome(row)) for (job, _), row in zip(pairs, rows, strict=True)]
        found = await _find(connection, [job.key for job, answer in answers if answer is None])
        return [_of_taken(found, job) if answer is None else answer for job, answer in answers]


async def _find(connection: Connection, keys: list[str | None]) -> dict[str | None, asyncpg.Record]:
    return {row["key"]: row for row in await connection.fetch(_SQL["find_keys"], keys)} if keys else {}


def _is_plain(error: Exception) -> bool:
    """Whether the database has refused a plain payload of an encrypted type."""
    answer = server_error(error)
    return answer is not None and answer.sqlstate == _CHECK_VIOLATION and _PLAIN_RULE in answer.message


def _outcome(row: asyncpg.Record) -> Any:
    """Return the job, or the error, or ``None`` where its key was taken."""
    if row["code"]:
        return asyncpg.PostgresError.new({"C": row["code"], "M": row["message"]})
    return row["job_id"] and Scheduled(row["job_id"], created=True)


def _unique_outcome(row: asyncpg.Record) -> Any:
    """Return the job and what happened, or the error, or ``None`` where its key was taken."""
    if row["code"]:
        return asyncpg.PostgresError.new({"C": row["code"], "M": row["message"]})
    if row["outcome"] is None:
        return None
    created = row["outcome"] == "inserted"
    return Scheduled(row["job_id"], created, tuple(row["replaced"] or ()), None if created else row["status"])


def _of_taken(found: Mapping[str | None, asyncpg.Record], job: NewJob) -> Any:
    row = found.get(job.key)
    if row is None:
        return Contended("key_in_flight", "another request with this key is under way; try again")
    return _existing(row["id"], row["digest"], job)


def _existing(job_id: int, digest: bytes | None, job: NewJob) -> Any:
    if digest is not None and job.digest is not None and job.is_other(digest):
        return Contended("key_reused", f"this idempotency key belongs to job {job_id}, which was asked for differently")
    return Scheduled(job_id, created=False)


def _mark_repeated_keys(pairs: Sequence[_Pair], answers: list[Any], keyed: Mapping[str | None, Any]) -> None:
    """Mark the job as created only for the first of several equal keys in one batch."""
    seen: dict[str, NewJob] = {}
    for number, (job, _) in enumerate(pairs):
        if job.key is None:
            continue
        first = seen.setdefault(job.key, job)
        if first is not job and isinstance(keyed[job.key], Scheduled):
            answers[number] = _existing(keyed[job.key].id, first.digest, job)


def _variant(name: str, pairs: Sequence[_Pair]) -> tuple[str, list[list[str | None]]]:
    """Return the statement for a batch, and its further arguments: jobs without details are inserted without any."""
    if not any(
        job.tags or job.metadata is not None or job.group is not None for job, _ in pairs
    ):  # is_detailed, without its calls
        return name, []
    return f"{name}_detailed", [[job.details for job, _ in pairs]]


def _record(job: NewJob, attempts: int) -> tuple[Any, ...]:
    timeout_ms = None if job.timeout is None else round(job.timeout.total_seconds() * 1000)
    return (
        job.execute_at, job.task_type, job.payload, attempts, job.priority, timeout_ms, job.expires_at, job.delay,
        job.traceparent,
    )  # fmt: skip


def _in_trace(job: NewJob) -> NewJob:
    """Return ``job`` as a part of the current trace, where there is one."""
    here = traces.current()
    return job if here is None else msgspec.structs.replace(job, traceparent=here)


PLAIN_ROWS_MAX = 5_000
KEYED_ROWS_MAX = 1_000  # one statement with sorted keys: two uploads of one file cannot deadlock
UPLOAD_KEY_CHARS_MAX = 200


class _JobImport(BatchedImport[tuple[int, NewJob]]):
    """A running import; each job has the number of its line."""

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
        self._is_renewed = False

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
        self._keyed += self._answers_each(job)
        return number, job

    def _answers_each(self, job: NewJob) -> bool:
        return job.key is not None or self._enqueuer.types.makes_unique(job)

    async def _commit(self, batch: Sequence[tuple[int, NewJob]], lines: int, *, finished: bool) -> None:
        """Commit; when PostgreSQL refuses a row that passed the checks, halve until only that row is left out."""
        self._keyed = 0
        self._types.clear()
        counts = self.result.created, self.result.existing, self.result.rejected, len(self.result.rejects)
        try:
            await super()._commit(batch, lines, finished=finished)
        except _REFUSED as error:
            if _is_plain(error):
                await self._enqueuer.types.renew()
            self.result.created, self.result.existing, self.result.rejected, shown = counts
            del self.result.rejects[shown:]
            if _is_plain(error) and not self._is_renewed:
                self._is_renewed = True
                await self._commit(batch, lines, finished=finished)
                return
            if len(batch) <= 1:
                self.result.reject(batch[0][0], Rejected("refused_by_database", str(error)[:200]))
                await self._commit([], lines, finished=finished)
                return
            half = len(batch) // 2
            await self._commit(batch[:half], batch[half - 1][0], finished=False)
            await self._commit(batch[half:], lines, finished=finished)

    async def _write(self, connection: Connection, batch: Sequence[tuple[int, NewJob]]) -> None:
        each = [self._answers_each(job) for _, job in batch]
        plain = [job for (_, job), one in zip(batch, each, strict=True) if not one]
        if plain:
            self.result.created += await self._enqueuer.copy(plain, connection=connection)
        keyed = [pair for pair, one in zip(batch, each, strict=True) if one]
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
