"""Tasks of fan-out inside PostgreSQL: held under a lease, released, dead-lettered, and requeued."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import cast

import pytest

from kit.fanout import running
from kit.pg_tasks import PgFanout
from kit.waiting import eventually_async
from tickwright.domain.errors import Unavailable
from tickwright.engine.wakeup.turns import Turns
from tickwright.ports.ids import monotonic
from tickwright.ports.session import Place, Session
from tickwright.ports.task_queue import Delivery
from tickwright.store.pool import Pool, open_pool
from tickwright.transports.postgres.broker import DELIVERIES_MAX, PostgresDeadLetters, PostgresTaskQueue

SHORT = timedelta(seconds=0.6)


@pytest.fixture
def queue(pool: Pool) -> PgFanout:
    """A topic of the test's own."""
    return PgFanout(pool)


@asynccontextmanager
async def consumer(
    pool: Pool, queue: PgFanout, *, slots: int = 1, lease: timedelta = SHORT
) -> AsyncIterator[PostgresTaskQueue]:
    """Run a source."""
    source = PostgresTaskQueue(pool, queue.names.queue, slots=slots, lease=lease)
    async with running([source]):
        yield source


async def take(source: PostgresTaskQueue) -> Delivery:
    """Take the next message within some seconds."""
    return await asyncio.wait_for(source.take(), 10)


async def test_a_consumer_takes_no_more_messages_than_it_has_slots(pool: Pool, queue: PgFanout) -> None:
    """Messages without a slot in one consumer go to another one."""
    await queue.put("a", "b", "c", "d")
    async with consumer(pool, queue, slots=2) as one, consumer(pool, queue, slots=2) as other:
        taken = [await take(source) for source in (one, one, other, other)]
        assert sorted(delivery.message_id or "" for delivery in taken) == ["a", "b", "c", "d"]
        await queue.put("e")
        waiting = asyncio.create_task(one.take())
        assert await queue.count(queue.names.queue) == 1
        assert await one.ack(taken[0])
        assert (await asyncio.wait_for(waiting, 10)).message_id == "e"
    assert (
        await pool.fetchval("SELECT count(*) FROM tickwright.messages WHERE message_id = $1", taken[0].message_id) == 0
    )


class Member:
    """What a session tells of the turns: this consumer has one other beside it."""

    def join(self, _group: str, _joins: object) -> Callable[[], Place]:
        """Return the place."""
        return lambda: Place(others=1, before=0, rank=0, rank_next=0, round=0)


