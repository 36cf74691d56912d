"""Lists for operators: workers, alerts, the outbox, the audit trail."""

from typing import Any, TypeVar

import msgspec

from tickwright.capabilities.operations.keys import ApiKeys
from tickwright.capabilities.operations.views import AlertView, AuditView, OutboxView, WorkerView
from tickwright.domain.errors import Rejected
from tickwright.ports.caller import Caller
from tickwright.ports.views import Page, view
from tickwright.store.audit import write_audit
from tickwright.store.paging import LIMIT_DEFAULT, NEWEST, Cursors, checked_limit, fetch_page
from tickwright.store.pool import Pool
from tickwright.store.queries import load

_SQL = load("tickwright.capabilities.operations.sql", "operations.sql")
_WORKERS = load("tickwright.engine.sql", "workers.sql")
T = TypeVar("T", AlertView, OutboxView)
AUDIT_ROWS_SEARCHED_MAX = 10_000
"""Lines of the audit trail that a filtered page reads."""


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The query of one page of the audit trail: ``action``, ``subject`` and ``actor`` are compared as a whole.

    ``actor`` is the name of a key, or of the user on the command line. ``limit`` is 1 to 200.
    """

    action: str | None = None
    action_prefix: str | None = None
    subject: str | None = None
    actor: str | None = None
    cursor: str | None = None
    limit: int = LIMIT_DEFAULT


class Operations:
    """Lists, API keys, and the drain of a worker; one per process and pool."""

    def __init__(self, pool: Pool) -> None:
        self._pool, self._cursors = pool, Cursors(pool)
        self.keys = ApiKeys(pool)

    async def workers(self) -> list[WorkerView]:
        """Return every session of the last day, newest first, at most 1,000."""
        return [view(WorkerView, row) for row in await self._pool.fetch(_WORKERS["list_workers"])]

    async def drain(self, worker: int, *, caller: Caller) -> None:
        """Ask a worker to finish what it runs and stop; it reads this with its next renewal.

        Raises:
            Rejected: ``worker_not_found`` (404): unknown, lost or gone. Permanent.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            if await connection.fetchval(_WORKERS["request_drain"], worker) is None:
                raise Rejected("worker_not_found", f"there is no live worker session {worker}", status=404)
            await write_audit(connection, caller, "workers.drain", f"worker:{worker}", after={"drain": True})

    async def alerts(
        self, *, state: str | None = None, cursor: str | None = None, limit: int = LIMIT_DEFAULT
    ) -> Page[AlertView]:
        """Return one page of alerts, newest first; ``state`` is ``firing`` or ``resolved``."""
        return await self._page(AlertView, "list_alerts", cursor, limit, state)

    async def outbox(
        self, *, destination: str | None = None, cursor: str | None = None, limit: int = LIMIT_DEFAULT
    ) -> Page[OutboxView]:
        """Return one page of waiting messages, newest first."""
        return await self._page(OutboxView, "list_outbox", cursor, limit, destination)

    async def audit(self, query: AuditQuery) -> Page[AuditView]:
        """Return one page of the audit trail, newest first.

        A filtered page reads a bounded number of lines: it may have fewer than its limit and still a next one.

        Raises:
            Rejected: ``invalid_limit``, ``invalid_cursor``. Permanent.
        """
        limit = checked_limit(query.limit)
        filters = (query.action, query.action_prefix, query.subject, query.actor)
        listing = ("list_audit", *filters)
        before = NEWEST if query.cursor is None else await self._cursors.read(query.cursor, int, *listing)
        rows = await fetch_page(self._pool, _SQL["list_audit"], before, *filters, limit + 1, AUDIT_ROWS_SEARCHED_MAX)
        items = [view(AuditView, row) for row in rows[:limit] if row["id"] is not None]
        position = items[-1].id if len(rows) > limit else rows[0]["last_id"]
        return Page(items, None if position is None else await self._cursors.make(position, *listing))

    async def _page(self, kind: type[T], query: str, cursor: str | None, limit: int, *filters: Any) -> Page[T]:
        limit = checked_limit(limit)
        before = NEWEST if cursor is None else await self._cursors.read(cursor, int, query, *filters)
        rows = await fetch_page(self._pool, _SQL[query], before, *filters, limit + 1)
        items = [view(kind, row) for row in rows[:limit]]
        more = await self._cursors.make(items[-1].id, query, *filters) if len(rows) > limit else None
        return Page(items, more)
