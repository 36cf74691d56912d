"""Fixtures: one Redis for the run, started when the first test asks for it; one for a test that kills it."""

from collections.abc import Iterator

import pytest

from kit.servers import RedisServer, started


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """The server that all tests share: use keys of your own, and do not kill it."""
    with started(RedisServer()) as server:
        yield server


@pytest.fixture
def mortal_redis() -> Iterator[RedisServer]:
    """A server of the test's own, to be killed, flushed and filled; it loses nothing that it has answered."""
    with started(RedisServer({"appendfsync": "always"})) as server:
        yield server
