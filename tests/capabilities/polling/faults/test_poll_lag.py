"""What operators see of consumers that read Kafka: the alert, the lag and explain, with a real Kafka."""

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
    """A database and a Kafka prefix of the test's own."""
    async with poll_world(database_url, kafka_server.url, kafka_prefix) as made:
        yield made


class LagAlert:
    """Evaluates the rule on demand, with a bound of its own."""

    def __init__(self, world: PollWorld, bound: timedelta = timedelta()) -> None:
        self._pool = world.pool
        self._loop = Alerting(Leases(world.pool, owner="test"), rules=[replace(RULE, bounds=(bound,))])

    async def has_states(self, *states: str) -> bool:
        """Evaluate once; return whether the rule's alerts have these states, oldest first."""
        lease = await Leases(self._pool, owner="test", terms=LEASE_LONG).take("alerting")
        assert lease is not None
        await self._loop.round(lease)
        await lease.release()
        rows = await self._pool.fetch("SELECT state FROM tickwright.alerts WHERE rule = $1 ORDER BY id", RULE.name)
        return [row["state"] for row in rows] == list(states)


async def caught_up(world: PollWorld) -> bool:
    """Return whether every partition is read and done, as operators see it."""
    found = await poll_partitions(world.pool)
    return bool(found) and all(one.lag == 0 and one.unfinished_since is None for one in found)


async def test_the_lag_fires_without_consumers_and_resolves_with_them(world: PollWorld) -> None:
    """No consumer yet; one reads to the end; it stops, and more is published; another one starts."""
    alert = LagAlert(world)
    assert await alert.has_states()
    source_of = kafka_source(world.bootstrap, world.prefix)
    async with Courier() as courier:
        first = await publish(world, 60, http=http_of(courier))
        assert await alert.has_states("firing")
        subject, summary = await world.pool.fetchrow("SELECT subject, summary FROM tickwright.alerts")
        assert (subject, "?" in summary, "0 consumers" in summary) == (world.topic, False, True)
        async with running_consumer(world.url, terms=LONG, source_of=source_of):
            await eventually_async(lambda: all_done(world.pool, first), 30)
            await eventually_async(lambda: caught_up(world), 20, what="the position is reported")
            assert await alert.has_states("resolved")
        assert await alert.has_states("resolved"), "nothing waits, so no consumer is missing"
        second = await publish(world, 60, http=http_of(courier))
        assert await alert.has_states("resolved", "firing")
        async with running_consumer(world.url, terms=LONG, source_of=source_of):
            await eventually_async(lambda: all_done(world.pool, second), 30)
            await eventually_async(lambda: caught_up(world), 20)
        assert await alert.has_states("resolved", "resolved")


async def test_polls_that_were_just_published_are_no_lag(world: PollWorld) -> None:
    """The bound is the time since they were published, by the database's clock."""
    await publish(world, 60)
    minute = timedelta(minutes=1)
    assert await LagAlert(world, minute).has_states()
    await world.pool.execute("UPDATE tickwright.poll_ends SET mark_ats = ARRAY[now() - interval '61 seconds']")
    assert await LagAlert(world, minute).has_states("firing")


async def test_what_a_live_consumer_has_read_is_no_lag_until_it_dies(world: PollWorld) -> None:
    """Polls of a partner that does not answer wait in their reader; when that dies, they wait for another one."""
    async with Courier() as courier:
        courier.be_silent()
        await publish(world, 30, http=http_of(courier), timeout="60s")
        async with running_consumer(
            world.url, terms=LONG, source_of=kafka_source(world.bootstrap, world.prefix)
        ) as side:
            await eventually_async(lambda: courier.running == 30, 30)
            read = "SELECT bool_and(read_to = end_offset AND reader IS NOT NULL) FROM tickwright.poll_lags"
            await eventually_async(lambda: world.pool.fetchval(read), 20, what="all is read, and reported")
            alert = LagAlert(world)
            assert await alert.has_states()
            found = await poll_partitions(world.pool)
            assert {one.reader for one in found} == {"test"}
            assert all(one.lag > 0 and one.unfinished_since is not None for one in found)
            await world.pool.execute("UPDATE tickwright.workers SET lost_at = now() WHERE id = $1", side.session.token)
            assert await alert.has_states("firing")
            courier.talk()


