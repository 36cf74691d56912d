"""The poll relay without Kafka: released rows go into the queue inside PostgreSQL, exactly once by construction."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
import pytest

from kit.kafka_polls import CONSERVED, PollWorld, poll_world
from kit.leases import LONG, run_out
from kit.probes import Stops
from kit.waiting import eventually_async
from tickwright.capabilities.polling.relay import batches as relay_batches
from tickwright.capabilities.polling.relay.relay import PollRelay
from tickwright.engine.leases import Leases
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.store.pool import UNAVAILABLE

FORGED = """
INSERT INTO tickwright.poll_queue (due_at, slot_id, partner_no, ids, account_nos, external_ids)
SELECT due_at, slot_id, partner_no, ARRAY[1], ARRAY[1], ARRAY['1']
  FROM tickwright.partners,
       (SELECT timestamptz '2000-01-01 UTC' + n * interval '1 second', 3000000 FROM generate_series(1, 1001) AS n
        UNION ALL
        SELECT clock_timestamp() + interval '2 days', 600) AS forged (due_at, slot_id)
"""
"""More polls than a sweep reads, of a slot that does not exist; and one that is due too far ahead to be taken."""
QUEUED = "SELECT unnest(ids) AS id, date_part('epoch', due_at)::bigint AS due FROM tickwright.poll_queue"


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[PollWorld]:
    """A database, and no Kafka."""
    async with poll_world(database_url, "", "none") as world:
        yield world


@asynccontextmanager
async def running(world: PollWorld, name: str = "relay", probe: Probe = NO_PROBE) -> AsyncIterator[PollRelay]:
    """Run a relay that has no log."""
    relay = PollRelay(Leases(world.pool, owner=name, terms=LONG), None, terms=LONG, probe=probe)
    task = asyncio.create_task(relay.run())
    try:
        yield relay
    finally:
        await relay.stop()
        await task


async def queued(pool: asyncpg.Pool) -> list[str]:
    """Return the message ids that are in the queue."""
    return [f"poll_{row['id']}_{row['due']}" for row in await pool.fetch(QUEUED)]


async def test_what_is_released_is_in_the_queue_once(world: PollWorld) -> None:
    """Every poll once, its second and partner kept, the ledger counted; what is due later stays."""
    await world.fill(50, 7)
    later = await world.pool.fetchval(
        "UPDATE tickwright.scheduler_outbox SET release_at = clock_timestamp() + interval '1 hour' "
        "WHERE id = (SELECT max(id) FROM tickwright.scheduler_outbox) RETURNING cardinality(ids)"
    )
    async with running(world):

        async def moved() -> bool:
            return await world.pending() == int(later)

        await eventually_async(moved, 20)
    found = await queued(world.pool)
    assert len(found) == len(set(found)) == 343
    assert set(found) < world.expected


async def test_an_overtaken_relay_moves_nothing_twice(world: PollWorld) -> None:
    """Two relays, one of which does not know that it was overtaken: the lease decides in the transaction itself."""
    stops = Stops()
    stops.close("relay.poll_batch_marked")
    await world.fill(20, 7)
    async with running(world, "zombie", stops) as zombie:
        await eventually_async(lambda: stops.reached_times["relay.poll_batch_marked"] == 1, 20)
        await run_out(world.pool, "poll-relay:0")
        async with running(world, "heir"):
            await world.fill(20, 7, first=1000)
            await world.emptied()
            stops.open("relay.poll_batch_marked")
            await eventually_async(lambda: zombie.lease is None, 20, what="the zombie has noticed")
    found = await queued(world.pool)
    assert len(found) == len(set(found))
    assert set(found) == world.expected


async def test_selected_is_published_plus_pending_while_connections_are_cut(world: PollWorld) -> None:
    """At every check selected is published plus pending, and the published polls are those in the queue."""

    async def counts() -> Any:
        with suppress(*UNAVAILABLE):  # the test asks through the pool whose connections were cut
            return await world.pool.fetchrow(CONSERVED)

    async with running(world):
        for number in range(8):
            await world.pool.expire_connections()  # the test writes through the pool, too, and needs whole ones
            await world.fill(20, 7, first=number * 1000 + 1)
            await world.pool.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            row = await eventually_async(counts, what="the counts can be read")
            assert row["selected"] == row["published"] + row["superseded"] + row["pending"]
        await world.emptied()
    found = await queued(world.pool)
    assert len(found) == len(set(found))
    assert set(found) == world.expected


async def test_of_the_missed_polls_of_a_tracker_only_the_last_goes_into_the_queue(world: PollWorld) -> None:
    """The relay was stopped for 30 polls of each of 50 trackers: each is polled once, the ledger counts the rest."""
    await world.fill_turns(30, 50)
    async with running(world) as relay:
        await world.emptied()
        assert (relay.counters.published, relay.counters.superseded) == (50, 29 * 50)
    assert sorted(await queued(world.pool)) == sorted(world.expected)
    assert await world.superseded() == [50] * 29 + [0]


async def test_polls_that_no_consumer_takes_leave_the_queue_when_superseded(world: PollWorld) -> None:
    """No process has a courier: the last polls wait, older ones go; a held row stays, done polls are not counted."""
    await world.fill_turns(3, 20)
    await world.pool.execute(
        "WITH gone AS (DELETE FROM tickwright.scheduler_outbox RETURNING *), done AS ("
        "INSERT INTO tickwright.poll_done (slot_id, due_at, partner_no, done_at, ids) "
        "SELECT slot_id, due_at, partner_no, now(), ids FROM gone WHERE ids = '{2}') "
        "INSERT INTO tickwright.poll_queue (due_at, slot_id, partner_no, ids, account_nos, external_ids, owner) "
        "SELECT due_at, slot_id, partner_no, ids, account_nos, external_ids, CASE WHEN ids = '{1}' THEN 9 END FROM gone"
    )
    async with running(world):

        async def only_the_last() -> bool:
            return len(await queued(world.pool)) == 20 + 2

        await eventually_async(only_the_last, 20, what="what is superseded has left the queue")
    assert world.expected < set(await queued(world.pool))
    assert await world.superseded() == [18, 18, 0]


async def check_forged(world: PollWorld) -> None:
    """Parked polls that no relay sent leave the queue, and so do superseded ones after them."""
    await world.fill_turns(2, 20)
    await world.pool.execute(FORGED)
    await world.pool.execute(
        "WITH gone AS (DELETE FROM tickwright.scheduler_outbox RETURNING *) "
        "INSERT INTO tickwright.poll_queue (due_at, slot_id, partner_no, ids, account_nos, external_ids) "
        "SELECT due_at, slot_id, partner_no, ids, account_nos, external_ids FROM gone"
    )
    for _ in range(4):  # each drops 500 rows at most
        async with world.pool.acquire() as connection, connection.transaction():
            await connection.execute(relay_batches.SQL["drop_queued"], 1000, 500)
    assert sorted(await queued(world.pool)) == sorted(world.expected)
    assert await world.superseded() == [20, 0]


async def test_polls_that_no_relay_sent_leave_the_queue_and_hold_up_no_others(world: PollWorld) -> None:
    """Of a slot that does not exist, or due days ahead: dropped, and so are real superseded polls after them."""
    await check_forged(world)


@pytest.mark.parametrize(
    ("guard", "instead"),
    [(", interval '0')", ", NULL)"), ("interval '1 day'", "interval '3 days'")],
    ids=["a slot that does not exist", "due days ahead"],
)
async def test_a_sweep_that_keeps_forged_polls_is_found(
    world: PollWorld, monkeypatch: pytest.MonkeyPatch, guard: str, instead: str
) -> None:
    """The mutants: forged rows stay, and a sweep reads no others."""
    sql = relay_batches.SQL["drop_queued"]
    assert guard in sql
    monkeypatch.setattr(relay_batches, "SQL", {**relay_batches.SQL, "drop_queued": sql.replace(guard, instead)})
    with pytest.raises(AssertionError):
        await check_forged(world)
