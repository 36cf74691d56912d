"""Offsets of polls in Kafka: those that the relay notes for its batches are those that a consumer reads."""

import asyncio
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from kit.kafka_polls import PollWorld, Seen, poll_world, read_raw, terms_of
from kit.kafka_proxy import END_TXN, KafkaProxy
from kit.leases import run_out
from kit.probes import Stops
from kit.servers import KafkaServer
from kit.waiting import eventually_async
from tickwright.capabilities.polling.relay.batches import BatchBounds, poll_key
from tickwright.capabilities.polling.trackers.explain import partition_of
from tickwright.transports.kafka.topics import prepare_topics

BATCHES = """SELECT batch_no, partition_count, partitions, first_offsets, last_offsets, topic
               FROM tickwright.poll_batches ORDER BY batch_no"""
BatchOffsets = dict[int, dict[int, tuple[int, int]]]


@pytest.fixture
async def world(database_url: str, kafka_server: KafkaServer, kafka_prefix: str) -> AsyncIterator[PollWorld]:
    """A database and a topic."""
    async with poll_world(database_url, kafka_server.url, kafka_prefix) as world:
        yield world


async def noted(world: PollWorld) -> BatchOffsets:
    """Return the first and last offset of each batch by partition, as the relay noted them."""
    return {
        row["batch_no"]: {
            number: (first, last)
            for number, first, last in zip(row["partitions"], row["first_offsets"], row["last_offsets"], strict=True)
        }
        for row in await world.pool.fetch(BATCHES)
    }


def found(seen: list[Seen]) -> BatchOffsets:
    """Return the same as a reader of the topic finds them."""
    offsets: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for one in seen:
        offsets[int(one.headers["batch_no"])][one.partition].append(one.offset)
    return {
        batch: {partition: (min(some), max(some)) for partition, some in by_partition.items()}
        for batch, by_partition in offsets.items()
    }


@pytest.mark.matrix
@pytest.mark.parametrize("partitions", [1, 3, 12, 100])
async def test_a_keys_partition_is_the_one_that_the_producer_chooses(
    kafka_server: KafkaServer, kafka_prefix: str, partitions: int
) -> None:
    """Ids of every length, and other keys: our computation against records of the real producer."""
    terms = terms_of(kafka_server.url, kafka_prefix, partitions=partitions)
    topic = terms.topic("polls")
    assert await asyncio.to_thread(prepare_topics, terms, topic) == partitions
    keys = [poll_key(10**power + n) for power in range(16) for n in range(20)]
    keys += [secrets.token_bytes(1 + n % 9) for n in range(200)]
    producer = Producer(terms.producer())
    for key in keys:
        producer.produce(topic, b"", key)
    assert producer.flush(20) == 0
    sent = await asyncio.to_thread(read_raw, kafka_server.url, topic)
    assert len(sent) == len(keys)
    wrong = [one.key() for one, _, _ in sent if partition_of(one.key() or b"", partitions) != one.partition()]
    assert wrong == []


async def test_the_relay_notes_where_each_batch_begins_and_ends(world: PollWorld) -> None:
    """For small batches, and for one with delivery reports of its edges only; per partition."""
    await world.fill(20, 10)
    async with world.running(world.relay()):
        await world.emptied()
    await world.fill(20, 200, first=100_000)
    async with world.running(world.relay(bounds=BatchBounds(trackers=10_000))):
        await world.emptied()
    seen = await world.check()
    assert await noted(world) == found(seen)
    rows = await world.pool.fetch(BATCHES)
    assert {(row["topic"], row["partition_count"]) for row in rows} == {(world.topic, 3)}
    ends = await world.pool.fetch("SELECT partition, end_offset FROM tickwright.poll_ends ORDER BY partition")
    last = {number: max(one.offset for one in seen if one.partition == number) for number in range(3)}
    assert {row["partition"]: row["end_offset"] - 1 for row in ends} == last


