"""Checks of one listener, each of one guard; they fail when the guard is missing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from kit.waiting import eventually_async
from tickwright.rest.admission import ListenerLimits
from tickwright.rest.listener import FIELDS_MAX, HEAD_BYTES_MAX, PIPELINED_MAX, BoundedProtocol, Listener, bind

LIMITS = ListenerLimits(head_s=0.3, idle_s=0.3, unread_s=0.3, linger_s=0.3, connections=40, per_address=20)
PATIENT = replace(LIMITS, head_s=600, idle_s=600, unread_s=600, linger_s=600)
LARGE = 16_000_000
PROBE = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
GONE_S = 5.0
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
JAVA = b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk\r\nUpgrade: h2c\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"


class Ground:
    """An application that answers ``/healthz``, with many bytes, later, in a stream, or after reading the body.

    Attributes:
        seen: Path, body and number of fields of each request that was read.
        streamed: The bytes of bodies that arrived after the begin of a stream.
        begun: How many requests the application received.
        gone: Set when a stream ends with its client.
    """

    def __init__(self) -> None:
        self.later, self.gone = asyncio.Event(), asyncio.Event()
        self.seen: list[tuple[str, bytes, int]] = []
        self.streamed = self.begun = 0
        self.server: Listener | None = None
        self.port = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer."""
        self.begun += 1
        if scope["path"] == "/stream":
            await self._stream(receive, send)
            return
        if scope["path"] == "/read":
            read = b""
            while (message := await receive())["type"] == "http.request":
                read += message["body"]
                if not message["more_body"]:
                    break
            self.seen.append((scope["path"], read, len(scope["headers"])))
        if scope["path"] == "/smuggled":
            self.seen.append((scope["path"], b"", 0))
        if scope["path"] == "/later":
            await self.later.wait()
        body = b"x" * LARGE if scope["path"] == "/large" else b"ok"
        length = str(len(body)).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        await send({"type": "http.response.body", "body": body})

    async def _stream(self, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        while (message := await receive())["type"] == "http.request":
            self.streamed += len(message["body"])
        self.gone.set()

    async def connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, BoundedProtocol]:
        """Connect, and return the server's protocol, too: bytes that are passed to it are segments of known size."""
        before = set(self.server.server_state.connections) if self.server else set()
        reader, writer = await self.sends(b"")
        await eventually_async(
            lambda: self.server and set(self.server.server_state.connections) - before, what="it is there"
        )
        assert self.server is not None
        protocol: Any = next(iter(self.server.server_state.connections - before))
        return reader, writer, protocol

    @property
    def holds(self) -> int:
        """Return how many connections are open."""
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
    """A byte of a body, after an answer that did not wait for it, keeps no connection open."""
    await _ends(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n", b"x")


async def check_the_silent() -> None:
    """A connection that sends nothing ends."""
    await _ends(b"")


async def check_reading() -> None:
    """A connection whose client does not read ends."""
    await _ends(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n", reads=False)


async def check_the_unread() -> None:
    """Of many clients that do not read some are disconnected, so that the unread bytes of all stay below the bound."""
    limits = replace(PATIENT, unread_bytes=2 * LARGE)
    async with listening(limits) as ground:
        held = [await ground.sends(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n") for _ in range(8)]
        server = ground.server
        assert server is not None

        def unread() -> int:
            found: list[Any] = list(server.server_state.connections)
            return sum(connection.transport.get_write_buffer_size() for connection in found)

        await eventually_async(lambda: ground.begun == len(held), what="all are answered")
        await eventually_async(lambda: 0 < unread() <= limits.unread_bytes, GONE_S, what="no more is unread")
        assert ground.holds >= 2
        for _, one in held:
            one.transport.abort()


async def check_the_next() -> None:
    """While an answer is unread no further one is made for its connection, however the request arrived."""
    async with listening(PATIENT) as ground:
        reader, writer, protocol = await ground.connected()
        protocol.data_received(b"GET /large HTTP/1.1\r\n\r\n" * 2)
        await eventually_async(lambda: protocol.flow.write_paused, what="the first is unread")
        other, others = await ground.sends(PROBE)
        assert b" 200 " in await asyncio.wait_for(other.readline(), GONE_S)
        assert ground.begun == 2
        for _ in range(2):
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), GONE_S)
            await asyncio.wait_for(reader.readexactly(LARGE), GONE_S)
        protocol.data_received(b"GET /large HTTP/1.1\r\n\r\n")
        await eventually_async(lambda: protocol.flow.write_paused, what="the third is unread")
        protocol.data_received(PROBE)
        assert b" 200 " in await _probed(other, others)
        assert ground.begun == 5
        writer.transport.abort()
        others.transport.abort()


async def _probed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    await asyncio.wait_for(reader.readuntil(b"ok"), GONE_S)
    writer.write(PROBE)
    return await asyncio.wait_for(reader.readline(), GONE_S)


async def check_the_flood() -> None:
    """Connections that send nothing displace each other, so another request is answered."""
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
    """A foreign host name is refused."""
    async with listening(PATIENT) as ground:
        reader, writer = await ground.sends(b"GET /healthz HTTP/1.1\r\nhost: evil.example\r\n\r\n")
        assert b" 421 " in await asyncio.wait_for(reader.readline(), GONE_S)
        writer.transport.abort()


async def check_upgrades() -> None:
    """Wherever a request with an upgrade is cut, its body is read, is no request, and the next request is answered."""
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED)
    for rest in (b"content-length: %d\r\n\r\n%b" % (len(SMUGGLED), SMUGGLED), CHUNKED + chunks):
        await _is_read(b"POST /read HTTP/1.1\r\nhost: x\r\n" + JAVA + rest)


async def _is_read(sent: bytes) -> None:
    async with listening(PATIENT) as ground:
        for cut in range(1, len(sent)):
            reader, writer, protocol = await ground.connected()
            protocol.data_received(sent[:cut])
            await asyncio.sleep(0)
            protocol.data_received(sent[cut:] + PROBE)
            for _ in range(2):
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), GONE_S)
                assert head.startswith(b"HTTP/1.1 200"), (cut, head)
                assert b"connection: close" not in head, cut
                await reader.readexactly(2)
            assert ground.seen == [("/read", SMUGGLED, 4)], (cut, ground.seen)
            ground.seen.clear()
            writer.transport.abort()
            await eventually_async(lambda: ground.holds == 0, GONE_S, what="it has ended")


