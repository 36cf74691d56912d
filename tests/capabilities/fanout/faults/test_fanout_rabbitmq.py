"""Fan-out's queue on a real RabbitMQ: which consumer gets which task, when, and how the task ends."""

import asyncio
from datetime import timedelta
from time import monotonic
from uuid import uuid4

import pytest
from aiormq.exceptions import ChannelNotFoundEntity

from kit.rabbit_queues import raw_channel
from kit.rabbit_tasks import (
    Fanout,
    check_acknowledged_behind_its_copy,
    check_acknowledged_once,
    check_deleted_delay_queue,
    check_held_holds_up_no_other,
    nothing_comes,
    taken,
)
from kit.servers import RabbitServer
from kit.waiting import eventually_async
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.transports.rabbitmq.tasks import RabbitTaskQueue
from tickwright.transports.rabbitmq.topology import DELAYS_S, REDELIVERIES_MAX, fanout_names, prepare

SECOND = timedelta(seconds=1)


# ---------------------------------------------------------------------------------------------- queues


async def test_declaring_the_queues_again_changes_nothing(fanout: Fanout) -> None:
    """Every process declares them at its start and after each loss of the connection."""
    await fanout.put("a")
    await fanout.prepare()
    await fanout.prepare()
    assert await fanout.ids_in(fanout.names.queue) == ["a"]


async def test_a_queue_with_another_argument_is_named_with_the_argument_and_the_remedy(
    rabbit_server: RabbitServer,
) -> None:
    """An argument of a queue cannot be changed: the error at start names it and says what to do."""
    fanout = Fanout(rabbit_server.url)
    arguments = {**fanout.names.queues[fanout.names.queue], "x-delivery-limit": 3}
    async with raw_channel(rabbit_server.url) as channel:
        for name in (fanout.names.queue, fanout.names.dead):
            await channel.exchange_declare(name, exchange_type="direct", durable=True)
        await channel.queue_declare(fanout.names.queue, durable=True, arguments=arguments)
    with pytest.raises(Rejected) as refused:
        await fanout.prepare()
    assert refused.value.code == "queue_differs"
    assert refused.value.details == {"name": fanout.names.queue, "argument": "x-delivery-limit"}
    assert "'10'" in refused.value.message
    assert "'3'" in refused.value.message
    assert "TICKWRIGHT_AMQP_PREFIX" in refused.value.message
    source = RabbitTaskQueue(rabbit_server.url, fanout.names, slots=1)
    with pytest.raises(Rejected):
        await asyncio.wait_for(source.run(), 10)
    await source.stop()
    await fanout.remove()


@pytest.mark.parametrize("kind", ["fanout", "topic"])
async def test_an_exchange_of_another_type_is_named(rabbit_server: RabbitServer, kind: str) -> None:
    """The error at start names an exchange, too."""
    fanout = Fanout(rabbit_server.url)
    async with raw_channel(rabbit_server.url) as channel:
        await channel.exchange_declare(fanout.names.exchange, exchange_type=kind, durable=True)
    with pytest.raises(Rejected) as refused:
        await fanout.prepare()
    assert refused.value.details == {"name": fanout.names.exchange, "argument": "type"}
    await fanout.remove()


async def test_a_user_without_rights_is_rejected(rabbit_server: RabbitServer) -> None:
    """A missing right is no outage: a retry would not help."""
    user = f"u{uuid4().hex[:8]}"
    await asyncio.to_thread(rabbit_server.control, "add_user", user, "secret")
    await asyncio.to_thread(rabbit_server.control, "set_permissions", user, "^none$", ".*", ".*")
    url = rabbit_server.url.replace("guest:guest", f"{user}:secret")
    with pytest.raises(Rejected) as refused:
        await prepare(url, fanout_names(f"t{uuid4().hex[:12]}"))
    assert refused.value.code == "queue_forbidden"
    await asyncio.to_thread(rabbit_server.control, "delete_user", user)


async def test_no_rabbitmq_is_unavailable(rabbit_server: RabbitServer) -> None:
    """An outage can be retried."""
    with pytest.raises(Unavailable):
        await prepare("amqp://guest:guest@127.0.0.1:1/", fanout_names("t"))


