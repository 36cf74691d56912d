"""Looking at dead letters on a RabbitMQ whose disk is slow: what a look took is back when it ends."""

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
    """A node whose disk takes 60 ms more for each write: taking and giving back are such writes."""
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


async def check_one_look_after_another(fanout: Fanout) -> None:
    """Each sees all, in their order, and says how many there are."""
    for _ in range(3):
        messages, count = await fanout.dead.peek(10)
        assert ([one.message_id for one in messages], count) == (IDS, len(IDS))


async def check_all_go_back_after_a_look(fanout: Fanout) -> None:
    """Nobody is told that nothing is there which he has just seen; what is not asked for is there again."""
    await fanout.dead.peek(10)
    assert await fanout.dead.requeue(10, message_ids=IDS[2:4]) == IDS[2:4]
    assert await fanout.dead.requeue(10) == IDS[:2] + IDS[4:]
    assert await fanout.dead.peek(10) == ([], 0)


async def check_held_by_another(fanout: Fanout) -> None:
    """A look does not wait for what another one took meanwhile: two seconds at most, and it fails nothing."""
    async with raw_channel(fanout.url) as channel:
        looking = asyncio.create_task(fanout.dead.peek(10))

        async def begun() -> bool:
            return await fanout.count(fanout.names.dead) < len(IDS)

        await eventually_async(begun, 10, what="the look has taken one")
        await channel.basic_get(fanout.names.dead)
        async with asyncio.timeout(8):
            messages, count = await looking
    assert (len(messages), count) == (len(IDS) - 1, len(IDS))


CHECKS = [check_one_look_after_another, check_all_go_back_after_a_look, check_held_by_another]


@pytest.mark.parametrize("check", CHECKS)
async def test_a_look_ends_when_all_is_back(fanout: Fanout, check: Any) -> None:
    """Whatever the disk takes."""
    await check(fanout)


@pytest.mark.parametrize(
    ("guard", "instead", "check"),
    [
        ("await browse.return_all(connection)", "pass", check_one_look_after_another),
        ("await browse.return_all(connection)", "pass", check_all_go_back_after_a_look),
        ("monotonic() > until", "False", check_held_by_another),
    ],
)
async def test_the_mutants_are_caught(
    fanout: Fanout, monkeypatch: pytest.MonkeyPatch, guard: str, instead: str, check: Any
) -> None:
    """Who does not wait, and who waits for ever."""
    function = dead_letters._Browse.return_all if "until" in guard else RabbitDeadLetters._browse
    mutate(monkeypatch, function, guard, instead)
    with pytest.raises((AssertionError, TimeoutError)):
        await check(fanout)
