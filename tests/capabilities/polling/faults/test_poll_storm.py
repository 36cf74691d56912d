"""Brokers, relays and consumers are killed at random: each poll is on the topic once and done once, limits hold."""

import secrets
from collections import Counter
from pathlib import Path

import pytest

from kit.kafka_polls import poll_world
from kit.partners import check_contract, courier_process
from kit.poll_storm import CONCURRENCY, RATE, Storm
from kit.servers import KafkaServer

pytestmark = pytest.mark.storm

DELAY_S = 0.05


@pytest.mark.timeout(400)
async def test_a_storm_over_brokers_relays_and_consumers_keeps_every_promise(
    database_url: str, kafka_cluster: KafkaServer, kafka_prefix: str, tmp_path: Path
) -> None:
    """One broker at a time, then two; K1 to K6 from the topic, P2 at every check, P4 from the courier's log."""
    number = secrets.randbelow(1_000_000)
    print(f"chances from seed {number}")  # noqa: T201  shown when the test fails
    async with (
        poll_world(database_url, kafka_cluster.url, kafka_prefix) as world,
        courier_process(tmp_path, DELAY_S) as courier,
    ):
        storm = Storm(world, kafka_cluster, courier, tmp_path, number)
        async with storm.raging():
            for brokers in (1, 1, 1, 2, 2):
                await storm.strike(brokers)
            await storm.advanced(len(world.expected), 120)
            await world.emptied()
        await storm.check()
        calls = courier.calls()
    check_contract(calls, per_s=RATE, concurrency=CONCURRENCY)
    asked, wanted = Counter(call.name for call in calls), storm.wanted()
    assert not wanted - asked, "a tracker was polled less often than it was due"
    assert (asked - wanted).total() <= storm.deaths * CONCURRENCY, "more calls were repeated than the kills explain"
    assert storm.looks > 20
