"""Fixtures: one Kafka node for the run, three for those who kill one; names of a test's own."""

import secrets
from collections.abc import Iterator

import pytest

from kit.servers import KafkaServer, started


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaServer]:
    """The node that all tests share: use names of your own, and do not kill it."""
    with started(KafkaServer()) as server:
        yield server


@pytest.fixture
def kafka_of_my_own() -> Iterator[KafkaServer]:
    """One node that the test may kill; what it acknowledged is on its disk, as with more nodes it is on theirs."""
    with started(KafkaServer(configuration={"log.flush.interval.messages": "1"})) as server:
        yield server


@pytest.fixture
def kafka_cluster() -> Iterator[KafkaServer]:
    """Three nodes that the test may kill."""
    with started(KafkaServer(nodes=3)) as server:
        yield server


@pytest.fixture
def kafka_prefix() -> str:
    """What the names of the test's topics and transactions begin with."""
    return f"t{secrets.token_hex(6)}"
