"""Polls from Kafka: consumers are killed, frozen and overtaken; each poll has its effect once, and none is lost.

Calls are counted in the courier's log, effects in the ledger and the outbox; the group's committed offsets say what
Kafka would deliver again.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from types import MappingProxyType

import pytest

from kit.consumers import (
    LONG,
    ConsumerProcess,
    Trackers,
    all_done,
    done_times,
    events,
    http_of,
    running_consumer,
    slice_of,
)
from kit.kafka import KafkaServer
from kit.kafka_consumers import (
    Offsets,
    hand_to_relay,
    kafka_source,
    make_again,
    publish,
    running_relay_and_consumer,
    spoil,
)
from kit.kafka_polls import PollWorld, poll_world
from kit.partners import Courier
from kit.probes import Stops
from kit.processes import kill_group
from kit.waiting import eventually_async
from tickwright import Answer, Poll
from tickwright.engine.session import WorkerSession
from tickwright.store.pool import Pool
from tickwright.transports.kafka import poll_source
from tickwright.transports.kafka.poll_source import KafkaPollSource, Progress


@pytest.fixture
async def world(database_url: str, kafka_server: KafkaServer, kafka_prefix: str) -> AsyncIterator[PollWorld]:
    """A database and a Kafka prefix of the test's own."""
    async with poll_world(database_url, kafka_server.url, kafka_prefix) as made:
        yield made


async def _check_effects(pool: Pool, trackers: Trackers) -> None:
    """Check that each poll is in the ledger once, is counted once, and has one event."""
    assert await done_times(pool, trackers) == Counter(trackers.ids)
    assert Counter(event["tracker_id"] for event in await events(pool)) == Counter(trackers.ids)
    assert (await slice_of(pool, trackers))["polled"] == len(trackers.ids)


async def _ends(world: PollWorld) -> dict[int, int]:
    """Return the offset of the last record in each partition."""
    last: dict[int, int] = {}
    for one in await world.seen():
        last[one.partition] = one.offset
    return last


async def test_polls_that_the_relay_published_are_carried_out_once_each(world: PollWorld) -> None:
    """POL-1: from the outbox over Kafka to the ledger; and the offsets are committed."""
    async with Courier() as courier:
        trackers = await publish(world, 300, http=http_of(courier))
        offsets, ends = Offsets(world), await _ends(world)
        async with running_consumer(world.url, terms=LONG, source_of=kafka_source(world.bootstrap, world.prefix)):
            await eventually_async(lambda: all_done(world.pool, trackers), 30)
            committed_all = lambda: all(offsets.committed()[n] > end for n, end in ends.items())  # noqa: E731
            await eventually_async(committed_all, 20, what="the offset after the last poll is committed")
        offsets.close()
        await _check_effects(world.pool, trackers)
        assert Counter(name for _, name in courier.requests) == Counter(trackers.external_ids)


async def test_relay_and_consumer_need_no_more_than_the_settings(world: PollWorld) -> None:
    """One process with both roles and the address of Kafka: the consumer waits for the topic and reads it."""
    trackers = await hand_to_relay(world, 50)
    async with running_relay_and_consumer(world):
        await eventually_async(lambda: all_done(world.pool, trackers), 40)
    assert len(await world.seen()) == 50
    assert await done_times(world.pool, trackers) == Counter(trackers.ids)


async def test_kill_9_of_one_of_two_consumers_loses_no_poll_and_doubles_no_effect(
    world: PollWorld, tmp_path: Path
) -> None:
    """POL-1: the other consumer is assigned its partitions, and makes the polls that have no effect yet."""
    async with Courier() as courier:
        courier.delay_s = 0.05
        courier.be_silent()
        trackers = await publish(world, 200, http=http_of(courier), concurrency=10)
        kafka = (world.bootstrap, world.prefix)
        children = [ConsumerProcess(world.url, tmp_path / f"{n}.log", kafka=kafka) for n in range(2)]
        try:
            owners = "SELECT count(DISTINCT owner) = 2 FROM tickwright.poll_partitions"
            await eventually_async(lambda: world.pool.fetchval(owners), 40, what="both have partitions")
            courier.talk()
            await eventually_async(lambda: len(courier.requests) >= 60, 40)
            assert not await all_done(world.pool, trackers), "it is killed in the middle"
            children[0].kill9()
            await eventually_async(lambda: all_done(world.pool, trackers), 60)
        finally:
            for child in children:
                kill_group(child.process)
        await _check_effects(world.pool, trackers)


