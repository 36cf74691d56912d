"""The caller's own connection: what we write on it commits or rolls back with the caller's transaction.

All drivers run the same statements with their own placeholders. A connection without an open transaction would commit
at once, whatever the caller does later, so it is refused: when it is passed in, or for SQLAlchemy with its first
statement. Synchronous connections run the same code: it waits only for the connection, so it can run without an event
loop.
"""

import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeVar

import asyncpg

from tickwright.domain.errors import InvariantBroken, Rejected

T = TypeVar("T")
_PLACEHOLDER = re.compile(r"\$(\d+)::(\w+(?:\[\])?)")
_COMMENT = re.compile(r"--[^\n]*\n")


class Fetching(Protocol):
    """The part of a connection that our statements need. asyncpg has it already."""

    async def fetch(self, sql: str, *values: Any) -> Sequence[Any]:
        """Run one statement and return its rows."""


class Row:
    """A row with access by number and by name, like asyncpg's."""

    __slots__ = ("_names", "_values")

    def __init__(self, names: Sequence[str], values: Sequence[Any]) -> None:
        self._names, self._values = names, values

    def __getitem__(self, key: int | str) -> Any:
        return self._values[key if isinstance(key, int) else self._names.index(key)]


@lru_cache(maxsize=64)
def _spelled(sql: str, style: str) -> str:
    """Return ``sql`` with named placeholders, ``%(p1)s`` for psycopg and ``:p1`` for SQLAlchemy."""
    text = _COMMENT.sub("\n", sql + "\n")
    if style == "psycopg":
        return _PLACEHOLDER.sub(r"CAST(%(p\1)s AS \2)", text.replace("%", "%%"))
    return _PLACEHOLDER.sub(r"CAST(:p\1 AS \2)", text)


def _named(values: Sequence[Any]) -> dict[str, Any]:
    return {f"p{number}": value for number, value in enumerate(values, start=1)}


class _Psycopg:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, sql: str, *values: Any) -> Sequence[Row]:
        from psycopg.rows import tuple_row

        with self._connection.cursor(row_factory=tuple_row) as cursor:
            cursor.execute(_spelled(sql, "psycopg"), _named(values))
            if self._connection.info.pipeline_status:  # the caller's pipeline: a nested one ends with a sync
                with self._connection.pipeline():
                    pass
            names = [column.name for column in cursor.description or ()]
            return [Row(names, row) for row in cursor.fetchall()] if names else []


class _AsyncPsycopg:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, sql: str, *values: Any) -> Sequence[Row]:
        from psycopg.rows import tuple_row

        async with self._connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(_spelled(sql, "psycopg"), _named(values))
            if self._connection.info.pipeline_status:
                async with self._connection.pipeline():
                    pass
            names = [column.name for column in cursor.description or ()]
            return [Row(names, row) for row in await cursor.fetchall()] if names else []


class _SqlAlchemy:
    def __init__(self, connection: Any) -> None:
        self._connection, self._is_checked = connection, False

    async def fetch(self, sql: str, *values: Any) -> Sequence[Row]:
        from sqlalchemy import text

        if not self._is_checked:
            is_session = any(name in {"Session", "scoped_session"} for _, name in _kinds(self._connection))
            _require(not _commits_alone(self._connection.connection() if is_session else self._connection))
            self._is_checked = True
        result = self._connection.execute(text(_spelled(sql, "sqlalchemy")), _named(values))
        return [Row(list(result.keys()), tuple(row)) for row in result] if result.returns_rows else []


class _AsyncSqlAlchemy:
    def __init__(self, connection: Any) -> None:
        self._connection, self._is_checked = connection, False

    async def fetch(self, sql: str, *values: Any) -> Sequence[Row]:
        from sqlalchemy import text

        if not self._is_checked:
            is_session = any(name == "AsyncSession" for _, name in _kinds(self._connection))
            connection = await self._connection.connection() if is_session else self._connection
            _require(not _commits_alone(connection.sync_connection))
            self._is_checked = True
        result = await self._connection.execute(text(_spelled(sql, "sqlalchemy")), _named(values))
        return [Row(list(result.keys()), tuple(row)) for row in result] if result.returns_rows else []


