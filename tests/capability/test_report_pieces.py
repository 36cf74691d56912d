"""Rows on their way take a bounded room, however large each of them is."""

import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kit.postgres import as_reader
from tickwright.capabilities.reports.spool import write_part
from tickwright.sources.named import Sources, SourceTerms
from tickwright.sources.pieces import CHUNK_ROWS, PIECE_BYTES, PIECE_ROWS, gathered, weight_bytes

ROWS, ROW_BYTES = 1_000, 1_000_000
PEAK_BYTES_MAX = 250_000_000
"""A piece that is written and one that is read, each as the library has it and as Python has it: 500 rows took 2 GB."""
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_bytes() -> int:
    """Return the most memory that this process has had since it was last forgotten."""
    [line] = [line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def forget_peak() -> int:
    """Forget the peak, and return what there is now."""
    CLEAR.write_text("5")
    return peak_bytes()


async def of_a_function(_url: str, _folder: Path) -> AsyncIterator[Mapping[str, Any]]:
    """Give rows as a program's function does; each text is its own."""
    for number in range(ROWS):
        yield {"id": number, "text": chr(97 + number % 26) * ROW_BYTES}


def query(url: str, sql: str) -> Any:
    """Open a query on a source."""
    source = Sources({"a": SourceTerms(url=as_reader(url))}, lambda _: None).get("a")
    return source.query(sql, {}, timeout=timedelta(minutes=4))


def of_postgres(url: str, _folder: Path) -> Any:
    """Give rows as PostgreSQL sends them."""
    return query(url, f"SELECT n AS id, repeat('x', {ROW_BYTES}) AS text FROM generate_series(1, {ROWS}) AS n")


def of_sqlite(_url: str, folder: Path) -> Any:
    """Give rows as SQLite makes them."""
    with closing(sqlite3.connect(folder / "empty.db")) as database:
        database.execute("CREATE TABLE t (id integer)")
    numbers = f"WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < {ROWS})"
    return query(f"sqlite://{folder}/empty.db", f"{numbers} SELECT id, hex(zeroblob({ROW_BYTES // 2})) AS text FROM n")


@pytest.mark.parametrize("make", [of_a_function, of_postgres, of_sqlite])
async def test_a_thousand_rows_of_a_megabyte_take_the_room_of_a_few(
    database_url: str, tmp_path: Path, make: Callable[[str, Path], Any]
) -> None:
    """Pieces are bounded by bytes, not only by rows, from the source to the file."""
    rows, path = make(database_url, tmp_path), tmp_path / "part.ndjson"
    before = forget_peak()
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


def test_small_rows_are_gathered_to_full_pieces_and_large_ones_to_few() -> None:
    """Whatever there is comes, in its order; the last piece is what is left."""
    for text, most in (("", PIECE_ROWS), ("x" * (PIECE_BYTES // 50), 60)):
        left = [(number, text) for number in range(1_230)]

        def fetch(count: int, left: list[tuple[int, str]] = left) -> list[tuple[int, str]]:
            assert count == CHUNK_ROWS
            taken, left[:] = left[:count], left[count:]
            return taken

        pieces = []
        while piece := gathered(fetch):
            pieces.append(piece)
        assert [row[0] for piece in pieces for row in piece] == list(range(1_230))
        assert {len(piece) for piece in pieces[:-1]} == {most}


def test_a_weight_counts_texts_at_any_depth() -> None:
    """A list of long texts in one value is as large as it is."""
    assert weight_bytes([(1, "abc", None), (2.5, b"de", [{"k": ["fgh", ("i",)]}])]) == 9
