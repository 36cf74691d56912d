"""A courier that fails for hours, or that this process does not call, beside others in the same partitions."""

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest

from kit.consumers import LONG, Trackers, all_done, done_times, queue_empty, running_consumer, slice_of
from kit.kafka import KafkaServer
from kit.kafka_consumers import hand_to_relay, kafka_source, publish
from kit.kafka_polls import PollWorld, poll_world
from kit.waiting import eventually_async
from tickwright import Answer, Poll
from tickwright.capabilities.polling.consumer import dispatcher
from tickwright.partners.outcomes import Failed
from tickwright.transports.kafka import poll_reader, poll_source

SECONDS, A_SECOND, FINE = 20, 30, 60


@pytest.fixture
async def world(database_url: str, kafka_server: KafkaServer, kafka_prefix: str) -> AsyncIterator[PollWorld]:
    """A database and a Kafka prefix of the test's own."""
    async with poll_world(database_url, kafka_server.url, kafka_prefix) as made:
        yield made


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions and dispatchers that are full after a few dozen polls, and short waits."""
    monkeypatch.setattr(poll_reader, "HELD_MAX", 60)
    monkeypatch.setattr(poll_reader, "BATCH_MAX", 10)
    monkeypatch.setattr(poll_source, "PARK_FROM", 30)
    monkeypatch.setattr(poll_source, "PARK_AFTER_S", 0.5)
    monkeypatch.setattr(poll_source, "SWEEP_EVERY_S", 0.1)
    monkeypatch.setattr(dispatcher, "HELD_MAX", 20)
    monkeypatch.setattr(dispatcher, "RETRY", replace(dispatcher.RETRY, base=timedelta(seconds=0.2)))


class Couriers:
    """Two couriers, one of which fails until ``works`` is set; they count the polls that they answer."""

    def __init__(self) -> None:
        self.works = False
        self.answered: Counter[int] = Counter()

    async def down(self, poll: Poll) -> Answer | Failed:
        """Fail, or answer."""
        if not self.works:
            return Failed("out of order")
        return await self.fine(poll)

    async def fine(self, poll: Poll) -> Answer:
        """Answer."""
        self.answered[poll.tracker_id] += 1
        return Answer("moving")


async def publish_both(world: PollWorld) -> tuple[list[Trackers], Trackers]:
    """Publish many polls of a courier that fails, of different seconds, and then some of one that works."""
    breaker = {"open": "1s", "open_max": "1s"}
    down = [
        await hand_to_relay(world, A_SECOND, name="down", due=f"now() - interval '{n + 1} seconds'", breaker=breaker)
        for n in reversed(range(SECONDS))
    ]
    return down, await publish(world, FINE, name="fine")


async def done(world: PollWorld, groups: list[Trackers]) -> Counter[int]:
    """Return how often the ledger says that each poll of several groups was done."""
    return sum([await done_times(world.pool, trackers) for trackers in groups], Counter[int]())


@pytest.mark.storm
@pytest.mark.usefixtures("small")
async def test_a_courier_that_fails_holds_up_no_other_in_its_partitions(world: PollWorld) -> None:
    """Its polls are parked in the queue while others are read; when it works again each has its effect once."""
    await _one_fails_beside_the_other(world)


@pytest.mark.usefixtures("small")
async def test_the_mutant_that_parks_nothing_is_caught(world: PollWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without parking the partitions fill with polls of the failing courier, and the same check fails."""
    monkeypatch.setattr(poll_source, "PARK_FROM", 10**9)
    with pytest.raises(AssertionError, match="the other courier's polls are done"):
        await _one_fails_beside_the_other(world)


async def _one_fails_beside_the_other(world: PollWorld) -> None:
    down, fine = await publish_both(world)
    wanted = Counter(tracker for trackers in down for tracker in trackers.ids)
    couriers, source_of = Couriers(), kafka_source(world.bootstrap, world.prefix)
    functions = {"down": couriers.down, "fine": couriers.fine}
    async with running_consumer(world.url, functions=functions, terms=LONG, source_of=source_of, calls_max=5):
        await eventually_async(lambda: all_done(world.pool, fine), 20, what="the other courier's polls are done")
        assert await done(world, down) == Counter()
        couriers.works = True

        async def all_of_them() -> bool:
            return await done(world, down) == wanted and await queue_empty(world.pool)

        await eventually_async(all_of_them, 60)
    assert couriers.answered == wanted + Counter(fine.ids)
    assert sum([(await slice_of(world.pool, trackers))["polled"] for trackers in _one_a_minute(down)]) == len(wanted)


def _one_a_minute(groups: list[Trackers]) -> list[Trackers]:
    """Return one group of each minute: the slice ledger counts by minutes."""
    return list({trackers.slot_id: trackers for trackers in groups}.values())


@pytest.mark.usefixtures("small")
async def test_polls_of_a_partner_without_a_function_here_are_parked_for_others(world: PollWorld) -> None:
    """A process that reads a partition hands over the polls of partners that only another process serves."""
    down, fine = await publish_both(world)
    couriers, source_of = Couriers(), kafka_source(world.bootstrap, world.prefix)
    couriers.works = True
    async with running_consumer(world.url, functions={"fine": couriers.fine}, terms=LONG, source_of=source_of):
        await eventually_async(lambda: all_done(world.pool, fine), 20)
        assert await done(world, down) == Counter()
        async with running_consumer(world.url, functions={"down": couriers.down}, terms=LONG):
            most = SECONDS * A_SECOND - 3 * poll_reader.HELD_MAX

            async def moved() -> bool:
                return (await done(world, down)).total() >= most

            await eventually_async(moved, 30, what="all but what the partitions may hold is done")
    assert max(couriers.answered.values()) == 1
