"""Parts in Redis: redelivered, killed, flushed, full, expired and strange; data, mark and count are one thing."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha1
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis
from structlog.testing import capture_logs

import tickwright.transports.redis.stores as module
from kit.ports import free_port
from kit.redis_fanout import fresh_prefix, redis_link
from kit.servers import RedisServer, started
from kit.tcp_proxy import TcpProxy
from kit.waiting import eventually_async
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.ports.reports import PartKey, Put, PutAnswer
from tickwright.transports.redis.connection import RedisClient, Script
from tickwright.transports.redis.stores import RedisParts

# What has to hold of parts in Redis, as checks that a test runs on the product and a mutant's test on less.

LIFE = timedelta(minutes=10)
NONCE = "5f"
EPOCHS = (1, 2, 9, 10, 2**31 - 1)


@dataclass
class PartsWorld:
    """Parts under a prefix of the test's own, and the server as it is."""

    parts: RedisParts
    redis: Any  # its answers are not typed
    link: RedisClient
    prefix: str

    async def put(self, number: int, epoch: int, listener: str, data: bytes = b"[]", note: str = "") -> PutAnswer:
        """Put a part with a full life."""
        return await self.parts.put(PartKey(number, epoch, listener, NONCE), data, note, ttl=LIFE)

    async def said(self, number: int, epoch: int, listener: str, data: bytes = b"[]", note: str = "") -> Put:
        """Put a part; return what became of it."""
        return (await self.put(number, epoch, listener, data, note)).put

    async def get(self, number: int, epoch: int, listener: str) -> bytes | None:
        """Return a part's data."""
        return await self.parts.get(PartKey(number, epoch, listener, NONCE))

    async def hash_of(self, number: int) -> dict[bytes, bytes]:
        """Return a report's hash as it is."""
        found: dict[bytes, bytes] = await self.redis.hgetall(self.parts.key(number))
        return found

    async def life_ms(self, number: int) -> int:
        """Return for how long it lives; -1 for ever, -2 there is none."""
        found: int = await self.redis.pttl(self.parts.key(number))
        return found


@asynccontextmanager
async def parts_world(url: str, prefix: str | None = None) -> AsyncIterator[PartsWorld]:
    """Open parts of the test's own."""
    prefix = fresh_prefix() if prefix is None else prefix
    link = RedisClient(url)
    async with Redis.from_url(url) as redis:
        try:
            yield PartsWorld(RedisParts(link, prefix), redis, link, prefix)
        finally:
            await link.aclose()


async def check_counted_once(world: PartsWorld) -> None:
    """A listener that is redelivered three times counts once, and who was first stays."""
    assert await world.put(1, 1, "users", b"[1]", "first") == PutAnswer(Put.STORED, "first")
    for attempt in ("second", "third", "fourth"):
        assert await world.put(1, 1, "users", b"[2]", attempt) == PutAnswer(Put.ALREADY, "first")
    assert await world.put(1, 1, "tags", b"[3]", "n") == PutAnswer(Put.STORED, "n")
    assert await world.hash_of(1) == {
        b"record": NONCE.encode(),
        b"epoch": b"1",
        b"users": b"[1]",
        b"done:users": b"first",
        b"tags": b"[3]",
        b"done:tags": b"n",
        b"queryDoneCount": b"2",
    }


async def check_always_a_life(world: PartsWorld) -> None:
    """Whatever is said of a hash, it ends by itself."""
    full = LIFE / timedelta(milliseconds=1)
    numbers = count(1)

    async def lives(number: int) -> None:
        assert 0 < await world.life_ms(number) <= full

    for said, epoch in product(("users", "tags"), (1, 1, 2, 1)):
        await world.put(number := 1, epoch, said)
        await lives(number)
    for _ in range(3):
        number = next(numbers)
        await world.put(number, 3, "users")
        await lives(number)
    await world.redis.persist(world.parts.key(1))
    assert await world.said(1, 1, "users") is Put.STALE
    await lives(1)
    await world.parts.close(1, "finished", nonce=NONCE, ttl=LIFE)
    await lives(1)
    await world.redis.persist(world.parts.key(1))
    assert await world.said(1, 9, "users") is Put.STALE
    await lives(1)


async def check_epochs_never_meet(world: PartsWorld) -> None:
    """Every two epochs in both orders: nothing older is written, and what is newer begins with an empty hash."""
    for number, (first, second) in enumerate(product(EPOCHS, EPOCHS), 1):
        assert await world.said(number, first, "users", b"old") is Put.STORED
        expected: dict[str, Any] = {"said": Put.STORED, "users": b"old", "count": b"2", "epoch": first}
        if second < first:
            expected |= {"said": Put.STALE, "count": b"1"}
        elif second > first:
            expected |= {"users": None, "count": b"1", "epoch": second}
        assert await world.said(number, second, "tags", b"new") is expected["said"], (first, second)
        found = await world.hash_of(number)
        assert found[b"epoch"] == str(expected["epoch"]).encode(), (first, second)
        assert found[b"queryDoneCount"] == expected["count"], (first, second)
        assert await world.get(number, expected["epoch"], "users") == expected["users"], (first, second)
        for epoch in {*EPOCHS} - {expected["epoch"]}:
            assert await world.get(number, epoch, "users") is None, (first, second)


BRIEF = timedelta(milliseconds=60)
CHECKS = (check_counted_once, check_always_a_life, check_epochs_never_meet)


@pytest.fixture
async def world(redis_server: RedisServer) -> AsyncIterator[PartsWorld]:
    """Parts of the test's own on the server that all share."""
    async with parts_world(redis_server.url) as world:
        yield world


# ---------------------------------------------------------------------- what is promised


@pytest.mark.parametrize("check", CHECKS)
async def test_parts_count_once_live_for_a_time_and_keep_to_their_epoch(world: PartsWorld, check: Any) -> None:
    """See each check."""
    await check(world)


async def test_the_hash_is_the_documents(redis_server: RedisServer) -> None:
    """``FileDownloadRecordEntity-1111`` with ``queryDoneCount`` and a field per listener, to be read by others."""
    async with parts_world(redis_server.url, "") as world:
        assert world.parts.key(1111) == "FileDownloadRecordEntity-1111"
        await world.put(1111, 1, "vs_withdraw", b'[{"id":1}]', "note")
        found = await world.redis.hgetall("FileDownloadRecordEntity-1111")
        assert (found[b"vs_withdraw"], found[b"queryDoneCount"]) == (b'[{"id":1}]', b"1")
        await world.redis.delete("FileDownloadRecordEntity-1111")


