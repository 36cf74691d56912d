"""The operators' side of the jobs tables: reading, cancelling, moving, reviving."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tickwright.domain.errors import Rejected
from tickwright.domain.states import JobStatus
from tickwright.store.paging import fetch_page
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

_QUERIES = load("tickwright.capabilities.jobs.sql", "jobs.sql")
_SHOWN = "\n".join(_QUERIES["shown"].splitlines()[1:])
_ALL, _ONLY_LIVE, _ONLY_DEAD = (
    "tickwright.scheduled_tasks",
    "ONLY tickwright.scheduled_tasks",
    "tickwright.scheduled_tasks_dead",
)
_GET = _QUERIES["get"].format(shown=_SHOWN)
_EXPLAIN = _QUERIES["explain"].format(shown=_SHOWN)
_LISTS = {source: _QUERIES["list"].format(shown=_SHOWN, source=source) for source in (_ALL, _ONLY_LIVE, _ONLY_DEAD)}
LIVE = frozenset({JobStatus.PENDING, JobStatus.PROCESSING})
MANY_MAX = 1000

Row = Any


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs an action on many is for.

    Attributes:
        execute_from: Inclusive.
        execute_to: Exclusive.
    """

    ids: tuple[int, ...] | None = None
    task_type: str | None = None
    execute_from: datetime | None = None
    execute_to: datetime | None = None

    def check(self, limit: int) -> None:
        """Refuse a filter that says nothing, which would mean every job.

        Raises:
            Rejected: ``empty_filter``, ``invalid_limit``. Permanent.
        """
        if self == JobFilter():
            raise Rejected("empty_filter", "say which jobs: ids, task_type, execute_from or execute_to")
        if not 1 <= limit <= MANY_MAX:
            raise Rejected("invalid_limit", f"limit: 1 to {MANY_MAX}", field="limit")

    def shown(self) -> dict[str, Any]:
        """Return what is set, for the audit trail."""
        fields = {name: getattr(self, name) for name in ("ids", "task_type", "execute_from", "execute_to")}
        return {name: value for name, value in fields.items() if value is not None}

    def arguments(self) -> tuple[Any, ...]:
        """Return the values in the order of the queries."""
        return self.ids and list(self.ids), self.task_type, self.execute_from, self.execute_to


class JobsStore:
    """Queries over live and finished jobs under the one name ``tickwright.scheduled_tasks``."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def get(self, job_id: int) -> Row | None:
        """Return one job."""
        return await self._pool.fetchrow(_GET, job_id)

    async def explain(self, job_id: int) -> Row | None:
        """Return what decides about one job."""
        return await self._pool.fetchrow(_EXPLAIN, job_id)

    async def page(self, before: int, statuses: Sequence[JobStatus], *rest: Any) -> Sequence[Row]:
        """Return a page of jobs with ids below ``before``; see the query for the rest."""
        wanted = set(statuses)
        source = _ALL
        if wanted and wanted <= LIVE:
            source = _ONLY_LIVE
        elif wanted == {JobStatus.FAILED}:
            source = _ONLY_DEAD
        return await fetch_page(self._pool, _LISTS[source], before, [str(s) for s in wanted] or None, *rest)

    async def key_holder(self, key: str) -> int | None:
        """Return the id of the job that holds an idempotency key."""
        found: int | None = await self._pool.fetchval(_QUERIES["key_holder"], key)
        return found

    async def lock(self, connection: Connection, job_id: int) -> Row | None:
        """Lock a live job."""
        return await connection.fetchrow(_QUERIES["lock"], job_id)

    async def status(self, connection: Connection, job_id: int) -> str | None:
        """Return a job's status, wherever it is."""
        found: str | None = await connection.fetchval(_QUERIES["finished_status"], job_id)
        return found

    async def cancel(self, connection: Connection, ids: Sequence[int]) -> "list[tuple[int, str]]":
        """Cancel locked live jobs; return ``(id, status after)``."""
        return [(row[0], row[1]) for row in await connection.fetch(_QUERIES["cancel"], list(ids))]

    async def reschedule(
        self, connection: Connection, job_id: int, execute_at: datetime | None, delay: timedelta | None
    ) -> datetime:
        """Move a locked pending job."""
        moved: datetime = await connection.fetchval(_QUERIES["reschedule"], job_id, execute_at, delay)
        return moved

    async def pick_live(self, connection: Connection, which: JobFilter, limit: int) -> "list[Row]":
        """Lock the live jobs that ``which`` names."""
        rows: list[Row] = await connection.fetch(_QUERIES["pick_live"], *which.arguments(), limit)
        return rows

    async def revive(self, connection: Connection, which: JobFilter, limit: int) -> "list[Row]":
        """Make the dead letters that ``which`` names pending again, and return them as they were."""
        rows: list[Row] = await connection.fetch(_QUERIES["pick_dead"], *which.arguments(), limit)
        if rows:
            await connection.execute(_QUERIES["revive"], [row["id"] for row in rows])
            columns = [[row[name] for row in rows] for name in ("id", "fence", "idempotency_key", "request_digest")]
            await connection.execute(_QUERIES["revive_fences"], *columns)
        return rows
