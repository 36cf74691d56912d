"""The process of a query on a DuckDB source: what it may take, what ends it, what its death means, what it has."""

import asyncio
import fcntl
import itertools
import math
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import termios
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from typing import Any, cast
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest

from kit.merges import lives, status_bytes
from kit.waiting import eventually, eventually_async
from tickwright.domain.errors import Rejected, TickwrightError, Unavailable
from tickwright.ports.objects import ObjectStore
from tickwright.sources import file_sources, query_process
from tickwright.sources.confined import Problem
from tickwright.sources.file_sources import FileSource
from tickwright.sources.named import Sources, SourceSettings
from tickwright.sources.object_files import ObjectFiles
from tickwright.sources.query_process import (
    ANSWER_BYTES_MAX,
    DATA_BYTES,
    Failed,
    Query,
    read_answer,
    read_request,
    request_of,
)
from tickwright.sources.query_program import QUERIES_MAX

MIB = 1024 * 1024
MINUTE = timedelta(minutes=10)
HUGE = [
    "SELECT repeat('x', 3000000000) AS a",
    "SELECT len(range(1000000000)) AS a",
    "SELECT range(200000000) AS a",
    "SELECT format('{:1000000000}', 1) AS a",
    "SELECT repeat('x', 1000000) || i AS a FROM range(3000) AS t(i)",
    "SELECT list(i) AS a FROM range(300000000) AS t(i)",
    "SELECT string_agg(repeat('x', 1000), ',') AS a FROM range(3000000)",
]
DEAF = "SELECT levenshtein(repeat('ab', 2000000), repeat('ba', 2000000)) AS a"
"""One call of a function that takes days, in little memory, and never asks whether it is interrupted."""
SLOW = "SELECT i, repeat('x', 1000) AS a FROM range(10000000) AS t(i)"
SORTED = (
    "SELECT md5(i::VARCHAR) AS a, md5(a) || md5(a || 'b') || md5(a || 'c') AS b FROM range(4000000) AS t(i) ORDER BY a"
)
"""Half a gigabyte, which is spilled."""
PARENT = """
import asyncio, sys
from datetime import timedelta
from tickwright.sources.named import Sources, SourceSettings

async def main():
    source = Sources({"folder": SourceSettings(url=f"files://{sys.argv[1]}")}, str).get("folder")
    task = asyncio.create_task(source.query(sys.argv[2], {}, timeout=timedelta(minutes=10)).__aenter__())
    while not source.processes.pids:
        await asyncio.sleep(0.01)
    print(*source.processes.pids, flush=True)
    await task

asyncio.run(main())
"""
BOMB = """
import duckdb, sys
duckdb.execute(f"COPY (SELECT repeat('x', 700000000) AS id) TO '{sys.argv[1]}' (FORMAT parquet, COMPRESSION zstd)")
"""


@pytest.fixture
def spill(tmp_path: Path) -> Path:
    """Where queries spill."""
    folder = tmp_path / "spill"
    folder.mkdir()
    return folder


@pytest.fixture
async def source(tmp_path: Path, spill: Path) -> AsyncIterator[FileSource]:
    """A folder of files as a source; a query leaves nothing where it spilled, however it ended."""
    files = tmp_path / "files"
    files.mkdir()
    (files / "users.csv").write_text("id,name\n1,ann\n2,bob\n")
    sources = Sources({"folder": SourceSettings(url=f"files://{files}")}, lambda _: None, lambda: spill)
    found = cast("FileSource", sources.get("folder"))
    yield found
    await sources.aclose()
    assert found.processes.pids == []
    assert left(spill) == []


def left(folder: Path) -> list[Path]:
    """Return what is in a folder."""
    return [*folder.iterdir()]


def open_files(pid: int) -> set[str]:
    """Return what kinds of files a process has open."""
    return {str(one.readlink()).partition(":")[0] for one in Path(f"/proc/{pid}/fd").iterdir()}


async def rows_of(source: FileSource, sql: str, timeout: timedelta = MINUTE, **values: Any) -> list[Any]:
    """Return all rows of a query."""
    async with source.query(sql, values, timeout=timeout) as rows:
        return [row async for piece in rows for row in piece]


