"""Ends sessions that wait for a lock on one of our tables without the right to it; see docs/security.md.

PostgreSQL requests the lock of ``CREATE RULE``, ``CREATE TRIGGER``, ``ATTACH PARTITION`` and a few other statements
before it checks rights. Another session's weak lock, which needs no right either, can make such a statement wait
without limit, and every user of the table waits behind it. The statement can only end in a refusal, so ending its
session loses no work. The session with the weak lock is left alone: a weak lock blocks no one else.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import structlog

from tickwright.ports.ids import monotonic
from tickwright.store.pool import UNAVAILABLE, HeldUp, Pool, beside
from tickwright.store.queries import load, with_shared

_SQL = with_shared(load("tickwright.engine.sql", "table_locks.sql"), "table_lock")
EVERY_S = 2.0
WITHIN_S = 5.0
AGAIN_S = 60.0
COMPLAINT_AGE_MAX_S = 10.0
UNAVAILABLE_S = 10.0
_log = structlog.get_logger("tickwright.database")


class TableLocks:
    """Searches for such sessions after a statement of this process was blocked; until then it does nothing.

    While it finds some, and for a minute afterwards, it searches every two seconds, so that it ends the next one
    sooner.
    """

    _named: ClassVar[str | None] = None
    _named_s: ClassVar[float] = float("-inf")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._searched_s = self._found_s = float("-inf")
        self._logged: set[tuple[int, bool]] = set()

    @classmethod
    def operator_message(cls) -> str | None:
        """Return an operator message about a session that this process may not end, if the last search found one."""
        return cls._named if monotonic() - cls._named_s < COMPLAINT_AGE_MAX_S else None

    def is_due(self) -> bool:
        """Return whether to search now."""
        now_s = monotonic()
        wanted = HeldUp.seen_s > self._searched_s or now_s < self._found_s + AGAIN_S
        return wanted and now_s >= self._searched_s + EVERY_S

    async def search(self) -> None:
        """Search once, and end what this database user may end.

        Raises:
            One of UNAVAILABLE: The database does not answer. The next search is due at the earliest ten seconds later,
                if a statement is blocked again.
        """
        self._searched_s = monotonic()
        try:
            async with asyncio.timeout(WITHIN_S), beside(self._pool) as own, own.transaction():
                await own.execute(_SQL["be_brief"])
                rows = await own.fetch(_SQL["end_table_locks"])
        except UNAVAILABLE:
            self._searched_s = monotonic() + UNAVAILABLE_S
            raise
        if rows:
            self._found_s = monotonic()
        self._log_finding(rows)

    def _log_finding(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            if (row["pid"], row["ended"]) not in self._logged:
                named = {name: row[name] for name in ("pid", "role", "relation", "mode", "ended")}
                _log.error("database.table_lock", **named, advice=_advice(row))
        self._logged = {(row["pid"], row["ended"]) for row in rows}
        remaining = [_operator_message(row) for row in rows if not row["ended"]]
        TableLocks._named, TableLocks._named_s = remaining[0] if remaining else None, monotonic()


def _operator_message(row: Mapping[str, Any]) -> str:
    return (
        f"table_lock: session {row['pid']} of role {row['role']} waits with {row['mode']} of {row['relation']}, to "
        f"which it has no right, and blocks all others there: {_advice(row)}"
    )


def _advice(row: Mapping[str, Any]) -> str:
    no_login = f"ALTER ROLE {row['quoted']} NOLOGIN"
    if row["ended"]:
        return f"{no_login} prevents its login"
    granted = f"GRANT {row['quoted']} TO {row['me']}"
    return f"pg_terminate_backend({row['pid']}); {no_login}; or {granted}, and processes end such sessions themselves"
