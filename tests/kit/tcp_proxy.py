"""A TCP proxy that breaks connections on purpose.

It listens between a client and a server on loopback and causes faults on request: late, dropping
one direction, holding back, cutting in the middle, resetting. Faults apply to open connections and to
later ones, until ``heal``.

::

    async with TcpProxy("127.0.0.1", server.port) as proxy:
        connection = await asyncpg.connect(proxy.rewrite(server.url))
        proxy.drop_replies()          # the server executes requests, the client gets no answer
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self
from urllib.parse import urlsplit, urlunsplit

from kit.ports import free_port

Direction = Literal["to_server", "to_client"]
DIRECTIONS: tuple[Direction, Direction] = ("to_server", "to_client")
Link = tuple[asyncio.StreamWriter, asyncio.StreamWriter]
_CHUNK_BYTES = 65536
_CHUNKS_UNDER_WAY_MAX = 64
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


@dataclass
class Flow:
    """One direction through the proxy: its faults, and its counters.

    Attributes:
        latency_s: Every chunk arrives so much later, also after others: latency, not less bandwidth.
        deaf: Bytes are read and dropped (black hole).
        endless: The end of a stream is not passed on; bytes before it are.
        cut_after_bytes: Connections are reset once so many more bytes have passed; ``None`` for never.
        seen_bytes: Bytes that were read, over all connections.
        passed_bytes: Bytes that were passed on, over all connections.
    """

    latency_s: float = 0.0
    deaf: bool = False
    endless: bool = False
    cut_after_bytes: int | None = None
    seen_bytes: int = 0
    passed_bytes: int = 0
    open_gate: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.open_gate.set()


class TcpProxy:
    """Listens on a free loopback port and passes bytes to ``host:port``, apart from faults."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._links: set[Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.flows: dict[Direction, Flow] = {name: Flow() for name in DIRECTIONS}
        self.refusing = False
        self._last_word: bytes | None = None
        self.accepted_count = 0
        self.turn_count = 0
        self._client_spoke_last: dict[Link, bool] = {}
        self.port = 0

    async def start(self) -> None:
        """Listen; ``port`` is known afterwards and stays through ``stop`` and ``start``."""
        self.port = self.port or free_port()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def stop(self) -> None:
        """Reset every connection and stop listening. A second call is harmless."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        self.reset()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def rewrite(self, url: str) -> str:
        """Return ``url`` with the proxy's address in place of the server's."""
        parts = urlsplit(url)
        credentials, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{credentials}{at}127.0.0.1:{self.port}"))

    @property
    def connection_count(self) -> int:
        """Connections that are open now."""
        return len(self._links)

    def delay(self, latency_s: float, *directions: Direction) -> None:
        """Let every chunk wait, in the named directions or in both."""
        for flow in self._flows(directions):
            flow.latency_s = latency_s

    def blackhole(self, *directions: Direction) -> None:
        """Drop all bytes, in the named directions or in both; connections stay open."""
        for flow in self._flows(directions):
            flow.deaf = True

    def hide_ends(self, *directions: Direction) -> None:
        """Pass all bytes but not the end of the stream, in the named directions or in both."""
        for flow in self._flows(directions):
            flow.endless = True

    def drop_replies(self) -> None:
        """Pass the client's bytes on and drop the server's."""
        self.blackhole("to_client")

    def drop_replies_after(self, word: bytes) -> None:
        """Do so as soon as a client has sent ``word``; earlier answers are passed on."""
        self._last_word = word

    def hold(self, *directions: Direction) -> None:
        """Keep bytes back, in the named directions or in both, until ``release``."""
        for flow in self._flows(directions):
            flow.open_gate.clear()

    def release(self, *directions: Direction) -> None:
        """Pass the held bytes on, in order, and hold no more."""
        for flow in self._flows(directions):
            flow.open_gate.set()

    def cut_after(self, bytes_count: int, direction: Direction) -> None:
        """Pass exactly ``bytes_count`` more bytes in that direction, then reset the connection."""
        self.flows[direction].cut_after_bytes = bytes_count

    def lead_to(self, host: str, port: int) -> None:
        """Connect later connections to another server; open ones stay, as after a change of DNS."""
        self._target = (host, port)

    def refuse(self) -> None:
        """Reset every new connection at once."""
        self.refusing = True

    def reset(self) -> None:
        """Send RST on both sides of every open connection."""
        for link in list(self._links):
            self._reset_link(link)

    def heal(self) -> None:
        """End all faults; held bytes are passed on, dropped ones are lost."""
        self.refusing = False
        for flow in self.flows.values():
            flow.latency_s, flow.deaf, flow.endless, flow.cut_after_bytes = 0.0, False, False, None
            flow.open_gate.set()

    def _flows(self, directions: tuple[Direction, ...]) -> list[Flow]:
        return [self.flows[name] for name in (directions or DIRECTIONS)]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted_count += 1
        if self.refusing:
            _reset(writer)
            return
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._target)
        except OSError:
            _reset(writer)
            return
        link = (writer, server_writer)
        self._links.add(link)
        pumps = [
            self._spawn(self._pump(reader, server_writer, self.flows["to_server"], link)),
            self._spawn(self._pump(server_reader, writer, self.flows["to_client"], link)),
        ]
        await asyncio.gather(*pumps, return_exceptions=True)
        self._close_link(link)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        flow: Flow,
        link: Link,
    ) -> None:
        loop = asyncio.get_running_loop()
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_CHUNKS_UNDER_WAY_MAX)
        arriving = self._spawn(self._arrive(under_way, writer, flow, link))
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                flow.seen_bytes += len(data)
                self._count_turn(link, from_client=flow is self.flows["to_server"])
                if self._last_word is not None and flow is self.flows["to_server"] and self._last_word in data:
                    self.drop_replies()
                await under_way.put((loop.time() + flow.latency_s, data))
        await under_way.put((loop.time() + flow.latency_s, b""))
        await arriving

    def _count_turn(self, link: Link, *, from_client: bool) -> None:
        """Count what a client sends after an answer, or at first: it waits for a round trip."""
        if from_client and not self._client_spoke_last.get(link, False):
            self.turn_count += 1
        self._client_spoke_last[link] = from_client

    async def _arrive(
        self, under_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter, flow: Flow, link: Link
    ) -> None:
        """Pass on the bytes under way, each chunk at its time, in order, and the end last."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while True:
                at, data = await under_way.get()
                if (wait_s := at - loop.time()) > 0:
                    await asyncio.sleep(wait_s)
                await flow.open_gate.wait()
                if not data:
                    break
                await self._forward(data, writer, flow, link)
            if writer.can_write_eof() and not (flow.deaf or flow.endless):
                writer.write_eof()
            return
        while (await under_way.get())[1]:
            pass  # the other side has closed: later bytes are dropped

    async def _forward(
        self,
        data: bytes,
        writer: asyncio.StreamWriter,
        flow: Flow,
        link: Link,
    ) -> None:
        if flow.deaf:
            return
        allowed = data if flow.cut_after_bytes is None else data[: flow.cut_after_bytes]
        writer.write(allowed)
        flow.passed_bytes += len(allowed)
        await writer.drain()
        if flow.cut_after_bytes is None:
            return
        flow.cut_after_bytes -= len(allowed)
        if flow.cut_after_bytes == 0:
            flow.cut_after_bytes = None
            await self._cut(writer, link)

    async def _cut(self, writer: asyncio.StreamWriter, link: Link) -> None:
        """Close orderly where bytes must still arrive, and reset the other side."""
        writer.close()
        other = link[0] if writer is link[1] else link[1]
        _reset(other)

    def _spawn(self, pump: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(pump)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _reset_link(self, link: Link) -> None:
        for writer in link:
            _reset(writer)
        self._links.discard(link)

    def _close_link(self, link: Link) -> None:
        for writer in link:
            writer.close()
        self._links.discard(link)
        self._client_spoke_last.pop(link, None)


def _reset(writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    if raw is not None:
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
    writer.transport.abort()