async def failed(source: FileSource, sql: str, timeout: timedelta = MINUTE) -> TickwrightError:
    """Return the error of a query; the next one is answered."""
    with pytest.raises(TickwrightError) as caught:
        await rows_of(source, sql, timeout)
    assert await rows_of(source, "SELECT name FROM users WHERE id = '2'") == [("bob",)]
    return caught.value


def told(pid: int, name: str) -> str:
    """Return what the kernel reports of a process."""
    return Path(f"/proc/{pid}/{name}").read_text()


# ---------------------------------------------------------------------- memory, time and disk


@pytest.mark.parametrize("sql", HUGE)
async def test_a_huge_value_is_refused_and_takes_no_memory_of_the_process(source: FileSource, sql: str) -> None:
    """DuckDB does not count it; the kernel does."""
    before = status_bytes(os.getpid(), "VmHWM")
    error = await failed(source, sql)
    assert isinstance(error, Rejected)
    assert error.code == "source_refused"
    assert "takes more memory than its limit (1024 MiB)" in error.message
    assert status_bytes(os.getpid(), "VmHWM") - before < 64 * MIB


async def test_a_huge_value_that_fits_is_refused_where_it_is_made(source: FileSource) -> None:
    """Its row is above the bound of a row, and is weighed in the process of the query."""
    before = status_bytes(os.getpid(), "VmHWM")
    error = await failed(source, "SELECT repeat('x', 200000000) AS a")
    assert (error.code, error.details) == ("row_too_large", {"bytes_max": 16 * MIB})
    assert status_bytes(os.getpid(), "VmHWM") - before < 64 * MIB


@pytest.mark.matrix
async def test_a_hostile_file_of_the_object_store_takes_no_memory_of_the_process(
    object_store: ObjectStore, tmp_path: Path
) -> None:
    """A few kilobytes of Parquet that are one value of 700 MB; nothing of it stays."""
    path, folder = tmp_path / "made.parquet", tmp_path / "one"
    folder.mkdir()
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", BOMB, str(path)], check=True)
    await object_store.put_file("clients.parquet", path)
    files = ObjectFiles(object_store, folder)
    before = status_bytes(os.getpid(), "VmHWM")
    with pytest.raises(Rejected) as refused:
        async with files.open("clients.parquet", "id", None):
            pass
    assert refused.value.code == "audience_unreadable"
    assert status_bytes(os.getpid(), "VmHWM") - before < 64 * MIB
    assert left(folder) == []


async def test_a_query_that_ignores_an_interrupt_ends_at_its_timeout(source: FileSource) -> None:
    """Its process is killed, so that nothing of it works on."""
    await rows_of(source, "SELECT 1")
    (pid,) = source.processes.pids
    error = await failed(source, DEAF, timedelta(seconds=1))
    assert isinstance(error, Unavailable)
    assert error.code == "source_timeout"
    assert not lives(pid)


