"""A query on a DuckDB database or on a folder with CSV, Parquet and JSON files, in the process that it has for itself.

Every query has a DuckDB of its own, in memory and bounded, which sees one database or one folder and nothing else: no
other file, no network, no extension, no setting, no variable of the program. A file of the folder is a view named as
the file without its ending; only the files that the query reads from are opened, so no other file of the folder can
stop it. What columns it has, :mod:`tickwright.sources.duckdb_columns` says.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from tickwright.domain.errors import Rejected, TickwrightError, Unavailable
from tickwright.ports.reports import Column
from tickwright.sources.duckdb_columns import FORMATS, create_view, literal
from tickwright.sources.duckdb_text import NESTING_MAX, nesting
from tickwright.sources.duckdb_types import select
from tickwright.sources.pieces import gathered
from tickwright.sources.query_messages import THREADS, Query, Version, too_much_memory
from tickwright.store.queries import load

_Q = load("tickwright.sources.sql", "duckdb.sql")
MEMORY = "256MB"
FILES_MAX = 10_000
ENDINGS = frozenset({".csv", ".tsv", ".parquet", *FORMATS})
_ADVICE = re.compile(r"\n\n?Possible (?:fixes|[Ss]olutions?):.*", re.DOTALL)
_FILE = re.compile(r"^  file ?= ?(.+)$", re.MULTILINE)
_WORD = re.compile(r"[^\W\d][\w$]*")
_WORDS = re.compile(r"""[^\W\d][\w$]*|"((?:[^"]|"")*)"|'((?:[^']|'')*)'""")
_BY_NAME = frozenset({"query", "query_table"})
"""Functions that read from tables whose names are texts."""
ALLOCATION = re.compile(r"bad_alloc|bad allocation|failed to allocate|annot allocate memory|Allocation failure")
PASSING = (duckdb.IOException, duckdb.InterruptException)


class DuckdbReader:
    """One query."""

    def __init__(self, query: Query) -> None:
        self._query, self._name, self._path = query, query.name, query.path
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._versions: dict[Path, Version] = {}

    def open(self) -> tuple[Column, ...]:
        """Begin the query and return its columns; what is found out about JSON files is put to what is known."""
        sql, given = self._query.sql, [*self._query.given]
        try:
            connection = self._connect()
            for text in {sql, self._query.within or sql}:
                self._check_one_query(connection, text)
            self._show(connection, sql)
            query = sql.rstrip().rstrip(";")
            described = connection.execute(_Q["describe"].replace("{query}", query), given).description
            names = [f"c{number}" for number in range(len(described))]
            selected = [select(column[0], str(column[1]), name) for column, name in zip(described, names, strict=True)]
            wanted = ", ".join(one.expression for one in selected)
            text = _Q["read"].replace("{columns}", wanted).replace("{names}", ", ".join(names))
            connection.execute(text.replace("{query}", query), given)
        except (duckdb.Error, MemoryError) as error:
            raise self._said(error) from None
        return tuple(one.column for one in selected)

    def _check_one_query(self, connection: duckdb.DuckDBPyConnection, sql: str) -> None:
        if nesting(sql) > NESTING_MAX:
            raise Rejected("source_refused", f"source {self._name} reads at most {NESTING_MAX} nested parentheses")
        statements = connection.extract_statements(sql)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise Rejected("source_refused", f"source {self._name} only reads; write a single query")

    def fetch(self) -> Sequence[Sequence[Any]]:
        """Return the next rows; none at the end. JSON and numbers of more than 64 bits are texts."""
        assert self._connection is not None  # noqa: S101  opened first
        try:
            rows = gathered(self._connection.fetchmany, f"source {self._name}")
        except (duckdb.Error, MemoryError) as error:
            raise self._said(error) from None
        if not rows:
            self._check_unchanged()
        return rows

    def close(self) -> None:
        """Close the database."""
        if self._connection is not None:
            self._connection.close()

    def _connect(self) -> duckdb.DuckDBPyConnection:
        bounds: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": MEMORY,
            "threads": THREADS,
            "temp_directory": str(self._query.spill),
            "autoload_known_extensions": False,
            "autoinstall_known_extensions": False,
            "allow_community_extensions": False,
            "python_enable_replacements": False,
        }
        connection = self._connection = duckdb.connect(":memory:", config=bounds)
        connection.execute(_Q["spill"].replace("{bytes_max}", str(self._query.spill_bytes_max)))
        return connection

    def _show(self, connection: duckdb.DuckDBPyConnection, sql: str) -> None:
        """Let the connection see what ``sql`` may read, and nothing else from then on."""
        if self._query.kind == "files":
            for stem, path in self._files_of(_tables_read(connection, sql)):
                try:
                    version = self._versions[path] = _version(path)
                    create_view(connection, stem, path, version, self._query.known)
                except OSError as error:
                    raise self._unavailable(error.strerror) from None
            folders = f"[{literal(str(self._path))}]"
        else:
            connection.execute(_Q["attach"].replace("{path}", literal(str(self._path))))
            folders = "[]"
        connection.execute(_Q["lock"].replace("{folders}", folders))

    def _files_of(self, tables: frozenset[str]) -> list[tuple[str, Path]]:
        """Return the files of the folder that are called as one of ``tables``; what leads out of it is none of them."""
        try:
            inside = self._path.resolve(strict=True)
            files = [path for path in sorted(self._path.iterdir()) if path.suffix.lower() in ENDINGS]
        except OSError as error:
            raise self._unavailable(error.strerror) from None
        if len(files) > FILES_MAX:
            raise Rejected("source_refused", f"source {self._name} has more than {FILES_MAX} files")
        found: dict[str, tuple[str, Path]] = {}
        for path in files:
            if path.stem.casefold() not in tables or not _is_file_of(path, inside):
                continue
            if path.stem.casefold() in found:
                raise Rejected("source_refused", f"source {self._name} has two files called {path.stem}")
            found[path.stem.casefold()] = (path.stem, path)
        return list(found.values())

    def _check_unchanged(self) -> None:
        """Refuse what was read of a file that is another one by now: its columns may be those of the old one."""
        for path, version in self._versions.items():
            try:
                is_same = _version(path) == version
            except OSError:
                is_same = False
            if not is_same:
                raise self._unavailable(f"{path.name} changed while it was read")

    def _unavailable(self, why: str | None) -> Unavailable:
        return Unavailable("source_unavailable", f"source {self._name} is not available: {why}")

    def _said(self, error: duckdb.Error | MemoryError) -> TickwrightError:
        whole = str(error).partition("\n\nLINE")[0].replace(f"{self._path}/", "").replace(str(self._path), "it")
        if isinstance(error, MemoryError) or ALLOCATION.search(whole):
            return too_much_memory(f"source {self._name}")
        if isinstance(error, duckdb.OutOfMemoryException) and "max_temp_directory_size" in whole:
            why = f"it spills more than {self._query.spill_bytes_max} bytes to disk; ask for less"
            return Rejected("source_refused", f"source {self._name} refuses the query: {why}")
        said, file = _ADVICE.sub("", whole), _FILE.search(whole)
        said = f"{file[1]}: {said}"[:1000] if file is not None else said[:1000]
        if isinstance(error, PASSING):
            return self._unavailable(said)
        return Rejected("source_refused", f"source {self._name} refuses the query: {said}")


