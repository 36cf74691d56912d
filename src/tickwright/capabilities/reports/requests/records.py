"""Requests, reads, lists and cancellation of reports. The supervisor runs their steps.

The answer to a request is the record, at once. A requester has one report under way per query key; an equal request
gets the record of the first. No operation waits for a part or a file.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec

from tickwright.capabilities.reports.parts.store import PartStorage
from tickwright.capabilities.reports.report_types import ReportTypes
from tickwright.capabilities.reports.requests.conditions import normalise, query_key
from tickwright.capabilities.reports.requests.explain import explain, timeline
from tickwright.capabilities.reports.requests.store import NewReport, RecordsStore
from tickwright.capabilities.reports.requests.views import ReportDetail, ReportRequestBody, ReportView, RequestedReport
from tickwright.domain.errors import Rejected, TickwrightError
from tickwright.domain.strict_json import quoted
from tickwright.domain.time_texts import parse_duration
from tickwright.ports.caller import Caller
from tickwright.ports.objects import ObjectStore
from tickwright.ports.views import Explanation, Page, view
from tickwright.store.audit import write_audit
from tickwright.store.paging import LIMIT_DEFAULT, NEWEST, Cursors, checked_limit, fetch_page
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

LISTING = load("tickwright.capabilities.reports.sql", "listing.sql")
MAX_AGE_MAX = timedelta(days=365)
SNAPSHOT = "repeatable_read"
SCANNED_MAX = 5_000
"""Reports that a page reads if it filters by more than the requester."""


class Records:
    """Operations on records. A cancelled report's parts are removed from ``storage``."""

    def __init__(
        self,
        pool: Pool,
        store: RecordsStore,
        types: ReportTypes,
        storage: PartStorage,
        objects: ObjectStore,
        *,
        cursors: Cursors,
    ) -> None:
        self._pool, self._cursors, self._store, self._types = pool, cursors, store, types
        self._storage, self._objects = storage, objects
        self.create = store.create

    # ------------------------------------------------------------------ requests

    async def request(self, body: ReportRequestBody, caller: Caller) -> RequestedReport:
        """Request a report; the requester is the ``caller``, if the body names none.

        Returns:
            The record; ``created`` is false if an equal one is under way, or a finished one is recent enough.

        Raises:
            Rejected: ``unknown_report_type``, ``invalid_conditions`` with every mistake, ``conditions_too_large``,
                ``receiver_not_found``, ``invalid_duration``. Permanent.
            Contended: ``report_in_flight``. Retry.
        """
        new = await self.check(body, caller)
        report_id = await self._recent(new, body.max_age)
        created = False
        if report_id is None:
            async with self._pool.acquire() as connection, connection.transaction():
                report_id, created = await self.create(connection, new)
                if created:
                    details = {"type": new.type, "requester": new.requester, "conditions": new.conditions}
                    await write_audit(connection, caller, "reports.request", f"report:{report_id}", after=details)
        async with self._pool.acquire() as connection:
            return view(RequestedReport, await _row(connection, report_id), created=created)

    async def check(self, body: ReportRequestBody, caller: Caller) -> NewReport:
        """Return the checked request, ready for ``create``; errors as :meth:`request`."""
        async with self._pool.acquire() as connection:
            plan = await self._types.plan(connection, body.type)
            notify = body.notify or plan.notify
            if notify is not None and not await connection.fetchval(LISTING["receiver_known"], notify):
                raise Rejected("receiver_not_found", f"notify: there is no receiver {quoted(notify)}", field="notify")
        plan = msgspec.structs.replace(plan, format=body.format or plan.format)
        conditions = normalise(body.conditions, plan.parameters)
        return NewReport(
            type=body.type,
            query_key=query_key(body.type, plan.format, conditions),
            conditions=conditions,
            requester=body.requester or caller.name,
            plan=plan,
            source=body.source,
            department=body.department,
            notify=notify,
        )

    async def _recent(self, new: NewReport, max_age: str | None) -> int | None:
        """Return the finished report that is recent enough to answer the request, if its file exists."""
        if max_age is None:
            return None
        age = parse_duration(max_age, field="max_age")
        if age > MAX_AGE_MAX:
            raise Rejected("invalid_duration", f"max_age: at most {MAX_AGE_MAX.days} days", field="max_age")
        row = await self._pool.fetchrow(LISTING["recent_report"], new.requester, new.query_key, age.total_seconds())
        if row is None:
            return None
        try:
            size = await self._objects.size(row["file_key"])
        except TickwrightError:  # unknown: a new report is never wrong
            return None
        return row["id"] if size == row["bytes"] else None

    # ------------------------------------------------------------------ reading

    async def get(self, report_id: int) -> ReportDetail:
        """Return one report with its parts.

        Raises:
            Rejected: ``report_not_found`` (404). Permanent.
        """
        async with self._pool.acquire() as connection, connection.transaction(readonly=True, isolation=SNAPSHOT):
            row = await _row(connection, report_id)
            parts = await connection.fetch(LISTING["get_parts"], report_id)
        return view(ReportDetail, row, parts=timeline(parts))

    async def explain(self, report_id: int) -> Explanation:
        """Return the reasons for a report's state: what it waits for, since when, and what happens next.

        Raises:
            Rejected: ``report_not_found`` (404). Permanent.
        """
        async with self._pool.acquire() as connection, connection.transaction(readonly=True, isolation=SNAPSHOT):
            facts = await connection.fetchrow(LISTING["explain_report"], report_id)
            if facts is None:
                raise not_found(report_id)
            parts = await connection.fetch(LISTING["explain_parts"], report_id)
        return explain(facts, parts)

    async def list(
        self,
        *,
        requester: str | None = None,
        department: str | None = None,
        type: str | None = None,  # noqa: A002  the parameter's name
        statuses: Sequence[str] = (),
        cursor: str | None = None,
        limit: int = LIMIT_DEFAULT,
    ) -> Page[ReportView]:
        """Return one page of reports, newest first; without ``statuses`` of every status.

        With a filter besides the requester it reads 5,000 reports, so it may hold few or none and still have a next
        page.

        Raises:
            Rejected: ``invalid_limit``, ``invalid_cursor``. Permanent.
        """
        limit = checked_limit(limit)
        listing = ("reports", requester, department, type, *statuses)
        before = NEWEST if cursor is None else await self._cursors.read(cursor, int, *listing)
        given = [before, department, type, [*statuses] or None, limit + 1, SCANNED_MAX]
        rows = await fetch_page(self._pool, LISTING["list_reports"], *given, requester)
        items = [view(ReportView, row) for row in rows[:limit] if row["id"] is not None]
        position = items[-1].id if len(rows) > limit else rows[0]["last_id"]
        return Page(items, None if position is None else await self._cursors.make(position, *listing))

    # ------------------------------------------------------------------ cancelling

    async def cancel(self, report_id: int, *, caller: Caller) -> ReportView:
        """End a report without a file; every claim on it is lost. May be called twice.

        Raises:
            Rejected: ``report_not_found`` (404); ``report_over`` (409) with its status. Permanent.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            before = await _row(connection, report_id)
            cancelled = await self._store.cancel(connection, report_id)
            after = await _row(connection, report_id)
            if not cancelled and after["status"] != "cancelled":
                status = after["status"]
                raise Rejected("report_over", f"report {report_id} is {status} already", status=409, state=status)
            if cancelled:
                was, now = {"status": before["status"]}, {"status": "cancelled", "type": after["type"]}
                await write_audit(connection, caller, "reports.cancel", f"report:{report_id}", before=was, after=now)
        if cancelled:
            await self._storage.discard(report_id, "cancelled", after["nonce"])
        return view(ReportView, after)


async def _row(connection: Connection, report_id: int) -> Any:
    row = await connection.fetchrow(LISTING["get_report"], report_id)
    if row is None:
        raise not_found(report_id)
    return row


def not_found(report_id: int) -> Rejected:
    """Return the error of a missing report."""
    return Rejected("report_not_found", f"there is no report {report_id}", status=404)
