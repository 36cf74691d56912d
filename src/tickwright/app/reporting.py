"""Reports by call: asked for alone or in the caller's own transaction, with the answers and bounds of the REST API.

Like a job that a program schedules, it leaves no line in the audit trail, which is the operators'.
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
    """The answer: the record's id, and whether this call made it; else an equal one was under way."""

    id: int
    created: bool


class _Borrowed:
    """The caller's connection, with as much of asyncpg's as making a record needs."""

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
    """Return what a program wants, read as a body from a stranger is: the same bounds, the same errors."""
    given = {name: value for name, value in wanted.items() if value is not None}
    return strict_json.decode(to_json(given).encode(), _body)


async def request_report(
    reports: ReportsService, pool: Pool, wanted: Mapping[str, Any], caller: Caller, connection: Any
) -> RequestedReport:
    """Ask for a report, on the caller's connection if there is one."""
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
    """With a snapshot of its own it would not see the equal report of somebody else that is under way."""
    isolation: str = (await connection.fetch(_SQL["isolation"]))[0][0]
    if isolation in _KEEPS_ITS_SNAPSHOT:
        raise Rejected(
            "unsupported_isolation",
            f"connection: its transaction is {isolation.upper()} and would not see an equal report that is under way; "
            "use READ COMMITTED, or ask without a connection once yours is committed",
        )
