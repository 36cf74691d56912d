"""Receivers that send unrequested data without end are cut off, and other callbacks go on."""

import asyncio
import base64
import hashlib
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import uvloop

from kit.certificates import Authority
from kit.mutants import mutate
from kit.receivers import TARGETS, HttpReceiver, RawServer, read_request
from kit.tls_records import HANDSHAKE, KEY_UPDATE, RECORD_BYTES_MAX, TICKET, RawTls, hello_requests, server_only
from tickwright.capabilities.polling.consumer.courier import Answer, Poll
from tickwright.capabilities.polling.consumer.http_courier import HttpCourier, HttpSchema
from tickwright.outbound import BoundedHead, GuardedSessions
from tickwright.outbound.connector import BoundedTls, system_trust, with_bounded_tls
from tickwright.ports.broker import Accepted, Message, Refused, Unknown
from tickwright.transports.http.broker import HttpBroker
from tickwright.transports.websocket.broker import FRAMES_PER_TURN, FRAMES_SPARE_MAX, GatewayConnection, WebSocketBroker

CHUNK = 64 * 1024
OFFERED = 6 * 1024 * 1024
READ_MAX = 4 * 1024 * 1024
"""Bytes of a flood that may leave: those read before the cut, and those that the kernel holds."""

TLS_READ_MAX = 2 * 1024 * 1024
"""The same where the kernel holds less."""

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
MINUTE = timedelta(seconds=60)
POLL = Poll("poll_1_0", 1, "A1", "", "acme", datetime(2026, 1, 1, tzinfo=UTC), MINUTE)


@pytest.fixture
async def callbacks() -> AsyncIterator[HttpBroker]:
    """A broker of callbacks that may reach this machine."""
    broker = HttpBroker(allow=TARGETS, connections_max=8)
    yield broker
    await broker.aclose()


@pytest.fixture
async def pushes() -> AsyncIterator[WebSocketBroker]:
    """A broker of pushes that may reach this machine."""
    broker = WebSocketBroker(allow=TARGETS)
    yield broker
    await broker.aclose()


def message(url: str, number: int = 1, body: bytes = b"{}", timeout: timedelta = MINUTE) -> Message:
    """Return a small message."""
    return Message(f"job_{number}", url, body, timeout=timeout)