@pytest.mark.matrix
@pytest.mark.parametrize("kill_at", ["polls.before_results", "polls.before_commit", "polls.results_written"])
async def test_a_consumer_killed_while_it_writes_results_loses_and_doubles_nothing(
    world: PollWorld, tmp_path: Path, kill_at: str
) -> None:
    """POL-1: a poll that is delivered again is made again only when it has no effect yet."""
    async with Courier() as courier:
        courier.delay_s = 0.05
        trackers = await publish(world, 60, http=http_of(courier), concurrency=8)
        kafka = (world.bootstrap, world.prefix)
        dying = ConsumerProcess(world.url, tmp_path / "dying.log", kill_at=kill_at, times=2, kafka=kafka)
        try:
            await eventually_async(lambda: dying.process.poll() == -9, 40, what="it dies at its probe")
        finally:
            kill_group(dying.process)
        asked_before, done_before = len(courier.requests), len(await done_times(world.pool, trackers))
        async with running_consumer(world.url, source_of=kafka_source(*kafka)):
            await eventually_async(lambda: all_done(world.pool, trackers), 40)
        await _check_effects(world.pool, trackers)
        assert len(courier.requests) - asked_before == 60 - done_before


@pytest.mark.storm
async def test_a_consumer_frozen_past_its_session_changes_nothing(world: PollWorld, tmp_path: Path) -> None:
    """KFK-6: SIGSTOP with answers under way until another consumer has its partitions; its answers have no effect."""
    async with Courier() as courier:
        courier.be_silent()
        trackers = await publish(world, 20, http=http_of(courier))
        kafka = (world.bootstrap, world.prefix)
        frozen = ConsumerProcess(world.url, tmp_path / "frozen.log", lease_s=60, kafka=kafka)
        try:
            await eventually_async(lambda: courier.running == 20, 40)
            frozen.pause()
            courier.talk()
            await eventually_async(lambda: courier.running == 0)
            stops = Stops()
            stops.close("polls.before_results")
            async with running_consumer(world.url, source_of=kafka_source(*kafka), probe=stops):
                await eventually_async(
                    lambda: stops.reached_times["polls.before_results"] == 1, 40, what="the other one took over"
                )
                frozen.resume()
                log = tmp_path / "frozen.log"
                await eventually_async(lambda: b"polls.group_lost" in log.read_bytes(), 20)
                assert not await done_times(world.pool, trackers), "the zombie's answers count"
                stops.open("polls.before_results")
                await eventually_async(lambda: all_done(world.pool, trackers), 40)
            await _check_effects(world.pool, trackers)
        finally:
            kill_group(frozen.process)


async def _overtaken_before_its_effect(world: PollWorld, trackers: Trackers) -> int:
    """Raise the partitions' epochs before the results are written; return how many answers were lost."""

    async def ask(_: Poll) -> Answer:
        return Answer("moving")

    stops = Stops()
    stops.close("polls.before_results")
    source_of = kafka_source(world.bootstrap, world.prefix)
    async with running_consumer(
        world.url, functions={"acme": ask}, terms=LONG, source_of=source_of, probe=stops
    ) as side:
        await eventually_async(lambda: stops.reached_times["polls.before_results"] == 1, 30)
        await eventually_async(lambda: side.consumer.writer.backlog == len(trackers.ids))
        await world.pool.execute("UPDATE tickwright.poll_partitions SET epoch = epoch + 1")
        stops.open("polls.before_results")
        await eventually_async(lambda: all_done(world.pool, trackers), 30, what="they are taken again and done")
        return side.consumer.writer.lost


async def test_an_overtaken_consumer_changes_nothing_until_it_has_the_partition_again(world: PollWorld) -> None:
    """KFK-6: a result is written under a lock on its partition and epoch; without another reader polls continue."""
    trackers = await publish(world, 20)
    assert await _overtaken_before_its_effect(world, trackers) == 20
    await _check_effects(world.pool, trackers)


