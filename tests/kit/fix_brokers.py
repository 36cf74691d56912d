"""Fixtures: each broker in turn, with a real counterpart."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from kit.broker_sides import SIDES, Side


@pytest.fixture(params=SIDES)
def side_kind(request: pytest.FixtureRequest) -> str:
    """The name of a broker; a new folder under ``brokers/`` gets its line in ``SIDES``."""
    if request.param == "rabbitmq":
        request.getfixturevalue("rabbit_server")  # here, because a server starts outside the event loop
    if request.param == "kafka":
        request.getfixturevalue("kafka_server")
    if request.param == "postgres":
        request.getfixturevalue("database_url")
    kind: str = request.param
    return kind


@pytest.fixture
async def side(side_kind: str, request: pytest.FixtureRequest) -> AsyncIterator[Side]:
    """Each broker in turn, with its counterpart."""
    async with AsyncExitStack() as stack:
        side = await SIDES[side_kind](stack, request)
        yield side
        async with asyncio.timeout(10):
            await side.broker.aclose()
