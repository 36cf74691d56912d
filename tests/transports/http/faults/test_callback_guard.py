"""The guard of callbacks: addresses, names, certificates, proxies and headers."""

import socket
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kit.certificates import Authority
from kit.receivers import NOBODY, TARGETS, HttpReceiver, ScriptedResolver
from tickwright.ports.broker import Accepted, Message, Refused
from tickwright.transports.http.broker import HttpBroker

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


async def test_a_name_that_flips_its_answer_reaches_nothing_inside() -> None:
    """DNS rebinding: the first answer is public, the next is not; the check holds for every connection."""
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
    """Every address of a name is checked; the refusal is final and shows none of them."""
    broker = HttpBroker(allow=NOBODY, resolver=ScriptedResolver(addresses))
    outcome = await broker.publish(message("https://inside.example/callback"))
    await broker.aclose()
    assert isinstance(outcome, Refused)
    assert (outcome.code, outcome.final) == ("ssrf_blocked", True)
    assert not any(address in outcome.reason for address in addresses)


@pytest.mark.parametrize("url", ["http://93.184.216.34/", "https://10.0.0.1/", "https://[::1]/", "http://example.com/"])
async def test_an_invalid_target_is_refused_without_a_connection(url: str) -> None:
    """``check`` raises and ``publish`` returns ``ssrf_blocked``, both before any look-up."""
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
async def test_an_unknown_name_and_a_failing_dns_have_different_codes(error: socket.gaierror, code: str) -> None:
    """Nothing was sent, so it is a refusal; the code tells operators whether the name or the DNS is wrong."""
    broker = HttpBroker(allow=NOBODY, resolver=ScriptedResolver(error))
    outcome = await broker.publish(message("https://nowhere.example/"))
    await broker.aclose()
    assert isinstance(outcome, Refused)
    assert (outcome.code, outcome.final) == (code, False)


async def test_a_connection_that_is_never_made_is_refused_within_the_timeout(broker: HttpBroker) -> None:
    """With a full accept queue or a dropped SYN it is certain that nothing was sent."""
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
    """The certificate is verified for the host of the URL, and nothing is sent to one that fails."""
    authority = Authority(tmp_path)
    contexts: dict[str, Callable[[], Any]] = {
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
async def test_a_header_that_callers_may_not_set_is_refused(
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
    """Kept-alive connections have a maximum age, so a change in the DNS takes effect."""
    async with HttpReceiver() as receiver:
        assert await broker.publish(message(receiver.url)) == Accepted()
        monkeypatch.setattr("tickwright.outbound.connector.SESSION_AGE_MAX_S", -1.0)
        before = broker._sessions._current[False]
        assert await broker.publish(message(receiver.url)) == Accepted()
        assert broker._sessions._current[False] is not before
        assert before.retired
