"""Redis is flushed, killed, full or silent, the database unavailable: no window is lost, none runs twice."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

import tickwright.transports.redis
from kit.certificates import Authority
from kit.mutants import mutate
from kit.ports import free_port
from kit.redis_fanout import LONG, begin_one, end_one, fresh_prefix, open_session, redis_link, start_of
from kit.servers import PostgresServer, RedisServer, started
from kit.tcp_proxy import TcpProxy
from kit.waiting import eventually_async
from tickwright.capabilities.fanout.consumer.run_claims import LedgerRunClaims, TwoStoreRunClaims
from tickwright.capabilities.fanout.scheduler.marks import FallbackMarks, LedgerMarks
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.ports.fanout import EntityWindow, HeldRun, Mark, Marks, Run, RunStart
from tickwright.store.migrate import migrate
from tickwright.store.pool import open_pool
from tickwright.transports.redis.connection import CONNECTIONS_MAX, RedisClient, claim_prefix
from tickwright.transports.redis.stores import RedisMarks, RedisRunClaims

WINDOW = 1_700_000_000
HOUR = timedelta(hours=1)
PLACES = [EntityWindow(f"E{number}", "LOCATIONS", WINDOW) for number in range(40)]
RUN = Run("E1", "LOCATIONS", WINDOW, 1)
NEXT = RUN._replace(window_s=WINDOW + 900)
CURSOR = "SELECT * FROM tickwright.fanout_cursors WHERE entity_code = 'E1' AND task_type = 'LOCATIONS'"
COUNTS = "SELECT succeeded, failed FROM tickwright.fanout_windows WHERE window_at = to_timestamp($1)"


async def test_a_cancellation_while_it_connects_is_not_lost(redis_server: RedisServer) -> None:
    """The client swallows one in five that come while it connects; a loop that should end would go on."""
    went_on = 0
    for turns in range(300):
        link = RedisClient(redis_server.url)

        async def ask(link: RedisClient) -> None:
            nonlocal went_on
            await link.check()
            me = asyncio.current_task()
            went_on += me is None or me.cancelling()

        task = asyncio.create_task(ask(link))
        for _ in range(turns % 30):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await link.aclose()
    assert went_on == 0


async def check_failover() -> None:
    """Fill the pool, point the name to another server, and make the old one a replica."""
    ttl = timedelta(seconds=10)
    async with AsyncExitStack() as stack:
        old, new = (stack.enter_context(started(RedisServer())) for _ in range(2))
        proxy = await stack.enter_async_context(TcpProxy("127.0.0.1", old.port))
        link = RedisClient(proxy.rewrite(old.url))
        stack.push_async_callback(link.aclose)
        marks = RedisMarks(link, prefix="p")

        async def claims(token: str) -> list[object]:
            calls = [marks.claim([EntityWindow(token, "M", number)], "t", ttl) for number in range(2 * CONNECTIONS_MAX)]
            return await asyncio.gather(*calls, return_exceptions=True)

        assert not any(isinstance(one, BaseException) for one in await claims("first"))
        proxy.lead_to("127.0.0.1", new.port)
        client: Any = Redis.from_url(old.url)
        await client.execute_command("REPLICAOF", "127.0.0.1", new.port)
        await client.aclose()
        assert any(isinstance(one, Unavailable) for one in await claims("second"))
        assert not any(isinstance(one, BaseException) for one in await claims("third"))


async def test_connections_to_a_primary_that_became_a_replica_are_dropped() -> None:
    """They stay open and answer; one refusal drops all of them, also those that were in use."""
    await check_failover()


async def test_the_suite_notices_kept_connections_to_a_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: the client keeps using the server that refused."""
    mutate(monkeypatch, RedisClient._translated, "await self._reconnect()", "pass")
    with pytest.raises(AssertionError):
        await check_failover()


