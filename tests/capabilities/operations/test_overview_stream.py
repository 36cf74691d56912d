"""The stream of the overview: one message for all, bounded, ended with its key, and stale during an outage."""

import asyncio
import socket
from contextlib import ExitStack, nullcontext
from typing import Any

import pytest
import uvloop
from starlette.types import Message

from kit.api import running_api
from kit.streams import CountingProbe, open_stream
from kit.tcp_proxy import TcpProxy
from kit.waiting import eventually_async
from tickwright.capabilities.operations import snapshots as snapshot_module
from tickwright.capabilities.operations.snapshots import STREAMS_MAX, Snapshots, Subscriber
from tickwright.domain.errors import Unavailable
from tickwright.plugin.overview import OverviewBase
from tickwright.ports.views import ALL, Sight
from tickwright.process.installation import overview_parts
from tickwright.rest import event_stream
from tickwright.rest.listener import TRANSPORT
from tickwright.store.pool import Pool, open_pool


async def test_it_is_an_event_stream_for_browsers(database_url: str) -> None:
    """An event stream that no proxy caches, compresses or buffers, with a time after which to connect again."""
    async with running_api(database_url) as api, open_stream(api.viewer) as stream:
        headers = stream.answer.headers
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert headers["cache-control"] == "no-store, no-transform"
        assert "content-encoding" not in headers
        assert "content-length" not in headers
        assert await stream.answer.content.readline() == b"retry: 2000\n"
        first, second = await stream.next(), await stream.next()
        assert first["at"] < second["at"]


def test_a_client_that_left_before_its_answer_costs_no_error() -> None:
    """Its socket is closed by then."""

    class Transport:
        def is_closing(self) -> bool:
            return False

        def set_write_buffer_limits(self, *, high: int) -> None:
            assert high == event_stream.BUFFER_BYTES

        def get_extra_info(self, _name: str) -> socket.socket:
            closed = socket.socket()
            closed.close()
            return closed

    event_stream._keep_buffers_small(Transport())


def test_a_stream_on_a_connection_that_is_closed_ends_without_an_error() -> None:
    """A process runs on uvloop, which refuses to set options of a closed transport."""

    async def left() -> list[Message]:
        closed = asyncio.get_running_loop().create_future()

        class Gone(asyncio.Protocol):
            def connection_lost(self, exc: Exception | None) -> None:
                closed.set_result(exc)

        async def receive() -> Message:
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)

        near, far = socket.socketpair()
        with far:
            transport, _ = await asyncio.get_running_loop().create_connection(Gone, sock=near)
            transport.abort()
            await closed
        sent: list[Message] = []
        stream = event_stream.EventStream(nullcontext(Subscriber(None)), "overview")
        await stream({"type": "http", TRANSPORT: transport}, receive, send)
        return sent

    assert [one["type"] for one in uvloop.run(left())][:1] == ["http.response.start"]


async def test_it_ends_with_its_key(database_url: str) -> None:
    """Within a second; others continue."""
    async with running_api(database_url) as api, open_stream(api.viewer) as gone, open_stream(api.operator) as stays:
        await gone.next()
        keys = (await api.admin.get("/v1/keys")).json["items"]
        key_id = next(one["id"] for one in keys if one["role"] == "viewer")
        assert (await api.admin.post(f"/v1/keys/{key_id}/revoke")).status == 200
        await gone.ended(3.0)
        await stays.next()
        assert api.overview.streams == 1


async def test_it_ends_when_the_process_drains(database_url: str) -> None:
    """At once, so that the server can stop; a new stream is refused, so that its client tries another process."""
    async with running_api(database_url) as api, open_stream(api.viewer) as stream:
        await stream.next()
        await api.overview.quiesce()
        await stream.ended(3.0)
        (await api.viewer.get("/v1/stream")).says(503, "draining")


async def test_the_number_of_streams_is_bounded_and_an_ended_one_makes_room(database_url: str) -> None:
    """A refused client is asked to poll the overview instead, which still answers."""
    async with running_api(database_url, looks={"streams_max": 2}) as api:
        async with open_stream(api.viewer), open_stream(api.admin):
            refused = (await api.viewer.get("/v1/stream")).says(503, "too_many_streams")
            assert int(refused.headers["retry-after"]) >= 1
            assert (await api.viewer.get("/v1/overview")).status == 200
        await eventually_async(lambda: api.overview.streams == 0, what="both streams have ended")
        async with open_stream(api.viewer) as stream:
            await stream.next()


async def test_one_key_has_its_share_of_streams(database_url: str) -> None:
    """A client with too many streams of one key is refused, and others still find room."""
    async with (
        running_api(database_url, looks={"streams_per_key": 2}) as api,
        open_stream(api.viewer),
        open_stream(api.viewer),
    ):
        (await api.viewer.get("/v1/stream")).says(503, "too_many_streams")
        async with open_stream(api.operator) as stream:
            await stream.next()


