"""The operators' side of the jobs tables: reading, cancelling, moving, reviving."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from tickwright.capabilities.jobs.filters import JobFilter
from tickwright.capabilities.jobs.looking import LOOKS, Wanted
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

_QUERIES = load("tickwright.capabilities.jobs.sql", "jobs.sql")
_SHOWN = "\n".join(_QUERIES["shown"].splitlines()[1:])
_GET = _QUERIES["get"].format(shown=_SHOWN)
_EXPLAIN = _QUERIES["explain"].format(shown=_SHOWN)
_GET_MANY = _QUERIES["get_many"].format(shown=_SHOWN)

Row = Any


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

    async def get_many(self, ids: Sequence[int]) -> Sequence[Row]:
        """Return the jobs of a page, newest first."""
        rows: Sequence[Row] = await self._pool.fetch(_GET_MANY, list(ids))
        return rows

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

    async def with_ids(self, which: JobFilter) -> JobFilter:
        """Return a filter by idempotency key as one by id: a key has one job, or none."""
        if which.idempotency_key is None:
            return which
        holder = await self.key_holder(which.idempotency_key)
        ids = () if holder is None or (which.ids is not None and holder not in which.ids) else (holder,)
        return replace(which, ids=ids, idempotency_key=None)

    async def lock_many(self, connection: Connection, wanted: Wanted, ids: Sequence[int]) -> list[int]:
        """Lock those of certain live jobs that still match, unless somebody else has."""
        rows = await connection.fetch(wanted.sql("lock_many"), *wanted.arguments(), list(ids))
        return [row["id"] for row in rows]

    async def move_many(
        self, connection: Connection, ids: Sequence[int], at: datetime | None, shift: timedelta | None
    ) -> list[int]:
        """Move locked pending jobs; return their ids, sorted."""
        return sorted(row["id"] for row in await connection.fetch(LOOKS["move_many"], list(ids), at, shift))

    async def revive(
        self, connection: Connection, ids: Sequence[int] | None, task_type: str | None, limit: int, after: int = 0
    ) -> "list[Row]":
        """Make dead letters pending again, by id or of a type, behind the id ``after``; return them as they were."""
        some = None if ids is None else list(ids)
        rows: list[Row] = await connection.fetch(_QUERIES["pick_dead"], some, task_type, limit, after)
        if rows:
            await connection.execute(_QUERIES["revive"], [row["id"] for row in rows])
            columns = [[row[name] for row in rows] for name in ("id", "fence", "idempotency_key", "request_digest")]
            await connection.execute(_QUERIES["revive_fences"], *columns)
        return rows