async def test_consumers_take_turns_and_wait_for_none_while_more_is_there(
    pool: Pool, queue: PgFanout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle one takes at its turn only; one that found as much as it had room for takes with each free slot."""
    turn_s = [0.05]
    monkeypatch.setattr(Turns, "next_in_s", lambda _: turn_s[0])
    source = PostgresTaskQueue(pool, queue.names.queue, slots=2, session=cast("Session", Member()))
    async with running([source]):
        await eventually_async(lambda: source.last_tick_age_s() is not None, what="it has looked")
        await queue.put(*"abcdef")
        held = [await take(source)]
        turn_s[0] = 3600.0
        for _ in range(5):
            await source.ack(held.pop())
            held.append(await take(source))
        await source.ack(held.pop())
        await eventually_async(
            lambda: source._turn_s > monotonic() + 1800, what="nothing was left: it waits for its turn"
        )
        await queue.put("later")
        source.wakeup.set()
        ticked = source._ticked_s
        await eventually_async(lambda: source._ticked_s != ticked, what="it has had another round")
        assert await queue.count(queue.names.queue) == 1


async def test_a_message_stays_with_its_consumer_however_long_it_takes(pool: Pool, queue: PgFanout) -> None:
    """The lease is renewed: no other consumer gets it after several of its lengths."""
    await queue.put("a")
    async with consumer(pool, queue) as one, consumer(pool, queue) as other:
        held = await take(one)
        other_takes = asyncio.create_task(other.take())
        renewed = "SELECT available_at > created_at + $1::interval * 3 FROM tickwright.messages"
        await eventually_async(lambda: pool.fetchval(renewed, SHORT), what="it is renewed beyond three leases")
        assert not other_takes.done()
        assert await one.ack(held)
        other_takes.cancel()


async def test_a_dead_consumers_message_comes_back(pool: Pool, queue: PgFanout) -> None:
    """Its lease expires, the next consumer has it, and later calls of the dead one change nothing."""
    await queue.put("a")
    dead = PostgresTaskQueue(pool, queue.names.queue, slots=1, lease=SHORT)
    running_dead = asyncio.create_task(dead.run())
    held = await take(dead)
    running_dead.cancel()
    async with consumer(pool, queue) as other:
        again = await take(other)
        assert (again.message_id, again.deliveries) == ("a", 2)
        assert not await dead.ack(held)
        assert not await dead.delay(held, timedelta(seconds=1))
        assert not await dead.dead_letter(held, "no", "no")
        await dead.release(held)
        assert await other.ack(again)


async def test_a_delay_keeps_everything_and_costs_no_delivery(pool: Pool, queue: PgFanout) -> None:
    """It comes again after its time, with one more delay."""
    await queue.put("a", body=b"body")
    async with consumer(pool, queue) as source:
        first = await take(source)
        assert await source.delay(first, timedelta(seconds=1))
        left = "SELECT available_at > clock_timestamp() + interval '0.5 s' FROM tickwright.messages"
        assert await pool.fetchval(left)
        second = await take(source)
        assert (second.message_id, second.body, second.deliveries, second.delays) == ("a", b"body", 1, 1)
        assert await source.ack(second)


async def test_a_message_that_is_delivered_too_often_is_dead(pool: Pool, queue: PgFanout) -> None:
    """A message over which consumers die is dead-lettered with that reason, by itself."""
    await queue.put("a", "b")
    await pool.execute("UPDATE tickwright.messages SET deliveries = $1 WHERE message_id = 'a'", DELIVERIES_MAX)
    async with consumer(pool, queue) as source:
        assert (await take(source)).message_id == "b"
    [dead] = (await queue.dead.peek(10)).messages
    assert (dead.message_id, dead.reason) == ("a", "delivery_limit")


async def test_dead_letters_can_be_listed_and_requeued(pool: Pool, queue: PgFanout) -> None:
    """With reason and text, in order; a requeued one is like a new one."""
    await queue.put("a", "b", "c", body=b"\x00not json")
    async with consumer(pool, queue) as source:
        for reason in ("one", "two", "three"):
            assert await source.dead_letter(await take(source), reason, f"because\x00 of {reason} \udc80")
        assert (await queue.dead.peek(1)).total == 3
        dead = (await queue.dead.peek(2)).messages
        assert [(one.message_id, one.reason, one.body) for one in dead] == [
            ("a", "one", b"\x00not json"),
            ("b", "two", b"\x00not json"),
        ]
        assert dead[0].text.startswith("because  of one")
        assert dead[0].died_at_s is not None
        assert await queue.dead.requeue(10, message_ids=["c", "unknown"]) == ["c"]
        back = await take(source)
        assert (back.message_id, back.deliveries, back.delays, back.headers) == ("c", 1, 0, {})
        assert await source.ack(back)
        assert sorted(await queue.dead.requeue(10)) == ["a", "b"]
        assert (await queue.dead.peek(1)).total == 0


async def test_a_stop_releases_messages_that_were_not_begun(pool: Pool, queue: PgFanout) -> None:
    """Others can take them at once, and they cost no delivery."""
    await queue.put("a", "b")
    async with consumer(pool, queue, slots=2, lease=timedelta(minutes=5)) as source:
        held = await take(source)
        await source.quiesce()
        await eventually_async(lambda: free(queue), what="the other one is free")
        assert await source.ack(held)
    async with consumer(pool, queue) as other:
        assert (await take(other)).deliveries == 1


async def free(queue: PgFanout) -> bool:
    """Return whether one message is free."""
    return await queue.count(queue.names.queue) == 1


async def test_without_the_database_calls_return_false_and_dead_letters_raise(database_url: str, pool: Pool) -> None:
    """An ack that cannot be written is false; listing dead letters raises that the database is unavailable."""
    queue = PgFanout(pool)
    await queue.put("a")
    own = await open_pool(database_url, max_size=2)
    async with consumer(own, queue, lease=timedelta(minutes=5)) as source:
        held = await take(source)
        own.terminate()
        assert not await source.ack(held)
    with pytest.raises(Unavailable):
        await PostgresDeadLetters(own, queue.names.queue).peek(1)