async def test_what_a_query_spills_has_a_bound(source: FileSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused with a reason that an author of SQL understands."""
    monkeypatch.setattr(file_sources, "SPILL_BYTES_MAX", 10 * MIB)
    error = await failed(source, SORTED)
    assert isinstance(error, Rejected)
    assert (error.code, "spills more than 10485760 bytes" in error.message) == ("source_refused", True)


async def test_the_kernel_bounds_a_query_and_takes_it_first(source: FileSource) -> None:
    """No core file, which would have rows in it; less of the processor than we have, and a bound of memory."""
    await rows_of(source, "SELECT 1")
    (pid,) = source.processes.pids
    limits = {line[:25].strip(): line[25:].split()[0] for line in told(pid, "limits").splitlines()}
    assert limits["Max core file size"] == "0"
    assert int(limits["Max data size"]) == DATA_BYTES
    assert limits["Max cpu time"] != "unlimited"
    assert told(pid, "oom_score_adj").strip() == "1000"
    assert os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, 0)


# ---------------------------------------------------------------------- its death


async def test_a_process_that_is_killed_is_an_error_to_try_again(source: FileSource, spill: Path) -> None:
    """In the middle of its rows, and while it spills; the next query has another process."""

    async def killed() -> None:
        async with source.query(SLOW, {}, timeout=MINUTE) as rows:
            async for _ in rows:
                os.kill(source.processes.pids[0], signal.SIGKILL)

    with pytest.raises(Unavailable) as lost:
        await killed()
    assert lost.value.code == "source_unavailable"
    assert lost.value.message == "source folder is not available: its process died (signal 9)"
    task = asyncio.create_task(failed(source, SORTED))
    await eventually_async(lambda: any(spill.glob("*/*")), 60, what="it spills")
    (pid,) = source.processes.pids
    os.kill(pid, signal.SIGKILL)
    assert (await task).code == "source_unavailable"


async def test_a_query_that_the_kernel_kills_for_others_is_tried_again(
    source: FileSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel kills these processes first when memory runs out, whichever took it; the query may be small."""
    monkeypatch.setattr(query_process, "killed_for_memory", itertools.count().__next__)
    task = asyncio.create_task(failed(source, DEAF))
    await eventually_async(lambda: source.processes.pids != [])
    os.kill(source.processes.pids[0], signal.SIGKILL)
    error = await task
    assert (type(error), error.code) == (Unavailable, "source_unavailable")
    assert "signal 9; the machine, or the container, had no memory left" in error.message


async def test_an_idle_process_that_died_costs_no_query(source: FileSource) -> None:
    """Nothing of the query was done, so another process does it."""
    await rows_of(source, "SELECT 1")
    (pid,) = source.processes.pids
    os.kill(pid, signal.SIGKILL)
    assert await rows_of(source, "SELECT 2") == [(2,)]
    assert source.processes.pids != [pid]


async def test_signals_for_the_parent_do_not_end_a_query(source: FileSource) -> None:
    """A service manager sends SIGTERM to all processes of a service; its queries may end."""
    async with source.query(SLOW, {}, timeout=MINUTE) as rows:
        (pid,) = source.processes.pids
        for one in (signal.SIGTERM, signal.SIGINT):
            os.kill(pid, one)
        pieces = aiter(rows)
        for _ in range(100):
            assert await anext(pieces)


async def test_a_process_that_is_paused_loses_nothing(source: FileSource) -> None:
    """A container that is frozen, a SIGSTOP: a write that waits for room in the pipe ends with what it has written."""
    async with source.query(f"{SLOW} LIMIT 20000", {}, timeout=MINUTE) as rows:
        (pid,) = source.processes.pids
        numbers = []
        async for piece in rows:
            numbers += [number for number, _ in piece]
            if len(numbers) == 500:
                await eventually_async(lambda: unread_bytes(source) > 60_000, what="the pipe is full")
            if len(numbers) < 10_000:
                os.kill(pid, signal.SIGSTOP)
                await eventually_async(lambda: told(pid, "stat").rpartition(")")[2].split()[0] == "T")
                os.kill(pid, signal.SIGCONT)
    assert numbers == list(range(20_000))


def unread_bytes(source: FileSource) -> int:
    """Return how many bytes wait in the pipe of the only process of a source."""
    (process,) = source.processes._all
    assert process._process.stdout is not None
    found = fcntl.ioctl(process._process.stdout, termios.FIONREAD, b"\0" * 4)
    return int.from_bytes(found, sys.byteorder)


def test_a_parent_that_is_killed_takes_its_processes_along(tmp_path: Path) -> None:
    """Kill -9 in the middle of a query that nothing else ends."""
    command = [sys.executable, "-c", PARENT, str(tmp_path), DEAF]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}  # where the folder for what is spilled is left
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        try:
            (pid,) = [int(word) for word in parent.stdout.readline().split()]
            assert lives(pid)
        finally:
            parent.kill()
    eventually(lambda: not lives(pid))


