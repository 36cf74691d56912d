"""The operators' side of the jobs tables: reading, cancelling, moving, reviving."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from tickwright.capabilities.jobs.admin.filters import JobFilter
from tickwright.capabilities.jobs.admin.search import LOOKS, Wanted
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

_QUERIES = load("tickwright.capabilities.jobs.sql", "jobs.sql")
_SHOWN = "\n".join(_QUERIES["shown"].splitlines()[1:])
_GET = _QUERIES["get"].format(shown=_SHOWN)
_EXPLAIN = _QUERIES["explain"].format(shown=_SHOWN)
_GET_MANY = _QUERIES["get_many"].format(shown=_SHOWN)

_KEY = ("idempotency_key", "request_digest")

Row = Any


@dataclass(frozen=True, slots=True)
class Revived:
    """What became of dead letters that were to go back to work.

    Attributes:
        rows: Those that went back, as they were; in the order of their ids.
        key_reused: Ids of those that stay, because another job has their idempotency key.
        unfit: Ids of those that stay, because they break a rule that is younger than they are.
        last_id: Where the limit left some over, the id behind which they are.
    """

    rows: "list[Row]"
    key_reused: list[int]
    unfit: list[int]
    last_id: int | None


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
    ) -> Revived:
        """Make dead letters pending again, by id or of a type, behind the id ``after``.

        One whose idempotency key another job has by now stays a dead letter: both would be the job of that key. So does
        one that breaks a rule of new jobs, such as a payload that an earlier release took.
        """
        some = None if ids is None else list(ids)
        rows: list[Row] = await connection.fetch(_QUERIES["pick_dead"], some, task_type, limit, after)
        unfit = [row["id"] for row in rows if not row["fits"]]
        back = await self._with_keys(connection, [row for row in rows if row["fits"]])
        if back:
            await connection.execute(_QUERIES["revive"], [row["id"] for row in back])
            await connection.execute(_QUERIES["revive_fences"], *_columns(back, "id", "fence", *_KEY))
        ids_back = {row["id"] for row in back}
        stay = [row["id"] for row in rows if row["fits"] and row["id"] not in ids_back]
        return Revived(back, stay, unfit, rows[-1]["id"] if len(rows) == limit else None)

    async def _with_keys(self, connection: Connection, rows: "list[Row]") -> "list[Row]":
        """Hold the keys of these dead letters again; return those that have none, or whose key no other job holds."""
        keyed = [row for row in rows if row["idempotency_key"] is not None]
        if not keyed:
            return rows
        held = await connection.fetch(_QUERIES["hold_keys"], *_columns(keyed, "id", *_KEY))
        ours = {row["job_id"] for row in held}
        return [row for row in rows if row["idempotency_key"] is None or row["id"] in ours]


def _columns(rows: "Sequence[Row]", *names: str) -> list[list[Any]]:
    return [[row[name] for row in rows] for name in names]
