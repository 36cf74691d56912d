"""Sources that are unavailable, killed or silent; a full disk: a retriable error, no half file, no secret in a text."""

import asyncio
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kit.ports import free_port
from kit.postgres import as_reader
from kit.servers import PostgresServer
from kit.tcp_proxy import TcpProxy
from tickwright.capabilities.reports.parts.spool import write_part
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.ports.reports import Column, Rows, Source
from tickwright.sources.named import Sources, SourceSettings

MINUTE = timedelta(minutes=1)
MANY = "SELECT generate_series(1, 100000000) AS n, repeat('x', 100) AS text"


def no_secrets(_name: str) -> str | None:
    """Return no secret."""
    return None


@contextmanager
def no_file_left(folder: Path) -> Iterator[None]:
    """Check that no part is left."""
    yield
    assert list(folder.iterdir()) == []


async def first_of(
    source: Source, sql: str, timeout: timedelta = MINUTE, happens: Callable[[], None] = lambda: None
) -> Any:
    """Return the first value that a query gives, having read all; ``happens`` with each piece."""
    found = []
    async with source.query(sql, {}, timeout=timeout) as rows:
        async for piece in rows:
            found.append(piece[0][0])
            happens()
    return found[0]


class Interrupted:
    """Rows of a source, with something that happens after the second piece."""

    def __init__(self, rows: Rows, happens: Callable[[], Awaitable[None]]) -> None:
        self._rows, self._happens = rows, happens

    @property
    def columns(self) -> Sequence[Column]:
        """Return the source's columns."""
        return self._rows.columns

    async def __aiter__(self) -> AsyncIterator[Sequence[Sequence[Any]]]:
        """Yield the source's pieces."""
        number = 0
        async for piece in self._rows:
            number += 1
            yield piece
            if number == 2:
                await self._happens()


async def test_a_source_that_is_unavailable_may_be_asked_again() -> None:
    """Nothing listens there; the password is in no text."""
    url = f"postgresql://reader:hidden-word@127.0.0.1:{free_port()}/shop"
    source = Sources({"shop": SourceSettings(url=url)}, no_secrets).get("shop")
    with pytest.raises(Unavailable) as refused:
        await first_of(source, "SELECT 1")
    assert refused.value.code == "source_unavailable"
    assert "hidden-word" not in repr(refused.value) + str(refused.value.__context__)


async def test_a_wrong_password_is_no_fault_of_the_query(pg_server: PostgresServer) -> None:
    """An administrator may correct it; the message does not repeat it."""
    url = pg_server.url.replace(pg_server.password, "hidden-word")
    source = Sources({"shop": SourceSettings(url="${env:URL}")}, {"URL": url}.get).get("shop")
    with pytest.raises(Unavailable, match="password authentication failed") as refused:
        await first_of(source, "SELECT 1")
    assert "hidden-word" not in refused.value.message


async def test_a_server_killed_in_the_middle_leaves_no_file(mortal_postgres: PostgresServer, tmp_path: Path) -> None:
    """The part is retried; the restarted server is found although connections were kept."""
    sources = Sources({"shop": SourceSettings(url=as_reader(mortal_postgres.url))}, no_secrets)
    source = sources.get("shop")

    async def killed() -> None:
        await asyncio.to_thread(mortal_postgres.kill9)

    assert await first_of(source, "SELECT 1") == 1
    with no_file_left(tmp_path), pytest.raises(Unavailable) as lost:
        async with source.query(MANY, {}, timeout=MINUTE) as rows:
            await write_part(Interrupted(rows, killed), tmp_path / "part", declared={})
    assert lost.value.code == "source_unavailable"
    await asyncio.to_thread(mortal_postgres.start)
    assert await first_of(source, "SELECT 2") == 2
    await asyncio.to_thread(mortal_postgres.restart, "fast")
    assert await first_of(source, "SELECT 3") == 3
    await sources.aclose()


@pytest.mark.matrix
@pytest.mark.parametrize("when", ["connecting", "kept", "reading"])
async def test_a_server_that_falls_silent_costs_the_query_s_timeout(pg_server: PostgresServer, when: str) -> None:
    """Not more: neither the connection nor the cancel is waited for without end."""
    async with TcpProxy("127.0.0.1", pg_server.port) as proxy:
        sources = Sources(
            {"shop": SourceSettings(url=as_reader(proxy.rewrite(pg_server.url)), connections_max=1)}, no_secrets
        )
        source = sources.get("shop")
        if when != "connecting":
            await first_of(source, "SELECT 1")
        if when != "reading":
            proxy.drop_replies()
            with pytest.raises(Unavailable) as late:
                await first_of(source, "SELECT 1", timedelta(seconds=1))
        else:
            with pytest.raises(Unavailable) as late:
                await first_of(source, MANY, timedelta(seconds=1), proxy.drop_replies)
        assert late.value.code == "source_timeout"
        proxy.heal()
        assert await first_of(source, "SELECT 2") == 2
        await sources.aclose()