async def test_the_ledger_has_the_batch_numbers_of_a_slots_minute(world: PollWorld) -> None:
    """The first and the last one, per slot's minute and partner."""
    await world.fill(30, 10)
    await world.fill(10, 10, partner="ups", first=5000)
    async with world.running(world.relay()):
        await world.emptied()
    batches: dict[str, set[int]] = defaultdict(set)
    for one in await world.check():
        batches[one.value["partner"]].add(int(one.headers["batch_no"]))
    rows = await world.pool.fetch(
        """SELECT name, shard, first_batch_no, last_batch_no FROM tickwright.poll_slices JOIN tickwright.partners
                  USING (partner_no)"""
    )
    assert {row["name"]: (0, row["first_batch_no"], row["last_batch_no"]) for row in rows} == {
        name: (0, min(numbers), max(numbers)) for name, numbers in batches.items()
    }


async def test_a_batch_that_only_the_position_proves_is_noted_without_offsets(world: PollWorld) -> None:
    """The next relay has no delivery reports: it notes no offsets rather than wrong ones; later batches have theirs."""
    stops = Stops()
    stops.close("relay.poll_batch_published")
    await world.fill(5, 7)
    async with world.running(world.relay("zombie", probe=stops)):
        await eventually_async(lambda: stops.reached_times["relay.poll_batch_published"] == 1, 20)
        await run_out(world.pool, "poll-relay:0")
        async with world.running(world.relay("heir")):
            await world.emptied()
            await world.fill(5, 7, first=1000)
            await world.emptied()
            stops.open("relay.poll_batch_published")
    seen = await world.check()
    assert await noted(world) == found(seen) | {1: {}}


async def test_a_batch_that_was_in_doubt_is_noted_with_its_offsets(world: PollWorld, kafka_server: KafkaServer) -> None:
    """The answer to the commit is lost; the relay has the delivery reports, and the position proves the batch."""
    await world.fill(10, 7)
    async with KafkaProxy(kafka_server.direct_port, kafka_server.proxy_port) as proxy:
        proxy.lose_answer_of(END_TXN)
        relay = world.relay(log_terms={"bootstrap": kafka_server.proxied_url, "wait_s": 2.0})
        async with world.running(relay):
            await eventually_async(lambda: relay.counters.doubts == 1, 30, what="the commit is in doubt")
            proxy.heal()
            proxy.reset()
            await world.emptied()
    assert await noted(world) == found(await world.check())
    assert relay.counters.opened >= 2


async def test_a_batch_is_noted_with_the_partition_count_of_its_records(world: PollWorld) -> None:
    """Partitions are added under a running relay: a batch has the count from which its records' partitions follow."""
    await world.fill(20, 10)
    log = world.log()
    async with world.running(world.relay(log=log)):
        await world.emptied()
        admin = AdminClient({"bootstrap.servers": world.bootstrap, "log_level": 0})
        (done,) = admin.create_partitions([NewPartitions(world.topic, 6)]).values()
        done.result(10)
        writer = log._writer
        assert writer is not None

        def has_new_partitions() -> bool:  # the producer would ask by itself within five minutes
            assert writer._producer is not None
            return len(writer._producer.list_topics(world.topic, timeout=10).topics[world.topic].partitions) == 6

        await eventually_async(lambda: writer.call(has_new_partitions))
        await world.fill(20, 10, first=1000)
        await world.emptied()
    counts = {row["batch_no"]: row["partition_count"] for row in await world.pool.fetch(BATCHES)}
    for one in await world.seen():
        assert one.partition == partition_of(one.key, counts[int(one.headers["batch_no"])])
    assert set(counts.values()) == {3, 6}


async def test_only_the_last_batches_are_kept(world: PollWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new batch deletes old ones: the table never exceeds its bound."""
    monkeypatch.setattr("tickwright.capabilities.polling.relay.batches.BATCHES_KEPT", 3)
    await world.fill(60, 10)
    async with world.running(world.relay()) as relay:
        await world.emptied()
        batches = relay.counters.batches
    assert batches > 3
    assert sorted(await noted(world)) == [batches - 2, batches - 1, batches]
