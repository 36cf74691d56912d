"""DuckDB as a source: ``duckdb:///absolute/path.duckdb``, and ``files:///folder`` with CSV, Parquet and JSON files.

Every query has a DuckDB of its own, in memory and bounded, which sees one database or one folder and nothing else: no
other file, no network, no extension, no setting, no variable of the program. A file of the folder is a view named as
the file without its ending; only the files that the query speaks of are opened. What columns it has,
:mod:`tickwright.sources.duckdb_columns` says.
"""

import contextlib
import re
import tempfile
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import msgspec

from tickwright.domain.errors import Rejected, TickwrightError, Unavailable
from tickwright.domain.placeholders import bind
from tickwright.ports.batches import Dialect
from tickwright.ports.reports import Column
from tickwright.sources.duckdb_columns import FORMATS, KnownTypes, Version, create_view, literal
from tickwright.sources.duckdb_text import NESTING_MAX, nesting
from tickwright.sources.duckdb_types import Selected, select
from tickwright.sources.named import SourceTerms, path_of, scheme_of
from tickwright.sources.pieces import gathered
from tickwright.sources.threaded import ThreadedSource
from tickwright.store.queries import load

_Q = load("tickwright.sources.sql", "duckdb.sql")
MEMORY = "256MB"
THREADS = 2
FILES_MAX = 10_000
ENDINGS = frozenset({".csv", ".tsv", ".parquet", *FORMATS})
_ADVICE = re.compile(r"\n\n?Possible (?:fixes|Solution):.*", re.DOTALL)
_FILE = re.compile(r"^  file ?= ?(.+)$", re.MULTILINE)
_PASSING = (duckdb.IOException, duckdb.InterruptException)


class DuckdbSource(ThreadedSource):
    """A DuckDB database, or a folder of files.

    Raises:
        Rejected: ``invalid_source``. Permanent.
    """

    dialect: Dialect = "duckdb"

    def __init__(self, name: str, url: str, terms: SourceTerms) -> None:
        path, is_folder = path_of(name, url), scheme_of(url) == "files"
        known: KnownTypes = {}
        super().__init__(name, terms, lambda: DuckdbReader(name, path, known, is_folder=is_folder))


class DuckdbReader:
    """One query."""

    def __init__(self, name: str, path: Path, known: KnownTypes, *, is_folder: bool) -> None:
        self._name, self._path, self._known, self._is_folder = name, path, known, is_folder
        self._spill: tempfile.TemporaryDirectory[str] | None = None
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._selected: list[Selected] = []
        self._versions: dict[Path, Version] = {}

    def open(self, sql: str, values: Mapping[str, Any], within: str | None) -> tuple[Column, ...]:
        """Begin the query and return its columns."""
        bound = bind(sql, values, "${}".format)
        given = [_as_parameter(value) for value in bound.values]
        try:
            connection = self._connect(sql)
            for text in {bound.sql, within or bound.sql}:
                self._check_one_query(connection, text)
            query = bound.sql.rstrip().rstrip(";")
            described = connection.execute(_Q["describe"].replace("{query}", query), given).description
            names = [f"c{number}" for number in range(len(described))]
            self._selected = [
                select(column[0], str(column[1]), name) for column, name in zip(described, names, strict=True)
            ]
            wanted = ", ".join(one.expression for one in self._selected)
            text = _Q["read"].replace("{columns}", wanted).replace("{names}", ", ".join(names))
            connection.execute(text.replace("{query}", query), given)
        except duckdb.Error as error:
            raise self._said(error) from None
        return tuple(one.column for one in self._selected)

    def _check_one_query(self, connection: duckdb.DuckDBPyConnection, sql: str) -> None:
        if nesting(sql) > NESTING_MAX:
            raise Rejected("source_refused", f"source {self._name} reads at most {NESTING_MAX} nested parentheses")
        statements = connection.extract_statements(sql)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise Rejected("source_refused", f"source {self._name} only reads; write a single query")

    def fetch(self) -> Sequence[Sequence[Any]]:
        """Return the next rows."""
        assert self._connection is not None  # noqa: S101  # opened first
        try:
            rows = gathered(self._connection.fetchmany, f"source {self._name}")
        except duckdb.Error as error:
            raise self._said(error) from None
        if not rows:
            self._check_unchanged()
        documents = [one.is_json for one in self._selected]
        if not any(documents):
            return rows
        return [tuple(map(_document, row, documents)) for row in rows]

    def interrupt(self) -> None:
        """End what runs."""
        if self._connection is not None:
            with contextlib.suppress(duckdb.Error):  # closed meanwhile
                self._connection.interrupt()

    def close(self) -> None:
        """Close the database and remove what was spilled."""
        if self._connection is not None:
            self._connection.close()
        if self._spill is not None:
            self._spill.cleanup()

    def _connect(self, sql: str) -> duckdb.DuckDBPyConnection:
        self._spill = tempfile.TemporaryDirectory(prefix="tickwright-source-")
        bounds: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": MEMORY,
            "threads": THREADS,
            "temp_directory": self._spill.name,
            "autoload_known_extensions": False,
            "autoinstall_known_extensions": False,
            "allow_community_extensions": False,
            "python_enable_replacements": False,
        }
        connection = self._connection = duckdb.connect(":memory:", config=bounds)
        if self._is_folder:
            for stem, path in self._files_of(sql):
                try:
                    version = self._versions[path] = _version(path)
                    create_view(connection, stem, path, version, self._known)
                except OSError as error:
                    raise self._unavailable(error.strerror) from None
            folders = f"[{literal(str(self._path))}]"
        else:
            connection.execute(_Q["attach"].replace("{path}", literal(str(self._path))))
            folders = "[]"
        connection.execute(_Q["lock"].replace("{folders}", folders))
        return connection

    def _files_of(self, sql: str) -> list[tuple[str, Path]]:
        """Return the files of the folder that ``sql`` may mean; what leads out of it is none of them."""
        try:
            inside = self._path.resolve(strict=True)
            files = [path for path in sorted(self._path.iterdir()) if path.suffix.lower() in ENDINGS]
        except OSError as error:
            raise self._unavailable(error.strerror) from None
        if len(files) > FILES_MAX:
            raise Rejected("source_refused", f"source {self._name} has more than {FILES_MAX} files")
        text = sql.casefold()
        found: dict[str, tuple[str, Path]] = {}
        for path in files:
            if path.stem.casefold() not in text or not path.resolve().is_relative_to(inside):
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

    def _said(self, error: duckdb.Error) -> TickwrightError:
        whole = str(error).partition("\n\nLINE")[0].replace(f"{self._path}/", "").replace(str(self._path), "it")
        said, file = _ADVICE.sub("", whole), _FILE.search(whole)
        said = f"{file[1]}: {said}"[:1000] if file is not None else said[:1000]
        if isinstance(error, _PASSING):
            return self._unavailable(said)
        return Rejected("source_refused", f"source {self._name} refuses the query: {said}")


def _document(value: Any, is_json: bool) -> Any:
    if not is_json or value is None:
        return value
    return msgspec.Raw(value.encode().replace(b"\n", b" ").replace(b"\r", b" "))


def _as_parameter(value: Any) -> Any:
    if isinstance(value, Mapping):
        return msgspec.json.encode(value).decode()
    return str(value) if isinstance(value, Decimal | UUID) else value


def _version(path: Path) -> Version:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns
