"""Foreign messages in fan-out's queue, and the dead letters: listed with their reasons, and requeued."""

import asyncio
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from pamqp import encode
from pamqp.commands import Basic

from kit.mutants import mutate
from kit.rabbit_queues import raw_channel
from kit.rabbit_reports import Reports
from kit.rabbit_tasks import Fanout, nothing_comes, taken
from kit.servers import RabbitServer
from kit.tcp_proxy import TcpProxy
from kit.waiting import eventually_async
from tickwright.domain.errors import Unavailable
from tickwright.outbound import ConnectPause
from tickwright.transports.rabbitmq import connection as wire
from tickwright.transports.rabbitmq import dead_letters, tasks
from tickwright.transports.rabbitmq.connection import Subscription, deliveries_of
from tickwright.transports.rabbitmq.dead_letters import BODY_SHOWN_BYTES_MAX
from tickwright.transports.rabbitmq.tasks import RabbitTaskQueue
from tickwright.transports.rabbitmq.topology import TASK_KEY

SECOND = timedelta(seconds=1)


class RawProperties(Basic.Properties):
    """Properties as bytes that no library would write."""

    raw = b""

    def marshal(self) -> bytes:
        """Return the bytes."""
        return self.raw


def table(entry: bytes) -> bytes:
    """Return the headers that consist of ``entry``, persistent."""
    return struct.pack(">HI", 0x2000 | 0x1000, len(entry)) + entry + b"\x02"


def nested(depth: int) -> bytes:
    """Return a header that is a table in a table, ``depth`` times."""
    inner = b""
    for _ in range(depth):
        inner = b"\x01xF" + struct.pack(">I", len(inner)) + inner
    return inner


UNREADABLE = {
    "a timestamp in the year 146,140,482": table(b"\x01tT" + struct.pack(">Q", 2**62)),
    "a timestamp beyond every clock": table(b"\x01tT" + struct.pack(">Q", 2**64 - 1)),
    "a header's name that is not UTF-8": table(b"\x02\xff\xfeV"),
    "an id that is not UTF-8": struct.pack(">HB", 0x0080, 2) + b"\xff\xfe",
    "a property timestamp": struct.pack(">HQ", 0x0040, 2**62),
    "tables in tables": table(nested(3000)),
    "a priority above the maximum": struct.pack(">HB", 0x0800, 200),
}


async def put_raw(fanout: Fanout, raw: bytes, body: bytes = b"{}") -> None:
    """Publish a message with these bytes as its properties."""
    properties = RawProperties(message_id="raw")
    properties.raw = raw
    async with raw_channel(fanout.url) as channel:
        await channel.basic_publish(body, exchange=fanout.names.exchange, routing_key=TASK_KEY, properties=properties)


async def put_with(fanout: Fanout, body: bytes = b"{}", **properties: Any) -> None:
    """Publish a message with these properties."""
    async with raw_channel(fanout.url) as channel:
        await channel.basic_publish(
            body, exchange=fanout.names.exchange, routing_key=TASK_KEY, properties=Basic.Properties(**properties)
        )


# ---------------------------------------------------------------------------------------------- strange messages


@pytest.mark.matrix
@pytest.mark.parametrize("what", UNREADABLE)
async def test_unreadable_properties_close_no_connection(fanout: Fanout, what: str) -> None:
    """The task is delivered without them, others are not disturbed, and it can be dead-lettered and listed."""
    async with fanout.consumer(2) as source:
        await fanout.put("beside")
        beside = await taken(source)
        await put_raw(fanout, UNREADABLE[what])
        strange = await taken(source)
        assert strange.body == b"{}"
        assert (strange.deliveries, strange.delays) == (1, 0)
        assert await source.delay(strange, SECOND)
        again = await taken(source)
        assert again.delays == 1
        assert await source.dead_letter(again, "poison", "unreadable")
        assert await source.ack(beside)
    assert [one.reason for one in (await fanout.dead.peek(10)).messages] == ["poison"]


@pytest.mark.parametrize("what", UNREADABLE)
async def test_dead_letters_can_be_listed_though_one_is_unreadable(fanout: Fanout, what: str) -> None:
    """A message that the broker itself dead-letters stays as strange as it was."""
    await put_raw(fanout, UNREADABLE[what])
    await fanout.put("good")
    await fanout.reject(2)
    assert len((await fanout.dead.peek(10)).messages) == 2
    assert len(await fanout.dead.requeue(10)) == 2
    await fanout.counted(fanout.names.queue, 2)


