"""The program of a process with DuckDB: it takes queries of one source, one after the other, and gives their rows.

It is a process of its own because SQL and files are strangers', because DuckDB allocates single values beyond its own
bound, and because not everything in it can be interrupted. The kernel bounds it, and it has nothing of its parent's;
see :mod:`tickwright.sources.confined`.
"""

import os
import sys
from typing import BinaryIO

from msgspec import structs

from tickwright.domain.errors import Rejected, Unavailable
from tickwright.sources.confined import Problem, bound, confine, is_light, own_output, tell
from tickwright.sources.duckdb_files import THREADS, DuckdbReader
from tickwright.sources.duckdb_load import load_file
from tickwright.sources.duckdb_messages import (
    DATA_BYTES,
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
from tickwright.sources.named import STATEMENT_TIMEOUT_MAX

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


def _loaded(asked: Load) -> Loaded:
    load_file(asked)
    return Loaded()


def _answered(query: Query, answers: BinaryIO) -> Rows:
    """Give the rows up to the last one."""
    reader = DuckdbReader(query)
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
