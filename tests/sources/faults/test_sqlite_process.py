"""The process of a query on a SQLite source: what ends it, what it may take, what comes out of it, what it leaves."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from io import BytesIO
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest

from kit.merges import lives, status_bytes
from kit.waiting import eventually, eventually_async
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.ports.reports import NOT_UTF8
from tickwright.sources.file_sources import FileSource
from tickwright.sources.named import Sources, SourceSettings
from tickwright.sources.query_process import Rows, read_answer

MIB = 1024 * 1024
HOUR = timedelta(hours=1)
LONG = "replace(hex(zeroblob(15000000)), '0', 'a')"
DEAF = {
    "instr": f"SELECT instr({LONG}, replace(hex(zeroblob(7000000)), '0', 'a') || 'b')",
    "like": f"SELECT {LONG} LIKE '%' || replace(hex(zeroblob(12000)), '0', 'a') || 'b'",
}
"""One call of a function that takes hours or days; SQLite interrupts between two of its steps only."""
SLOW = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i, hex(zeroblob(500)) FROM n"
SORTED = f"{SLOW} ORDER BY 2, 1"
PROGRAM = """
import asyncio, sys
from datetime import timedelta
from tickwright.sources.named import Sources, SourceSettings

async def main():
    source = Sources({"shop": SourceSettings(url=f"sqlite://{sys.argv[1]}")}, str).get("shop")
    async with source.query(sys.argv[2], {}, timeout=timedelta(seconds=float(sys.argv[3]))) as rows:
        print([row async for piece in rows for row in piece])

asyncio.run(main())
"""


@pytest.fixture
def spill(tmp_path: Path) -> Path:
    """Where queries spill."""
    folder = tmp_path / "it's spilled"
    folder.mkdir()
    return folder


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database with the users 1 and 2."""
    path = tmp_path / "data" / "shop.db"
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as made:
        made.execute("CREATE TABLE users (id INTEGER, name TEXT)")
        made.execute("INSERT INTO users VALUES (1, 'ann'), (2, 'bob')")
        made.commit()
    return path


@pytest.fixture
async def source(database: Path, spill: Path) -> AsyncIterator[FileSource]:
    """It as a source with one place; a query leaves nothing where it spilled, however it ended."""
    terms = SourceSettings(url=f"sqlite://{database}", connections_max=1)
    sources = Sources({"shop": terms}, lambda _: None, lambda: spill)
    found = cast("FileSource", sources.get("shop"))
    yield found
    await sources.aclose()
    assert found.processes.pids == []
    assert left(spill) == []


def told(pid: int, name: str) -> str:
    """Return what the kernel reports of a process."""
    return Path(f"/proc/{pid}/{name}").read_text()


def left(folder: Path) -> list[Path]:
    """Return what is in a folder."""
    return [*folder.iterdir()]


async def rows_of(source: FileSource, sql: str, timeout: timedelta = HOUR, **values: Any) -> list[Any]:
    """Return all rows of a query."""
    async with source.query(sql, values, timeout=timeout) as rows:
        return [row async for piece in rows for row in piece]


async def the_process_of(source: FileSource, task: "asyncio.Task[Any]") -> int:
    """Return the process of the query that a task waits for, once it is at work."""

    def is_busy() -> bool:
        return len(source.processes.pids) == 1 and status_bytes(source.processes.pids[0], "VmHWM") > 40 * MIB

    await eventually_async(lambda: task.done() or is_busy(), 60, what="the query runs")
    return source.processes.pids[0]


# ---------------------------------------------------------------------- its end


@pytest.mark.parametrize("function", DEAF)
async def test_a_call_that_cannot_be_interrupted_ends_at_its_timeout(source: FileSource, function: str) -> None:
    """Its process is killed, and the only place of the source is free."""
    await rows_of(source, "SELECT 1")
    (pid,) = source.processes.pids
    with pytest.raises(Unavailable) as late:
        await rows_of(source, DEAF[function], timedelta(seconds=1))
    assert late.value.code == "source_timeout"
    assert not lives(pid)
    assert await rows_of(source, "SELECT name FROM users WHERE id = :id", id=2) == [("bob",)]


