"""Queues of reports on a real RabbitMQ: routing, delays, dead letters, and what a killed node keeps."""

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from time import monotonic

import aiormq
import pytest
import structlog
from structlog.testing import capture_logs

from kit.mutants import mutate
from kit.rabbit_queues import raw_channel
from kit.rabbit_reports import Reports
from kit.rabbit_tasks import nothing_comes, taken
from kit.servers import RabbitServer
from kit.tcp_proxy import TcpProxy
from kit.waiting import eventually_async
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.ports.broker import Accepted, Message, Outcome, Refused
from tickwright.transports.rabbitmq import dead_letters as module
from tickwright.transports.rabbitmq.broker import RabbitBroker
from tickwright.transports.rabbitmq.dead_letters import RabbitDeadLetters
from tickwright.transports.rabbitmq.forwarding import Copy, Forwarder
from tickwright.transports.rabbitmq.tasks import RabbitTaskQueue
from tickwright.transports.rabbitmq.topology import REDELIVERIES_MAX, examine, prepare, report_exchanges, report_names

SECOND = timedelta(seconds=1)


@pytest.fixture
async def reports(rabbit_server: RabbitServer) -> AsyncIterator[Reports]:
    """The queues of three listeners, for this test alone."""
    reports = Reports(rabbit_server.url)
    await reports.prepare("users", "withdrawals", "tags")
    yield reports
    await reports.remove()


@pytest.fixture
async def mortal(mortal_rabbit: RabbitServer) -> AsyncIterator[Reports]:
    """The queues of two listeners on a node that may be killed."""
    reports = Reports(mortal_rabbit.url)
    await reports.prepare("users", "tags")
    yield reports
    await reports.remove()


# ---------------------------------------------------------------------------------------------- routing


async def test_an_announcement_is_in_the_queue_of_every_listener(reports: Reports) -> None:
    """One publish by the product's broker, and each listener has a message of its own to acknowledge."""
    broker = RabbitBroker(reports.url)
    try:
        outcome = await broker.publish(Message("report_1_1_1_1", f"amqp:{reports.shared.broadcast}/", b"{}"))
    finally:
        await broker.aclose()
    assert isinstance(outcome, Accepted), outcome
    for listener in reports.made:
        async with reports.consumer(listener) as source:
            message = await taken(source)
            assert message.message_id == "report_1_1_1_1"
            assert await source.ack(message)
    assert [await reports.count(names.queue) for names in reports.made.values()] == [0, 0, 0]


async def test_a_message_to_one_listener_is_in_its_queue_alone(reports: Reports) -> None:
    """The delayed check announces a stage to missing listeners only."""
    await reports.tell("users", "again")
    assert [await reports.ids_in(names.queue) for names in reports.made.values()] == [["again"], [], []]


async def test_a_listener_that_is_added_later_gets_later_announcements(reports: Reports) -> None:
    """Announcements before its queue exists do not reach it; messages to it alone do."""
    await reports.announce_stage("before")
    await reports.prepare("fees")
    await reports.announce_stage("after")
    await reports.tell("fees", "again")
    async with reports.consumer("fees", 2) as source:
        assert [(await taken(source)).message_id, (await taken(source)).message_id] == ["after", "again"]


async def test_a_message_that_reaches_no_queue_is_refused_as_unroutable(rabbit_server: RabbitServer) -> None:
    """The announcing process gets the refusal."""
    reports, broker = Reports(rabbit_server.url), RabbitBroker(rabbit_server.url)
    await prepare(reports.url, reports.shared)
    try:
        for destination in (f"amqp:{reports.shared.exchange}/unknown", f"amqp:{reports.shared.broadcast}/"):
            outcome = await broker.publish(Message("m", destination, b"{}"))
            assert isinstance(outcome, Refused)
            assert outcome.code == "unroutable"
    finally:
        await broker.aclose()
    await reports.remove()


# ---------------------------------------------------------------------------------------------- delays


