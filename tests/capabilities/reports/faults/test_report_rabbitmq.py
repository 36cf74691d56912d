"""Reports' queues on a real RabbitMQ: who hears of what, what waits, what is buried, and what a killed node keeps."""

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
    """Three listeners' queues of the test's own."""
    reports = Reports(rabbit_server.url)
    await reports.prepare("users", "withdrawals", "tags")
    yield reports
    await reports.remove()


@pytest.fixture
async def mortal(mortal_rabbit: RabbitServer) -> AsyncIterator[Reports]:
    """Two listeners' queues on a node that may be killed."""
    reports = Reports(mortal_rabbit.url)
    await reports.prepare("users", "tags")
    yield reports
    await reports.remove()


# ---------------------------------------------------------------------------------------------- who hears


async def test_what_is_said_to_everybody_is_in_every_listeners_queue(reports: Reports) -> None:
    """One publish by the product's own broker, and each listener has a message of its own to acknowledge."""
    broker = RabbitBroker(reports.url)
    try:
        said = await broker.publish(Message("report_1_1_1_1", f"amqp:{reports.shared.broadcast}/", b"{}"))
    finally:
        await broker.aclose()
    assert isinstance(said, Accepted), said
    for listener in reports.made:
        async with reports.consumer(listener) as source:
            message = await taken(source)
            assert message.message_id == "report_1_1_1_1"
            assert await source.ack(message)
    assert [await reports.count(names.queue) for names in reports.made.values()] == [0, 0, 0]


async def test_what_is_said_to_one_listener_is_in_its_queue_alone(reports: Reports) -> None:
    """The delayed check asks those who are missing, not those who are done."""
    await reports.tell("users", "again")
    assert [await reports.ids_in(names.queue) for names in reports.made.values()] == [["again"], [], []]


async def test_a_listener_added_later_hears_of_what_follows_and_of_what_it_is_told(reports: Reports) -> None:
    """What was said before is not for it; its queue is made by whoever announces, before there is a process of it."""
    await reports.announce_stage("before")
    await reports.prepare("fees")
    await reports.announce_stage("after")
    await reports.tell("fees", "again")
    async with reports.consumer("fees", 2) as source:
        assert [(await taken(source)).message_id, (await taken(source)).message_id] == ["after", "again"]


async def test_nobody_to_hear_is_an_answer_and_no_silence(rabbit_server: RabbitServer) -> None:
    """A message for a listener without a queue is refused, so that whoever announces knows."""
    reports, broker = Reports(rabbit_server.url), RabbitBroker(rabbit_server.url)
    await prepare(reports.url, reports.shared)
    try:
        for destination in (f"amqp:{reports.shared.exchange}/nobody", f"amqp:{reports.shared.broadcast}/"):
            said = await broker.publish(Message("m", destination, b"{}"))
            assert isinstance(said, Refused)
            assert said.code == "unroutable"
    finally:
        await broker.aclose()
    await reports.remove()


# ---------------------------------------------------------------------------------------------- what waits


@pytest.mark.storm
async def test_a_delayed_message_comes_back_to_its_listener_and_to_no_other(reports: Reports) -> None:
    """Behind ten seconds, however long was asked for; the others do not hear of it a second time."""
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


async def test_delays_of_different_lengths_hold_one_another_up_by_nothing(reports: Reports) -> None:
    """RabbitMQ lets messages expire at the head of a queue only: all in one have one subscription."""
    names = reports.names("users")
    delays = [names.delay(timedelta(seconds=seconds)) for seconds in (0, 1, 60, 3600)]
    assert set(delays) == {names.delays[10]}
    assert names.queues[names.delays[10]]["x-message-ttl"] == 10_000


# ---------------------------------------------------------------------------------------------- what is buried


async def test_what_cannot_be_read_is_buried_with_a_reason_and_can_go_back_to_its_listener(reports: Reports) -> None:
    """One queue for the dead letters of all; each goes back under the name that it died under."""
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
    """Of a listener that is gone: those behind it go back, and alone it says why it does not."""
    await reports._publish(reports.shared.dead, "gone", ["lost"], b"{}")
    await reports._publish(reports.shared.dead, "users", ["a", "b"], b"{}")
    assert await reports.dead.requeue(10) == ["a", "b"]
    assert await reports.waiting_in(reports.shared.dead) == ["lost"]
    with pytest.raises(Unavailable) as refused:
        await reports.dead.requeue(10)
    assert refused.value.code == "unroutable"


async def test_a_message_that_kills_every_process_ends_among_the_dead_letters(reports: Reports) -> None:
    """The eleventh delivery is the last; the broker's reason is there, and the other listeners' copies are not."""
    await reports.announce_stage("poison")
    async with reports.consumer("users") as source:
        for _ in range(REDELIVERIES_MAX + 1):
            await source.release(await taken(source))
        assert await nothing_comes(source, 0.2)
    [dead] = (await reports.dead.peek(10)).messages
    assert (dead.message_id, dead.reason) == ("poison", "delivery_limit")
    assert await reports.count(reports.names("tags").queue) == 1