async def test_a_process_is_used_again_and_not_for_ever(source: FileSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting one costs more than most queries; a refused query costs none, and an idle one is ended in the end."""
    await rows_of(source, "SELECT 1")
    (pid,) = source.processes.pids
    for _ in range(QUERIES_MAX // 2 - 1):
        assert await rows_of(source, "SELECT 1") == [(1,)]
        with pytest.raises(Rejected):
            await rows_of(source, "SELECT nothing FROM users")
        assert source.processes.pids == [pid]
    await rows_of(source, "SELECT 1")
    assert source.processes.pids == []
    monkeypatch.setattr(file_sources, "IDLE_S", 0.01)
    await rows_of(source, "SELECT 1")
    await eventually_async(lambda: source.processes.pids == [])


async def test_many_queries_at_once_leave_one_idle_process(source: FileSource) -> None:
    """The others end with their queries."""
    assert await asyncio.gather(*(rows_of(source, f"SELECT {n}") for n in range(12))) == [[(n,)] for n in range(12)]
    assert len(source.processes.pids) == 1


async def test_closing_a_source_ends_the_query_that_runs(tmp_path: Path, spill: Path) -> None:
    """Nothing works on for a source that is closed."""
    sources = Sources({"folder": SourceSettings(url=f"files://{tmp_path}")}, lambda _: None, lambda: spill)
    source = cast("FileSource", sources.get("folder"))
    task = asyncio.create_task(rows_of(source, DEAF))
    await eventually_async(lambda: source.processes.pids != [])
    (pid,) = source.processes.pids
    await sources.aclose()
    with pytest.raises(Unavailable):
        await task
    assert not lives(pid)
    assert left(spill) == []


async def test_a_process_that_cannot_start_is_an_error_to_try_again(
    source: FileSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the machine."""
    for path in ("/nowhere/python", "/bin/false"):
        with monkeypatch.context() as patched:
            patched.setattr(sys, "executable", path)
            with pytest.raises(Unavailable) as caught:
                await rows_of(source, "SELECT 1")
        assert caught.value.code == "source_unavailable"


@pytest.mark.storm
async def test_nothing_is_left_in_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no other folder is given: done, refused, left early, ended by its time."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    sources = Sources({"folder": SourceSettings(url=f"files://{tmp_path}")}, lambda _: None)
    source = cast("FileSource", sources.get("folder"))
    await rows_of(source, SORTED.replace("4000000", "2000000"))
    for sql in ("SELECT nothing", "SELEKT", DEAF):
        with pytest.raises(TickwrightError):
            await rows_of(source, sql, timedelta(seconds=2))
    async with source.query(SLOW, {}, timeout=MINUTE):
        assert left(temporary) != []
    assert left(temporary) == []
    await sources.aclose()


# ---------------------------------------------------------------------- what it has and gives


async def test_the_process_has_no_secrets_and_no_files_of_ours(
    source: FileSource, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of the environment what an interpreter needs; of the open files its three pipes and one more end of them."""
    monkeypatch.setenv("TICKWRIGHT_DATABASE_URL", "postgresql://me:hunter2@db/x")
    monkeypatch.setenv("FUND_PASSWORD", "hunter2")
    with (tmp_path / "open").open("w") as ours:
        os.set_inheritable(ours.fileno(), True)
        await rows_of(source, "SELECT 1")
        (pid,) = source.processes.pids
        environment = dict(one.split("=", 1) for one in told(pid, "environ").split("\0") if one)
        assert {*environment} <= {
            "PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "DUCKDB_JE_MALLOC_CONF", "MALLOC_ARENA_MAX",
        }  # fmt: skip
        assert "hunter2" not in told(pid, "cmdline")
        assert open_files(pid) == {"pipe"}


VALUES = {
    "true": True,
    "1::TINYINT": 1,
    "9223372036854775807": 2**63 - 1,
    "18446744073709551615::UBIGINT": 2**64 - 1,
    "(-170141183460469231731687303715884105727)::HUGEINT": 1 - 2**127,
    "sum(7)": 7,
    "0.1::DOUBLE": 0.1,
    "'-inf'::DOUBLE": -math.inf,
    "1::FLOAT": 1.0,
    "'ü' || chr(0) || chr(10) || '😀'": "ü\0\n😀",
    "''": "",
    "NULL": None,
    "1.50::DECIMAL(10, 2)": "1.50",
    "DATE '2026-01-02'": "2026-01-02",
    "TIMESTAMPTZ '2026-01-02 03:04:05.678+02'": "2026-01-02 01:04:05.678+00",
    "TIME '03:04:05'": "03:04:05",
    "INTERVAL '1 month 2 days'": "1 month 2 days",
    "'2b1f6a54-0c1c-4a3e-9f5c-3e6f8a3d2b11'::UUID": "2b1f6a54-0c1c-4a3e-9f5c-3e6f8a3d2b11",
    "'\\xAA'::BLOB": "aa",
    "[1, NULL]": msgspec.Raw(b"[1,null]"),
    "{'a': 'x'}": msgspec.Raw(b'{"a":"x"}'),
    "'{\n}'::JSON": msgspec.Raw(b"{ }"),
    "NULL::JSON": None,
    "NULL::HUGEINT": None,
}


async def test_values_come_as_they_are(source: FileSource) -> None:
    """With the types that they have in DuckDB's library."""
    ((*found,),) = await rows_of(source, f"SELECT {', '.join(VALUES)}")
    assert found == list(VALUES.values())
    assert [type(value) for value in found] == [type(value) for value in VALUES.values()]
    ((value,),) = await rows_of(source, "SELECT 'nan'::DOUBLE")
    assert math.isnan(value)


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        (True, "BOOLEAN", "true"),
        (2**100, "HUGEINT", str(2**100)),
        (0.1, "DOUBLE", "0.1"),
        (Decimal("1.50"), "VARCHAR", "1.50"),
        (date(2026, 1, 2), "DATE", "2026-01-02"),
        (datetime(2026, 1, 2, 3, tzinfo=UTC), "TIMESTAMP WITH TIME ZONE", "2026-01-02 03:00:00+00"),
        (time(3, 4), "TIME", "03:04:00"),
        (timedelta(days=2), "INTERVAL", "2 days"),
        (UUID(int=7), "VARCHAR", str(UUID(int=7))),
        ("it's ü", "VARCHAR", "it's ü"),
        (b"\xaa", "BLOB", r"\xAA"),
        (None, '"NULL"', None),
        ([1, 2], "INTEGER[]", "[1, 2]"),
        ({"a": [1]}, "VARCHAR", '{"a":[1]}'),
    ],
)
async def test_values_are_bound_as_they_are(source: FileSource, value: Any, kind: str, shown: str | None) -> None:
    """A query sees the types of Python's values."""
    assert await rows_of(source, "SELECT typeof(:value), CAST(:value AS VARCHAR)", value=value) == [(kind, shown)]


