"""SQLite as a source: ``sqlite:///absolute/path``, opened so that nothing can be written, attached or set.

SQLite has no types for its columns, so they are found in the values. A list is given as JSON text, for ``json_each``.
"""

import contextlib
import sqlite3
from collections.abc import Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import msgspec

from tickwright.domain.errors import Rejected, TickwrightError, Unavailable
from tickwright.domain.placeholders import bind
from tickwright.ports.batches import Dialect
from tickwright.ports.reports import NOT_UTF8, Column
from tickwright.sources.named import SourceTerms, path_of
from tickwright.sources.pieces import ROW_BYTES_MAX, gathered, row_too_large
from tickwright.sources.threaded import ThreadedSource
from tickwright.store.queries import load

BUSY_S = 5.0
VALUE_BYTES_MAX = 4 * ROW_BYTES_MAX
"""What SQLite makes at all: of a value, and of a stored row, which may have more in it than a query selects."""
_OUT_OF_MEMORY = "a query takes more memory than SQLite may have in this process (256 MiB for all queries)"
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_FUNCTIONS_REFUSED = {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer", "sqlite_log"}
"""Functions that read or write files or load code, where a build of SQLite has them."""
_QUERY_ONLY, _HEAP_LIMIT, _EXPLAIN = (
    load("tickwright.sources.sql", "sqlite.sql")[name].rpartition("\n")[2].removesuffix("{query}")
    for name in ("query_only", "heap_limit", "explain")
)
_PASSING = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
}


class SqliteSource(ThreadedSource):
    """A SQLite database file.

    Raises:
        Rejected: ``invalid_source``. Permanent.
    """

    dialect: Dialect = "sqlite"

    def __init__(self, name: str, url: str, terms: SourceTerms) -> None:
        path = path_of(name, url)
        super().__init__(name, terms, lambda: SqliteReader(name, path))


class SqliteReader:
    """One query."""

    def __init__(self, name: str, path: Path) -> None:
        self._name, self._path = name, path
        self._connection: sqlite3.Connection | None = None
        self._cursor: sqlite3.Cursor | None = None

    def open(self, sql: str, values: Mapping[str, Any], within: str | None) -> tuple[Column, ...]:
        """Begin the query and return its columns."""
        bound = bind(sql, values, "?{}".format)
        given = tuple(map(_as_parameter, bound.values))
        try:
            self._connection = sqlite3.connect(
                f"file:{quote(str(self._path))}?mode=ro",
                uri=True,
                timeout=BUSY_S,
                check_same_thread=False,
                isolation_level=None,
            )
            self._connection.text_factory = _text
            self._connection.execute(_QUERY_ONLY)
            self._connection.execute(_HEAP_LIMIT).fetchall()
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)
            self._connection.set_authorizer(_authorize)
            if within is not None:
                self._connection.execute(_EXPLAIN + within).close()  # parsed, not run
            self._cursor = self._connection.execute(bound.sql, given)
        except (sqlite3.Error, sqlite3.Warning, OverflowError, MemoryError) as error:
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

    def interrupt(self) -> None:
        """End what runs."""
        if self._connection is not None:
            with contextlib.suppress(sqlite3.ProgrammingError):  # closed meanwhile
                self._connection.interrupt()

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()

    def _said(self, error: Exception) -> TickwrightError:
        if isinstance(error, MemoryError):  # a neighbour's, perhaps
            return Unavailable("source_unavailable", f"source {self._name} is not available: {_OUT_OF_MEMORY}")
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


def _as_parameter(value: Any) -> Any:
    if isinstance(value, Mapping | list | tuple):
        return msgspec.json.encode(value).decode()
    if isinstance(value, Decimal | UUID):
        return str(value)
    return value.isoformat() if isinstance(value, date | time) else value
