"""Receivers that do what no decent server does; the broker stays in time, in memory and in its promise."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from ssl import SSLContext

import pytest

from kit.certificates import Authority
from kit.receivers import (
    NOBODY,
    TARGETS,
    HttpReceiver,
    RawServer,
    Script,
    ScriptedResolver,
    read_request,
    reset,
)
from tickwright.brokers.http import HttpBroker
from tickwright.ports.broker import Accepted, Message, Outcome, Refused, Unknown

SHORT = timedelta(seconds=0.4)


@pytest.fixture
async def broker() -> AsyncIterator[HttpBroker]:
    """A broker that may reach this machine."""
    broker = HttpBroker(allow=TARGETS, connections_max=8)
    yield broker
    await broker.aclose()


def message(destination: str, timeout: timedelta = SHORT, **headers: str) -> Message:
    """Return a small message."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Message("job_42", destination, b'{"invoice_id": 42}', timeout=timeout, headers=named)


async def publish(broker: HttpBroker, script: Script, timeout: timedelta = SHORT) -> Outcome:
    """Send one message to a server that runs ``script``, and check that the deadline was kept."""
    async with RawServer(script) as server:
        started = asyncio.get_running_loop().time()
        outcome = await broker.publish(message(server.url, timeout))
        assert asyncio.get_running_loop().time() - started < timeout.total_seconds() + 0.5
        return outcome


def answering(*chunks: bytes, then: str = "close") -> Script:
    """Return a script that reads the request, sends chunks and closes, resets or waits."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for chunk in chunks:
            writer.write(chunk)
            await writer.drain()
        if then == "reset":
            reset(writer)
        elif then == "wait":
            await reader.read()

    return script


def dripping(first: bytes, drop: bytes) -> Script:
    """Return a script that sends ``first`` and then ``drop`` again and again, slowly, for ever."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(first)
        while True:
            writer.write(drop)
            await writer.drain()
            await asyncio.sleep(0.02)  # the receiver's slowness is the fault under test

    return script


def flooding(first: bytes, chunk: bytes) -> Script:
    """Return a script that sends ``first`` and then ``chunk`` as fast as it can, for ever."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(first)
        while True:
            writer.write(chunk)
            await writer.drain()

    return script


@pytest.mark.parametrize(
    ("script", "code"),
    [
        (answering(), "connection_lost"),
        (answering(then="reset"), "connection_lost"),
        (answering(b"hello, I am no HTTP\r\n\r\n"), "bad_response"),
        (answering(b"<html>HTTP/0.9</html>"), "bad_response"),
        (answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2"), "connection_lost"),
        (answering(b"HTTP/1.1 200 OK\r\n", then="reset"), "connection_lost"),
        (answering(b"HTTP/1.1 twohundred OK\r\n\r\n"), "bad_response"),
        (answering(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n"), "bad_response"),
        (answering(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"), "bad_response"),
        (answering(then="wait"), "timeout"),
        (answering(b"HTTP/1.1 200 OK\r\n", then="wait"), "timeout"),
        (dripping(b"HTTP/1.1 200 OK\r\n", b"x-a: b\r\n"), "timeout"),
        (dripping(b"", b"HTTP/1.1 102 Processing\r\n\r\n"), "timeout"),
        (flooding(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 50), "bad_response"),
        (flooding(b"HTTP/1.1 200 OK\r\n", b"x-a: b\r\n" * 64), "bad_response"),
        (flooding(b"HTTP/1.1 200 OK\r\nx-a: ", b"b" * 4096), "bad_response"),
        (answering(b"HTTP/1.1 200 OK\r\n" + b"x-a: %s\r\n" % (b"b" * 1000) * 40 + b"\r\n"), "bad_response"),
    ],
    ids=[
        "closes at once", "resets at once", "no status line", "HTTP 0.9", "half a head", "half a head, RST",
        "status no number", "negative length", "switches protocols", "silent", "half a head, silent",
        "slow-loris head", "slow 1xx", "1xx flood", "endless head", "endless header line", "head of 40 KiB",
    ],
)  # fmt: skip
async def test_without_a_complete_decent_head_the_outcome_is_unknown(
    broker: HttpBroker, script: Script, code: str
) -> None:
    """The request was sent, so nobody can tell; and it takes no longer than the deadline."""
    outcome = await publish(broker, script)
    assert isinstance(outcome, Unknown)
    # a slow 1xx answer may hit the limit of informational answers before the deadline
    assert outcome.code == code or (code == "timeout" and outcome.code == "bad_response")


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
ENDLESS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
BOMB = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 40\r\n\r\n" + b"\x1f\x8b" + b"\x00" * 38


@pytest.mark.parametrize(
    "script",
    [
        answering(HEAD, then="reset"),
        answering(HEAD + b"some", then="close"),
        answering(HEAD, then="wait"),
        dripping(HEAD, b"."),
        flooding(ENDLESS, b"1000\r\n" + b"x" * 4096 + b"\r\n"),
        answering(ENDLESS + b"zz\r\n"),
        answering(BOMB),
        answering(b"HTTP/1.1 204 No Content\r\n\r\n"),
        answering(b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n"),
        answering(b"HTTP/1.0 200 OK\r\n\r\nuntil I close"),
        answering(b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"),
        answering(b"HTTP/1.1 200 \xff\xfe\r\nContent-Length: 0\r\n\r\n"),
        answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more than that"),
    ],
    ids=[
        "RST after the head", "closes in the body", "no body comes", "slow-loris body", "endless body",
        "broken chunk", "gzip bomb", "204", "cookie", "HTTP 1.0", "early hints", "strange reason",
        "more than its length",
    ],
)  # fmt: skip
async def test_a_2xx_head_is_success_whatever_becomes_of_the_body(broker: HttpBroker, script: Script) -> None:
    """Status line 2xx and the end of the headers is the answer; the body is optional and bounded."""
    assert await publish(broker, script, timedelta(seconds=2)) == Accepted()


async def test_a_connection_with_an_unread_body_is_not_used_again(broker: HttpBroker) -> None:
    """What is left of an endless body must not become the next message's answer."""
    script = flooding(ENDLESS, b"1000\r\n" + b"HTTP/1.1 500 no\r\n\r\n" * 200 + b"x" * 296 + b"\r\n")
    async with RawServer(script) as server:
        for _ in range(2):
            assert await broker.publish(message(server.url, timedelta(seconds=2))) == Accepted()
        assert server.connections == 2


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_refused_and_never_followed(broker: HttpBroker, status: int) -> None:
    """A redirect to the metadata service ends where it began."""
    head = b"HTTP/1.1 %d Go\r\nLocation: http://169.254.169.254/latest/\r\nContent-Length: 0\r\n\r\n" % status
    outcome = await publish(broker, answering(head))
    assert isinstance(outcome, Refused)
    assert (outcome.code, outcome.status, outcome.final) == ("http_redirect", status, False)


