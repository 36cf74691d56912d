"""Faults of PostgreSQL during writes: a crash, a disk without room, connections cut at their COMMIT."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from kit.postgres import PostgresServer
from kit.waiting import eventually_async
from tickwright.store.queries import load

# A proxy before PostgreSQL that knows its protocol, and breaks the connection at one statement.
#
# ::
#
#     unsent    the statement never reaches the server
#     unheard   it is executed and committed, and its answer is lost
#     late      the client's connection breaks; the statement reaches the server when the test calls ``send_late``
#
# A statement inside a transaction is unheard at the commit of that transaction.

How = Literal["unsent", "unheard", "late"]
_NOT_THE_START = {80877103, 80877104}
_ENDS_A_GROUP = b"SQHXpdcf"
_SYNC = b"S" + struct.pack("!i", 4)
_COMMIT = b"Q" + struct.pack("!i", 4 + len(b"COMMIT\x00")) + b"COMMIT\x00"


def first_line(room: str, file: str, query: str) -> str:
    """Return the first line of a query such as ``("engine", "leases.sql", "take_lease")``, unique among all queries."""
    return load(f"tickwright.{room}.sql", file)[query].splitlines()[0]


@dataclass(eq=False)
class _Link:
    client: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    server: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    texts: dict[bytes, bytes] = field(default_factory=dict)
    heard: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)
    is_unheard: bool = False
    is_late: bool = False
    is_prepared: bool = False
    """The last group ended with a Flush, so the server waits for more of one command, and lets it idle for ever."""

    async def is_ready(self) -> None:
        """Wait until the server has answered a group, or is gone."""
        while await self.heard.get() not in {b"Z", b""}:
            pass

    def reset(self, *, only_client: bool = False) -> None:
        self.client[1].transport.abort()
        if not only_client:
            self.server[1].transport.abort()


class AnswerCuts:
    """Listens on a loopback port and passes everything on, except for the statements to cut.

    Attributes:
        made: Cuts so far.
    """

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._late: list[tuple[_Link, bytes]] = []
        self._word, self._left, self._rows_min, self._spared = b"", 0, 0, 0
        self._how: How = "unsent"
        self.made = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for link in [*self._links, *(link for link, _ in self._late)]:
            link.reset()

    @property
    def url(self) -> str:
        """The database's URL, through this proxy."""
        assert self._server is not None
        credentials, at, _ = self._url.netloc.rpartition("@")
        port = self._server.sockets[0].getsockname()[1]
        return urlunsplit(self._url._replace(netloc=f"{credentials}{at}127.0.0.1:{port}"))

    def cut(self, word: str, how: How, *, times: int = 1, rows_min: int = 0, spared: int = 0) -> None:
        """Cut the next statements with ``word`` in them, after ``spared`` such; unheard ones only with so many rows."""
        self._word, self._how, self._left, self._rows_min = word.encode(), how, times, rows_min
        self._spared = spared

    async def send_late(self) -> None:
        """Send the late statements to the server, and commit them; a transaction that it ended meanwhile is over."""
        late, self._late = self._late, []
        for link, group in late:
            if link.is_prepared:
                await link.is_ready()
            for part in (group, _COMMIT):
                link.server[1].write(part)
                await link.is_ready()
            link.server[1].close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server = await asyncio.open_connection(self._url.hostname, self._url.port)
        except OSError:
            writer.transport.abort()
            return
        link = _Link((reader, writer), server)
        self._links.add(link)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await _start(link)
            await asyncio.gather(self._to_server(link), self._to_client(link))
        self._links.discard(link)
        for _ in (_SYNC, _COMMIT, b""):  # the answer of an ended connection is not awaited
            link.heard.put_nowait(b"")
        link.reset()

    async def _to_server(self, link: _Link) -> None:
        group = b""
        is_hit = False
        while True:
            frame = await _frame(link.client[0])
            group += frame
            is_hit = self._matches(link, frame) or is_hit
            if frame[:1] in _ENDS_A_GROUP:
                if is_hit and self._spared:
                    self._spared -= 1
                elif is_hit and self._left and not self._passes(link, group):
                    return
                link.server[1].write(group)
                await link.server[1].drain()
                link.is_prepared = frame[:1] == b"H"
                group, is_hit = b"", False

    def _matches(self, link: _Link, frame: bytes) -> bool:
        body = frame[5:]
        match frame[:1]:
            case b"P":
                name, text, _ = body.split(b"\x00", 2)
                link.texts[name] = text
            case b"B":
                return bool(self._word) and self._word in link.texts.get(body.split(b"\x00", 2)[1], b"")
            case b"Q":
                return bool(self._word) and self._word in body
        return False

    def _passes(self, link: _Link, group: bytes) -> bool:
        if self._how == "unheard":
            link.is_unheard = True
            return True
        self._count()
        link.is_late = self._how == "late"
        if link.is_late:
            self._late.append((link, group))
            if link.is_prepared:  # then its transaction is idle, as that of a client without a statement
                link.server[1].write(_SYNC)
        link.reset(only_client=link.is_late)
        return False

    def _count(self) -> None:
        self._left -= 1
        self.made += 1

    async def _to_client(self, link: _Link) -> None:
        rows = 0
        while True:
            frame = await _frame(link.server[0])
            if link.is_late:
                link.heard.put_nowait(frame[:1])
                continue
            rows = rows + (frame[:1] == b"D") if link.is_unheard else 0
            if link.is_unheard and frame[:1] == b"Z" and self._is_lost(link, frame, rows):
                return
            link.client[1].write(frame)
            await link.client[1].drain()

    def _is_lost(self, link: _Link, ready: bytes, rows: int) -> bool:
        """Return whether the answer at its end is lost: the transaction is over and returned enough rows."""
        if ready[5:6] != b"I":
            return False
        link.is_unheard = False
        if rows < self._rows_min or not self._left:
            return False
        self._count()
        link.reset()
        return True


