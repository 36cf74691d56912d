"""Records of other programs on the relay's topics: none stops other polls, or fills the memory."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from kit import kafka_raw
from kit.consumers import LONG, ConsumerProcess, Trackers, all_done, done_times, http_of, running_consumer, slice_of
from kit.kafka import KafkaServer
from kit.kafka_consumers import Offsets, hand_to_relay, kafka_source, publish
from kit.kafka_polls import PollWorld, poll_world, set_topic
from kit.mutants import mutate
from kit.partners import Courier
from kit.probes import Stops
from kit.processes import kill_group
from kit.waiting import eventually_async
from tickwright import Answer, Poll
from tickwright.capabilities.polling.relay.admin import PollRelayAdmin, ReconcileRequest
from tickwright.domain.errors import Rejected
from tickwright.engine.leases import Leases
from tickwright.engine.session import WorkerSession
from tickwright.ports.caller import Caller, Role
from tickwright.store.pool import Pool
from tickwright.store.queries import load
from tickwright.transports.kafka import topics, transactions
from tickwright.transports.kafka.poll_source import KafkaPollSource

PARTITIONS = 3
TOO_LARGE = 10
COUNT_SUPERSEDED = load("tickwright.transports.kafka", "polls.sql")["count_superseded"]
COMPRESSION = "compression.type"
UNREADABLE = "kafka_position_unreadable"
AHEAD = "relay_position_ahead"
POLL = (
    b'{"version":1,"id":"poll_1_0","tracker_id":1,"due_at":"2026-11-21T10:00:00Z","partner":"nobody",'
    b'"account_id":"shop","external_id":"T1","slot_id":0%s}'
)


@pytest.fixture
async def world(database_url: str, kafka_server: KafkaServer, kafka_prefix: str) -> AsyncIterator[PollWorld]:
    """A database and a Kafka prefix of the test's own."""
    async with poll_world(database_url, kafka_server.url, kafka_prefix) as made:
        yield made


async def answer(_: Poll) -> Answer:
    """Answer as a courier."""
    return Answer("moving")