async def test_a_consumer_that_lost_a_partition_makes_no_more_of_its_polls(world: PollWorld) -> None:
    """KFK-6: a courier's budget is for the present owner of a poll; only calls under way are made twice."""
    trackers = await publish(world, 90, rate="20/s", concurrency=1)
    asked: Counter[int] = Counter()
    answered = asyncio.Event()

    async def ask(poll: Poll) -> Answer:
        asked[poll.tracker_id] += 1
        await answered.wait()
        return Answer("moving")

    source_of = kafka_source(world.bootstrap, world.prefix)
    async with running_consumer(world.url, functions={"acme": ask}, terms=LONG, source_of=source_of):
        await eventually_async(lambda: sum(asked.values()) == 1, 30)
        await world.pool.execute("UPDATE tickwright.poll_partitions SET epoch = epoch + 1")
        answered.set()
        await eventually_async(lambda: all_done(world.pool, trackers), 40)
    await _check_effects(world.pool, trackers)
    assert sum(asked.values()) <= 90 + 30, "of each partition the calls until the first result was refused"


async def test_the_mutant_without_the_epoch_is_caught(world: PollWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the epoch in the lock the answers of an overtaken consumer count."""
    mutated = poll_source._SQL["hold"].replace(" AND p.epoch = u.epoch", "").replace("p.epoch", "u.epoch")
    assert "p.epoch" not in mutated
    monkeypatch.setattr(poll_source, "_SQL", MappingProxyType({**poll_source._SQL, "hold": mutated}))
    assert await _overtaken_before_its_effect(world, await publish(world, 20)) == 0


async def _one_poll_stays_unfinished(world: PollWorld) -> None:
    asked: Counter[int] = Counter()
    trackers = await publish(world, 60)
    held = (await world.seen())[0]
    answered = asyncio.Event()

    async def ask(poll: Poll) -> Answer:
        asked[poll.tracker_id] += 1
        if poll.tracker_id == held.value["tracker_id"]:
            await answered.wait()
        return Answer("moving")

    offsets, ends = Offsets(world), await _ends(world)
    source_of = kafka_source(world.bootstrap, world.prefix)

    def others_moved() -> bool:
        committed = offsets.committed()
        assert committed[held.partition] <= held.offset, "the offset passed a poll without an effect"
        return all(committed[number] > end for number, end in ends.items() if number != held.partition)

    async with running_consumer(world.url, functions={"acme": ask}, terms=LONG, source_of=source_of):
        await eventually_async(lambda: sum(asked.values()) == 60, 30)
        await eventually_async(others_moved, 20, what="the other partitions' offsets are committed")
    assert offsets.committed()[held.partition] <= held.offset, "leaving the group committed it"
    offsets.close()
    answered.set()
    async with running_consumer(world.url, functions={"acme": ask}, terms=LONG, source_of=source_of):
        await eventually_async(lambda: all_done(world.pool, trackers), 30)
    await _check_effects(world.pool, trackers)
    assert asked == Counter({**dict.fromkeys(trackers.ids, 1), held.value["tracker_id"]: 2})


async def test_offsets_never_pass_an_unfinished_poll(world: PollWorld) -> None:
    """KFK-5: while one poll of a partition has no effect its offset stays; those of other partitions advance."""
    await _one_poll_stays_unfinished(world)


async def test_the_mutant_that_commits_what_was_read_is_caught(
    world: PollWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where offsets follow the reads instead of the effects, the same check fails."""
    monkeypatch.setattr(Progress, "position", property(lambda progress: progress._next))
    with pytest.raises(AssertionError, match="the offset passed a poll without an effect"):
        await _one_poll_stays_unfinished(world)


async def test_polls_of_a_topic_that_is_recreated_under_a_consumer_are_carried_out(world: PollWorld) -> None:
    """POL-1: offsets begin at 0 again, below those that were read; no record keeps room, and offsets are committed."""

    async def ask(_: Poll) -> Answer:
        return Answer("moving")

    sources: list[KafkaPollSource] = []

    def make(pool: Pool, session: WorkerSession) -> KafkaPollSource:
        sources.append(kafka_source(world.bootstrap, world.prefix)(pool, session))
        return sources[0]

    first = await publish(world, 60)
    async with running_consumer(world.url, functions={"acme": ask, "other": ask}, terms=LONG, source_of=make):
        await eventually_async(lambda: all_done(world.pool, first), 30)
        await asyncio.to_thread(make_again, world.bootstrap, world.topic)
        more = await publish(world, 30, name="other")
        await eventually_async(lambda: all_done(world.pool, more), 40, what="what is on the new topic is done")
        free = lambda: all(one.waiting == 0 for one in sources[0]._partitions.values())  # noqa: E731
        await eventually_async(free, what="no record takes room")
        offsets, ends = Offsets(world), await _ends(world)
        exact = lambda: all(end < offsets.committed()[n] <= end + 2 for n, end in ends.items())  # noqa: E731
        await eventually_async(exact, 20, what="the offsets are those of the new topic")
        offsets.close()
    assert await done_times(world.pool, more) == Counter(more.ids)


async def test_a_record_that_is_no_poll_is_skipped_and_blocks_nothing(world: PollWorld) -> None:
    """What is not JSON, of another version or of an unknown partner is skipped, and the offsets pass it, too."""
    trackers = await publish(world, 30)
    await asyncio.to_thread(spoil, world)

    async def ask(_: Poll) -> Answer:
        return Answer("moving")

    offsets, ends = Offsets(world), await _ends(world)
    source_of = kafka_source(world.bootstrap, world.prefix)
    async with running_consumer(world.url, functions={"acme": ask}, terms=LONG, source_of=source_of):
        await eventually_async(lambda: all_done(world.pool, trackers), 30)
        committed_all = lambda: all(offsets.committed()[n] > end for n, end in ends.items())  # noqa: E731
        await eventually_async(committed_all, 20, what="the offset after the last record is committed")
    offsets.close()
    await _check_effects(world.pool, trackers)


@pytest.mark.storm
async def test_polls_of_a_partner_that_no_consumer_serves_end_within_their_interval(world: PollWorld) -> None:
    """They are superseded when their trackers' next poll is due: counted, and the offsets pass them."""
    trackers = await publish(world, 100)
    offsets, ends = Offsets(world), await _ends(world)
    await world.pool.execute(
        """WITH wheel AS (
             INSERT INTO tickwright.poll_wheels (interval_minutes, first_slot_id) VALUES (1, 1000000) RETURNING 1)
           UPDATE tickwright.poll_slots SET interval_minutes = 1 WHERE EXISTS (SELECT FROM wheel)"""
    )
    async with running_consumer(world.url, terms=LONG, source_of=kafka_source(world.bootstrap, world.prefix)):
        committed_all = lambda: all(offsets.committed()[n] > end for n, end in ends.items())  # noqa: E731
        await eventually_async(committed_all, 90, what="the offset after the last poll is committed")
    offsets.close()
    assert await done_times(world.pool, trackers) == Counter()
    assert (await slice_of(world.pool, trackers))["superseded"] == 100


@pytest.mark.matrix
@pytest.mark.parametrize("seen_by", ["the source", "the consumer"])
async def test_overdue_polls_that_are_read_again_after_kill_9_are_counted_once(
    world: PollWorld, tmp_path: Path, seen_by: str
) -> None:
    """No more is superseded than was selected and not polled, however often the same polls are read."""
    async with Courier() as courier:
        courier.be_silent()
        partner = {"http": http_of(courier), "timeout": "60s"}
        fine = await publish(world, 30, **partner)  # before the others, so that no offset advances
        again = {"name": "nobody"} if seen_by == "the source" else partner
        over = await publish(world, 90, due="now() - interval '3 minutes'", **again)
        await world.pool.execute(
            "INSERT INTO tickwright.poll_wheels (interval_minutes, first_slot_id) VALUES (1, 1000000)"
        )
        await world.pool.execute(
            "UPDATE tickwright.poll_slots SET interval_minutes = 1 WHERE slot_id = $1", over.slot_id
        )  # the relay would have dropped them
        kafka = (world.bootstrap, world.prefix)
        dying = ConsumerProcess(world.url, tmp_path / "dying.log", kafka=kafka)
        try:

            async def counted() -> bool:
                return bool((await slice_of(world.pool, over))["superseded"] == 90)

            await eventually_async(counted, 60, what="all that is overdue is counted")
        finally:
            kill_group(dying.process)
        courier.talk()
        source_of, offsets, ends = kafka_source(world.bootstrap, world.prefix), Offsets(world), await _ends(world)
        async with running_consumer(world.url, terms=LONG, source_of=source_of):
            await eventually_async(lambda: all_done(world.pool, fine), 60)
            committed_all = lambda: all(offsets.committed()[n] > end for n, end in ends.items())  # noqa: E731
            await eventually_async(committed_all, 30, what="all is read again")
        offsets.close()
        counts = await slice_of(world.pool, over)
        assert (counts["selected"], counts["polled"], counts["superseded"]) == (90, 0, 90), "counted twice"
