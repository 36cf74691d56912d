"""What the poll relay refuses: an unsafe Kafka, a position that contradicts the database; how both are reconciled."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kit.kafka_polls import PollWorld, poll_world, terms_of
from kit.leases import LONG
from kit.probes import Stops
from kit.servers import KafkaServer, started
from kit.waiting import eventually_async
from tickwright.capabilities.polling.relay.admin import PollRelayAdmin, ReconcileRequest
from tickwright.capabilities.polling.relay.relay import PollRelay
from tickwright.domain.errors import Rejected
from tickwright.engine.leases import Leases
from tickwright.ports.caller import Caller, Role
from tickwright.ports.polls import Batch
from tickwright.transports.kafka.config import KafkaConfig
from tickwright.transports.kafka.transactions import KafkaLog

OPERATOR = Caller("ann", Role.OPERATOR)
PUBLISHED = "relay.poll_batch_published"


@pytest.fixture
async def world(database_url: str, kafka_server: KafkaServer, kafka_prefix: str) -> AsyncIterator[PollWorld]:
    """A database and a topic."""
    async with poll_world(database_url, kafka_server.url, kafka_prefix) as world:
        yield world


def admin_of(world: PollWorld) -> PollRelayAdmin:
    """Return the commands of an operator."""
    return PollRelayAdmin(world.pool, Leases(world.pool, owner="admin", terms=LONG), world.log)


async def lose_positions(world: PollWorld) -> None:
    """Delete the position topic."""
    admin = AdminClient({"bootstrap.servers": world.bootstrap, "log_level": 0})
    await asyncio.to_thread(admin.delete_topics([world.positions])[world.positions].result, 10)

    async def gone() -> bool:
        return world.positions not in (await asyncio.to_thread(admin.list_topics, timeout=5)).topics

    await eventually_async(gone, what="the position topic is gone")


async def publish_some(world: PollWorld, **options: Any) -> None:
    """Publish three batches."""
    await world.fill(30, 10)
    async with world.running(world.relay(**options)):
        await world.emptied()


async def wait_until_blocked(relay: PollRelay, code: str) -> None:
    """Wait until a relay is blocked and has published nothing."""
    await eventually_async(lambda: relay.blocked_by is not None and relay.blocked_by.code == code, 30, what=code)
    assert relay.counters.published == 0


async def test_a_missing_position_is_refused_until_an_operator_decides(world: PollWorld) -> None:
    """The topic has no batch, the database has some: nothing is sent until both are reconciled."""
    await publish_some(world)
    await lose_positions(world)
    await world.fill(5, 10, first=1000)
    relay = world.relay()
    admin_commands = admin_of(world)
    async with world.running(relay):
        await wait_until_blocked(relay, "relay_position_missing")
        assert await world.pending() == 50
        (view,) = await admin_commands.list()
        assert (view.problem, view.position, view.published_no, view.waiting) == ("relay_position_missing", None, 3, 50)
        plan = await admin_commands.reconcile(ReconcileRequest(), caller=OPERATOR)
        assert (plan.applied, plan.adopted, plan.counted, plan.sent_again) == (False, 3, 0, 0)
        assert relay.counters.published == 0, "a dry run changes nothing"
        done = await admin_commands.reconcile(ReconcileRequest(apply=True), caller=OPERATOR)
        assert (done.applied, done.adopted) == (True, 3)
        await world.emptied()
    await world.check()
    assert await world.positions_seen() == [3, 4]
    audit = await world.pool.fetch("SELECT actor, action, subject FROM tickwright.audit")
    assert [tuple(row) for row in audit] == [("ann", "outbox.reconcile", "poll-relay:0")]


async def test_a_relay_that_still_opens_its_log_does_not_stop_the_operator(world: PollWorld) -> None:
    """It began before it lost the lease, and fences the reconciliation once; no other relay does so afterwards."""
    await publish_some(world)
    await lose_positions(world)
    admin_commands = admin_of(world)
    late: list[Any] = []
    make_log = admin_commands._make_log

    def make() -> Any:
        log: Any = make_log()
        publish = log.publish

        async def behind_the_relay(batch: Batch) -> Any:
            if not late:
                late.append(make_log())
                await late[0].open(0)
            return await publish(batch)

        log.publish = behind_the_relay
        return log

    admin_commands._make_log = make
    done = await admin_commands.reconcile(ReconcileRequest(apply=True), caller=OPERATOR)
    assert (done.applied, done.adopted, len(late)) == (True, 3, 1)
    await late[0].close()


async def test_an_operator_decides_whether_an_unmarked_batch_is_sent_again(world: PollWorld) -> None:
    """Published, not marked, and then the position was lost: it is sent again, or else it is taken as published."""
    await publish_some(world)
    stops = Stops()
    stops.close(PUBLISHED)
    await world.fill(1, 7, first=1000)
    relay = world.relay(probe=stops)
    async with world.running(relay):
        await eventually_async(lambda: stops.reached_times[PUBLISHED] == 1, 20)
    await lose_positions(world)
    admin_commands = admin_of(world)
    plan = await admin_commands.reconcile(ReconcileRequest(), caller=OPERATOR)
    assert (plan.adopted, plan.counted, plan.sent_again) == (3, 0, 7)
    with pytest.raises(Rejected, match="3 to 4"):
        await admin_commands.reconcile(ReconcileRequest(position=5, apply=True), caller=OPERATOR)
    done = await admin_commands.reconcile(ReconcileRequest(position=4, apply=True), caller=OPERATOR)
    assert (done.adopted, done.counted, done.sent_again) == (4, 7, 0)
    assert await world.pending() == 0
    await world.fill(1, 7, first=2000)
    async with world.running(world.relay()):
        await world.emptied()
    await world.check()


@pytest.mark.matrix
@pytest.mark.parametrize(("numbers", "code"), [((1, 1), "relay_position_ahead"), ((9, 9), "relay_position_behind")])
async def test_a_database_or_topic_that_lost_batches_is_refused(
    world: PollWorld, numbers: tuple[int, int], code: str
) -> None:
    """A database restored from a backup, or a topic that lost its end: the relay trusts neither over the other."""
    await publish_some(world)
    await world.pool.execute("UPDATE tickwright.poll_relays SET published_no = 0")
    await world.pool.execute("UPDATE tickwright.poll_relays SET batch_no = $1, published_no = $2", *numbers)
    await world.fill(1, 7, first=1000)
    relay = world.relay()
    async with world.running(relay):
        await wait_until_blocked(relay, code)
        done = await admin_of(world).reconcile(ReconcileRequest(apply=True), caller=OPERATOR)
        assert done.adopted == max(3, numbers[0])
        await world.emptied()


async def test_a_topic_and_database_that_agree_are_not_reconciled(world: PollWorld) -> None:
    """An operator's mistake does not disturb a relay that works."""
    await publish_some(world)
    with pytest.raises(Rejected) as refused:
        await admin_of(world).reconcile(ReconcileRequest(apply=True), caller=OPERATOR)
    assert refused.value.code == "nothing_to_reconcile"


