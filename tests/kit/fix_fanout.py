"""Fixtures: worlds and queues of fan-out on the servers that all tests share.

A module that kills one of them puts a mortal one under the same name: a ``redis_server`` that returns ``mortal_redis``.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from kit.fanout_worlds import Worlds
from kit.rabbit_tasks import Fanout
from kit.servers import PostgresServer, RabbitServer, RedisServer


@pytest.fixture
async def worlds(
    pg_server: PostgresServer,
    template_database: str,
    rabbit_server: RabbitServer,
    redis_server: RedisServer,
    tmp_path: Path,
) -> AsyncIterator[Worlds]:
    """As many worlds as a test needs, with Redis and without."""
    async with AsyncExitStack() as stack:
        yield Worlds(stack, pg_server, template_database, rabbit_server, redis_server, tmp_path)


@pytest.fixture
async def fanout(rabbit_server: RabbitServer) -> AsyncIterator[Fanout]:
    """Queues of the test's own."""
    fanout = Fanout(rabbit_server.url)
    await fanout.prepare()
    yield fanout
    await fanout.remove()
