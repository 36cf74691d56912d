"""How many polls a second one relay publishes to the topic, counted by a consumer that reads what is committed.

Needs a Kafka at ``TICKWRIGHT_KAFKA_BOOTSTRAP``; makes topics with a prefix of its own there.
"""

import asyncio
import time

import uvloop
from confluent_kafka import Consumer, TopicPartition

from tickwright.bench.ground import Ground
from tickwright.bench.poll_kafka import borrowed_kafka
from tickwright.capabilities.polling.relay.relay import PollRelay
from tickwright.engine.leases import Leases
from tickwright.store.pool import Pool, open_pool
from tickwright.store.queries import load
from tickwright.transports.kafka.config import KafkaConfig
from tickwright.transports.kafka.transactions import KafkaLog

SQL = load("tickwright.bench.sql", "polling.sql")
ROWS = 600
CHECK_S = 0.02
WARM_ROWS = 2
"""Published before the clock starts: the relay has then made its topics, opened the log and committed once."""

POLLS = (WARM_ROWS + ROWS) * 1000
READ_WITHIN_S = 120.0


def relay_rate(ground: Ground, bootstrap: str) -> float:
    """Return the polls a second from the relay's start until the last one is committed and marked.

    Raises:
        RuntimeError: The topic does not hold each poll once.
    """
    with borrowed_kafka(ground, bootstrap) as terms:
        topic = terms.topic("polls")
        rate = uvloop.run(_relay(ground.url, terms, topic))
        seen = _committed(terms, topic)
    if seen != (POLLS, POLLS):
        raise RuntimeError(f"the topic holds {seen[0]} polls, {seen[1]} different ones, of {POLLS}")
    return rate


async def _relay(url: str, terms: KafkaConfig, topic: str) -> float:
    pool = await open_pool(url, max_size=4)
    try:
        partner = await pool.fetchval(SQL["add_partner"], "relay")
        account = await pool.fetchval(SQL["add_account"], "relay", 120)
        relay = PollRelay(Leases(pool, owner="bench"), KafkaLog(terms, topic), topic=topic)
        running = asyncio.create_task(relay.run())
        await _publish(pool, partner, account, first_row=0, rows=WARM_ROWS)
        took = await _publish(pool, partner, account, first_row=WARM_ROWS, rows=ROWS)
        await relay.stop()
        await running
    finally:
        pool.terminate()
    return ROWS * 1000 / took


async def _publish(pool: Pool, partner: int, account: int, *, first_row: int, rows: int) -> float:
    """Fill the outbox with so many rows of a thousand polls; return the seconds until they are published and marked."""
    await pool.execute(SQL["fill_outbox"], rows, partner, account, first_row)
    started = time.perf_counter()
    while await pool.fetchval(SQL["unpublished"]):  # noqa: ASYNC110  nothing notifies a reader
        await asyncio.sleep(CHECK_S)
    return time.perf_counter() - started


def _committed(terms: KafkaConfig, topic: str) -> tuple[int, int]:
    """Return how many committed records the topic holds, and how many different ids."""
    consumer = Consumer(
        {"bootstrap.servers": terms.bootstrap, "group.id": topic, "isolation.level": "read_committed",
         "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    )  # fmt: skip
    keys: set[bytes] = set()
    count, deadline = 0, time.monotonic() + READ_WITHIN_S
    try:
        partitions = consumer.list_topics(topic, 10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        while count < POLLS and time.monotonic() < deadline:
            for message in consumer.consume(10_000, 1.0):
                if message.error() is None:
                    count += 1
                    keys.add(message.key() or b"")
    finally:
        consumer.close()
    return count, len(keys)
