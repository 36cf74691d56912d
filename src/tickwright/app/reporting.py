"""Requests for reports by a program, alone or in the caller's own transaction, with the bounds of the REST API.

Like a job that a program schedules, a request is not recorded in the audit trail, which is for operators.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tickwright.app.borrowed import Fetching, borrow
from tickwright.app.payloads import to_json
from tickwright.capabilities.reports.requests.views import ReportRequestBody
from tickwright.capabilities.reports.service import ReportsService
from tickwright.domain import strict_json
from tickwright.domain.errors import Rejected
from tickwright.ports.caller import Caller
from tickwright.store.pool import Pool
from tickwright.store.queries import load

_SQL = load("tickwright.app.sql", "tracking.sql")
_KEEPS_ITS_SNAPSHOT = ("repeatable read", "serializable")
_body = msgspec.json.Decoder(ReportRequestBody)


class RequestedReport(msgspec.Struct, frozen=True):
    """The id of the record, and whether this call created it or found an equal one in progress."""

    id: int
    created: bool


class _Borrowed:
    """The caller's connection, with the part of asyncpg's interface that creating a record needs."""

    def __init__(self, connection: Fetching) -> None:
        self._connection = connection

    async def fetch(self, sql: str, *values: Any) -> Sequence[Any]:
        return await self._connection.fetch(sql, *values)

    async def fetchrow(self, sql: str, *values: Any) -> Any:
        rows = await self._connection.fetch(sql, *values)
        return rows[0] if rows else None

    async def fetchval(self, sql: str, *values: Any) -> Any:
        rows = await self._connection.fetch(sql, *values)
        return rows[0][0] if rows else None

    async def execute(self, sql: str, *values: Any) -> None:
        await self._connection.fetch(sql, *values)


def body_of(wanted: Mapping[str, Any]) -> ReportRequestBody:
    """Decode a program's request like a body of REST, with the same bounds and errors."""
    given = {name: value for name, value in wanted.items() if value is not None}
    return strict_json.decode(to_json(given).encode(), _body)


async def request_report(
    reports: ReportsService, pool: Pool, wanted: Mapping[str, Any], caller: Caller, connection: Any
) -> RequestedReport:
    """Request a report, on the caller's connection if there is one."""
    new = await reports.records.check(body_of(wanted), caller)
    if connection is None:
        async with pool.acquire() as own, own.transaction():
            made = await reports.records.create(own, new)
    else:
        borrowed = borrow(connection)
        await _check_isolation(borrowed)
        made = await reports.records.create(_Borrowed(borrowed), new)
    return RequestedReport(made.id, made.created)


async def _check_isolation(connection: Fetching) -> None:
    """Refuse a transaction that keeps its snapshot: it would not see an equal report of another transaction."""
    isolation: str = (await connection.fetch(_SQL["isolation"]))[0][0]
    if isolation in _KEEPS_ITS_SNAPSHOT:
        raise Rejected(
            "unsupported_isolation",
            f"connection: its transaction is {isolation.upper()} and would not see an equal report that is under way; "
            "use READ COMMITTED, or ask without a connection once yours is committed",
        )