# ---------------------------------------------------------------------------------------------- deliveries


async def test_a_held_task_blocks_no_other(fanout: Fanout) -> None:
    """One slot each: while one consumer works on a slow entity, free consumers get the rest."""
    await check_held_holds_up_no_other(fanout)


async def test_a_consumer_holds_no_more_tasks_than_it_has_slots(fanout: Fanout) -> None:
    """The prefetch is the number of slots; the rest stays in the queue for free consumers."""
    await fanout.put(*"abcdef")
    async with fanout.consumer(2) as source:
        await taken(source)
        await taken(source)
        assert await nothing_comes(source, 0.2)
        assert await fanout.count(fanout.names.queue) == 4


async def test_only_the_first_answer_to_a_delivery_is_sent(fanout: Fanout) -> None:
    """A second answer to one delivery would close the channel for all others."""
    await check_acknowledged_once(fanout)


async def test_a_released_task_comes_back_at_once_and_is_counted(fanout: Fanout) -> None:
    """RabbitMQ counts the delivery, and the next consumer sees the count."""
    await fanout.put("a")
    async with fanout.consumer() as source:
        first = await taken(source)
        assert (first.deliveries, first.delays) == (1, 0)
        await source.release(first)
        assert (await taken(source)).deliveries == 2


async def test_the_eleventh_delivery_is_the_last(fanout: Fanout) -> None:
    """A task that kills every consumer ends as a dead letter with the broker's reason."""
    await fanout.put("poison")
    async with fanout.consumer() as source:
        for number in range(1, REDELIVERIES_MAX + 2):
            task = await taken(source)
            assert task.deliveries == number
            await source.release(task)
        assert await nothing_comes(source, 0.2)
    dead = (await fanout.dead.peek(10)).messages[0]
    assert (dead.message_id, dead.reason) == ("poison", "delivery_limit")
    assert dead.died_at_s is not None


