"""Checks of one listener, each of one guard; they fail when the guard is missing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from kit.waiting import eventually_async
from tickwright.runtime.admission import ListenerLimits
from tickwright.runtime.listener import Listener, bind

LIMITS = ListenerLimits(head_s=0.3, idle_s=0.3, unread_s=0.3, linger_s=0.3, connections=40, per_address=20)
PATIENT = replace(LIMITS, head_s=600, idle_s=600, unread_s=600, linger_s=600)
LARGE = 16_000_000
PROBE = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
GONE_S = 5.0


class Ground:
    """An application that answers ``/healthz``, much, or later."""

    def __init__(self) -> None:
        self.later = asyncio.Event()
        self.server: Listener | None = None
        self.port = 0

    async def __call__(self, scope: Any, _receive: Any, send: Any) -> None:
        """Answer."""
        if scope["path"] == "/later":
            await self.later.wait()
        body = b"x" * LARGE if scope["path"] == "/large" else b"ok"
        length = str(len(body)).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        await send({"type": "http.response.body", "body": body})

    @property
    def holds(self) -> int:
        """How many connections are open."""
        return len(self.server.server_state.connections) if self.server else 0

    async def sends(self, what: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect and send."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1024)
        writer.write(what)
        return reader, writer


@asynccontextmanager
async def listening(limits: ListenerLimits) -> AsyncIterator[Ground]:
    """Run a listener."""
    ground, socket = Ground(), bind("127.0.0.1", 0)
    ground.port = socket.getsockname()[1]
    ground.server = Listener(ground, limits=limits, drain_s=1)
    task = asyncio.create_task(ground.server.serve(sockets=[socket]))
    try:
        yield ground
    finally:
        ground.later.set()
        ground.server.should_exit = True
        await task


async def _ends(sent: bytes, then: bytes = b"", *, reads: bool = True) -> None:
    async with listening(LIMITS) as ground:
        reader, writer = await ground.sends(sent)
        if then:
            await reader.readline()
            writer.write(then)
        if not reads:
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket's
        await eventually_async(lambda: ground.holds == 1, what="it is there")
        await eventually_async(lambda: ground.holds == 0, GONE_S, what="it was closed")
        writer.transport.abort()


async def check_the_unread_body() -> None:
    """A byte of a body, after the answer that did not wait for it, keeps nothing open."""
    await _ends(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n", b"x")


async def check_the_silent() -> None:
    """A connection that sends nothing ends."""
    await _ends(b"")


async def check_reading() -> None:
    """A connection whose client does not read ends."""
    await _ends(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n", reads=False)


async def check_the_flood() -> None:
    """Connections that send nothing displace themselves, so another request is answered."""
    async with listening(PATIENT) as ground:
        held = [await ground.sends(b"") for _ in range(100)]
        reader, writer = await ground.sends(b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b" 200 " in await asyncio.wait_for(reader.readline(), GONE_S)
        assert ground.holds <= PATIENT.per_address
        for _, one in [*held, (reader, writer)]:
            one.transport.abort()


async def check_the_busy() -> None:
    """A request under way is never displaced."""
    async with listening(PATIENT) as ground:
        busy = [await ground.sends(b"GET /later HTTP/1.1\r\nhost: x\r\n\r\n") for _ in range(PATIENT.per_address)]
        server = ground.server
        assert server is not None
        await eventually_async(lambda: len(server.server_state.tasks) == len(busy), what="all are under way")
        for _ in range(10):
            reader, writer = await ground.sends(PROBE)
            assert b" 200 " in await asyncio.wait_for(reader.readline(), GONE_S)
            writer.transport.abort()
        ground.later.set()
        for reader, writer in busy:
            assert b" 200 " in await asyncio.wait_for(reader.readline(), GONE_S)
            writer.transport.abort()


async def check_the_name() -> None:
    """A name of somebody else is refused."""
    async with listening(PATIENT) as ground:
        reader, writer = await ground.sends(b"GET /healthz HTTP/1.1\r\nhost: evil.example\r\n\r\n")
        assert b" 421 " in await asyncio.wait_for(reader.readline(), GONE_S)
        writer.transport.abort()