def put(bootstrap: str, topic: str, value: bytes | None, partitions: int = PARTITIONS) -> None:
    """Put a record into each partition; blocks."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number in range(partitions):
        producer.produce(topic, value, b"0", number)
    assert producer.flush(10) == 0


async def test_a_header_name_that_is_no_text_crashes_no_process(world: PollWorld, tmp_path: Path) -> None:
    """Reading its headers crashes the client library, again after each start: the consumer does not read them."""
    async with Courier() as courier:
        trackers = await publish(world, 60, http=http_of(courier))
        made = kafka_raw.batch(kafka_raw.record(b"{}", [(b"\xff\xfe", b"1")]))
        for number in range(PARTITIONS):
            assert await asyncio.to_thread(kafka_raw.send, world.bootstrap, world.topic, number, made) == 0
        more = await publish(world, 60, name="other", http=http_of(courier))
        child = ConsumerProcess(world.url, tmp_path / "consumer.log", kafka=(world.bootstrap, world.prefix))
        try:
            for expected in (trackers, more):

                async def done(expected: Trackers = expected) -> bool:
                    return child.process.poll() is not None or await all_done(world.pool, expected)

                await eventually_async(done, 40)
            assert child.process.poll() is None, "the record ended the process"
        finally:
            kill_group(child.process)


async def test_a_record_that_cannot_be_read_is_skipped(world: PollWorld) -> None:
    """Brackets that nest too deeply, names too long for a column: counted, and the same thread reads on."""
    await world.log().open(0)
    for more in (b',"x":' + b"[" * 1500 + b"]" * 1500, b',"external_id":"' + b"x" * 300_000 + b'"'):
        await asyncio.to_thread(put, world.bootstrap, world.topic, POLL % more)
    trackers = await publish(world, 60)
    sources: list[KafkaPollSource] = []

    def make(pool: Pool, session: WorkerSession) -> KafkaPollSource:
        sources.append(kafka_source(world.bootstrap, world.prefix)(pool, session))
        return sources[0]

    async with running_consumer(world.url, functions={"acme": answer}, terms=LONG, source_of=make):
        await eventually_async(lambda: all_done(world.pool, trackers), 30)
        assert sources[0].counts.reader.unreadable == 2 * PARTITIONS
        assert sources[0].counts.reader.records == 60 + 2 * PARTITIONS, "each was read once: none ended a thread"
    assert await done_times(world.pool, trackers) == Counter(trackers.ids)


async def test_polls_with_their_slot_in_a_header_only_are_carried_out(world: PollWorld) -> None:
    """Records of release 0.1: their slots are those of their trackers, and the ledger counts them there."""
    trackers = await hand_to_relay(world, 30)
    await world.log().open(0)
    producer = Producer({"bootstrap.servers": world.bootstrap, "log_level": 0})
    due_at = trackers.due_at.strftime("%Y-%m-%dT%H:%M:%SZ")
    for tracker_id, name in zip([*trackers.ids, 10**9], [*trackers.external_ids, "gone"], strict=True):
        common = {"tracker_id": tracker_id, "due_at": due_at, "partner": "acme", "account_id": "shop"}
        value = {"version": 1, "id": f"poll_{tracker_id}", "external_id": name, **common}
        producer.produce(world.topic, json.dumps(value), partition=tracker_id % PARTITIONS)
    assert producer.flush(10) == 0
    offsets = Offsets(world)
    source_of = kafka_source(world.bootstrap, world.prefix)
    async with running_consumer(world.url, functions={"acme": answer}, terms=LONG, source_of=source_of):
        await eventually_async(lambda: all_done(world.pool, trackers), 30)
        read = lambda: sum(offsets.committed().values()) == 31  # noqa: E731
        await eventually_async(read, 20, what="the offsets also pass the poll without a tracker")
    offsets.close()
    assert (await slice_of(world.pool, trackers))["polled"] == 30


def put_again(
    world: PollWorld, trackers: Trackers, times: int, *, ahead_s: int = 0, slot_id: int | None = None
) -> None:
    """Put ``times`` copies of each poll on the topic, with another due second or slot if given; blocks."""
    producer = Producer({"bootstrap.servers": world.bootstrap, "log_level": 0})
    due_at = trackers.due_at + timedelta(seconds=ahead_s)
    common = {
        "due_at": due_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "slot_id": trackers.slot_id if slot_id is None else slot_id,
    }
    common |= {"partner": "acme", "account_id": "shop"}
    for tracker_id, name in zip(trackers.ids * times, trackers.external_ids * times, strict=True):
        value = {"version": 1, "id": f"poll_{tracker_id}", "tracker_id": tracker_id, "external_id": name, **common}
        producer.produce(world.topic, json.dumps(value), b"%d" % tracker_id)
    assert producer.flush(10) == 0


async def test_copies_of_polls_on_the_topic_are_passed(world: PollWorld) -> None:
    """Copies by another program, or a batch sent twice: each poll has one effect, and the offsets pass all copies."""
    trackers = await publish(world, 60)
    await asyncio.to_thread(put_again, world, trackers, 3)
    offsets = Offsets(world)
    source_of = kafka_source(world.bootstrap, world.prefix)
    async with running_consumer(world.url, functions={"acme": answer}, terms=LONG, source_of=source_of) as running:
        await eventually_async(lambda: all_done(world.pool, trackers), 30)
        passed = lambda: running.consumer.writer.unwritten == 0 and not running.consumer.dispatchers[0].held  # noqa: E731
        await eventually_async(passed, 30, what="no answer waits for its copy")
        ends = await asyncio.to_thread(offsets.ends)
        passed_all = lambda: offsets.committed() == ends  # noqa: E731
        await eventually_async(lambda: asyncio.to_thread(passed_all), 30, what="the offsets pass the copies")
    offsets.close()
    assert await done_times(world.pool, trackers) == Counter(trackers.ids)
    found = await slice_of(world.pool, trackers)
    assert (found["polled"], found["superseded"]) == (60, 0)


NO_SLOT = 1_999_999_999


@pytest.mark.matrix
@pytest.mark.parametrize(("ahead_s", "slot_id"), [(7200, None), (7200, NO_SLOT), (30, NO_SLOT), (-5, NO_SLOT)])
async def test_no_partner_is_called_for_a_poll_that_no_relay_sends(
    world: PollWorld, ahead_s: int, slot_id: int | None
) -> None:
    """Due ahead, or of a slot that does not exist: if its tracker fails, such polls would fill its dispatcher."""
    trackers, asked = await publish(world, 30), set[Any]()
    await asyncio.to_thread(put_again, world, trackers, 1, ahead_s=ahead_s, slot_id=slot_id)

    async def note(poll: Poll) -> Answer:
        asked.add(poll.due_at)
        return Answer("moving")

    offsets = Offsets(world)
    source_of = kafka_source(world.bootstrap, world.prefix)
    async with running_consumer(world.url, functions={"acme": note}, terms=LONG, source_of=source_of):
        await eventually_async(lambda: all_done(world.pool, trackers), 30)
        ends = await asyncio.to_thread(offsets.ends)
        passed_all = lambda: offsets.committed() == ends  # noqa: E731
        await eventually_async(lambda: asyncio.to_thread(passed_all), 30, what="the offsets pass them")
    offsets.close()
    assert asked == {trackers.due_at}


async def test_waiting_polls_that_are_due_ahead_are_dropped_and_not_counted(world: PollWorld) -> None:
    """A relay sends no poll before its second; clocks may differ by a minute."""
    trackers = await publish(world, 30)
    dues = [trackers.due_at + timedelta(seconds=ahead_s) for ahead_s in (0, 30, 7200)]
    groups = [trackers.slot_id] * 3, dues, [trackers.partner_no] * 3, [10] * 3
    assert [row["n"] for row in await world.pool.fetch(COUNT_SUPERSEDED, *groups)] == [3]
    assert (await slice_of(world.pool, trackers))["superseded"] == 0


async def test_consumers_of_both_releases_find_the_slot_of_a_poll(world: PollWorld) -> None:
    """It is in the value, and still in the header."""
    trackers = await publish(world, 5)
    slot = trackers.slot_id
    assert [(one.value["slot_id"], int(one.headers["slot_id"])) for one in await world.seen()] == [(slot, slot)] * 5


def settings_of(world: PollWorld, topic: str) -> str:
    """Return the compression type of a topic; blocks."""
    admin = AdminClient({"bootstrap.servers": world.bootstrap, "log_level": 0})
    (found,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    return str(found.result(10)[COMPRESSION].value)


@pytest.mark.matrix
@pytest.mark.parametrize("made_by", ["this release", "an earlier release"])
async def test_the_broker_refuses_compressed_records(world: PollWorld, made_by: str) -> None:
    """A few kilobytes would become 64 MB in a reader. The relay alters topics that exist."""
    await publish(world, 5)
    packed = await asyncio.to_thread(kafka_raw.bomb, 64 << 20)
    if made_by == "an earlier release":
        for topic in (world.topic, world.positions):
            await asyncio.to_thread(set_topic, world.bootstrap, topic, COMPRESSION, "producer")
        async with world.running(world.relay()):
            plain = lambda: settings_of(world, world.topic) == "uncompressed"  # noqa: E731
            await eventually_async(lambda: asyncio.to_thread(plain), 20, what="the topic is altered")
    for topic in (world.topic, world.positions):
        assert await asyncio.to_thread(kafka_raw.send, world.bootstrap, topic, 0, packed) == TOO_LARGE
    more = await publish(world, 60, name="other")
    source_of = kafka_source(world.bootstrap, world.prefix)
    async with running_consumer(world.url, functions={"other": answer}, terms=LONG, source_of=source_of):
        await eventually_async(lambda: all_done(world.pool, more), 30)


async def test_a_topic_that_may_not_be_altered_is_refused(world: PollWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier release made it, and the relay may not alter it: the error says what to set, and then it works."""

    class Forbidding(AdminClient):
        def incremental_alter_configs(self, resources: Any, *_: Any, **__: Any) -> Any:
            answer = Future[None]()
            answer.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "no")))
            return dict.fromkeys(resources, answer)

    await world.log().open(0)
    await asyncio.to_thread(set_topic, world.bootstrap, world.topic, COMPRESSION, "producer")
    monkeypatch.setattr(topics, "AdminClient", Forbidding)
    with pytest.raises(Rejected, match=COMPRESSION) as refused:
        await world.log().open(0)
    assert refused.value.code == "kafka_topic_compressed"
    await asyncio.to_thread(set_topic, world.bootstrap, world.topic, COMPRESSION, "uncompressed")
    await world.log().open(0)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("value", "problem"),
    [
        pytest.param(b"garbage", UNREADABLE, id="text"),
        pytest.param(None, UNREADABLE, id="nothing"),
        pytest.param(b"[]", UNREADABLE, id="list"),
        pytest.param(b'{"batch_no":"x"}', UNREADABLE, id="word"),
        pytest.param(b'{"batch_no":1e400}', UNREADABLE, id="huge"),
        pytest.param(b'{"batch_no":-1}', UNREADABLE, id="below zero"),
        pytest.param(b'{"batch_no":%d}' % (2**53), AHEAD, id="the last number"),
        pytest.param(b'{"batch_no":%d}' % (2**53 + 1), UNREADABLE, id="beyond the last number"),
        pytest.param(b'{"batch_no":%d}' % (2**63 - 1), UNREADABLE, id="bigint's last"),
        pytest.param(b'{"batch_no":%d}' % (2**63), UNREADABLE, id="beyond bigint"),
        pytest.param(b"\xff", UNREADABLE, id="bytes"),
        pytest.param(b'{"more":' + b"[" * 3000, UNREADABLE, id="deep"),
    ],
)
async def test_an_invalid_position_is_refused_until_it_is_written_again(
    world: PollWorld, value: bytes | None, problem: str
) -> None:
    """The relay reports why it is blocked; once reconciled it continues, and no poll is lost or doubled."""
    await world.fill(30, 10)
    async with world.running(world.relay()):
        await world.emptied()
    await asyncio.to_thread(put, world.bootstrap, world.positions, value, 1)
    await world.fill(5, 10, first=1000)
    admin_commands = PollRelayAdmin(world.pool, Leases(world.pool, owner="admin", terms=LONG), world.log)
    relay = world.relay()
    async with world.running(relay):
        refused = lambda: relay.blocked_by is not None and relay.blocked_by.code == problem  # noqa: E731
        await eventually_async(refused, 30, what="it reports why")
        (view,) = await admin_commands.list()
        assert (view.problem, view.waiting) == (problem, 50)
        plan = await admin_commands.reconcile(ReconcileRequest(), caller=Caller("ann", Role.OPERATOR))
        assert (plan.problem, plan.applied, plan.adopted) == (problem, False, 3)
        await admin_commands.reconcile(ReconcileRequest(apply=True), caller=Caller("ann", Role.OPERATOR))
        await world.emptied()
    await world.check()