@pytest.mark.storm
async def test_a_delayed_message_returns_to_its_listener_only(reports: Reports) -> None:
    """After ten seconds, whatever delay was requested; other listeners do not get it again."""
    await reports.tell("users", "slow", body=b"payload")
    async with reports.consumer("users") as users, reports.consumer("tags") as tags:
        since = monotonic()
        assert await users.delay(await taken(users), timedelta(minutes=5))
        assert await reports.count(reports.names("users").delays[10]) == 1
        again = await taken(users, 60)
        assert monotonic() - since >= 9.9
        assert (again.message_id, again.body, again.delays) == ("slow", b"payload", 1)
        assert await users.ack(again)
        assert await nothing_comes(tags, 0.2)
    assert await reports.count(reports.names("withdrawals").queue) == 0


async def test_delays_of_different_lengths_do_not_hold_each_other_up(reports: Reports) -> None:
    """RabbitMQ expires messages at the head of a queue only, so all delays are the same."""
    names = reports.names("users")
    delays = [names.delay(timedelta(seconds=seconds)) for seconds in (0, 1, 60, 3600)]
    assert set(delays) == {names.delays[10]}
    assert names.queues[names.delays[10]]["x-message-ttl"] == 10_000


# ---------------------------------------------------------------------------------------------- dead letters


async def test_an_unreadable_message_is_dead_lettered_and_can_be_requeued(reports: Reports) -> None:
    """All listeners share one dead-letter queue; each message is requeued to its own listener."""
    await reports.announce_stage("garbage", body=b"\xff")
    for listener in ("users", "tags"):
        async with reports.consumer(listener) as source:
            assert await source.dead_letter(await taken(source), "not_json", f"{listener} cannot read it")
    found = (await reports.dead.peek(10)).messages
    assert [(one.message_id, one.reason, one.text, one.body) for one in found] == [
        ("garbage", "not_json", "users cannot read it", b"\xff"),
        ("garbage", "not_json", "tags cannot read it", b"\xff"),
    ]
    assert await reports.dead.requeue(1) == ["garbage"]
    assert await reports.count(reports.names("users").queue) == 1
    assert await reports.count(reports.names("tags").queue) == 0


async def test_a_dead_letter_that_no_queue_takes_stays_and_holds_up_no_other(reports: Reports) -> None:
    """It is of a removed listener: later ones are requeued; if it is the only one, the error has the reason."""
    await reports._publish(reports.shared.dead, "gone", ["lost"], b"{}")
    await reports._publish(reports.shared.dead, "users", ["a", "b"], b"{}")
    assert await reports.dead.requeue(10) == ["a", "b"]
    assert await reports.waiting_in(reports.shared.dead) == ["lost"]
    with pytest.raises(Unavailable) as refused:
        await reports.dead.requeue(10)
    assert refused.value.code == "unroutable"


async def test_a_message_that_kills_every_process_is_dead_lettered(reports: Reports) -> None:
    """The eleventh delivery is the last; the reason is the broker's; copies of other listeners stay in their queues."""
    await reports.announce_stage("poison")
    async with reports.consumer("users") as source:
        for _ in range(REDELIVERIES_MAX + 1):
            await source.release(await taken(source))
        assert await nothing_comes(source, 0.2)
    [dead] = (await reports.dead.peek(10)).messages
    assert (dead.message_id, dead.reason) == ("poison", "delivery_limit")
    assert await reports.count(reports.names("tags").queue) == 1


async def test_unread_messages_expire_and_the_oldest_dead_letters_are_dropped(rabbit_server: RabbitServer) -> None:
    """A removed listener keeps a day of messages, and all listeners together keep 10,000 dead letters."""
    reports = Reports(rabbit_server.url)
    names = reports.names("gone")
    queues = names.queues
    assert queues[names.queue]["x-message-ttl"] == 86_400_000
    assert (queues[names.dead]["x-message-ttl"], queues[names.dead]["x-max-length"]) == (604_800_000, 10_000)
    quick = {**queues[names.queue], "x-message-ttl": 50}
    few = {**queues[names.dead], "x-max-length": 2}
    async with raw_channel(reports.url) as channel:
        for queue, arguments in ((names.dead, few), (names.queue, quick)):
            await channel.queue_declare(queue, durable=True, arguments=arguments)
        for exchange, kind in names.exchanges.items():
            await channel.exchange_declare(exchange, exchange_type=kind, durable=True)
        for binding in names.bindings:
            await channel.queue_bind(*binding)
    await reports.announce_stage(*"abcd")

    async def the_newest_two() -> bool:
        return await reports.waiting_in(names.dead) == ["c", "d"]

    await eventually_async(the_newest_two, 30, what="the oldest two are dropped")
    dead = await reports.all_in(names.dead)
    deaths = (dead[0].header.properties.headers or {})["x-death"]
    assert isinstance(deaths, list)
    assert isinstance(deaths[0], dict)
    assert deaths[0]["reason"] == "expired"
    await reports.remove()


