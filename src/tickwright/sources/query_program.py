"""The program of a process for queries: it takes those of one source, one after the other, and gives their rows.

It is a process of its own because SQL and files are strangers', because DuckDB allocates single values beyond its own
bound, and because no call of a function can be interrupted, in DuckDB and in SQLite. The kernel bounds it, and it has
nothing of its parent's; see :mod:`tickwright.sources.confined`. It loads what its source needs: SQLite starts faster.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any, BinaryIO, Protocol

from msgspec import structs

from tickwright.domain.errors import Rejected, Unavailable
from tickwright.ports.reports import Column
from tickwright.sources.confined import Problem, bound, confine, is_light, own_output, tell
from tickwright.sources.named import STATEMENT_TIMEOUT_MAX
from tickwright.sources.query_messages import (
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
    write_answer,
)

QUERIES_MAX = 100
IDLE_BYTES_MAX = 128 * 1024 * 1024
"""What a process may hold behind a query to take another one; a fresh one that has answered once holds 80 MiB."""
CPU_S = THREADS * int(STATEMENT_TIMEOUT_MAX.total_seconds())
"""Its parent ends a query earlier; this is for when that one cannot."""


def main(parent: int) -> None:
    """Take queries until there are no more; never returns, because DuckDB's ends of a process are long and loud.

    Args:
        parent: The process that asks.
    """
    answers = own_output()
    os.set_blocking(sys.stderr.fileno(), False)  # what nobody reads stops nothing
    confine(parent)
    for left in reversed(range(QUERIES_MAX)):
        asked = read_request(sys.stdin.buffer)
        if asked is None:
            break
        bound(data_bytes=DATA_BYTES, cpu_s=CPU_S)
        write_answer(answers, Begun())
        try:
            last: Rows | Loaded | Failed = _loaded(asked) if isinstance(asked, Load) else _answered(asked, answers)
        except (Rejected, Unavailable) as error:
            last = Failed(Problem.of(error))
        last = structs.replace(last, again=left > 0 and is_light(IDLE_BYTES_MAX))
        write_answer(answers, last)
        if not last.again:
            break
    os._exit(0)


class Reader(Protocol):
    """One query. Its errors are ``Rejected`` or ``Unavailable`` as :class:`tickwright.ports.reports.Source` says."""

    def open(self) -> tuple[Column, ...]:
        """Begin it and return its columns."""
        ...

    def fetch(self) -> Sequence[Sequence[Any]]:
        """Return the next rows, some hundreds; none at the end."""
        ...

    def close(self) -> None:
        """Give back everything. Harmless when nothing was opened."""
        ...


def _loaded(asked: Load) -> Loaded:
    from tickwright.sources.duckdb_load import load_file

    load_file(asked)
    return Loaded()


def _answered(query: Query, answers: BinaryIO) -> Rows:
    """Give the rows up to the last one."""
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


def _reader(query: Query) -> Reader:
    if query.kind == "sqlite":
        from tickwright.sources.sqlite import SqliteReader

        return SqliteReader(query)
    from tickwright.sources.duckdb_files import DuckdbReader

    return DuckdbReader(query)