@pytest.mark.parametrize("status", [400, 401, 404, 408, 410, 425, 429, 500, 503, 599])
async def test_another_status_is_refused_with_a_printable_excerpt(broker: HttpBroker, status: int) -> None:
    """The code names the status, 410 says gone, and the body is shown truncated and printable."""
    body = b"no \x1b[31m\x00\xff\r\nthanks" + b"!" * 5000
    head = b"HTTP/1.1 %d No\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
    outcome = await publish(broker, answering(head + body))
    assert isinstance(outcome, Refused)
    assert (outcome.code, outcome.status, outcome.gone) == (f"http_{status}", status, status == 410)
    assert outcome.reason.isprintable()
    assert len(outcome.reason) <= 1000
    assert "thanks" in outcome.reason


def http_date(wait: timedelta) -> str:
    """Return the instant after ``wait`` as HTTP writes it."""
    return format_datetime(datetime.now(tz=UTC) + wait, usegmt=True)


@pytest.mark.parametrize(
    ("value", "least_s", "most_s"),
    [
        ("0", 0, 0),
        ("120", 120, 120),
        (" 7 ", 7, 7),
        ("3600", 3600, 3600),
        ("86400", 3600, 3600),
        ("9" * 60, 3600, 3600),
        (http_date(timedelta(minutes=5)), 280, 301),
        (http_date(timedelta(days=5)), 3600, 3600),
        (http_date(timedelta(days=-5)), 0, 0),
    ],
)
async def test_retry_after_is_honoured_up_to_an_hour(
    broker: HttpBroker, value: str, least_s: float, most_s: float
) -> None:
    """Seconds and HTTP dates count, zero is allowed, more than an hour is an hour, the past is now."""
    async with HttpReceiver() as receiver:
        receiver.status, receiver.headers = 503, {"Retry-After": value}
        outcome = await broker.publish(message(receiver.url))
    assert isinstance(outcome, Refused)
    assert outcome.retry_after is not None
    assert least_s <= outcome.retry_after.total_seconds() <= most_s


@pytest.mark.parametrize("value", ["", "-1", "1.5", "soon", "١٢", "Fri, 99 Foo 2026", "9" * 5000, "1e3", "0x10"])
async def test_a_retry_after_that_is_garbage_is_ignored(broker: HttpBroker, value: str) -> None:
    """Nonsense asks for nothing."""
    head = f"HTTP/1.1 503 No\r\nRetry-After: {value}\r\nContent-Length: 0\r\n\r\n".encode()
    outcome = await publish(broker, answering(head))
    assert isinstance(outcome, Refused)
    assert outcome.retry_after is None


