"""Fan-out's queue while consumers, connections or the node die, and while the node refuses messages."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from time import monotonic

import pytest
from pamqp.commands import Basic

import kit.rabbit_tasks_process
from kit.forks import Child
from kit.processes import kill_group, spawn
from kit.rabbit_tasks import Fanout, alarm, check_parked_and_not_spent, nothing_comes, taken
from kit.servers import RabbitServer
from kit.tcp_proxy import TcpProxy
from kit.waiting import eventually_async
from tickwright.ports.broker import Accepted
from tickwright.transports.rabbitmq import forwarding
from tickwright.transports.rabbitmq.connection import close_quietly, connect, losses_as_failures, open_channel
from tickwright.transports.rabbitmq.forwarding import Forwarder, copy_of

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


@pytest.fixture(scope="module")
def rabbit_server(mortal_rabbit: RabbitServer) -> RabbitServer:
    """The queues of this module are on a node that tests may kill."""
    return mortal_rabbit


@contextmanager
def child(fanout: Fanout, log: Path, slots: int) -> Iterator[Child]:
    """A process that takes tasks and holds them."""
    program = kit.rabbit_tasks_process.__file__
    process = spawn([sys.executable, program, fanout.url, fanout.names.prefix, str(slots)], log)
    try:
        yield process
    finally:
        kill_group(process)


# ---------------------------------------------------------------------------------------------- consumers


async def test_tasks_of_a_killed_consumer_come_back_at_once_and_are_counted(fanout: Fanout, tmp_path: Path) -> None:
    """Kill -9 during work: no lease to wait for, the broker sees the connection break."""
    await fanout.put("a", "b")
    log = tmp_path / "child.log"
    with child(fanout, log, 2) as process:
        await eventually_async(lambda: log.exists() and "b 1" in log.read_text(), 20, what="the child holds both")
        async with fanout.consumer(2) as source:
            assert await nothing_comes(source, 0.1)
            os.killpg(process.pid, signal.SIGKILL)
            tasks = [await taken(source, 5), await taken(source, 5)]
            assert [(one.message_id, one.deliveries) for one in tasks] == [("a", 2), ("b", 2)]
            assert [await source.ack(one) for one in tasks] == [True, True]
    assert await fanout.ids_in(fanout.names.queue) == []


async def test_the_acks_of_a_lost_connection_are_void(fanout: Fanout, mortal_rabbit: RabbitServer) -> None:
    """After a reset the delivery may be another consumer's: no ack for it goes over the new connection."""
    async with TcpProxy("127.0.0.1", mortal_rabbit.port) as proxy:
        behind = fanout.behind(proxy.rewrite(mortal_rabbit.url))
        await fanout.put("a", "b")
        async with behind.consumer(2) as source:
            old = [await taken(source), await taken(source)]
            proxy.reset()
            new = [await taken(source), await taken(source)]
            assert [(one.message_id, one.deliveries) for one in new] == [("a", 2), ("b", 2)]
            assert not await source.ack(old[0])
            assert not await source.delay(old[1], SECOND)
            assert not await source.dead_letter(old[0], "no", "no")
            await source.release(old[1])
            assert await source.ack(new[0])
            assert await source.ack(new[1])
    assert await fanout.ids_in(fanout.names.queue) == []
    assert await fanout.count(fanout.names.delays[1]) == 0


async def test_tasks_prefetched_by_a_lost_connection_are_handed_out_once(
    fanout: Fanout, mortal_rabbit: RabbitServer
) -> None:
    """The broker delivers them again; the old deliveries are discarded."""
    async with TcpProxy("127.0.0.1", mortal_rabbit.port) as proxy:
        await fanout.put(*"abc")
        async with fanout.behind(proxy.rewrite(mortal_rabbit.url)).consumer(3) as source:
            await eventually_async(lambda: source.waiting == 3, what="all are prefetched")
            proxy.reset()
            await eventually_async(lambda: source.waiting == 6, what="all are prefetched again")
            assert [(one.message_id, one.deliveries) for one in [await taken(source) for _ in range(3)]] == [
                ("a", 2),
                ("b", 2),
                ("c", 2),
            ]
            assert await nothing_comes(source, 0.1)


@pytest.mark.storm
async def test_a_lost_confirm_leaves_two_copies_and_not_none(fanout: Fanout, mortal_rabbit: RabbitServer) -> None:
    """It is unknown whether the copy was taken: the original stays, and the call still reports a delay."""
    async with TcpProxy("127.0.0.1", mortal_rabbit.port) as proxy:
        source_side = fanout.behind(proxy.rewrite(mortal_rabbit.url))
        await fanout.put("warm", "a")
        async with source_side.consumer(2) as source:
            warm, task = await taken(source), await taken(source)
            assert await source.delay(warm, MINUTE)
            proxy.drop_replies()
            since = monotonic()
            assert await source.delay(task, MINUTE)
            assert 4 < monotonic() - since < 50
            await fanout.counted(fanout.names.delays[60], 2)
            proxy.heal()
    await fanout.counted(fanout.names.queue, 1)
    assert await fanout.ids_in(fanout.names.queue) == ["a"]


# ---------------------------------------------------------------------------------------------- the node


