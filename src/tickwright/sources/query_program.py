"""The program of a query process: it runs the queries of one source, one after the other, and returns their rows.

It is a separate process because SQL and files are untrusted, because DuckDB allocates single values beyond its own
bound, and because a function call in DuckDB or SQLite cannot be interrupted. See :mod:`tickwright.sources.confined`.
DuckDB is imported only for sources that need it, so an SQLite source starts faster.

In an SQLite database a query can neither write, attach nor set anything. SQLite has no column types, so they are
derived from the values. A list is passed as JSON text, for ``json_each``.
"""

import os
import resource
import sqlite3
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote

from msgspec import structs

from tickwright.domain.errors import Rejected, TickwrightError, Unavailable
from tickwright.ports.reports import NOT_UTF8, Column
from tickwright.sources.confined import Problem, bound, confine, has_released_memory, limit, take_stdout, tell
from tickwright.sources.named import STATEMENT_TIMEOUT_MAX
from tickwright.sources.query_process import (
    DATA_BYTES,
    THREADS,
    Begun,
    Failed,
    Load,
    Loaded,
    Opened,
    Query,
    Rows,
    answers_of,
    read_request,
    too_much_memory,
    write_answer,
)
from tickwright.sources.rows import ROW_BYTES_MAX, gathered, row_too_large
from tickwright.store.queries import load

if TYPE_CHECKING:
    from tickwright.sources.duckdb_files import DuckdbReader


# ---------------------------------------------------------------------- SQLite

BUSY_S = 5.0
VALUE_BYTES_MAX = 4 * ROW_BYTES_MAX
"""SQLite's limit of a value and of a stored row, which may have more columns than a query selects."""
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_FUNCTIONS_REFUSED = {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer", "sqlite_log"}
"""Functions of some builds of SQLite that read or write files or load code."""
_SQL = {name: text.rpartition("\n")[2] for name, text in load("tickwright.sources.sql", "sqlite.sql").items()}
_PASSING = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
}


class SqliteReader:
    """Reads one query."""

    def __init__(self, query: Query) -> None:
        self._query, self._name = query, query.name
        self._connection: sqlite3.Connection | None = None
        self._cursor: sqlite3.Cursor | None = None

    def open(self) -> tuple[Column, ...]:
        """Start the query and return its columns."""
        query = self._query
        limit(resource.RLIMIT_FSIZE, query.spill_bytes_max)
        try:
            place = f"file:{quote(str(query.path))}?mode=ro"
            self._connection = sqlite3.connect(place, uri=True, timeout=BUSY_S, isolation_level=None)
            self._connection.text_factory = _text
            self._connection.execute(_SQL["query_only"])
            self._connection.execute(_SQL["spill"].replace("{folder}", str(query.spill).replace("'", "''"))).fetchall()
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)
            self._connection.set_authorizer(_authorize)
            if query.within is not None:
                self._connection.execute(_SQL["explain"].replace("{query}", query.within)).close()  # parsed, not run
            self._cursor = self._connection.execute(query.sql, query.given)
        except (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeError, MemoryError) as error:
            raise self._translated(error) from None
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
            raise self._translated(error) from None

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()

    def _translated(self, error: Exception) -> TickwrightError:
        if isinstance(error, MemoryError):
            return too_much_memory(f"source {self._name}")
        code = getattr(error, "sqlite_errorcode", None)
        if code is not None and code & 0xFF in _PASSING:
            return Unavailable("source_unavailable", f"source {self._name} is not available: {error}")
        if code == sqlite3.SQLITE_TOOBIG:
            return row_too_large(f"source {self._name}")
        return Rejected("source_refused", f"source {self._name} refuses the query: {str(error)[:1000]}")


def _authorize(action: int, what: str | None, name: str | None, *_more: Any) -> int:
    """Allow reading. Table functions such as ``json_each`` appear as an update of ``sqlite_master``."""
    describes = action == sqlite3.SQLITE_UPDATE and what == "sqlite_master"
    if action == sqlite3.SQLITE_FUNCTION and str(name).lower() in _FUNCTIONS_REFUSED:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if describes or action in _ALLOWED else sqlite3.SQLITE_DENY


def _text(value: bytes) -> Any:
    """Return a text, or ``NOT_UTF8``; the driver's error for invalid UTF-8 would end the query."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return NOT_UTF8


QUERIES_MAX = 100
IDLE_BYTES_MAX = 128 * 1024 * 1024
"""Memory that a process may hold after a query to take another one; after its first query it holds 80 MiB."""
CPU_S = THREADS * int(STATEMENT_TIMEOUT_MAX.total_seconds())
"""The parent ends a query earlier; this bound applies when the parent cannot."""


def main(parent: int) -> None:
    """Serve queries of the process ``parent``; never returns.

    It leaves out DuckDB's exit handlers, which are slow and write to standard error.
    """
    answers = take_stdout()
    os.set_blocking(sys.stderr.fileno(), False)  # an unread pipe blocks nothing
    confine(parent)
    for left in reversed(range(QUERIES_MAX)):
        request = read_request(sys.stdin.buffer)
        if request is None:
            break
        bound(data_bytes=DATA_BYTES, cpu_s=CPU_S)
        write_answer(answers, Begun())
        try:
            last: Rows | Loaded | Failed
            if isinstance(request, Load):
                from tickwright.sources.duckdb_files import load_file

                load_file(request)
                last = Loaded()
            else:
                last = _answered(request, answers)
        except (Rejected, Unavailable) as error:
            last = Failed(Problem.of(error))
        last = structs.replace(last, again=left > 0 and has_released_memory(IDLE_BYTES_MAX))
        write_answer(answers, last)
        if not last.again:
            break
    os._exit(0)


def _answered(query: Query, answers: BinaryIO) -> Rows:
    """Write all rows but the last, empty answer, which is returned."""
    reader = _reader(query)
    try:
        columns = reader.open()
        known = {str(path): (of, dict(types)) for path, (of, types) in query.known.items()}
        write_answer(answers, Opened(columns, known))
        while rows := reader.fetch():
            for content in answers_of(rows, f"source {query.name}"):
                tell(answers, content)
    finally:
        reader.close()
    return Rows([])


def _reader(query: Query) -> "SqliteReader | DuckdbReader":
    if query.kind == "sqlite":
        return SqliteReader(query)
    from tickwright.sources.duckdb_files import DuckdbReader

    return DuckdbReader(query)