class Shop(StrEnum):
    """Of a program, as users have them."""

    MAIN = "NL"


class Day(datetime):
    """A library's own."""


class Word(str):
    """A library's own."""

    __slots__ = ()


OWN = [
    (Shop.MAIN, "NL"),
    (HTTPStatus.OK, "200"),
    (Word("it's"), "it's"),
    (type("Rate", (float,), {})(1.5), "1.5"),
    (Day(2026, 1, 2, 3, tzinfo=ZoneInfo("Europe/Paris")), "2026-01-02 02:00:00+00"),
    (type("Date", (date,), {})(2026, 1, 2), "2026-01-02"),
    (type("Price", (Decimal,), {})("1.50"), "1.50"),
    ([Shop.MAIN, Word("a")], "[NL, a]"),
    ((Shop.MAIN, Word("a")), "[NL, a]"),
]


async def test_values_of_a_program_s_own_types_are_plain_ones(source: FileSource) -> None:
    """Else the process would import the program, whatever that does when it is imported, or die where it cannot."""
    for value, shown in OWN:
        assert await rows_of(source, "SELECT CAST(:value AS VARCHAR)", value=value) == [(shown,)]
    document = {"a": [Shop.MAIN, Word("x")], Word("b"): {Shop.MAIN: HTTPStatus.OK}}
    sql = "SELECT CAST(:value AS VARCHAR), CAST([:value] AS VARCHAR)"
    assert (await rows_of(source, sql, value=document))[0][0] == '{"a":["NL","x"],"b":{"NL":200}}'
    sql = Word("SELECT CAST(:value AS VARCHAR)")
    assert await rows_of(source, sql, value=[{Shop.MAIN: HTTPStatus.OK}]) == [("[{'NL': 200}]",)]
    async with source.query(sql, {"value": 1}, timeout=MINUTE, within=Word("SELECT 1")) as rows:
        assert [row async for piece in rows for row in piece] == [("1",)]