def _commits_alone(connection: Any) -> bool:
    """Whether the driver's connection commits each statement at once (``AUTOCOMMIT``), whichever way that was set."""
    return connection is not None and bool(getattr(connection.connection.dbapi_connection, "autocommit", False))


_ASYNC: Mapping[tuple[str, str], Callable[[Any], Fetching]] = {
    ("psycopg", "AsyncConnection"): _AsyncPsycopg,
    ("sqlalchemy", "AsyncConnection"): _AsyncSqlAlchemy,
    ("sqlalchemy", "AsyncSession"): _AsyncSqlAlchemy,
}
_SYNC: Mapping[tuple[str, str], Callable[[Any], Fetching]] = {
    ("psycopg", "Connection"): _Psycopg,
    ("sqlalchemy", "Connection"): _SqlAlchemy,
    ("sqlalchemy", "Session"): _SqlAlchemy,
    ("sqlalchemy", "scoped_session"): _SqlAlchemy,
}
ASYNC_KINDS = "an asyncpg connection, a psycopg AsyncConnection, or an SQLAlchemy AsyncConnection or AsyncSession"
SYNC_KINDS = "a psycopg Connection, or an SQLAlchemy Connection or Session"


def borrow(connection: Any) -> Fetching:
    """Adapt an async connection. Raises ``Rejected`` (``unsupported_connection``, ``no_transaction``): permanent."""
    kinds = _kinds(connection)
    if any(module == "asyncpg" for module, _ in kinds):
        _require(connection.is_in_transaction())
        return connection  # type: ignore[no-any-return]
    for kind in kinds:
        if kind in _ASYNC:
            _check_transaction(kind, connection)
            return _ASYNC[kind](connection)
    if any(kind in _SYNC for kind in kinds):
        raise Rejected(
            "unsupported_connection",
            "this connection is synchronous and would stop the event loop; "
            "use schedule_sync, track_sync, publish_sync or step_in_sync",
        )
    raise Rejected("unsupported_connection", f"connection: give {ASYNC_KINDS}")


def borrow_sync(connection: Any) -> Fetching:
    """Adapt a synchronous connection for :func:`finish`; errors as :func:`borrow`."""
    for kind in _kinds(connection):
        if kind in _SYNC:
            _check_transaction(kind, connection)
            return _SYNC[kind](connection)
    raise Rejected("unsupported_connection", f"connection: give {SYNC_KINDS}")


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end without an event loop. It waits only for a synchronous connection."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    work.close()
    raise InvariantBroken("sync_work_waited", "work on a synchronous connection waited for an event loop")


class ServerError(NamedTuple):
    """What PostgreSQL answered instead of rows; ``rule`` is the constraint that it names."""

    sqlstate: str
    rule: str
    message: str


def server_error(error: BaseException) -> ServerError | None:
    """Return what PostgreSQL answered, whichever driver raised it; ``None`` for every other error."""
    raised: Any = getattr(error, "orig", None) or error  # SQLAlchemy keeps the driver's error
    if not isinstance(raised, asyncpg.PostgresError) and isinstance(raised.__cause__, asyncpg.PostgresError):
        raised = raised.__cause__
    if isinstance(raised, asyncpg.PostgresError):
        return ServerError(raised.sqlstate or "", raised.constraint_name or "", str(raised.args[0]))
    diag: Any = getattr(raised, "diag", None)
    if getattr(diag, "sqlstate", None) is None:
        return None
    return ServerError(diag.sqlstate, diag.constraint_name or "", diag.message_primary or "")


def _kinds(connection: Any) -> list[tuple[str, str]]:
    """Return the names of the classes of ``connection``, each with its top-level package, without any import."""
    return [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(connection).__mro__]


def _check_transaction(kind: tuple[str, str], connection: Any) -> None:
    if kind[0] == "psycopg":
        idle = connection.info.transaction_status == 0
        _require(not (idle and connection.autocommit))


def _require(in_transaction: bool) -> None:
    if not in_transaction:
        raise Rejected(
            "no_transaction", "connection: open a transaction first; without one this could not be rolled back"
        )
