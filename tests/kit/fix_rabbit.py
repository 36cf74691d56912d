"""Fixtures: one RabbitMQ for the run, started when the first test asks for it."""

from collections.abc import Iterator

import pytest

from kit.servers import RabbitServer


@pytest.fixture(scope="session")
def rabbit_server() -> Iterator[RabbitServer]:
    """The node that all tests share: use names of your own, and do not kill it."""
    server = RabbitServer()
    try:
        server.start()
        yield server
    finally:
        server.destroy()
