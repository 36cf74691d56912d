"""What operators see of a relay: no problem while it works, and the reason while it is blocked."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from kit.kafka import KafkaServer
from kit.kafka_polls import PollWorld, poll_world, terms_of
from kit.leases import LONG
from kit.waiting import eventually_async
from tickwright.capabilities.polling.relay.admin import PollRelayAdmin, PollRelayView
from tickwright.capabilities.polling.relay.relay import PollRelay
from tickwright.engine.leases import Leases
from tickwright.transports.kafka.transactions import KafkaLog

READS = 6
BLOCKED = "SELECT stands_code, stands_since FROM tickwright.poll_relays"


@pytest.fixture
async def world(database_url: str, kafka_server: KafkaServer, kafka_prefix: str) -> AsyncIterator[PollWorld]:
    """A database and a Kafka prefix of the test's own."""
    async with poll_world(database_url, kafka_server.url, kafka_prefix) as made:
        yield made


class SlowLog(KafkaLog):
    """A log whose position is read so slowly that the relay publishes before and after the read."""

    relay: PollRelay

    async def position(self, shard: int) -> int | None:
        """Wait for a batch before the read and one after it."""
        await self._another()
        found = await super().position(shard)
        await self._another()
        return found

    async def _another(self) -> None:
        done = self.relay.counters.batches
        await eventually_async(lambda: self.relay.counters.batches > done, 20, what="the relay publishes")


async def keep_busy(world: PollWorld) -> None:
    """Put polls into the outbox, again and again."""
    first = 1
    while True:
        await world.fill(2, 10, first=first)
        first += 20
        await world.emptied()


async def seen_of(world: PollWorld) -> PollRelayView | None:
    """Return what an operator sees of the only shard."""
    views = await PollRelayAdmin(world.pool, Leases(world.pool, owner="admin", terms=LONG), world.log).list()
    return views[0] if views else None


@pytest.mark.storm
async def test_a_relay_that_publishes_all_the_time_has_no_problem(world: PollWorld) -> None:
    """Numbers and position are read at different instants; only a contradiction at every instant is a problem."""
    relay = world.relay()
    log = SlowLog(terms_of(world.bootstrap, world.prefix), world.topic)
    log.relay = relay
    admin_commands = PollRelayAdmin(world.pool, Leases(world.pool, owner="admin", terms=LONG), lambda: log)
    async with world.running(relay):
        filling = asyncio.create_task(keep_busy(world))
        await eventually_async(lambda: relay.counters.batches > 0, 20)
        views = [(await admin_commands.list())[0] for _ in range(READS)]
        filling.cancel()
        await asyncio.gather(filling, return_exceptions=True)
    assert [view.problem for view in views] == [None] * READS
    assert all(view.position is not None and view.position <= view.batch_no for view in views)


async def test_a_relay_blocked_before_its_first_batch_is_listed_with_the_reason(world: PollWorld) -> None:
    """It makes its row when it takes over, notes why it is blocked, and clears that when it continues."""
    relay = world.relay(log_terms={"allow_single_broker": False})
    async with world.running(relay):
        await eventually_async(lambda: relay.blocked_by is not None, 30, what="it is blocked")

        async def listed() -> bool:
            view = await seen_of(world)
            return view is not None and view.problem == "kafka_replication_unsafe"

        await eventually_async(listed, 10, what="the list has the reason")
        view = await seen_of(world)
        assert view is not None
        assert view.stands_since is not None
        assert relay.blocked_by is not None
        assert view.says == relay.blocked_by.message
    await world.fill(2, 10)
    async with world.running(world.relay("heir")):
        await world.emptied()

        async def cleared() -> bool:
            return tuple(await world.pool.fetchrow(BLOCKED)) == (None, None)

        await eventually_async(cleared, 10, what="the reason is cleared")
    view = await seen_of(world)
    assert view is not None
    assert (view.problem, view.stands_since) == (None, None)


async def test_a_relay_without_kafka_is_listed_before_it_has_moved_a_poll(database_url: str) -> None:
    """It makes its row when it takes over, and clears an old reason from a time with Kafka."""
    async with poll_world(database_url, "", "none") as world:
        await world.pool.execute(
            "INSERT INTO tickwright.poll_relays (shard, stands_code) VALUES (0, 'kafka_unavailable')"
        )
        admin_commands = PollRelayAdmin(world.pool, Leases(world.pool, owner="admin", terms=LONG), lambda: None)
        relays = [PollRelay(Leases(world.pool, owner="r", terms=LONG), None, shard=n, terms=LONG) for n in range(2)]
        async with world.running(relays[0]), world.running(relays[1]):

            async def both() -> bool:
                views = await admin_commands.list()
                return [(one.shard, one.transport, one.problem) for one in views] == [
                    (0, "postgres", None), (1, "postgres", None),
                ]  # fmt: skip

            await eventually_async(both, 20, what="both are in the list")
