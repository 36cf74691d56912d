"""A replay with a real Kafka: polls that may be unfinished on the topic are left out, lost ones are made again."""

from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from kit.api import ADMIN
from kit.consumers import LONG, Trackers, all_done, done_times, running_consumer
from kit.kafka import KafkaServer
from kit.kafka_consumers import kafka_source, publish
from kit.kafka_polls import PollWorld, poll_world
from kit.waiting import eventually_async
from tickwright import Answer, Poll
from tickwright.capabilities.polling.service import PollingService
from tickwright.capabilities.polling.wheels import slices
from tickwright.capabilities.polling.wheels.slices import Replay
from tickwright.partners.outcomes import Failed

POLLS = 60
DUE = "now() - interval '3 minutes'"
BREAKER = {"open": "1s", "open_max": "1s"}
READ = "SELECT bool_and(read_to = end_offset) FROM tickwright.poll_lags"
PASSED = "SELECT bool_and(lag = 0) FROM tickwright.poll_lags"
RELEASE = "UPDATE tickwright.scheduler_outbox SET release_at = clock_timestamp()"
FORGET = """
WITH forgotten AS (UPDATE tickwright.trackers SET last_polled_at = NULL WHERE id = ANY ($1::bigint[]))
UPDATE tickwright.poll_done SET ids = ARRAY (SELECT unnest(ids) EXCEPT SELECT unnest($1::bigint[]))
 WHERE due_at = $2
"""
FORGET_OFFSETS = """
UPDATE tickwright.poll_batches SET partition_count = 0, partitions = '{}', first_offsets = '{}', last_offsets = '{}'
"""


@pytest.fixture
async def world(database_url: str, kafka_server: KafkaServer, kafka_prefix: str) -> AsyncIterator[PollWorld]:
    """A database and a Kafka prefix of the test's own."""
    async with poll_world(database_url, kafka_server.url, kafka_prefix) as made:
        yield made


class Failing:
    """A courier that fails until ``works`` is set."""

    works = False

    async def ask(self, _: Poll) -> Answer | Failed:
        """Fail, or answer."""
        return Answer("moving") if self.works else Failed("out of order")


async def publish_polls(world: PollWorld) -> Trackers:
    """Publish the polls of trackers that are old enough to be missed."""
    trackers = await publish(world, POLLS, due=DUE, breaker=BREAKER)
    await world.pool.execute("UPDATE tickwright.trackers SET created_at = now() - interval '1 day'")
    return trackers


async def replay(world: PollWorld, trackers: Trackers, *, dry_run: bool = False, topic_lost: bool = False) -> Replay:
    """Replay the minute of these trackers' polls."""
    begin = trackers.due_at - timedelta(minutes=2)
    return await PollingService(world.pool).slices.replay(
        begin, begin + timedelta(minutes=4), caller=ADMIN, dry_run=dry_run, topic_lost=topic_lost
    )


async def release(world: PollWorld) -> None:
    """Publish a replay's polls at once."""
    await world.pool.execute(RELEASE)
    async with world.running(world.relay()):
        await world.emptied()


async def _replay_beside_a_courier_that_fails(world: PollWorld) -> None:
    trackers, courier = await publish_polls(world), Failing()
    source_of = kafka_source(world.bootstrap, world.prefix)
    async with running_consumer(world.url, functions={"acme": courier.ask}, terms=LONG, source_of=source_of):
        await eventually_async(lambda: world.pool.fetchval(READ), 30, what="all is in the consumer's memory")
        said = await replay(world, trackers, dry_run=True)
        assert (said.trackers, said.unread_trackers, said.unread_turns) in {(0, POLLS, 1), (POLLS, 0, 0)}
        said = await replay(world, trackers)
        await release(world)
        courier.works = True
        await eventually_async(lambda: all_done(world.pool, trackers), 60)
    twice = {poll: times for poll, times in Counter(one.id for one in await world.seen()).items() if times > 1}
    assert not twice, f"K2 broken: {len(twice)} polls came more than once"
    assert len(await world.seen()) == POLLS
    assert (said.trackers, said.unread_trackers, said.unknown_trackers, said.unread_turns) == (0, POLLS, 0, 1)
    assert await done_times(world.pool, trackers) == Counter(trackers.ids)