async def check_trailers() -> None:
    """Trailers are no fields of their request, and neither they nor chunks without bytes may be endless."""
    async with listening(PATIENT) as ground:
        reader, writer = await ground.sends(b"POST /read HTTP/1.1\r\n" + CHUNKED + b"1\r\nx\r\n0\r\nx-a: b\r\n\r\n")
        assert b" 200 " in await asyncio.wait_for(reader.readline(), GONE_S)
        assert ground.seen == [("/read", b"x", 1)]
        writer.transport.abort()
    for begins, piece in [(b"0\r\n", b"a: b\r\n"), (b"0\r\nx: ", b"a"), (b"1;x=", b"a")]:
        async with listening(PATIENT) as ground:
            reader, writer, protocol = await ground.connected()
            protocol.data_received(b"POST /read HTTP/1.1\r\n" + CHUNKED + begins)
            for _ in range(40):
                protocol.data_received(piece * (1_000 // len(piece)))
            assert b" 431 " in await asyncio.wait_for(reader.readline(), GONE_S)
            await asyncio.wait_for(reader.read(), GONE_S)
            assert ground.seen == [("/read", b"", 1)]  # the application got its client's disconnect
            writer.transport.abort()


async def check_the_pipeline() -> None:
    """Of thousands of requests in one segment a few wait; they are answered, and the connection closes."""
    async with listening(PATIENT) as ground:
        reader, writer, protocol = await ground.connected()
        protocol.data_received(b"GET /later HTTP/1.1\r\n\r\n" + b"GET / HTTP/1.1\r\n\r\n" * 14_000)
        assert len(protocol.pipeline) == PIPELINED_MAX
        protocol.data_received(b"GET / HTTP/1.1\r\n\r\n")
        assert len(protocol.pipeline) == PIPELINED_MAX
        ground.later.set()
        answers = await asyncio.wait_for(reader.read(), GONE_S)
        assert answers.count(b"HTTP/1.1 200") == 1 + PIPELINED_MAX
        assert answers.count(b"connection: close") == 1
        writer.transport.abort()


async def check_the_fields() -> None:
    """A head or trailers in one segment are bounded, too; after too large ones nothing is read."""
    many, long = b"a: b\r\n" * (FIELDS_MAX + 1), b"a: " + b"b" * HEAD_BYTES_MAX + b"\r\n"
    target = b"GET /" + b"a" * HEAD_BYTES_MAX + b" HTTP/1.1\r\n"
    trailers = b"POST /read HTTP/1.1\r\n" + CHUNKED + b"0\r\n"
    async with listening(PATIENT) as ground:
        for sent in (target, *(begins + much for begins in (b"GET / HTTP/1.1\r\n", trailers) for much in (many, long))):
            reader, writer, protocol = await ground.connected()
            protocol.data_received(sent + b"\r\n")
            assert b" 431 " in await asyncio.wait_for(reader.readline(), GONE_S)
            writer.transport.abort()
        ground.seen.clear()
        reader, writer, protocol = await ground.connected()
        for sent in (b"GET /later HTTP/1.1\r\n\r\n", b"GET /smuggled HTTP/1.1\r\na: " + b" " * 40_000, b"\r\n\r\n"):
            protocol.data_received(sent)
        assert not protocol.pipeline
        ground.later.set()
        assert (await asyncio.wait_for(reader.read(), GONE_S)).count(b"HTTP/1.1 ") == 1
        assert ground.seen == []
        writer.transport.abort()


async def check_the_end_of_parsing() -> None:
    """After the begin of an answer nothing of the request is parsed."""
    async with listening(PATIENT) as ground:
        reader, writer, protocol = await ground.connected()
        protocol.data_received(b"POST /stream HTTP/1.1\r\n" + CHUNKED)
        assert b"connection: close" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), GONE_S)
        for _ in range(10):
            protocol.data_received(b"1\r\nx\r\n")
            await asyncio.sleep(0)
        writer.transport.abort()
        await asyncio.wait_for(ground.gone.wait(), GONE_S)
        assert ground.streamed == 0


async def check_the_end_of_a_stream() -> None:
    """A stream ends with its client, also if another request of that client waits after it."""
    async with listening(PATIENT) as ground:
        reader, writer, protocol = await ground.connected()
        protocol.data_received(b"GET /stream HTTP/1.1\r\n\r\n" + PROBE)
        await asyncio.wait_for(reader.readuntil(b"first"), GONE_S)
        protocol.transport.abort()
        await asyncio.wait_for(ground.gone.wait(), GONE_S)
        writer.transport.abort()