async def _report_an_idle_topic(world: PollWorld) -> None:
    """A reader dies before it reports its position; the next one finds no record, and reports the position too."""
    source_of = kafka_source(world.bootstrap, world.prefix)
    async with Courier() as courier:
        trackers = await publish(world, 60, http=http_of(courier))
        async with running_consumer(world.url, terms=LONG, source_of=source_of):
            await eventually_async(lambda: all_done(world.pool, trackers), 30)
        await world.pool.execute("UPDATE tickwright.poll_reads SET position = 0, read_to = 0")
        async with running_consumer(world.url, terms=LONG, source_of=source_of):
            await eventually_async(lambda: caught_up(world), 20, what="the group's own position is reported")


async def test_a_reader_without_records_reports_the_groups_position(world: PollWorld) -> None:
    """It asks the group when the partition is assigned, so that the lag of an idle topic ends."""
    await _report_an_idle_topic(world)


async def test_the_mutant_that_does_not_ask_the_group_is_caught(
    world: PollWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without that request the old position stays, and so does the lag."""
    monkeypatch.setattr(PollReader, "_fetch_begin", lambda *_: None)
    with pytest.raises(AssertionError, match="the group's own position is reported"):
        await _report_an_idle_topic(world)


async def test_an_overtaken_reader_reports_nothing_about_its_partition(world: PollWorld) -> None:
    """A reader's report counts as long as its answers do: under its epoch."""
    await publish(world, 30)
    sources: list[KafkaPollSource] = []

    def source_of(pool: Pool, session: WorkerSession) -> KafkaPollSource:
        sources.append(kafka_source(world.bootstrap, world.prefix)(pool, session))
        return sources[-1]

    reported = "SELECT count(*) = 3 FROM tickwright.poll_reads"
    async with running_consumer(world.url, terms=LONG, source_of=source_of):
        await eventually_async(lambda: world.pool.fetchval(reported), 30)
        await world.pool.execute("UPDATE tickwright.poll_partitions SET epoch = epoch + 1")
        await world.pool.execute("UPDATE tickwright.poll_reads SET position = 7777")
        await sources[0]._report()
        assert await world.pool.fetchval("SELECT min(position) = 7777 FROM tickwright.poll_reads")


@pytest.mark.storm
async def test_the_source_counts_what_it_read_skipped_and_holds(world: PollWorld) -> None:
    """Every record once, each skipped record by its reason, and every rebalance of the group."""
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
            await eventually_async(lambda: counted()["rebalances_total"] >= 2, 30, what="it loses some")
            await eventually_async(lambda: counted()["partitions_held"] < 3, 20)


async def test_the_metrics_of_a_process_have_the_counts_of_relay_and_consumer(world: PollWorld) -> None:
    """Both roles in one process: the log is opened once, all polls are read and done, and there is no lag."""
    trackers = await hand_to_relay(world, 50)
    async with running_relay_and_consumer(world) as node:
        await eventually_async(lambda: all_done(world.pool, trackers), 40)
        await eventually_async(lambda: caught_up(world), 20)
        async with aiohttp.ClientSession() as client, client.get(f"http://{node.health_bind}/metrics") as answer:
            metrics = (await answer.text()).splitlines()
    assert {"tickwright_poll_records_total 50.0", 'tickwright_poll_relay_opens_total{shard="0"} 1.0'} <= set(metrics)
    lags = [line for line in metrics if line.startswith("tickwright_poll_lag_records{")]
    assert len(lags) > 1
    assert all(line.endswith(" 0.0") and world.topic in line for line in lags)


# ---------------------------------------------------------------------- explain


class ExplainedPoll:
    """A tracker with a record on the topic, and the reasons that explain gives for it."""

    def __init__(self, world: PollWorld, trackers: Trackers, seen: Sequence[Seen]) -> None:
        self.record = seen[0]
        self.tracker_id: int = seen[0].value["tracker_id"]
        self._service = PollingService(world.pool)
        assert self.tracker_id in trackers.ids

    async def chain(self) -> dict[str, str]:
        """Return the reasons by code."""
        reasons: list[Reason] = (await self._service.explain(self.tracker_id)).reasons
        return {reason.code: reason.text for reason in reasons}

    async def then(self, code: str, *words: Any) -> bool:
        """Return whether the reason after ``published`` is ``code``, and its text has ``words``."""
        chain = await self.chain()
        return list(chain)[:2] == ["published", code] and all(str(word) in chain[code] for word in words)


async def explained(world: PollWorld, trackers: Trackers) -> ExplainedPoll:
    """Make the trackers old enough to have been selected, and return one of them."""
    await world.pool.execute("UPDATE tickwright.trackers SET created_at = now() - interval '1 day'")
    return ExplainedPoll(world, trackers, await world.seen())


async def test_explain_follows_a_poll_through_kafka(world: PollWorld) -> None:
    """Published at the partition and offset of its record; not read; in flight; answered."""
    async with Courier() as courier:
        courier.be_silent()
        trackers = await publish(world, 90, http=http_of(courier), timeout="60s")
        one = await explained(world, trackers)
        record, batch = one.record, int(one.record.headers["batch_no"])
        said = (await one.chain())["published"]
        assert f"in batch {batch}, to partition {record.partition} of {world.topic}, between the offsets" in said
        first, last = (int(word) for word in said.rsplit("offsets ", 1)[1].split(" and "))
        assert first <= record.offset <= last
        assert await one.then("not_read", record.partition)
        async with running_consumer(world.url, terms=LONG, source_of=kafka_source(world.bootstrap, world.prefix)):
            await eventually_async(
                lambda: one.then("in_flight", "test", "the group is at 0"), 30, what="a reader has it"
            )
            courier.talk()
            await eventually_async(lambda: all_done(world.pool, trackers), 30)
        assert "published" not in await one.chain()
        assert "answered" in await one.chain()


async def test_explain_says_that_the_group_has_passed_a_dropped_poll(world: PollWorld) -> None:
    """A poll without a courier is in flight, then unread without a reader, then passed without an answer."""
    trackers = await publish(world, 60)
    one = await explained(world, trackers)
    assert await one.then("not_read", "yet")
    async with running_consumer(world.url, terms=LONG, source_of=kafka_source(world.bootstrap, world.prefix)):
        await eventually_async(lambda: one.then("in_flight", "test"), 30)
    assert await one.then("not_read", "no consumer reads", "the group is at 0")
    await world.pool.execute("UPDATE tickwright.poll_reads SET position = 10000, read_to = 10000")
    assert await one.then("passed", "the group is at 10000")


async def test_explain_names_the_batch_when_its_offsets_are_deleted(world: PollWorld) -> None:
    """The ledger keeps a batch's number for longer than its offsets are kept."""
    trackers = await publish(world, 30)
    one = await explained(world, trackers)
    await world.pool.execute("UPDATE tickwright.poll_batches SET partition_count = 0, partitions = '{}'")
    assert "only the position proved it" in (await one.chain())["published"]
    await world.pool.execute("DELETE FROM tickwright.poll_batches")
    assert "in batch 1; its offsets are no longer known" in (await one.chain())["published"]


# ---------------------------------------------------------------------- marks


async def marks(world: PollWorld) -> list[int]:
    """Return how many earlier ends the only partition keeps, and how far the last of them is before its end."""
    row = await world.pool.fetchrow("SELECT end_offset, mark_ends, mark_ats FROM tickwright.poll_ends")
    assert len(row["mark_ends"]) == len(row["mark_ats"])
    assert row["mark_ends"] == sorted(row["mark_ends"])
    return [len(row["mark_ends"]), row["end_offset"] - row["mark_ends"][-1]]


async def test_earlier_ends_are_kept_until_the_group_passes_them(world: PollWorld) -> None:
    """One per ten seconds, none that was passed, none of a recreated topic; so the age of the lag is not reset."""
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
        assert await publish_more() == [1, 0], "an end beyond the topic's is of an earlier topic"


async def _read_to(world: PollWorld, found: PollPartitionView) -> None:
    sql = "INSERT INTO tickwright.poll_reads VALUES ($1, $2, $3, $3, now())"
    await world.pool.execute(sql, found.topic, found.partition, found.end_offset)
    (after,) = await poll_partitions(world.pool)
    assert (after.lag, after.unfinished_since) == (0, None)
