"""Consumers of the transport inside PostgreSQL: leases, fences and the limit of deliveries."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from tickwright.ports.broker import Accepted, Message
from tickwright.transports.postgres.broker import PostgresBroker, PostgresConsumer, TopicDelivery

OVER = timedelta(0)


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[asyncpg.Pool]:
    """A pool on a migrated database."""
    async with asyncpg.create_pool(database_url, min_size=1, max_size=8) as pool:
        yield pool


async def send(pool: asyncpg.Pool, count: int, topic: str = "polls") -> None:
    """Store ``count`` messages."""
    batch = [
        Message(f"m_{number}", f"pg:{topic}", b"%d" % number, key="k", headers={"a": "b"}) for number in range(count)
    ]
    assert await PostgresBroker(pool).publish_many(batch) == [Accepted()] * count


async def test_a_delivery_has_what_was_sent(pool: asyncpg.Pool) -> None:
    """Id, key, headers, type and bytes are as they were sent, and another topic has nothing."""
    await send(pool, 1)
    (one,) = await PostgresConsumer(pool, "polls").take(10)
    assert (one.id, one.key, one.headers, one.body) == ("m_0", "k", {"a": "b"}, b"0")
    assert (one.content_type, one.deliveries) == ("application/json", 1)
    assert await PostgresConsumer(pool, "other").take(10) == []


async def test_competing_consumers_never_hold_the_same_message(pool: asyncpg.Pool) -> None:
    """Eight concurrent consumers take 200 messages, each once."""
    await send(pool, 200)

    async def taker() -> list[TopicDelivery]:
        consumer = PostgresConsumer(pool, "polls")
        taken: list[TopicDelivery] = []
        while part := await consumer.take(7):
            taken += part
        return taken

    parts = await asyncio.gather(*(taker() for _ in range(8)))
    ids = [one.id for part in parts for one in part]
    assert sorted(ids) == sorted(f"m_{number}" for number in range(200))


async def test_a_message_whose_lease_ended_is_delivered_again_and_the_old_fence_is_void(pool: asyncpg.Pool) -> None:
    """A consumer that outlives its lease can neither ack, nack, release nor renew."""
    await send(pool, 1)
    (late,) = await PostgresConsumer(pool, "polls", lease=OVER).take(1)
    holder = PostgresConsumer(pool, "polls")
    (now,) = await holder.take(1)
    assert (now.deliveries, now.fence > late.fence) == (2, True)
    assert not await holder.ack(late)
    assert not await holder.nack(late, "late")
    assert not await holder.release(late)
    assert not await holder.renew(late)
    assert await holder.renew(now)
    assert await holder.ack(now)
    assert not await holder.ack(now)
    assert await holder.take(1) == []


async def test_a_failed_message_comes_back_until_it_is_dead(pool: asyncpg.Pool) -> None:
    """After the last allowed delivery it is dead, with the error; others are not blocked."""
    await send(pool, 1)
    consumer = PostgresConsumer(pool, "polls", deliveries_max=3)
    for attempt in (1, 2, 3):
        (one,) = await consumer.take(1)
        assert one.deliveries == attempt
        assert await consumer.nack(one, "no\x00way \ud800")
    assert await consumer.take(1) == []
    row = await pool.fetchrow("SELECT status, error, deliveries FROM tickwright.messages")
    assert (row["status"], row["error"], row["deliveries"]) == ("dead", "no way \\ud800", 3)


async def test_a_message_that_kills_its_consumers_dies_too(pool: asyncpg.Pool) -> None:
    """Leases that expire count as deliveries, so a poison message is not delivered for ever."""
    await send(pool, 1)
    consumer = PostgresConsumer(pool, "polls", lease=OVER, deliveries_max=3)
    taken = [await consumer.take(1) for _ in range(5)]
    assert [len(part) for part in taken] == [1, 1, 1, 0, 0]
    assert await pool.fetchval("SELECT status FROM tickwright.messages") == "dead"


async def test_a_release_costs_no_delivery(pool: asyncpg.Pool) -> None:
    """A message that was not started is released unchanged, and its consumer holds it no more."""
    await send(pool, 1)
    consumer = PostgresConsumer(pool, "polls", deliveries_max=1)
    for _ in range(3):
        (one,) = await consumer.take(1)
        assert one.deliveries == 1
        assert await consumer.release(one)
        assert not await consumer.ack(one)


async def test_a_delay_after_a_nack_is_kept(pool: asyncpg.Pool) -> None:
    """No consumer gets the message before its time."""
    await send(pool, 1)
    consumer = PostgresConsumer(pool, "polls")
    (one,) = await consumer.take(1)
    assert await consumer.nack(one, "later", delay=timedelta(hours=1))
    assert await consumer.take(1) == []


async def test_a_resend_is_no_second_message_until_the_purge(pool: asyncpg.Pool) -> None:
    """A finished message still guards its id; purging it ends that, and spares dead ones."""
    await send(pool, 2)
    consumer = PostgresConsumer(pool, "polls", deliveries_max=1)
    done, failed = await consumer.take(2)
    assert await consumer.ack(done)
    assert await consumer.nack(failed, "no")
    await send(pool, 2)
    assert await consumer.take(2) == []
    assert await consumer.purge(older_than=timedelta(hours=1)) == 0
    assert await consumer.purge(older_than=OVER) == 1
    await send(pool, 2)
    assert [one.id for one in await consumer.take(2)] == [done.id]