@dataclass
class Two:
    """Two consumers, or schedulers, on one Redis and one database, behind a proxy for each server."""

    redis: TcpProxy
    database: TcpProxy
    pool: asyncpg.Pool
    pools: list[asyncpg.Pool]
    links: list[RedisClient]
    prefix: str
    owners: list[int]

    def runs(self) -> list[TwoStoreRunClaims]:
        """Return the run claims of each."""
        pairs = zip(self.links, self.pools, strict=True)
        return [
            TwoStoreRunClaims(RedisRunClaims(link, prefix=self.prefix), LedgerRunClaims(pool)) for link, pool in pairs
        ]

    def marks(self) -> list[FallbackMarks]:
        """Return the marks of each."""
        pairs = zip(self.links, self.pools, strict=True)
        return [FallbackMarks(RedisMarks(link, prefix=self.prefix), LedgerMarks(pool)) for link, pool in pairs]


@pytest.fixture
async def two(mortal_redis: RedisServer, database_url: str) -> AsyncIterator[Two]:
    """Clients of two processes, and a connection that no fault touches."""
    async with TcpProxy("127.0.0.1", mortal_redis.port) as redis, TcpProxy(*_place(database_url)) as database:
        pool = await open_pool(database_url, max_size=2)
        pools = [await open_pool(database.rewrite(database_url), max_size=2) for _ in range(2)]
        links = [RedisClient(redis.rewrite(mortal_redis.url)) for _ in range(2)]
        owners = [await open_session(pool) for _ in range(2)]
        yield Two(redis, database, pool, pools, links, fresh_prefix(), owners)
        for link in links:
            await link.aclose()
        for broken in pools:
            broken.terminate()
        await pool.close()