KEYS = {"two bytes": b"\xff\xfe", "as long as can be": b"\xff" * 255, "cut": b"task\xe2\x82"}


@contextmanager
def keys_as_bytes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the library publish routing keys that are not text within the block."""
    with monkeypatch.context() as patch:
        patch.setitem(encode.METHODS, "shortstr", _short)
        yield


def _short(value: str) -> bytes:
    written = value.encode("utf-8", "surrogateescape")
    return bytes([len(written)]) + written


async def put_under(url: str, exchange: str, key: bytes, **properties: Any) -> None:
    """Publish a message under a routing key of bytes."""
    text = key.decode("utf-8", "surrogateescape")
    async with raw_channel(url) as channel:
        await channel.basic_publish(
            b"{}", exchange=exchange, routing_key=text, properties=Basic.Properties(**properties)
        )


@pytest.mark.matrix
@pytest.mark.parametrize("key", KEYS)
async def test_an_unreadable_routing_key_closes_no_connection(
    fanout: Fanout, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """The header ``CC`` routes it here; other tasks keep their attempts, and it can be dead-lettered and listed."""
    async with fanout.consumer(2) as source:
        await fanout.put("beside")
        beside = await taken(source)
        with keys_as_bytes(monkeypatch):
            await put_under(fanout.url, fanout.names.exchange, KEYS[key], message_id="s", headers={"CC": [TASK_KEY]})
        strange = await taken(source)
        assert (strange.message_id, strange.deliveries) == ("s", 1)
        assert await source.delay(strange, SECOND)
        assert await source.dead_letter(await taken(source), "poison", "unreadable")
        assert await source.ack(beside)
    assert [(one.message_id, one.reason) for one in (await fanout.dead.peek(10)).messages] == [("s", "poison")]


@pytest.mark.parametrize("key", KEYS)
async def test_dead_letters_can_be_listed_though_a_routing_key_is_unreadable(
    fanout: Fanout, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """Also where it was published into the queue of dead letters."""
    with keys_as_bytes(monkeypatch):
        await put_under(fanout.url, fanout.names.exchange, KEYS[key], message_id="t", headers={"CC": [TASK_KEY]})
    await fanout.put("good")
    await fanout.reject(2)
    with keys_as_bytes(monkeypatch):
        await put_under(fanout.url, fanout.names.dead, KEYS[key], message_id="s", headers={"CC": [TASK_KEY]})
    await fanout.counted(fanout.names.dead, 3)
    assert {one.message_id for one in (await fanout.dead.peek(10)).messages} == {"s", "t", "good"}
    assert {*await fanout.dead.requeue(10)} == {"s", "t", "good"}
    await fanout.counted(fanout.names.queue, 3)


@pytest.mark.parametrize("key", KEYS)
async def test_unreadable_routing_keys_do_not_disturb_listeners_of_reports(
    rabbit_server: RabbitServer, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """Their exchange takes every key; its dead letters can be listed."""
    reports = Reports(rabbit_server.url)
    await reports.prepare("users")
    with keys_as_bytes(monkeypatch):
        await put_under(reports.url, reports.shared.broadcast, KEYS[key], message_id="s")
        await put_under(reports.url, reports.shared.dead, KEYS[key], message_id="d")
    await reports.tell("users", "good")
    async with reports.consumer("users", 2) as source:
        found = [await taken(source), await taken(source)]
        assert [(one.message_id, one.deliveries) for one in found] == [("s", 1), ("good", 1)]
        for one in found:
            assert await source.ack(one)
    await reports.counted(reports.shared.dead, 1)
    assert [one.message_id for one in (await reports.dead.peek(10)).messages] == ["d"]
    await reports.remove()


async def test_the_suite_notices_names_that_are_decoded_strictly(
    fanout: Fanout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the library's own decoding."""
    mutate(monkeypatch, wire._readable_name, "except UnicodeDecodeError", "except ZeroDivisionError")
    with pytest.raises((AssertionError, TimeoutError)):
        await test_an_unreadable_routing_key_closes_no_connection(fanout, monkeypatch, "two bytes")