async def test_what_nobody_reads_dies_and_the_dead_make_room(rabbit_server: RabbitServer) -> None:
    """A listener that is gone for good costs a day of messages, and all of them together ten thousand letters."""
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

    await eventually_async(the_newest_two, 30, what="the oldest two made room")
    dead = await reports.all_in(names.dead)
    deaths = (dead[0].header.properties.headers or {})["x-death"]
    assert isinstance(deaths, list)
    assert isinstance(deaths[0], dict)
    assert deaths[0]["reason"] == "expired"
    await reports.remove()


async def test_a_queue_that_expired_letters_come_from_says_so(reports: Reports) -> None:
    """An operator reads that nobody took it, not a bare word."""
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


async def test_several_listeners_are_made_and_looked_at_on_one_connection(rabbit_server: RabbitServer) -> None:
    """Whoever announces makes the queues of all expected listeners first: the exchange forgets nobody."""
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
    """As for fan-out: which one, and what to do."""
    names = report_names(reports.shared.prefix, "other")
    async with raw_channel(reports.url) as channel:
        await channel.queue_declare(names.queue, durable=True, arguments={"x-queue-type": "quorum"})
    with pytest.raises(Rejected) as refused:
        await prepare(reports.url, names)
    assert refused.value.code == "queue_differs"
    assert refused.value.details["name"] == names.queue
    async with raw_channel(reports.url) as channel:
        await channel.queue_delete(names.queue)


async def test_names_are_those_of_the_page_and_follow_the_prefix() -> None:
    """Two installations on one RabbitMQ share nothing; a service in another language finds its queue by its name."""
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
def test_a_listener_that_could_be_taken_for_another_queue_is_refused(name: str) -> None:
    """A dot would make one listener's queue another one's delay, and ``dead`` is where letters end."""
    with pytest.raises(Rejected) as refused:
        report_names("tickwright", name)
    assert refused.value.code == "invalid_listener"


def test_a_dead_letter_is_known_by_the_queue_that_it_died_in() -> None:
    """The delay queues' own moves are no deaths."""
    shared = report_exchanges("p")
    queues = ["p.reports.users", "p.reports.users.delay.10s", "p.reports.dead", "p.reports", "q.reports.users", "None"]
    assert [bool(shared.consumed.fullmatch(queue)) for queue in queues] == [True, False, False, False, False, False]


async def test_the_words_of_a_listeners_source_are_those_of_reports(reports: Reports) -> None:
    """Its service has the listener's name, its lines begin with ``reports``, and it shows no gauge of fan-out."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG))  # whatever a test left
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
    """Kill -9 of the broker: what waited, was held and was delayed is there afterwards, for each listener once."""
    await mortal.announce_stage(*"ab")
    await mortal.tell("users", "c")
    async with mortal.consumer("users", 2) as users:
        delayed, held = await taken(users), await taken(users)
        assert await users.delay(delayed, SECOND)
        await asyncio.to_thread(mortal_rabbit.sync_definitions)
        await asyncio.to_thread(mortal_rabbit.kill9)
        await eventually_async(lambda: not users.connected, 30, what="it has noticed")
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


async def test_a_source_makes_its_queue_where_nobody_has_announced_yet(rabbit_server: RabbitServer) -> None:
    """A listener's process may start before the first report is asked for."""
    reports = Reports(rabbit_server.url)
    source: RabbitTaskQueue
    async with reports.consumer("early") as source:
        await eventually_async(lambda: source.connected, 30, what="it consumes")
        await reports.announce_stage("first")
        assert (await taken(source)).message_id == "first"
    await reports.remove()


async def check_a_key_without_a_queue_is_tried_once(reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    """Letters of a key that no queue has cost a read each, and no publish beyond the first."""
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


async def test_of_the_dead_letters_of_a_key_without_a_queue_one_is_tried(
    reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them stay."""
    await check_a_key_without_a_queue_is_tried_once(reports, monkeypatch)


async def test_the_suite_notices_a_requeue_that_tries_each_letter(
    reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant: keys that came back are not remembered."""
    mutate(monkeypatch, RabbitDeadLetters.requeue, "unroutable.add(key)", "unroutable.add('')")
    with pytest.raises(AssertionError, match="letters of a key without a queue are published"):
        await check_a_key_without_a_queue_is_tried_once(reports, monkeypatch)


async def test_a_requeue_that_takes_too_long_returns_what_it_has_moved(
    reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message at least; the others wait where they are."""
    await reports._publish(reports.shared.dead, "users", ["a", "b", "c"], b"{}")
    monkeypatch.setattr(module, "REQUEUE_S_MAX", 0.0)
    assert await reports.dead.requeue(10) == ["a"]
    assert {*await reports.waiting_in(reports.shared.dead)} == {"b", "c"}
