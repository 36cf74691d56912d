"""Bulk scheduling by COPY: rows are made, encoded and stored at the same time.

Rows are made while PostgreSQL stores earlier ones, so the slower side decides the speed, not the sum of both.
Everything is one transaction. A task type that is not cached yet ends a COPY; it is read, and the next COPY continues.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from tickwright.capabilities.jobs.enqueue import COPY_COLUMNS, TOGETHER, TypeCatalog
from tickwright.capabilities.jobs.requests import NewJob
from tickwright.domain.errors import Rejected
from tickwright.observe import traces
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

_SQL = load("tickwright.capabilities.jobs.sql", "enqueue.sql")
COPY_ROWS = 50_000
NO_DELAY = timedelta()


async def copy_jobs(pool: Pool, types: TypeCatalog, jobs: Iterable[NewJob]) -> int:
    """Store checked jobs without keys, all or none, and return how many.

    Raises:
        Rejected: ``unknown_task_type``, ``key_in_bulk``. Permanent.
    """
    with traces.working("send", TOGETHER) as span:
        stored = await _copy_all(pool, types, jobs)
        span.set_attribute("messaging.batch.message_count", stored)
        return stored


async def _copy_all(pool: Pool, types: TypeCatalog, jobs: Iterable[NewJob]) -> int:
    async with pool.acquire() as connection, connection.transaction():
        rows = _Rows(jobs, await connection.fetchval(_SQL["now"]))
        while rows.more:
            if rows.unknown is not None:
                rows.attempts[rows.unknown] = (await types.get(rows.unknown)).max_attempts
                rows.unknown = None
            await _copy(connection, rows)
        return rows.count


async def _copy(connection: Connection, rows: "_Rows") -> None:
    await connection.copy_records_to_table(
        "scheduled_tasks", schema_name="tickwright", columns=COPY_COLUMNS, records=rows.some(COPY_ROWS)
    )


class _Rows:
    """The rows of the jobs, made on demand.

    Attributes:
        attempts: Attempts by known task type.
        unknown: The type that stopped the rows. The caller sets its ``attempts`` and continues.
        more: Whether rows can be left.
    """

    def __init__(self, jobs: Iterable[NewJob], now: datetime) -> None:
        self._jobs = iter(jobs)
        self._now = now
        self._traceparent = traces.current()
        self._held: NewJob | None = None
        self.attempts: dict[str, int] = {}
        self.unknown: str | None = None
        self.more = True
        self.count = 0

    def some(self, rows_max: int) -> Iterator[tuple[Any, ...]]:
        """Return at most ``rows_max`` rows; fewer at the end, or before an unknown type."""
        attempts_of, now, traceparent = self.attempts, self._now, self._traceparent
        for _ in range(rows_max):
            job = self._held or next(self._jobs, None)
            self._held = None
            if job is None:
                self.more = False
                return
            if job.key is not None:
                raise Rejected("key_in_bulk", "jobs with keys cannot go in by COPY; use schedule_many", field="key")
            kind_attempts = attempts_of.get(job.task_type)
            if kind_attempts is None:
                self._held, self.unknown = job, job.task_type
                return
            timeout = job.timeout
            self.count += 1
            yield (
                job.execute_at or now + (job.delay or NO_DELAY),
                job.task_type,
                job.payload,
                job.max_attempts or kind_attempts,
                job.priority,
                None if timeout is None else round(timeout.total_seconds() * 1000),
                job.expires_at,
                traceparent,
            )
