"""One DuckDB for one piece of work: bounded, and with no way out of its folder.

The SQL that runs in it is an operator's and is treated as a stranger's. It has passed :mod:`select_check`; should that
have let something through, this connection has no extensions, no network, no variables of the program, no settings to
change, and of the file system the parts, the file that it makes and the folder where it spills. A connection lives as
long as the work; nothing is shared between two reports.

What DuckDB allocates for a single value is outside of its own bound on memory. That one the process has that it runs
in, see :mod:`merge_program`.
"""

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tickwright.domain.errors import Rejected
from tickwright.store.queries import load

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

STATEMENTS = {
    name: re.sub(r"^--.*\n", "", text, flags=re.MULTILINE)  # a message counts lines of the SQL alone
    for name, text in load("tickwright.capabilities.reports.sql", "duck.sql").items()
}
TWO_THREADS_BYTES = 512 * 1024 * 1024
SPILL = "spill"
"""The folder in the folder of a merge where it spills."""
DEPTH_MAX = 250
"""How deep an expression may be nested: far above what people write, far below what a thread's stack holds."""


class MergeBounds(NamedTuple):
    """What one merge may use.

    Attributes:
        memory_bytes: Of DuckDB, 128 MiB or more: a reader of JSON takes 32. The process may allocate 256 MiB and an
            eighth of it on top, see :mod:`merge_program`; most hold 100 MiB on top.
        threads: 1 to 64. Each takes its share of the memory before anything is spilled: two in 256 MiB ran out of it in
            a join that one does in the same time; see :func:`threads_for`.
        disk_bytes: Of what is spilled and of the file, together.
        cpu_s: Of processor time, all threads together. Who waits ends a merge earlier; this is for when nobody can.
    """

    memory_bytes: int = 256 * 1024 * 1024
    threads: int = 1
    disk_bytes: int = 64 * 1024**3
    cpu_s: int = 24 * 3600


def threads_for(memory_bytes: int) -> int:
    """Return how many threads a merge of so much memory has: two from 512 MiB on."""
    return 2 if memory_bytes >= TWO_THREADS_BYTES else 1


@contextmanager
def open_duck(
    folder: Path, bounds: MergeBounds, files: Sequence[Path], out: Path | None = None
) -> Iterator["DuckDBPyConnection"]:
    """Give a connection for the length of the block; what it spilled is gone behind it.

    Args:
        folder: Where it may spill; exists.
        bounds: What it may use.
        files: What else of the file system it may touch.
        out: The file that it makes, if it makes one; gone when the block fails.
    """
    spill, done = folder / SPILL, False
    try:
        with _connected(spill, bounds, [*files, *([out] if out else [])]) as connection:
            yield connection
        done = True
    finally:
        shutil.rmtree(spill, ignore_errors=True)
        if not done and out is not None:
            out.unlink(missing_ok=True)


def _connected(spill: Path, bounds: MergeBounds, files: Sequence[Path]) -> "DuckDBPyConnection":
    import duckdb

    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{bounds.memory_bytes}B",
        "threads": bounds.threads,
        "temp_directory": str(spill),
        "python_enable_replacements": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_community_extensions": False,
        "allow_persistent_secrets": False,
    }
    connection = duckdb.connect(":memory:", config=config)
    allowed = ", ".join(quoted(str(path)) for path in files)
    for statement in (
        f"SET max_temp_directory_size = '{bounds.disk_bytes}B'",  # without effect in the configuration above
        "SET enable_progress_bar = false",  # drawn for a program without a file, as a merge process is
        "SET TimeZone = 'UTC'",
        f"SET max_expression_depth = {DEPTH_MAX}",
        f"SET allowed_paths = [{allowed}]",
        "SET enable_external_access = false",
        "SET lock_configuration = true",
    ):
        connection.execute(statement).fetchall()
    return connection


def warm_up() -> None:
    """Load DuckDB, which takes 0.1 s once in a process; call it before anything hurries."""
    import duckdb

    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        connection.execute(STATEMENTS["warm"]).fetchall()


def quoted(text: str) -> str:
    """Return ``text`` as a literal of DuckDB's SQL."""
    return "'" + text.replace("'", "''") + "'"


def named(name: str) -> str:
    """Return ``name`` as an identifier of DuckDB's SQL."""
    return '"' + name.replace('"', '""') + '"'


def too_large(why: str) -> Rejected:
    """Return the error of a merge that needs more than it may use."""
    return Rejected("merge_too_large", f"the merge is too large: {why}; ask for less, or raise its bounds")


def shown(message: str, hidden: Sequence[tuple[str, str]], most: int = 1000) -> str:
    """Return a message of DuckDB's for people: without paths, and not longer than ``most`` characters."""
    for path, name in hidden:
        message = message.replace(path, name)
    return re.sub(r"\n{2,}", "\n", message.replace("\0", "")).strip()[:most]
