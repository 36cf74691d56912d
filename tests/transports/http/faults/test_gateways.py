"""WebSocket gateways that are silent, faulty, gone or hostile."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from aiohttp import web
from standardwebhooks import Webhook

from kit.receivers import NOBODY, TARGETS, Gateway, RawServer, ScriptedResolver, read_request
from kit.waiting import eventually_async
from tickwright.ports.broker import Accepted, Message, Refused, Unknown
from tickwright.transports.websocket.broker import WebSocketBroker

DEEP = b"[" * 200_000 + b"]" * 200_000
SECRET = "whsec_" + "bm5ubm5ubm5ubm5ubm5ubm5ubm5ubm5u"


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    """A gateway that acknowledges unless set otherwise."""
    async with Gateway() as gateway:
        yield gateway


@pytest.fixture
async def broker() -> AsyncIterator[WebSocketBroker]:
    """A broker that may reach this machine."""
    broker = WebSocketBroker(allow=TARGETS)
    yield broker
    await broker.aclose()


def message(destination: str, number: int = 1, timeout_s: float = 5, body: bytes = b'{"n":  1}') -> Message:
    """Return a small signed message."""
    return Message(
        f"job_{number}",
        destination,
        body,
        headers={"tickwright-task-type": "invoice.remind"},
        timeout=timedelta(seconds=timeout_s),
        signing_secrets=(SECRET,),
    )


async def test_many_pushes_share_one_connection(gateway: Gateway, broker: WebSocketBroker) -> None:
    """A thousand concurrent pushes need no second connection, and each gets its own answer."""
    outcomes = await broker.publish_many([message(gateway.url, number) for number in range(900)])
    assert set(outcomes) == {Accepted()}
    assert gateway.connections == 1


async def test_the_frame_is_as_documented_and_its_signature_verifies(gateway: Gateway, broker: WebSocketBroker) -> None:
    """A gateway can verify with the reference library that the payload is ours and unchanged."""
    assert await broker.publish(message(gateway.url)) == Accepted()
    frame = json.loads(gateway.frames[0])
    assert list(frame) == ["webhook-id", "type", "headers", "payload"]
    assert (frame["webhook-id"], frame["type"], frame["payload"]) == ("job_1", "invoice.remind", {"n": 1})
    received = gateway.received[0]
    assert received.body == b'{"n":  1}'
    assert Webhook(SECRET).verify(received.body, {**received.headers, "webhook-id": "job_1"}) == {"n": 1}


async def test_a_refusal_is_passed_on_with_its_reason_and_retry_after(
    gateway: Gateway, broker: WebSocketBroker
) -> None:
    """``ack: false`` is a certain refusal."""
    gateway.mood = "refuse"
    outcome = await broker.publish(message(gateway.url))
    assert outcome == Refused("gateway_refused", "inbox is full", retry_after=timedelta(seconds=5))
    gateway.refusal = {"error": "x\x1b[31m" * 1000, "retry_after": 1e9}
    outcome = await broker.publish(message(gateway.url))
    assert isinstance(outcome, Refused)
    assert outcome.retry_after == timedelta(hours=1)
    assert outcome.reason.isprintable()
    assert len(outcome.reason) <= 500


async def test_a_refusal_is_kept_without_path_and_query_of_the_gateway(
    gateway: Gateway, broker: WebSocketBroker
) -> None:
    """They may hold a credential, and a gateway may repeat them."""
    gateway.mood = "refuse"
    gateway.refusal = {"error": "no inbox at /push?token=SECRET/a, nor for SECRET%2Fa"}
    outcome = await broker.publish(message(f"{gateway.url}?token=SECRET/a"))
    assert outcome == Refused("gateway_refused", "no inbox at /…, nor for /…")


@pytest.mark.parametrize("body", [b"", b"{", b"nope", b'"\xff"', b"{}{}", b'{},"x":1', DEEP])
async def test_a_body_that_is_no_json_is_refused_for_good(
    gateway: Gateway, broker: WebSocketBroker, body: bytes
) -> None:
    """A body cannot break out of its frame."""
    outcome = await broker.publish(message(gateway.url, body=body))
    assert isinstance(outcome, Refused)
    assert (outcome.code, outcome.final, gateway.received) == ("not_json", True, [])


async def test_a_frame_above_the_limit_is_refused_for_good(gateway: Gateway, broker: WebSocketBroker) -> None:
    """A mebibyte is the bound; no connection is made."""
    outcome = await broker.publish(message(gateway.url, body=b'"' + b"a" * 1024 * 1024 + b'"'))
    assert isinstance(outcome, Refused)
    assert (outcome.code, outcome.final, gateway.connections) == ("too_large", True, 0)


async def test_an_acknowledgement_of_another_id_does_not_count(gateway: Gateway, broker: WebSocketBroker) -> None:
    """Only a frame with the same id decides a push; others are ignored."""
    gateway.mood = "answer another id"
    outcome = await broker.publish(message(gateway.url, timeout_s=0.3))
    assert isinstance(outcome, Unknown)
    assert outcome.code == "timeout"


async def test_a_lost_connection_makes_waiting_pushes_unknown_at_once(
    gateway: Gateway, broker: WebSocketBroker
) -> None:
    """They do not wait for their timeout when the connection is gone."""
    gateway.mood = "silent"
    waiting = [asyncio.create_task(broker.publish(message(gateway.url, number, 60))) for number in range(10)]
    await eventually_async(lambda: len(gateway.received) == 10)
    gateway.mood = "hang up"
    last = await asyncio.wait_for(broker.publish(message(gateway.url, 11, 60)), 30)
    outcomes = [await task for task in waiting]
    assert {type(outcome) for outcome in [last, *outcomes]} == {Unknown}


async def test_a_gateway_that_returns_is_found_again_without_a_hot_loop(
    gateway: Gateway, broker: WebSocketBroker
) -> None:
    """After a loss pushes are refused at once during the pause; after it, one connection serves again."""
    gateway.mood = "hang up"
    assert isinstance(await broker.publish(message(gateway.url, 0)), Unknown)
    gateway.mood = "ack"
    outcomes = []

    async def accepted() -> bool:
        outcomes.append(await broker.publish(message(gateway.url, 1)))
        return outcomes[-1] == Accepted()

    await eventually_async(accepted)  # mypy cannot split the union
    assert {outcome.code for outcome in outcomes[:-1] if isinstance(outcome, Refused)} <= {"gateway_unavailable"}
    assert gateway.connections == 2


async def test_a_dead_gateway_is_connected_to_once_per_pause(broker: WebSocketBroker) -> None:
    """A thousand pushes to a gateway that hangs up cost a handful of connections."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)

    async with RawServer(hang_up) as server:
        url = server.url.replace("http:", "ws:")
        outcomes = [await broker.publish(message(url, number)) for number in range(500)]
        assert all(isinstance(outcome, Refused) and not outcome.final for outcome in outcomes)
        assert server.connections < 10


