"""The download centre: reports by who asked for them, newest first."""

import msgspec

from tickwright.capabilities.reports.requests.records import LISTING
from tickwright.capabilities.reports.requests.views import ReportView
from tickwright.ports.views import Page, view
from tickwright.store.paging import LIMIT_DEFAULT, NEWEST, Cursors, bounded, fetch_page
from tickwright.store.pool import Pool

LOOKED_MAX = 5_000
"""Reports that a page looks at, when it filters by more than the requester."""


class ReportQuery(msgspec.Struct, frozen=True):
    """What a listing of reports is asked for.

    Attributes:
        statuses: Empty is all.
        limit: 1 to 200.
    """

    requester: str | None = None
    department: str | None = None
    type: str | None = None
    statuses: tuple[str, ...] = ()
    cursor: str | None = None
    limit: int = LIMIT_DEFAULT


class RecordsList:
    """Pages of records."""

    def __init__(self, pool: Pool, cursors: Cursors) -> None:
        self._pool, self._cursors = pool, cursors

    async def page(self, query: ReportQuery) -> Page[ReportView]:
        """Return one page of reports, newest first.

        With a filter beside the requester a page may hold fewer than its limit, or none, and still have a next one:
        it looks at 5,000 reports.

        Raises:
            Rejected: ``invalid_limit``, ``invalid_cursor``. Permanent.
        """
        limit = bounded(query.limit)
        listing = ("reports", query.requester, query.department, query.type, *query.statuses)
        before = NEWEST if query.cursor is None else await self._cursors.read(query.cursor, int, *listing)
        given = [before, query.department, query.type, [*query.statuses] or None, limit + 1, LOOKED_MAX]
        rows = await fetch_page(self._pool, LISTING["list_reports"], *given, query.requester)
        items = [view(ReportView, row) for row in rows[:limit] if row["id"] is not None]
        position = items[-1].id if len(rows) > limit else rows[0]["last_id"]
        return Page(items, None if position is None else await self._cursors.make(position, *listing))
