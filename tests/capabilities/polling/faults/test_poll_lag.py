"""What operators see of the consumers in Kafka: the alert, the lag, explain; with a real Kafka and real consumers."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import aiohttp
import pytest

from kit.alerts import RULES
from kit.consumers import LONG, Trackers, all_done, http_of, running_consumer
from kit.kafka import KafkaServer
from kit.kafka_consumers import hand_to_relay, kafka_source, publish, running_relay_and_consumer, spoil
from kit.kafka_polls import PollWorld, Seen, poll_world
from kit.leases import LONG as LEASE_LONG
from kit.partners import Courier
from kit.waiting import eventually_async
from tickwright.capabilities.operations.alerts.alerting import Alerting
from tickwright.capabilities.polling.relay.admin import PollPartitionView, poll_partitions
from tickwright.capabilities.polling.service import PollingService
from tickwright.engine.leases import Leases
from tickwright.engine.session import WorkerSession
from tickwright.ports.views import Reason
from tickwright.store.pool import Pool
from tickwright.transports.kafka.poll_reader import PollReader
from tickwright.transports.kafka.poll_source import KafkaPollSource

RULE = next(rule for rule in RULES if rule.name == "poll_group_lag")


@pytest.fixture
async def world(database_url: str, kafka_server: KafkaServer, kafka_prefix: str) -> AsyncIterator[PollWorld]:
    """A database and names in Kafka of the test's own."""
    async with poll_world(database_url, kafka_server.url, kafka_prefix) as made:
        yield made


class Judge:
    """Evaluates the rule on demand, with a bound of its own."""

    def __init__(self, world: PollWorld, bound: timedelta = timedelta()) -> None:
        self._pool = world.pool
        self._loop = Alerting(Leases(world.pool, owner="test"), rules=[replace(RULE, bounds=(bound,))])

    async def says(self, *states: str) -> bool:
        """Look once; whether the rule's alerts are these, oldest first."""
        lease = await Leases(self._pool, owner="test", terms=LEASE_LONG).take("alerting")
        assert lease is not None
        await self._loop.round(lease)
        await lease.release()
        rows = await self._pool.fetch("SELECT state FROM tickwright.alerts WHERE rule = $1 ORDER BY id", RULE.name)
        return [row["state"] for row in rows] == list(states)


async def caught_up(world: PollWorld) -> bool:
    """Whether every partition is read and done, as operators see it."""
    found = await poll_partitions(world.pool)
    return bool(found) and all(one.lag == 0 and one.unfinished_since is None for one in found)


async def test_the_lag_fires_without_consumers_and_resolves_with_them(world: PollWorld) -> None:
    """Nobody ever read; read to the end; stopped, and published again; started once more."""
    judge = Judge(world)
    assert await judge.says()
    source_of = kafka_source(world.bootstrap, world.prefix)
    async with Courier() as courier:
        first = await publish(world, 60, http=http_of(courier))
        assert await judge.says("firing")
        subject, summary = await world.pool.fetchrow("SELECT subject, summary FROM tickwright.alerts")
        assert (subject, "?" in summary, "0 consumers" in summary) == (world.topic, False, True)
        async with running_consumer(world.url, terms=LONG, source_of=source_of):
            await eventually_async(lambda: all_done(world.pool, first), 30)
            await eventually_async(lambda: caught_up(world), 20, what="the position is told")
            assert await judge.says("resolved")
        assert await judge.says("resolved"), "nothing waits, so nobody is missed"
        second = await publish(world, 60, http=http_of(courier))
        assert await judge.says("resolved", "firing")
        async with running_consumer(world.url, terms=LONG, source_of=source_of):
            await eventually_async(lambda: all_done(world.pool, second), 30)
            await eventually_async(lambda: caught_up(world), 20)
        assert await judge.says("resolved", "resolved")


