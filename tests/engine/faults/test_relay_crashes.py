"""The relay is killed, paused and overtaken: no row is lost, ids stay the same, and no late mark counts."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from kit.leases import run_out
from kit.probes import Stops
from kit.relays import RelayWorld, check_late_mark, kill, relay_world
from kit.waiting import eventually_async
from tickwright.domain.leases import LeaseTerms
from tickwright.engine.outbox.relay import LEASE
from tickwright.store.pool import UNAVAILABLE

BRIEF = LeaseTerms(ttl=timedelta(seconds=3))


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[RelayWorld]:
    """A database and a receiver."""
    async with relay_world(database_url) as world:
        yield world


@pytest.mark.matrix
@pytest.mark.parametrize("probe", ["lease.taken", "relay.claimed", "relay.published_not_marked", "relay.marked"])
async def test_a_relay_killed_between_two_effects_loses_nothing(world: RelayWorld, tmp_path: Path, probe: str) -> None:
    """After kill -9 at each probe the next relay sends the rest; a row that is sent twice has the same id."""
    ids = await world.put_many(40, world.receiver.url)
    child = world.child(tmp_path, 2, probe)
    try:
        await eventually_async(lambda: child.poll() == -signal.SIGKILL, 20, what="the relay killed itself")
        async with world.running(world.relay(terms=BRIEF)):
            await world.emptied(15)
    finally:
        kill(child)
    assert set(world.ids()) == ids
    twice = len(world.ids()) - len(ids)
    assert twice == (10 if probe == "relay.published_not_marked" else 0), "at most one batch is sent again"


async def test_a_relay_paused_past_its_lease_settles_no_row(world: RelayWorld, tmp_path: Path) -> None:
    """SIGSTOP, another relay takes over, SIGCONT: all rows arrive, and the fence of the lease has risen."""
    world.receiver.be_silent()
    ids = await world.put_many(30, world.receiver.url)
    child = world.child(tmp_path, 2)
    try:
        await eventually_async(lambda: len(world.ids()) == 10, 20, what="the child's first batch is under way")
        os.kill(child.pid, signal.SIGSTOP)
        world.receiver._talking.set()
        relay = world.relay(terms=BRIEF)
        async with world.running(relay):
            await world.emptied(20)
            assert relay.counters.published == 30, "the one that took over settled every row itself"
            again = await world.put_many(5, world.receiver.url)
            os.kill(child.pid, signal.SIGCONT)
            await eventually_async(lambda: again <= set(world.ids()))
            await world.emptied()
            assert relay.counters.marks_lost == 0
    finally:
        kill(child)
    assert set(world.ids()) == ids | again
    assert await world.pool.fetchval("SELECT version FROM tickwright.job_config WHERE job_name = $1", LEASE) == 2


async def test_a_late_mark_of_an_overtaken_relay_does_not_count(world: RelayWorld) -> None:
    """The successor's row stays, though the zombie takes it for published."""
    await check_late_mark(world)


async def test_an_overtaken_relay_stops_and_its_successor_sends_again(world: RelayWorld) -> None:
    """Paused between publish and mark: the row is sent twice, under one id, and the second relay settles it."""
    stops = Stops()
    stops.close("relay.published_not_marked")
    row_id = await world.put(world.receiver.url)
    zombie = world.relay("zombie", probe=stops)
    async with world.running(zombie):
        await eventually_async(lambda: stops.reached_times["relay.published_not_marked"] == 1)
        await run_out(world.pool, LEASE)
        async with world.running(world.relay("heir")) as heir:
            await world.emptied()
            await eventually_async(lambda: zombie.lease is None, what="the zombie has noticed")
            assert (heir.counters.published, zombie.counters.published) == (1, 0)
    assert world.ids() == [f"out_{row_id}"] * 2


async def test_a_database_that_restarts_delays_the_marks_and_loses_none(world: RelayWorld) -> None:
    """Connections are cut between publish and mark: the mark is tried again while the lease holds."""
    stops = Stops()
    stops.close("relay.published_not_marked")
    await world.put_many(5, world.receiver.url)
    relay = world.relay(probe=stops)
    async with world.running(relay):
        await eventually_async(lambda: stops.reached_times["relay.published_not_marked"] == 1)
        await world.pool.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        stops.open("relay.published_not_marked")

        async def emptied() -> bool:
            with suppress(*UNAVAILABLE):  # the test queries through the pool whose connections were cut
                return await world.left() == 0
            return False

        await eventually_async(emptied, 30, what="the outbox is empty")
    assert len(world.ids()) == 5