async def test_two_hundred_streams_cost_one_query(pool: Pool) -> None:
    """One message, made once, for all of them; the next stream is refused."""
    probe = CountingProbe()
    snapshots = Snapshots(pool, overview_parts(), version="0", every_s=0.05, probe=probe)
    opened = [snapshots.subscribe() for _ in range(STREAMS_MAX)]
    subscribers = [one.__enter__() for one in opened]
    with pytest.raises(Unavailable, match="200 streams"), snapshots.subscribe():
        pass
    running = asyncio.create_task(snapshots.run())
    messages = await asyncio.gather(*(one.next(20) for one in subscribers))
    assert len({id(message) for message in messages}) == 1
    assert probe.reached_times == 1
    await snapshots.stop()
    await running
    assert [await one.next(1) for one in subscribers] == [None] * STREAMS_MAX
    for one in opened:
        one.__exit__(None, None, None)
    assert snapshots.streams == 0


async def test_each_kind_of_caller_has_one_message_whatever_its_number(pool: Pool) -> None:
    """A snapshot is encoded once per kind that listens, and for no other; a later stream gets the same message."""
    snapshots = Snapshots(pool, overview_parts(), version="0", every_s=30)
    sights = [ALL, Sight(whole=False), Sight(data=False, whole=False)]
    with ExitStack() as open_, pytest.MonkeyPatch.context() as patch:
        encoded: list[Sight] = []

        def recorded(view: OverviewBase, to: Sight) -> OverviewBase:
            encoded.append(to)
            return view

        patch.setattr(snapshot_module, "shown", recorded)
        subscribers = [open_.enter_context(snapshots.subscribe(sight=sight)) for sight in sights * 20]
        await snapshots.latest()
        messages = [await one.next(20) for one in subscribers]
        assert len({id(message) for message in messages}) == len(sights)
        late = open_.enter_context(snapshots.subscribe(sight=sights[1]))
        assert await late.next(20) is messages[1]
        assert sorted(encoded, key=repr) == sorted(sights, key=repr)
    await snapshots.stop()


class Silent(CountingProbe):
    """A database that never answers."""

    async def reached(self, name: str, /, **facts: object) -> None:
        """Count, and wait for ever."""
        await super().reached(name, **facts)
        await asyncio.Event().wait()


async def test_it_is_stopped_while_the_database_does_not_answer(pool: Pool) -> None:
    """The query is cancelled, and the service ends as usual."""
    probe = Silent()
    snapshots = Snapshots(pool, overview_parts(), version="0", every_s=0.05, probe=probe)
    running = asyncio.create_task(snapshots.run())
    with snapshots.subscribe():
        await eventually_async(lambda: probe.reached_times == 1, what="it has asked")
        await snapshots.stop()
        await running


async def test_a_client_that_does_not_read_is_disconnected(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is cut when its buffers are full; no message is kept for it, and others are not affected."""
    monkeypatch.setattr(event_stream, "UNREAD_S", 0.3)
    monkeypatch.setattr(event_stream, "BUFFER_BYTES", 4096)
    async with running_api(database_url, looks={"every_s": 0.02}) as api, open_stream(api.operator) as reads:
        unread = socket.socket()
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        unread.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(unread, ("127.0.0.1", api.port))
        head = f"GET /v1/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.viewer.key}\r\n\r\n"
        await loop.sock_sendall(unread, head.encode())
        await eventually_async(lambda: api.overview.streams == 2, what="it is open")

        async def one_is_left() -> bool:
            await reads.next()
            return api.overview.streams == 1

        await eventually_async(one_is_left, 60, what="the client that does not read is gone")
        unread.close()
        await reads.next()


@pytest.mark.matrix
@pytest.mark.parametrize("broken", ["refused", "silent"])
async def test_while_the_database_is_unavailable_the_last_snapshot_is_marked_stale(
    database_url: str, broken: str
) -> None:
    """With the time and the reason; the stream stays open, and later messages are fresh."""
    url = database_url.removeprefix("postgresql://").partition("@")[2]
    host, _, port = url.partition("/")[0].partition(":")
    async with TcpProxy(host, int(port)) as proxy:
        pool = await open_pool(proxy.rewrite(database_url), max_size=2)
        snapshots = Snapshots(pool, overview_parts(), version="0", every_s=0.05)
        running = asyncio.create_task(snapshots.run())
        with snapshots.subscribe() as subscriber:
            assert b'"stale_since":null' in (await subscriber.next(20) or b"")
            if broken == "refused":
                proxy.refuse()
                proxy.reset()
            else:
                proxy.blackhole()
            await eventually_async(lambda: _says(subscriber, b'"stale_why":"'), 20, what="a stale message")
            assert (await snapshots.latest()).stale_since is not None
            proxy.heal()
            await eventually_async(lambda: _says(subscriber, b'"stale_since":null'), 30, what="a fresh message")
        await snapshots.stop()
        await running
        pool.terminate()


async def _says(subscriber: Any, text: bytes) -> bool:
    return text in (await subscriber.next(20) or b"")
