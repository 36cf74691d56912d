"""Report types: the reports that can be requested, the listeners of their parts, and their merging SQL.

An operator's type has priority: a program's declaration replaces only what a program has declared. A change applies to
later requests. Each record keeps its own plan, so a type may be changed and deleted at any time.
"""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from difflib import get_close_matches
from functools import partial
from typing import Any

import msgspec

from tickwright.capabilities.reports.merge.sandbox import sql_checks
from tickwright.capabilities.reports.plan import Plan
from tickwright.capabilities.reports.requests.views import ReportTypeDetail, ReportTypeView, StoredReportType
from tickwright.capabilities.reports.schema import check_definition, definition_of
from tickwright.domain.errors import Rejected
from tickwright.domain.strict_json import quoted
from tickwright.ports.caller import Caller
from tickwright.ports.views import Page, view
from tickwright.store.audit import write_audit
from tickwright.store.paging import LIMIT_DEFAULT, Cursors, checked_limit, fetch_page
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

_SQL = load("tickwright.capabilities.reports.sql", "types.sql")
_read = msgspec.json.Decoder(Plan).decode
_LISTING = "report_types"
_CHECKS = ThreadPoolExecutor(1, "tickwright-report-checks")
"""One check at a time in a process: DuckDB's parser holds the interpreter's lock, so several would block all else."""


class ReportTypes:
    """The rows of ``tickwright.report_types``."""

    def __init__(self, pool: Pool, cursors: Cursors) -> None:
        self._pool, self._cursors = pool, cursors

    async def list(self, cursor: str | None = None, limit: int = LIMIT_DEFAULT) -> Page[ReportTypeView]:
        """Return one page of report types, by name.

        Raises:
            Rejected: ``invalid_limit``, ``invalid_cursor``. Permanent.
        """
        limit = checked_limit(limit)
        after = "" if cursor is None else await self._cursors.read(cursor, str, _LISTING)
        rows = await fetch_page(self._pool, _SQL["list_types"], after, limit + 1)
        items = [view(ReportTypeView, row) for row in rows[:limit]]
        return Page(items, await self._cursors.make(items[-1].name, _LISTING) if len(rows) > limit else None)

    async def get(self, name: str) -> ReportTypeDetail:
        """Return one report type.

        Raises:
            Rejected: ``report_type_not_found`` (404). Permanent.
        """
        row = await self._pool.fetchrow(_SQL["get_type"], name)
        if row is None:
            raise Rejected("report_type_not_found", f"there is no report type {quoted(name)}", status=404)
        return _detail(row)

    async def plan(self, connection: Connection, name: str) -> Plan:
        """Return the plan of a new report of this type, read on the caller's ``connection``.

        Raises:
            Rejected: ``unknown_report_type``, with the nearest name. Retry once the type exists.
        """
        row = await connection.fetchrow(_SQL["get_type"], name)
        if row is not None:
            return _read(row["definition"])
        names = [found["name"] for found in await connection.fetch(_SQL["near_types"])]
        near = get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else "tickwright report-types list says what there is"
        raise Rejected("unknown_report_type", f"type: there is no report type {quoted(name)}; {hint}", field="type")

    async def put(self, name: str, table: Mapping[str, Any], *, caller: Caller) -> StoredReportType:
        """Create or replace a report type, for an operator or a file. An equal definition changes nothing.

        Raises:
            Rejected: ``invalid_report_type`` with every mistake. Permanent.
        """
        return await self._put(name, await _checked(name, table), "operator", caller)

    async def declare(self, name: str, table: Mapping[str, Any], *, caller: Caller) -> None:
        """Register a program's report type, unless an operator or a file has set it.

        Raises:
            Rejected: ``invalid_report_type`` with every mistake. Permanent.
        """
        await self._put(name, await _checked(name, table), "app", caller)

    async def delete(self, name: str, *, caller: Caller) -> None:
        """Delete a report type; existing reports continue.

        Raises:
            Rejected: ``report_type_not_found`` (404). Permanent.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            before = await connection.fetchrow(_SQL["lock_type"], name)
            if before is None:
                raise Rejected("report_type_not_found", f"there is no report type {quoted(name)}", status=404)
            await connection.execute(_SQL["delete_type"], name)
            await write_audit(connection, caller, "report_types.delete", f"report_type:{name}", before=_audited(before))

    async def _put(self, name: str, plan: Plan, set_by: str, caller: Caller) -> StoredReportType:
        text = msgspec.json.encode(plan).decode()
        async with self._pool.acquire() as connection, connection.transaction():
            before = await connection.fetchrow(_SQL["lock_type"], name)
            put = await connection.fetchrow(_SQL["put_type"], name, text, set_by, set_by == "app")
            row = await connection.fetchrow(_SQL["get_type"], name)
            if put is not None:
                old, new = None if before is None else _audited(before), _audited(row)
                await write_audit(connection, caller, "report_types.put", f"report_type:{name}", before=old, after=new)
        return StoredReportType(_detail(row), put is not None and put["created"])


async def _checked(name: str, table: Mapping[str, Any]) -> Plan:
    """Check a definition in a thread: DuckDB takes a while to parse a hundred queries."""
    check = partial(check_definition, name, table, checks=sql_checks())
    return await asyncio.get_running_loop().run_in_executor(_CHECKS, check)


def _audited(row: Any) -> dict[str, Any]:
    return {"set_by": row["set_by"], "definition": definition_of(_read(row["definition"]))}


def _detail(row: Any) -> ReportTypeDetail:
    plan = _read(row["definition"])
    return ReportTypeDetail(
        name=row["name"],
        listeners=[listener.name for listener in plan.listeners],
        stages=plan.stages,
        format=plan.format,
        set_by=row["set_by"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        definition=definition_of(plan),
    )
