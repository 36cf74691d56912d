"""DuckDB databases, and CSV, Parquet and JSON files, in the process of a query or a load.

Every query has its own bounded in-memory DuckDB. It sees one database or one folder and nothing else: no other file,
no network, no extension, no setting, no variable of the program. A file of the folder is a view named without its
ending. Only the files that the query reads are opened, so no other file can make it fail.

No type is guessed from a part of a file. A column of a CSV file is text. A column of a JSON file has the type that
holds every value of the whole file; a number that no type holds is refused. See ADR-0027.

A load makes a DuckDB database of a CSV or Parquet file, its rows ordered by a column and numbered.
"""

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import msgspec

from tickwright.domain.errors import Rejected, TickwrightError, Unavailable
from tickwright.ports.reports import Column
from tickwright.sources.duckdb_values import NESTING_MAX, identifier, literal, nesting, select
from tickwright.sources.query_process import (
    ROW_NUMBER,
    THREADS,
    TOO_MUCH_MEMORY,
    KnownTypes,
    Load,
    Query,
    Version,
    too_many_bytes,
    too_much_memory,
)
from tickwright.sources.rows import gathered
from tickwright.store.queries import load

# ---------------------------------------------------------------------- columns of files

_SQL = load("tickwright.sources.sql", "duckdb.sql")
_GAP = re.compile(r"\{([a-z_]+)\}")
_WILD = re.compile(r"([*?\[])")
HEADER_BYTES_MAX = 1024 * 1024
COLUMNS_MAX = 10_000
SEPARATORS = ",;|\t"
FORMATS = {".json": "array", ".ndjson": "newline_delimited", ".jsonl": "newline_delimited"}
_TYPES = (
    (1, "VARCHAR"),
    (4, "BOOLEAN"),
    (16 | 32, "BIGINT"),
    (16 | 32 | 64, "HUGEINT"),
    (8 | 16, "DOUBLE"),
    (8 | 16 | 32 | 64 | 128, "VARCHAR"),
)
"""The kinds that each type holds exactly; the last entry is for numbers beyond all numeric types. Others are JSON."""


class Header(NamedTuple):
    """The header of a CSV file."""

    separator: str
    names: tuple[str, ...]


def create_view(
    connection: duckdb.DuckDBPyConnection, name: str, path: Path, version: Version, known: KnownTypes
) -> None:
    """Create the view ``name`` on a file. A JSON file whose ``version`` is in ``known`` is not scanned again.

    Raises:
        Rejected: ``source_refused``: its columns cannot be determined. Permanent.
        OSError: It cannot be read.
        duckdb.Error: DuckDB cannot read it.
    """
    ending, gaps = path.suffix.lower(), {"name": identifier(name), "path": pattern(path)}
    if ending == ".parquet":
        connection.execute(filled("view_parquet", **gaps))
    elif ending in FORMATS:
        of, types = known.get(path, (None, {}))
        if of != version:
            types = json_types(connection, path, FORMATS[ending])
            known[path] = (version, types)
        gaps |= {"format": literal(FORMATS[ending]), "columns": _struct(types)}
        connection.execute(filled("view_json", **gaps))
    else:
        header = read_header(path)
        columns = _struct(dict.fromkeys(header.names, "VARCHAR"))
        connection.execute(filled("view_csv", **gaps, separator=literal(header.separator), columns=columns))


def read_header(path: Path) -> Header:
    """Return the separator and the names of a CSV file, from its header alone.

    The separator is the one of comma, semicolon, bar and tab that makes most names. An empty or repeated name gets a
    number, because a query could not name it.
    """
    with path.open("rb") as opened:
        raw = opened.read(HEADER_BYTES_MAX)
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(raw, final=len(raw) < HEADER_BYTES_MAX)
    except UnicodeDecodeError:
        raise Rejected("source_refused", f"{path.name} is not encoded as UTF-8") from None
    separators = "\t" if path.suffix.lower() == ".tsv" else SEPARATORS
    found = {separator: _first_record(text, separator, whole=len(raw) < HEADER_BYTES_MAX) for separator in separators}
    separator = max(separators, key=lambda one: len(found[one]))
    if not found[separator]:
        raise Rejected("source_refused", f"{path.name}, line 1: there is no header that names the columns")
    _check_count(path, len(found[separator]))
    return Header(separator, tuple(_distinct(found[separator])))


def _check_count(path: Path, columns: int) -> None:
    if columns > COLUMNS_MAX:
        raise Rejected("source_refused", f"{path.name} has {columns} columns; {COLUMNS_MAX} are read at the most")


