"""A queue of RabbitMQ that confirms nothing blocks no other, and is used again once it confirms."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from itertools import count
from uuid import uuid4

import aio_pika
import pytest
from pamqp.commands import Basic

from kit.engine import running_engine
from kit.mutants import mutate
from kit.relays import relay_world
from kit.servers import RabbitServer
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.model import TaskType
from tickwright.engine.outbox.relay import LANE_RETRY, RETRY
from tickwright.ports.broker import Accepted, Message, Outcome, Refused, Unknown
from tickwright.transports.rabbitmq import connection as wire
from tickwright.transports.rabbitmq.broker import WINDOW, RabbitBroker, StalledDestinations
from tickwright.transports.rabbitmq.forwarding import Forwarder, copy_of
from tickwright.transports.rabbitmq.topology import fanout_names

LEADER = 'Q = rabbit_misc:r(<<"/">>, queue, <<"{}">>), {{ok, R}} = rabbit_amqqueue:lookup(Q), {}(amqqueue:get_pid(R)).'
ROUNDS = 5


@pytest.fixture
async def broker(mortal_rabbit: RabbitServer) -> AsyncIterator[RabbitBroker]:
    """A broker connected to the module's node."""
    broker = RabbitBroker(mortal_rabbit.url)
    yield broker
    await broker.aclose()


async def two_queues(url: str) -> tuple[str, str]:
    """Declare a quorum queue, bound to an exchange of its name for every key, and a classic one; return their names."""
    bad, good = f"bad-{uuid4().hex}", f"good-{uuid4().hex}"
    async with await aio_pika.connect(url) as connection, connection.channel() as channel:
        queue = await channel.declare_queue(bad, durable=True, arguments={"x-queue-type": "quorum"})
        await queue.bind(await channel.declare_exchange(bad, "topic", durable=True), "#")
        await channel.declare_queue(good, durable=True)
    return bad, good


@contextmanager
def suspended(server: RabbitServer, queue: str) -> Iterator[None]:
    """Suspend the leader of a quorum queue, as if it had lost its majority, for the length of the block."""
    server.control("eval", LEADER.format(queue, "sys:suspend"))
    try:
        yield
    finally:
        server.control("eval", LEADER.format(queue, "sys:resume"))


def batch(destination: str, numbers: Iterator[int], size: int, timeout_s: float) -> list[Message]:
    """Return messages with ids of their own."""
    timeout = timedelta(seconds=timeout_s)
    return [Message(f"m_{next(numbers)}", destination, b"{}", timeout=timeout) for _ in range(size)]


def codes(outcomes: list[Outcome]) -> Counter[str]:
    """Count the outcomes by code."""
    return Counter("accepted" if isinstance(outcome, Accepted) else outcome.code for outcome in outcomes)


async def ids_in(url: str, name: str) -> set[str]:
    """Take all messages out of a queue; return their ids."""
    found: set[str] = set()
    async with await aio_pika.connect(url) as connection, connection.channel() as channel:
        queue = await channel.get_queue(name)
        while (taken := await queue.get(fail=False, no_ack=True)) is not None:
            found.add(taken.message_id or "")
    return found


@asynccontextmanager
async def flood(broker: RabbitBroker, destinations: list[str], said: dict[str, Outcome]) -> AsyncIterator[None]:
    """Publish to all destinations, 200 messages at a time to each, and again as soon as they are answered."""
    numbers = count(1_000_000)

    async def publish(destination: str) -> None:
        while True:
            messages = batch(destination, numbers, 200, 8)
            outcomes = await broker.publish_many(messages)
            said.update((one.id, outcome) for one, outcome in zip(messages, outcomes, strict=True))
            await asyncio.sleep(0.05)  # a publisher whose messages are refused at once

    tasks = [asyncio.create_task(publish(one)) for one in destinations]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def check_others(server: RabbitServer, broker: RabbitBroker) -> None:
    """Four destinations of one silent queue, 800 messages at a time, beside a healthy queue of their exchange."""
    bad, good = await two_queues(server.url)
    numbers, said = count(), dict[str, Outcome]()
    accepted = [f"amqp:/{bad}", *(f"amqp:{bad}/{key}" for key in "abc")]
    assert codes(await broker.publish_many(batch(f"amqp:/{good}", numbers, 10, 20))) == {"accepted": 10}
    with suspended(server, bad):
        async with flood(broker, accepted, said):

            async def silent() -> bool:
                return codes(list(said.values()))["broker_silent"] > 4 * WINDOW

            async def healthy() -> bool:
                return codes(await broker.publish_many(batch(f"amqp:/{good}", numbers, 50, 8))) == {"accepted": 50}

            await eventually_async(silent, 60, what="messages to the silent queue are refused at once")
            await eventually_async(healthy, 30, what="the other queue takes messages")
            for _ in range(ROUNDS):
                messages = batch(f"amqp:/{good}", numbers, 3 * WINDOW, 20)
                assert codes(await broker.publish_many(messages)) == {"accepted": len(messages)}
        assert not any(isinstance(outcome, Accepted) for outcome in said.values())

    async def recovered() -> bool:
        found = await broker.publish_many([batch(one, numbers, 1, 5)[0] for one in accepted])
        return codes(found) == {"accepted": len(accepted)}

    await eventually_async(recovered, 60, what="the queue is used again, without a restart")
    refused = {message_id for message_id, outcome in said.items() if isinstance(outcome, Refused)}
    assert not refused & await ids_in(server.url, bad)
    messages = batch(f"amqp:/{bad}", numbers, 3 * WINDOW, 20)
    assert codes(await broker.publish_many(messages)) == {"accepted": len(messages)}


