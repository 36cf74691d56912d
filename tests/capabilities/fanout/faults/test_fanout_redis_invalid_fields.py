"""Foreign values under fan-out's keys in Redis affect only themselves; a Redis that refuses commands loses nothing."""

from collections import Counter
from datetime import timedelta
from itertools import count

import asyncpg
import pytest

from kit.fanout import MODULE, Hub, fanout_world
from kit.redis_fanout import begin_one, end_one, fresh_prefix, redis_link
from kit.servers import RedisServer
from kit.waiting import eventually_async
from tickwright.capabilities.fanout.consumer.run_claims import LedgerRunClaims, TwoStoreRunClaims
from tickwright.ports.fanout import EntityWindow, Mark, MarkClaim, Run, RunStart
from tickwright.store.pool import open_pool
from tickwright.transports.redis.stores import RedisMarks, RedisRunClaims, runs_key

WINDOW = 1_795_255_200
LEASE = timedelta(seconds=60)
NO_INSTANTS = ["abc", "", "nan", "inf", "-inf", "1e300", "-1e300", "-1", "9" * 400, b"\xff", "7258118400"]
CURSOR = "SELECT last_window_at FROM tickwright.fanout_cursors WHERE entity_code = 'E1'"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("E2|LOCATIONS", "garbage"),
        ("E2|LOCATIONS", ""),
        ("E2|LOCATIONS", f"{WINDOW}|nan"),
        ("E2|LOCATIONS", f"{WINDOW}|inf"),
        ("E2|LOCATIONS", f"{10**30}|1.0"),
        ("E2|LOCATIONS", f"-1|{WINDOW}.5"),
        ("E%00|LOCATIONS", f"{WINDOW}|{WINDOW}.5"),
        ("E2|%00", f"{WINDOW}|{WINDOW}.5"),
        ("%452|LOCATIONS", f"{WINDOW}|{WINDOW}.5"),
        ("E%ff|LOCATIONS", f"{WINDOW}|{WINDOW}.5"),
        ("E2|LOCATIONS", f" {WINDOW}|{WINDOW}.50"),
        (b"\xff|LOCATIONS", f"{WINDOW}|{WINDOW}.5"),
        ("E2|LOCATIONS", b"\xff"),
    ],
)
async def test_a_foreign_success_stops_no_other(
    redis_server: RedisServer, database_url: str, field: str | bytes, value: str | bytes
) -> None:
    """It is dropped with a log line; the ledger gets the others, and the consumer does not crash."""
    prefix = fresh_prefix()
    pool: asyncpg.Pool = await open_pool(database_url, max_size=2)
    async with redis_link(redis_server.url) as link:
        carry = f"{prefix}:carry"
        await link._client.hset(carry, mapping={field: value, "E1|LOCATIONS": f"{WINDOW}|{WINDOW}.5"})
        assert await TwoStoreRunClaims(RedisRunClaims(link, prefix=prefix), LedgerRunClaims(pool)).carry() == 0
        assert await link._client.hlen(carry) == 0
    assert (await pool.fetchval(CURSOR)).timestamp() == WINDOW
    await pool.close()


@pytest.mark.parametrize("value", NO_INSTANTS)
async def test_a_last_success_that_is_no_instant_is_none(redis_server: RedisServer, value: str | bytes) -> None:
    """The scheduler and the consumer get no last success, and no error."""
    prefix = fresh_prefix()
    async with redis_link(redis_server.url) as link:
        await link._client.hset(runs_key(prefix, "E1"), "s:LOCATIONS", value)
        marks, runs = RedisMarks(link, prefix=prefix), RedisRunClaims(link, prefix=prefix)
        assert await marks.claim([EntityWindow("E1", "LOCATIONS", WINDOW)], "token", LEASE) == [
            MarkClaim(Mark.MINE, None)
        ]
        begun = await begin_one(runs, Run("E1", "LOCATIONS", WINDOW, 4), 1)
        assert (begun.start, begun.last_success_s) == (RunStart.BEGUN, None)


@pytest.mark.parametrize("value", [*NO_INSTANTS, f"7:7:{'9' * 18}", "7:7:", f"{WINDOW * 1000}"])
@pytest.mark.parametrize("field", ["c:LOCATIONS", "c:OTHER", "d:LOCATIONS", "n"])
async def test_a_foreign_claim_stops_no_run(redis_server: RedisServer, field: str, value: str | bytes) -> None:
    """It counts as absent, also where it has no end: otherwise no run of the entity would ever begin again."""
    prefix = fresh_prefix()
    async with redis_link(redis_server.url) as link:
        await link._client.hset(runs_key(prefix, "E1"), field, value)
        runs, run = RedisRunClaims(link, prefix=prefix), Run("E1", "LOCATIONS", WINDOW, 1)
        begun = await begin_one(runs, run, 1)
        assert begun.start is RunStart.BEGUN
        assert begun.begun_s * 1e6 - 1 <= begun.fence <= begun.begun_s * 1e6 + 1, "the fence starts at the clock"
        assert await end_one(runs, run, begun, 1)


@pytest.mark.matrix
@pytest.mark.parametrize("value", ["abc", "nan", "1e300", b"\xff", None])
async def test_fan_out_goes_on_with_invalid_values_in_redis(
    redis_server: RedisServer, database_url: str, value: str | bytes | None
) -> None:
    """A value that is no instant, and keys that are no hashes: every task is published and runs."""
    codes = ["E1", "E2", "E3"]
    async with fanout_world(database_url, None, redis_server.url) as world, redis_link(redis_server.url) as link:
        await world.put_module()
        await world.put_entities(codes)
        if value is None:
            await link._client.mset({runs_key(world.prefix, "E1"): "text", f"{world.prefix}:carry": "text"})
        else:
            await link._client.hset(runs_key(world.prefix, "E1"), f"s:{MODULE}", value)
        hub = Hub()
        async with world.scheduler(), world.consumer({MODULE: hub}):
            await eventually_async(lambda: set(hub.codes) >= set(codes), what="all run")


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("refuse", "allow"),
    [
        ("ACL SETUSER default -eval -evalsha", "ACL SETUSER default +eval +evalsha"),
        ("ACL SETUSER default -set -hset", "ACL SETUSER default +set +hset"),
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
        ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
    ],
    ids=["NOPERM", "NOPERM in a script", "READONLY", "OOM"],
)
async def test_a_redis_that_refuses_commands_loses_no_task_and_is_used_again(
    mortal_redis: RedisServer, database_url: str, refuse: str, allow: str
) -> None:
    """The ledger decides meanwhile: each task runs once; later claims are in Redis again."""
    codes = ["E1", "E2", "E3"]
    async with fanout_world(database_url, None, mortal_redis.url) as world, redis_link(mortal_redis.url) as link:
        await world.put_module()
        await world.put_entities(codes)
        more = count()

        async def is_used_again() -> bool:
            await world.put_entities([f"MORE{next(more)}"])
            return bool(await link._client.keys(f"{world.prefix}:publish:*"))

        hub = Hub()
        await link._client.execute_command(*refuse.split())
        try:
            async with world.scheduler(), world.consumer({MODULE: hub}):
                await eventually_async(lambda: set(hub.codes) >= set(codes), what="all run")
                assert not await link._client.keys(f"{world.prefix}:*")
                await link._client.execute_command(*allow.split())
                await eventually_async(is_used_again, 20, what="Redis is used again")
        finally:
            await link._client.execute_command(*allow.split())
    assert max(Counter(hub.ended).values()) == 1
