"""Dead letters of both kinds, failed jobs and undeliverable outbox messages: looking and requeueing."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

from tickwright.capabilities.jobs.admin.filters import MANY_MAX, JobFilter
from tickwright.capabilities.jobs.admin.jobs_store import JobsStore, Revived
from tickwright.capabilities.jobs.admin.views import DeadLetter, Requeued
from tickwright.domain.masking import masked_document
from tickwright.ports.caller import Caller
from tickwright.ports.views import Page, view
from tickwright.store.audit import write_audit
from tickwright.store.paging import LIMIT_DEFAULT, NEWEST, Cursors, bounded, fetch_page
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

_SQL = load("tickwright.capabilities.jobs.sql", "dead_letters.sql")
_END = datetime(9999, 1, 1, tzinfo=UTC)
Kind = Literal["job", "outbox"]
LOOKED_MAX = 100_000
"""Dead letters that a count looks at: no index knows their subjects."""


class DeadLetters:
    """What was given up and can be requeued."""

    def __init__(self, pool: Pool, store: JobsStore, cursors: Cursors) -> None:
        self._pool, self._store, self._cursors = pool, store, cursors

    async def list(
        self,
        *,
        kind: Kind | None = None,
        subject: str | None = None,
        cursor: str | None = None,
        limit: int = LIMIT_DEFAULT,
    ) -> Page[DeadLetter]:
        """Return one page, the youngest first; ``subject`` is a task type or a destination.

        Raises:
            Rejected: ``invalid_limit``, ``invalid_cursor``. Permanent.
        """
        limit = bounded(limit)
        before, before_id = _END, NEWEST
        if cursor is not None:
            before, before_id = await self._cursors.read(cursor, tuple[datetime, int], "dead", kind, subject)
        rows = await fetch_page(self._pool, _SQL["list_dead"], before, before_id, kind, subject, limit + 1)
        items = [view(DeadLetter, row) for row in rows[:limit]]
        more = None
        if len(rows) > limit:
            more = await self._cursors.make((items[-1].died_at, items[-1].id), "dead", kind, subject)
        return Page(items, more)

    async def count(self, kind: Kind, *, ids: Sequence[int] | None = None, subject: str | None = None) -> Requeued:
        """Say how many a requeue would take, among 100,000 at most; ``more`` where there are others. Nothing goes back.

        Raises:
            Rejected: ``empty_filter``. Permanent.
        """
        JobFilter(ids=None if ids is None else tuple(ids), task_type=subject).check(MANY_MAX)
        row = await self._pool.fetchrow(_SQL["count_dead"], kind, ids, subject, LOOKED_MAX)
        return Requeued(row["found"], [], row["looked"] == LOOKED_MAX, dry_run=True)

    async def requeue(
        self,
        kind: Kind,
        *,
        caller: Caller,
        ids: Sequence[int] | None = None,
        subject: str | None = None,
        limit: int = MANY_MAX,
        cursor: str | None = None,
    ) -> Requeued:
        """Put dead letters back to work, the oldest first, at most 1,000 in one transaction.

        Ids that are no dead letters (any more) are left out of the answer, so that asking twice is harmless. ``next``
        goes on behind the last one, so that who follows it puts nothing back twice, however soon it dies again. Jobs
        whose idempotency key another job has by now stay, and are listed in ``key_reused``; what breaks a rule that is
        younger than it stays, too, and is listed in ``unfit``.

        Raises:
            Rejected: ``empty_filter``, ``invalid_limit``, ``invalid_cursor``. Permanent.
        """
        JobFilter(ids=None if ids is None else tuple(ids), task_type=subject).check(limit)
        listing = ("requeue", kind, ids, subject)
        after = 0 if cursor is None else await self._cursors.read(cursor, int, *listing)
        async with self._pool.acquire() as connection, connection.transaction():
            if kind == "job":
                revived = await self._store.revive(connection, ids, subject, limit, after)
            else:
                revived = await self._revive_messages(connection, ids, subject, limit, after)
            done = [row["id"] for row in revived.rows]
            if done:
                before = masked_document({"kind": kind, "ids": ids, "subject": subject})
                subjects = "jobs" if kind == "job" else "outbox"
                await write_audit(
                    connection, caller, "dead_letters.requeue", subjects, before=before, after={"ids": done}
                )
        onward = None if revived.last_id is None else await self._cursors.make(revived.last_id, *listing)
        stay, unfit = revived.key_reused, revived.unfit
        return Requeued(len(done), done, onward is not None, onward, key_reused=stay, unfit=unfit)

    async def _revive_messages(
        self, connection: Connection, ids: Sequence[int] | None, destination: str | None, limit: int, after: int
    ) -> Revived:
        rows = await connection.fetch(_SQL["pick_dead_messages"], ids, destination, limit, after)
        back = [row for row in rows if row["fits"]]
        if back:
            await connection.execute(_SQL["revive_messages"], [row["id"] for row in back])
        unfit = [row["id"] for row in rows if not row["fits"]]
        return Revived(back, [], unfit, rows[-1]["id"] if len(rows) == limit else None)
