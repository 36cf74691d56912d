"""The columns of CSV and JSON files in a folder: nothing about a value is guessed from a part of the file.

A CSV file has no types: each column is text. A JSON file has: each column gets the type that holds every value of the
whole file, and a number that no type holds is refused. ADR-0027.
"""

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import duckdb

from tickwright.domain.errors import Rejected
from tickwright.sources.query_messages import KnownTypes, Version
from tickwright.store.queries import load

_Q = load("tickwright.sources.sql", "duckdb.sql")
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
"""Kinds that a type holds exactly; the last one is numbers that no type of numbers holds. Anything else is JSON."""


class Header(NamedTuple):
    """What the first line of a CSV file says."""

    separator: str
    names: tuple[str, ...]


def create_view(
    connection: duckdb.DuckDBPyConnection, name: str, path: Path, version: Version, known: KnownTypes
) -> None:
    """Make a file a view called ``name``; a JSON file whose ``version`` is ``known`` is not scanned again.

    Raises:
        Rejected: ``source_refused``: it has no columns that can be known for sure. Permanent.
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

    Of comma, semicolon, bar and tab, the separator is the one that makes most names of it. A name that is empty or
    comes twice gets a number, because a query could not say it.
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
    return Header(separator, tuple(_told_apart(found[separator])))


def _check_count(path: Path, columns: int) -> None:
    if columns > COLUMNS_MAX:
        raise Rejected("source_refused", f"{path.name} has {columns} columns; {COLUMNS_MAX} are read at the most")


def _first_record(text: str, separator: str, *, whole: bool) -> list[str]:
    """Return the first record as RFC 4180 reads it; nothing where it cannot, or where its end is not in ``text``."""
    records = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        first = next(records, [])
    except csv.Error:
        return []
    try:
        return first if whole or next(records, None) is not None else []
    except csv.Error:  # of the second record
        return first


def _told_apart(names: list[str]) -> Iterator[str]:
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
    """Return the columns of a JSON file, each with the type that holds all of its values, in the order of the file.

    Raises:
        Rejected: ``source_refused``: something is no object, two names differ in case only, or a number would be
            another one. Permanent.
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
    """Return the type that holds every value of the kinds that ``json_kind`` found."""
    for held, kind in _TYPES:
        if kinds | held == held:
            return kind
    return "JSON"


def _struct(types: Mapping[str, str]) -> str:
    return ", ".join(f"{identifier(name)}: {literal(kind)}" for name, kind in types.items())


def pattern(path: Path) -> str:
    """Return a path as a literal that DuckDB takes for this file, and not for a pattern of several."""
    return literal(_WILD.sub(r"[\1]", str(path)))


def literal(text: str) -> str:
    """Return ``text`` as a literal of DuckDB's SQL."""
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """Return ``name`` as an identifier of DuckDB's SQL."""
    return '"' + name.replace('"', '""') + '"'


def filled(name: str, /, **gaps: str) -> str:
    """Put texts into the gaps of a statement; what is put in is not looked at again."""
    return _GAP.sub(lambda gap: gaps[gap[1]], _Q[name].partition("\n")[2])
