"""A CSV or Parquet file as a DuckDB database, its rows ordered by a column and numbered; in a process of its own."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import duckdb

from tickwright.domain.errors import Rejected, TickwrightError, Unavailable
from tickwright.sources.duckdb_columns import identifier, literal
from tickwright.sources.duckdb_files import ALLOCATION, MEMORY, PASSING
from tickwright.sources.query_messages import PLACE, THREADS, TOO_MUCH_MEMORY, Load, too_many_bytes
from tickwright.store.queries import load

_LOAD = load("tickwright.sources.sql", "object_files.sql")
_GAP = re.compile(r"\{([a-z_]+)\}")
LINE_BYTES_MAX = 1024 * 1024


def load_file(asked: Load) -> None:
    """Make the database.

    Raises:
        Rejected: ``audience_unreadable``. Permanent.
        Unavailable: ``audience_folder_full``. Retry.
    """
    config: dict[str, Any] = {
        "memory_limit": MEMORY,
        "threads": THREADS,
        "temp_directory": str(asked.spill),
        "preserve_insertion_order": False,
        "autoload_known_extensions": False,
        "autoinstall_known_extensions": False,
    }
    kind = "parquet" if asked.key.lower().endswith(".parquet") else "csv"
    separator = _separator(asked.raw) if kind == "csv" else ""
    rows = _filled(kind, file=literal(str(asked.raw)), separator=literal(separator))
    words = {"rows": rows, "order": f"f.{identifier(asked.order)}", "place": identifier(PLACE)}
    words["most"] = str(asked.rows_max + 1)
    try:
        connection = duckdb.connect(str(asked.database), config=config)
        try:
            places = {"file": literal(str(asked.raw)), "folder": literal(str(asked.spill))}
            connection.execute(_filled("bound", **places, bytes_max=str(asked.bytes_max)))
            described = connection.execute(_filled("columns", rows=rows)).description or ()
            _check_order(asked.order, [str(column[0]) for column in described])
            connection.execute(_filled("load", **words))
            ((loaded,),) = connection.execute(_LOAD["count"]).fetchall()
            if loaded > asked.rows_max:
                raise Rejected("audience_unreadable", f"{asked.key} has more than {asked.rows_max} rows")
        finally:
            connection.close()
    except (duckdb.Error, MemoryError) as error:
        raise _said(asked, error) from None
    except OSError as error:
        why = f"{asked.key} cannot be put into the work folder: {error.strerror}"
        raise Unavailable("audience_folder_full", why) from None


def _said(asked: Load, error: duckdb.Error | MemoryError) -> TickwrightError:
    said = str(error).partition("\n\nLINE")[0].replace(str(asked.raw), asked.key)[:1000]
    if isinstance(error, MemoryError) or ALLOCATION.search(said):
        return Rejected("audience_unreadable", f"{asked.key} cannot be read: {TOO_MUCH_MEMORY}")
    if isinstance(error, duckdb.OutOfMemoryException) and "max_temp_directory_size" in said:
        return too_many_bytes(asked.key, asked.bytes_max)
    if isinstance(error, PASSING):
        return Unavailable("audience_folder_full", f"{asked.key} cannot be put into the work folder: {said}")
    return Rejected("audience_unreadable", f"{asked.key} cannot be read: {said}")


def _check_order(order: str, columns: Sequence[str]) -> None:
    if order in columns:
        return
    near = get_close_matches(order, columns, n=1)
    hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(columns)[:500]}"
    raise Rejected("audience_unreadable", f"it has no column {order}; {hint}")


def _separator(path: Path) -> str:
    """Return what stands between the names of the first line: one of ``, ; | TAB``."""
    with path.open("rb") as opened:
        names = re.sub(rb'"[^"]*"', b"", opened.readline(LINE_BYTES_MAX)).decode("utf-8", "replace")
    return max(",;|\t", key=names.count)


def _filled(name: str, **gaps: str) -> str:
    """Put texts into the gaps of a statement; what is put in is not looked at again."""
    return _GAP.sub(lambda gap: gaps[gap[1]], _LOAD[name].partition("\n")[2])
