"""Fixtures: one RabbitMQ for the run, started when the first test asks for it."""

from collections.abc import Iterator

import pytest

from kit.servers import RabbitServer, started


@pytest.fixture(scope="session")
def rabbit_server() -> Iterator[RabbitServer]:
    """The node that all tests share: use names of your own, and do not kill it."""
    with started(RabbitServer()) as server:
        yield server


@pytest.fixture(scope="module")
def mortal_rabbit() -> Iterator[RabbitServer]:
    """A node of the module's own, to be killed."""
    with started(RabbitServer()) as server:
        yield server
