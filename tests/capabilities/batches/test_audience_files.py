"""Files of the object store as audiences: fetched once, cut alike in every process, refused when they were replaced."""

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

from kit.audiences import NOW, OlderThan
from kit.mutants import mutate
from kit.waiting import eventually_async
from tickwright.capabilities.batches.audience.audience import Audiences, check_audience
from tickwright.capabilities.batches.audience.schema import AudienceSettings, read_audience
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.ports.batches import Judge, PlannedChunk
from tickwright.ports.objects import ObjectStore
from tickwright.sources import object_files
from tickwright.sources.file_sources import FileSource
from tickwright.sources.named import Sources
from tickwright.sources.object_files import ObjectFiles

TERMS = read_audience({"file": "audiences/clients.csv", "key": "id", "fields": {"age": "int"}, "columns": ["name"]})


class CountingStore:
    """An object store that counts fetches.

    Args:
        store: The real one.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store, self.fetched = store, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def fetch_file(self, key: str, path: Path) -> int:
        """Count, and fetch."""
        self.fetched += 1
        return await self._store.fetch_file(key, path)


class Process:
    """A process with a folder of its own and its view of the store."""

    def __init__(self, store: ObjectStore, folder: Path, *, kept: int = 4) -> None:
        folder.mkdir()
        self.folder, self.store = folder, CountingStore(store)
        self.files = ObjectFiles(self.store, folder, kept=kept)
        self.audiences = Audiences(Sources({}, lambda _: None), self.files)

    async def cut(self, terms: AudienceSettings, rows: int) -> list[PlannedChunk]:
        """Return all ranges."""
        async with self.audiences.open(terms) as audience:
            return [chunk async for chunk in audience.cut(rows)]

    async def read(self, terms: AudienceSettings, value: Mapping[str, Any], judge: Judge | None = None) -> list[str]:
        """Return the clients of a range, sorted."""
        async with self.audiences.open(terms, value) as audience, audience.read(value, judge, NOW) as reading:
            return sorted([action.client_id async for piece in reading for action in piece])


@pytest.fixture
async def processes(object_store: ObjectStore, tmp_path: Path) -> AsyncIterator[tuple[Process, Process]]:
    """Two processes on each kind of store."""
    made = Process(object_store, tmp_path / "one"), Process(object_store, tmp_path / "two")
    yield made
    for process in made:
        await process.files.aclose()


async def put(store: ObjectStore, folder: Path, text: str | bytes, key: str = "audiences/clients.csv") -> None:
    """Put a file into the store."""
    path = folder / "put"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    await store.put_file(key, path)


@pytest.mark.matrix
async def test_two_processes_cut_and_read_the_same_ranges(
    object_store: ObjectStore, processes: tuple[Process, Process], tmp_path: Path
) -> None:
    """Each fetches the file once for all ranges of an execution, from a folder or a bucket."""
    rows = [f"k{number * 7919 % 100:02},{number % 60},n{number}" for number in range(100)]
    await put(object_store, tmp_path, "\n".join(["id,age,name", *rows]))
    one, two = processes
    planned = await one.cut(TERMS, 30)
    assert planned == await two.cut(TERMS, 30)
    assert [chunk.members for chunk in planned] == [30, 30, 30, 10]
    read = [
        await process.read(TERMS, chunk.value) for chunk, process in zip(planned, [two, one, two, one], strict=True)
    ]
    assert [client for piece in read for client in piece] == [f"k{number:02}" for number in range(100)]
    assert (one.store.fetched, two.store.fetched) == (1, 1)


@pytest.mark.matrix
async def test_a_file_that_was_replaced_is_refused(
    object_store: ObjectStore, processes: tuple[Process, Process], tmp_path: Path
) -> None:
    """By a process that has to fetch it; one that has the planned file goes on with it."""
    await put(object_store, tmp_path, "id,age,name\n1,30,a\n2,40,b\n")
    one, two = processes
    (chunk,) = await one.cut(TERMS, 10)
    await put(object_store, tmp_path, "id,age,name\n1,30,a\n3,40,b\n")
    with pytest.raises(Rejected) as refused:
        await two.read(TERMS, chunk.value)
    assert refused.value.code == "audience_changed"
    assert await one.read(TERMS, chunk.value) == ["1", "2"]
    (chunk,) = await one.cut(TERMS, 10)
    assert await one.read(TERMS, chunk.value) == await two.read(TERMS, chunk.value) == ["1", "3"]


@pytest.mark.matrix
async def test_the_same_file_is_fetched_once_for_many_readers(object_store: ObjectStore, tmp_path: Path) -> None:
    """Ranges that are read at the same time wait for one another's copy."""
    await put(object_store, tmp_path, "id,age,name\n" + "\n".join(f"{number},1,x" for number in range(100)))
    one, two = Process(object_store, tmp_path / "one"), Process(object_store, tmp_path / "two")
    planned = await one.cut(TERMS, 10)
    read = await asyncio.gather(*(two.read(TERMS, chunk.value) for chunk in planned))
    assert sorted(int(client) for piece in read for client in piece) == list(range(100))
    assert two.store.fetched == 1
    await one.files.aclose()
    await two.files.aclose()
    assert list(one.folder.iterdir()) == list(two.folder.iterdir()) == []


