"""Parts in Redis: redelivered, killed, flushed, full, expired and foreign; data, mark and count always agree."""

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

# The promises of parts in Redis, as checks that run on the product and on its mutants.

TTL = timedelta(minutes=10)
NONCE = "5f"
EPOCHS = (1, 2, 9, 10, 2**31 - 1)


@dataclass
class PartsWorld:
    """Parts under a prefix of the test, and a plain client of the server."""

    parts: RedisParts
    redis: Any  # its answers are not typed
    link: RedisClient
    prefix: str

    async def put(self, number: int, epoch: int, listener: str, data: bytes = b"[]", note: str = "") -> PutAnswer:
        """Put a part with the full time to live."""
        return await self.parts.put(PartKey(number, epoch, listener, NONCE), data, note, ttl=TTL)

    async def put_outcome(self, number: int, epoch: int, listener: str, data: bytes = b"[]", note: str = "") -> Put:
        """Put a part; return the outcome."""
        return (await self.put(number, epoch, listener, data, note)).put

    async def get(self, number: int, epoch: int, listener: str) -> bytes | None:
        """Return a part's data."""
        return await self.parts.get(PartKey(number, epoch, listener, NONCE))

    async def hash_of(self, number: int) -> dict[bytes, bytes]:
        """Return all fields of a report's hash."""
        found: dict[bytes, bytes] = await self.redis.hgetall(self.parts.key(number))
        return found

    async def ttl_ms(self, number: int) -> int:
        """Return the time to live of a report's hash; -1 for ever, -2 without a hash."""
        found: int = await self.redis.pttl(self.parts.key(number))
        return found


@asynccontextmanager
async def parts_world(url: str, prefix: str | None = None) -> AsyncIterator[PartsWorld]:
    """Open parts under a prefix of the test."""
    prefix = fresh_prefix() if prefix is None else prefix
    link = RedisClient(url)
    async with Redis.from_url(url) as redis:
        try:
            yield PartsWorld(RedisParts(link, prefix), redis, link, prefix)
        finally:
            await link.aclose()


async def check_counted_once(world: PartsWorld) -> None:
    """A listener that is redelivered three times counts once, and its first part stays."""
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


async def check_always_a_time_to_live(world: PartsWorld) -> None:
    """After every call, the hash has a time to live."""
    full = TTL / timedelta(milliseconds=1)
    numbers = count(1)

    async def expires(number: int) -> None:
        assert 0 < await world.ttl_ms(number) <= full

    for listener, epoch in product(("users", "tags"), (1, 1, 2, 1)):
        await world.put(number := 1, epoch, listener)
        await expires(number)
    for _ in range(3):
        number = next(numbers)
        await world.put(number, 3, "users")
        await expires(number)
    await world.redis.persist(world.parts.key(1))
    assert await world.put_outcome(1, 1, "users") is Put.STALE
    await expires(1)
    await world.parts.close(1, "finished", nonce=NONCE, ttl=TTL)
    await expires(1)
    await world.redis.persist(world.parts.key(1))
    assert await world.put_outcome(1, 9, "users") is Put.STALE
    await expires(1)


async def check_epochs_never_mix(world: PartsWorld) -> None:
    """Every two epochs in both orders: nothing older is written, and a newer one begins with an empty hash."""
    for number, (first, second) in enumerate(product(EPOCHS, EPOCHS), 1):
        assert await world.put_outcome(number, first, "users", b"old") is Put.STORED
        expected: dict[str, Any] = {"outcome": Put.STORED, "users": b"old", "count": b"2", "epoch": first}
        if second < first:
            expected |= {"outcome": Put.STALE, "count": b"1"}
        elif second > first:
            expected |= {"users": None, "count": b"1", "epoch": second}
        assert await world.put_outcome(number, second, "tags", b"new") is expected["outcome"], (first, second)
        found = await world.hash_of(number)
        assert found[b"epoch"] == str(expected["epoch"]).encode(), (first, second)
        assert found[b"queryDoneCount"] == expected["count"], (first, second)
        assert await world.get(number, expected["epoch"], "users") == expected["users"], (first, second)
        for epoch in {*EPOCHS} - {expected["epoch"]}:
            assert await world.get(number, epoch, "users") is None, (first, second)