def _first_record(text: str, separator: str, *, whole: bool) -> list[str]:
    """Return the first record by RFC 4180; empty if it is invalid or does not end in ``text``."""
    records = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        first = next(records, [])
    except csv.Error:
        return []
    try:
        return first if whole or next(records, None) is not None else []
    except csv.Error:  # of the second record
        return first


def _distinct(names: list[str]) -> Iterator[str]:
    seen: set[str] = set()
    suffixes: Counter[str] = Counter()
    for number, name in enumerate(names):
        unique = plain = name or f"column{number}"
        while unique.casefold() in seen:
            suffixes[plain.casefold()] += 1
            unique = f"{plain}_{suffixes[plain.casefold()]}"
        seen.add(unique.casefold())
        yield unique


def json_types(connection: duckdb.DuckDBPyConnection, path: Path, form: str) -> Mapping[str, str]:
    """Return the columns of a JSON file, in its order, each with the type that holds all of its values.

    Raises:
        Rejected: ``source_refused``: a value is no object, two names differ in case only, or a number would change.
            Permanent.
    """
    differs = filled(
        "json_differs",
        written=filled("json_digits", number="number"),
        kept=filled("json_digits", number="CAST(TRY_CAST(number AS DOUBLE) AS VARCHAR)"),
    )
    where = {"path": pattern(path), "format": literal(form)}
    inexact = filled("json_inexact", differs=differs)
    found = connection.execute(filled("json_names", **where, inexact=inexact)).fetchall()
    wrong = min((place for _, place in found if place is not None), default=None)
    if wrong is not None:
        ((number,),) = connection.execute(filled("json_place", **where, inexact=inexact), [wrong]).fetchall()
        raise _refused(path, wrong, number)
    names = list(dict.fromkeys(name for some, _ in found for name in some))
    if len({name.casefold() for name in names}) < len(names) or "" in names:
        raise Rejected("source_refused", f"{path.name}: names of objects are empty or differ in case only")
    _check_count(path, len(names))
    if not names:
        return {"json": "JSON"}
    kinds = ", ".join(filled("json_kind", c=f"CAST({identifier(name)} AS VARCHAR)") for name in names)
    columns = _struct(dict.fromkeys(names, "JSON"))
    (bits,) = connection.execute(filled("json_kinds", **where, kinds=kinds, columns=columns)).fetchall()
    return {name: _type_of(kind or 0) for name, kind in zip(names, bits, strict=True)}


def _refused(path: Path, place: int, number: str | None) -> Rejected:
    if number is None:
        return Rejected("source_refused", f"{path.name}: value {place} is no object")
    why = f"{number[:60]} would not keep its digits; write it as a text, in quotes"
    return Rejected("source_refused", f"{path.name}, object {place}: the number {why}")


def _type_of(kinds: int) -> str:
    """Return the type that holds all kinds that ``json_kind`` found."""
    for held, kind in _TYPES:
        if kinds | held == held:
            return kind
    return "JSON"


def _struct(types: Mapping[str, str]) -> str:
    return ", ".join(f"{identifier(name)}: {literal(kind)}" for name, kind in types.items())


def pattern(path: Path) -> str:
    """Return a path as a literal that DuckDB reads as one file, not as a pattern."""
    return literal(_WILD.sub(r"[\1]", str(path)))


def filled(name: str, /, **gaps: str) -> str:
    """Fill the gaps of a statement; inserted texts are not expanded again."""
    return _GAP.sub(lambda gap: gaps[gap[1]], _SQL[name].partition("\n")[2])


MEMORY = "256MB"
FILES_MAX = 10_000
ENDINGS = frozenset({".csv", ".tsv", ".parquet", *FORMATS})
_ADVICE = re.compile(r"\n\n?Possible (?:fixes|[Ss]olutions?):.*", re.DOTALL)
_FILE = re.compile(r"^  file ?= ?(.+)$", re.MULTILINE)
_WORD = re.compile(r"[^\W\d][\w$]*")
_WORDS = re.compile(r"""[^\W\d][\w$]*|"((?:[^"]|"")*)"|'((?:[^']|'')*)'""")
_BY_NAME = frozenset({"query", "query_table"})
"""Functions that read tables named by texts."""
ALLOCATION = re.compile(r"bad_alloc|bad allocation|failed to allocate|annot allocate memory|Allocation failure")
PASSING = (duckdb.IOException, duckdb.InterruptException)


