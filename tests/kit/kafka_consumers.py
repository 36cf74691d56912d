"""Consumers that read polls from Kafka: their source, polls that a relay publishes, and the group's commits."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pydantic import SecretStr

from kit.consumers import Trackers, seed
from kit.kafka_polls import PollWorld, terms_of
from kit.waiting import eventually
from tickwright import Answer, Poll
from tickwright.capabilities.polling.consumer.courier import CourierRegistry, DeclaredPartner
from tickwright.capabilities.polling.relay.batches import read_poll
from tickwright.engine.session import WorkerSession
from tickwright.plugin import Registrations
from tickwright.plugin.settings import Bind, Settings
from tickwright.process.node import Node, open_node
from tickwright.store.pool import Pool
from tickwright.transports.kafka.poll_source import KafkaPollSource

SESSION_MS = 6000

_TO_THE_RELAY = """
WITH gone AS (DELETE FROM tickwright.poll_queue RETURNING *)
INSERT INTO tickwright.scheduler_outbox (release_at, due_at, slot_id, partner_no, ids, account_nos, external_ids)
SELECT due_at, due_at, slot_id, partner_no, ids, account_nos, external_ids FROM gone
"""


def kafka_source(bootstrap: str, prefix: str) -> Callable[[Pool, WorkerSession], KafkaPollSource]:
    """Return a factory of sources of the tests' topic, with the shortest session that Kafka allows."""

    def make(pool: Pool, session: WorkerSession) -> KafkaPollSource:
        terms = terms_of(bootstrap, prefix)
        return KafkaPollSource(pool, session, terms, terms.topic("polls"), read_poll, session_ms=SESSION_MS)

    return make


async def publish(world: PollWorld, count: int, **settings: Any) -> Trackers:
    """Set a partner up with trackers, and let a relay publish their polls; return when all are on the topic."""
    trackers = await hand_to_relay(world, count, **settings)
    async with world.running(world.relay()):
        await world.emptied()
    return trackers


async def hand_to_relay(world: PollWorld, count: int, **settings: Any) -> Trackers:
    """Set a partner up with trackers whose polls wait to be published."""
    trackers = await seed(world.pool, count, **settings)
    await world.pool.execute(_TO_THE_RELAY)
    return trackers


@asynccontextmanager
async def running_relay_and_consumer(world: PollWorld) -> AsyncIterator[Node]:
    """Run both roles in one process, by its settings alone; the partner ``acme`` answers each poll."""

    async def ask(_: Poll) -> Answer:
        return Answer("moving")

    couriers = CourierRegistry()
    couriers.add(DeclaredPartner("acme", {}, ask))
    settings = Settings(
        database_url=SecretStr(world.url),
        metrics_bind=Bind("127.0.0.1", 0),
        kafka_bootstrap=world.bootstrap,
        kafka_prefix=world.prefix,
        kafka_allow_single_broker=True,
    )
    roles = ["relay", "poll-consumer"]
    async with open_node(settings, roles, registrations=Registrations(couriers), any_port=True) as node:
        running = asyncio.create_task(node.run(signals=False))
        yield node
        node.supervisor.request_stop()
        await running


def make_again(bootstrap: str, topic: str) -> None:
    """Delete a topic and create it again at once, empty; blocks."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    partitions = len(admin.list_topics(topic, timeout=10).topics[topic].partitions)
    admin.delete_topics([topic])[topic].result(10)

    def made() -> bool:
        try:
            admin.create_topics([NewTopic(topic, partitions, 1, config={"compression.type": "uncompressed"})])[
                topic
            ].result(10)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            return False
        return True

    eventually(made, what=f"{topic} is made again")


def spoil(world: PollWorld) -> None:
    """Put records on the topic that no relay of the product writes; blocks."""
    producer = Producer({"bootstrap.servers": world.bootstrap, "log_level": 0})
    poll = (
        b'{"version":%d,"id":"poll_1_0","tracker_id":1,"due_at":"2026-11-21T10:00:00Z","partner":"%s",'
        b'"account_id":"shop","external_id":"T1"}'
    )
    for number in range(3):
        for value in (
            b"{",
            b"[]",
            None,
            poll % (2, b"acme"),
            poll % (1, b"nobody"),
            (poll % (1, b"acme")).replace(b'_id":1,', b'_id":0,'),
        ):
            producer.produce(world.topic, value, partition=number, headers=[("slot_id", b"0")])
        producer.produce(world.topic, poll % (1, b"acme"), partition=number)  # no slot: the tracker has it
    assert producer.flush(10) == 0


class Offsets:
    """The group's committed offsets, and the ends of the partitions; blocks."""

    def __init__(self, world: PollWorld) -> None:
        self._topic = world.topic
        group = {"bootstrap.servers": world.bootstrap, "group.id": f"{world.prefix}.poll-consumer", "log_level": 0}
        self._client = Consumer(group)

    def committed(self) -> dict[int, int]:
        """Return the committed offset of each partition; 0 if there is none."""
        places = [TopicPartition(self._topic, number) for number in range(3)]
        return {one.partition: max(0, one.offset) for one in self._client.committed(places, timeout=10)}

    def ends(self) -> dict[int, int]:
        """Return the end of each partition, markers of transactions included."""
        places = [TopicPartition(self._topic, number) for number in range(3)]
        return {one.partition: self._client.get_watermark_offsets(one, timeout=10)[1] for one in places}

    def close(self) -> None:
        """Close the connections to Kafka."""
        self._client.close()