def _place(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 0


def cut_off(proxy: TcpProxy) -> None:
    """Make a server unreachable at once."""
    proxy.refuse()
    proxy.reset()


async def mark_of(marks: Marks, place: EntityWindow, token: str) -> Mark:
    """Claim one window of an entity."""
    [claimed] = await marks.claim([place], token, LONG)
    return claimed.mark


async def begins(store: TwoStoreRunClaims, run: Run, owner: int) -> bool:
    """Return whether a run begins now; false as well while no store answers."""
    try:
        return await start_of(store, run, owner) is RunStart.BEGUN
    except Unavailable:
        return False


async def carried(store: TwoStoreRunClaims) -> bool:
    """Return whether every end is carried over to the ledger."""
    try:
        return await store.carry() == 0
    except Unavailable:
        return False


# ---------------------------------------------------------------------- marks


async def test_a_claim_whose_reply_was_lost_succeeds_when_it_is_repeated(redis_server: RedisServer) -> None:
    """A scheduler's own claim is never read as another one's: the window would be skipped."""
    async with TcpProxy("127.0.0.1", redis_server.port) as proxy, redis_link(proxy.rewrite(redis_server.url)) as link:
        prefix = fresh_prefix()
        marks = RedisMarks(link, prefix=prefix)
        await marks.claim(PLACES[1:], "a", LONG)
        proxy.drop_replies()
        with pytest.raises(Unavailable, match="Redis does not answer"):
            await marks.claim(PLACES[:1], "a", LONG)
        proxy.heal()
        async with Redis.from_url(redis_server.url) as redis:
            assert await redis.get(f"{prefix}:publish:E0:LOCATIONS:{WINDOW}") == b"p:a", "the claim did not arrive"
        assert await mark_of(marks, PLACES[0], "b") is Mark.TAKEN
        assert await mark_of(marks, PLACES[0], "a") is Mark.MINE


async def test_no_command_is_sent_twice(redis_server: RedisServer) -> None:
    """The library repeats nothing by itself: one call is one script, even if the connection breaks during it."""
    async with TcpProxy("127.0.0.1", redis_server.port) as proxy, redis_link(proxy.rewrite(redis_server.url)) as link:
        runs = RedisRunClaims(link, prefix=fresh_prefix())
        await start_of(runs, NEXT._replace(entity_code="warm"), 1)
        proxy.cut_after(1, "to_client")
        with pytest.raises(Unavailable):
            await runs.begin([RUN], 1)
        proxy.heal()
        assert await start_of(runs, RUN, 1) is RunStart.BUSY, "the claim did not arrive"
        assert proxy.accepted_count == 2


async def test_a_flush_in_the_middle_publishes_twice_at_worst_and_runs_once(
    two: Two, mortal_redis: RedisServer
) -> None:
    """FLUSHALL between seal and the next check: the second message is a duplicate that the ledger refuses."""
    (first, second), consumers = two.marks(), two.runs()
    assert {one.mark for one in await first.claim(PLACES, "a", LONG)} == {Mark.MINE}
    assert await first.seal(PLACES, "a", keep=HOUR) == 0
    begun = await begin_one(consumers[0], RUN, two.owners[0])
    async with Redis.from_url(mortal_redis.url) as redis:
        await redis.flushall()
    assert {one.mark for one in await second.claim(PLACES, "b", LONG)} == {Mark.MINE}
    assert await start_of(consumers[1], RUN, two.owners[1]) is RunStart.BUSY
    assert await consumers[0].renew([HeldRun(RUN, begun)], two.owners[0]) == [True]
    assert await end_one(consumers[0], RUN, begun, two.owners[0])
    assert await start_of(consumers[1], RUN, two.owners[1]) is RunStart.DONE
    assert tuple(await two.pool.fetchrow(COUNTS, WINDOW)) == (1, 0)
    assert await start_of(consumers[1], NEXT, two.owners[1]) is RunStart.BEGUN, "a claim was not released in Redis"


async def test_without_redis_the_ledger_decides_and_redis_catches_up_when_it_is_back(
    two: Two, mortal_redis: RedisServer
) -> None:
    """Redis is killed between two chunks: every window stays one scheduler's, and published ones stay published."""
    first, second = two.marks()
    assert {one.mark for one in await first.claim(PLACES[:10], "a", LONG)} == {Mark.MINE}
    await asyncio.to_thread(mortal_redis.kill9)
    assert {one.mark for one in await first.claim(PLACES[10:], "a", LONG)} == {Mark.MINE}
    assert {one.mark for one in await second.claim(PLACES[10:], "b", LONG)} == {Mark.TAKEN}
    assert await first.seal(PLACES, "a", keep=HOUR) == 0
    assert {one.mark for one in await second.claim(PLACES, "b", LONG)} == {Mark.SEALED}
    await asyncio.to_thread(mortal_redis.start)

    async def sealed_in_redis() -> bool:
        await first.claim(PLACES[:1], "a", LONG)
        async with Redis.from_url(mortal_redis.url) as redis:
            keys = [f"{two.prefix}:publish:{place.entity_code}:LOCATIONS:{WINDOW}" for place in PLACES]
            return set(await redis.mget(keys)) == {b"d:a"}

    await eventually_async(sealed_in_redis)
    assert {one.mark for one in await two.marks()[1].claim(PLACES, "c", LONG)} == {Mark.SEALED}


async def test_an_unpublished_claim_is_released_in_the_store_that_granted_it(
    two: Two, mortal_redis: RedisServer
) -> None:
    """The release goes where the claim was, also when Redis failed or came back in between."""
    first, second = two.marks()
    cut_off(two.redis)
    assert await mark_of(first, PLACES[0], "a") is Mark.MINE
    await first.release(PLACES[:1], "a")
    assert await mark_of(second, PLACES[0], "b") is Mark.MINE
    two.redis.heal()

    async def redis_decides() -> bool:
        await first.claim(PLACES[1:2], "a", LONG)
        async with Redis.from_url(mortal_redis.url) as redis:
            return bool(await redis.exists(f"{two.prefix}:publish:E1:LOCATIONS:{WINDOW}"))

    await eventually_async(redis_decides)
    await first.release(PLACES[1:2], "a")
    assert await mark_of(two.marks()[1], PLACES[1], "c") is Mark.MINE


async def test_a_full_redis_counts_as_unavailable(two: Two, mortal_redis: RedisServer) -> None:
    """Out of memory under noeviction: the ledger decides, with one line in the log and one when it is over."""
    first, second = two.marks()
    async with Redis.from_url(mortal_redis.url) as redis:
        await redis.config_set("maxmemory", 1)
        with capture_logs() as lines:
            for _ in range(3):
                assert await mark_of(first, PLACES[0], "a") is Mark.MINE
            assert await mark_of(second, PLACES[0], "b") is Mark.TAKEN
            await redis.config_set("maxmemory", 0)

            async def redis_is_back() -> bool:
                await first.claim(PLACES[1:2], "a", LONG)
                return any(line["event"] == "fanout.marks_redis_available" for line in lines)

            await eventually_async(redis_is_back)
    assert [line["event"] for line in lines].count("fanout.marks_redis_unavailable") == 2  # one for each scheduler


@pytest.mark.matrix
@pytest.mark.parametrize("each_way_s", [0.1, 2.0])
async def test_a_distant_redis_decides_slowly_or_counts_as_unavailable(two: Two, each_way_s: float) -> None:
    """Within its bound of a second it decides; beyond it the ledger does, and late answers change nothing."""
    (first, second), consumers = two.marks(), two.runs()
    two.redis.delay(each_way_s)
    with capture_logs() as lines:
        assert {one.mark for one in await first.claim(PLACES, "a", LONG)} == {Mark.MINE}
        assert {one.mark for one in await second.claim(PLACES, "b", LONG)} == {Mark.TAKEN}
        assert await first.seal(PLACES, "a", keep=HOUR) == 0
    assert any(line["event"] == "fanout.marks_redis_unavailable" for line in lines) == (each_way_s > 1)
    begun = await begin_one(consumers[0], RUN, two.owners[0])
    assert await start_of(consumers[1], RUN, two.owners[1]) is RunStart.BUSY
    assert await end_one(consumers[0], RUN, begun, two.owners[0])
    two.redis.heal()
    assert await start_of(consumers[1], RUN, two.owners[1]) is RunStart.DONE
    assert tuple(await two.pool.fetchrow(COUNTS, WINDOW)) == (1, 0)


async def test_with_both_stores_unavailable_claiming_marks_fails(two: Two) -> None:
    """Then nothing is published: an answer would be a guess."""
    cut_off(two.redis)
    cut_off(two.database)
    with pytest.raises(Unavailable):
        await two.marks()[0].claim(PLACES, "a", LONG)


# ---------------------------------------------------------------------- runs


async def test_a_killed_database_stops_no_consumer_and_gets_every_end_later(mortal_redis: RedisServer) -> None:
    """Kill -9 of PostgreSQL: tasks run on Redis alone, one at a time and none twice; the cursors get the ends later."""
    prefix = fresh_prefix()
    with started(PostgresServer()) as server:
        url = server.create_database("fanout")
        await asyncio.to_thread(migrate, url)
        pool = await open_pool(url, max_size=3)
        owners = [await open_session(pool) for _ in range(2)]
        async with redis_link(mortal_redis.url) as link:
            first, second = (
                TwoStoreRunClaims(RedisRunClaims(link, prefix=prefix), LedgerRunClaims(pool)) for _ in range(2)
            )
            begun = await begin_one(first, RUN, owners[0])
            await asyncio.to_thread(server.kill9)
            assert await first.renew([HeldRun(RUN, begun)], owners[0]) == [True]
            assert await start_of(second, RUN, owners[1]) is RunStart.BUSY
            assert await end_one(first, RUN, begun, 0), "the token is lost with the database, the run is not"
            assert await start_of(second, RUN, 0) is RunStart.DONE
            following = await begin_one(second, NEXT, 0)
            assert following.last_success_s == pytest.approx(begun.begun_s, abs=1e-5)
            assert await start_of(first, NEXT, 0) is RunStart.BUSY
            assert await end_one(second, NEXT, following, 0)
            await asyncio.to_thread(server.start)
            await eventually_async(lambda: carried(second), 20)
            await eventually_async(lambda: carried(first), 20)
            row = await pool.fetchrow(CURSOR)
            assert row["last_window_at"].timestamp() == NEXT.window_s
            assert row["last_success_at"].timestamp() == pytest.approx(following.begun_s, abs=1e-5)
            assert row["owner"] is None, "a claim from before the kill is still there"
            assert tuple(await pool.fetchrow(COUNTS, NEXT.window_s)) == (1, 0)
            assert await RedisRunClaims(link, prefix=prefix).carried(10) == []
        await pool.close()


async def test_a_run_begun_in_redis_alone_stays_the_only_one_when_the_database_is_back(two: Two) -> None:
    """Redis is asked first, so a change of mode lets no second run begin beside it."""
    first, second = two.runs()
    cut_off(two.database)
    alone = await begin_one(first, RUN, 0)
    assert alone.start is RunStart.BEGUN
    two.database.heal()
    await eventually_async(lambda: begins(second, RUN._replace(entity_code="E2"), two.owners[1]))
    assert await start_of(second, RUN, two.owners[1]) is RunStart.BUSY
    assert await first.renew([HeldRun(RUN, alone)], two.owners[0]) == [True]
    assert await end_one(first, RUN, alone, two.owners[0])
    await eventually_async(lambda: carried(second))
    assert await start_of(second, RUN, two.owners[1]) is RunStart.DONE
    assert (await two.pool.fetchrow(CURSOR))["last_window_at"].timestamp() == WINDOW


async def test_a_run_begun_in_the_ledger_alone_stays_the_only_one_when_redis_is_back(two: Two) -> None:
    """The ledger refuses a second run, and its claim in Redis is released, so that it does not outlast the first."""
    first, second = two.runs()
    cut_off(two.redis)
    alone = await begin_one(first, RUN, two.owners[0])
    assert alone.start is RunStart.BEGUN
    assert await start_of(second, RUN, two.owners[1]) is RunStart.BUSY
    two.redis.heal()
    fresh = two.runs()[1]
    assert await start_of(fresh, RUN, two.owners[1]) is RunStart.BUSY
    assert await end_one(first, RUN, alone, two.owners[0])
    assert await start_of(fresh, NEXT, two.owners[1]) is RunStart.BEGUN


async def test_an_end_without_a_store_is_kept_and_written_later(two: Two) -> None:
    """With both stores unavailable nothing begins, but runs end: the ledger gets each end once, when it is back."""
    first, second = two.runs()
    begun, other = await begin_one(first, RUN, two.owners[0]), RUN._replace(entity_code="E2")
    failing = await begin_one(first, other, two.owners[0])
    cut_off(two.redis)
    cut_off(two.database)
    with pytest.raises(Unavailable):
        await first.begin([NEXT], two.owners[0])
    assert await end_one(first, RUN, begun, two.owners[0])
    assert await end_one(first, other, failing, 0, error="no luck")
    assert not await carried(first)
    two.database.heal()
    await eventually_async(lambda: carried(first))
    assert tuple(await two.pool.fetchrow(COUNTS, WINDOW)) == (1, 1)
    assert await start_of(second, RUN, two.owners[1]) is RunStart.DONE
    assert await start_of(second, other, two.owners[1]) is RunStart.BEGUN


async def test_a_success_of_a_run_in_redis_alone_reaches_the_ledger_without_redis(two: Two) -> None:
    """RunClaim without the database, ended without Redis: the consumer keeps it until the database is back."""
    first, second = two.runs()
    cut_off(two.database)
    begun = await begin_one(first, RUN, 0)
    cut_off(two.redis)
    assert await end_one(first, RUN, begun, 0)
    two.database.heal()
    await eventually_async(lambda: carried(first))
    assert await start_of(second, RUN, two.owners[1]) is RunStart.DONE
    assert tuple(await two.pool.fetchrow(COUNTS, WINDOW)) == (1, 0)


async def test_a_session_lost_with_the_database_does_not_cost_the_run(two: Two) -> None:
    """The ledger reclaimed it while this process had no database; Redis proves that no consumer has run it since."""
    first, second = two.runs()
    begun = await begin_one(first, RUN, two.owners[0])
    async with two.pool.acquire() as connection, connection.transaction():
        await LedgerRunClaims(two.pool).reclaim(connection, [two.owners[0]])
    assert await start_of(second, RUN, two.owners[1]) is RunStart.BUSY
    assert await first.renew([HeldRun(RUN, begun)], two.owners[0]) == [True]
    assert await end_one(first, RUN, begun, two.owners[0])
    await eventually_async(lambda: carried(second))
    assert await start_of(second, RUN, two.owners[1]) is RunStart.DONE


async def test_a_zombie_whose_claims_are_gone_from_both_stores_ends_nothing(
    two: Two, mortal_redis: RedisServer
) -> None:
    """Its run was reclaimed in the ledger and begun by another consumer: its end and its renewal are refused."""
    first, second = two.runs()
    begun = await begin_one(first, RUN, two.owners[0])
    async with two.pool.acquire() as connection, connection.transaction():
        await LedgerRunClaims(two.pool).reclaim(connection, [two.owners[0]])
    async with Redis.from_url(mortal_redis.url) as redis:
        await redis.flushall()
    heir = await begin_one(second, RUN, two.owners[1])
    assert heir.start is RunStart.BEGUN
    assert await first.renew([HeldRun(RUN, begun)], two.owners[0]) == [False]
    assert not await end_one(first, RUN, begun, two.owners[0]), "a zombie ended its heir's run"
    assert await second.renew([HeldRun(RUN, heir)], two.owners[1]) == [True]
    assert await end_one(second, RUN, heir, two.owners[1])


async def test_a_silent_database_delays_a_task_by_seconds_only(two: Two) -> None:
    """It answers nothing and breaks nothing: after a bound the consumer goes on with Redis, the next time at once."""
    first, _ = two.runs()
    await begin_one(first, RUN, two.owners[0])
    two.database.blackhole()
    loop = asyncio.get_running_loop()
    asked = loop.time()
    assert (await begin_one(first, RUN._replace(entity_code="E2"), 0)).start is RunStart.BEGUN
    assert loop.time() - asked < 50
    asked = loop.time()
    assert (await begin_one(first, RUN._replace(entity_code="E3"), 0)).start is RunStart.BEGUN
    assert loop.time() - asked < 50


async def test_without_redis_the_ledger_decides_everything(two: Two) -> None:
    """An installation without Redis has one store; while it is unavailable nothing begins."""
    marks, runs = FallbackMarks(None, LedgerMarks(two.pools[0])), TwoStoreRunClaims(None, LedgerRunClaims(two.pools[0]))
    assert await mark_of(marks, PLACES[0], "a") is Mark.MINE
    assert await marks.seal(PLACES[:1], "a", keep=HOUR) == 0
    assert await mark_of(marks, PLACES[0], "b") is Mark.SEALED
    await marks.claim(PLACES[1:2], "a", LONG)
    await marks.release(PLACES[1:2], "a")
    begun = await begin_one(runs, RUN, two.owners[0])
    cut_off(two.database)
    assert await end_one(runs, RUN, begun, two.owners[0])
    with pytest.raises(Unavailable):
        await runs.begin([NEXT], two.owners[0])
    with pytest.raises(Unavailable):
        await runs.renew([HeldRun(RUN, begun)], two.owners[0])
    two.database.heal()
    await eventually_async(lambda: carried(runs))
    assert await start_of(runs, RUN, two.owners[1]) is RunStart.DONE


# ---------------------------------------------------------------------- the server itself


async def test_a_redis_that_may_evict_is_refused(mortal_redis: RedisServer) -> None:
    """It could evict publish marks; without an append-only file it is taken, with a warning."""
    async with redis_link(mortal_redis.url) as link, Redis.from_url(mortal_redis.url) as redis:
        with capture_logs() as lines:
            await link.check()
            assert lines == []
            await redis.config_set("appendonly", "no")
            await link.check()
            assert [line["event"] for line in lines] == ["redis.not_durable"]
        await redis.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(Rejected, match="noeviction") as refused:
            await link.check()
        assert refused.value.code == "redis_may_evict"


async def test_a_password_authenticates_and_is_never_shown() -> None:
    """Neither in the URL that is logged nor in errors; the error for missing rights says what to allow."""
    with started(RedisServer()) as server:
        async with Redis.from_url(server.url) as redis:
            await redis.acl_setuser("poor", enabled=True, passwords=["+s3cret"], commands=["+@all", "-info"])
            await redis.config_set("requirepass", "s3cret")
        address = f"127.0.0.1:{server.port}/0"
        async with redis_link(f"redis://:s3cret@{address}") as link:
            await link.check()
            assert link.shown_url == f"redis://:***@{address}"
        async with redis_link(f"redis://:wr0ng@{address}") as link:
            with pytest.raises(Unavailable) as refused:
                await link.check()
            assert "wr0ng" not in refused.value.message
        async with redis_link(f"redis://poor:s3cret@{address}") as link:
            with pytest.raises(Rejected, match="INFO") as forbidden:
                await link.check()
            assert "s3cret" not in forbidden.value.message


async def test_the_documented_rights_are_enough(mortal_redis: RedisServer) -> None:
    """A user with those rights alone claims the prefix, seals, runs and carries over; other keys are closed to it."""
    page = (Path(tickwright.transports.redis.__file__).parent / "README.md").read_text(encoding="utf-8")
    [rights] = re.findall(r"^`(~gocpi:\* [^`]+)`", page, re.MULTILINE)
    async with Redis.from_url(mortal_redis.url) as redis:
        parts = rights.split()
        await redis.acl_setuser(
            "fanout", enabled=True, passwords=["+pw"], keys=[parts[0][1:]], commands=parts[1:], reset=True
        )
    async with redis_link(f"redis://fanout:pw@127.0.0.1:{mortal_redis.port}/0") as link:
        await link.check()
        assert [await claim_prefix(link, "gocpi", installation) for installation in ("one", "another")] == ["one"] * 2
        marks, runs = RedisMarks(link), RedisRunClaims(link)
        assert await mark_of(marks, PLACES[0], "a") is Mark.MINE
        await marks.release(PLACES[:1], "a")
        assert await marks.seal(PLACES[:1], "a", keep=HOUR) == 0
        begun = await begin_one(runs, RUN, 1)
        assert await runs.renew([HeldRun(RUN, begun)], 1) == [True]
        assert await runs.end([HeldRun(RUN, begun)], 1, carry=True) == [True]
        await runs.forget(await runs.carried(10))
        assert await runs.carried(10) == []
        with pytest.raises(Unavailable):
            await RedisRunClaims(link, prefix="other").begin([RUN], 1)


@pytest.mark.parametrize("url", ["http://x", "redis://user:s3cret@host:s3cret", "redis://:s3cret@[", ""])
def test_an_invalid_redis_url_is_refused_without_its_password(url: str) -> None:
    """The library's own message may hold a part of it."""
    with pytest.raises(Rejected, match="not redis://") as refused:
        RedisClient(url)
    assert "s3cret" not in str(refused.value)


async def test_tls_is_used_and_the_certificate_verified(tmp_path: Path) -> None:
    """``rediss://`` works with a certificate of a trusted authority, and with no other."""
    authority = Authority(tmp_path)
    authority.server("IP:127.0.0.1")
    port, files = free_port(), {name: str(tmp_path / name) for name in ("server.pem", "server.key", "authority.pem")}
    tls = {"tls-port": str(port), "tls-cert-file": files["server.pem"], "tls-key-file": files["server.key"]}
    with started(RedisServer({**tls, "tls-ca-cert-file": files["authority.pem"], "tls-auth-clients": "no"})):
        async with redis_link(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={files['authority.pem']}") as link:
            await link.check()
        async with redis_link(f"rediss://127.0.0.1:{port}/0") as link:
            with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
                await link.check()
