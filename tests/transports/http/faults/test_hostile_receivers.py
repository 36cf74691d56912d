"""Receivers that break the protocol: the broker keeps its deadlines, its memory bounds and its promise."""

import asyncio
import html
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from urllib.parse import quote

import pytest
from yarl import URL

from kit.receivers import (
    TARGETS,
    HttpReceiver,
    RawServer,
    Script,
    read_request,
    reset,
)
from kit.tcp_proxy import TcpProxy
from tickwright.domain.masking import masked_text
from tickwright.ports.broker import Accepted, Message, Outcome, Refused, Unknown
from tickwright.transports.http.broker import HttpBroker

SHORT = timedelta(seconds=0.4)
ENOUGH = timedelta(seconds=60)


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
        assert asyncio.get_running_loop().time() - started < timeout.total_seconds() + 10
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
async def test_without_a_complete_valid_head_the_outcome_is_unknown(
    broker: HttpBroker, script: Script, code: str
) -> None:
    """The request was sent, so its effect is unknown; and the call ends by its deadline."""
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
async def test_a_2xx_head_is_success_whatever_its_body(broker: HttpBroker, script: Script) -> None:
    """The status line 2xx and the end of the headers are the answer; the body is optional and bounded."""
    assert await publish(broker, script, timedelta(seconds=2)) == Accepted()


async def test_a_connection_with_an_unread_body_is_not_used_again(broker: HttpBroker) -> None:
    """The rest of an endless body must not become the next message's answer."""
    script = flooding(ENDLESS, b"1000\r\n" + b"HTTP/1.1 500 no\r\n\r\n" * 200 + b"x" * 296 + b"\r\n")
    async with RawServer(script) as server:
        for _ in range(2):
            assert await broker.publish(message(server.url, timedelta(seconds=2))) == Accepted()
        assert server.connections == 2


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_refused_and_never_followed(broker: HttpBroker, status: int) -> None:
    """A redirect to the metadata service is not followed, either."""
    head = b"HTTP/1.1 %d Go\r\nLocation: http://169.254.169.254/latest/\r\nContent-Length: 0\r\n\r\n" % status
    outcome = await publish(broker, answering(head))
    assert isinstance(outcome, Refused)
    assert (outcome.code, outcome.status, outcome.final) == ("http_redirect", status, False)


@pytest.mark.parametrize("status", [400, 401, 404, 408, 410, 425, 429, 500, 503, 599])
async def test_another_status_is_refused_with_a_printable_excerpt(broker: HttpBroker, status: int) -> None:
    """The code has the status, 410 means gone, and the body is shown truncated and printable."""
    body = b"no \x1b[31m\x00\xff\r\nthanks" + b"!" * 5000
    head = b"HTTP/1.1 %d No\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
    outcome = await publish(broker, answering(head + body))
    assert isinstance(outcome, Refused)
    assert (outcome.code, outcome.status, outcome.gone) == (f"http_{status}", status, status == 410)
    assert outcome.reason.isprintable()
    assert len(outcome.reason) <= 1000
    assert "thanks" in outcome.reason