async def test_an_operator_who_ends_the_session_costs_an_attempt(pg_server: PostgresServer, tmp_path: Path) -> None:
    """``pg_terminate_backend`` says nothing about the query."""
    sources = Sources({"shop": SourceSettings(url=as_reader(pg_server.url))}, no_secrets)
    source = sources.get("shop")

    async def ended() -> None:
        sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE '%100000000) AS n%'"
        await first_of(source, f"{sql} AND pid <> pg_backend_pid()")

    with no_file_left(tmp_path), pytest.raises(Unavailable) as lost:
        async with source.query(MANY, {}, timeout=MINUTE) as rows:
            await write_part(Interrupted(rows, ended), tmp_path / "part", declared={})
    assert lost.value.code == "source_unavailable"
    await sources.aclose()


async def test_a_cancelled_part_leaves_no_file(pg_server: PostgresServer, tmp_path: Path) -> None:
    """Wherever it is cancelled."""
    sources = Sources({"shop": SourceSettings(url=as_reader(pg_server.url))}, no_secrets)
    reached = asyncio.Event()

    def counted(count: int) -> None:
        if count:
            reached.set()

    async def fetch() -> None:
        async with sources.get("shop").query(MANY, {}, timeout=MINUTE) as rows:
            await write_part(rows, tmp_path / "part", declared={}, progress=counted)

    with no_file_left(tmp_path):
        task = asyncio.create_task(fetch())
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await sources.aclose()


async def test_a_full_disk_leaves_no_file(tmp_path: Path) -> None:
    """Another attempt may find room."""

    async def rows() -> AsyncIterator[Mapping[str, Any]]:
        for number in range(200_000):
            yield {"number": number, "text": "x" * 100}

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 * 2**20, hard))
    try:
        with no_file_left(tmp_path), pytest.raises(Unavailable) as full:
            await write_part(rows(), tmp_path / "part", declared={})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert full.value.code == "no_space"


async def test_a_folder_that_is_gone_is_no_fault_of_the_rows(tmp_path: Path) -> None:
    """Another attempt finds another folder."""

    async def rows() -> AsyncIterator[Mapping[str, Any]]:
        yield {"number": 1}

    with pytest.raises(Unavailable) as failed:
        await write_part(rows(), tmp_path / "none" / "part", declared={})
    assert failed.value.code == "disk_failed"


async def test_a_source_that_locks_out_is_tried_again(tmp_path: Path) -> None:
    """Another process writes into the DuckDB file."""
    path = tmp_path / "shop.duckdb"
    program = f"import duckdb, sys; c = duckdb.connect({str(path)!r}); print('open', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program]
    writer = await asyncio.to_thread(subprocess.Popen, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    source = Sources({"shop": SourceSettings(url=f"duckdb://{path}")}, no_secrets).get("shop")
    try:
        assert writer.stdout is not None
        await asyncio.to_thread(writer.stdout.readline)
        with pytest.raises(Unavailable) as locked:
            await first_of(source, "SELECT 1")
    finally:
        writer.communicate(timeout=30)
    assert locked.value.code == "source_unavailable"
    assert await first_of(source, "SELECT 1") == 1


async def test_a_refused_query_leaves_no_file(pg_server: PostgresServer, tmp_path: Path) -> None:
    """An error after the first rows is reported with the server's message."""
    sources = Sources({"shop": SourceSettings(url=as_reader(pg_server.url))}, no_secrets)
    with no_file_left(tmp_path), pytest.raises(Rejected, match="division by zero"):
        async with sources.get("shop").query(
            "SELECT 1 / (n - 90000) FROM (SELECT generate_series(1, 100000) AS n) AS q", {}, timeout=MINUTE
        ) as rows:
            await write_part(rows, tmp_path / "part", declared={})
    await sources.aclose()


MEASURED = """
import asyncio, resource, sys
from datetime import timedelta
from pathlib import Path
from tickwright.capabilities.reports.parts.spool import write_part
from tickwright.sources.named import Sources, SourceSettings

async def main():
    source = Sources({"shop": SourceSettings(url="${env:URL}")}, {"URL": sys.argv[1]}.get).get("shop")
    sql = "SELECT generate_series(1, 20000) AS n, repeat('x', 10000) AS text"
    async with source.query(sql, {}, timeout=timedelta(minutes=1)) as rows:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        facts = await write_part(rows, Path(sys.argv[2]), declared={})
    print(facts.rows, facts.bytes, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)

asyncio.run(main())
"""


async def test_a_large_part_takes_little_memory(pg_server: PostgresServer, tmp_path: Path) -> None:
    """200 MB go through a few pieces."""
    command = [sys.executable, "-c", MEASURED, as_reader(pg_server.url), str(tmp_path / "part")]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    rows, size, grown_mb = map(int, done.stdout.split())
    assert (rows, size > 200_000_000) == (20_000, True)
    assert grown_mb < 80
