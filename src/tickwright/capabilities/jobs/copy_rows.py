"""The rows of a COPY of jobs, made on demand."""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from tickwright.capabilities.jobs.model import TaskType
from tickwright.capabilities.jobs.requests import NewJob, check_new_job
from tickwright.capabilities.jobs.sealing import seal_job
from tickwright.capabilities.jobs.type_catalog import TypeCatalog
from tickwright.domain.errors import Rejected
from tickwright.engine.payload_keys import PayloadKeys
from tickwright.observe import traces
from tickwright.store.pool import Connection
from tickwright.store.queries import load

_SQL = load("tickwright.capabilities.jobs.sql", "enqueue.sql")
NO_DELAY = timedelta()
COPY_COLUMNS = (
    "execute_at", "task_type", "payload", "max_attempts", "priority", "timeout_ms", "expires_at", "traceparent",
)  # fmt: skip
DETAIL_COLUMNS = ("tags", "metadata", "group_key")
"""The further columns of a COPY from the first job on that has one of them."""
_NO_DETAILS = (None,) * len(DETAIL_COLUMNS)


class CopyRows:
    """The rows of a COPY, made on demand."""

    def __init__(self, jobs: Iterable[NewJob], types: TypeCatalog, keys: PayloadKeys) -> None:
        self._jobs, self._types, self._traceparent = iter(jobs), types, traces.current()
        self._keys = keys
        self._next = next(self._jobs, None)
        self._kinds: dict[str, TaskType] = {}
        self._now: datetime | None = None
        self._is_detailed = False
        self.count = 0

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the next rows."""
        return (*COPY_COLUMNS, *DETAIL_COLUMNS) if self._is_detailed else COPY_COLUMNS

    async def ready(self, connection: Connection) -> bool:
        """Read what the next row lacks; return whether there is one."""
        job = self._next
        if job is None:
            return False
        if job.task_type not in self._kinds:
            self._kinds[job.task_type] = await self._types.get(job.task_type)
        if job.execute_at is None and self._now is None:
            self._now = await connection.fetchval(_SQL["now"])
        self._is_detailed = self._is_detailed or job.is_detailed
        return True

    def some(self, rows_max: int) -> Iterator[tuple[Any, ...]]:
        """Return at most ``rows_max`` rows; fewer at the end, or before a row that lacks something."""
        for _ in range(rows_max):
            if (job := self._next) is None:
                return
            if check_new_job(job).key is not None:
                raise Rejected("key_in_bulk", "jobs with keys cannot go in by COPY; use schedule_many", field="key")
            kind = self._kind_of(job.task_type)
            if job.unique or (job.unique is None and kind is not None and kind.unique is not None):
                raise Rejected("unique_in_bulk", "unique jobs cannot go in by COPY; use schedule_many", field="unique")
            execute_at = job.execute_at or (self._now and self._now + (job.delay or NO_DELAY))
            more = (job.tags or None, job.metadata, job.group) if job.is_detailed else None
            if kind is None or execute_at is None or (more and not self._is_detailed):
                return
            timeout_ms = None if job.timeout is None else round(job.timeout.total_seconds() * 1000)
            self.count += 1
            row = (
                execute_at,
                job.task_type,
                job.payload if not kind.encrypted else seal_job(job, self._keys).payload,
                job.max_attempts or kind.max_attempts,
                job.priority,
                timeout_ms,
                job.expires_at,
                self._traceparent or job.traceparent,
            )
            yield (*row, *(more or _NO_DETAILS)) if self._is_detailed else row
            self._next = next(self._jobs, None)

    def _kind_of(self, name: str) -> TaskType | None:
        kind = self._kinds.get(name)
        if kind is None and (kind := self._types.known(name)) is not None:
            self._kinds[name] = kind
        return kind