SHORT = timedelta(milliseconds=60)
CHECKS = (check_counted_once, check_always_a_time_to_live, check_epochs_never_mix)


@pytest.fixture
async def world(redis_server: RedisServer) -> AsyncIterator[PartsWorld]:
    """Parts under a prefix of the test on the shared server."""
    async with parts_world(redis_server.url) as world:
        yield world


# ---------------------------------------------------------------------- what is promised


@pytest.mark.parametrize("check", CHECKS)
async def test_parts_count_once_expire_and_never_mix_epochs(world: PartsWorld, check: Any) -> None:
    """Each check has its own promise."""
    await check(world)


async def test_the_hash_has_the_names_of_the_source_document(redis_server: RedisServer) -> None:
    """``FileDownloadRecordEntity-1111`` with ``queryDoneCount`` and a field per listener, for other programs."""
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
    assert await other.put(PartKey(1, 1, "users", NONCE), b"theirs", "", ttl=TTL) == PutAnswer(Put.STORED, "")
    assert await world.get(1, 1, "users") == b"mine"


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))  # a slow machine is no failure
@given(data=st.binary(max_size=300), note=st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
async def test_data_comes_back_byte_for_byte(redis_server: RedisServer, data: bytes, note: str) -> None:
    """Also data that is not UTF-8, with lone surrogates and NUL."""
    async with parts_world(redis_server.url) as world:
        assert await world.put(1, 1, "users", data, note) == PutAnswer(Put.STORED, note)
        assert await world.get(1, 1, "users") == data
        assert await world.put(1, 1, "users", b"other", "other") == PutAnswer(Put.ALREADY, note)


async def test_a_report_that_has_ended_accepts_no_part(world: PartsWorld) -> None:
    """A late put of any epoch is stale; the data is gone. Closing twice or without a hash is harmless."""
    await world.put(1, 2, "users", b"data")
    await world.parts.close(1, "finished", nonce=NONCE, ttl=TTL)
    await world.parts.close(1, "finished", nonce=NONCE, ttl=TTL)
    await world.parts.close(2, "cancelled", nonce=NONCE, ttl=TTL)
    assert await world.hash_of(1) == {b"record": NONCE.encode(), b"status": b"finished"}
    for number, epoch in ((1, 1), (1, 2), (1, 3), (2, 1)):
        assert await world.put(number, epoch, "tags") == PutAnswer(Put.STALE, "")
        assert await world.get(number, epoch, "users") is None
    assert await world.hash_of(2) == {b"record": NONCE.encode(), b"status": b"cancelled"}


async def test_a_tombstone_expires_and_is_not_renewed_by_late_calls(world: PartsWorld) -> None:
    """Afterwards the record in PostgreSQL says that the report has ended."""
    await world.parts.close(1, "failed", nonce=NONCE, ttl=timedelta(seconds=30))
    assert await world.put_outcome(1, 1, "users") is Put.STALE
    await world.parts.touch([(1, 1)], ttl=TTL)
    assert 0 < await world.ttl_ms(1) <= 30_000
    await world.parts.close(1, "failed", nonce=NONCE, ttl=SHORT)

    async def gone() -> bool:
        return await world.ttl_ms(1) == -2

    await eventually_async(gone)


async def test_a_touch_renews_existing_hashes_and_makes_none(world: PartsWorld) -> None:
    """More than fit into one round trip; not those of another epoch; a foreign key does not stop the others."""
    short = timedelta(seconds=20)
    for number in (1, 2, 1200):
        await world.parts.put(PartKey(number, 1, "users", NONCE), b"", "", ttl=short)
    await world.redis.set(world.parts.key(3), "foreign")
    await world.parts.touch([(number, 2 if number == 2 else 1) for number in range(1, 1201)], ttl=TTL)
    assert await world.ttl_ms(1) > 20_000
    assert await world.ttl_ms(1200) > 20_000
    assert await world.ttl_ms(2) <= 20_000
    assert await world.ttl_ms(3) == -1
    assert await world.ttl_ms(4) == -2
    await world.parts.touch([], ttl=TTL)


async def test_parts_that_are_put_at_once_are_stored_once_each(world: PartsWorld, redis_server: RedisServer) -> None:
    """Twenty listeners, each redelivered to two processes at once: twenty marks, a count of twenty."""
    async with redis_link(redis_server.url) as link:
        two = (world.parts, RedisParts(link, world.prefix))
        keys = [PartKey(1, 1, f"l{number}", NONCE) for number in range(20)]
        answers = await asyncio.gather(
            *(parts.put(key, b"x", f"{process}", ttl=TTL) for key in keys for process, parts in enumerate(two))
        )
    assert Counter(answer.put for answer in answers) == {Put.STORED: 20, Put.ALREADY: 20}
    for one, other in zip(answers[::2], answers[1::2], strict=True):
        assert one.note == other.note, "two attempts got different notes"
    assert (await world.hash_of(1))[b"queryDoneCount"] == b"20"


@pytest.mark.parametrize("listener", ["record", "epoch", "queryDoneCount", "status", "done:users", "dead"])
async def test_a_listener_cannot_have_the_name_of_a_field_of_the_hash(world: PartsWorld, listener: str) -> None:
    """Its data would be read as an epoch or a count."""
    with pytest.raises(Rejected) as refused:
        await world.put(1, 1, listener)
    assert refused.value.code == "reserved_listener"
    assert await world.ttl_ms(1) == -2


async def test_a_part_that_is_too_large_for_redis_is_refused(world: PartsWorld) -> None:
    """1 MiB at most: one large value must not hold up the commands of other clients."""
    assert await world.put_outcome(1, 1, "users", b"x" * module.DATA_BYTES_MAX) is Put.STORED
    with pytest.raises(Rejected) as refused:
        await world.put(1, 1, "tags", b"x" * (module.DATA_BYTES_MAX + 1))
    assert refused.value.code == "part_too_large"
    with pytest.raises(Rejected):
        await world.put(1, 1, "tags", b"", "x" * (module.NOTE_BYTES_MAX + 1))


# ---------------------------------------------------------------------- what other programs write


async def test_a_changed_count_or_mark_is_corrected(world: PartsWorld) -> None:
    """The count is the number of marks, and a mark without data does not count."""
    await world.put(1, 1, "users", b"data", "first")
    await world.redis.hincrby(world.parts.key(1), "queryDoneCount", 5)
    assert await world.put_outcome(1, 1, "users") is Put.ALREADY
    assert (await world.hash_of(1))[b"queryDoneCount"] == b"1"
    await world.redis.hdel(world.parts.key(1), "users")
    assert await world.get(1, 1, "users") is None
    assert await world.put(1, 1, "users", b"again", "second") == PutAnswer(Put.STORED, "second")
    assert await world.get(1, 1, "users") == b"again"
    await world.redis.hdel(world.parts.key(1), "done:users")
    assert await world.get(1, 1, "users") is None, "data without its mark is not there"
    assert await world.put(1, 1, "users", b"third", "third") == PutAnswer(Put.STORED, "third")


async def test_the_hash_of_another_record_with_the_same_id_is_left_alone(world: PartsWorld) -> None:
    """Two databases on one Redis both have a report 1: nothing is read, written or closed by the other one."""
    theirs = PartKey(1, 2, "users", "another nonce")
    await world.put(1, 1, "users", b"mine", "first")
    before = await world.hash_of(1)
    with pytest.raises(Unavailable) as refused:
        await world.parts.put(theirs, b"theirs", "", ttl=TTL)
    assert refused.value.code == "hash_not_ours"
    assert await world.parts.get(theirs._replace(epoch=1)) is None
    with capture_logs() as lines:
        await world.parts.close(1, "finished", nonce=theirs.nonce, ttl=TTL)
    assert [line["event"] for line in lines] == ["redis.hash_foreign"]
    assert await world.hash_of(1) == before
    await world.parts.close(1, "finished", nonce=NONCE, ttl=TTL)
    with pytest.raises(Unavailable):
        await world.parts.put(theirs, b"theirs", "", ttl=TTL)


FOREIGN: dict[str, Callable[[Any, str], Any]] = {
    "text": lambda redis, key: redis.set(key, "x"),
    "list": lambda redis, key: redis.rpush(key, "x"),
    "stray count": lambda redis, key: redis.hincrby(key, "queryDoneCount", 1),
    "a word": lambda redis, key: redis.hset(key, "epoch", "one"),
    "zero": lambda redis, key: redis.hset(key, "epoch", "0"),
    "negative": lambda redis, key: redis.hset(key, "epoch", "-1"),
    "fraction": lambda redis, key: redis.hset(key, "epoch", "1.0"),
    "hexadecimal": lambda redis, key: redis.hset(key, "epoch", "0x1"),
    "too long": lambda redis, key: redis.hset(key, "epoch", "1" * 16),
    "not utf-8": lambda redis, key: redis.hset(key, "epoch", b"\xff"),
}


@pytest.mark.parametrize("kind", FOREIGN)
async def test_foreign_data_under_the_key_stays_and_the_put_is_refused(world: PartsWorld, kind: str) -> None:
    """The error names the key; the foreign data is unchanged, and nothing is read out of it."""
    key = world.parts.key(1)
    await FOREIGN[kind](world.redis, key)
    before = await world.redis.dump(key)
    with pytest.raises(Unavailable) as refused:
        await world.put(1, 1, "users")
    assert refused.value.code == "hash_foreign"
    assert key in refused.value.message
    assert await world.get(1, 1, "users") is None
    await world.parts.touch([(1, 1)], ttl=TTL)
    assert await world.redis.dump(key) == before
    assert await world.ttl_ms(1) == -1


async def test_a_key_of_another_type_is_left_alone_with_a_line_in_the_log(world: PartsWorld) -> None:
    """Reading and closing log it."""
    await world.redis.set(world.parts.key(1), "x")
    with capture_logs() as lines:
        assert await world.get(1, 1, "users") is None
        await world.parts.close(1, "failed", nonce=NONCE, ttl=TTL)
    assert [(line["event"], line["key"]) for line in lines] == [("redis.hash_foreign", world.parts.key(1))] * 2
    assert await world.redis.get(world.parts.key(1)) == b"x"


# ---------------------------------------------------------------------- what the server does


async def test_a_put_whose_reply_was_lost_is_already_stored(redis_server: RedisServer) -> None:
    """The answer to the repeated put has the note of the first."""
    async with (
        TcpProxy("127.0.0.1", redis_server.port) as proxy,
        parts_world(proxy.rewrite(redis_server.url)) as world,
    ):
        await world.put(1, 1, "warm", b"[]")  # loads the script: a lost NOSCRIPT would be a put that was not done
        proxy.drop_replies()
        with pytest.raises(Unavailable, match="does not answer"):
            await world.put(1, 1, "users", b"[]", "mine")
        proxy.heal()
        assert await world.put(1, 1, "users", b"[]", "again") == PutAnswer(Put.ALREADY, "mine")


async def test_after_a_flush_a_part_is_missing(mortal_redis: RedisServer) -> None:
    """A lost part is missing instead of empty; a later put begins a hash with a time to live."""
    async with parts_world(mortal_redis.url) as world:
        await world.put(1, 1, "users", b"data")
        await world.redis.flushall()
        assert await world.get(1, 1, "users") is None
        assert await world.put_outcome(1, 2, "tags", b"new") is Put.STORED
        assert (await world.hash_of(1)).keys() == {b"record", b"epoch", b"tags", b"done:tags", b"queryDoneCount"}
        assert await world.ttl_ms(1) > 0


async def test_after_a_restart_without_persistence_parts_are_missing() -> None:
    """The scripts are lost as well: every call sends its script again, a touch of many hashes, too."""
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
            assert await world.put_outcome(1, 1, "users") is Put.STORED
            await world.redis.script_flush()
            await world.parts.touch([(1, 1), (2, 1), (3, 1)], ttl=TTL / 2)
            assert await world.ttl_ms(1) <= 300_000
            await world.redis.script_flush()
            await world.parts.close(1, "failed", nonce=NONCE, ttl=TTL)


async def test_a_killed_server_has_whole_parts_or_none(mortal_redis: RedisServer) -> None:
    """Kill -9 between any two writes: an answered put is kept, and every mark has its data and count."""
    async with parts_world(mortal_redis.url) as world:
        answered: set[int] = set()

        async def put_parts(first: int) -> None:
            number = first
            with suppress(Unavailable):
                while True:
                    await world.put(number, 1, "users", b"x" * 5000, "n")
                    await world.put(number, 1, "tags", b"y" * 5000, "n")
                    answered.add(number)
                    number += 4

        tasks = [asyncio.create_task(put_parts(first)) for first in range(1, 5)]
        await eventually_async(lambda: len(answered) > 100, what="a hundred reports have their parts")
        await asyncio.to_thread(mortal_redis.kill9)
        await asyncio.gather(*tasks)
        await asyncio.to_thread(mortal_redis.start)
        for number in range(1, max(answered) + 8):
            found = await world.hash_of(number)
            marks = [name for name in (b"users", b"tags") if b"done:" + name in found]
            if marks or found:
                assert {name: len(found[name]) for name in marks} == dict.fromkeys(marks, 5000)
                assert found[b"queryDoneCount"] == str(len(marks)).encode()
                assert await world.ttl_ms(number) > 0
            assert len(marks) == 2 or number not in answered, "what was answered was lost"


async def test_an_expired_hash_is_made_again_with_a_time_to_live(world: PartsWorld) -> None:
    """A plain ``HINCRBY`` would recreate it without a time to live."""
    await world.parts.put(PartKey(1, 1, "users", NONCE), b"data", "", ttl=SHORT)

    async def gone() -> bool:
        return await world.get(1, 1, "users") is None

    await eventually_async(gone)
    assert await world.hash_of(1) == {}
    assert await world.put_outcome(1, 1, "tags") is Put.STORED
    assert (await world.hash_of(1))[b"queryDoneCount"] == b"1"
    assert await world.ttl_ms(1) > 0


async def test_a_full_redis_refuses_puts_and_keeps_its_parts(mortal_redis: RedisServer) -> None:
    """Out of memory under noeviction: the error names it, nothing is half written, and stored parts can be read."""
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
        await world.parts.touch([(1, 1)], ttl=TTL)
        await world.parts.close(1, "failed", nonce=NONCE, ttl=TTL)
        assert await world.hash_of(1) == {b"record": NONCE.encode(), b"status": b"failed"}
        await world.redis.config_set("maxmemory", 0)
        assert await world.put_outcome(2, 1, "users") is Put.STORED


async def test_a_replica_and_a_stopped_server_are_unavailable(mortal_redis: RedisServer) -> None:
    """Every method raises it within seconds, with the server's own message."""
    async with parts_world(mortal_redis.url) as world:
        await world.put(1, 1, "users")
        await world.redis.replicaof("127.0.0.1", "1")
        calls: list[Callable[[], Any]] = [
            lambda: world.put(1, 1, "tags"),
            lambda: world.parts.touch([(2, 1), (1, 1)], ttl=TTL),
            lambda: world.parts.close(1, "failed", nonce=NONCE, ttl=TTL),
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
    """No hash tag is needed; a slot that no node serves is an error."""
    with started(RedisServer({"cluster-enabled": "yes", "cluster-port": str(free_port())})) as server:
        async with parts_world(server.url) as world:
            with pytest.raises(Unavailable, match="ot served"):
                await world.put(1, 1, "users")
            await world.redis.cluster("ADDSLOTSRANGE", 0, 16383)

            async def serves() -> bool:
                with suppress(Unavailable):
                    return await world.put_outcome(1, 1, "users") in {Put.STORED, Put.ALREADY}
                return False

            await eventually_async(serves, 30)
            for number in range(2, 30):
                assert await world.put_outcome(number, 1, "users") is Put.STORED
            await world.parts.touch([(number, 1) for number in range(1, 30)], ttl=TTL / 2)
            assert await world.ttl_ms(29) <= 300_000
            await world.parts.close(29, "finished", nonce=NONCE, ttl=TTL)


async def test_a_cluster_node_without_the_key_names_the_node_that_has_it() -> None:
    """The client follows no redirection: the error names the slot and the node."""
    ports = [free_port(), free_port()]
    servers = [RedisServer({"cluster-enabled": "yes", "cluster-port": str(port)}) for port in ports]
    with started(servers[0]), started(servers[1]):
        async with parts_world(servers[0].url) as one, parts_world(servers[1].url, one.prefix) as other:
            await one.redis.cluster("ADDSLOTSRANGE", 0, 8191)
            await other.redis.cluster("ADDSLOTSRANGE", 8192, 16383)
            await one.redis.cluster("MEET", "127.0.0.1", servers[1].port, ports[1])

            async def whole() -> bool:
                infos = [await world.redis.cluster("INFO") for world in (one, other)]
                return all(facts["cluster_state"] == "ok" and facts["cluster_slots_ok"] == "16384" for facts in infos)

            await eventually_async(whole, 60)
            for number in range(1, 21):
                slot = await one.redis.cluster("KEYSLOT", one.parts.key(number))
                here, there = (one, other) if slot < 8192 else (other, one)
                assert await here.put_outcome(number, 1, "users") is Put.STORED
                with pytest.raises(Unavailable, match=f"{slot} 127.0.0.1:"):
                    await there.put(number, 1, "tags")
                with pytest.raises(Unavailable):
                    await there.get(number, 1, "users")


async def test_a_redis_user_needs_no_more_rights_than_the_readme_names(mortal_redis: RedisServer) -> None:
    """It names keys and commands; with these alone every method of parts works."""
    page = Path(module.__file__).with_name("README.md").read_text(encoding="utf-8")
    [(keys, commands)] = re.findall(r"^`~(FileDownloadRecordEntity-\*) ([^`]+)`", page, re.MULTILINE)
    async with Redis.from_url(mortal_redis.url) as redis:
        await redis.acl_setuser("limited", enabled=True, passwords=["+secret"], keys=[keys], commands=commands.split())
    async with parts_world(mortal_redis.url.replace("redis://", "redis://limited:secret@"), "") as world:
        assert await world.put_outcome(1, 1, "users", b"x") is Put.STORED
        assert await world.put_outcome(1, 2, "users", b"x") is Put.STORED
        assert await world.put_outcome(1, 2, "users", b"y") is Put.ALREADY
        assert await world.put_outcome(1, 1, "users", b"y") is Put.STALE
        assert await world.get(1, 2, "users") == b"x"
        await world.parts.touch([(1, 2), (2, 1)], ttl=TTL)
        await world.parts.close(1, "finished", nonce=NONCE, ttl=TTL)


# ---------------------------------------------------------------------- mutants


def mutant(*changes: tuple[str, str]) -> Script:
    """Return the script of puts without a guard."""
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
    "overwrites the first part": (check_counted_once, lambda: mutant(("if code == 0 then", "if true then"))),
    "no time to live": (check_always_a_time_to_live, lambda: mutant(("redis.call('PEXPIRE', key, life)", ""))),
    "no time to live after a late put": (
        check_always_a_time_to_live,
        lambda: mutant(("redis.call('PTTL', key) < 0", "false")),
    ),
    "takes an older epoch": (
        check_epochs_never_mix,
        lambda: mutant(("known[2] or tonumber(known[1]) > tonumber(epoch)", "known[2]")),
    ),
    "keeps parts of the previous epoch": (check_epochs_never_mix, lambda: mutant(("redis.call('DEL', key)", ""))),
    "compares epochs as texts": (
        check_epochs_never_mix,
        lambda: mutant(("tonumber(known[1]) > tonumber(epoch)", "known[1] > epoch")),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
async def test_the_mutants_are_caught(world: PartsWorld, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Without a guard of the script, its check fails."""
    check, make = MUTANTS[name]
    monkeypatch.setattr(module, "_PUT", make())
    with pytest.raises(AssertionError):
        await check(world)
