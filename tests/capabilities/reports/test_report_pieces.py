"""Rows in transit take bounded memory, however large each of them is."""

import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kit.postgres import as_reader
from tickwright.capabilities.reports.parts.spool import write_part
from tickwright.domain.errors import Rejected
from tickwright.sources import postgres
from tickwright.sources.named import Sources, SourceSettings
from tickwright.sources.rows import CHUNK_ROWS, PIECE_BYTES, PIECE_ROWS, ROW_BYTES_MAX, gathered, weight_bytes

ROWS, ROW_BYTES = 1_000, 1_000_000
PEAK_BYTES_MAX = 250_000_000
"""A piece that is written and one that is read, each as the library has it and as Python has it: 500 rows took 2 GB."""
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_bytes() -> int:
    """Return the peak memory of this process since the last reset."""
    [line] = [line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def reset_peak() -> int:
    """Reset the peak, and return the memory in use."""
    CLEAR.write_text("5")
    return peak_bytes()


async def of_a_function(_url: str, _folder: Path) -> AsyncIterator[Mapping[str, Any]]:
    """Yield rows as a program's function does; each text is an object of its own."""
    for number in range(ROWS):
        yield {"id": number, "text": chr(97 + number % 26) * ROW_BYTES}


def query(url: str, sql: str) -> Any:
    """Open a query on a source."""
    source = Sources({"a": SourceSettings(url=as_reader(url))}, lambda _: None).get("a")
    return source.query(sql, {}, timeout=timedelta(minutes=4))


def of_postgres(url: str, _folder: Path) -> Any:
    """Return rows as PostgreSQL sends them."""
    return query(url, f"SELECT n AS id, repeat('x', {ROW_BYTES}) AS text FROM generate_series(1, {ROWS}) AS n")


def of_sqlite(_url: str, folder: Path) -> Any:
    """Return rows as SQLite makes them."""
    with closing(sqlite3.connect(folder / "empty.db")) as database:
        database.execute("CREATE TABLE t (id integer)")
    numbers = f"WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < {ROWS})"
    return query(f"sqlite://{folder}/empty.db", f"{numbers} SELECT id, hex(zeroblob({ROW_BYTES // 2})) AS text FROM n")


@pytest.mark.matrix
@pytest.mark.parametrize("make", [of_a_function, of_postgres, of_sqlite])
async def test_a_thousand_rows_of_a_megabyte_take_the_memory_of_a_few(
    database_url: str, tmp_path: Path, make: Callable[[str, Path], Any]
) -> None:
    """Pieces are bounded by bytes, not only by rows, from the source to the file."""
    rows, path = make(database_url, tmp_path), tmp_path / "part.ndjson"
    before = reset_peak()
    try:
        if make is of_a_function:
            facts = await write_part(rows, path, declared={})
        else:
            async with rows as opened:
                facts = await write_part(opened, path, declared={})
        took = peak_bytes() - before
    finally:
        path.unlink(missing_ok=True)
    assert facts.rows == ROWS
    assert facts.bytes > ROWS * ROW_BYTES
    assert took < PEAK_BYTES_MAX, f"{took / 1e6:.0f} MB"


async def of_a_large_function(_url: str, _folder: Path) -> AsyncIterator[Mapping[str, Any]]:
    """Yield one row above the bound."""
    yield {"text": "x" * (ROW_BYTES_MAX + 1)}


def of_large_postgres(url: str, _folder: Path) -> Any:
    """Query PostgreSQL for rows of 200 MB."""
    return query(url, "SELECT repeat('x', 200000000) AS text FROM generate_series(1, 10);  -- ten")


def of_large_sqlite(_url: str, folder: Path) -> Any:
    """Query SQLite for rows of 200 MB."""
    with closing(sqlite3.connect(folder / "empty.db")) as database:
        database.execute("CREATE TABLE t (id integer)")
    return query(f"sqlite://{folder}/empty.db", "SELECT hex(zeroblob(100000000)) AS text")


def of_large_files(_url: str, folder: Path) -> Any:
    """Query DuckDB for a row of 20 MB."""
    (folder / "files").mkdir()
    return query(f"files://{folder}/files", "SELECT repeat('x', 20000000) AS text FROM range(2)")


@pytest.mark.parametrize("make", [of_a_large_function, of_large_postgres, of_large_sqlite, of_large_files])
async def test_a_row_above_its_bound_is_refused_and_takes_no_memory(
    database_url: str, tmp_path: Path, make: Callable[[str, Path], Any]
) -> None:
    """PostgreSQL measures a row before it sends it, and SQLite before it makes it; the error names the remedy."""
    await check_too_large(make(database_url, tmp_path), tmp_path / "part.ndjson")


async def write_rows(rows: Any, path: Path) -> None:
    """Write the rows of a function or a query."""
    if isinstance(rows, AsyncIterator):
        await write_part(rows, path, declared={})
    else:
        async with rows as opened:
            await write_part(opened, path, declared={})


async def check_too_large(rows: Any, path: Path) -> None:
    """Check that rows are refused, permanently and within the memory of a few pieces."""
    before = reset_peak()
    with pytest.raises(Rejected, match="gives a row of more than 16 MiB of text; select fewer columns") as refused:
        await write_rows(rows, path)
    took = peak_bytes() - before
    assert (refused.value.code, refused.value.retriable) == ("row_too_large", False)
    assert not list(path.parent.glob(path.name))
    assert took < PEAK_BYTES_MAX, f"{took / 1e6:.0f} MB"


@pytest.mark.storm
async def test_the_suite_notices_a_query_without_the_bound_on_rows(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its bound, a PostgreSQL source holds a whole row before it refuses it."""
    monkeypatch.setattr(postgres, "_AHEAD", "")
    monkeypatch.setattr(postgres, "_BEHIND", "")
    with pytest.raises(AssertionError, match=r"^\d+ MB"):
        await check_too_large(of_large_postgres(database_url, tmp_path), tmp_path / "part.ndjson")


@pytest.mark.matrix
@pytest.mark.parametrize("column", ["repeat('x', 16000000)", "decode(repeat('ab', 16000000), 'hex')"])
async def test_rows_just_below_the_bound_are_written(database_url: str, tmp_path: Path, column: str) -> None:
    """Only a few of the largest rows are in memory at once, although they are sent at twice their size."""
    path = tmp_path / "part.ndjson"
    before = reset_peak()
    async with query(database_url, f"SELECT {column} AS large FROM generate_series(1, 40)") as rows:
        facts = await write_part(rows, path, declared={})
    took = peak_bytes() - before
    path.unlink()
    assert facts.rows == 40
    assert took < 5 * CHUNK_ROWS * 2 * ROW_BYTES_MAX, f"{took / 1e6:.0f} MB"


@pytest.mark.parametrize("end", ["", ";", "\n;\n", "; -- the end", " -- the ; end", " /* ; */ ; /* ; */ ;"])
async def test_semicolons_and_comments_after_a_query_are_removed(database_url: str, end: str) -> None:
    """Quoted semicolons of the query stay."""
    async with query(database_url, f"SELECT ';' AS a, :x AS b, 'c' AS a{end}".replace(":x", "1")) as rows:
        assert [tuple(row) async for piece in rows for row in piece] == [(";", 1, "c")]
        assert [column.name for column in rows.columns] == ["a", "b", "a"]


def test_pieces_have_many_small_rows_or_few_large_ones() -> None:
    """Every row comes, in order; the last piece has the rest."""
    for text, most in (("", PIECE_ROWS), ("x" * (PIECE_BYTES // 50), 55)):
        left = [(number, text) for number in range(1_230)]

        def fetch(count: int, left: list[tuple[int, str]] = left) -> list[tuple[int, str]]:
            assert count == CHUNK_ROWS
            taken, left[:] = left[:count], left[count:]
            return taken

        pieces = []
        while piece := gathered(fetch, "source a"):
            pieces.append(piece)
        assert [row[0] for piece in pieces for row in piece] == list(range(1_230))
        assert {len(piece) for piece in pieces[:-1]} == {most}


def test_pieces_have_few_wide_rows() -> None:
    """Every cell takes memory: a piece ends with its fifty thousandth, items of lists included."""
    rows: list[list[Any]] = [[True] * 1_000, [[1] * 999], [([{"a": 2}] * 333, None)]]
    for row, most in zip(rows, (50, 50, 75), strict=True):
        assert len(gathered(lambda count, row=row: [row] * count, "source a")) == most  # type: ignore[misc]


async def test_wide_rows_of_postgresql_come_in_small_pieces(database_url: str) -> None:
    """Columns and items of arrays count."""
    columns = ", ".join(f"i % 2 = 0 AS c{number}" for number in range(1_000))
    for selected in (columns, "array_fill(i, ARRAY[1000])"):
        sql = f"SELECT {selected} FROM generate_series(1, 100) AS s(i)"
        async with query(database_url, sql) as rows:
            assert [len(piece) async for piece in rows] == [50, 50]


def test_a_weight_counts_texts_at_any_depth() -> None:
    """A list of long texts in one value counts in full."""
    assert weight_bytes([(1, "abc", None), (2.5, b"de", [{"k": ["fgh", ("i",)]}])]) == 9
