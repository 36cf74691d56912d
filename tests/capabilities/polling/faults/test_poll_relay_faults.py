"""The poll relay is killed, paused, disconnected and restarted: every poll is on the topic exactly once."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kit.kafka_polls import (
    BRIEF,
    PollWorld,
    check_late_commit,
    check_late_row,
    check_lost_answer,
    check_overtaken_after_commit,
    check_stopped_before_send,
    poll_world,
)
from kit.kafka_proxy import END_TXN, INIT_PRODUCER_ID, KafkaProxy
from kit.leases import run_out
from kit.probes import Stops
from kit.processes import kill_group
from kit.servers import KafkaServer
from kit.waiting import eventually_async
from tickwright.capabilities.polling.relay.batches import BatchBounds

FROZEN, PUBLISHED, MARKED = "relay.poll_batch_frozen", "relay.poll_batch_published", "relay.poll_batch_marked"
SHORT = {"wait_s": 2.0}
DIED = -signal.SIGKILL
ONLY_MARKERS_BYTES = 120  # Kafka's own mark of an ended transaction has 78, and must get in


@pytest.fixture
async def world(database_url: str, kafka_server: KafkaServer, kafka_prefix: str) -> AsyncIterator[PollWorld]:
    """A database and a topic."""
    async with poll_world(database_url, kafka_server.url, kafka_prefix) as world:
        yield world


@pytest.fixture
async def proxy(kafka_server: KafkaServer) -> AsyncIterator[KafkaProxy]:
    """A proxy between a relay and Kafka."""
    async with KafkaProxy(kafka_server.direct_port, kafka_server.proxy_port) as proxy:
        yield proxy


@pytest.mark.matrix
@pytest.mark.parametrize("probe", ["lease.taken", FROZEN, PUBLISHED, MARKED])
async def test_a_relay_killed_between_two_effects_loses_and_doubles_nothing(
    world: PollWorld, tmp_path: Path, probe: str
) -> None:
    """After kill -9 at each probe the next relay reads the position, and sends the frozen batch unchanged."""
    await world.fill(60, 7)
    child = world.child(tmp_path, 2, probe, 1 if probe == "lease.taken" else 2)
    try:
        await eventually_async(lambda: child.poll() == DIED, 30, what="the relay killed itself")
        before = await world.pending()
        async with world.running(world.relay(terms=BRIEF)):
            await world.emptied()
    finally:
        kill_group(child)
    await world.check()
    assert before > 0


@pytest.mark.storm
async def test_a_relay_paused_past_its_lease_is_fenced_and_doubles_nothing(world: PollWorld, tmp_path: Path) -> None:
    """SIGSTOP during its work, another relay takes over, SIGCONT: what the zombie still commits does not count."""
    await world.fill(60, 200)
    child = world.child(tmp_path, 2)

    async def begun() -> bool:
        return 0 < await world.pending() < 12_000

    try:
        await eventually_async(begun, 30, what="the child is at work")
        os.kill(child.pid, signal.SIGSTOP)
        async with world.running(world.relay(terms=BRIEF)) as relay:
            await eventually_async(lambda: relay.counters.published > 0, 30, what="another relay has taken over")
            os.kill(child.pid, signal.SIGCONT)
            await world.emptied()
            await world.fill(10, 7, first=100_000)
            await world.emptied()
            assert relay.counters.fenced == 0, "the zombie did not disturb the one that took over"
    finally:
        kill_group(child)
    await world.check()


async def test_a_zombie_that_commits_late_is_fenced_by_kafka(world: PollWorld) -> None:
    """Overtaken between freeze and publish, without knowing it: Kafka refuses its batch, and its successor sends it."""
    await check_late_commit(world)


async def test_a_zombie_that_wakes_after_its_commit_marks_nothing(world: PollWorld) -> None:
    """Overtaken between commit and mark: its successor has read the position, and the late mark counts nothing."""
    await check_overtaken_after_commit(world)


async def test_a_relay_that_was_fenced_by_mistake_takes_over_again(world: PollWorld) -> None:
    """Another program opens its shard without its lease: it begins again from the lease, and no poll comes twice."""
    stops = Stops()
    stops.close(FROZEN)
    await world.fill(20, 10)
    relay = world.relay(probe=stops)
    async with world.running(relay):
        await eventually_async(lambda: stops.reached_times[FROZEN] == 1, 20)
        stranger = world.log()
        assert await stranger.open(0) is None
        await stranger.close()
        stops.open(FROZEN)
        await world.emptied()
        assert relay.counters.fenced == 1
    await world.check()


async def test_a_commit_whose_answer_is_lost_is_read_back_and_not_sent_again(
    world: PollWorld, kafka_server: KafkaServer, proxy: KafkaProxy
) -> None:
    """The broker commits and its answer is lost: a doubt, and the position proves that the batch is on the topic."""
    await check_lost_answer(world, kafka_server.proxied_url, proxy)


async def test_a_commit_that_is_held_and_arrives_late_doubles_nothing(
    world: PollWorld, kafka_server: KafkaServer, proxy: KafkaProxy
) -> None:
    """The commit reaches the broker after its producer was discarded: it is fenced; the same batch was sent before."""
    await world.fill(20, 7)
    proxy.hold_request(END_TXN)
    relay = world.relay(log_terms={"bootstrap": kafka_server.proxied_url, **SHORT})
    async with world.running(relay):
        await eventually_async(lambda: relay.counters.doubts == 1, 30, what="the commit is in doubt")
        await run_out(world.pool, "poll-relay:0")
        async with world.running(world.relay("direct")):
            await world.emptied()
            proxy.release()
            await world.fill(5, 7, first=10_000)
            await world.emptied()
    await world.check()


@pytest.mark.storm
async def test_a_held_commit_that_is_carried_out_late_is_found_in_the_position(
    world: PollWorld, kafka_server: KafkaServer, proxy: KafkaProxy
) -> None:
    """The commit is released before the relay reads the position, so it sends nothing twice."""
    await world.fill(20, 7)
    proxy.hold_request(END_TXN)
    relay = world.relay(log_terms={"bootstrap": kafka_server.proxied_url, **SHORT})
    async with world.running(relay):
        await eventually_async(lambda: relay.counters.doubts == 1, 30, what="the commit is in doubt")
        proxy.release()
        await world.emptied()
    await world.check()
    assert proxy.requests[INIT_PRODUCER_ID] >= 2, "it began again from init_transactions"


async def test_a_commit_that_arrives_while_the_log_is_opened_again_is_found(
    world: PollWorld, kafka_server: KafkaServer, proxy: KafkaProxy
) -> None:
    """Delivered just before the next producer fences it: the position is read after that, so it is found."""
    await world.fill(20, 7)
    proxy.deliver_late(END_TXN, before=INIT_PRODUCER_ID)
    relay = world.relay(log_terms={"bootstrap": kafka_server.proxied_url, **SHORT})
    async with world.running(relay):
        await world.emptied()
    await world.check()
    assert relay.counters.doubts == 1


@pytest.mark.matrix
@pytest.mark.parametrize("each_way_s", [0.1, 2.0])
async def test_a_kafka_that_is_far_gets_each_poll_once(
    world: PollWorld, kafka_server: KafkaServer, proxy: KafkaProxy, each_way_s: float
) -> None:
    """Batches are sent slowly, or are in doubt until the delay ends; none is torn, lost or doubled."""
    relay = world.relay(log_terms={"bootstrap": kafka_server.proxied_url, **SHORT})
    await world.fill(1, 7)
    async with world.running(relay):
        await world.emptied(60)
        proxy.delay(each_way_s)
        await world.fill(20, 7, first=1000)
        if each_way_s > 1:
            await eventually_async(
                lambda: relay.counters.doubts + (relay.blocked_by is not None), 60, what="it is blocked"
            )
            proxy.heal()
        await world.emptied(60)
    await world.check()


async def test_a_database_that_cuts_connections_delays_the_marks_and_doubles_nothing(world: PollWorld) -> None:
    """Connections lost between commit and mark: the position is read again, and the mark is made from it."""
    stops = Stops()
    stops.close(PUBLISHED)
    await world.fill(10, 7)
    relay = world.relay(probe=stops)
    async with world.running(relay):
        await eventually_async(lambda: stops.reached_times[PUBLISHED] == 1, 20)
        await world.pool.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        stops.open(PUBLISHED)
        await world.emptied()
    await world.check()


async def test_rows_that_commit_late_with_smaller_ids_are_published(world: PollWorld) -> None:
    """A transaction that was open while later rows went out: its rows are found by state and are in a later batch."""
    await check_late_row(world)


async def test_what_was_frozen_and_not_sent_is_sent_by_the_next(world: PollWorld) -> None:
    """A mark comes after the commit, never before."""
    await check_stopped_before_send(world)


async def test_a_topic_that_refuses_records_stops_the_batch_and_tears_nothing(world: PollWorld) -> None:
    """Records too large for the topic: nothing of the batch is visible, the relay reports it, and later goes on."""
    await world.fill(5, 7)
    relay = world.relay(log_terms=SHORT)
    async with world.running(relay):
        await world.emptied()
        await world.take_at_most(ONLY_MARKERS_BYTES)
        await world.fill(5, 7, first=1000)
        await eventually_async(lambda: relay.blocked_by is not None, 30, what="the relay reports that it is blocked")
        assert len(await world.seen()) == 35
        await world.take_at_most(1_000_000)
        await world.emptied()
        assert relay.blocked_by is None
    await world.check()


async def test_a_full_batch_passes_a_topic_that_takes_no_large_sets(world: PollWorld) -> None:
    """Small records together make no set too large for the topic: it would be refused again and again."""
    relay = world.relay(bounds=BatchBounds(), log_terms={**SHORT, "partitions": 1})
    async with world.running(relay):
        await eventually_async(lambda: relay.counters.opened, what="the topic is made")
        await world.fill(1, 7)
        await world.emptied()
        await world.take_at_most(100_000)
        await world.fill(10, 1000, first=1000)
        await world.emptied()
    assert (relay.counters.aborted, relay.counters.doubts) == (0, 0)
    await world.check()


@pytest.mark.storm
async def test_a_broker_killed_in_the_middle_and_started_again_loses_nothing(
    database_url: str, kafka_of_my_own: KafkaServer, kafka_prefix: str
) -> None:
    """The only broker dies while batches are sent: the relay is blocked until the broker is back."""
    async with poll_world(database_url, kafka_of_my_own.url, kafka_prefix) as world:
        await world.fill(60, 300)
        relay = world.relay(log_terms={"wait_s": 5.0})
        async with world.running(relay):
            await eventually_async(lambda: relay.counters.batches > 3, 30, what="batches go out")
            await asyncio.to_thread(kafka_of_my_own.kill_node, 1)
            await asyncio.to_thread(kafka_of_my_own.start_node, 1)
            await world.emptied(60)
        await world.check()
        assert relay.counters.published >= 0


@pytest.mark.timeout(240)
async def test_brokers_killed_one_after_the_other_lose_and_double_nothing(
    database_url: str, kafka_cluster: KafkaServer, kafka_prefix: str
) -> None:
    """Three replicas, two in sync: each broker dies once while batches go out and comes back with what it had."""
    async with poll_world(database_url, kafka_cluster.url, kafka_prefix) as world:
        relay = world.relay(log_terms={"allow_single_broker": False, "wait_s": 8.0})
        await world.fill(5, 20)
        async with world.running(relay):
            await world.emptied(60)
            for number in (1, 2, 3):
                await world.fill(50, 100, first=number * 100_000)
                await eventually_async(lambda: relay.counters.published > 0, 60)
                await asyncio.to_thread(kafka_cluster.kill_node, number)
                await world.fill(5, 100, first=number * 100_000 + 50_000)
                await asyncio.to_thread(kafka_cluster.start_node, number)
                await world.emptied(120)
        await world.check()
        assert relay.blocked_by is None


@pytest.mark.storm
@pytest.mark.timeout(240)
async def test_a_storm_of_kills_at_every_probe_loses_and_doubles_nothing(world: PollWorld, tmp_path: Path) -> None:
    """One relay after the other is killed at a probe while polls keep coming; the last one publishes the rest."""
    kills = [(FROZEN, 1), (PUBLISHED, 1), (MARKED, 2), (PUBLISHED, 3), (FROZEN, 2), (MARKED, 1)]
    for number, (probe, times) in enumerate(kills):
        await world.fill(20, 20, first=number * 10_000 + 1)
        child = world.child(tmp_path, 2, probe, times)
        try:
            await eventually_async(lambda child=child: child.poll() == DIED, 40, what=f"dead at {probe}")  # type: ignore[misc]
        finally:
            kill_group(child)
        await world.pending()
    async with world.running(world.relay(terms=BRIEF)):
        await world.emptied()
    await world.check()