async def test_polls_that_were_published_a_moment_ago_are_no_lag(world: PollWorld) -> None:
    """The bound is the time since they were published, by the database's clock."""
    await publish(world, 60)
    minute = timedelta(minutes=1)
    assert await Judge(world, minute).says()
    await world.pool.execute("UPDATE tickwright.poll_ends SET mark_ats = ARRAY[now() - interval '61 seconds']")
    assert await Judge(world, minute).says("firing")


async def test_what_a_live_consumer_has_read_is_no_lag_until_it_dies(world: PollWorld) -> None:
    """A partner that does not answer holds its polls, not the topic; without the consumer they wait for another one."""
    async with Courier() as courier:
        courier.be_silent()
        await publish(world, 30, http=http_of(courier), timeout="60s")
        async with running_consumer(
            world.url, terms=LONG, source_of=kafka_source(world.bootstrap, world.prefix)
        ) as side:
            await eventually_async(lambda: courier.running == 30, 30)
            read = "SELECT bool_and(read_to = end_offset AND reader IS NOT NULL) FROM tickwright.poll_lags"
            await eventually_async(lambda: world.pool.fetchval(read), 20, what="all is read, and told")
            judge = Judge(world)
            assert await judge.says()
            found = await poll_partitions(world.pool)
            assert {one.reader for one in found} == {"test"}
            assert all(one.lag > 0 and one.unfinished_since is not None for one in found)
            await world.pool.execute("UPDATE tickwright.workers SET lost_at = now() WHERE id = $1", side.session.token)
            assert await judge.says("firing")
            courier.talk()


async def _told_of_an_idle_topic(world: PollWorld) -> None:
    """A reader that died before it told how far it was; the next one finds no record, and tells it all the same."""
    source_of = kafka_source(world.bootstrap, world.prefix)
    async with Courier() as courier:
        trackers = await publish(world, 60, http=http_of(courier))
        async with running_consumer(world.url, terms=LONG, source_of=source_of):
            await eventually_async(lambda: all_done(world.pool, trackers), 30)
        await world.pool.execute("UPDATE tickwright.poll_reads SET position = 0, read_to = 0")
        async with running_consumer(world.url, terms=LONG, source_of=source_of):
            await eventually_async(lambda: caught_up(world), 20, what="the group's own position is told")


async def test_a_reader_without_news_says_where_the_group_is(world: PollWorld) -> None:
    """Asked of the group when the partition is assigned, so that an idle topic has no lag for ever."""
    await _told_of_an_idle_topic(world)


