"""``kafka:`` destinations while brokers die and topics change under the producer."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from secrets import token_bytes
from uuid import uuid4

import pytest

from kit.kafka import KafkaServer, leaders_of, make_again_elsewhere, make_topics, raise_epoch
from kit.kafka_polls import set_topic
from kit.waiting import eventually, eventually_async
from tickwright.ports.broker import Accepted, Message, Outcome
from tickwright.transports.kafka import producer as link
from tickwright.transports.kafka.broker import KafkaBroker
from tickwright.transports.kafka.config import KafkaConfig

LARGE = b"y" * 400_000


def message(topic: str, number: int, body: bytes = b"{}", within_s: float = 20) -> Message:
    """Return a message to a topic."""
    return Message(f"{topic}_{number}", f"kafka:{topic}", body, timeout=timedelta(seconds=within_s))


@pytest.fixture
async def broker(kafka_cluster: KafkaServer) -> AsyncIterator[KafkaBroker]:
    """A broker on three nodes that the test may kill."""
    made = KafkaBroker(KafkaConfig(kafka_cluster.url))
    yield made
    await made.aclose()


def codes(outcomes: Sequence[Outcome]) -> Counter[str]:
    """Count outcomes by their code, accepted ones as ``accepted``."""
    return Counter("accepted" if isinstance(one, Accepted) else one.code for one in outcomes)


@pytest.mark.storm
async def test_topics_without_a_leader_leave_room_for_the_others(
    kafka_cluster: KafkaServer, broker: KafkaBroker
) -> None:
    """KFK-7: many times the queue waits for topics that take nothing; each message to another is accepted."""
    bad = [f"bad{number}" for number in range(5)]
    layout = {"good": [[1, 2], [2, 1]], **{topic: [[3]] for topic in bad}}
    await asyncio.to_thread(make_topics, kafka_cluster.url, layout)
    assert await broker.publish(message("good", 0)) == Accepted()
    assert codes([await broker.publish(message(topic, 0)) for topic in bad]) == {"accepted": 5}
    await asyncio.to_thread(kafka_cluster.kill_node, 3)
    gone = lambda: all(leaders_of(kafka_cluster.url, topic) == [-1] for topic in bad)  # noqa: E731
    await asyncio.to_thread(eventually, gone, 30, what="the topics have no leader")
    lost = [message(topic, number, LARGE) for topic in bad for number in range(1, 101)]
    waiting = asyncio.create_task(broker.publish_many(lost))
    outcomes: list[Outcome] = []
    while not waiting.done():
        outcomes.append(await broker.publish(message("good", len(outcomes) + 1, LARGE)))
        await asyncio.sleep(0.1)
    assert codes(outcomes) == {"accepted": len(outcomes)}
    assert set(codes(await waiting)) == {"timeout", "broker_busy"}


async def test_a_topic_that_is_created_again_under_another_leader_is_written_to(
    kafka_cluster: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library keeps the former leader; another producer takes over, and other topics lose no message."""
    monkeypatch.setattr(link, "MESSAGE_TIMEOUT_MS", 5000)
    await asyncio.to_thread(make_topics, kafka_cluster.url, {"again": [[1, 2, 3]], "other": [[1, 2, 3]]})
    broker = KafkaBroker(KafkaConfig(kafka_cluster.url))
    over, others = asyncio.Event(), list[Outcome]()

    async def write_others() -> None:
        while not over.is_set():
            others.extend(await broker.publish_many([message("other", len(others) + n) for n in range(20)]))

    async def accepted() -> bool:
        return await broker.publish(message("again", 1)) == Accepted()

    assert await accepted()
    await asyncio.to_thread(raise_epoch, kafka_cluster, "again")
    await eventually_async(accepted, 60, what="the new leader is known")
    await asyncio.to_thread(make_again_elsewhere, kafka_cluster, "again")
    writing = asyncio.create_task(write_others())
    await eventually_async(accepted, 90, what="the topic is written to")
    over.set()
    await writing
    await broker.aclose()
    assert codes(others) == {"accepted": len(others)}


async def test_small_records_to_a_topic_that_takes_no_large_sets_are_taken(kafka_server: KafkaServer) -> None:
    """The broker refuses a set of records as a whole; its records are then sent alone."""
    topic = f"small-{uuid4().hex}"
    await asyncio.to_thread(make_topics, kafka_server.url, {topic: [[1]]})
    await asyncio.to_thread(set_topic, kafka_server.url, topic, "max.message.bytes", "20000")
    broker = KafkaBroker(KafkaConfig(kafka_server.url))
    batch = [message(topic, number, token_bytes(1000)) for number in range(300)]
    batch[100] = message(topic, 100, token_bytes(30_000))
    outcomes = await broker.publish_many(batch)
    await broker.aclose()
    assert codes(outcomes) == {"accepted": 299, "message_too_large": 1}
    assert codes([outcomes[100]]) == {"message_too_large": 1}