async def test_a_restarted_node_loses_no_task_and_consumers_come_back(
    fanout: Fanout, mortal_rabbit: RabbitServer
) -> None:
    """Kill -9 of the node: what was queued, held and delayed is there afterwards, each once."""
    await fanout.put(*"abcd")
    async with fanout.consumer(2) as source:
        delayed, held = await taken(source), await taken(source)
        assert await source.delay(delayed, SECOND)
        await asyncio.to_thread(mortal_rabbit.sync_definitions)
        await asyncio.to_thread(mortal_rabbit.kill9)
        await eventually_async(lambda: not source.connected, what="it has noticed")
        assert not await source.ack(held)
        assert not await source.delay(held, SECOND)
        await asyncio.to_thread(mortal_rabbit.start)
        seen = []
        for _ in range(4):
            task = await taken(source, 30)
            seen.append(task.message_id)
            assert await source.ack(task)
        assert sorted(map(str, seen)) == ["a", "b", "c", "d"]
        assert await nothing_comes(source, 0.3)
    assert await fanout.count(fanout.names.queue) == 0


async def test_an_alarm_stops_no_consumer(fanout: Fanout, mortal_rabbit: RabbitServer) -> None:
    """While the node takes no message, tasks are still delivered, acknowledged and dead-lettered."""
    await fanout.put(*"abcdef")
    async with fanout.consumer(2) as source:
        first = await taken(source)
        await alarm(mortal_rabbit, on=True)
        try:
            assert await source.ack(first)
            since = monotonic()
            assert await source.dead_letter(await taken(source), "bad", "words")
            assert monotonic() - since < 50, "the first publish of an alarm has a bound"
            since = monotonic()
            assert await source.dead_letter(await taken(source), "bad", "words")
            assert monotonic() - since < 4, "the second is not even tried"
            assert await source.ack(await taken(source))
            await fanout.counted(fanout.names.dead, 2)
        finally:
            await alarm(mortal_rabbit, on=False)
        assert {one.message_id for one in (await fanout.dead.peek(10)).messages} >= {"b", "c"}


@pytest.mark.storm
async def test_a_task_that_cannot_be_delayed_is_parked_and_not_counted(
    fanout: Fanout, mortal_rabbit: RabbitServer
) -> None:
    """An alarm of minutes must not turn waiting tasks into dead letters: no delivery is counted, nothing loops."""
    await check_parked_and_not_spent(fanout, mortal_rabbit)


async def test_a_parked_task_is_released_when_its_consumer_stops(fanout: Fanout, mortal_rabbit: RabbitServer) -> None:
    """A deploy during an alarm loses nothing."""
    await fanout.put("a")
    async with fanout.consumer() as source:
        await alarm(mortal_rabbit, on=True)
        try:
            assert await source.delay(await taken(source), MINUTE)
            assert await fanout.count(fanout.names.queue) == 0
            await source.quiesce()
            await fanout.counted(fanout.names.queue, 1)
        finally:
            await alarm(mortal_rabbit, on=False)


async def test_a_task_that_is_parked_for_too_long_is_released(fanout: Fanout, mortal_rabbit: RabbitServer) -> None:
    """RabbitMQ waits half an hour for an acknowledgement, then closes the channel with all its deliveries."""
    await fanout.put("a")
    async with fanout.consumer(unacked_age_max=timedelta()) as source:
        await alarm(mortal_rabbit, on=True)
        try:
            assert await source.delay(await taken(source), MINUTE)
            assert (await taken(source)).deliveries == 2
        finally:
            await alarm(mortal_rabbit, on=False)


@pytest.mark.storm
async def test_a_silent_connection_is_replaced(fanout: Fanout, mortal_rabbit: RabbitServer) -> None:
    """Without a reset or an answer, the heartbeat notices on both sides."""
    async with TcpProxy("127.0.0.1", mortal_rabbit.port) as proxy:
        behind = fanout.behind(proxy.rewrite(mortal_rabbit.url) + "?heartbeat=1")
        await fanout.put("a")
        async with behind.consumer() as source:
            assert (await taken(source)).deliveries == 1
            proxy.blackhole()
            await eventually_async(lambda: not source.connected, 20, what="it has noticed")
            proxy.heal()
            assert (await taken(source, 20)).deliveries == 2


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_a_call_that_a_closing_connection_ends_is_a_failure(mortal_rabbit: RabbitServer, turns: int) -> None:
    """A service stops during its start: the library cancels the call, or raises a bare ``Exception``."""
    connection = await connect(mortal_rabbit.url, "closing")
    channel = await open_channel(connection)
    closing = asyncio.create_task(close_quietly(connection))
    for _ in range(turns):
        await asyncio.sleep(0)
    with pytest.raises(ConnectionError, match="was lost"), losses_as_failures():
        await channel.basic_qos(prefetch_count=1)
    await closing


async def test_a_connect_that_takes_longer_than_a_copy_waits_is_not_restarted(
    rabbit_server: RabbitServer, fanout: Fanout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a slow or distant RabbitMQ, copies are refused until the connection is open, and then go out."""
    monkeypatch.setattr(forwarding, "FORWARD_TIMEOUT_S", 0.8)
    copy = copy_of(b"{}", Basic.Properties(message_id="m"), {}, without=frozenset())
    async with TcpProxy("127.0.0.1", rabbit_server.port) as proxy:
        forwarder = Forwarder(proxy.rewrite(fanout.url), fanout.names)

        async def accepted() -> bool:
            return isinstance(await forwarder.forward(copy, "", fanout.names.delays[60]), Accepted)

        proxy.delay(0.1)
        try:
            assert not await accepted()
            await eventually_async(accepted, 60, what="a copy goes out")
        finally:
            await forwarder.aclose()
