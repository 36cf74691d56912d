"""A connection that has received the server's last message and not yet its end: the driver's own error, and ours.

It lasts for microseconds as a rule, and for longer where a packet is delayed. asyncpg raises
``InternalClientError`` then, which is neither a PostgresError nor an InterfaceError.
"""

from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from kit.tcp_proxy import TcpProxy
from kit.waiting import eventually_async
from tickwright.ports.broker import Message, Unknown
from tickwright.rest.problems import translate
from tickwright.store.pool import UNAVAILABLE, open_pool
from tickwright.transports.postgres.broker import PostgresBroker

TERMINATE = "SELECT pg_terminate_backend($1)"


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[asyncpg.Pool]:
    """A pool of one connection that the server has ended and that has not received its end."""
    port = int(database_url.rsplit(":", 1)[1].split("/", maxsplit=1)[0])
    other = await asyncpg.connect(database_url)
    async with TcpProxy("127.0.0.1", port) as proxy:
        pool = await open_pool(proxy.rewrite(database_url), max_size=1)
        proxy.hide_ends("to_client")
        pid = await pool.fetchval("SELECT pg_backend_pid()")
        before = proxy.flows["to_client"].passed_bytes
        await other.execute(TERMINATE, pid)
        await eventually_async(lambda: proxy.flows["to_client"].passed_bytes > before, what="the server's last message")
        yield pool
        pool.terminate()
    await other.close()


async def test_the_drivers_own_error_counts_as_a_lost_database(pool: asyncpg.Pool) -> None:
    """Every loop of ours tries again after it, a worker keeps what it has to write, and a client gets 503."""
    with pytest.raises(UNAVAILABLE) as caught:
        await pool.fetchval("SELECT 1")
    assert isinstance(caught.value, asyncpg.InternalClientError), "the state that this test is about"
    problem = translate(caught.value, of_a_change=True)
    assert problem is not None
    assert problem.code == "database_unavailable"


async def test_an_insert_that_may_have_been_stored_is_unknown_to_the_relay(pool: asyncpg.Pool) -> None:
    """The broker inside PostgreSQL answers ``Unknown``, and raises nothing that would end the relay."""
    message = Message(id="m1", destination="pg:half", body=b"{}", timeout=timedelta(seconds=5))
    assert isinstance(await PostgresBroker(pool).publish(message), Unknown)


async def test_a_half_broken_database_is_not_ready(pool: asyncpg.Pool) -> None:
    """The probe reports it, and raises nothing."""
    assert not await PostgresBroker(pool).ready()