@pytest.mark.parametrize(
    "spelled",
    [
        str,
        lambda url: url.replace("/", r"\/"),
        lambda url: url.replace("/", r"\\\/"),
        lambda url: quote(url, safe=""),
        lambda url: quote(quote(url, safe=""), safe=""),
        lambda url: url.replace("/", "&#x2F;").replace(":", "&#58;"),
        lambda url: URL(url).raw_path_qs,
        lambda url: URL(url).raw_path_qs.replace("/", r"\/"),
        lambda url: html.escape(URL(url).raw_path_qs),
        lambda url: URL(url).raw_path_qs.replace("&", r"\u0026").replace("=", r"\u003d"),
        lambda url: URL(url).query_string,
    ],
)
async def test_an_answer_that_repeats_the_address_is_shown_without_its_path(
    broker: HttpBroker, spelled: Callable[[str], str]
) -> None:
    """A receiver's path may be its credential, however the receiver escapes it."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        host = next(line for line in head.splitlines() if line.lower().startswith("host:")).split()[1]
        body = f"no hook at {spelled(f'http://{host}{head.split()[1]}')} here".encode()
        writer.write(b"HTTP/1.1 404 No\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()

    async with RawServer(script) as server:
        outcome = await broker.publish(message(f"{server.url}/services/T0/c4n4ry?tenant=7&token=c4n4ry", ENOUGH))
    assert isinstance(outcome, Refused)
    assert "c4n4ry" not in masked_text(outcome.reason)
    assert "no hook at" in outcome.reason


DATES = {"in 5 minutes": timedelta(minutes=5), "in 5 days": timedelta(days=5), "5 days ago": timedelta(days=-5)}


@pytest.mark.parametrize(
    ("value", "least_s", "most_s"),
    [
        ("0", 0, 0),
        ("120", 120, 120),
        (" 7 ", 7, 7),
        ("3600", 3600, 3600),
        ("86400", 3600, 3600),
        ("9" * 60, 3600, 3600),
        ("in 5 minutes", 240, 301),
        ("in 5 days", 3600, 3600),
        ("5 days ago", 0, 0),
    ],
)
async def test_retry_after_is_honoured_up_to_an_hour(
    broker: HttpBroker, value: str, least_s: float, most_s: float
) -> None:
    """Seconds and HTTP dates count, zero is allowed, more than an hour is an hour, the past is now."""
    if value in DATES:
        value = format_datetime(datetime.now(tz=UTC) + DATES[value], usegmt=True)
    async with HttpReceiver() as receiver:
        receiver.status, receiver.headers = 503, {"Retry-After": value}
        outcome = await broker.publish(message(receiver.url, timedelta(seconds=10)))  # a slow machine is no fault
    assert isinstance(outcome, Refused)
    assert outcome.retry_after is not None
    assert least_s <= outcome.retry_after.total_seconds() <= most_s


@pytest.mark.parametrize("value", ["", "-1", "1.5", "soon", "١٢", "Fri, 99 Foo 2026", "9" * 5000, "1e3", "0x10"])
async def test_an_invalid_retry_after_is_ignored(broker: HttpBroker, value: str) -> None:
    """It sets no wait."""
    head = f"HTTP/1.1 503 No\r\nRetry-After: {value}\r\nContent-Length: 0\r\n\r\n".encode()
    outcome = await publish(broker, answering(head))
    assert isinstance(outcome, Refused)
    assert outcome.retry_after is None


async def test_four_hundred_silent_receivers_cost_no_more_time_than_one(broker: HttpBroker) -> None:
    """Messages without a free connection are refused in time, because nothing of them was sent."""
    async with RawServer(answering(then="wait")) as server:
        started = asyncio.get_running_loop().time()
        outcomes = await asyncio.gather(*(broker.publish(message(server.url)) for _ in range(400)))
        assert asyncio.get_running_loop().time() - started < 15, "eight at a time take 20 s"
    codes = {outcome.code for outcome in outcomes if not isinstance(outcome, Accepted)}
    assert codes == {"timeout", "connect_timeout"}


@pytest.mark.matrix
@pytest.mark.parametrize("each_way_s", [0.1, 2.0])
async def test_a_distant_receiver_gets_each_message_once(broker: HttpBroker, each_way_s: float) -> None:
    """Its distance only makes calls longer: a call within its timeout is accepted."""
    async with HttpReceiver() as receiver, TcpProxy("127.0.0.1", receiver.port) as proxy:
        proxy.delay(each_way_s)
        url = f"http://127.0.0.1:{proxy.port}/callback"
        sent = [replace(message(url, ENOUGH), id=f"job_{number}") for number in range(20)]
        outcomes = await asyncio.gather(*(broker.publish(one) for one in sent))
    assert outcomes == [Accepted()] * 20
    assert sorted(one.id for one in receiver.received) == sorted(one.id for one in sent)