class Flood(RawServer):
    """Answers each connection's first request and then sends ``noise``, a chunk in each turn of the loop.

    Attributes:
        sent: Bytes of the first connection's noise that left, at most ``OFFERED``.
        over: Set when that connection was cut, or all of it left.
        late: Set when the noise may begin.
    """

    def __init__(self, answer: bytes, noise: bytes, *, first: bytes = b"", websocket: bool = False) -> None:
        super().__init__(self._flood)
        self._answer = answer
        self._first = first
        self._noise = noise * (CHUNK // len(noise))
        self._websocket = websocket
        self.sent = 0
        self.over, self.late = asyncio.Event(), asyncio.Event()
        self.late.set()

    async def _flood(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._websocket:
                await shake_hands(reader, writer)
                await read_push(reader)
            else:
                await read_request(reader)
            writer.write(self._answer)
            await self.late.wait()
            writer.write(self._first)
            while self.sent < OFFERED:
                writer.write(self._noise)
                await writer.drain()
                self.sent += len(self._noise)
                await asyncio.sleep(0)
        finally:
            self.over.set()


async def shake_hands(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Open a WebSocket as a server."""
    writer.write(switch(await read_request(reader)))


def switch(request: bytes) -> bytes:
    """Return the answer that opens a WebSocket."""
    head = request.decode()
    key = next(line.split(": ")[1] for line in head.splitlines() if line.lower().startswith("sec-websocket-key:"))
    made = hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode(), usedforsecurity=False)
    accept = base64.b64encode(made.digest()).decode()
    head = f"HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
    return head.encode()


async def read_push(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Read one masked frame of less than 64 KiB; return its opcode and its payload."""
    first, length = await reader.readexactly(2)
    size = length & 0x7F
    if size == 126:
        size = int.from_bytes(await reader.readexactly(2), "big")
    mask = await reader.readexactly(4)
    body = await reader.readexactly(size)
    return first & 0xF, bytes(one ^ mask[place % 4] for place, one in enumerate(body))


def text(what: str) -> bytes:
    """Return a text frame of a server."""
    body = what.encode()
    assert len(body) < 65536
    length = bytes([len(body)]) if len(body) < 126 else b"\x7e" + len(body).to_bytes(2, "big")
    return b"\x81" + length + body


def ack(push: bytes) -> bytes:
    """Return the acknowledgement of a push."""
    return text(json.dumps({"webhook-id": json.loads(push)["webhook-id"], "ack": True}))


async def serve_others(callbacks: HttpBroker, flood: Flood) -> int:
    """Send healthy callbacks one by one until the flood is over, at least twenty; return how many arrived."""
    async with HttpReceiver() as receiver:
        while not flood.over.is_set() or len(receiver.received) < 20:
            assert await callbacks.publish(message(receiver.url, len(receiver.received))) == Accepted()
        return len(receiver.received)


HTTP_NOISE = {
    "answers": (OK, OK),
    "1xx": (OK, b"HTTP/1.1 100 C\r\n\r\n"),
    "CRLF": (OK, b"\r\n"),
    "garbage": (OK, b"x"),
    "behind a body": (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", OK),
    "behind 204": (b"HTTP/1.1 204 No Content\r\n\r\n", OK),
    "behind an error": (b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno", OK),
}


@pytest.mark.parametrize("late", [False, True], ids=["with the answer", "on the idle connection"])
@pytest.mark.parametrize("kind", list(HTTP_NOISE))
async def test_unrequested_data_after_an_answer_cuts_the_connection(
    callbacks: HttpBroker, kind: str, late: bool
) -> None:
    """The answer counts, healthy callbacks go on meanwhile, and the flood ends after what the kernel holds."""
    async with Flood(*HTTP_NOISE[kind]) as flood:
        if late:
            flood.late.clear()
        others = asyncio.create_task(serve_others(callbacks, flood))
        outcome = await callbacks.publish(message(flood.url))
        flood.late.set()
        assert await others >= 20
    assert outcome == Accepted() or (isinstance(outcome, Refused) and outcome.code == "http_500")
    assert flood.sent < READ_MAX


async def test_a_partner_that_sends_more_than_its_answer_is_cut_off() -> None:
    """Polls use the same sessions."""
    body = b'{"s": "moving"}'
    async with Flood(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body), OK) as flood:
        flood.late.clear()
        terms = HttpSchema(f"{flood.url}/{{external_id}}", {}, "s")
        courier = HttpCourier(terms, allow=TARGETS, connections_max=1)
        assert await courier(POLL) == Answer("moving")
        flood.late.set()
        await flood.over.wait()
        await courier.aclose()
    assert flood.sent < READ_MAX


async def test_a_broken_body_ends_its_reader(callbacks: HttpBroker) -> None:
    """The outcome comes at once, where aiohttp's reader would wait or raise no connection error."""
    noise = b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with Flood(noise, b"zz\r\n") as flood:
        outcome = await callbacks.publish(message(flood.url))
    assert isinstance(outcome, Refused)
    assert outcome.code == "http_500"


WS_NOISE = {
    "ping": b"\x89\x00",
    "pong": b"\x8a\x00",
    "junk": text("[]"),
    "acknowledgements of others": text('{"webhook-id": "another", "ack": true}'),
    "fragments": b"\x00\x00",
    "binary": b"\x82\x00",
}


@pytest.mark.parametrize("kind", list(WS_NOISE))
async def test_a_gateway_that_sends_without_end_is_cut_off(
    callbacks: HttpBroker, pushes: WebSocketBroker, kind: str
) -> None:
    """Whatever its frames; the push is in doubt at once, and healthy callbacks go on meanwhile."""
    first = b"\x01\x00" if kind == "fragments" else b""
    async with Flood(b"", WS_NOISE[kind], first=first, websocket=True) as flood:
        others = asyncio.create_task(serve_others(callbacks, flood))
        outcome = await pushes.publish(message(flood.url.replace("http", "ws")))
        assert await others >= 20
    assert isinstance(outcome, Unknown)
    assert outcome.code == "connection_lost"
    assert flood.sent < READ_MAX


async def test_a_gateway_that_floods_after_an_acknowledgement_is_paused(pushes: WebSocketBroker) -> None:
    """It is connected to once per pause, like one that is down."""
    outcomes = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await shake_hands(reader, writer)
        _, push = await read_push(reader)
        writer.write(ack(push) + WS_NOISE["ping"] * (FRAMES_SPARE_MAX * 3))
        await reader.read()

    async with RawServer(script) as gateway:
        for number in range(300):
            outcomes.append(await pushes.publish(message(gateway.url.replace("http", "ws"), number)))
        assert gateway.connections < 15
    assert {one.code for one in outcomes if isinstance(one, Refused)} == {"gateway_unavailable"}


async def test_late_acknowledgements_are_no_flood(pushes: WebSocketBroker) -> None:
    """A slow gateway with more pushes than spare frames keeps its connection."""
    count = FRAMES_SPARE_MAX * 3
    asked = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await shake_hands(reader, writer)
        late = [ack((await read_push(reader))[1]) for _ in range(count)]
        asked.set()
        _, last = await read_push(reader)
        writer.write(b"".join(late) + ack(last))
        await reader.read()

    async with RawServer(script) as gateway:
        url = gateway.url.replace("http", "ws")
        waiting = [asyncio.create_task(pushes.publish(message(url, number))) for number in range(count)]
        await asked.wait()
        for one in waiting:
            one.cancel()
        await asyncio.wait(waiting)
        assert await pushes.publish(message(url, count)) == Accepted()
        assert gateway.connections == 1


async def test_a_ping_is_answered_with_its_payload(pushes: WebSocketBroker) -> None:
    """And an unrequested pong does no harm."""
    answers = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await shake_hands(reader, writer)
        _, push = await read_push(reader)
        writer.write(b"\x8a\x00" + b"\x89\x05hello")
        answers.append(await read_push(reader))
        writer.write(ack(push))
        await reader.read()

    async with RawServer(script) as gateway:
        assert await pushes.publish(message(gateway.url.replace("http", "ws"))) == Accepted()
    assert answers == [(0xA, b"hello")]


async def turns_for_answers(pushes: WebSocketBroker, count: int) -> int:
    """Return how often other tasks run while so many acknowledgements, sent at once, are read."""
    turns, seen = 0, []

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await shake_hands(reader, writer)
        writer.write(b"".join([ack((await read_push(reader))[1]) for _ in range(count)]))
        await reader.read()

    async with RawServer(script) as gateway:
        url = gateway.url.replace("http", "ws")

        async def push(number: int) -> None:
            assert await pushes.publish(message(url, number)) == Accepted()
            seen.append(turns)

        busy = asyncio.create_task(others())
        await asyncio.gather(*(push(number) for number in range(count)))
        busy.cancel()
    return max(seen) - min(seen)


async def test_other_tasks_run_while_frames_are_read(pushes: WebSocketBroker) -> None:
    """However many frames there are."""
    assert await turns_for_answers(pushes, 800) >= 800 // FRAMES_PER_TURN // 2


async def test_a_deeply_nested_frame_is_ignored_and_harms_no_other(pushes: WebSocketBroker) -> None:
    """JSON that no reader can parse is one frame that decides nothing."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await shake_hands(reader, writer)
        _, push = await read_push(reader)
        writer.write(text('{"x":' + "[" * 30_000 + "]" * 30_000 + "}") + ack(push))
        await reader.read()

    async with RawServer(script) as gateway:
        assert await pushes.publish(message(gateway.url.replace("http", "ws"))) == Accepted()


@pytest.mark.parametrize(
    ("mutant", "kind"),
    [
        ((GatewayConnection._read_frames, "not self._afford()", "False"), "acknowledgements of others"),
        ((BoundedHead._count_unframed, "self._unframed_bytes > UNFRAMED_BYTES_MAX", "False"), "fragments"),
        ((vars(BoundedHead)["_idle"].fget, "not (answering", "not (True"), "CRLF"),
    ],
    ids=["frames are not counted", "fragments are not counted", "idle connections are read"],
)
async def test_the_suite_notices_a_missing_bound(
    monkeypatch: pytest.MonkeyPatch,
    callbacks: HttpBroker,
    pushes: WebSocketBroker,
    mutant: tuple[Any, str, str],
    kind: str,
) -> None:
    """Mutants: without the bound the whole flood is read."""
    mutate(monkeypatch, *mutant)
    if kind in WS_NOISE:
        cut_off = test_a_gateway_that_sends_without_end_is_cut_off(callbacks, pushes, kind)
    else:
        cut_off = test_unrequested_data_after_an_answer_cuts_the_connection(callbacks, kind, late=True)
    with pytest.raises(AssertionError):
        await cut_off


async def test_the_suite_notices_a_reader_that_blocks_other_tasks(
    monkeypatch: pytest.MonkeyPatch, pushes: WebSocketBroker
) -> None:
    """Mutant: all frames are read without a pause."""
    mutate(monkeypatch, GatewayConnection._read_frames, "await asyncio.sleep(0)", "pass")
    assert await turns_for_answers(pushes, 800) < 800 // FRAMES_PER_TURN // 2


class TlsFlood(Flood):
    """A flood of TLS records that carry no data. Without an answer it begins with its first record.

    Args:
        context: Of ``server_only``.
        answer: Empty where the flood comes instead of one.
        content: Of each record of the flood; ``None`` floods the handshake.
    """

    def __init__(self, context: ssl.SSLContext, answer: bytes, content: bytes | None) -> None:
        super().__init__(answer, content or hello_requests())
        self._context = context
        self._content = content

    @property
    def url(self) -> str:
        """Return the target of callbacks."""
        return f"https://127.0.0.1:{self.port}/callback"

    async def _flood(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made: socket.socket = writer.get_extra_info("socket")
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CHUNK)
        try:
            if self._content is None:
                await reader.read(CHUNK)
                await self._send(writer, hello_requests)
            else:
                await self._flood_behind_handshake(RawTls(self._context, reader, writer), writer, self._content)
        finally:
            self.over.set()

    async def _flood_behind_handshake(self, tls: RawTls, writer: asyncio.StreamWriter, content: bytes) -> None:
        await tls.shake_hands()
        request = await tls.read_request()
        answer = switch(request) if b"upgrade: websocket" in request.lower() else self._answer
        if answer:
            writer.write(tls.record(answer))
            await self.late.wait()
        await self._send(writer, lambda: tls.record(content, HANDSHAKE))

    async def _send(self, writer: asyncio.StreamWriter, record: Callable[[], bytes]) -> None:
        while self.sent < OFFERED:
            sent = record()
            writer.write(sent)
            await writer.drain()
            self.sent += len(sent)
            await asyncio.sleep(0)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Certificates."""
    return Authority(tmp_path)


@pytest.fixture
def flooding(authority: Authority, tmp_path: Path) -> ssl.SSLContext:
    """The server context of TLS floods."""
    return server_only(authority.server("IP:127.0.0.1"), tmp_path / "keys")


TLS_NOISE = {"tickets": TICKET * (RECORD_BYTES_MAX // len(TICKET)), "key updates": KEY_UPDATE, "handshake": None}
TLS_PLACES = [
    ("tickets", "instead of an answer"),
    ("tickets", "on the idle connection"),
    ("key updates", "instead of an answer"),
    ("key updates", "on the idle connection"),
    ("handshake", "instead of an answer"),
]


@pytest.mark.parametrize(("kind", "place"), TLS_PLACES)
async def test_tls_records_without_data_cut_the_connection(
    authority: Authority, flooding: ssl.SSLContext, kind: str, place: str
) -> None:
    """They are read up to a bound, in the handshake, before an answer and after it; healthy callbacks go on."""
    idle = place == "on the idle connection"
    callbacks = HttpBroker(allow=TARGETS, connections_max=8, tls=authority.trust)
    async with TlsFlood(flooding, OK if idle else b"", TLS_NOISE[kind]) as flood:
        if idle:
            flood.late.clear()
        others = asyncio.create_task(serve_others(callbacks, flood))
        outcome = await callbacks.publish(message(flood.url))
        flood.late.set()
        assert await others >= 20
    await callbacks.aclose()
    if idle:
        assert outcome == Accepted()
    else:
        assert isinstance(outcome, Refused if kind == "handshake" else Unknown)
    assert flood.sent < TLS_READ_MAX


async def test_an_answer_before_a_flood_of_tls_records_counts(authority: Authority, flooding: ssl.SSLContext) -> None:
    """It was read before the bound was reached."""
    callbacks = HttpBroker(allow=TARGETS, connections_max=8, tls=authority.trust)
    async with TlsFlood(flooding, OK, TLS_NOISE["tickets"]) as flood:
        assert await callbacks.publish(message(flood.url)) == Accepted()
        await flood.over.wait()
    await callbacks.aclose()
    assert flood.sent < TLS_READ_MAX


async def test_a_gateway_that_sends_tls_records_without_data_is_cut_off(
    callbacks: HttpBroker, authority: Authority, flooding: ssl.SSLContext
) -> None:
    """The push is in doubt at once, and healthy callbacks go on."""
    pushes = WebSocketBroker(allow=TARGETS, tls=authority.trust)
    async with TlsFlood(flooding, b"", TLS_NOISE["tickets"]) as flood:
        others = asyncio.create_task(serve_others(callbacks, flood))
        outcome = await pushes.publish(message(flood.url.replace("http", "ws")))
        assert await others >= 20
    await pushes.aclose()
    assert isinstance(outcome, Unknown)
    assert outcome.code == "connection_lost"
    assert flood.sent < TLS_READ_MAX


async def test_a_connection_that_tls_gave_up_counts_as_cut_off(authority: Authority, flooding: ssl.SSLContext) -> None:
    """So acknowledgements before a flood do not allow the next connection at once."""
    sessions = GuardedSessions(allow=TARGETS, connections_max=2, tls=authority.trust)
    counted = sessions.acquire(tls=True)
    async with TlsFlood(flooding, b"", TLS_NOISE["tickets"]) as flood:
        gateway = await counted.session.ws_connect(flood.url)
        protocol = gateway._conn.protocol  # type: ignore[union-attr]
        await gateway.receive()
    sessions.release(counted)
    await sessions.aclose()
    assert isinstance(protocol, BoundedHead)
    assert protocol.gave_up


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
async def test_data_in_tiny_records_is_no_flood(authority: Authority, run: Callable[[Any], bytes]) -> None:
    """TLS costs more bytes than the data here, and all of it is read, with both loops."""
    body = bytes(range(256)) * 32
    context = authority.server("IP:127.0.0.1")

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
        for place in range(len(body)):
            writer.write(body[place : place + 1])
            await writer.drain()
        await reader.read()

    async def fetch() -> bytes:
        server = await asyncio.start_server(script, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        sessions = GuardedSessions(allow=TARGETS, connections_max=2, tls=authority.trust)
        counted = sessions.acquire(tls=True)
        async with asyncio.timeout(60), counted.session.get(f"https://127.0.0.1:{port}/") as answer:
            got = await answer.read()
        sessions.release(counted)
        await sessions.aclose()
        server.close()
        return got

    assert await asyncio.to_thread(run, fetch()) == body


def test_renegotiation_is_disabled(authority: Authority) -> None:
    """In TLS 1.2 servers could ask for it any number of times; certificates are verified as before."""
    for context in (with_bounded_tls(authority.trust), system_trust()):
        assert context.options & ssl.OP_NO_RENEGOTIATION
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname


@pytest.mark.parametrize(("kind", "place"), [TLS_PLACES[1], TLS_PLACES[4]])
async def test_the_suite_notices_tls_without_a_bound(
    monkeypatch: pytest.MonkeyPatch, authority: Authority, flooding: ssl.SSLContext, kind: str, place: str
) -> None:
    """Mutant: the whole flood is read."""
    mutate(monkeypatch, BoundedTls._feed, "self._dataless_bytes > self._dataless_bytes_max", "False")
    with pytest.raises(AssertionError):
        await test_tls_records_without_data_cut_the_connection(authority, flooding, kind, place)