def test_a_request_imports_nothing(tmp_path: Path) -> None:
    """Should a value of another type come through, the process does not read it."""
    for value in (Shop.MAIN, Word("a"), ZoneInfo("Europe/Paris"), subprocess.run):
        asked = Query("a", "files", tmp_path, tmp_path, 1, {}, "SELECT 1", [value], None)
        with pytest.raises(pickle.UnpicklingError, match="is no type of a request"):
            read_request(BytesIO(request_of(asked)))


async def test_a_value_that_cannot_be_given_is_refused(source: FileSource) -> None:
    """As one that DuckDB has no type for."""
    endless: list[Any] = []
    endless.append(endless)
    for value in (object(), lambda: None, [object()], {"a": object()}, endless):
        with pytest.raises(Rejected) as refused:
            await rows_of(source, "SELECT :value", value=value)
        assert refused.value.code == "source_refused"


async def test_no_progress_is_drawn(source: FileSource) -> None:
    """A process has no file of its own as its program, and DuckDB takes that for a person at a terminal."""
    assert await rows_of(source, "SELECT current_setting('enable_progress_bar')") == [(False,)]


async def test_large_rows_come_whole(source: FileSource) -> None:
    """Up to the bound of a row, in characters that have four bytes each."""
    found = await rows_of(source, "SELECT repeat('😀', 4000000 + i) FROM range(8) AS t(i)")
    assert [len(text) for (text,) in found] == [4_000_000 + number for number in range(8)]
    assert {*found[0][0]} == {"😀"}


async def test_the_columns_of_a_json_file_are_kept_for_the_next_process(source: FileSource, tmp_path: Path) -> None:
    """The same version of a file is not scanned again: here it is another one that looks the same."""
    path = tmp_path / "files" / "given.ndjson"
    path.write_text('{"v": 17 }\n')
    facts = path.stat()
    assert await rows_of(source, "SELECT v FROM given") == [(17,)]
    path.write_text('{"v": "a"}\n')
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    (pid,) = source.processes.pids
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(Rejected, match="numerical"):
        await rows_of(source, "SELECT v FROM given")


def test_an_answer_that_is_none_is_read_as_none() -> None:
    """Whatever a process writes: too long, cut off, of another kind."""
    for content in (b"", b"\0" * 7, (5).to_bytes(8) + b"abc", (3).to_bytes(8) + b"abc", (1).to_bytes(8) + b"\xc0"):
        assert read_answer(BytesIO(content)) is None
    encoded = msgspec.msgpack.encode(Failed(Problem("Rejected", "a", "b", {})))
    deep = encoded.replace(b"\xa7details\x80", b"\xa7details\x81\xa1a" + b"\x91" * 5000 + b"\xc0")
    for content in (encoded.replace(b"\xa1b", b"\xa1\xff"), deep):
        assert content != encoded
        assert read_answer(BytesIO(len(content).to_bytes(8) + content)) is None
    assert read_answer(BytesIO((ANSWER_BYTES_MAX + 1).to_bytes(8) + b"\xc0")) is None


def test_the_process_that_asks_does_not_load_duckdb() -> None:
    """Which would cost it 30 MiB for nothing."""
    code = "import sys, tickwright.sources.file_sources, tickwright.sources.object_files; "
    command = [sys.executable, "-c", f"{code} sys.exit('duckdb' in sys.modules)"]
    assert subprocess.run(command, check=False).returncode == 0