@pytest.mark.matrix
async def test_only_a_few_files_are_kept(object_store: ObjectStore, tmp_path: Path) -> None:
    """The one that was least recently read is deleted; one that is being read stays."""
    process = Process(object_store, tmp_path / "one", kept=1)
    terms = [read_audience({"file": f"{name}.csv", "key": "id"}) for name in "abc"]
    for one in terms:
        await put(object_store, tmp_path, "id\n1\n", str(one.file))
    async with process.audiences.open(terms[0]) as audience:
        for one in terms[1:]:
            await process.cut(one, 10)
        assert [chunk.members async for chunk in audience.cut(10)] == [1]
        assert len(list(process.folder.glob("*.duckdb"))) == 2
    assert len(list(process.folder.iterdir())) == 1
    await process.files.aclose()


async def test_texts_of_a_csv_file_stay_as_they_are(object_store: ObjectStore, tmp_path: Path) -> None:
    """A key keeps its zeros; an empty value is missing, a quoted empty one is an empty text."""
    await put(object_store, tmp_path, '﻿id;age;name\n007;30;""\n7;;"a;""b"""\n,50,\n'.replace(",", ";"))
    process = Process(object_store, tmp_path / "one")
    keyless, chunk = await process.cut(TERMS, 10)
    assert (keyless.value["keyless"], chunk.members) == (1, 2)
    async with process.audiences.open(TERMS, chunk.value) as audience, audience.read(chunk.value, None, NOW) as reading:
        clients = {action.client_id: action.client async for piece in reading for action in piece}
    assert clients == {"007": '{"age":30,"name":""}', "7": '{"age":null,"name":"a;\\"b\\""}'}
    assert await process.read(TERMS, chunk.value, OlderThan(25)) == ["007"]
    await process.files.aclose()


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no column id"),
        ("id,age\n1,2\n", "there is no column name"),
        ("idx,age,name\n1,2,3\n", "it has no column id; did you mean idx?"),
        (b"id,age,name\n\xff\xfe,2,3\n", "cannot be read"),
        ("id,age,name\n1,2,3\n4,5\n", "cannot be read"),
        ("id,age,name\n1,2,3\n6,7,8,9,10\n", "cannot be read"),
        ("some text\nid,age,name\n1,2,3\n4,5,6\n", "cannot be read"),
        ('id,age,name\n1,2,"3\n4,5,6\n', "cannot be read"),
    ],
)
async def test_an_unreadable_file_is_refused_with_the_reason(
    object_store: ObjectStore, tmp_path: Path, text: str | bytes, said: str
) -> None:
    """The reason shows no path of this machine, and no file is left."""
    await put(object_store, tmp_path, text)
    process = Process(object_store, tmp_path / "one")
    document = {"file": "audiences/clients.csv", "key": "id", "fields": {"age": "int"}, "columns": ["name"]}
    with pytest.raises(Rejected) as refused:
        await check_audience(process.audiences, document)
    assert refused.value.code == "invalid_audience"
    assert said in refused.value.message
    assert str(tmp_path) not in refused.value.message
    await process.files.aclose()
    assert list(process.folder.iterdir()) == []


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("text", "clients"),
    [
        ("id,age,name\n", []),
        ("id,age,name", []),
        ("id|age|name\n1|2|a,b;c\n", ["1"]),
        ("id\tage\tname\n1\t2\t3\n#4\t5\t6\n", ["#4", "1"]),
        ('"id","age, in years",age,name\n1,2,3,4\n', ["1"]),
        ("id,age,name\r\n1,2,3\r\n4,5,6\r\n", ["1", "4"]),
        ('id,age,name\n1,2,"a\nb"\n4,5,6', ["1", "4"]),
        ("id,age,name\n1,2,3\n\n4,5,6\n", ["1", "4"]),
    ],
)
async def test_no_line_of_a_csv_file_is_lost_to_guessing(
    object_store: ObjectStore, tmp_path: Path, text: str, clients: list[str]
) -> None:
    """With any separator, lines that look like comments, any or quoted line ends, or a header alone."""
    await put(object_store, tmp_path, text)
    process = Process(object_store, tmp_path / "one")
    planned = await process.cut(TERMS, 100)
    assert [client for chunk in planned for client in await process.read(TERMS, chunk.value)] == clients
    await process.files.aclose()