async def test_the_mutant_that_does_not_ask_the_group_is_caught(
    world: PollWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the question left out, the old position stays, and the lag with it."""
    monkeypatch.setattr(PollReader, "_fetch_begin", lambda *_: None)
    with pytest.raises(AssertionError, match="the group's own position is told"):
        await _told_of_an_idle_topic(world)


async def test_who_was_overtaken_says_nothing_of_the_partition(world: PollWorld) -> None:
    """The words of a reader count as long as its answers: under its epoch."""
    await publish(world, 30)
    sources: list[KafkaPollSource] = []

    def source_of(pool: Pool, session: WorkerSession) -> KafkaPollSource:
        sources.append(kafka_source(world.bootstrap, world.prefix)(pool, session))
        return sources[-1]

    said = "SELECT count(*) = 3 FROM tickwright.poll_reads"
    async with running_consumer(world.url, terms=LONG, source_of=source_of):
        await eventually_async(lambda: world.pool.fetchval(said), 30)
        await world.pool.execute("UPDATE tickwright.poll_partitions SET epoch = epoch + 1")
        await world.pool.execute("UPDATE tickwright.poll_reads SET position = 7777")
        await sources[0]._report()
        assert await world.pool.fetchval("SELECT min(position) = 7777 FROM tickwright.poll_reads")


@pytest.mark.storm
async def test_the_source_counts_what_it_read_skipped_and_holds(world: PollWorld) -> None:
    """Every record once, what is no poll by its reason, and each time that the group gives or takes."""
    await publish(world, 30)
    await asyncio.to_thread(spoil, world)
    sources: list[KafkaPollSource] = []

    def source_of(pool: Pool, session: WorkerSession) -> KafkaPollSource:
        sources.append(kafka_source(world.bootstrap, world.prefix)(pool, session))
        return sources[-1]

    def counted() -> dict[str, float]:
        return {"/".join((one.name.removeprefix("tickwright_poll_"), *one.labels)): one.value for one in samples()}

    async with running_consumer(world.url, terms=LONG, source_of=source_of):
        samples = sources[0].samples
        await eventually_async(lambda: counted()["records_total"] == 51, 30, what="all is read")
        await eventually_async(lambda: counted()["records_skipped_total/unknown_partner"] == 3, 20)
        assert counted()["records_skipped_total/unreadable"] == 15
        assert (counted()["partitions_held"], counted()["rebalances_total"]) == (3, 1)
        async with running_consumer(world.url, terms=LONG, source_of=source_of):
            await eventually_async(lambda: counted()["rebalances_total"] >= 2, 30, what="it gives some away")
            await eventually_async(lambda: counted()["partitions_held"] < 3, 20)


async def test_the_page_of_a_process_has_what_relay_and_consumer_count(world: PollWorld) -> None:
    """Both roles in one process: opened once, read and done, and no lag."""
    trackers = await hand_to_relay(world, 50)
    async with running_relay_and_consumer(world) as node:
        await eventually_async(lambda: all_done(world.pool, trackers), 40)
        await eventually_async(lambda: caught_up(world), 20)
        async with aiohttp.ClientSession() as client, client.get(f"http://{node.health_bind}/metrics") as answer:
            page = (await answer.text()).splitlines()
    assert {"tickwright_poll_records_total 50.0", 'tickwright_poll_relay_opens_total{shard="0"} 1.0'} <= set(page)
    lags = [line for line in page if line.startswith("tickwright_poll_lag_records{")]
    assert len(lags) > 1
    assert all(line.endswith(" 0.0") and world.topic in line for line in lags)


# ---------------------------------------------------------------------- explain


class Asked:
    """Explain, for one tracker of a topic, and its record."""

    def __init__(self, world: PollWorld, trackers: Trackers, seen: Sequence[Seen]) -> None:
        self.record = seen[0]
        self.tracker_id: int = seen[0].value["tracker_id"]
        self._service = PollingService(world.pool)
        assert self.tracker_id in trackers.ids

    async def chain(self) -> dict[str, str]:
        """Return the reasons by code."""
        reasons: list[Reason] = (await self._service.explain(self.tracker_id)).reasons
        return {reason.code: reason.text for reason in reasons}

    async def first(self, code: str, *words: Any) -> bool:
        """Whether the second word after ``published`` is this, with these in it."""
        chain = await self.chain()
        return list(chain)[:2] == ["published", code] and all(str(word) in chain[code] for word in words)


async def asked(world: PollWorld, trackers: Trackers) -> Asked:
    """Make the trackers old enough for their turn, and take one of them."""
    await world.pool.execute("UPDATE tickwright.trackers SET created_at = now() - interval '1 day'")
    return Asked(world, trackers, await world.seen())


async def test_explain_follows_a_poll_through_kafka(world: PollWorld) -> None:
    """Published at its partition and offset; read by nobody; in flight; answered. What it says is on the topic."""
    async with Courier() as courier:
        courier.be_silent()
        trackers = await publish(world, 90, http=http_of(courier), timeout="60s")
        one = await asked(world, trackers)
        record, batch = one.record, int(one.record.headers["batch_no"])
        said = (await one.chain())["published"]
        assert f"in batch {batch}, to partition {record.partition} of {world.topic}, between the offsets" in said
        first, last = (int(word) for word in said.rsplit("offsets ", 1)[1].split(" and "))
        assert first <= record.offset <= last
        assert await one.first("not_read", record.partition)
        async with running_consumer(world.url, terms=LONG, source_of=kafka_source(world.bootstrap, world.prefix)):
            await eventually_async(lambda: one.first("in_flight", "test", "the group is at 0"), 30, what="it is taken")
            courier.talk()
            await eventually_async(lambda: all_done(world.pool, trackers), 30)
        assert "published" not in await one.chain()
        assert "answered" in await one.chain()


async def test_explain_says_that_the_group_has_passed_what_was_dropped(world: PollWorld) -> None:
    """No courier, and the next turn is due: over, without an answer; and before that, whose position it is."""
    trackers = await publish(world, 60)
    one = await asked(world, trackers)
    assert await one.first("not_read", "yet")
    async with running_consumer(world.url, terms=LONG, source_of=kafka_source(world.bootstrap, world.prefix)):
        await eventually_async(lambda: one.first("in_flight", "test"), 30)
    assert await one.first("not_read", "no consumer reads", "the group is at 0")
    await world.pool.execute("UPDATE tickwright.poll_reads SET position = 10000, read_to = 10000")
    assert await one.first("passed", "the group is at 10000")


async def test_explain_keeps_the_batch_when_its_place_is_forgotten(world: PollWorld) -> None:
    """The ledger outlives the places."""
    trackers = await publish(world, 30)
    one = await asked(world, trackers)
    await world.pool.execute("UPDATE tickwright.poll_batches SET partition_count = 0, partitions = '{}'")
    assert "only the position proved it" in (await one.chain())["published"]
    await world.pool.execute("DELETE FROM tickwright.poll_batches")
    assert "in batch 1; its offsets are no longer known" in (await one.chain())["published"]


# ---------------------------------------------------------------------- marks


async def marks(world: PollWorld) -> list[int]:
    """Return how many earlier ends the one partition remembers, and the last of them against its end."""
    row = await world.pool.fetchrow("SELECT end_offset, mark_ends, mark_ats FROM tickwright.poll_ends")
    assert len(row["mark_ends"]) == len(row["mark_ats"])
    assert row["mark_ends"] == sorted(row["mark_ends"])
    return [len(row["mark_ends"]), row["end_offset"] - row["mark_ends"][-1]]


async def test_earlier_ends_are_remembered_as_long_as_the_group_is_before_them(world: PollWorld) -> None:
    """One in ten seconds, none that was passed, none of a topic that was made anew; so the age never starts anew."""
    first = itertools.count(1, 100)

    async def publish_more() -> list[int]:
        await world.fill(1, 10, first=next(first))
        await world.emptied()
        return await marks(world)

    older = "UPDATE tickwright.poll_ends SET mark_ats = ARRAY (SELECT at - $1::interval FROM unnest(mark_ats) AS at)"
    async with world.running(world.relay(log_terms={"partitions": 1})):
        assert await publish_more() == [1, 0]
        assert (await publish_more())[0] == 1, "ten seconds have not passed"
        await world.pool.execute(older, timedelta(seconds=11))
        assert await publish_more() == [2, 0]
        await world.pool.execute(older, timedelta(minutes=16))
        assert (await publish_more())[0] == 3
        await world.pool.execute(older, timedelta(seconds=50))
        assert (await publish_more())[0] == 3, "a sixteenth of the lag has not passed"
        (found,) = await poll_partitions(world.pool)
        assert found.unfinished_since is not None
        now = await world.pool.fetchval("SELECT now()")
        assert timedelta(minutes=17) < now - found.unfinished_since < timedelta(minutes=18)
        await _read_to(world, found)
        assert await publish_more() == [1, 0]
        await world.pool.execute("UPDATE tickwright.poll_ends SET end_offset = 9999, mark_ends = '{9999}'")
        assert await publish_more() == [1, 0], "what is beyond the end was another topic's"


async def _read_to(world: PollWorld, found: PollPartitionView) -> None:
    sql = "INSERT INTO tickwright.poll_reads VALUES ($1, $2, $3, $3, now())"
    await world.pool.execute(sql, found.topic, found.partition, found.end_offset)
    (after,) = await poll_partitions(world.pool)
    assert (after.lag, after.unfinished_since) == (0, None)