@pytest.mark.parametrize("steady_s", [3600.0, 0.0], ids=["lost at once", "after it has lasted"])
async def test_each_connection_that_is_lost_at_once_lengthens_the_pause(
    fanout: Fanout, monkeypatch: pytest.MonkeyPatch, rabbit_server: RabbitServer, steady_s: float
) -> None:
    """An open connection is no success yet: a message may end each one."""
    made: list[str] = []

    class Noted(ConnectPause):
        def failed(self) -> None:
            made.append("counted")
            super().failed()

        def succeeded(self) -> None:
            made.append("forgotten")
            super().succeeded()

    monkeypatch.setattr(tasks, "ConnectPause", Noted)
    monkeypatch.setattr(tasks, "STEADY_S", steady_s)
    subscription: Subscription | None = None
    async with (
        TcpProxy("127.0.0.1", rabbit_server.port) as proxy,
        fanout.behind(proxy.rewrite(rabbit_server.url)).consumer() as source,
    ):
        for _ in range(3):

            def has_ticked(before: Any = subscription) -> bool:
                subscription, ticked_s = source._subscription, source._ticked_s
                return (
                    subscription is not None
                    and subscription is not before
                    and ticked_s is not None
                    and ticked_s > subscription.begun_s
                )

            await eventually_async(has_ticked, 30, what="connected, and ticked since")
            subscription = source._subscription
            proxy.reset()
    assert ("forgotten" in made) == (not steady_s)
    assert made.count("counted") >= 3


async def test_the_suite_notices_a_pause_that_is_reset_at_once(
    fanout: Fanout, monkeypatch: pytest.MonkeyPatch, rabbit_server: RabbitServer
) -> None:
    """Mutant: failures are forgotten as soon as there is a connection."""
    mutate(monkeypatch, RabbitTaskQueue._reset_pause, " and monotonic() - subscription.begun_s >= STEADY_S", "")
    with pytest.raises(AssertionError):
        await test_each_connection_that_is_lost_at_once_lengthens_the_pause(fanout, monkeypatch, rabbit_server, 3600.0)


@pytest.mark.matrix
@pytest.mark.parametrize(
    "headers",
    [
        {"x-death": "yesterday"},
        {"x-death": [1, "two", {"queue": 3}]},
        {"x-delivery-count": "often", "tickwright-delays": "twice"},
        {"x-delivery-count": -5, "tickwright-delays": -5},
        {"x-delivery-count": True, "tickwright-delays": True},
        {"x-delivery-count": 1e30, "tickwright-delays": [1]},
        {"tickwright-reason": 7, "tickwright-reason-text": {"a": 1}, "tickwright-died-at": "noon"},
    ],
)
async def test_headers_of_the_wrong_type_are_read_as_none(fanout: Fanout, headers: dict[str, Any]) -> None:
    """Headers in which the broker or fan-out counts may hold any value."""
    await fanout.put("a", headers=headers)
    async with fanout.consumer() as source:
        task = await taken(source)
        assert (task.deliveries, task.delays) == (1, 0)
        await source.release(task)
        task = await taken(source)
        assert task.deliveries == 2
        assert await source.delay(task, SECOND)
        task = await taken(source)
        assert (task.deliveries, task.delays, task.message_id) == (1, 1, "a")
    await fanout.reject(1)
    dead = (await fanout.dead.peek(1)).messages[0]
    assert (dead.message_id, dead.reason) == ("a", "rejected")


def test_a_delivery_count_is_used_only_of_redelivered_messages() -> None:
    """Any publisher can write the broker's headers, too."""
    assert deliveries_of(9, again=False) == 1
    assert deliveries_of(9, again=True) == 10
    assert deliveries_of(None, again=True) == 2
    assert deliveries_of("9", again=True) == 2
    assert deliveries_of(10**30, again=True) == 1_000_001


async def test_a_message_without_an_id_gets_one_with_its_copy(fanout: Fanout) -> None:
    """A return is matched by its id, and a dead letter is named by it."""
    await put_raw(fanout, struct.pack(">H", 0))
    async with fanout.consumer() as source:
        task = await taken(source)
        assert task.message_id is None
        assert await source.dead_letter(task, "no_id", "it has none")
    dead = (await fanout.dead.peek(1)).messages[0]
    assert dead.message_id is not None
    assert await fanout.dead.requeue(10, message_ids=[dead.message_id]) == [dead.message_id]


