"""The audit trail: one row per operator action, in the transaction of the action."""

from typing import Any

import msgspec

from tickwright.domain.masking import masked_json
from tickwright.ports.caller import Caller
from tickwright.ports.views import Doors
from tickwright.store.pool import Connection
from tickwright.store.queries import load

_SQL = load("tickwright.store.sql", "audit.sql")


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


def _json(value: Any) -> str | None:
    if isinstance(value, Doors):
        value = value.masked()
    if value is None:
        return None
    return masked_json(msgspec.json.encode(value).decode())
