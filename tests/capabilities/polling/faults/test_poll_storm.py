"""Brokers, relays and consumers killed at random, all at once: each poll once on the topic, once done, limits kept."""

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
    """One broker at a time, then two; K1 to K6 from the topic, P2 at every look, P4 from the courier's own log."""
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
    assert not wanted - asked, "somebody was asked for less often than polls were due"
    assert (asked - wanted).total() <= storm.deaths * CONCURRENCY, "more was asked again than the kills explain"
    assert storm.looks > 20