class DuckdbReader:
    """Reads one query."""

    def __init__(self, query: Query) -> None:
        self._query, self._name, self._path = query, query.name, query.path
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._versions: dict[Path, Version] = {}

    def open(self) -> tuple[Column, ...]:
        """Start the query and return its columns; add found types of JSON files to ``known``."""
        sql, given = self._query.sql, [*self._query.given]
        try:
            connection = self._connect()
            for text in {sql, self._query.within or sql}:
                self._check_one_query(connection, text)
            self._show(connection, sql)
            query = sql.rstrip().rstrip(";")
            described = connection.execute(_SQL["describe"].replace("{query}", query), given).description
            names = [f"c{number}" for number in range(len(described))]
            selected = [select(column[0], str(column[1]), name) for column, name in zip(described, names, strict=True)]
            wanted = ", ".join(one.expression for one in selected)
            text = _SQL["read"].replace("{columns}", wanted).replace("{names}", ", ".join(names))
            connection.execute(text.replace("{query}", query), given)
        except (duckdb.Error, MemoryError) as error:
            raise self._translated(error) from None
        return tuple(one.column for one in selected)

    def _check_one_query(self, connection: duckdb.DuckDBPyConnection, sql: str) -> None:
        if nesting(sql) > NESTING_MAX:
            raise Rejected("source_refused", f"source {self._name} reads at most {NESTING_MAX} nested parentheses")
        statements = connection.extract_statements(sql)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise Rejected("source_refused", f"source {self._name} only reads; write a single query")

    def fetch(self) -> Sequence[Sequence[Any]]:
        """Return the next rows; empty at the end. JSON and numbers of more than 64 bits are texts."""
        assert self._connection is not None  # noqa: S101  opened first
        try:
            rows = gathered(self._connection.fetchmany, f"source {self._name}")
        except (duckdb.Error, MemoryError) as error:
            raise self._translated(error) from None
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
        connection.execute(_SQL["spill"].replace("{bytes_max}", str(self._query.spill_bytes_max)))
        return connection

    def _show(self, connection: duckdb.DuckDBPyConnection, sql: str) -> None:
        """Give the connection access to what ``sql`` may read, then lock it."""
        if self._query.kind == "files":
            for stem, path in self._files_of(_tables_read(connection, sql)):
                try:
                    version = self._versions[path] = _version(path)
                    create_view(connection, stem, path, version, self._query.known)
                except OSError as error:
                    raise self._unavailable(error.strerror) from None
            folders = f"[{literal(str(self._path))}]"
        else:
            connection.execute(_SQL["attach"].replace("{path}", literal(str(self._path))))
            folders = "[]"
        connection.execute(_SQL["lock"].replace("{folders}", folders))

    def _files_of(self, tables: frozenset[str]) -> list[tuple[str, Path]]:
        """Return the folder's files whose names are in ``tables``; skip a link that leads out of the folder."""
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
        """Fail if a file was replaced during the read: its columns may be those of the old one."""
        for path, version in self._versions.items():
            try:
                is_same = _version(path) == version
            except OSError:
                is_same = False
            if not is_same:
                raise self._unavailable(f"{path.name} changed while it was read")

    def _unavailable(self, why: str | None) -> Unavailable:
        return Unavailable("source_unavailable", f"source {self._name} is not available: {why}")

    def _translated(self, error: duckdb.Error | MemoryError) -> TickwrightError:
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
    """Whether a path is a regular file in ``folder``: no folder, no pipe, no cyclic link and no link out of it."""
    try:
        return path.is_file() and path.resolve().is_relative_to(folder)
    except (OSError, RuntimeError):  # RuntimeError: cyclic links
        return False


def _version(path: Path) -> Version:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _tables_read(connection: duckdb.DuckDBPyConnection, sql: str) -> frozenset[str]:
    """Return the case-folded names of the tables that a query reads, without those that it defines itself (``WITH``).

    They come from the syntax tree: nothing is bound, opened or run. DuckDB's ``get_table_names`` would take no
    parameters and open the files that the query's functions name. If the tree does not name the tables (``PIVOT``,
    ``query_table``), return all words and quoted names of the query.
    """
    try:
        ((text,),) = connection.execute(_SQL["tree"], [sql]).fetchall()
        tree = msgspec.json.decode(text)
        nodes = list(_nodes(tree, frozenset()))
    except (duckdb.Error, msgspec.DecodeError, RecursionError):
        return _words_of(sql)
    if tree.get("error") or any(node.get("function_name") in _BY_NAME for node, _ in nodes):
        return _words_of(sql)
    return frozenset(name for node, defined in nodes for name in _tables_of(node, defined))


