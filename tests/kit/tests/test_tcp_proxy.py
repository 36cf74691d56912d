"""Faults of the test kit's proxy are exactly the requested ones."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from kit.tcp_proxy import TcpProxy
from kit.waiting import eventually, eventually_async

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def proxy() -> AsyncIterator[TcpProxy]:
    """A proxy in front of an echo server."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1024):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with TcpProxy("127.0.0.1", port) as proxy:
        yield proxy
    server.close()


async def connect(proxy: TcpProxy) -> Streams:
    """Connect to the echo server through the proxy."""
    return await asyncio.open_connection("127.0.0.1", proxy.port)


async def test_bytes_pass_unchanged(proxy: TcpProxy) -> None:
    """Without a fault the proxy is transparent, and counts."""
    reader, writer = await connect(proxy)
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    assert [flow.passed_bytes for flow in proxy.flows.values()] == [5, 5]
    writer.close()


async def test_held_bytes_arrive_after_the_release(proxy: TcpProxy) -> None:
    """Holding delays and loses nothing."""
    reader, writer = await connect(proxy)
    proxy.hold("to_client")
    writer.write(b"hello")
    await eventually_async(lambda: proxy.flows["to_client"].seen_bytes == 5)
    assert proxy.flows["to_client"].passed_bytes == 0
    proxy.release()
    assert await reader.readexactly(5) == b"hello"
    writer.close()


async def test_dropped_replies_never_arrive(proxy: TcpProxy) -> None:
    """The server receives the client's bytes; the client receives none, and the connection stays open."""
    reader, writer = await connect(proxy)
    proxy.drop_replies()
    writer.write(b"lost")
    await eventually_async(lambda: proxy.flows["to_client"].seen_bytes == 4)
    proxy.heal()
    writer.write(b"heard")
    assert await reader.readexactly(5) == b"heard"
    writer.close()


async def test_a_cut_passes_exactly_so_many_bytes(proxy: TcpProxy) -> None:
    """The receiver gets the bytes before the cut and then the end."""
    reader, writer = await connect(proxy)
    proxy.cut_after(3, "to_client")
    writer.write(b"hello")
    assert await reader.read() == b"hel"
    writer.close()


async def test_a_reset_is_an_error_on_the_clients_side(proxy: TcpProxy) -> None:
    """A reset connection raises instead of ending orderly."""
    reader, writer = await connect(proxy)
    writer.write(b"x")
    await reader.readexactly(1)
    proxy.reset()
    with pytest.raises(ConnectionResetError):
        await reader.read()
    assert proxy.connection_count == 0
    writer.close()


async def test_a_refused_connection_is_reset_at_once(proxy: TcpProxy) -> None:
    """New connections fail while the proxy refuses, and work once it is healed."""
    proxy.refuse()
    reader, writer = await connect(proxy)
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()
    proxy.heal()
    await test_bytes_pass_unchanged(proxy)


async def test_latency_delays_but_keeps_order(proxy: TcpProxy) -> None:
    """Every chunk waits at least for the set latency, each way."""
    reader, writer = await connect(proxy)
    proxy.delay(0.05)
    began = asyncio.get_running_loop().time()
    writer.write(b"late")
    assert await reader.readexactly(4) == b"late"
    assert asyncio.get_running_loop().time() - began >= 0.1
    writer.close()


def test_the_proxy_replaces_host_and_port_of_a_url() -> None:
    """The rest of the URL stays."""
    proxy = TcpProxy("127.0.0.1", 5432)
    proxy.port = 7
    assert proxy.rewrite("postgresql://u:p@host:5432/db?a=b") == "postgresql://u:p@127.0.0.1:7/db?a=b"


def test_waiting_is_bounded() -> None:
    """A condition that never holds fails the test and is named in the message."""
    with pytest.raises(AssertionError, match="the moon is cheese"):
        eventually(lambda: False, 0.01, what="the moon is cheese")