async def test_a_replay_doubles_no_poll_that_waits_with_a_consumer(world: PollWorld) -> None:
    """K2: a poll that is published and not finished is under way; at the end each poll was on the topic once."""
    await _replay_beside_a_courier_that_fails(world)


async def test_the_mutant_that_ignores_the_groups_position_is_caught(
    world: PollWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the check of the batches the polls are on the topic twice."""
    guard = "WHERE l.due_at = $2 AND l.slot_id = $1 AND l.first_batch_no IS NOT NULL"
    for name in ("_COUNT", "_REPLAY"):
        assert guard in getattr(slices, name)
        monkeypatch.setattr(slices, name, getattr(slices, name).replace(guard, f"{guard} AND false"))
    with pytest.raises(AssertionError, match="K2 broken"):
        await _replay_beside_a_courier_that_fails(world)


async def test_lost_polls_of_a_batch_that_the_group_has_passed_are_made_again(world: PollWorld) -> None:
    """The group has passed the batch, and the ledger has no answer: these polls will not be answered any more."""
    trackers, courier = await publish_polls(world), Failing()
    courier.works = True
    assert (await replay(world, trackers)).unread_trackers == POLLS, "no consumer has read it yet"
    source_of = kafka_source(world.bootstrap, world.prefix)
    async with running_consumer(world.url, functions={"acme": courier.ask}, terms=LONG, source_of=source_of):
        await eventually_async(lambda: world.pool.fetchval(PASSED), 30, what="the group has passed all")
        lost = sorted(trackers.ids)[:7]
        await world.pool.execute(FORGET, lost, trackers.due_at)
        said = await replay(world, trackers)
        assert (said.trackers, said.unread_trackers, said.unknown_trackers) == (7, 0, 0)
        await release(world)
        await eventually_async(lambda: all_done(world.pool, trackers), 30)
    assert len(await world.seen()) == POLLS + 7


async def test_an_operator_decides_about_a_batch_with_unknown_offsets(world: PollWorld) -> None:
    """Proved by the position alone, or deleted: left out and counted, unless the operator says ``topic_lost``."""
    trackers = await publish_polls(world)
    await world.pool.execute(FORGET_OFFSETS)
    said = await replay(world, trackers)
    assert (said.trackers, said.unread_trackers, said.unknown_trackers, said.unread_turns) == (0, 0, POLLS, 1)
    await world.pool.execute("DELETE FROM tickwright.poll_batches")
    assert (await replay(world, trackers)).unknown_trackers == POLLS
    said = await replay(world, trackers, topic_lost=True)
    assert (said.trackers, said.unread_trackers, said.unknown_trackers) == (POLLS, 0, 0)
    asked = await world.pool.fetchval("SELECT before->>'topic_lost' FROM tickwright.audit ORDER BY id DESC LIMIT 1")
    assert asked == "true"


async def test_a_position_reported_before_the_batch_proves_nothing_about_it(world: PollWorld) -> None:
    """An old position proves nothing, since a topic may be recreated; ends below a batch prove that it was."""
    trackers = await publish_polls(world)
    await world.pool.execute(
        "INSERT INTO tickwright.poll_reads SELECT topic, partition, 10000, 10000, published_at - interval '1 second' "
        "FROM tickwright.poll_ends"
    )
    assert (await replay(world, trackers, dry_run=True)).unread_trackers == POLLS
    await world.pool.execute("UPDATE tickwright.poll_ends SET end_offset = 0")
    assert (await replay(world, trackers, dry_run=True)).trackers == POLLS


async def test_polls_that_were_in_no_batch_are_made_again(world: PollWorld) -> None:
    """Selected, deleted from the outbox by hand, in no batch: certainly not on the topic."""
    trackers = await publish_polls(world)
    await world.pool.execute(
        "UPDATE tickwright.poll_slices SET shard = NULL, first_batch_no = NULL, last_batch_no = NULL"
    )
    said = await replay(world, trackers, dry_run=True)
    assert (said.trackers, said.unread_trackers, said.unknown_trackers) == (POLLS, 0, 0)
