"""Listing dead letters on a RabbitMQ with a slow disk: all messages are back in the queue when the listing ends."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from pamqp.commands import Basic

from kit.mutants import mutate
from kit.rabbit_queues import raw_channel
from kit.rabbit_tasks import Fanout
from kit.servers import RabbitServer, started
from kit.waiting import eventually_async
from tickwright.transports.rabbitmq import dead_letters
from tickwright.transports.rabbitmq.dead_letters import RabbitDeadLetters

pytestmark = pytest.mark.storm

IDS = [*"abcdefgh"]


@pytest.fixture(scope="module")
def slow_rabbit() -> Iterator[RabbitServer]:
    """A node whose disk takes 60 ms more for each write, also for a get and a release."""
    with started(RabbitServer(slow_disk_ms=60)) as server:
        yield server


@pytest.fixture
async def fanout(slow_rabbit: RabbitServer) -> AsyncIterator[Fanout]:
    """Queues of the test's own, with dead letters."""
    fanout = Fanout(slow_rabbit.url)
    await fanout.prepare()
    async with raw_channel(fanout.url) as channel:
        for one in IDS:
            properties = Basic.Properties(delivery_mode=2, message_id=one)
            await channel.basic_publish(b"{}", exchange="", routing_key=fanout.names.dead, properties=properties)
    yield fanout
    await fanout.remove()


async def check_repeated_listings(fanout: Fanout) -> None:
    """Each listing has all, in their order, and their count."""
    for _ in range(3):
        messages, count = await fanout.dead.peek(10)
        assert ([one.message_id for one in messages], count) == (IDS, len(IDS))


async def check_all_are_back_after_a_listing(fanout: Fanout) -> None:
    """A requeue finds every listed message, and those that it does not take stay."""
    await fanout.dead.peek(10)
    assert await fanout.dead.requeue(10, message_ids=IDS[2:4]) == IDS[2:4]
    assert await fanout.dead.requeue(10) == IDS[:2] + IDS[4:]
    assert await fanout.dead.peek(10) == ([], 0)


async def check_held_by_another(fanout: Fanout) -> None:
    """A listing does not wait for messages that another consumer took: two seconds at most, without an error."""
    async with raw_channel(fanout.url) as channel:
        listing = asyncio.create_task(fanout.dead.peek(10))

        async def begun() -> bool:
            return await fanout.count(fanout.names.dead) < len(IDS)

        await eventually_async(begun, 10, what="the listing has taken one")
        await channel.basic_get(fanout.names.dead)
        async with asyncio.timeout(8):
            messages, count = await listing
    assert (len(messages), count) == (len(IDS) - 1, len(IDS))


CHECKS = [check_repeated_listings, check_all_are_back_after_a_listing, check_held_by_another]


@pytest.mark.parametrize("check", CHECKS)
async def test_a_listing_ends_when_all_messages_are_back(fanout: Fanout, check: Any) -> None:
    """However slow the disk is."""
    await check(fanout)


@pytest.mark.parametrize(
    ("guard", "instead", "check"),
    [
        ("await browse.return_all(connection)", "pass", check_repeated_listings),
        ("await browse.return_all(connection)", "pass", check_all_are_back_after_a_listing),
        ("monotonic() > until", "False", check_held_by_another),
    ],
)
async def test_the_mutants_are_caught(
    fanout: Fanout, monkeypatch: pytest.MonkeyPatch, guard: str, instead: str, check: Any
) -> None:
    """Mutants: no wait, and no bound on it."""
    function = dead_letters._Browse.return_all if "until" in guard else RabbitDeadLetters._browse
    mutate(monkeypatch, function, guard, instead)
    with pytest.raises((AssertionError, TimeoutError)):
        await check(fanout)
