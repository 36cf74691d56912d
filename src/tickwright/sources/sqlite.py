"""A query on a SQLite database, in the process that it has for itself: nothing can be written, attached or set.

SQLite has no types for its columns, so they are found in the values. A list is given as JSON text, for ``json_each``.
"""

import resource
import sqlite3
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from tickwright.domain.errors import Rejected, TickwrightError, Unavailable
from tickwright.ports.reports import NOT_UTF8, Column
from tickwright.sources.confined import limit
from tickwright.sources.pieces import ROW_BYTES_MAX, gathered, row_too_large
from tickwright.sources.query_messages import Query, too_much_memory
from tickwright.store.queries import load

BUSY_S = 5.0
VALUE_BYTES_MAX = 4 * ROW_BYTES_MAX
"""What SQLite makes at all: of a value, and of a stored row, which may have more in it than a query selects."""
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_FUNCTIONS_REFUSED = {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer", "sqlite_log"}
"""Functions that read or write files or load code, where a build of SQLite has them."""
_Q = {name: text.rpartition("\n")[2] for name, text in load("tickwright.sources.sql", "sqlite.sql").items()}
_PASSING = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
}


class SqliteReader:
    """One query."""

    def __init__(self, query: Query) -> None:
        self._query, self._name = query, query.name
        self._connection: sqlite3.Connection | None = None
        self._cursor: sqlite3.Cursor | None = None

    def open(self) -> tuple[Column, ...]:
        """Begin the query and return its columns."""
        query = self._query
        limit(resource.RLIMIT_FSIZE, query.spill_bytes_max)
        try:
            place = f"file:{quote(str(query.path))}?mode=ro"
            self._connection = sqlite3.connect(place, uri=True, timeout=BUSY_S, isolation_level=None)
            self._connection.text_factory = _text
            self._connection.execute(_Q["query_only"])
            self._connection.execute(_Q["spill"].replace("{folder}", str(query.spill).replace("'", "''"))).fetchall()
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)
            self._connection.set_authorizer(_authorize)
            if query.within is not None:
                self._connection.execute(_Q["explain"].replace("{query}", query.within)).close()  # parsed, not run
            self._cursor = self._connection.execute(query.sql, query.given)
        except (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeError, MemoryError) as error:
            raise self._said(error) from None
        described: Sequence[tuple[Any, ...]] = self._cursor.description or ()
        if not described:
            raise Rejected("source_refused", f"the query of source {self._name} gives no rows; write a single query")
        return tuple(Column(column[0], "") for column in described)

    def fetch(self) -> Sequence[Sequence[Any]]:
        """Return the next rows."""
        assert self._cursor is not None  # noqa: S101  # opened first
        try:
            return gathered(self._cursor.fetchmany, f"source {self._name}")
        except (sqlite3.Error, MemoryError) as error:
            raise self._said(error) from None

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()

    def _said(self, error: Exception) -> TickwrightError:
        if isinstance(error, MemoryError):
            return too_much_memory(f"source {self._name}")
        code = getattr(error, "sqlite_errorcode", None)
        if code is not None and code & 0xFF in _PASSING:
            return Unavailable("source_unavailable", f"source {self._name} is not available: {error}")
        if code == sqlite3.SQLITE_TOOBIG:
            return row_too_large(f"source {self._name}")
        return Rejected("source_refused", f"source {self._name} refuses the query: {str(error)[:1000]}")


def _authorize(action: int, what: str | None, name: str | None, *_more: Any) -> int:
    """Allow reading; table functions such as ``json_each`` describe themselves by what looks like an update."""
    describes = action == sqlite3.SQLITE_UPDATE and what == "sqlite_master"
    if action == sqlite3.SQLITE_FUNCTION and str(name).lower() in _FUNCTIONS_REFUSED:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if describes or action in _ALLOWED else sqlite3.SQLITE_DENY


def _text(value: bytes) -> Any:
    """Return a text; the driver's error for one that is not UTF-8 would end the query."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return NOT_UTF8
