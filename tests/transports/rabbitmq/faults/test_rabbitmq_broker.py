"""RabbitMQ under kill -9, alarms and wrong destinations: accepted is queued, refused is not, the rest is in doubt."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import uuid4

import aio_pika
import pytest
from aiormq.abc import FieldValue

from kit.servers import RabbitServer
from kit.waiting import eventually_async
from tickwright.ports.broker import Accepted, Message, Outcome, Refused, Unknown
from tickwright.transports.rabbitmq.broker import RabbitBroker


@pytest.fixture
async def broker(mortal_rabbit: RabbitServer) -> AsyncIterator[RabbitBroker]:
    """A broker connected to the node that tests may kill."""
    broker = RabbitBroker(mortal_rabbit.url)
    yield broker
    await broker.aclose()


def message(destination: str, number: int = 1, timeout_s: float = 5) -> Message:
    """Return a small message."""
    return Message(f"job_{number}", destination, b'{"n": %d}' % number, timeout=timedelta(seconds=timeout_s))


async def declare(url: str, arguments: dict[str, FieldValue] | None = None) -> str:
    """Declare a durable queue and return its name."""
    async with await aio_pika.connect(url) as connection, connection.channel() as channel:
        queue = await channel.declare_queue(f"q-{uuid4().hex}", durable=True, arguments=arguments)
        return queue.name


async def ids_in(url: str, name: str) -> list[str]:
    """Take all messages out of a queue and return their ids."""
    found: list[str] = []
    async with await aio_pika.connect(url) as connection, connection.channel() as channel:
        queue = await channel.get_queue(name)
        while (taken := await queue.get(fail=False, no_ack=True)) is not None:
            found.append(taken.message_id or "")
    return found


async def test_messages_confirmed_before_a_kill_are_queued_after_it(
    mortal_rabbit: RabbitServer, broker: RabbitBroker
) -> None:
    """Kill -9 during publishes: accepted ones are all there, and the broker recovers by itself."""
    queue = await declare(mortal_rabbit.url)
    outcomes: dict[int, Outcome] = {}

    async def publisher(first: int) -> None:
        for number in range(first, first + 10_000):
            outcomes[number] = await broker.publish(message(f"amqp:/{queue}", number, 2))
            if not isinstance(outcomes[number], Accepted):
                return

    publishers = [asyncio.create_task(publisher(lane * 10_000)) for lane in range(20)]
    await eventually_async(lambda: len(outcomes) > 300, 30)
    await asyncio.to_thread(mortal_rabbit.kill9)
    await asyncio.wait_for(asyncio.gather(*publishers), 20)
    down = await broker.publish(message(f"amqp:/{queue}", 999_999, 2))
    assert isinstance(down, Refused)
    assert down.code == "broker_unavailable"

    await asyncio.to_thread(mortal_rabbit.start)

    async def recovered() -> bool:
        return isinstance(await broker.publish(message(f"amqp:/{queue}", 1_000_000)), Accepted)

    await eventually_async(recovered, 20)  # mypy cannot split the union
    accepted = {f"job_{number}" for number, outcome in outcomes.items() if isinstance(outcome, Accepted)}
    refused = {f"job_{number}" for number, outcome in outcomes.items() if isinstance(outcome, Refused)}
    queued = set(await ids_in(mortal_rabbit.url, queue))
    assert len(accepted) > 300
    assert accepted <= queued
    assert not refused & queued


async def test_an_alarm_refuses_at_once_and_ends_by_itself(mortal_rabbit: RabbitServer, broker: RabbitBroker) -> None:
    """While the disk is nearly full nothing is accepted and nothing piles up; afterwards publishing goes on."""
    queue = await declare(mortal_rabbit.url)
    destination = f"amqp:/{queue}"

    async def blocked() -> bool:
        return not await broker.ready()

    async def in_doubt() -> bool:
        return isinstance(await broker.publish(message(destination, 1, 1)), Unknown)

    assert await broker.publish(message(destination, 0)) == Accepted()
    await asyncio.to_thread(mortal_rabbit.set_disk_alarm, on=True)
    try:
        await eventually_async(in_doubt, 20, what="the alarm is in force, which takes the node a moment")
        await eventually_async(blocked, 20, what="the broker knows of the alarm")
        started = asyncio.get_running_loop().time()
        outcomes = await broker.publish_many([message(destination, number, 5) for number in range(2, 300)])
        assert asyncio.get_running_loop().time() - started < 4, "a message has waited for its timeout"
        assert {outcome.code for outcome in outcomes if isinstance(outcome, Refused)} == {"broker_blocked"}
        assert not await broker.ready()
    finally:
        await asyncio.to_thread(mortal_rabbit.set_disk_alarm, on=False)

    async def accepts() -> bool:
        return isinstance(await broker.publish(message(destination, 500, 1)), Accepted)

    await eventually_async(accepts, 20)  # mypy cannot split the union
    queued = set(await ids_in(mortal_rabbit.url, queue))
    assert queued >= {"job_0", "job_500"}
    assert not queued & {f"job_{number}" for number in range(2, 300)}


async def test_a_missing_exchange_does_not_poison_the_other_publishes(
    mortal_rabbit: RabbitServer, broker: RabbitBroker
) -> None:
    """The 404 that closes a channel affects its own messages only."""
    queue = await declare(mortal_rabbit.url)
    batch = [message(f"amqp:/{queue}" if number % 2 else "amqp:nowhere/x", number) for number in range(100)]
    outcomes = await broker.publish_many(batch)
    assert set(outcomes[1::2]) == {Accepted()}
    assert {outcome.code for outcome in outcomes[::2] if isinstance(outcome, Refused)} == {"exchange_missing"}
    assert not any(isinstance(outcome, Accepted | Unknown) for outcome in outcomes[::2])
    assert len(await ids_in(mortal_rabbit.url, queue)) == 50


async def test_a_deleted_exchange_is_noticed_and_used_again_once_it_is_back(
    mortal_rabbit: RabbitServer, broker: RabbitBroker
) -> None:
    """A route that worked is refused, and its channel opened again when the exchange is back."""
    queue = await declare(mortal_rabbit.url)
    name = f"x-{uuid4().hex}"
    async with await aio_pika.connect(mortal_rabbit.url) as connection, connection.channel() as channel:
        exchange = await channel.declare_exchange(name, durable=True)
        await (await channel.get_queue(queue)).bind(exchange, "go")
        assert await broker.publish(message(f"amqp:{name}/go")) == Accepted()
        await channel.exchange_delete(name)
        for _ in range(2):
            gone = await broker.publish(message(f"amqp:{name}/go"))
            assert isinstance(gone, Refused)
            assert gone.code == "exchange_missing"
        exchange = await channel.declare_exchange(name, durable=True)
        await (await channel.get_queue(queue)).bind(exchange, "go")
        assert await broker.publish(message(f"amqp:{name}/go")) == Accepted()


async def test_an_unroutable_message_and_a_full_queue_are_refused(
    mortal_rabbit: RabbitServer, broker: RabbitBroker
) -> None:
    """A confirm alone is not enough: a return or a nack means that nothing was taken."""
    full = await declare(mortal_rabbit.url, {"x-max-length": 1, "x-overflow": "reject-publish"})
    assert await broker.publish(message(f"amqp:/{full}", 1)) == Accepted()
    nack = await broker.publish(message(f"amqp:/{full}", 2))
    assert isinstance(nack, Refused)
    assert nack.code == "broker_nack"
    returned = await broker.publish_many([message("amqp:/no-such-queue", number) for number in range(20)])
    assert {outcome.code for outcome in returned if isinstance(outcome, Refused)} == {"unroutable"}
    assert len(returned) == 20
    assert await ids_in(mortal_rabbit.url, full) == ["job_1"]


async def test_one_id_to_a_good_and_a_bad_key_at_once_gets_both_right_answers(
    mortal_rabbit: RabbitServer, broker: RabbitBroker
) -> None:
    """Returns are matched by message id, so equal ids must not be in flight together on one channel."""
    queue = await declare(mortal_rabbit.url)
    batch = [message("amqp:/no-such-queue"), message(f"amqp:/{queue}")] * 20
    outcomes = await broker.publish_many(batch)
    assert set(outcomes[1::2]) == {Accepted()}
    assert all(isinstance(outcome, Refused) and outcome.code == "unroutable" for outcome in outcomes[::2])


async def test_messages_are_persistent_and_carry_their_id(mortal_rabbit: RabbitServer, broker: RabbitBroker) -> None:
    """What a consumer needs to recognise a resend survives a restart of the node."""
    queue = await declare(mortal_rabbit.url)
    assert await broker.publish(message(f"amqp:/{queue}", 7)) == Accepted()
    await asyncio.to_thread(mortal_rabbit.restart)
    assert await ids_in(mortal_rabbit.url, queue) == ["job_7"]


async def test_a_wrong_password_is_a_refusal_with_a_pause(mortal_rabbit: RabbitServer) -> None:
    """Nothing was sent; the next attempt waits, so a wrong setting causes no storm of log-ins."""
    broker = RabbitBroker(mortal_rabbit.url.replace("guest:guest", "guest:wrong"))
    first = await broker.publish(message("amqp:/q"))
    second = await broker.publish(message("amqp:/q"))
    await broker.aclose()
    assert isinstance(first, Refused)
    assert isinstance(second, Refused)
    assert (first.code, second.code) == ("broker_unavailable", "broker_unavailable")
    assert second.retry_after is not None