def _is_file_of(path: Path, folder: Path) -> bool:
    """Whether a path is a regular file in ``folder``: no folder, no pipe, and no link to itself or out of there."""
    try:
        return path.is_file() and path.resolve().is_relative_to(folder)
    except (OSError, RuntimeError):  # RuntimeError: of links that go round
        return False


def _version(path: Path) -> Version:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _tables_read(connection: duckdb.DuckDBPyConnection, sql: str) -> frozenset[str]:
    """Return the names of the tables that a query reads, case folded, without those that it defines itself (``WITH``).

    From its syntax tree: nothing is bound, opened or run. ``get_table_names`` of DuckDB does not serve: it binds the
    query, so it takes no parameters and opens the files that functions of the query name.
    Where the syntax tree does not tell (``PIVOT``, ``query_table``), they are all words and quoted names of the query.
    """
    try:
        ((text,),) = connection.execute(_Q["tree"], [sql]).fetchall()
        tree = msgspec.json.decode(text)
        nodes = list(_nodes(tree, frozenset()))
    except (duckdb.Error, msgspec.DecodeError, RecursionError):
        return _words_of(sql)
    if tree.get("error") or any(node.get("function_name") in _BY_NAME for node, _ in nodes):
        return _words_of(sql)
    return frozenset(name for node, defined in nodes for name in _tables_of(node, defined))


def _tables_of(node: dict[str, Any], defined: frozenset[str]) -> Iterator[str]:
    """Give the table of one node, if it is one that is read."""
    name = str(node.get("table_name", "")).casefold()
    if node.get("type") == "BASE_TABLE" and (node.get("schema_name") or name not in defined):
        yield name
    elif node.get("type") == "SHOW_REF":
        yield name.removeprefix('"').removesuffix('"').replace('""', '"')


def _nodes(value: Any, defined: frozenset[str]) -> Iterator[tuple[dict[str, Any], frozenset[str]]]:
    """Give every node of a syntax tree, each with the names that ``WITH`` has defined where it stands."""
    if isinstance(value, list):
        for item in value:
            yield from _nodes(item, defined)
    elif isinstance(value, dict):
        if value.get("type") == "RECURSIVE_CTE_NODE":
            defined |= {str(value.get("cte_name", "")).casefold()}
        for entry in (value.get("cte_map") or {}).get("map", ()):
            yield from _nodes(entry["value"], defined)
            defined |= {entry["key"].casefold()}
        yield value, defined
        for key, item in value.items():
            if key != "cte_map":
                yield from _nodes(item, defined)


def _words_of(sql: str) -> frozenset[str]:
    """Return the words of a query and what stands in its quotes, as a whole and each word of it."""
    found: set[str] = set()
    for match in _WORDS.finditer(sql):
        whole = (match[1] or "").replace('""', '"') or (match[2] or "").replace("''", "'") or match[0]
        found |= {whole.casefold(), *(word.casefold() for word in _WORD.findall(whole))}
    return frozenset(found)