async def test_the_text_of_an_expired_dead_letter_names_the_missing_consumer(reports: Reports) -> None:
    """An operator reads that no consumer took it."""
    async with raw_channel(reports.url) as channel:
        properties = aiormq.spec.Basic.Properties(delivery_mode=2, message_id="old", expiration="1")
        await channel.basic_publish(
            b"{}", exchange=reports.shared.exchange, routing_key="tags", properties=properties, mandatory=True
        )
    await reports.counted(reports.shared.dead, 1)
    [dead] = (await reports.dead.peek(10)).messages
    assert (dead.message_id, dead.reason) == ("old", "expired")
    assert "No consumer took it" in dead.text


# ---------------------------------------------------------------------------------------------- the topology


async def test_queues_of_several_listeners_are_made_on_one_connection(rabbit_server: RabbitServer) -> None:
    """The announcing process makes the queues of all expected listeners first, so none misses the announcement."""
    reports = Reports(rabbit_server.url)
    both = [reports.names("users"), reports.names("tags")]
    missing = await examine(rabbit_server.url, *both)
    assert sorted(missing) == sorted({*both[0].queues, *both[1].queues})
    async with TcpProxy("127.0.0.1", rabbit_server.port) as proxy:
        await prepare(proxy.rewrite(rabbit_server.url), *both)
        assert proxy.accepted_count == 1
    await prepare(rabbit_server.url, *both)
    assert await examine(rabbit_server.url, *both) == []
    await reports.remove()


async def test_a_queue_of_reports_with_another_argument_is_named(reports: Reports) -> None:
    """The error has the name of the queue."""
    names = report_names(reports.shared.prefix, "other")
    async with raw_channel(reports.url) as channel:
        await channel.queue_declare(names.queue, durable=True, arguments={"x-queue-type": "quorum"})
    with pytest.raises(Rejected) as refused:
        await prepare(reports.url, names)
    assert refused.value.code == "queue_differs"
    assert refused.value.details["name"] == names.queue
    async with raw_channel(reports.url) as channel:
        await channel.queue_delete(names.queue)


async def test_names_are_those_of_the_documentation_and_have_the_prefix() -> None:
    """Two installations on one RabbitMQ share nothing; a service in another language finds its queue by name."""
    names = report_names("tickwright", "users")
    assert names.queue == "tickwright.reports.users"
    assert names.delays[10] == "tickwright.reports.users.delay.10s"
    assert names.dead == "tickwright.reports.dead"
    assert names.exchanges == {
        "tickwright.reports": "fanout",
        "tickwright.reports.listeners": "direct",
        "tickwright.reports.dead": "fanout",
    }
    other = report_names("other", "users")
    assert {*names.queues, *names.exchanges} & {*other.queues, *other.exchanges} == set()


@pytest.mark.parametrize("name", ["", "dead", "a.b", "users.delay.10s", "a/b", "ä", "a b", "users\n", "#", "x" * 51])
def test_a_listener_whose_name_could_mean_another_queue_is_refused(name: str) -> None:
    """A dot would make its queue another listener's delay queue; ``dead`` is the dead-letter queue."""
    with pytest.raises(Rejected) as refused:
        report_names("tickwright", name)
    assert refused.value.code == "invalid_listener"


def test_a_dead_letter_is_known_by_the_queue_that_it_died_in() -> None:
    """Messages of delay queues are no dead letters."""
    shared = report_exchanges("p")
    queues = ["p.reports.users", "p.reports.users.delay.10s", "p.reports.dead", "p.reports", "q.reports.users", "None"]
    assert [bool(shared.consumed.fullmatch(queue)) for queue in queues] == [True, False, False, False, False, False]


