"""Mutants of the poll relay: without a guard, a check of exactly-once has to fail."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from kit.kafka_polls import (
    PollWorld,
    check_late_commit,
    check_late_row,
    check_lost_answer,
    check_overtaken_after_commit,
    check_stopped_before_send,
    poll_world,
)
from kit.kafka_proxy import KafkaProxy
from kit.servers import KafkaServer
from tickwright.capabilities.polling.relay import batches as relay_batches
from tickwright.capabilities.polling.relay import relay as poll_relay
from tickwright.capabilities.polling.relay.relay import PollRelay
from tickwright.engine.leases import Lease
from tickwright.ports.polls import Aborted, Batch, Committed, Doubt
from tickwright.store.pool import Connection
from tickwright.transports.kafka import transactions
from tickwright.transports.kafka.config import KafkaConfig
from tickwright.transports.kafka.topics import prepare_topics
from tickwright.transports.kafka.transactions import KafkaLog

THAW = """
WITH thawed AS (UPDATE tickwright.scheduler_outbox SET batch_no = NULL WHERE batch_no IS NOT NULL)
UPDATE tickwright.poll_relays SET batch_no = published_no
"""
HIDE = "UPDATE tickwright.scheduler_outbox SET shard = 99 WHERE batch_no IS NULL AND id < $1"
NEWEST = "SELECT coalesce(max(id), 0) FROM tickwright.scheduler_outbox WHERE batch_no IS NOT NULL"
Check = Callable[[PollWorld], Awaitable[None]]


@pytest.fixture
async def world(database_url: str, kafka_server: KafkaServer, kafka_prefix: str) -> AsyncIterator[PollWorld]:
    """A database and a topic."""
    async with poll_world(database_url, kafka_server.url, kafka_prefix) as world:
        yield world


def random_transactional_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every producer has a transactional id of its own, so that none is fenced."""
    monkeypatch.setattr(KafkaConfig, "transactional_id", lambda terms, shard: f"{terms.prefix}.{secrets.token_hex(4)}")


def position_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The relay trusts the database alone: what is frozen and not marked is sent."""

    async def settle(relay: PollRelay, lease: Lease, *_: object) -> None:
        async with lease.transaction() as connection:
            if connection is not None:
                await relay_batches.read_numbers(connection, relay.shard)

    monkeypatch.setattr(PollRelay, "_mark_proven", settle)


def nothing_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each relay chooses the polls of a batch again; the batch number says nothing about them."""
    real = relay_batches.read_numbers

    async def read_numbers(connection: Connection, shard: int) -> relay_batches.Numbers:
        await connection.execute(THAW)
        return await real(connection, shard)

    monkeypatch.setattr(relay_batches, "read_numbers", read_numbers)
    monkeypatch.setattr(poll_relay, "check_position", lambda *_: None)


def no_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only an idempotent producer: no position, and records that are sent again after a restart are new ones."""

    def open_writer(writer: transactions._ShardWriter, topic: str) -> None:
        terms = writer._settings
        writer._topic, writer._partitions = topic, prepare_topics(terms, topic)
        writer._producer = Producer({"bootstrap.servers": terms.bootstrap, "enable.idempotence": True, "log_level": 0})

    def write(writer: transactions._ShardWriter, batch: Batch) -> Committed:
        producer = writer._producer
        assert producer is not None
        edges = writer._produce(producer, batch)
        assert producer.flush(20) == 0
        return Committed(edges.offsets(), writer._partitions)

    monkeypatch.setattr(transactions._ShardWriter, "open", open_writer)
    monkeypatch.setattr(transactions._ShardWriter, "write", write)
    monkeypatch.setattr(poll_relay, "check_position", lambda *_: None)


def marked_before_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is frozen is taken as published."""
    real = PollRelay._freeze

    async def freeze(relay: PollRelay, lease: Lease) -> Any:
        found = await real(relay, lease)
        if isinstance(found, relay_batches.FrozenBatch):
            await relay._mark_up_to(lease, found.number, Committed())
        return found

    monkeypatch.setattr(PollRelay, "_freeze", freeze)


def only_newer_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """The relay continues after the highest id that it has read."""
    real, newest = relay_batches.freeze, 0

    async def freeze(connection: Connection, shard: int, bounds: relay_batches.BatchBounds) -> None:
        nonlocal newest
        await connection.execute(HIDE, newest)
        await real(connection, shard, bounds)
        newest = max(newest, await connection.fetchval(NEWEST))

    monkeypatch.setattr(relay_batches, "freeze", freeze)


def the_same_producer_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit without an answer counts as not done, and its producer is used again."""

    async def publish(log: KafkaLog, batch: Batch) -> Any:
        writer = log._writer
        assert writer is not None
        outcome = await writer.call(lambda: writer.write(batch))
        return Aborted(outcome.reason) if isinstance(outcome, Doubt) else outcome

    monkeypatch.setattr(KafkaLog, "publish", publish)


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Check, str]] = {
    "random transactional id": (random_transactional_id, check_late_commit, "K2 broken"),
    "position not read": (position_not_read, check_overtaken_after_commit, "K2 broken"),
    "nothing frozen": (nothing_frozen, check_overtaken_after_commit, "K2 broken"),
    "no transactions": (no_transactions, check_overtaken_after_commit, "K2 broken"),
    "marked before it is sent": (marked_before_it_is_sent, check_stopped_before_send, "K1 broken"),
    "only newer ids": (only_newer_ids, check_late_row, "the outbox of polls is empty"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
async def test_a_missing_guard_of_exactly_once_is_found(
    world: PollWorld, monkeypatch: pytest.MonkeyPatch, mutant: str
) -> None:
    """The check fails on the mutant; test_poll_relay_faults shows that it passes on the real relay."""
    mutate, check, complaint = MUTANTS[mutant]
    mutate(monkeypatch)
    with pytest.raises(AssertionError, match=complaint):
        await check(world)


async def test_a_producer_that_goes_on_after_a_lost_answer_is_found(
    world: PollWorld, kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant of the doubt: the same producer can neither commit nor begin again, or it sends twice."""
    the_same_producer_goes_on(monkeypatch)
    async with KafkaProxy(kafka_server.direct_port, kafka_server.proxy_port) as proxy:
        with pytest.raises(AssertionError, match=r"K2 broken|the outbox of polls is empty"):
            await check_lost_answer(world, kafka_server.proxied_url, proxy)