async def test_a_missing_file_is_refused(object_store: ObjectStore, tmp_path: Path) -> None:
    """Under its path."""
    process = Process(object_store, tmp_path / "one")
    with pytest.raises(Rejected) as refused:
        await check_audience(process.audiences, {"file": "none.parquet", "key": "id"})
    assert refused.value.details["problems"][0].startswith("audience.file: ")


async def test_a_parquet_file_keeps_its_types(object_store: ObjectStore, tmp_path: Path) -> None:
    """Numbers order as numbers, a NULL in a field is missing."""
    path = tmp_path / "made.parquet"
    rows = "SELECT i AS id, CASE WHEN i % 2 = 0 THEN i END AS age FROM range(12) AS t(i)"
    with duckdb.connect() as made:
        made.execute(f"COPY ({rows}) TO '{path}'")
    await object_store.put_file("clients.parquet", path)
    terms = read_audience({"file": "clients.parquet", "key": "id", "fields": {"age": "int"}})
    process = Process(object_store, tmp_path / "one")
    planned = await process.cut(terms, 8)
    assert [await process.read(terms, chunk.value) for chunk in planned] == [[*"01234567"], ["10", "11", "8", "9"]]
    async with process.audiences.open(terms) as audience:
        found = await audience.count(OlderThan(5), NOW)
    assert (found.members, found.selected, found.missing) == (12, 3, 6)
    await process.files.aclose()


async def test_a_cancelled_fetch_leaves_nothing(object_store: ObjectStore, tmp_path: Path) -> None:
    """Neither a file nor a thread that goes on."""
    await put(object_store, tmp_path, "id,age,name\n" + "\n".join(f"{number},1,x" for number in range(200_000)))
    process = Process(object_store, tmp_path / "one")
    task = asyncio.create_task(process.cut(TERMS, 10))
    await eventually_async(lambda: task.done() or list(process.folder.glob("*.duckdb")), what="it is being loaded")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert list(process.folder.iterdir()) == []