async def test_a_name_that_flips_its_answer_reaches_nothing_inside() -> None:
    """Rebinding: the first answer is public, the next is not; the check holds for every connection."""
    resolver = ScriptedResolver(["127.0.0.1"], ["127.0.0.2"])
    async with HttpReceiver() as receiver:
        broker = HttpBroker(allow=TARGETS, resolver=resolver)
        rebinding = f"http://rebind.example:{receiver.port}/callback"
        assert await broker.publish(message(rebinding)) == Accepted()
        other_port = await broker.publish(message(f"http://rebind.example:{receiver.port + 1}/callback"))
        await broker.aclose()
    assert isinstance(other_port, Refused)
    assert (other_port.code, other_port.final) == ("ssrf_blocked", True)
    assert len(resolver.asked) == 2
    assert len(receiver.received) == 1


@pytest.mark.parametrize(
    "addresses",
    [["8.8.8.8", "10.0.0.1"], ["10.0.0.1"], ["::1"], ["64:ff9b::7f00:1"], ["2606:4700::1", "fe80::1"]],
)
async def test_a_blocked_address_in_an_answer_refuses_the_name(addresses: list[str]) -> None:
    """Every address of a name is judged; the refusal is final and shows none of them."""
    broker = HttpBroker(allow=NOBODY, resolver=ScriptedResolver(addresses))
    outcome = await broker.publish(message("https://inside.example/callback"))
    await broker.aclose()
    assert isinstance(outcome, Refused)
    assert (outcome.code, outcome.final) == ("ssrf_blocked", True)
    assert not any(address in outcome.reason for address in addresses)


@pytest.mark.parametrize("url", ["http://93.184.216.34/", "https://10.0.0.1/", "https://[::1]/", "http://example.com/"])
async def test_what_can_never_be_sent_to_is_refused_without_a_connection(url: str) -> None:
    """``check`` raises and ``publish`` answers ``ssrf_blocked``, both before any look-up."""
    resolver = ScriptedResolver(["8.8.8.8"])
    broker = HttpBroker(allow=NOBODY, resolver=resolver)
    outcome = await broker.publish(message(url))
    await broker.aclose()
    assert isinstance(outcome, Refused)
    assert (outcome.code, outcome.final, resolver.asked) == ("ssrf_blocked", True, [])


