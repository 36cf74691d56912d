"""Every listener against clients that are slow, silent or many: their connections end, and others are answered."""

import asyncio
import platform
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from kit.api import RunningApi, running_api
from kit.waiting import eventually_async
from tickwright.api.context import ApiLimits
from tickwright.demo.receiver import Receiver, server_of
from tickwright.domain.admission import parse_hosts, parse_networks
from tickwright.process.health import HealthServer
from tickwright.rest.admission import SPARES_MAX, UNREAD_UNCOUNTED, ListenerLimits
from tickwright.rest.listener import PIPELINED_MAX, Listener, bind

SHORT = ListenerLimits(head_s=0.4, idle_s=0.4, unread_s=0.4, linger_s=0.4, connections=64, per_address=24)
LONG = replace(SHORT, head_s=600, idle_s=600, unread_s=600, linger_s=600)
PROBE = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
HEAD = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nx-slow: "
EARLY = b"POST /v1/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 10\r\n\r\n"
CHUNKS = EARLY.replace(b"content-length: 10", b"transfer-encoding: chunked")
ANSWER = 16_000_000


def abort(writer: asyncio.StreamWriter) -> None:
    """Close at once; the connection stays with its other holder."""
    writer.transport.abort()


@dataclass(frozen=True)
class Listening:
    """A listener under test; ``holds`` returns the number of its connections."""

    port: int
    holds: Callable[[], int]

    async def opened(self, *, address: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect from an address of this machine."""
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0), limit=2**16)

    async def healthz(self, address: str) -> bytes:
        """Request ``/healthz`` from an address, and return the first line."""
        reader, writer = await self.opened(address=address)
        writer.write(PROBE)
        line = await reader.readline()
        writer.close()
        return line


@asynccontextmanager
async def api(url: str, limits: ListenerLimits) -> AsyncIterator[Listening]:
    """The API's listener, with a page that answers large_answer."""
    async with running_api(url, listener=limits, page=large_answer) as running:
        yield Listening(running.port, lambda: len(running.listener.server_state.connections))


@asynccontextmanager
async def probes(_url: str, limits: ListenerLimits) -> AsyncIterator[Listening]:
    """The listener of the probes, with many metrics."""

    async def database() -> bool:
        return True

    async def metrics() -> bytes:
        return b"x" * ANSWER

    server = HealthServer("127.0.0.1:0", states=list, database=database, metrics=metrics, limits=limits)
    task = asyncio.create_task(server.run())
    await eventually_async(lambda: server.port)
    yield Listening(server.port or 0, lambda: server.connections)
    await server.stop()
    await task


LISTENERS = {"api": api, "probes": probes}
LARGE = {"api": b"/page", "probes": b"/metrics"}


async def large_answer(_scope: Any, _receive: Any, send: Any) -> None:
    """Answer with many bytes."""
    length = str(ANSWER).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": b"x" * ANSWER})


@pytest.fixture(params=LISTENERS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each listener, one after the other."""
    return str(request.param)


async def dripping(writer: asyncio.StreamWriter) -> None:
    """Send a byte repeatedly."""
    with suppress(ConnectionError):
        while not writer.is_closing():
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.05)


SLOW = {
    "nothing is sent": (b"", False),
    "a head that does not go on": (HEAD, False),
    "a head byte by byte": (HEAD, True),
    "idle after an answer": (PROBE, False),
    "an empty line after an answer": (PROBE + b"\r\n", False),
    "a head that begins after an answer": (PROBE + HEAD, True),
    "a body that never comes, after its answer": (EARLY, False),
    "a body byte by byte, after its answer": (EARLY.replace(b"10", b"100000"), True),
    "a body in chunks without end": (CHUNKS + b"1\r\nx\r\n", False),
}


@pytest.mark.matrix
@pytest.mark.parametrize("sent", SLOW)
async def test_a_connection_whose_client_sends_nothing_ends(database_url: str, kind: str, sent: str) -> None:
    """Whatever arrives in between: no byte moves a deadline; meanwhile another address is answered."""
    begins, drips = SLOW[sent]
    async with LISTENERS[kind](database_url, SHORT) as place:
        _, writer = await place.opened()
        writer.write(begins)
        drip = asyncio.create_task(dripping(writer)) if drips else None
        assert b" 200 " in await place.healthz("127.0.0.2")
        await eventually_async(lambda: place.holds() == 0, 30, what="it was closed")
        if drip is not None:
            drip.cancel()
        writer.transport.abort()


@pytest.mark.parametrize("then", [b"", b"connection: close\r\n"])
async def test_a_client_that_does_not_read_its_answer_is_cut(database_url: str, kind: str, then: bytes) -> None:
    """Also one that requested the end of the connection, which otherwise would wait for the last byte."""
    async with LISTENERS[kind](database_url, SHORT) as place:
        unread_client = unread_socket(place.port)
        unread_client.sendall(b"GET " + LARGE[kind] + b" HTTP/1.1\r\nhost: 127.0.0.1\r\n" + then + b"\r\n")
        await eventually_async(lambda: place.holds() == 1, what="it is there")
        await eventually_async(lambda: place.holds() == 0, 30, what="it was cut")
        assert b" 200 " in await place.healthz("127.0.0.2")
        unread_client.close()


def unread_socket(port: int, address: str = "127.0.0.1") -> socket.socket:
    """A connection with small buffers that is never read."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.bind((address, 0))
    made.connect(("127.0.0.1", port))
    return made


async def test_clients_that_do_not_read_share_a_bound(database_url: str) -> None:
    """However many addresses they have and requests they send; meanwhile others read whole answers."""
    limits = replace(LONG, connections=256, unread_bytes=1_000_000)
    request = b"GET /v1/openapi.json HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    async with running_api(database_url, listener=limits) as running:
        for listening in running.listener.servers[0].sockets:  # and those that it accepts: the kernel buffers little
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
        document = (await running.stranger.get("/v1/openapi.json")).body
        connections: Any = running.listener.server_state.connections
        unread_client: list[socket.socket] = []
        for number in range(64):
            unread_client.append(unread_socket(running.port, f"127.0.0.{10 + number % 8}"))
            unread_client[-1].sendall(request * PIPELINED_MAX)
            if number % 8 == 7:
                assert (await running.stranger.get("/healthz")).status == 200
                assert (await running.stranger.get("/v1/openapi.json")).body == document
                assert (await running.viewer.get("/v1/session")).status == 200
                unread = sum(connection.transport.get_write_buffer_size() for connection in connections)
                assert unread <= limits.unread_bytes + UNREAD_UNCOUNTED * len(connections)
        await eventually_async(lambda: len(connections) < len(unread_client) / 2, what="most are closed")
        assert 0 < running.listener.admission.unread_bytes <= limits.unread_bytes
        for one in unread_client:
            one.close()


async def test_a_listener_knows_which_answers_have_a_key(database_url: str) -> None:
    """Also below a path prefix: of unread answers those without a key are closed first."""
    async with running_api(database_url, path_prefix="/under", page=large_answer) as running:
        connections: Any = running.listener.server_state.connections
        assert (await running.stranger.get("/under/v1/openapi.json")).status == 200
        assert not any(connection.has_key for connection in connections)
        assert (await running.viewer.get("/under/v1/session")).status == 200
        assert any(connection.has_key for connection in connections)


@pytest.mark.matrix
async def test_a_client_that_reads_slowly_gets_everything(database_url: str, kind: str) -> None:
    """Longer than the deadline: an answer is not cut while the client reads at the lowest accepted rate."""
    async with LISTENERS[kind](database_url, replace(SHORT, unread_s=1.5)) as place:
        reader, writer = await place.opened()
        writer.write(b"GET " + LARGE[kind] + b" HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        read = 0
        while read < ANSWER:
            read += len(await reader.readexactly(min(1_000_000, ANSWER - read)))
            await asyncio.sleep(0.15)
        assert read == ANSWER
        writer.close()


@pytest.mark.parametrize("body", [b"content-length: 10\r\n\r\n", b"transfer-encoding: chunked\r\n\r\n"])
async def test_an_answer_to_an_unread_body_closes_the_connection(database_url: str, kind: str, body: bytes) -> None:
    """And says so; later bytes of the client do not destroy the answer."""
    async with LISTENERS[kind](database_url, SHORT) as place:
        reader, writer = await place.opened()
        writer.write(b"POST /v1/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\n" + body)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert b"connection: close" in head
        length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
        writer.write(b"x")
        assert len(await reader.read()) == length
        writer.close()


async def test_a_request_that_was_read_leaves_its_connection_open(database_url: str, kind: str) -> None:
    """Keep-alive works, for requests one after the other and for those sent together."""
    async with LISTENERS[kind](database_url, LONG) as place:
        reader, writer = await place.opened()
        body = EARLY + b"0123456789"
        for sent in (PROBE, body, PROBE + body + PROBE):
            writer.write(sent)
            for _ in range(sent.count(b"HTTP/1.1")):
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                assert b"connection: close" not in head
                await reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r\n")[0]))
        assert place.holds() == 1
        writer.close()


ENDS_S = 30
BARE = b"GET /healthz HTTP/1.1\r\n\r\n"
BODIES = {
    "with a length": b"content-length: %d\r\n\r\n%b" % (len(BARE), BARE),
    "in chunks": b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BARE), BARE),
}
UPGRADES = {
    "none": b"",
    "any": b"connection: upgrade\r\nupgrade: anything\r\n",
    "as Java sends it": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIA\r\n",
    "in several fields": b"CONNECTION: a, b\r\nuPGRADE: c\r\nupgrade: d\r\nconnection:upgrade\r\n",
    "of a proxy": b"Proxy-Connection: Upgrade\r\nUpgrade: websocket\r\n",
}


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Return what arrives until the connection ends."""
    return await asyncio.wait_for(reader.read(), ENDS_S)


@pytest.mark.parametrize("upgrade", UPGRADES)
@pytest.mark.parametrize("body", BODIES)
async def test_a_body_is_never_the_next_request(database_url: str, kind: str, body: str, upgrade: str) -> None:
    """For any requested upgrade, and with the body in any segments."""
    async with LISTENERS[kind](database_url, LONG) as place:
        for apart in (False, True):
            reader, writer = await place.opened()
            head, ends, rest = (BARE[:-2] + UPGRADES[upgrade] + BODIES[body]).partition(b"\r\n\r\n")
            writer.write(head + ends + (b"" if apart else rest + BARE))
            assert b" 200 " in await asyncio.wait_for(reader.readline(), ENDS_S)
            if apart:
                writer.write(rest + BARE)
                assert b"HTTP/1.1" not in await ended(reader)
            else:
                await asyncio.wait_for(reader.readuntil(b"HTTP/1.1 200 "), ENDS_S)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(reader.readuntil(b"HTTP/1.1 "), 0.1)
            writer.close()


@pytest.mark.parametrize("upgrade", UPGRADES)
@pytest.mark.parametrize("chunks", [False, True])
async def test_a_job_is_scheduled_whatever_upgrade_is_requested(database_url: str, chunks: bool, upgrade: str) -> None:
    """The fast path reads the body, in one piece or byte by byte, and the connection serves the next request."""
    text = b'{"task_type":"noop","payload":{}}'
    lengths = b"transfer-encoding: chunked" if chunks else b"content-length: %d" % len(text)
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(text), text) if chunks else text
    async with running_api(database_url, listener=LONG) as running:
        head = b"POST /v1/jobs HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\n" % str(running.operator.key).encode()
        head += UPGRADES[upgrade] + b"content-type: application/json\r\n" + lengths + b"\r\n\r\n"
        for pieces in ([head + body], [head, body], [head, *(bytes([byte]) for byte in body)]):
            reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            answer = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), ENDS_S)).lower()
            assert b" 201 " in answer
            await reader.readexactly(int(answer.partition(b"content-length: ")[2].split(b"\r\n")[0]))
            writer.write(PROBE)
            assert b" 200 " in await asyncio.wait_for(reader.readline(), ENDS_S)
            writer.close()


async def test_connect_is_refused_and_later_bytes_are_not_read(database_url: str, kind: str) -> None:
    """After it another protocol would begin, as far as the parser knows."""
    async with LISTENERS[kind](database_url, LONG) as place:
        for target in (b"127.0.0.1:80", b"/healthz"):
            reader, writer = await place.opened()
            writer.write(b"CONNECT " + target + b" HTTP/1.1\r\nhost: x\r\n\r\n")
            answer = await reader.readline()
            writer.write(BARE)
            answer += await ended(reader)
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert b"connect_not_allowed" in answer
            assert answer.count(b"HTTP/1.1") == 1
            writer.close()


async def test_of_thousands_of_requests_in_one_segment_a_few_are_answered(database_url: str, kind: str) -> None:
    """The first and those that may wait for its answer; then the connection closes."""
    async with LISTENERS[kind](database_url, LONG) as place:
        reader, writer = await place.opened()
        writer.write(BARE * 5_000)
        assert (await ended(reader)).count(b"HTTP/1.1 200") == 1 + PIPELINED_MAX
        writer.close()


async def test_no_more_jobs_are_scheduled_than_may_wait(database_url: str) -> None:
    """An unanswered request has no effect, so it can be sent again."""
    text = b'{"task_type":"noop","payload":{}}'
    async with running_api(database_url, listener=LONG) as running:
        head = b"POST /v1/jobs HTTP/1.1\r\nauthorization: Bearer %b\r\n" % str(running.operator.key).encode()
        head += b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(text)
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write((head + text) * 50)
        assert (await ended(reader)).count(b"HTTP/1.1 201") == 1 + PIPELINED_MAX
        writer.close()
        assert await running.pool.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks") == 1 + PIPELINED_MAX


@pytest.mark.parametrize("path", [b"/v1/session", b"/v1/jobs", b"/v1/stream"])
async def test_endless_trailers_are_refused(database_url: str, path: bytes) -> None:
    """Many short ones, and a long one: they are not kept, and after 32 KiB the connection closes."""
    async with running_api(database_url, listener=LONG) as running:
        for begins, piece in [(b"0\r\n", b"a: b\r\n" * 100), (b"0\r\na: ", b"b" * 500)]:
            reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
            method = b"GET " if path == b"/v1/stream" else b"POST "
            head = method + path + b" HTTP/1.1\r\nauthorization: Bearer " + str(running.operator.key).encode()
            head += b"\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
            writer.write(head + begins)
            sending = asyncio.create_task(repeated(writer, piece))
            answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), ENDS_S)
            if path != b"/v1/stream":  # whose answer does not wait for a body: after its beginning nothing is parsed
                assert b" 431 " in answer
                assert b"head_too_large" in await ended(reader)
            assert b"connection: close" in answer
            sending.cancel()
            writer.transport.abort()
        await eventually_async(lambda: running.overview.streams == 0, 30, what="it has ended")


async def repeated(writer: asyncio.StreamWriter, piece: bytes) -> None:
    """Send a piece repeatedly."""
    with suppress(ConnectionError):
        while not writer.is_closing():
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)


async def test_bytes_that_are_no_http_do_not_disturb_the_answer_before_them(database_url: str, kind: str) -> None:
    """The answer arrives whole and alone, and the connection closes; such bytes alone are answered with 400."""
    async with LISTENERS[kind](database_url, LONG) as place:
        for sent, status in [(BARE + b"what\r\n\r\n", b"200"), (b"what\r\n\r\n", b"400")]:
            reader, writer = await place.opened()
            writer.write(sent)
            answer = await ended(reader)
            assert answer.startswith(b"HTTP/1.1 " + status)
            assert answer.count(b"HTTP/1.1 ") == 1
            writer.close()


@pytest.mark.parametrize("sent", [b"", HEAD, PROBE, EARLY])
async def test_many_connections_from_one_address_delay_no_others(database_url: str, kind: str, sent: bytes) -> None:
    """It has its share and displaces its own connections; another address, and this one, are always answered."""
    async with LISTENERS[kind](database_url, LONG) as place, AsyncExitStack() as stack:
        for number in range(200):
            _, writer = await place.opened()
            stack.callback(abort, writer)
            writer.write(sent)
            if number % 20 == 0:
                assert b" 200 " in await place.healthz("127.0.0.2")
                assert b" 200 " in await place.healthz("127.0.0.1")
        await eventually_async(lambda: place.holds() <= LONG.per_address + 1, what="one address has its share")


async def test_many_connections_from_many_addresses_do_not_delay_health(database_url: str, kind: str) -> None:
    """At the total cap the address with the most connections loses one."""
    async with LISTENERS[kind](database_url, LONG) as place, AsyncExitStack() as stack:
        reader, kept = await place.opened(address="127.0.1.1")
        for number in range(200):
            _, writer = await place.opened(address=f"127.0.0.{10 + number % 10}")
            stack.callback(abort, writer)
        await eventually_async(lambda: place.holds() <= LONG.connections, what="all have their share")
        assert b" 200 " in await place.healthz("127.0.0.2")
        kept.write(PROBE)
        assert b" 200 " in await reader.readline()
        kept.close()


async def test_while_all_connections_are_busy_only_probes_are_answered(database_url: str) -> None:
    """Requests under way are never displaced: beyond the cap health is answered, and all others are refused."""
    free = asyncio.Event()

    async def slow(scope: Any, _receive: Any, send: Any) -> None:
        if scope["path"] != "/healthz":
            await free.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    server, listening = Listener(slow, limits=LONG), bind("127.0.0.1", 0)
    task = asyncio.create_task(server.serve(sockets=[listening]))
    place = Listening(listening.getsockname()[1], lambda: len(server.server_state.connections))
    request = b"GET /slow HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    busy = [await place.opened() for _ in range(LONG.per_address)]
    for _, writer in busy:
        writer.write(request)
    await eventually_async(lambda: len(server.server_state.tasks) == LONG.per_address, what="all are under way")
    for _ in range(SPARES_MAX + 10):
        assert b" 200 " in await place.healthz("127.0.0.1")
        reader, writer = await place.opened()
        writer.write(request)
        refused = await reader.read()
        assert b" 503 " in refused
        assert b"too_many_connections" in refused
        writer.close()
    free.set()
    for reader, writer in busy:
        assert b" 200 " in await reader.readline()
        writer.close()
    server.should_exit = True
    await task


async def test_a_proxys_address_has_no_share(database_url: str, kind: str) -> None:
    """Many clients have it; the total cap applies to it, too."""
    limits = replace(LONG, proxies=parse_networks("10.0.0.0/8, 127.0.0.1, ::1"))
    async with LISTENERS[kind](database_url, limits) as place, AsyncExitStack() as stack:
        for _ in range(limits.connections + 20):
            _, writer = await place.opened()
            stack.callback(abort, writer)
        await eventually_async(lambda: place.holds() == limits.connections, what="all are held, up to the cap")
        assert b" 200 " in await place.healthz("127.0.0.2")


async def test_an_import_that_is_too_slow_is_cut_off(database_url: str) -> None:
    """An import may take any time at a lowest rate: a byte now and then does not keep it open."""
    limits = ApiLimits(idle_timeout=timedelta(seconds=1))
    async with running_api(database_url, limits=limits) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        head = f"POST /v1/jobs:bulk HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {running.operator.key}\r\n"
        writer.write(head.encode() + b"content-type: application/x-ndjson\r\ncontent-length: 9999\r\n\r\n")
        drip = asyncio.create_task(dripping(writer))
        assert b" 408 " in await reader.readline()
        drip.cancel()
        writer.transport.abort()


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        (b"host: evil.example\r\n", False),
        (b"host: evil.example:8420\r\n", False),
        (b"host: 127.0.0.1.evil.example\r\n", False),
        (b"host: 127.0.0.1@evil.example\r\n", False),
        (b"host: a\r\nhost: b\r\n", False),
        (b"host: [::1].evil.example\r\n", False),
        (b"host: ticks.example.com.evil.example\r\n", False),
        (b"host: 10.9.8.7:8421\r\n", True),
        (b"host: [fd00::1]:8421\r\n", True),
        (b"host: LOCALHOST:1\r\n", True),
        (b"host: tickwright-api\r\n", True),
        (b"host: ticks.example.com.\r\n", True),
        (b"host: a.b.inner.example\r\n", True),
        (b"host: " + platform.node().encode() + b"\r\n", True),
    ],
)
async def test_only_configured_host_names_are_answered(
    database_url: str, kind: str, host: bytes, allowed: bool
) -> None:
    """A page whose host name resolves to the server reads nothing: 421, with the setting that allows a name."""
    limits = replace(LONG, hosts=parse_hosts("ticks.example.com, *.inner.example"))
    async with LISTENERS[kind](database_url, limits) as place:
        reader, writer = await place.opened()
        writer.write(b"GET /healthz HTTP/1.1\r\n" + host + b"connection: close\r\n\r\n")
        answer = await reader.read()
        assert (b" 200 " if allowed else b" 421 ") in answer.partition(b"\r\n")[0]
        assert allowed or (b"host_not_allowed" in answer and b"TICKWRIGHT_ALLOWED_HOSTS" in answer)
        writer.close()


@pytest.mark.storm
async def test_a_stream_that_is_not_read_is_closed_first(database_url: str) -> None:
    """A stream under way keeps its connection; one whose client does not read is the first to be closed."""
    async with running_api(database_url, listener=LONG, looks={"every_s": 0.02}) as running:
        unread_client = unread_stream(running)
        await eventually_async(lambda: running.overview.streams == 1, what="it is open")
        await eventually_async(lambda: running.overview.streams == 0, 60, what="it was cut")
        unread_client.close()


def unread_stream(running: RunningApi) -> socket.socket:
    """A stream that its client does not read."""
    made = unread_socket(running.port)
    head = f"GET /v1/stream HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {running.viewer.key}\r\n\r\n"
    made.sendall(head.encode())
    return made


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD.replace(b"GET /healthz", b"POST /callback") + b"x\r\n\r\n"])
async def test_the_examples_receiver_has_the_bounds_of_every_listener(sent: bytes) -> None:
    """A client that sends nothing, an endless head, or nothing after its answer is cut."""
    listening = bind("127.0.0.1", 0)
    server = server_of(Receiver(), SHORT)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    reader, writer = await asyncio.open_connection(*listening.getsockname())
    writer.write(sent)
    async with asyncio.timeout(30):
        assert (await reader.read()).startswith(b"HTTP/1.1 503" if b"\r\n\r\n" in sent else b"")
    abort(writer)
    server.should_exit = True
    await serving
