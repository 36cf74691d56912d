"""A scheduler that has more to publish than the broker takes at once."""

from collections.abc import AsyncIterator

import pytest

from kit.fanout import FanoutWorld, fanout_world
from kit.probes import Stops
from kit.servers import RabbitServer, RedisServer
from kit.waiting import eventually_async
from tickwright.capabilities.fanout.scheduler.publisher import CHUNKS_AT_ONCE

pytestmark = pytest.mark.storm

MODULES = ("LOCATIONS", "TARIFFS", "CDRS", "TOKENS")
SAMPLES = 20


@pytest.fixture
async def world(
    database_url: str, rabbit_server: RabbitServer, redis_server: RedisServer
) -> AsyncIterator[FanoutWorld]:
    """A world with RabbitMQ and Redis."""
    async with fanout_world(database_url, rabbit_server.url, redis_server.url) as world:
        yield world


async def test_all_modules_together_have_a_few_chunks_in_flight(world: FanoutWorld) -> None:
    """A chunk is claimed only when the broker has room for it: a claim that waits would be published late."""
    for module in MODULES:
        await world.put_module(module)
    codes = [f"E{number}" for number in range(1000)]
    await world.put_entities(codes, ",".join(MODULES))
    stops = Stops()
    stops.close("fanout.claimed")
    async with world.scheduler(probe=stops) as scheduler:
        await eventually_async(lambda: stops.reached_times["fanout.claimed"] >= CHUNKS_AT_ONCE)
        for _ in range(SAMPLES):
            await world.pool.fetchval("SELECT pg_sleep(0.02)")
        assert stops.reached_times["fanout.claimed"] == CHUNKS_AT_ONCE
        stops.open("fanout.claimed")
        await eventually_async(lambda: scheduler.counts["published"] == len(codes) * len(MODULES))
