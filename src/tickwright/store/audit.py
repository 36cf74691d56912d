"""The audit trail: one row per operator action, in the transaction of the action."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import msgspec

from tickwright.domain.errors import Rejected
from tickwright.domain.masking import masked_json
from tickwright.ports.caller import Caller
from tickwright.ports.views import AccessGranting
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
    """A change of a row; ``before`` is ``None`` for a new one, ``after`` is read at its end, and not set before.

    Attributes:
        audited: What the audit trail gets instead of the two states.
    """

    connection: Connection
    before: Any
    after: V = field(init=False)
    audited: tuple[Any, Any] | None = None


class AuditedRows(Generic[V]):
    """Rows with a name that operators change, such as accounts, each change with a line of the audit trail.

    Args:
        kind: What a row is, such as ``account``.
        code: The beginning of the code ``<code>_not_found``; ``kind`` by default.
        show: Returns a row of the query ``read`` as it is shown.
        lock: A query that locks the row $1.
        read: A query for the row $1, or for all rows where $1 is null.
        switches: The statements of :meth:`switch` by action.
        audits_equal: Whether a change is audited that left the row as it was.
    """

    def __init__(
        self,
        pool: Pool,
        kind: str,
        show: Callable[[Any], V],
        *,
        lock: str,
        read: str,
        switches: Mapping[str, str] = MappingProxyType({}),
        audits_equal: bool = True,
        code: str | None = None,
    ) -> None:
        self._pool, self._kind, self._code, self._show = pool, kind, code or kind, show
        self._lock, self._read, self._switches = lock, read, switches
        self._audits_equal = audits_equal

    async def get(self, name: str, connection: Connection | None = None) -> V:
        """Return one row.

        Raises:
            Rejected: ``<code>_not_found`` (404). Permanent.
        """
        return self._show(await self.row(name, connection))

    async def row(self, name: str, connection: Connection | None = None) -> Any:
        """Return the row ``name`` of the query ``read``.

        Raises:
            Rejected: ``<code>_not_found`` (404). Permanent.
        """
        row = await (connection or self._pool).fetchrow(self._read, name)
        if row is None:
            raise self.not_found(name)
        return row

    def not_found(self, name: str) -> Rejected:
        """Return the refusal of a name that does not exist."""
        return Rejected(
            f"{self._code}_not_found", f"there is no {self._kind.replace('_', ' ')} {name[:50]!r}", status=404
        )

    @asynccontextmanager
    async def changing(
        self, action: str, name: str, caller: Caller, *, creates: bool = False
    ) -> AsyncIterator[AuditedChange[V]]:
        """Lock a row for a body that changes or deletes it, and write both states into the audit trail.

        Raises:
            Rejected: ``<code>_not_found`` (404), unless the body ``creates`` the row. Permanent.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            await connection.execute(self._lock, name)
            old = await connection.fetchrow(self._read, name) if creates else await self.row(name, connection)
            change = AuditedChange[V](connection, None if old is None else self._show(old))
            yield change
            new: Any = await connection.fetchrow(self._read, name)
            if new is not None:
                new = change.after = self._show(new)
            before, after = change.audited or (change.before, new)
            if self._audits_equal or before != after:
                subject = f"{self._kind}:{name}"
                await write_audit(connection, caller, f"{self._kind}s.{action}", subject, before=before, after=after)

    async def switch(self, name: str, action: str, *, caller: Caller) -> V:
        """Pause or enable a row, or do another action of ``switches``. Twice is harmless.

        Raises:
            Rejected: ``<code>_not_found`` (404). Permanent.
        """
        async with self.changing(action, name, caller) as change:
            await change.connection.execute(self._switches[action], name)
        return change.after

    async def list(self) -> list[V]:
        """Return every row by name."""
        return [self._show(row) for row in await self._pool.fetch(self._read, None)]


def _json(value: Any) -> str | None:
    if isinstance(value, AccessGranting):
        value = value.masked()
    if value is None:
        return None
    return masked_json(msgspec.json.encode(value).decode())