async def test_proxy_variables_in_the_environment_change_nothing(
    broker: HttpBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A callback goes to its destination, whatever the environment says about proxies and netrc."""
    async with HttpReceiver() as receiver, HttpReceiver() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("NO_PROXY", "")
        assert await broker.publish(message(receiver.url)) == Accepted()
    assert len(receiver.received) == 1
    assert proxy.received == []


async def test_cookies_are_never_kept_and_compression_is_never_asked_for(broker: HttpBroker) -> None:
    """Two callbacks to one host share nothing but a connection."""
    async with HttpReceiver() as receiver:
        receiver.headers = {"Set-Cookie": "session=1; Path=/"}
        for _ in range(2):
            assert await broker.publish(message(receiver.url)) == Accepted()
    assert all("Cookie" not in one.headers for one in receiver.received)
    assert {one.headers["Accept-Encoding"] for one in receiver.received} == {"identity"}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "dns_not_found"),
        (socket.gaierror(socket.EAI_NODATA, "No address associated with hostname"), "dns_not_found"),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), "dns_failed"),
        (socket.gaierror(socket.EAI_FAIL, "Non-recoverable failure"), "dns_failed"),
    ],
)
async def test_an_unknown_name_and_a_failing_dns_are_told_apart(error: socket.gaierror, code: str) -> None:
    """Nothing was sent, so it is a refusal; whether the name or the DNS is wrong decides who is called."""
    broker = HttpBroker(allow=NOBODY, resolver=ScriptedResolver(error))
    outcome = await broker.publish(message("https://nowhere.example/"))
    await broker.aclose()
    assert isinstance(outcome, Refused)
    assert (outcome.code, outcome.final) == (code, False)


async def test_a_connection_that_is_never_made_is_refused_within_the_timeout(broker: HttpBroker) -> None:
    """A full accept queue or a dropped SYN: nothing was sent, and that is certain."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf:
        address = deaf.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        outcome = await broker.publish(message(f"http://127.0.0.1:{address[1]}/"))
        for filler in fillers:
            filler.close()
    assert isinstance(outcome, Refused)
    assert outcome.code == "connect_timeout"


@pytest.mark.parametrize("kind", ["good", "expired", "not yet", "wrong host", "self-signed", "no TLS"])
async def test_each_fault_of_a_certificate_has_its_code(tmp_path: Path, kind: str) -> None:
    """The certificate is judged for the host of the URL, and nothing is sent to one that fails."""
    authority = Authority(tmp_path)
    contexts: dict[str, Callable[[], SSLContext | None]] = {
        "good": lambda: authority.server("IP:127.0.0.1"),
        "expired": lambda: authority.server("IP:127.0.0.1", end="20210101000000Z"),
        "not yet": lambda: authority.server("IP:127.0.0.1", start="20900101000000Z"),
        "wrong host": lambda: authority.server("DNS:example.com"),
        "self-signed": authority.self_signed_server,
        "no TLS": lambda: None,
    }
    codes = {
        "expired": "tls_expired",
        "not yet": "tls_expired",
        "wrong host": "tls_wrong_host",
        "self-signed": "tls_self_signed",
        "no TLS": "tls_failed",
    }
    async with HttpReceiver(contexts[kind]()) as receiver:
        broker = HttpBroker(allow=TARGETS, tls=authority.trust)
        outcome = await broker.publish(message(f"https://127.0.0.1:{receiver.port}/callback", timedelta(seconds=5)))
        await broker.aclose()
    if kind == "good":
        assert outcome == Accepted()
    else:
        assert isinstance(outcome, Refused)
        assert outcome.code == codes[kind]
        assert receiver.received == []


async def test_the_name_and_not_the_address_is_shown_to_the_server(tmp_path: Path) -> None:
    """The connection goes to the checked address; SNI, certificate and Host are the name's."""
    authority = Authority(tmp_path)
    async with HttpReceiver(authority.server("DNS:hook.example")) as receiver:
        broker = HttpBroker(allow=TARGETS, tls=authority.trust, resolver=ScriptedResolver(["127.0.0.1"]))
        url = f"https://hook.example:{receiver.port}/callback"
        assert await broker.publish(message(url, timedelta(seconds=5))) == Accepted()
        await broker.aclose()
    assert receiver.received[0].headers["Host"] == f"hook.example:{receiver.port}"


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("host", "evil.example", "header_not_allowed"),
        ("content-length", "0", "header_not_allowed"),
        ("transfer-encoding", "chunked", "header_not_allowed"),
        ("connection", "close", "header_not_allowed"),
        ("authorization", "Bearer x", "header_not_allowed"),
        ("Cookie", "a=b", "header_not_allowed"),
        ("webhook-id", "other", "header_not_allowed"),
        ("x-forwarded-for", "1.2.3.4", "header_not_allowed"),
        ("proxy-authorization", "x", "header_not_allowed"),
        ("x-a\r\nhost", "evil", "header_not_allowed"),
        ("x-a", "b\r\nHost: evil.example", "invalid_header"),
        ("x-a", "b\x00", "invalid_header"),
        ("x-a", "é", "invalid_header"),
        ("x-a", "b" * 5000, "invalid_header"),
    ],
)
async def test_a_header_that_is_not_the_callers_is_refused(
    broker: HttpBroker, name: str, value: str, code: str
) -> None:
    """Callers can neither redirect, smuggle nor impersonate through headers; nothing is sent."""
    async with HttpReceiver() as receiver:
        outcome = await broker.publish(Message("job_1", receiver.url, b"{}", headers={name: value}))
    assert isinstance(outcome, Refused)
    assert (outcome.code, outcome.final, receiver.received) == (code, True, [])


async def test_an_old_connection_is_not_used_for_a_new_message(
    broker: HttpBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept-alive connections are bounded in age, so a change in the DNS is seen."""
    async with HttpReceiver() as receiver:
        assert await broker.publish(message(receiver.url)) == Accepted()
        monkeypatch.setattr("tickwright.outbound.connector.SESSION_AGE_MAX_S", -1.0)
        before = broker._sessions._current[False]
        assert await broker.publish(message(receiver.url)) == Accepted()
        assert broker._sessions._current[False] is not before
        assert before.retired


async def test_four_hundred_silent_receivers_cost_no_more_time_than_one(broker: HttpBroker) -> None:
    """Messages that find no free connection are refused in time, because nothing of them was sent."""
    async with RawServer(answering(then="wait")) as server:
        started = asyncio.get_running_loop().time()
        outcomes = await asyncio.gather(*(broker.publish(message(server.url)) for _ in range(400)))
        assert asyncio.get_running_loop().time() - started < 2
    codes = {outcome.code for outcome in outcomes if not isinstance(outcome, Accepted)}
    assert codes == {"timeout", "connect_timeout"}