async def _start(link: _Link) -> None:
    """Pass on the messages of the start, which have no type byte."""
    while True:
        head = await link.client[0].readexactly(8)
        length, code = struct.unpack("!ii", head)
        link.server[1].write(head + await link.client[0].readexactly(length - 8))
        if code not in _NOT_THE_START:
            return
        link.client[1].write(await link.server[0].readexactly(1))


async def _frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(5)
    return head + await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)


Strike = Callable[[], Awaitable[None]]
CUTS: tuple[How, ...] = ("unsent", "unheard", "late")
_WAITS = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = $1::text::regclass)"
_SEEN_S = 40
SHUTTING_DOWN = """
CREATE FUNCTION tickwright.shutting_down() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'terminating connection due to administrator command' USING ERRCODE = '57P01';
END $$;
CREATE TRIGGER shutting_down BEFORE UPDATE ON tickwright.audit
  FOR EACH STATEMENT EXECUTE FUNCTION tickwright.shutting_down();
"""
"""Every write of the audit trail fails as if PostgreSQL were being shut down."""


class Fault(Protocol):
    """One kind of fault of the database ``url``."""

    url: str
    """The URL to which the tested process connects."""

    def under_writes(self, table: str) -> AbstractAsyncContextManager[Strike]:
        """Prepare the fault; the yielded function waits for a write into ``table`` (without schema), and causes it."""


class Crash:
    """Holds writes into the table, and lets PostgreSQL crash and recover during the open statement."""

    def __init__(self, server: PostgresServer, url: str) -> None:
        self.url, self._server = url, server

    @asynccontextmanager
    async def under_writes(self, table: str) -> AsyncIterator[Strike]:
        """See :class:`Fault`."""
        name = f"tickwright.{table}"
        holder = await asyncpg.connect(self.url)
        await holder.execute(f"BEGIN; LOCK TABLE {name} IN SHARE MODE")

        async def strike() -> None:
            await eventually_async(lambda: holder.fetchval(_WAITS, name), _SEEN_S, what=f"a write into {name} waits")
            await asyncio.to_thread(self._server.restart, "immediate")

        try:
            yield strike
        finally:
            holder.terminate()


class NoRoom:
    """Leaves no disk space for any table until three writes were refused; only the tested process may write."""

    def __init__(self, server: PostgresServer, mark: Path, url: str) -> None:
        self.url, self._server, self._mark = url, server, mark

    @asynccontextmanager
    async def under_writes(self, table: str) -> AsyncIterator[Strike]:
        """See :class:`Fault`; for any table that the transaction writes first."""
        before = self._refused()
        self._mark.touch()

        async def strike() -> None:
            await eventually_async(
                lambda: self._refused() >= before + 3, _SEEN_S, what=f"who writes {table} is refused"
            )
            self._mark.unlink()

        try:
            yield strike
        finally:
            self._mark.unlink(missing_ok=True)

    def _refused(self) -> int:
        return self._server.log.read_text(errors="replace").count("No space left on device")


class CutCommits:
    """Breaks connections at a COMMIT: first unsent, then committed without an answer, then committed late."""

    def __init__(self, cuts: AnswerCuts) -> None:
        self.url, self._cuts = cuts.url, cuts

    @asynccontextmanager
    async def under_writes(self, table: str) -> AsyncIterator[Strike]:
        """See :class:`Fault`; for any table that the transaction writes."""
        cuts = self._cuts

        async def strike() -> None:
            for made, how in enumerate(CUTS, 1):
                if made > 1:
                    cuts.cut("COMMIT", how)
                await eventually_async(partial(self._has_made, made), _SEEN_S, what=f"a COMMIT is {how}")
            await cuts.send_late()

        cuts.cut("COMMIT", CUTS[0])
        yield strike

    def _has_made(self, cuts: int) -> bool:
        return self._cuts.made >= cuts