async def test_a_handshake_is_never_redirected(gateway: Gateway, broker: WebSocketBroker) -> None:
    """A redirect, even to an allowed target, is a refusal."""

    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(f"HTTP/1.1 302 Go\r\nLocation: {gateway.url}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()

    async with RawServer(redirect) as server:
        outcome = await broker.publish(message(server.url.replace("http:", "ws:")))
    assert isinstance(outcome, Refused)
    assert (outcome.code, outcome.status, gateway.connections) == ("http_redirect", 302, 0)


async def test_a_name_that_leads_inside_is_blocked_for_pushes_too() -> None:
    """Pushes have the guard of callbacks."""
    broker = WebSocketBroker(allow=NOBODY, resolver=ScriptedResolver(["8.8.8.8", "10.0.0.1"]))
    outcome = await broker.publish(message("wss://inside.example/push"))
    await broker.aclose()
    assert isinstance(outcome, Refused)
    assert (outcome.code, outcome.final) == ("ssrf_blocked", True)


async def test_a_flood_of_other_frames_closes_the_connection(broker: WebSocketBroker) -> None:
    """A gateway that sends only other frames is cut off; the push is in doubt and does not hang."""

    async def chatter(request: web.Request) -> web.WebSocketResponse:
        connection = web.WebSocketResponse(timeout=0.1)
        await connection.prepare(request)
        await connection.receive()
        for _ in range(200):
            await connection.send_str("[]")
        await connection.receive()
        return connection

    app = web.Application()
    app.router.add_get("/push", chatter)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"ws://127.0.0.1:{runner.addresses[0][1]}/push"
    outcome = await asyncio.wait_for(broker.publish(message(url, 1, 60)), 30)
    await runner.cleanup()
    assert isinstance(outcome, Unknown)
    assert outcome.code == "connection_lost"