@pytest.mark.storm
async def test_a_queue_that_confirms_nothing_blocks_no_other(mortal_rabbit: RabbitServer, broker: RabbitBroker) -> None:
    """Its unconfirmed messages are bounded and on their own connection, so RabbitMQ goes on reading the other one."""
    await check_others(mortal_rabbit, broker)


@pytest.mark.storm
async def test_the_suite_notices_a_silent_destination_on_the_shared_connection(
    mortal_rabbit: RabbitServer, broker: RabbitBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: silent destinations are not kept apart."""
    mutate(monkeypatch, StalledDestinations.has, "return (exchange, routing_key) in self._keys", "return False")
    with pytest.raises(AssertionError):
        await check_others(mortal_rabbit, broker)


@pytest.mark.storm
async def test_messages_in_doubt_of_a_silent_queue_are_bounded_however_long_it_lasts(
    mortal_rabbit: RabbitServer, broker: RabbitBroker
) -> None:
    """The first ones may have been taken; once they are late, for the others it is certain that nothing was sent."""
    bad, _ = await two_queues(mortal_rabbit.url)
    numbers, said = count(), dict[str, Outcome]()
    with suspended(mortal_rabbit, bad):
        async with flood(broker, [f"amqp:/{bad}"], said):
            await eventually_async(lambda: codes(list(said.values()))["broker_silent"] > 5000, 60)
        in_doubt = {message_id for message_id, outcome in said.items() if isinstance(outcome, Unknown)}
        assert 0 < len(in_doubt) <= 2 * 200 + 16

    async def recovered() -> bool:
        return codes(await broker.publish_many(batch(f"amqp:/{bad}", numbers, 1, 5))) == {"accepted": 1}

    await eventually_async(recovered, 60)


@pytest.mark.storm
async def test_jobs_of_other_queues_are_delivered_beside_a_silent_queue(
    database_url: str, mortal_rabbit: RabbitServer, broker: RabbitBroker
) -> None:
    """A worker whose slots are full of messages to the silent queue delivers to the others, then to that queue, too."""
    bad, good = await two_queues(mortal_rabbit.url)
    kinds = {
        "bad": TaskType("bad", f"amqp:/{bad}", concurrency=200, timeout=timedelta(seconds=5)),
        "good": TaskType("good", f"amqp:/{good}"),
    }
    async with running_engine(database_url, kinds=kinds, brokers={"amqp": broker}) as engine:
        await engine.until(await engine.insert("good"), "completed", within_s=30)
        with suspended(mortal_rabbit, bad):
            await engine.pool.execute(
                "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload, max_attempts) "
                "SELECT now(), 'bad', '{}', 100 FROM generate_series(1, 1000)"
            )

            async def silent_failures() -> int:
                silent = "SELECT count(*) FROM tickwright.scheduled_tasks WHERE error_message LIKE 'broker_silent%'"
                found: int = await engine.pool.fetchval(silent)
                return found

            early = [await engine.insert("good") for _ in range(100)]
            await eventually_async(silent_failures, 60, what="the silent queue is known")
            for _ in range(10):
                late = [await engine.insert("good") for _ in range(20)]
                for job_id in late:
                    assert (await engine.until(job_id, "completed", "failed", within_s=60))["attempts"] == 1
            for job_id in early:
                await engine.until(job_id, "completed", within_s=60)
        await engine.until(await engine.insert("bad"), "completed", within_s=120)


async def test_the_relay_goes_on_beside_a_silent_queue(
    database_url: str, mortal_rabbit: RabbitServer, broker: RabbitBroker
) -> None:
    """Three lanes of the silent queue want more room than the window has; the fourth is delivered nevertheless."""
    bad, good = await two_queues(mortal_rabbit.url)
    async with relay_world(database_url) as world:
        relay = world.relay(brokers={"amqp": broker}, retry=RETRY, lane_retry=LANE_RETRY)
        async with world.running(relay):
            await world.put(f"amqp:/{good}")
            await world.emptied()
            with suspended(mortal_rabbit, bad):
                for key in "abc":
                    await world.put_many(1000, f"amqp:{bad}/{key}")
                await eventually_async(lambda: relay.lanes_failing == 3, 60, what="the lanes of the silent queue wait")

                async def delivered() -> bool:
                    waiting = "SELECT count(*) FROM tickwright.outbox WHERE destination = $1"
                    return bool(await world.pool.fetchval(waiting, f"amqp:/{good}") == 0)

                for _ in range(20):
                    await world.put(f"amqp:/{good}")
                    await eventually_async(delivered, 60, what="the healthy lane is delivered")
            await world.emptied(120)
        assert await world.dead() == []


@pytest.mark.storm
async def test_copies_to_other_queues_go_on_beside_a_silent_queue(
    mortal_rabbit: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RabbitMQ does not close the channel of a late copy; the next channel is opened beside it."""
    monkeypatch.setattr(wire, "CLOSE_TIMEOUT_S", 30.0)
    names, numbers = fanout_names(f"t{uuid4().hex}"), count()
    forwarder = Forwarder(mortal_rabbit.url, names)

    async def forwarded(queue: str) -> Outcome:
        properties = Basic.Properties(message_id=f"m_{next(numbers)}")
        return await forwarder.forward(copy_of(b"{}", properties, {}, without=frozenset()), "", queue)

    bad, good = names.delays[60], names.delays[10]
    try:
        assert isinstance(await forwarded(good), Accepted)
        with suspended(mortal_rabbit, bad):
            for _ in range(3):
                assert isinstance(await forwarded(bad), Unknown)
                assert isinstance(await forwarded(good), Accepted)
    finally:
        await forwarder.aclose()
