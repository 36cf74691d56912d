"""Bulk actions on the jobs that a filter matches: cancel, retry, run now, move.

A call is one transaction over at most a thousand jobs, the oldest first. It searches without locks, with the same
bounds as the list, then locks what it found and acts on the jobs that still match: a claim or an end may have come
first. So a job that a worker holds is never moved, and none is cancelled twice. ``next`` has the last job and the
instant of the first call, so that a shift moves no job twice. A call without it starts at the oldest job.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import msgspec

from tickwright.capabilities.jobs.admin.dead_letters import requeued, revive
from tickwright.capabilities.jobs.admin.search import (
    COUNT_MAX,
    MANY_MAX,
    QUERIES,
    SEARCHES,
    JobFilter,
    JobQuery,
    JobSearch,
    with_ids,
)
from tickwright.capabilities.jobs.admin.views import BulkAction, Requeued
from tickwright.capabilities.jobs.states import JobStatus
from tickwright.domain.errors import Rejected
from tickwright.ports.caller import Caller
from tickwright.ports.ids import monotonic
from tickwright.store.audit import write_audit
from tickwright.store.paging import Cursors
from tickwright.store.pool import Connection, Pool

SEARCH_S = 5.0
SHIFT_MAX = timedelta(days=3660)
TIME_RULE = "scheduled_tasks_execute_at"


@dataclass(frozen=True, slots=True)
class BulkCall:
    """One call of a bulk action: ``limit`` is 1 to 1,000; ``dry_run`` counts up to 10,000 jobs and changes none."""

    which: JobFilter
    caller: Caller
    limit: int = MANY_MAX
    cursor: str | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class BulkMove:
    """A target time: an instant, a delay from now, or a shift of each due time; nothing means now."""

    execute_at: datetime | None = None
    delay: timedelta | None = None
    shift: timedelta | None = None

    def check(self) -> None:
        """Refuse a move without exactly one of the three fields.

        Raises:
            Rejected: ``execute_at_or_delay``, ``invalid_shift``. Permanent.
        """
        if sum(value is not None for value in (self.execute_at, self.delay, self.shift)) != 1:
            raise Rejected("execute_at_or_delay", "send execute_at, delay or shift, one of them", field="execute_at")
        if self.shift is not None and not timedelta() < abs(self.shift) <= SHIFT_MAX:
            raise Rejected("invalid_shift", f"shift: not 0, and at most {SHIFT_MAX.days} days", field="shift")

    def shown(self) -> dict[str, Any]:
        """Return the fields that are set, for the audit trail."""
        values = {"execute_at": self.execute_at, "delay": self.delay, "shift": self.shift}
        return {name: str(value) for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The jobs of a call, and where the next call continues."""

    query: JobQuery
    ids: list[int]
    position: int | None
    as_of: datetime

    @property
    def more(self) -> bool:
        return self.position is not None