def _tables_of(node: dict[str, Any], defined: frozenset[str]) -> Iterator[str]:
    """Yield the table that one node reads, if any."""
    name = str(node.get("table_name", "")).casefold()
    if node.get("type") == "BASE_TABLE" and (node.get("schema_name") or name not in defined):
        yield name
    elif node.get("type") == "SHOW_REF":
        yield name.removeprefix('"').removesuffix('"').replace('""', '"')


def _nodes(value: Any, defined: frozenset[str]) -> Iterator[tuple[dict[str, Any], frozenset[str]]]:
    """Yield every node of a syntax tree, with the names that ``WITH`` defines at that node."""
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
    """Return the words and quoted texts of a query: each text whole, and each word of it."""
    found: set[str] = set()
    for match in _WORDS.finditer(sql):
        whole = (match[1] or "").replace('""', '"') or (match[2] or "").replace("''", "'") or match[0]
        found |= {whole.casefold(), *(word.casefold() for word in _WORD.findall(whole))}
    return frozenset(found)


# ---------------------------------------------------------------------- loads

_LOAD = load("tickwright.sources.sql", "object_files.sql")
LINE_BYTES_MAX = 1024 * 1024


def load_file(job: Load) -> None:
    """Load a file into a database.

    Raises:
        Rejected: ``audience_unreadable``. Permanent.
        Unavailable: ``audience_folder_full``. Retry.
    """
    config: dict[str, Any] = {
        "memory_limit": MEMORY,
        "threads": THREADS,
        "temp_directory": str(job.spill),
        "preserve_insertion_order": False,
        "autoload_known_extensions": False,
        "autoinstall_known_extensions": False,
    }
    kind = "parquet" if job.key.lower().endswith(".parquet") else "csv"
    separator = _separator(job.raw) if kind == "csv" else ""
    rows = _filled(kind, file=literal(str(job.raw)), separator=literal(separator))
    words = {"rows": rows, "order": f"f.{identifier(job.order)}", "place": identifier(ROW_NUMBER)}
    words["most"] = str(job.rows_max + 1)
    try:
        connection = duckdb.connect(str(job.database), config=config)
        try:
            places = {"file": literal(str(job.raw)), "folder": literal(str(job.spill))}
            connection.execute(_filled("bound", **places, bytes_max=str(job.bytes_max)))
            described = connection.execute(_filled("columns", rows=rows)).description or ()
            _check_order(job.order, [str(column[0]) for column in described])
            connection.execute(_filled("load", **words))
            ((loaded,),) = connection.execute(_LOAD["count"]).fetchall()
            if loaded > job.rows_max:
                raise Rejected("audience_unreadable", f"{job.key} has more than {job.rows_max} rows")
        finally:
            connection.close()
    except (duckdb.Error, MemoryError) as error:
        raise _translated(job, error) from None
    except OSError as error:
        why = f"{job.key} cannot be put into the work folder: {error.strerror}"
        raise Unavailable("audience_folder_full", why) from None


def _translated(job: Load, error: duckdb.Error | MemoryError) -> TickwrightError:
    said = str(error).partition("\n\nLINE")[0].replace(str(job.raw), job.key)[:1000]
    if isinstance(error, MemoryError) or ALLOCATION.search(said):
        return Rejected("audience_unreadable", f"{job.key} cannot be read: {TOO_MUCH_MEMORY}")
    if isinstance(error, duckdb.OutOfMemoryException) and "max_temp_directory_size" in said:
        return too_many_bytes(job.key, job.bytes_max)
    if isinstance(error, PASSING):
        return Unavailable("audience_folder_full", f"{job.key} cannot be put into the work folder: {said}")
    return Rejected("audience_unreadable", f"{job.key} cannot be read: {said}")


def _check_order(order: str, columns: Sequence[str]) -> None:
    if order in columns:
        return
    near = get_close_matches(order, columns, n=1)
    hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(columns)[:500]}"
    raise Rejected("audience_unreadable", f"it has no column {order}; {hint}")


def _separator(path: Path) -> str:
    """Return the separator of the header line: one of ``, ; | TAB``."""
    with path.open("rb") as opened:
        names = re.sub(rb'"[^"]*"', b"", opened.readline(LINE_BYTES_MAX)).decode("utf-8", "replace")
    return max(",;|\t", key=names.count)


def _filled(name: str, **gaps: str) -> str:
    """Fill the gaps of a statement; inserted texts are not expanded again."""
    return _GAP.sub(lambda gap: gaps[gap[1]], _LOAD[name].partition("\n")[2])