async def test_two_prefixes_share_nothing(world: PartsWorld) -> None:
    """Two installations on one Redis may both have a first report."""
    other = RedisParts(world.link, world.prefix + "2")
    await world.put(1, 1, "users", b"mine")
    assert await other.put(PartKey(1, 1, "users", NONCE), b"theirs", "", ttl=LIFE) == PutAnswer(Put.STORED, "")
    assert await world.get(1, 1, "users") == b"mine"


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))  # a slow machine is no fault
@given(data=st.binary(max_size=300), note=st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
async def test_data_comes_back_byte_for_byte(redis_server: RedisServer, data: bytes, note: str) -> None:
    """Also what is no UTF-8, lone surrogates and NUL among it."""
    async with parts_world(redis_server.url) as world:
        assert await world.put(1, 1, "users", data, note) == PutAnswer(Put.STORED, note)
        assert await world.get(1, 1, "users") == data
        assert await world.put(1, 1, "users", b"other", "other") == PutAnswer(Put.ALREADY, note)


async def test_a_report_that_is_over_takes_nothing_more(world: PartsWorld) -> None:
    """A late listener hears it, of whatever epoch; the data is gone. Closing twice or without a hash is harmless."""
    await world.put(1, 2, "users", b"data")
    await world.parts.close(1, "finished", nonce=NONCE, ttl=LIFE)
    await world.parts.close(1, "finished", nonce=NONCE, ttl=LIFE)
    await world.parts.close(2, "cancelled", nonce=NONCE, ttl=LIFE)
    assert await world.hash_of(1) == {b"record": NONCE.encode(), b"status": b"finished"}
    for number, epoch in ((1, 1), (1, 2), (1, 3), (2, 1)):
        assert await world.put(number, epoch, "tags") == PutAnswer(Put.STALE, "")
        assert await world.get(number, epoch, "users") is None
    assert await world.hash_of(2) == {b"record": NONCE.encode(), b"status": b"cancelled"}


async def test_a_tombstone_ends_and_is_not_kept_alive_by_who_comes_late(world: PartsWorld) -> None:
    """It stands for its life, then the record in PostgreSQL says that the report is over."""
    await world.parts.close(1, "failed", nonce=NONCE, ttl=timedelta(seconds=30))
    assert await world.said(1, 1, "users") is Put.STALE
    await world.parts.touch([(1, 1)], ttl=LIFE)
    assert 0 < await world.life_ms(1) <= 30_000
    await world.parts.close(1, "failed", nonce=NONCE, ttl=BRIEF)

    async def gone() -> bool:
        return await world.life_ms(1) == -2

    await eventually_async(gone)


async def test_a_touch_renews_those_who_are_there_and_makes_none(world: PartsWorld) -> None:
    """More than fit into one round trip; not another epoch's, and a key of somebody else stops no other."""
    brief = timedelta(seconds=20)
    for number in (1, 2, 1200):
        await world.parts.put(PartKey(number, 1, "users", NONCE), b"", "", ttl=brief)
    await world.redis.set(world.parts.key(3), "somebody else's")
    await world.parts.touch([(number, 2 if number == 2 else 1) for number in range(1, 1201)], ttl=LIFE)
    assert await world.life_ms(1) > 20_000
    assert await world.life_ms(1200) > 20_000
    assert await world.life_ms(2) <= 20_000
    assert await world.life_ms(3) == -1
    assert await world.life_ms(4) == -2
    await world.parts.touch([], ttl=LIFE)


async def test_listeners_that_race_are_stored_once_each(world: PartsWorld, redis_server: RedisServer) -> None:
    """Twenty listeners, each redelivered to two processes at once: twenty marks, a count of twenty."""
    async with redis_link(redis_server.url) as link:
        two = (world.parts, RedisParts(link, world.prefix))
        keys = [PartKey(1, 1, f"l{number}", NONCE) for number in range(20)]
        said = await asyncio.gather(
            *(parts.put(key, b"x", f"{process}", ttl=LIFE) for key in keys for process, parts in enumerate(two))
        )
    assert Counter(answer.put for answer in said) == {Put.STORED: 20, Put.ALREADY: 20}
    for one, other in zip(said[::2], said[1::2], strict=True):
        assert one.note == other.note, "two attempts were told different things"
    assert (await world.hash_of(1))[b"queryDoneCount"] == b"20"


@pytest.mark.parametrize("listener", ["record", "epoch", "queryDoneCount", "status", "done:users", "dead"])
async def test_a_listener_cannot_take_a_field_of_the_hash(world: PartsWorld, listener: str) -> None:
    """Its data would be read as an epoch or a count."""
    with pytest.raises(Rejected) as refused:
        await world.put(1, 1, listener)
    assert refused.value.code == "reserved_listener"
    assert await world.life_ms(1) == -2


async def test_a_part_that_is_too_large_for_redis_is_refused(world: PartsWorld) -> None:
    """A mebibyte at most: one blob must not hold up everybody else's commands."""
    assert await world.said(1, 1, "users", b"x" * module.DATA_BYTES_MAX) is Put.STORED
    with pytest.raises(Rejected) as refused:
        await world.put(1, 1, "tags", b"x" * (module.DATA_BYTES_MAX + 1))
    assert refused.value.code == "part_too_large"
    with pytest.raises(Rejected):
        await world.put(1, 1, "tags", b"", "x" * (module.NOTE_BYTES_MAX + 1))


# ---------------------------------------------------------------------- what somebody else does


async def test_a_count_or_a_mark_that_somebody_changed_is_put_right(world: PartsWorld) -> None:
    """The count is the number of marks, and a mark without data is none."""
    await world.put(1, 1, "users", b"data", "first")
    await world.redis.hincrby(world.parts.key(1), "queryDoneCount", 5)
    assert await world.said(1, 1, "users") is Put.ALREADY
    assert (await world.hash_of(1))[b"queryDoneCount"] == b"1"
    await world.redis.hdel(world.parts.key(1), "users")
    assert await world.get(1, 1, "users") is None
    assert await world.put(1, 1, "users", b"again", "second") == PutAnswer(Put.STORED, "second")
    assert await world.get(1, 1, "users") == b"again"
    await world.redis.hdel(world.parts.key(1), "done:users")
    assert await world.get(1, 1, "users") is None, "data without its mark is not there"
    assert await world.put(1, 1, "users", b"third", "third") == PutAnswer(Put.STORED, "third")


async def test_the_hash_of_another_record_of_the_same_number_is_not_ours(world: PartsWorld) -> None:
    """Two databases on one Redis both have a report 1: nothing is read, written or closed by the other one."""
    theirs = PartKey(1, 2, "users", "another nonce")
    await world.put(1, 1, "users", b"mine", "first")
    before = await world.hash_of(1)
    with pytest.raises(Unavailable) as refused:
        await world.parts.put(theirs, b"theirs", "", ttl=LIFE)
    assert refused.value.code == "hash_not_ours"
    assert await world.parts.get(theirs._replace(epoch=1)) is None
    with capture_logs() as lines:
        await world.parts.close(1, "finished", nonce=theirs.nonce, ttl=LIFE)
    assert [line["event"] for line in lines] == ["redis.hash_foreign"]
    assert await world.hash_of(1) == before
    await world.parts.close(1, "finished", nonce=NONCE, ttl=LIFE)
    with pytest.raises(Unavailable):
        await world.parts.put(theirs, b"theirs", "", ttl=LIFE)


FOREIGN: dict[str, Callable[[Any, str], Any]] = {
    "text": lambda redis, key: redis.set(key, "x"),
    "list": lambda redis, key: redis.rpush(key, "x"),
    "stray count": lambda redis, key: redis.hincrby(key, "queryDoneCount", 1),
    "words": lambda redis, key: redis.hset(key, "epoch", "one"),
    "zero": lambda redis, key: redis.hset(key, "epoch", "0"),
    "negative": lambda redis, key: redis.hset(key, "epoch", "-1"),
    "fraction": lambda redis, key: redis.hset(key, "epoch", "1.0"),
    "hexadecimal": lambda redis, key: redis.hset(key, "epoch", "0x1"),
    "too long": lambda redis, key: redis.hset(key, "epoch", "1" * 16),
    "no text": lambda redis, key: redis.hset(key, "epoch", b"\xff"),
}


@pytest.mark.parametrize("kind", FOREIGN)
async def test_what_somebody_else_wrote_under_the_key_stays_and_the_part_goes_elsewhere(
    world: PartsWorld, kind: str
) -> None:
    """The answer names the key and the remedy; what was there is as it was, and no data is read out of it."""
    key = world.parts.key(1)
    await FOREIGN[kind](world.redis, key)
    before = await world.redis.dump(key)
    with pytest.raises(Unavailable) as refused:
        await world.put(1, 1, "users")
    assert refused.value.code == "hash_foreign"
    assert key in refused.value.message
    assert await world.get(1, 1, "users") is None
    await world.parts.touch([(1, 1)], ttl=LIFE)
    assert await world.redis.dump(key) == before
    assert await world.life_ms(1) == -1


async def test_a_key_of_another_type_is_left_alone_with_a_line_in_the_log(world: PartsWorld) -> None:
    """Nothing is silent: who reads and who closes say so as well."""
    await world.redis.set(world.parts.key(1), "x")
    with capture_logs() as lines:
        assert await world.get(1, 1, "users") is None
        await world.parts.close(1, "failed", nonce=NONCE, ttl=LIFE)
    assert [(line["event"], line["key"]) for line in lines] == [("redis.hash_foreign", world.parts.key(1))] * 2
    assert await world.redis.get(world.parts.key(1)) == b"x"


# ---------------------------------------------------------------------- what the server does


async def test_a_put_whose_reply_was_lost_is_already_there(redis_server: RedisServer) -> None:
    """Nobody knows what was done; the same again says so, with our own note."""
    async with (
        TcpProxy("127.0.0.1", redis_server.port) as proxy,
        parts_world(proxy.rewrite(redis_server.url)) as world,
    ):
        await world.put(1, 1, "warm", b"[]")  # the script is known: a lost NOSCRIPT would be a put that was not done
        proxy.drop_replies()
        with pytest.raises(Unavailable, match="does not answer"):
            await world.put(1, 1, "users", b"[]", "mine")
        proxy.heal()
        assert await world.put(1, 1, "users", b"[]", "again") == PutAnswer(Put.ALREADY, "mine")


async def test_a_flush_in_the_middle_loses_the_parts_and_says_so(mortal_redis: RedisServer) -> None:
    """What is gone is not there, instead of empty; and what comes afterwards begins a hash with a life."""
    async with parts_world(mortal_redis.url) as world:
        await world.put(1, 1, "users", b"data")
        await world.redis.flushall()
        assert await world.get(1, 1, "users") is None
        assert await world.said(1, 2, "tags", b"new") is Put.STORED
        assert (await world.hash_of(1)).keys() == {b"record", b"epoch", b"tags", b"done:tags", b"queryDoneCount"}
        assert await world.life_ms(1) > 0


async def test_a_restart_without_persistence_is_a_flush() -> None:
    """The scripts are gone as well: their text is sent again, and touches of many find it so too."""
    with started(RedisServer({"appendonly": "no"})) as server:
        async with parts_world(server.url) as world:
            await world.put(1, 1, "users", b"data")
            await asyncio.to_thread(server.restart)

            async def gone() -> bool:
                with suppress(Unavailable):
                    return await world.get(1, 1, "users") is None
                return False

            await eventually_async(gone)
            await world.redis.script_flush()
            assert await world.said(1, 1, "users") is Put.STORED
            await world.redis.script_flush()
            await world.parts.touch([(1, 1), (2, 1), (3, 1)], ttl=LIFE / 2)
            assert await world.life_ms(1) <= 300_000
            await world.redis.script_flush()
            await world.parts.close(1, "failed", nonce=NONCE, ttl=LIFE)


async def test_a_killed_server_has_whole_parts_or_none(mortal_redis: RedisServer) -> None:
    """Kill -9 between any two writes: what was answered is there, and no mark is without data or count."""
    async with parts_world(mortal_redis.url) as world:
        answered: set[int] = set()

        async def bring(first: int) -> None:
            number = first
            with suppress(Unavailable):
                while True:
                    await world.put(number, 1, "users", b"x" * 5000, "n")
                    await world.put(number, 1, "tags", b"y" * 5000, "n")
                    answered.add(number)
                    number += 4

        bringing = [asyncio.create_task(bring(first)) for first in range(1, 5)]
        await eventually_async(lambda: len(answered) > 100, what="a hundred reports have their parts")
        await asyncio.to_thread(mortal_redis.kill9)
        await asyncio.gather(*bringing)
        await asyncio.to_thread(mortal_redis.start)
        for number in range(1, max(answered) + 8):
            found = await world.hash_of(number)
            marks = [name for name in (b"users", b"tags") if b"done:" + name in found]
            if marks or found:
                assert {name: len(found[name]) for name in marks} == dict.fromkeys(marks, 5000)
                assert found[b"queryDoneCount"] == str(len(marks)).encode()
                assert await world.life_ms(number) > 0
            assert len(marks) == 2 or number not in answered, "what was answered was lost"


async def test_a_hash_whose_life_ended_is_gone_and_comes_back_with_one(world: PartsWorld) -> None:
    """The naive count recreated it without a life, at 1, for ever."""
    await world.parts.put(PartKey(1, 1, "users", NONCE), b"data", "", ttl=BRIEF)

    async def gone() -> bool:
        return await world.get(1, 1, "users") is None

    await eventually_async(gone)
    assert await world.hash_of(1) == {}
    assert await world.said(1, 1, "tags") is Put.STORED
    assert (await world.hash_of(1))[b"queryDoneCount"] == b"1"
    assert await world.life_ms(1) > 0


async def test_a_full_redis_refuses_and_keeps_what_it_has(mortal_redis: RedisServer) -> None:
    """Out of memory under noeviction: said in so many words, nothing half written; what is there can be read."""
    async with parts_world(mortal_redis.url) as world:
        await world.put(1, 1, "users", b"data")
        before = await world.hash_of(1)
        await world.redis.config_set("maxmemory", 1)
        for number, listener in ((1, "tags"), (2, "users")):
            with pytest.raises(Unavailable, match="maxmemory") as refused:
                await world.put(number, 1, listener)
            assert refused.value.code == "redis_unavailable"
        assert await world.hash_of(1) == before
        assert await world.hash_of(2) == {}
        assert await world.get(1, 1, "users") == b"data"
        await world.parts.touch([(1, 1)], ttl=LIFE)
        await world.parts.close(1, "failed", nonce=NONCE, ttl=LIFE)
        assert await world.hash_of(1) == {b"record": NONCE.encode(), b"status": b"failed"}
        await world.redis.config_set("maxmemory", 0)
        assert await world.said(2, 1, "users") is Put.STORED


async def test_a_replica_and_a_server_that_is_away_are_unavailable(mortal_redis: RedisServer) -> None:
    """Every method says so within seconds, with what the server said."""
    async with parts_world(mortal_redis.url) as world:
        await world.put(1, 1, "users")
        await world.redis.replicaof("127.0.0.1", "1")
        calls: list[Callable[[], Any]] = [
            lambda: world.put(1, 1, "tags"),
            lambda: world.parts.touch([(2, 1), (1, 1)], ttl=LIFE),
            lambda: world.parts.close(1, "failed", nonce=NONCE, ttl=LIFE),
        ]
        for call in calls:
            with pytest.raises(Unavailable, match="read only replica"):
                await call()
        await asyncio.to_thread(mortal_redis.kill9)
        for call in [*calls, lambda: world.get(1, 1, "users")]:
            with pytest.raises(Unavailable) as refused:
                await call()
            assert refused.value.code == "redis_unavailable"


async def test_on_a_cluster_every_call_has_one_key() -> None:
    """No hash tag is needed; a slot that nobody serves is an answer, not a silence."""
    with started(RedisServer({"cluster-enabled": "yes", "cluster-port": str(free_port())})) as server:
        async with parts_world(server.url) as world:
            with pytest.raises(Unavailable, match="ot served"):
                await world.put(1, 1, "users")
            await world.redis.cluster("ADDSLOTSRANGE", 0, 16383)

            async def serves() -> bool:
                with suppress(Unavailable):
                    return await world.said(1, 1, "users") in {Put.STORED, Put.ALREADY}
                return False

            await eventually_async(serves, 30)
            for number in range(2, 30):
                assert await world.said(number, 1, "users") is Put.STORED
            await world.parts.touch([(number, 1) for number in range(1, 30)], ttl=LIFE / 2)
            assert await world.life_ms(29) <= 300_000
            await world.parts.close(29, "finished", nonce=NONCE, ttl=LIFE)


async def test_a_node_of_a_cluster_that_has_not_the_key_says_where_it_is() -> None:
    """The client follows no redirection: the answer names the slot and the node, and nothing is lost in silence."""
    ports = [free_port(), free_port()]
    servers = [RedisServer({"cluster-enabled": "yes", "cluster-port": str(port)}) for port in ports]
    with started(servers[0]), started(servers[1]):
        async with parts_world(servers[0].url) as one, parts_world(servers[1].url, one.prefix) as other:
            await one.redis.cluster("ADDSLOTSRANGE", 0, 8191)
            await other.redis.cluster("ADDSLOTSRANGE", 8192, 16383)
            await one.redis.cluster("MEET", "127.0.0.1", servers[1].port, ports[1])

            async def whole() -> bool:
                said = [await world.redis.cluster("INFO") for world in (one, other)]
                return all(facts["cluster_state"] == "ok" and facts["cluster_slots_ok"] == "16384" for facts in said)

            await eventually_async(whole, 60)
            for number in range(1, 21):
                slot = await one.redis.cluster("KEYSLOT", one.parts.key(number))
                here, there = (one, other) if slot < 8192 else (other, one)
                assert await here.said(number, 1, "users") is Put.STORED
                with pytest.raises(Unavailable, match=f"{slot} 127.0.0.1:"):
                    await there.put(number, 1, "tags")
                with pytest.raises(Unavailable):
                    await there.get(number, 1, "users")


async def test_a_user_needs_no_more_rights_than_the_page_says(mortal_redis: RedisServer) -> None:
    """README names the keys and commands; with these alone everything of parts works."""
    page = Path(module.__file__).with_name("README.md").read_text(encoding="utf-8")
    [(keys, said)] = re.findall(r"^`~(FileDownloadRecordEntity-\*) ([^`]+)`", page, re.MULTILINE)
    async with Redis.from_url(mortal_redis.url) as redis:
        await redis.acl_setuser("poor", enabled=True, passwords=["+secret"], keys=[keys], commands=said.split())
    async with parts_world(mortal_redis.url.replace("redis://", "redis://poor:secret@"), "") as world:
        assert await world.said(1, 1, "users", b"x") is Put.STORED
        assert await world.said(1, 2, "users", b"x") is Put.STORED
        assert await world.said(1, 2, "users", b"y") is Put.ALREADY
        assert await world.said(1, 1, "users", b"y") is Put.STALE
        assert await world.get(1, 2, "users") == b"x"
        await world.parts.touch([(1, 2), (2, 1)], ttl=LIFE)
        await world.parts.close(1, "finished", nonce=NONCE, ttl=LIFE)


# ---------------------------------------------------------------------- mutants


def mutant(*changes: tuple[str, str]) -> Script:
    """Return the script that puts, with a guard taken out."""
    script = Script("parts_put.lua")
    for old, new in changes:
        assert old in script.text, old
        script.text = script.text.replace(old, new)
    script.digest = sha1(script.text.encode(), usedforsecurity=False).hexdigest()
    return script


MUTANTS: dict[str, tuple[Any, Callable[[], Script]]] = {
    "counts without a mark": (
        check_counted_once,
        lambda: mutant(
            ("redis.call('HSETNX', key, mark, note) == 0", "redis.call('HSET', key, mark, note) < 0"),
            ("redis.call('HSET', key, 'queryDoneCount', count)", "redis.call('HINCRBY', key, 'queryDoneCount', 1)"),
        ),
    ),
    "writes over what was first": (check_counted_once, lambda: mutant(("if code == 0 then", "if true then"))),
    "no life": (check_always_a_life, lambda: mutant(("redis.call('PEXPIRE', key, life)", ""))),
    "no life for who comes late": (check_always_a_life, lambda: mutant(("redis.call('PTTL', key) < 0", "false"))),
    "takes an older epoch": (
        check_epochs_never_meet,
        lambda: mutant(("known[2] or tonumber(known[1]) > tonumber(epoch)", "known[2]")),
    ),
    "keeps parts of the epoch before": (check_epochs_never_meet, lambda: mutant(("redis.call('DEL', key)", ""))),
    "compares epochs as texts": (
        check_epochs_never_meet,
        lambda: mutant(("tonumber(known[1]) > tonumber(epoch)", "known[1] > epoch")),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
async def test_the_mutants_are_caught(world: PartsWorld, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Each guard of the script is one that a check needs."""
    check, make = MUTANTS[name]
    monkeypatch.setattr(module, "_PUT", make())
    with pytest.raises(AssertionError):
        await check(world)