async def test_deliveries_are_counted_across_delays(fanout: Fanout) -> None:
    """A task that kills its consumers, and is delayed after each, ends as a dead letter like one that is not."""
    await fanout.put("poison")
    async with fanout.consumer() as source:
        for _ in range(2):
            for _ in range(REDELIVERIES_MAX // 2):
                await source.release(await taken(source))
            assert await source.delay(await taken(source), SECOND)
        assert await nothing_comes(source, 0.2)
    [dead] = (await fanout.dead.peek(10)).messages
    assert (dead.message_id, dead.reason) == ("poison", "delivery_limit")
    assert await fanout.dead.requeue(1) == ["poison"]
    async with fanout.consumer() as source:
        assert await source.delay(await taken(source), SECOND)
        again = await taken(source)
        assert await source.ack(again)
    assert (again.delays, again.headers["tickwright-redeliveries"]) == (1, 0)


async def test_quiescing_releases_waiting_tasks_and_keeps_taken_ones(fanout: Fanout) -> None:
    """During a deploy other consumers get the waiting tasks at once; running ones can still be acknowledged."""
    await fanout.put(*"abc")
    async with fanout.consumer(3) as source:
        task = await taken(source)
        assert task.message_id == "a"
        await eventually_async(lambda: source.waiting == 2, what="the others are prefetched")
        await source.quiesce()
        await fanout.counted(fanout.names.queue, 2)
        await fanout.put("d")
        assert await nothing_comes(source, 0.2)
        assert await source.ack(task)
    assert await fanout.ids_in(fanout.names.queue) == ["b", "c", "d"]


async def test_a_consumer_that_stops_releases_what_it_held(fanout: Fanout) -> None:
    """Closing the connection is enough; later acks are void."""
    await fanout.put("a")
    async with fanout.consumer() as source:
        task = await taken(source)
    assert not await source.ack(task)
    await source.stop()
    await fanout.counted(fanout.names.queue, 1)


async def test_a_consumer_reports_queued_tasks_and_dead_letters(fanout: Fanout) -> None:
    """Every consumer's metrics have what an alert on dead letters needs."""
    await fanout.put(*"abcd")
    await fanout.reject(1)
    async with fanout.consumer(1) as source:
        await taken(source)
        await eventually_async(lambda: source.queued is not None)
        found = {(sample.name, *sample.labels): sample.value for sample in source.samples()}
    assert found["tickwright_dead_letters", "fanout"] == 1
    assert found["tickwright_fanout_queued_tasks",] in {2, 3}, "the count may be from before the delivery"
    assert found["tickwright_fanout_parked_tasks",] == 0


# ---------------------------------------------------------------------------------------------- delays


async def test_a_delay_keeps_the_message_and_is_counted(fanout: Fanout) -> None:
    """No earlier than asked; id, body and headers as they were; deliveries count from one."""
    await fanout.put("a", body=b"payload", headers={"trace": "x", "depth": {"n": [1, None, True]}})
    async with fanout.consumer() as source:
        await source.release(await taken(source))
        task = await taken(source)
        assert task.deliveries == 2
        since = monotonic()
        assert await source.delay(task, SECOND)
        again = await taken(source)
        assert monotonic() - since >= 0.95
        assert (again.message_id, again.body, again.deliveries, again.delays) == ("a", b"payload", 1, 1)
        assert again.headers["trace"] == "x"
        assert again.headers["depth"] == {"n": [1, None, True]}
        assert await source.delay(again, SECOND)
        third = await taken(source)
        assert third.delays == 2
        assert await source.ack(third)


@pytest.mark.parametrize(
    ("wanted_s", "queue_s"), [(0, 1), (0.2, 1), (1, 1), (9.9, 1), (10, 10), (59, 10), (60, 60), (9999, 60)]
)
async def test_a_delay_uses_the_longest_delay_queue_within_it(fanout: Fanout, wanted_s: float, queue_s: int) -> None:
    """Never longer than asked for, except for the shortest queue of a second."""
    await fanout.put("a")
    async with fanout.consumer() as source:
        assert await source.delay(await taken(source), timedelta(seconds=wanted_s))
    counts = {seconds: await fanout.count(fanout.names.delays[seconds]) for seconds in DELAYS_S}
    assert counts == {seconds: int(seconds == queue_s) for seconds in DELAYS_S}


async def test_a_delay_frees_the_slot_for_others(fanout: Fanout) -> None:
    """A slot never waits for a busy entity."""
    await fanout.put("a", "b")
    async with fanout.consumer(1) as source:
        assert await source.delay(await taken(source), timedelta(seconds=60))
        assert (await taken(source)).message_id == "b"


async def test_a_deleted_delay_queue_is_declared_again(fanout: Fanout) -> None:
    """The copy is returned as unroutable; the original waits for a copy that is confirmed."""
    await check_deleted_delay_queue(fanout)


async def test_the_original_is_acknowledged_only_after_its_copy(fanout: Fanout) -> None:
    """If the consumer is lost before the copy is confirmed, the task comes back: two copies at worst, never none."""
    await check_acknowledged_behind_its_copy(fanout)


async def test_a_queue_deleted_under_a_consumer_is_declared_again(fanout: Fanout) -> None:
    """RabbitMQ cancels the consumer; it declares again and goes on."""
    async with fanout.consumer() as source:
        await fanout.put("a")
        task, subscription = await taken(source), source._subscription
        await fanout.delete(fanout.names.queue)
        await eventually_async(
            lambda: source._subscription is not subscription or not source.connected, 20, what="it has noticed"
        )
        assert not await source.ack(task)
        await eventually_async(lambda: source.connected, what="it consumes again")
        await fanout.put("b")
        assert (await taken(source)).message_id == "b"


# ---------------------------------------------------------------------------------------------- names


async def test_all_names_follow_the_prefix(rabbit_server: RabbitServer) -> None:
    """Two installations on one RabbitMQ share nothing."""
    one, other = Fanout(rabbit_server.url), Fanout(rabbit_server.url)
    await one.prepare()
    with pytest.raises(ChannelNotFoundEntity):
        await other.count(other.names.queue)
    await one.remove()
    assert fanout_names().queue == "tickwright.fanout"
    assert fanout_names().dead == "tickwright.fanout.dead"
    assert fanout_names().delay(timedelta(seconds=15)) == "tickwright.fanout.delay.10s"