@pytest.mark.parametrize(
    "name", ["enable.idempotence", "acks", "request.required.acks", "transactional.id", "transaction.timeout.ms",
             "isolation.level", "max.in.flight", "bootstrap.servers", "message.timeout.ms", "group.id"]
)  # fmt: skip
def test_an_option_that_a_promise_depends_on_is_refused(name: str) -> None:
    """Users may set TLS and passwords, and nothing else."""
    with pytest.raises(Rejected) as refused:
        KafkaConfig("127.0.0.1:1", options={name: "1"}).check()
    assert refused.value.code == "kafka_unsafe_option"
    KafkaConfig("127.0.0.1:1", options={"security.protocol": "SASL_SSL", "sasl.username": "u"}).check()


async def test_fewer_than_three_replicas_are_refused(kafka_server: KafkaServer, kafka_prefix: str) -> None:
    """By the settings, by a cluster that is too small, and by a topic that exists already."""
    with pytest.raises(Rejected) as refused:
        KafkaConfig(kafka_server.url, replication=1).check()
    assert refused.value.code == "kafka_replication_unsafe"
    terms = KafkaConfig(kafka_server.url, kafka_prefix)
    with pytest.raises(Rejected) as refused:
        await KafkaLog(terms, terms.topic("polls")).open(0)
    assert refused.value.code == "kafka_replication_unsafe"
    single = terms_of(kafka_server.url, kafka_prefix)
    log = KafkaLog(single, single.topic("polls"))
    assert await log.open(0) is None
    await log.close()
    with pytest.raises(Rejected) as refused:
        await KafkaLog(terms, terms.topic("polls")).open(0)
    assert refused.value.code == "kafka_replication_unsafe"


async def test_a_position_topic_that_deletes_records_is_refused(kafka_server: KafkaServer, kafka_prefix: str) -> None:
    """A topic made by hand deletes records after a while, or has too few partitions."""
    terms = terms_of(kafka_server.url, kafka_prefix)
    admin = AdminClient({"bootstrap.servers": kafka_server.url, "log_level": 0})
    name = terms.topic("relay-position")
    await asyncio.to_thread(admin.create_topics([NewTopic(name, 16, 1)])[name].result, 10)
    with pytest.raises(Rejected) as refused:
        await KafkaLog(terms, terms.topic("polls")).open(0)
    assert refused.value.code == "kafka_position_topic_unsafe"


@pytest.fixture
def kafka_with_short_transactions() -> Any:
    """A broker whose longest transaction is shorter than ours may be."""
    with started(KafkaServer(configuration={"transaction.max.timeout.ms": "10000"})) as server:
        yield server


async def test_a_broker_that_forbids_our_transactions_is_refused(kafka_with_short_transactions: KafkaServer) -> None:
    """Our timeout is above the broker's maximum: refused at once, not with the first batch."""
    terms = terms_of(kafka_with_short_transactions.url, "t")
    with pytest.raises(Rejected) as refused:
        await KafkaLog(terms, terms.topic("polls")).open(0)
    assert refused.value.code == "kafka_transaction_timeout"
