"""The poll relay without faults: what is on the topic, when, and in which bytes."""

from collections.abc import AsyncIterator

import pytest

from kit.kafka_polls import PollWorld, poll_world
from kit.leases import run_out
from kit.probes import Stops
from kit.servers import KafkaServer
from kit.waiting import eventually_async


@pytest.fixture
async def world(database_url: str, kafka_server: KafkaServer, kafka_prefix: str) -> AsyncIterator[PollWorld]:
    """A database and a topic."""
    async with poll_world(database_url, kafka_server.url, kafka_prefix) as world:
        yield world


async def test_what_is_released_is_on_the_topic_once_and_gone_from_the_outbox(world: PollWorld) -> None:
    """Every poll is there once, in whole batches in order, with its key, its members and its headers."""
    await world.fill(50, 7)
    async with world.running(world.relay()) as relay:
        await world.emptied()
    seen = await world.check()
    assert relay.counters.published == 350
    one = seen[0]
    assert one.key == str(one.value["tracker_id"]).encode()
    names = ["version", "id", "tracker_id", "due_at", "partner", "account_id", "external_id", "slot_id"]
    assert list(one.value) == names
    assert one.value["external_id"] == f'parcel "{one.value["tracker_id"]}"'
    assert (one.value["version"], one.value["partner"], one.value["account_id"]) == (1, "dhl", "shop")
    assert one.headers["event_id"].decode() == one.id
    assert one.headers.keys() == {"event_id", "slot_id", "batch_no", "idx", "fence"}
    assert await world.positions_seen() == list(range(1, relay.counters.batches + 1))


async def test_nothing_leaves_before_its_second_and_all_leaves_soon_after(world: PollWorld) -> None:
    """A record's time is at or after its release, by the database's clock, and a moment later at most."""
    await world.fill(1, 1)
    async with world.running(world.relay()):
        await world.emptied()
        await world.fill(10, 2, first=1000, release_in_s=1.0)
        rows = await world.pool.fetch("SELECT unnest(ids) AS id, release_at FROM tickwright.scheduler_outbox")
        await world.emptied()
    assert len(rows) == 20, "none was published before the rows were read"
    sent_at = {one.value["tracker_id"]: one.at for one in await world.check()}
    late_s = [(sent_at[row["id"]] - row["release_at"]).total_seconds() for row in rows]
    assert min(late_s) > -0.002, "a record's time has whole milliseconds"
    assert sorted(late_s)[len(late_s) // 2] < 10


async def test_one_key_has_one_partition_and_its_polls_are_in_order(world: PollWorld) -> None:
    """The polls of a tracker follow one another by their due time, whichever batch they were in."""
    for minutes_ago in (3, 2, 1, 0):
        await world.fill(20, 5, minutes_ago=minutes_ago)
    async with world.running(world.relay()):
        await world.emptied()
    seen = await world.check()
    records: dict[bytes, list[tuple[int, int, str]]] = {}
    for one in seen:
        records.setdefault(one.key, []).append((one.partition, one.offset, one.value["due_at"]))
    for found in records.values():
        assert len({partition for partition, _, _ in found}) == 1
        dues = [due_at for _, _, due_at in sorted(found)]
        assert dues == sorted(dues)


async def test_two_attempts_of_a_batch_have_the_same_bytes(world: PollWorld) -> None:
    """An attempt that does not count has the bytes of the one that counts; only its headers differ."""
    await world.fill(10, 7)
    stops = Stops()
    stops.close("relay.poll_batch_frozen")
    zombie = world.relay("zombie", probe=stops)
    async with world.running(zombie):
        await eventually_async(lambda: stops.reached_times["relay.poll_batch_frozen"] == 1, 20)
        await run_out(world.pool, "poll-relay:0")
        async with world.running(world.relay("heir")):
            await world.emptied()
            stops.open("relay.poll_batch_frozen")
            await eventually_async(lambda: zombie.counters.fenced == 1, 20, what="the zombie is fenced")
    every = await world.seen(committed=False)
    attempts: dict[str, set[bytes]] = {}
    for one in every:
        attempts.setdefault(one.id, set()).add(one.body)
    assert len(every) >= 70
    assert all(len(bodies) == 1 for bodies in attempts.values())
    await world.check()


async def test_of_the_missed_polls_of_a_tracker_only_the_last_is_published(world: PollWorld) -> None:
    """The relay was stopped for 30 polls of each of 50 trackers: each is polled once, the ledger counts the rest."""
    await world.fill_turns(30, 50)
    async with world.running(world.relay()) as relay:
        await world.emptied()
        assert (relay.counters.published, relay.counters.superseded) == (50, 29 * 50)
    await world.check()
    assert await world.superseded() == [50] * 29 + [0]


async def test_the_outbox_stays_bounded_while_kafka_is_unavailable(world: PollWorld) -> None:
    """Nothing is published: superseded polls are dropped all the same, and the last ones wait for the broker."""
    await world.fill_turns(30, 50)
    async with world.running(world.relay(log_terms={"bootstrap": "127.0.0.1:1"})) as relay:

        async def bounded() -> bool:
            return await world.pending() == 50

        await eventually_async(bounded, 20, what="only the last polls wait")
        assert relay.counters.published == 0
    async with world.running(world.relay()):
        await world.emptied()
    await world.check()


async def test_what_is_superseded_while_the_relay_works_is_not_frozen(world: PollWorld) -> None:
    """A backlog arrives while the log is open: it is checked before every batch, not only when the log is opened."""
    marked = "relay.poll_batch_marked"
    stops = Stops()
    stops.close(marked)
    await world.fill(1, 7)
    async with world.running(world.relay(probe=stops)) as relay:
        await eventually_async(lambda: stops.reached_times[marked] == 1, 20, what="a batch is marked")
        await world.fill_turns(30, 50)
        stops.open(marked)
        await world.emptied()
        assert (relay.counters.published, relay.counters.superseded) == (57, 29 * 50)
    await world.check()
