"""The audit trail: one row per operator action, in the transaction of the action."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from tickwright.domain.errors import Rejected
from tickwright.domain.masking import masked_json
from tickwright.ports.caller import Caller
from tickwright.ports.views import Doors, view
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

_SQL = load("tickwright.store.sql", "audit.sql")
V = TypeVar("V", bound=msgspec.Struct)


async def write_audit(
    connection: Connection, caller: Caller, action: str, subject: str, *, before: Any = None, after: Any = None
) -> int:
    """Write that ``caller`` did ``action`` (``jobs.cancel``) to ``subject`` (``job:42``); return the row's id.

    In the transaction of the action, so both are committed or neither. ``before`` and ``after`` are states without any
    secret; addresses are masked here.
    """
    row_id: int = await connection.fetchval(_SQL["audit"], caller.name, action, subject, _json(before), _json(after))
    return row_id


async def update_audit(connection: Connection, row_id: int, after: Any) -> None:
    """Replace the state after a continuing action in its own row."""
    await connection.execute(_SQL["audit_progress"], row_id, _json(after))


@dataclass(slots=True)
class AuditedChange(Generic[V]):
    """A change of a row; ``before`` is ``None`` for a new one, ``after`` is read at its end, and not set before."""

    connection: Connection
    before: Any
    after: V = field(init=False)


class AuditedRows(Generic[V]):
    """Rows with a name that operators change, such as accounts, each change with a line of the audit trail.

    Args:
        kind: What a row is, such as ``account``.
        view_kind: The struct of a row of the query ``read``.
        lock: A query that locks the row $1.
    """

    def __init__(self, pool: Pool, kind: str, view_kind: type[V], *, lock: str, read: str) -> None:
        self._pool, self._kind, self._view_kind, self._lock, self._read = pool, kind, view_kind, lock, read

    async def row(self, name: str, connection: Connection | None = None) -> Any:
        """Return the row ``name`` of the query ``read``.

        Raises:
            Rejected: ``<kind>_not_found`` (404). Permanent.
        """
        row = await (connection or self._pool).fetchrow(self._read, name)
        if row is None:
            raise self.not_found(name)
        return row

    def not_found(self, name: str) -> Rejected:
        """Return the refusal of a name that does not exist."""
        return Rejected(f"{self._kind}_not_found", f"there is no {self._kind} {name[:50]!r}", status=404)

    @asynccontextmanager
    async def changing(
        self, action: str, name: str, caller: Caller, *, creates: bool = False
    ) -> AsyncIterator[AuditedChange[V]]:
        """Lock a row for a body that changes it, and write both states into the audit trail.

        Raises:
            Rejected: ``<kind>_not_found`` (404), unless the body ``creates`` the row. Permanent.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            await connection.execute(self._lock, name)
            old = await connection.fetchrow(self._read, name) if creates else await self.row(name, connection)
            before: Any = None if old is None else view(self._view_kind, old)
            change = AuditedChange[V](connection, before)
            yield change
            change.after = view(self._view_kind, await self.row(name, connection))
            subject = f"{self._kind}:{name}"
            await write_audit(
                connection, caller, f"{self._kind}s.{action}", subject, before=change.before, after=change.after
            )


def _json(value: Any) -> str | None:
    if isinstance(value, Doors):
        value = value.masked()
    if value is None:
        return None
    return masked_json(msgspec.json.encode(value).decode())