async def test_log_events_of_a_listeners_consumer_begin_with_reports(reports: Reports) -> None:
    """Its service has the listener's name, and it has no gauge of fan-out."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG))  # in any test order
    with capture_logs() as lines:
        async with reports.consumer("users") as source:
            await eventually_async(lambda: source.queued == [0, 0], 30, what="it consumes and has counted")
            assert source.name == "reports-messages-users"
            assert source.samples() == []
    structlog.configure(**before)
    events = {line["event"] for line in lines}
    assert "reports.consuming" in events
    assert {event.partition(".")[0] for event in events} == {"reports"}


# ---------------------------------------------------------------------------------------------- the node


@pytest.mark.storm
async def test_a_killed_node_loses_no_message(mortal: Reports, mortal_rabbit: RabbitServer) -> None:
    """Kill -9 of the broker: waiting, unacknowledged and delayed messages are there afterwards, once per listener."""
    await mortal.announce_stage(*"ab")
    await mortal.tell("users", "c")
    async with mortal.consumer("users", 2) as users:
        delayed, held = await taken(users), await taken(users)
        assert await users.delay(delayed, SECOND)
        await asyncio.to_thread(mortal_rabbit.sync_definitions)
        await asyncio.to_thread(mortal_rabbit.kill9)
        await eventually_async(lambda: not users.connected, 30, what="the consumer has noticed")
        assert not await users.ack(held)
        with pytest.raises(Unavailable):
            await mortal.prepare("users")
        await asyncio.to_thread(mortal_rabbit.start)
        seen = []
        for _ in range(3):
            message = await taken(users, 60)
            seen.append(message.message_id)
            assert await users.ack(message)
        assert sorted(map(str, seen)) == ["a", "b", "c"]
        assert await nothing_comes(users, 0.3)
    assert await mortal.ids_in(mortal.names("tags").queue) == ["a", "b"]


async def test_a_consumer_makes_its_queue_before_the_first_announcement(rabbit_server: RabbitServer) -> None:
    """A listener's process may start before the first report is requested."""
    reports = Reports(rabbit_server.url)
    source: RabbitTaskQueue
    async with reports.consumer("early") as source:
        await eventually_async(lambda: source.connected, 30, what="it consumes")
        await reports.announce_stage("first")
        assert (await taken(source)).message_id == "first"
    await reports.remove()


async def check_a_key_without_a_queue_is_tried_once(reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dead letters of a key without a queue cost a read each, and one publish in all."""
    tried: list[str] = []
    forward = Forwarder.forward

    async def counted(self: Forwarder, copy: Copy, exchange: str, key: str) -> Outcome:
        tried.append(key)
        return await forward(self, copy, exchange, key)

    monkeypatch.setattr(Forwarder, "forward", counted)
    lost = [f"lost{number}" for number in range(50)]
    await reports._publish(reports.shared.dead, "gone", lost, b"{}")
    await reports._publish(reports.shared.dead, "users", ["good"], b"{}")
    assert await reports.dead.requeue(10) == ["good"]
    assert {*await reports.waiting_in(reports.shared.dead)} == {*lost}
    assert tried == ["gone", "users"], "letters of a key without a queue are published"


async def test_one_dead_letter_of_a_key_without_a_queue_is_tried(
    reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them stay."""
    await check_a_key_without_a_queue_is_tried_once(reports, monkeypatch)


async def test_the_suite_notices_a_requeue_that_tries_each_dead_letter(
    reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant does not remember keys whose messages came back."""
    mutate(monkeypatch, RabbitDeadLetters.requeue, "unroutable.add(key)", "unroutable.add('')")
    with pytest.raises(AssertionError, match="letters of a key without a queue are published"):
        await check_a_key_without_a_queue_is_tried_once(reports, monkeypatch)


async def test_a_requeue_that_takes_too_long_returns_what_it_has_moved(
    reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message at least; the others stay."""
    await reports._publish(reports.shared.dead, "users", ["a", "b", "c"], b"{}")
    monkeypatch.setattr(module, "REQUEUE_S_MAX", 0.0)
    assert await reports.dead.requeue(10) == ["a"]
    assert {*await reports.waiting_in(reports.shared.dead)} == {"b", "c"}