async def test_a_copy_keeps_its_properties_except_expiration_user_and_cc(fanout: Fanout) -> None:
    """An expiration would end the delay, and CC would send each copy to more queues."""
    await put_with(
        fanout,
        b"\x1f\x8b",
        message_id="a",
        content_encoding="gzip",
        content_type="application/json",
        correlation_id="c",
        priority=3,
        expiration="60000",
        user_id="guest",
        headers={"CC": [fanout.names.dead, fanout.names.delays[1]], "kept": 1.5},
    )
    async with fanout.consumer() as source:
        task = await taken(source)
        assert (task.content_encoding, task.body) == ("gzip", b"\x1f\x8b")
        assert await source.delay(task, timedelta(seconds=60))
    copies = await fanout.all_in(fanout.names.delays[60])
    assert len(copies) == 1
    found = copies[0].header.properties
    assert (found.message_id, found.content_encoding, found.content_type) == ("a", "gzip", "application/json")
    assert (found.correlation_id, found.priority, found.delivery_mode) == ("c", 3, 2)
    assert (found.expiration, found.user_id) == (None, None)
    assert "CC" not in (found.headers or {})
    assert (found.headers or {})["kept"] == 1.5
    assert await fanout.count(fanout.names.dead) == 0


async def test_a_message_whose_headers_fill_a_frame_is_dead_lettered_by_the_broker(fanout: Fanout) -> None:
    """With our headers they would not fit, and the broker would close the connection."""
    await fanout.put("a", headers={"big": "x" * 130_000})
    async with fanout.consumer() as source:
        assert await source.dead_letter(await taken(source), "poison", "t" * 5000)
        await fanout.put("b")
        assert await source.delay(await taken(source), SECOND)
    assert [(one.message_id, one.reason) for one in (await fanout.dead.peek(10)).messages] == [("a", "rejected")]


async def test_a_task_with_its_own_time_to_live_ends_as_a_dead_letter(fanout: Fanout) -> None:
    """No published message vanishes without a trace."""
    await put_with(fanout, message_id="a", expiration="1", delivery_mode=2)
    await fanout.counted(fanout.names.dead, 1)
    assert [(one.message_id, one.reason) for one in (await fanout.dead.peek(10)).messages] == [("a", "expired")]


# ---------------------------------------------------------------------------------------------- dead letters


async def dead_letter_all(fanout: Fanout, *ids: str) -> None:
    """Publish tasks and dead-letter them in their order."""
    await fanout.put(*ids)
    async with fanout.consumer() as source:
        for one in ids:
            assert await source.dead_letter(await taken(source), f"reason_{one}", f"text of {one}")


async def test_a_dead_letter_has_its_reason_and_instant(fanout: Fanout) -> None:
    """A reason code, a text for people, an instant, and the unchanged message."""
    await fanout.put("a", body=b'{"TaskType": "TARIFFS"}', headers={"trace": "x"})
    async with fanout.consumer() as source:
        assert await source.dead_letter(
            await taken(source), "unknown_module", "No process here handles TARIFFS." + "." * 2000
        )
    [dead], count = await fanout.dead.peek(10)
    assert count == 1
    assert (dead.message_id, dead.reason, dead.body) == ("a", "unknown_module", b'{"TaskType": "TARIFFS"}')
    assert dead.text.startswith("No process here handles TARIFFS.")
    assert len(dead.text) == 1000
    assert dead.died_at_s is not None


async def test_listing_changes_neither_the_dead_letters_nor_their_order(fanout: Fanout) -> None:
    """However often they are listed: a broker that counts deliveries must not drop them."""
    await dead_letter_all(fanout, *"abcde")
    for _ in range(25):
        peeked = await fanout.dead.peek(3)
        assert [one.message_id for one in peeked.messages] == ["a", "b", "c"]
        assert peeked.total == 5
    assert await fanout.ids_in(fanout.names.dead) == [*"abcde"]


async def test_a_large_body_is_shown_in_part(fanout: Fanout) -> None:
    """A page of dead letters is bounded; what is requeued is whole."""
    whole = b"x" * (BODY_SHOWN_BYTES_MAX * 3)
    await fanout.put("a", body=whole)
    await fanout.reject(1)
    assert (await fanout.dead.peek(1)).messages[0].body == whole[:BODY_SHOWN_BYTES_MAX]
    assert await fanout.dead.requeue(1) == ["a"]
    assert [one.body for one in await fanout.all_in(fanout.names.queue)] == [whole]


