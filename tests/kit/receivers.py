"""Counterparts of brokers: receivers of callbacks, gateways of pushes, and servers that misbehave.

All are real servers on free loopback ports; ``TARGETS`` is the allow list by which brokers reach them.
"""

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ssl import SSLContext
from types import TracebackType
from typing import Any, Literal, Self

from aiohttp import WSMsgType, web
from aiohttp.abc import AbstractResolver, ResolveResult

from kit.ports import free_port
from tickwright.domain.addresses import AllowList

TARGETS = AllowList.parse("127.0.0.1")
NOBODY = AllowList()


@dataclass(frozen=True)
class Received:
    """One message as it arrived."""

    id: str
    body: bytes
    headers: Mapping[str, str]


class HttpReceiver:
    """A receiver of callbacks; it answers with ``status``, and not at all while ``silent``.

    Attributes:
        received: Every request whose body was read, in order.
        status: The status of its answers.
        headers: Headers of its answers.
    """

    def __init__(self, tls: SSLContext | None = None) -> None:
        self.received: list[Received] = []
        self.status = 200
        self.body = b"ok"
        self.headers: dict[str, str] = {}
        self._tls = tls
        self._talking = asyncio.Event()
        self._talking.set()
        self._runner: web.AppRunner | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """The URL for callbacks."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}/callback"

    def be_silent(self) -> None:
        """Read requests and never answer."""
        self._talking.clear()

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/callback", self._receive)
        self._runner, self.port = await _serve(app, self._tls)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Close the port; a second call is harmless."""
        self._talking.set()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _receive(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.received.append(Received(request.headers.get("webhook-id", ""), body, dict(request.headers)))
        await self._talking.wait()
        return web.Response(status=self.status, body=self.body, headers=self.headers)


Mood = Literal["ack", "refuse", "silent", "hang up", "answer another id"]


class Gateway:
    """A WebSocket gateway that acknowledges, refuses, is silent or hangs up.

    Attributes:
        received: Every push frame, in order, with the bytes of its payload.
        connections: Number of connections so far.
    """

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.frames: list[str] = []
        self.connections = 0
        self.mood: Mood = "ack"
        self.refusal: dict[str, Any] = {"error": "inbox is full", "retry_after": 5}
        self._runner: web.AppRunner | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """The URL for pushes."""
        return f"ws://127.0.0.1:{self.port}/push"

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/push", self._receive)
        self._runner, self.port = await _serve(app, None)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _receive(self, request: web.Request) -> web.WebSocketResponse:
        self.connections += 1
        connection = web.WebSocketResponse(timeout=0.1)
        await connection.prepare(request)
        async for frame in connection:
            if frame.type is not WSMsgType.TEXT:
                break
            await self._answer(connection, frame.data)
        return connection

    async def _answer(self, connection: web.WebSocketResponse, frame: str) -> None:
        push = json.loads(frame)
        payload = frame[frame.index('"payload":') + 10 : -1].encode()
        self.frames.append(frame)
        self.received.append(Received(push["webhook-id"], payload, push["headers"]))
        match self.mood:
            case "ack":
                await connection.send_json({"webhook-id": push["webhook-id"], "ack": True})
            case "refuse":
                await connection.send_json({"webhook-id": push["webhook-id"], "ack": False, **self.refusal})
            case "answer another id":
                await connection.send_str("not even JSON")
                await connection.send_json({"webhook-id": "somebody_else", "ack": True})
            case "hang up":
                await connection.close()
            case "silent":
                pass


Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class RawServer:
    """Runs a script per connection, to misbehave in any way.

    Attributes:
        connections: Number of connections so far.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self._server: asyncio.Server | None = None
        self._running: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.port = 0

    @property
    def url(self) -> str:
        """The URL for callbacks."""
        return f"http://127.0.0.1:{self.port}/callback"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", free_port())
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._script(reader, writer)
        finally:
            self._running.discard(task)
            writer.close()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """Read one request with its body and return all of it."""
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return head + await reader.readexactly(int(value))
    return head


def reset(writer: asyncio.StreamWriter) -> None:
    """End the connection with a RST instead of a FIN."""
    made: socket.socket = writer.get_extra_info("socket")
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class ScriptedResolver(AbstractResolver):
    """A DNS resolver that returns the next of its answers at each request, the last one repeatedly.

    Attributes:
        asked: The requested names.
    """

    def __init__(self, *answers: Sequence[str] | OSError) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return or raise the next answer."""
        self.asked.append(host)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, OSError):
            raise answer
        return [
            ResolveResult(hostname=host, host=address, port=port, family=_family(address), proto=0, flags=0)
            for address in answer
        ]

    async def close(self) -> None:
        """Nothing to close."""


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


async def _serve(app: web.Application, tls: SSLContext | None) -> tuple[web.AppRunner, int]:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", free_port(), ssl_context=tls)
    await site.start()
    port: int = runner.addresses[0][1]
    return runner, port