async def test_the_mutant_that_crashes_on_nested_brackets_is_caught(
    world: PollWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the guard the relay would crash."""
    await world.log().open(0)
    await asyncio.to_thread(put, world.bootstrap, world.positions, b'{"more":' + b"[" * 3000, 1)
    mutate(monkeypatch, transactions._read, ", ValueError, RecursionError)", ", ValueError)")
    with pytest.raises(RecursionError):
        await world.log().open(0)


def begin_beside(world: PollWorld) -> Producer:
    """Begin a transaction of another program on the position topic, and leave it open; blocks."""
    producer = Producer({"bootstrap.servers": world.bootstrap, "transactional.id": f"{world.prefix}.x", "log_level": 0})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(world.positions, b"x", b"0", 0)
    assert producer.flush(10) == 0
    return producer


async def _is_held_by_another_transaction(world: PollWorld) -> None:
    """A relay ends between Kafka's commit and its mark while another program's transaction hides its position."""
    published = "relay.poll_batch_published"
    stops = Stops()
    await world.fill(3, 10)
    async with world.running(world.relay(probe=stops)):
        await world.emptied()
        other = await asyncio.to_thread(begin_beside, world)
        stops.close(published)
        before = stops.reached_times[published]
        await world.fill(2, 10, first=1000)
        await eventually_async(lambda: stops.reached_times[published] > before, 30, what="the batch is on the topic")
    relay = world.relay(log_terms={"wait_s": 2.0})
    async with world.running(relay):
        waits_or_works = lambda: relay.blocked_by is not None or relay.counters.published > 0  # noqa: E731
        await eventually_async(waits_or_works, 40)
        if relay.blocked_by is not None:
            assert (relay.blocked_by.code, relay.blocked_by.retriable) == ("kafka_position_blocked", True)
            assert f"{world.positions}/0" in relay.blocked_by.message
            assert await world.pending() == 20
        await asyncio.to_thread(other.abort_transaction, 10)
        await world.emptied(40)
    await world.check()


async def test_the_relay_waits_while_another_transaction_hides_its_position(world: PollWorld) -> None:
    """K2: a position that is committed after an open transaction is not readable yet; an older one is not the last."""
    await _is_held_by_another_transaction(world)


async def test_the_mutant_that_trusts_the_last_readable_position_is_caught(
    world: PollWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the last readable record counts as the last one, a batch is sent twice."""
    mutate(monkeypatch, transactions._last_from, "(message.offset() or 0) < end", "False")
    with pytest.raises(AssertionError, match="K2 broken"):
        await _is_held_by_another_transaction(world)