@pytest.mark.parametrize(("body", "headers"), [(b"x" * 100_000, {}), (b"", {f"h{n}": "x" for n in range(8_000)})])
async def test_a_listing_reads_a_bounded_number_of_bytes_of_whole_messages(
    fanout: Fanout, monkeypatch: pytest.MonkeyPatch, body: bytes, headers: dict[str, str]
) -> None:
    """Headers and hidden parts of bodies count; the total shows that there are more."""
    monkeypatch.setattr(dead_letters, "PEEK_BYTES_MAX", 150_000)
    monkeypatch.setattr(dead_letters, "BODY_SHOWN_BYTES_MAX", 10)
    await fanout.put(*"abcd", body=body, headers=headers)
    await fanout.reject(4)
    peeked = await fanout.dead.peek(10)
    assert ([one.message_id for one in peeked.messages], peeked.total) == (["a", "b"], 4)


async def test_a_listing_that_takes_too_long_returns_what_it_has_read(
    fanout: Fanout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message at least; the others stay in the queue and are counted."""
    await dead_letter_all(fanout, *"abc")
    monkeypatch.setattr(dead_letters, "PEEK_S_MAX", 0.0)
    for _ in range(2):
        peeked = await fanout.dead.peek(10)
        assert ([one.message_id for one in peeked.messages], peeked.total) == (["a"], 3)


async def test_dead_letters_requeued_by_id_start_afresh_and_the_others_stay(fanout: Fanout) -> None:
    """Deliveries and delays count from one, headers of the death are gone; unknown ids are left out."""
    await dead_letter_all(fanout, *"abcd")
    assert await fanout.dead.requeue(10, message_ids=["c", "a", "nowhere"]) == ["a", "c"]
    await fanout.counted(fanout.names.dead, 2)
    async with fanout.consumer() as source:
        task = await taken(source)
        assert (task.message_id, task.deliveries, task.delays) == ("a", 1, 0)
        assert not {name for name in task.headers if name.startswith(("tickwright-", "x-death", "x-first"))}
        assert await source.ack(task)
    assert await fanout.ids_in(fanout.names.dead) == ["b", "d"]


async def test_requeuing_without_ids_takes_the_oldest_up_to_a_limit(fanout: Fanout) -> None:
    """They keep their order."""
    await dead_letter_all(fanout, *"abcd")
    assert await fanout.dead.requeue(3) == ["a", "b", "c"]
    assert await fanout.ids_in(fanout.names.queue) == ["a", "b", "c"]
    assert await fanout.dead.requeue(3) == ["d"]
    assert await fanout.dead.requeue(3) == []


async def test_tasks_that_are_dead_lettered_again_at_once_are_not_requeued_for_ever(fanout: Fanout) -> None:
    """Only what was dead at the beginning is moved."""
    await dead_letter_all(fanout, "a")
    async with fanout.consumer() as source:

        async def dead_letter_for_ever() -> None:
            while True:
                await source.dead_letter(await source.take(), "again", "and again")

        dead_lettering = asyncio.create_task(dead_letter_for_ever())
        assert await fanout.dead.requeue(1000) == ["a"]
        await fanout.counted(fanout.names.dead, 1)
        dead_lettering.cancel()


@pytest.mark.storm
async def test_an_unconfirmed_requeue_keeps_the_dead_letter(fanout: Fanout, rabbit_server: RabbitServer) -> None:
    """It is acknowledged after the confirm of its copy: two copies at worst, never none."""
    await fanout.put("a", body=b"the last word")
    async with fanout.consumer() as source:
        assert await source.dead_letter(await taken(source), "reason", "text")
    async with TcpProxy("127.0.0.1", rabbit_server.port) as proxy:
        behind = fanout.behind(proxy.rewrite(rabbit_server.url)).dead
        proxy.drop_replies_after(b"the last word")
        with pytest.raises(Unavailable):
            await behind.requeue(10)
    await fanout.counted(fanout.names.dead, 1)


async def test_dead_letters_of_an_unavailable_broker_are_unavailable(fanout: Fanout) -> None:
    """The answer is an error, not an empty list."""
    unreachable = fanout.behind("amqp://guest:guest@127.0.0.1:1/").dead
    with pytest.raises(Unavailable):
        await unreachable.peek(1)
    with pytest.raises(Unavailable):
        await unreachable.requeue(1)


async def test_dead_letters_can_be_listed_before_anything_ran(rabbit_server: RabbitServer) -> None:
    """The first query declares the queues."""
    fanout = Fanout(rabbit_server.url)
    assert await fanout.dead.peek(10) == ([], 0)
    async with fanout.consumer() as source:
        assert await nothing_comes(source, 0.05)
    await fanout.remove()
