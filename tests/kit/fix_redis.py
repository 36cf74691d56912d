"""Fixtures: one Redis for the run, started when the first test asks for it."""

from collections.abc import Iterator

import pytest

from kit.servers import RedisServer


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """The server that all tests share: use keys of your own, and do not kill it."""
    server = RedisServer()
    try:
        server.start()
        yield server
    finally:
        server.destroy()