async def test_a_call_that_cannot_be_interrupted_ends_with_its_task(source: FileSource) -> None:
    """A worker that stops cancels it, and waits for nothing."""
    task = asyncio.create_task(rows_of(source, DEAF["instr"]))
    pid = await the_process_of(source, task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not lives(pid)
    assert await rows_of(source, "SELECT 1") == [(1,)]


async def test_a_source_that_is_closed_ends_its_query(source: FileSource) -> None:
    """Nothing works on for it."""
    task = asyncio.create_task(rows_of(source, DEAF["instr"]))
    pid = await the_process_of(source, task)
    await source.aclose()
    with pytest.raises(Unavailable):
        await task
    assert not lives(pid)


def test_a_program_ends_although_its_query_would_not(database: Path) -> None:
    """Its interpreter waits for the threads of queries when it ends."""
    command = [sys.executable, "-c", PROGRAM, str(database), DEAF["instr"], "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as program:
        try:
            eventually(lambda: program.poll() is not None, 60, what="the program ends")
        finally:
            program.kill()
        assert program.stderr is not None
        assert "source_timeout" in program.stderr.read()


# ---------------------------------------------------------------------- memory and disk


async def test_rows_take_no_memory_of_the_process_that_asks(source: FileSource) -> None:
    """However large the values are that SQLite makes before a row is weighed; the next query is answered."""
    before = status_bytes(os.getpid(), "VmHWM")
    with pytest.raises(Rejected) as refused:
        await rows_of(source, f"SELECT {', '.join(f'hex(zeroblob({20_000_000 + number}))' for number in range(5))}")
    assert refused.value.code == "row_too_large"
    assert status_bytes(os.getpid(), "VmHWM") - before < 64 * MIB
    assert await rows_of(source, "SELECT 1") == [(1,)]


async def test_what_a_query_sorts_goes_where_queries_spill(source: FileSource, spill: Path) -> None:
    """The folder for work that is under way has room; the system's temporary folder may have none."""

    def spills() -> bool:
        fds = [path for pid in source.processes.pids for path in Path(f"/proc/{pid}/fd").iterdir()]
        return any(str(fd.readlink()).startswith(str(spill)) for fd in fds)

    task = asyncio.create_task(rows_of(source, SORTED))
    await eventually_async(lambda: task.done() or spills(), 60, what="it spills")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_database_in_use_is_read_and_left_as_it_was(source: FileSource, database: Path) -> None:
    """With a log of writes (WAL) and a writer: what is committed is seen, and a kill blocks no write."""
    with closing(sqlite3.connect(database, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("INSERT INTO users VALUES (3, 'eve')")
        sql = SLOW.replace("hex(zeroblob(500))", "(SELECT name FROM users WHERE id = i)")
        async with source.query(sql, {}, timeout=HOUR) as rows:
            assert (await anext(aiter(rows)))[:3] == [(1, "ann"), (2, "bob"), (3, "eve")]
            os.kill(source.processes.pids[0], 9)
            writer.execute("INSERT INTO users VALUES (4, 'dan')")
        assert await rows_of(source, "SELECT max(id) FROM users") == [(4,)]
        assert writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
    assert left(database.parent) == [database]


async def test_a_process_without_duckdb_answers(source: FileSource) -> None:
    """It takes less memory, and starts faster."""
    await rows_of(source, "SELECT 1")
    (pid,) = source.processes.pids
    assert "duckdb" not in told(pid, "maps")


# ---------------------------------------------------------------------- values


class Shop(StrEnum):
    """Of a program, as users have them."""

    MAIN = "NL"


@pytest.mark.parametrize(
    ("value", "kind", "found"),
    [
        (None, "null", None),
        (True, "integer", 1),
        (2**63 - 1, "integer", 2**63 - 1),
        (0.1, "real", 0.1),
        ("it's ü\n😀", "text", "it's ü\n😀"),
        (b"\xff\0a", "blob", b"\xff\0a"),
        (bytearray(b"\xff"), "blob", b"\xff"),
        (b"", "blob", b""),
        (Shop.MAIN, "text", "NL"),
        (Decimal("1.50"), "text", "1.50"),
        (UUID(int=7), "text", str(UUID(int=7))),
        (date(2026, 1, 2), "text", "2026-01-02"),
        (datetime(2026, 1, 2, 3, tzinfo=UTC), "text", "2026-01-02T03:00:00+00:00"),
        ([1, None, Shop.MAIN, Decimal("1.50")], "text", '[1,null,"NL","1.50"]'),
        ({"a": (1, b"x")}, "text", '{"a":[1,"eA=="]}'),
    ],
)
async def test_values_go_in_and_come_out_as_they_are(source: FileSource, value: Any, kind: str, found: Any) -> None:
    """With SQLite's types; a list or a document is its JSON."""
    ((is_kind, got),) = await rows_of(source, "SELECT typeof(:value), :value", value=value)
    assert (is_kind, got, type(got)) == (kind, found, type(found))


async def test_a_value_that_sqlite_has_not_is_refused(source: FileSource) -> None:
    """For good: it would be refused again."""
    for value in (2**63, timedelta(days=1), "\ud800", object(), [object()]):
        with pytest.raises(Rejected) as refused:
            await rows_of(source, "SELECT :value", value=value)
        assert refused.value.code == "source_refused"
    with pytest.raises(Rejected):
        await rows_of(source, "SELECT '\ud800'")
    assert len(source.processes.pids) == 1


async def test_bytes_and_texts_that_are_not_utf_8_come_in_their_places(source: FileSource) -> None:
    """Beside other values, in rows beside other rows, and large ones."""
    odd = "CAST(x'ff' AS TEXT)"
    sql = f"SELECT 1, {odd}, x'00ff' UNION ALL SELECT 'a', NULL, 'b' UNION ALL SELECT {odd}, x'', 0.5"
    rows = await rows_of(source, sql)
    assert rows == [(1, NOT_UTF8, b"\0\xff"), ("a", None, "b"), (NOT_UTF8, b"", 0.5)]
    rows = await rows_of(source, "SELECT zeroblob(10000000 + value) FROM json_each('[1, 2, 3, 4]')")
    assert [len(blob) for (blob,) in rows] == [10_000_001, 10_000_002, 10_000_003, 10_000_004]


def test_an_answer_with_a_value_in_no_place_is_none() -> None:
    """Our program writes no such answer."""
    for place in ((1, 0), (0, 1)):
        content = msgspec.msgpack.encode(Rows([(None,)], apart=[(*place, b"x")]))
        assert read_answer(BytesIO(len(content).to_bytes(8) + content)) is None