async def test_loads_leave_the_threads_of_the_process_to_others(
    object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two at a time have threads of their own: look-ups of hosts and parts of reports have the others."""
    begun, goes_on = [], threading.Event()

    def load(_: Any, order: str) -> None:
        begun.append(order)
        goes_on.wait()

    monkeypatch.setattr(object_files._Load, "_load", load)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(4))
    process = Process(object_store, tmp_path / "one")
    terms = [read_audience({"file": f"{name}.csv", "key": "id"}) for name in "abcdefgh"]
    for one in terms:
        await put(object_store, tmp_path, "id\n1\n", str(one.file))
    tasks = [asyncio.create_task(process.cut(one, 10)) for one in terms]
    try:
        fetched = process.folder.glob
        await eventually_async(
            lambda: sum(path.stat().st_size > 0 for path in fetched("*.raw")) == 8 and len(begun) >= 2
        )
        async with asyncio.timeout(60):  # only if they are taken
            assert await asyncio.to_thread(int) == 0
        assert len(begun) == 2
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        goes_on.set()
        await asyncio.wait(tasks)
    assert list(process.folder.iterdir()) == []


async def test_a_load_that_takes_too_long_is_a_temporary_error(
    object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It releases its slot and leaves no file; so does one that waits too long for a slot."""
    await put(object_store, tmp_path, "id,age,name\n1,1,x\n")
    process = Process(object_store, tmp_path / "one")
    for _ in range(3):
        with monkeypatch.context() as patched:
            patched.setattr(object_files, "LOAD_TIME_MAX", timedelta(milliseconds=1))
            with pytest.raises(Unavailable) as late:
                await process.cut(TERMS, 10)
        assert late.value.code == "source_timeout"
        assert list(process.folder.iterdir()) == []
    assert len(await process.cut(TERMS, 10)) == 1
    await process.files.aclose()


async def test_a_reader_that_is_cancelled_while_it_evicts_leaves_nothing(
    object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the database on the disk nor a process that has it open."""
    ending, goes_on, sources = asyncio.Event(), asyncio.Event(), []

    async def slow(self: FileSource) -> None:
        sources.append(self)
        ending.set()
        await goes_on.wait()
        await aclose(self)

    aclose = FileSource.aclose
    monkeypatch.setattr(FileSource, "aclose", slow)
    await put(object_store, tmp_path, "id,age,name\n1,1,x\n")
    process = Process(object_store, tmp_path / "one", kept=0)
    task = asyncio.create_task(process.cut(TERMS, 10))
    await ending.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert list(process.folder.iterdir()) == []
    goes_on.set()
    await eventually_async(lambda: not any(source.processes.pids for source in sources))


BOMB = "SELECT repeat('x', 200) || i // 1000000 AS id FROM range(2000000) AS t(i)"
"""Some 400 MB, which Parquet compresses to 2 KB."""
DENSE = "SELECT md5(i::text) AS id FROM range(200000) AS t(i)"
"""Some 8 MB, which are loaded without spilling."""


async def check_refused(store: ObjectStore, folder: Path, rows: str, why: str) -> None:
    """Check that a file that becomes too large is refused for good and leaves nothing."""
    path = folder / "made.parquet"
    with duckdb.connect() as made:
        made.execute(f"COPY ({rows}) TO '{path}' (FORMAT parquet, COMPRESSION zstd)")
    await store.put_file("clients.parquet", path)
    process = Process(store, folder / "one")
    with pytest.raises(Rejected, match=why) as refused:
        await process.cut(read_audience({"file": "clients.parquet", "key": "id"}), 100_000)
    assert refused.value.code == "audience_unreadable"
    assert list(process.folder.iterdir()) == []


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unpacked files may have 2 MB."""
    monkeypatch.setattr(object_files, "UNPACKED_BYTES_FREE", 2_000_000)
    monkeypatch.setattr(object_files, "UNPACKED_TIMES_MAX", 0)


@pytest.mark.matrix
@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("rows", [BOMB, DENSE], ids=["spilled", "database"])
async def test_a_file_that_unpacks_to_too_many_bytes_is_refused(
    object_store: ObjectStore, tmp_path: Path, rows: str
) -> None:
    """While it is loaded, by what it spills and by its database."""
    await check_refused(object_store, tmp_path, rows, "unpacked")


async def test_a_file_of_too_many_rows_is_refused(
    object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that take little space take time: no more are read than the limit."""
    monkeypatch.setattr(object_files, "ROWS_MAX", 199_999)
    await check_refused(object_store, tmp_path, DENSE, "more than 199999 rows")


async def test_as_many_rows_and_bytes_as_the_limits_allow_are_read(
    object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limits are not lower than stated: a file may unpack to a multiple of its own bytes."""
    monkeypatch.setattr(object_files, "ROWS_MAX", 5000)
    monkeypatch.setattr(object_files, "UNPACKED_BYTES_FREE", 0)
    await put(object_store, tmp_path, "id,age,name\n" + "\n".join(f"{number},1,x" for number in range(5000)))
    process = Process(object_store, tmp_path / "one")
    assert sum(chunk.members for chunk in await process.cut(TERMS, 300)) == 5000
    await process.files.aclose()


@pytest.mark.usefixtures("bounded")
async def test_the_suite_notices_a_load_without_a_bound_of_its_database(
    object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: DuckDB bounds what it spills, and its database has any size."""
    mutate(monkeypatch, object_files._Load._check_bytes, "written > self._bytes_max", "False")
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        await check_refused(object_store, tmp_path, DENSE, "unpacked")