class JobBulkActions:
    """Bulk actions on jobs."""

    def __init__(self, pool: Pool, search: JobSearch, cursors: Cursors) -> None:
        self._pool, self._search, self._cursors = pool, search, cursors

    async def cancel(self, call: BulkCall) -> BulkAction:
        """Cancel pending jobs; ask the workers of held ones to stop them.

        Raises:
            Rejected: ``empty_filter``, ``invalid_limit``, ``invalid_cursor``. Permanent.
        """
        chosen = await self._choose(call, JobQuery(call.which, "cancel"))
        if call.dry_run:
            return await self._count(chosen)
        async with self._pool.acquire() as connection, connection.transaction():
            done = await cancel(connection, await _lock(connection, chosen.query, chosen.ids))
            ids = sorted(job_id for job_id, _ in done)
            await _audit(connection, call, "cancel_many", ids)
        requested = sum(status != JobStatus.CANCELLED for _, status in done)
        return BulkAction(len(ids) - requested, requested, ids, chosen.more, await self._next(call, chosen))

    async def retry(self, call: BulkCall, *, from_start: bool = False) -> Requeued:
        """Run failed jobs again, with all their attempts, due now; ``from_start`` removes their steps.

        Skipped are jobs whose key another job has now, unique ones whose arguments another job holds, and jobs that
        break a rule that is newer than they are.

        Raises:
            Rejected: ``only_failed``, ``empty_filter``, ``invalid_limit``, ``invalid_cursor``. Permanent.
        """
        if not set(call.which.statuses) <= {JobStatus.FAILED}:
            raise Rejected("only_failed", "only failed jobs can be retried; leave status out", field="status")
        chosen = await self._choose(call, JobQuery(replace(call.which, statuses=(JobStatus.FAILED,))))
        if call.dry_run:
            return Requeued(len(chosen.ids), [], chosen.more, dry_run=True)
        async with self._pool.acquire() as connection, connection.transaction():
            revived = await revive(connection, chosen.ids, None, call.limit, from_start=from_start)
            ids = [row["id"] for row in revived.rows]
            await _audit(connection, call, "retry_many", ids, **({"from_start": True} if from_start else {}))
        following = await self._next(call, chosen)
        return msgspec.structs.replace(requeued(revived, following), more=chosen.more)

    async def run_now(self, call: BulkCall) -> BulkAction:
        """Make pending jobs due now; skip those that are due already.

        Raises:
            Rejected: ``empty_filter``, ``invalid_limit``, ``invalid_cursor``. Permanent.
        """
        return await self._move(call, JobQuery(call.which, "run_now"), BulkMove(), "run_now_many")

    async def reschedule(self, call: BulkCall, move: BulkMove) -> BulkAction:
        """Move pending jobs to another time.

        Raises:
            Rejected: ``execute_at_or_delay``, ``invalid_shift``, ``time_out_of_range``, ``job_unfit``,
                ``empty_filter``, ``invalid_limit``, ``invalid_cursor``. Permanent.
        """
        move.check()
        return await self._move(call, JobQuery(call.which, "move", target=move.execute_at), move, "reschedule_many")

    async def _move(self, call: BulkCall, query: JobQuery, move: BulkMove, action: str) -> BulkAction:
        chosen = await self._choose(call, query, once=move.delay is not None or move.shift is not None)
        if call.dry_run:
            return await self._count(chosen)
        at = move.execute_at if move.delay is None else chosen.as_of + move.delay
        try:
            async with self._pool.acquire() as connection, connection.transaction():
                ids = await _lock(connection, chosen.query, chosen.ids)
                moved = sorted(row["id"] for row in await connection.fetch(SEARCHES["move_many"], ids, at, move.shift))
                await _audit(connection, call, action, moved, **move.shown())
        except asyncpg.CheckViolationError as error:
            raise refused(error) from error
        return BulkAction(len(moved), 0, moved, chosen.more, await self._next(call, chosen))

    async def _choose(self, call: BulkCall, query: JobQuery, *, once: bool = False) -> _Chosen:
        """Search for the jobs of a call until it has enough, there are no more, or ``SEARCH_S`` is over."""
        call.which.check(call.limit)
        which = await with_ids(self._pool, query.which)
        as_of, position = await self._begin(call, query)
        query = replace(query, which=which, as_of=as_of if once else None)
        limit, until_s, ids = COUNT_MAX if call.dry_run else call.limit, monotonic() + SEARCH_S, list[int]()
        after: int | None = position
        while after is not None and len(ids) < limit and monotonic() < until_s:
            found = await self._search.oldest(query, after, limit - len(ids))
            ids += found.ids
            after = found.position
        return _Chosen(query, ids, after, as_of)

    async def _begin(self, call: BulkCall, query: JobQuery) -> tuple[datetime, int]:
        if call.cursor is None:
            return await self._search.now(), 0
        listing = ("many", query.action, *call.which.listing())
        as_of, position = await self._cursors.read(call.cursor, tuple[datetime, int], *listing)
        return as_of, position

    async def _next(self, call: BulkCall, chosen: _Chosen) -> str | None:
        if not chosen.more:
            return None
        listing = ("many", chosen.query.action, *call.which.listing())
        return await self._cursors.make((chosen.as_of, chosen.position), *listing)

    async def _count(self, chosen: _Chosen) -> BulkAction:
        """Return what a call would do; nothing is locked, so it may change at once."""
        counts = await self._search.status_of(chosen.query, chosen.ids)
        requested = counts.get(JobStatus.PROCESSING, 0)
        return BulkAction(sum(counts.values()) - requested, requested, [], chosen.more, dry_run=True)


def refused(error: asyncpg.CheckViolationError) -> Rejected:
    """Return the error for the constraint of the table that a moved job would break."""
    if error.constraint_name == TIME_RULE:
        return Rejected("time_out_of_range", "a job would be due before 1970 or after 9998; nothing was moved")
    return Rejected(
        "job_unfit", f"a job breaks a rule that is younger than it ({error}); nothing was moved", status=409
    )


async def cancel(connection: Connection, ids: Sequence[int]) -> list[tuple[int, str]]:
    """Cancel locked live jobs; return ``(id, status after)``."""
    return [(row[0], row[1]) for row in await connection.fetch(QUERIES["cancel"], list(ids))]


async def _lock(connection: Connection, query: JobQuery, ids: list[int]) -> list[int]:
    """Lock those of these live jobs that still match, except rows that another session has locked."""
    return [row["id"] for row in await connection.fetch(query.sql("lock_many"), *query.arguments(), ids)]


async def _audit(connection: Connection, call: BulkCall, action: str, ids: Sequence[int], **more: Any) -> None:
    if ids:
        after = {"count": len(ids), "ids": list(ids), **more}
        await write_audit(connection, call.caller, f"jobs.{action}", "jobs", before=call.which.shown(), after=after)
