"""The topic of polls is deleted and made again under another leader, while a consumer reads it."""

import asyncio
from collections import Counter

import pytest

from kit.consumers import LONG, all_done, done_times, running_consumer
from kit.kafka import KafkaServer, make_again_elsewhere, make_topics, raise_epoch
from kit.kafka_consumers import kafka_source, publish
from kit.kafka_polls import poll_world
from kit.waiting import eventually_async
from tickwright import Answer, Poll


@pytest.mark.storm
async def test_a_topic_that_is_made_again_under_another_leader_is_read(
    database_url: str, kafka_cluster: KafkaServer, kafka_prefix: str
) -> None:
    """POL-1: the client library keeps the former leader; a new client takes over and reads from the beginning."""

    async def ask(_: Poll) -> Answer:
        return Answer("moving")

    async with poll_world(database_url, kafka_cluster.url, kafka_prefix) as world:
        await asyncio.to_thread(make_topics, world.bootstrap, {world.topic: [[1, 2, 3]]})
        first = await publish(world, 30)
        functions = {"acme": ask, "second": ask, "third": ask}
        source_of = kafka_source(world.bootstrap, world.prefix)
        async with running_consumer(world.url, functions=functions, terms=LONG, source_of=source_of):
            await eventually_async(lambda: all_done(world.pool, first), 60)
            await asyncio.to_thread(raise_epoch, kafka_cluster, world.topic)
            second = await publish(world, 30, name="second")
            await eventually_async(lambda: all_done(world.pool, second), 60, what="the new leader is known")
            await asyncio.to_thread(make_again_elsewhere, kafka_cluster, world.topic)
            third = await publish(world, 120, name="third")  # further than the old offsets
            await eventually_async(lambda: all_done(world.pool, third), 90, what="what is on the new topic is done")
        assert await done_times(world.pool, third) == Counter(third.ids)
