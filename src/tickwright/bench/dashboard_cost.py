"""What one open overview asks of PostgreSQL: statements, counted on their way, and processor time of its sessions.

The API reaches the database through a relay of the bench's own that counts what goes by, so no server needs an
extension or a log for it; BEGIN and COMMIT are statements too. The processor time is that of all server processes
that work for the API, from ``/proc``; it is left out where the server is on another machine.
"""

import asyncio
import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

from tickwright.bench.dashboard_streams import looping, watching
from tickwright.bench.dashboard_world import Site
from tickwright.bench.report import Figures

SETTLE_S = 10.0
CHECK_S = 0.5
_ENCRYPTION = (80877103, 80877104)
"""Requests for TLS and for GSS encryption. Both are declined: what is encrypted cannot be counted."""

_STATEMENTS = frozenset(b"QE")
"""Simple queries, and executions of prepared ones."""

_BACKEND_KEY = b"K"

Say = Callable[[str], None]


def open_cost(site: Site, seconds: float, say: Say, details: dict[str, Any], *, settle_s: float = SETTLE_S) -> Figures:
    """Return statements and milliseconds of processor time a second with one overview open, the API's own included."""
    site.ground.start(keep=False)  # it evaluates alerts, which an API that is alone does too
    with counting(site.ground.url) as counter, site.api(counter.url) as url:
        time.sleep(settle_s)
        alone = _cost(counter, seconds)
        with watching(url, site.key, 1) as watchers:
            time.sleep(settle_s)  # the first snapshot reads everything at once
            watched = _cost(counter, seconds)
        if watchers.least() < seconds / 2:
            raise RuntimeError(f"the stream had {watchers.least()} snapshots in {seconds} s")
    site.ground.stop()
    say(f"the API alone: {alone}; with an overview open: {watched}")
    details["api_alone"] = alone
    if "db_cpu_ms_per_s" not in watched:
        say("db_cpu_ms_per_s is left out: PostgreSQL is not on this machine")
    return watched


def _cost(counter: "Counter", seconds: float) -> Figures:
    began_s, before = time.monotonic(), counter.statements
    first_ms = spent_ms(counter.sessions)
    last_ms: dict[int, float] = {}
    while (passed_s := time.monotonic() - began_s) < seconds:
        last_ms |= spent_ms(counter.sessions)  # one that ends meanwhile has spent what was seen last
        time.sleep(CHECK_S)
    figures = {"statements_per_s": (counter.statements - before) / passed_s}
    if last_ms:
        figures["db_cpu_ms_per_s"] = (sum(last_ms.values()) - sum(first_ms.values())) / passed_s
    return figures


def spent_ms(sessions: Iterable[int]) -> dict[int, float]:
    """Return the processor time of each server process so far; nothing of a server on another machine."""
    spent: dict[int, float] = {}
    for pid in tuple(sessions):
        with suppress(OSError):  # it has ended, or is not here
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition(" (")[2].rpartition(")")
            if name.startswith("postgres"):
                fields = rest.split()
                spent[pid] = (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")
    return spent


class Counter:
    """A proxy of a server that counts the statements that pass.

    Attributes:
        url: Of the database, through it.
        statements: So many passed.
        sessions: The server processes that were reached.
    """

    def __init__(self, database_url: str) -> None:
        known = {name: str(value) for name, value in conninfo_to_dict(database_url).items()}
        self._host, self._port = known.get("host", "127.0.0.1"), int(known.get("port", "5432"))
        self._user = ":".join(quote(known[name], safe="") for name in ("user", "password") if name in known)
        self._database = quote(known.get("dbname", ""), safe="")
        self.url = ""
        self.statements = 0
        self.sessions: set[int] = set()

    async def begin(self) -> None:
        """Listen on a free port of this machine."""
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"postgresql://{self._user}@127.0.0.1:{port}/{self._database}"

    async def end(self) -> None:
        """Accept no further connection."""
        self._server.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._host.startswith("/"):
            answers, forward = await asyncio.open_unix_connection(f"{self._host}/.s.PGSQL.{self._port}")
        else:
            answers, forward = await asyncio.open_connection(self._host, self._port)
        back = asyncio.create_task(self._answer(answers, writer))
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await self._count(reader, forward, writer)
        forward.close()
        await back

    async def _count(
        self, reader: asyncio.StreamReader, forward: asyncio.StreamWriter, writer: asyncio.StreamWriter
    ) -> None:
        """Pass on whole messages of the client: the first has no type, each further one a letter before its length."""
        while True:
            head = await reader.readexactly(4)
            message = head + await reader.readexactly(struct.unpack("!I", head)[0] - 4)
            if struct.unpack("!I", message[4:8])[0] not in _ENCRYPTION:
                break
            writer.write(b"N")
        forward.write(message)
        while True:
            head = await reader.readexactly(5)
            self.statements += head[0] in _STATEMENTS
            forward.write(head + await reader.readexactly(struct.unpack("!I", head[1:])[0] - 4))
            await forward.drain()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on the server's answers; before the first one it says once which process it is."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            kind = b""
            while kind != _BACKEND_KEY:
                head = await reader.readexactly(5)
                kind, body = head[:1], await reader.readexactly(struct.unpack("!I", head[1:])[0] - 4)
                writer.write(head + body)
            self.sessions.add(struct.unpack("!I", body[:4])[0])
            while piece := await reader.read(1 << 16):
                writer.write(piece)
                await writer.drain()
        writer.close()


@contextmanager
def counting(database_url: str) -> Iterator[Counter]:
    """Run a counter in a thread of its own."""
    counter = Counter(database_url)
    with looping() as run:
        run(counter.begin())
        try:
            yield counter
        finally:
            run(counter.end())
