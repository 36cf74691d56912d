"""Publish marks in Redis and in PostgreSQL: the same calls, the same answers."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest
from redis.asyncio import Redis

from kit.redis_fanout import (
    BRIEF,
    LONG,
    begin_one,
    end_one,
    fresh_prefix,
    open_session,
    redis_link,
)
from kit.servers import RedisServer
from kit.waiting import eventually_async
from tickwright.capabilities.fanout.consumer.run_claims import LedgerRunClaims
from tickwright.capabilities.fanout.scheduler.marks import LedgerMarks
from tickwright.ports.fanout import EntityWindow, Mark, Marks, Run
from tickwright.store.pool import open_pool
from tickwright.transports.redis.connection import RedisClient
from tickwright.transports.redis.stores import RedisMarks, RedisRunClaims

HOUR = timedelta(hours=1)
WINDOW = 1_800_000_000
ONE = EntityWindow("DE*ABC", "LOCATIONS", WINDOW)


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[asyncpg.Pool]:
    """Connections to the test's own database."""
    async with await open_pool(database_url, max_size=4) as pool:
        yield pool


@pytest.fixture
async def link(redis_server: RedisServer) -> AsyncIterator[RedisClient]:
    """A connection to the shared Redis."""
    async with redis_link(redis_server.url) as link:
        yield link


@pytest.fixture(params=["redis", "ledger"])
async def marks(request: pytest.FixtureRequest, link: RedisClient, pool: asyncpg.Pool) -> Marks:
    """Return each store."""
    return RedisMarks(link, prefix=fresh_prefix()) if request.param == "redis" else LedgerMarks(pool)


async def mark_of(marks: Marks, place: EntityWindow, token: str, lease: timedelta = LONG) -> Mark:
    """Claim one window of an entity."""
    [claimed] = await marks.claim([place], token, lease)
    return claimed.mark


async def test_a_free_window_belongs_to_its_first_claim(marks: Marks) -> None:
    """One token gets it, also when it claims again; every other one gets ``TAKEN``."""
    assert await mark_of(marks, ONE, "a") is Mark.MINE
    assert await mark_of(marks, ONE, "b") is Mark.TAKEN
    assert await mark_of(marks, ONE, "a") is Mark.MINE
    assert await mark_of(marks, ONE._replace(window_s=WINDOW + 900), "b") is Mark.MINE


async def test_an_expired_claim_is_free(marks: Marks) -> None:
    """A scheduler that died after its claim leaves the window to the others."""
    assert await mark_of(marks, ONE, "dead", BRIEF) is Mark.MINE

    async def mine() -> bool:
        return await mark_of(marks, ONE, "heir") is Mark.MINE

    await eventually_async(mine)
    assert await mark_of(marks, ONE, "dead") is Mark.TAKEN


async def test_a_second_claim_under_the_token_gives_the_full_lease_again(marks: Marks) -> None:
    """A repeated claim counts from its own instant."""
    await mark_of(marks, ONE, "a", BRIEF)
    assert await mark_of(marks, ONE, "a", LONG) is Mark.MINE
    other = ONE._replace(entity_code="other")
    await mark_of(marks, other, "a", BRIEF)

    async def the_brief_one_is_over() -> bool:
        return await mark_of(marks, other, "b") is Mark.MINE

    await eventually_async(the_brief_one_is_over)
    assert await mark_of(marks, ONE, "b") is Mark.TAKEN


async def test_a_sealed_window_cannot_be_claimed(marks: Marks) -> None:
    """It is published, also for the scheduler that published it."""
    await mark_of(marks, ONE, "a")
    assert await marks.seal([ONE], "a", keep=HOUR) == 0
    assert [await mark_of(marks, ONE, token) for token in "ab"] == [Mark.SEALED] * 2
    assert await marks.seal([ONE], "a", keep=HOUR) == 0


async def test_a_zombie_does_not_seal_the_claim_of_another_scheduler(marks: Marks) -> None:
    """A claim that another scheduler has taken stays its own; the zombie's seal is counted as refused."""
    await mark_of(marks, ONE, "zombie", BRIEF)

    async def taken_over() -> bool:
        return await mark_of(marks, ONE, "heir") is Mark.MINE

    await eventually_async(taken_over)
    assert await marks.seal([ONE], "zombie", keep=HOUR) == 1
    assert await mark_of(marks, ONE, "third") is Mark.TAKEN
    await marks.release([ONE], "zombie")
    assert await mark_of(marks, ONE, "third") is Mark.TAKEN
    assert await marks.seal([ONE], "heir", keep=HOUR) == 0
    assert await marks.seal([ONE], "zombie", keep=HOUR) == 1


async def test_a_flushed_claim_can_be_sealed(marks: Marks) -> None:
    """A mark that was flushed after its claim is written again: its window is published."""
    assert await marks.seal([ONE], "a", keep=HOUR) == 0
    assert await mark_of(marks, ONE, "b") is Mark.SEALED


async def test_a_release_frees_only_own_claims_that_are_not_sealed(marks: Marks) -> None:
    """Another token's claim stays, and so does a published window."""
    sealed, others = ONE._replace(entity_code="sealed"), ONE._replace(entity_code="others")
    await marks.claim([ONE, sealed], "a", LONG)
    await marks.claim([others], "b", LONG)
    await marks.seal([sealed], "a", keep=HOUR)
    await marks.release([ONE, sealed, others], "a")
    found = await marks.claim([ONE, sealed, others], "c", LONG)
    assert [one.mark for one in found] == [Mark.MINE, Mark.SEALED, Mark.TAKEN]


async def test_answers_come_in_order_however_many(marks: Marks) -> None:
    """More windows than one chunk, some of them taken and some sealed."""
    places = [EntityWindow(f"E{number}", "TARIFFS", WINDOW) for number in range(1_201)]
    await marks.claim(places[::3], "b", LONG)
    await marks.seal(places[1::3], "b", keep=HOUR)
    found = await marks.claim(places, "a", LONG)
    assert [one.mark for one in found] == [(Mark.TAKEN, Mark.SEALED, Mark.MINE)[n % 3] for n in range(1_201)]
    assert await marks.seal(places, "a", keep=HOUR) == len(places[::3]) + len(places[1::3])
    await marks.release(places, "b")
    assert Counter(one.mark for one in await marks.claim(places, "c", LONG)) == {
        Mark.SEALED: len(places[1::3]) + len(places[2::3]),
        Mark.MINE: len(places[::3]),
    }


async def test_schedulers_that_race_get_each_window_once(marks: Marks) -> None:
    """Three at once, each in an order of its own: every window is one scheduler's, and none waits for ever."""
    places = [EntityWindow(f"E{number}", "CDRS", WINDOW) for number in range(600)]

    async def scheduler(number: int) -> Counter[EntityWindow]:
        shifted = places[number * 200 :] + places[: number * 200]
        mine: Counter[EntityWindow] = Counter()
        for first in range(0, 600, 100):
            chunk = shifted[first : first + 100][:: 1 if number else -1]
            found = await marks.claim(chunk, f"s{number}", LONG)
            mine.update(place for place, one in zip(chunk, found, strict=True) if one.mark is Mark.MINE)
        return mine

    total = sum(await asyncio.gather(*(scheduler(number) for number in range(3))), Counter[EntityWindow]())
    assert total == Counter(places)


async def test_two_codes_never_share_a_key(marks: Marks) -> None:
    """``a:b`` + ``c`` is not ``a`` + ``b:c``, and control characters and braces stay inside their part."""
    awkward = [("a:b", "c"), ("a", "b:c"), ("a%3Ab", "c"), ("{a}", "\n"), ("{a}\n", "c"), ("ä", "c"), ("a b", "")]
    places = [EntityWindow(code, kind, WINDOW) for code, kind in awkward]
    for number, place in enumerate(places):
        assert await mark_of(marks, place, f"t{number}") is Mark.MINE


# ---------------------------------------------------------------------- Redis


async def test_redis_keys_are_those_of_the_document(link: RedisClient, redis_server: RedisServer) -> None:
    """``gocpi:publish:{entityCode}:{taskType}:{alignedTimestamp}``, with an expiry."""
    prefix = fresh_prefix()
    marks = RedisMarks(link, prefix=prefix)
    await marks.claim([ONE], "a", LONG)
    key = f"{prefix}:publish:DE*ABC:LOCATIONS:{WINDOW}"
    async with Redis.from_url(redis_server.url) as redis:
        assert await redis.get(key) == b"p:a"
        assert 50_000 < await redis.pttl(key) <= 60_000
        await marks.seal([ONE], "a", keep=HOUR)
        assert await redis.get(key) == b"d:a"
        assert 3_500_000 < await redis.pttl(key) <= 3_600_000


async def test_a_claim_returns_the_last_success_that_run_claims_left_in_redis(link: RedisClient) -> None:
    """The scheduler needs no further round trip for the instant of the last success."""
    prefix = fresh_prefix()
    runs, run = RedisRunClaims(link, prefix=prefix), Run(ONE.entity_code, ONE.task_type, WINDOW - 900, 1)
    begun = await begin_one(runs, run, 1)
    await end_one(runs, run, begun, 1)
    [found, unknown] = await RedisMarks(link, prefix=prefix).claim([ONE, ONE._replace(task_type="TARIFFS")], "a", LONG)
    assert found.last_success_s == begun.begun_s
    assert unknown.last_success_s is None


async def test_scripts_are_sent_again_to_a_redis_that_has_none(link: RedisClient, redis_server: RedisServer) -> None:
    """A restart empties the cache of scripts, and calls succeed nevertheless."""
    marks = RedisMarks(link, prefix=fresh_prefix())
    assert await mark_of(marks, ONE, "a") is Mark.MINE
    async with Redis.from_url(redis_server.url) as redis:
        await redis.script_flush()
    assert await mark_of(marks, ONE, "b") is Mark.TAKEN


# ---------------------------------------------------------------------- the ledger


async def test_the_ledger_does_not_publish_again_what_ran_or_runs(pool: asyncpg.Pool) -> None:
    """By the cursors, windows that succeeded, older ones and those under way count as sealed."""
    marks, runs, owner = LedgerMarks(pool), LedgerRunClaims(pool), await open_session(pool)
    window = await pool.fetchval("SELECT date_part('epoch', clock_timestamp())::bigint / 900 * 900")
    done, running = Run("E1", "L", window, 1), Run("E2", "L", window, 1)
    begun, _ = await runs.begin([done, running], owner)
    await end_one(runs, done, begun, owner)
    codes = [("E1", window), ("E1", window - 900), ("E1", window + 900), ("E2", window), ("E2", window + 900)]
    found = await marks.claim([EntityWindow(code, "L", at) for code, at in codes], "a", LONG)
    assert [one.mark for one in found] == [Mark.SEALED, Mark.SEALED, Mark.MINE, Mark.SEALED, Mark.MINE]
    assert [one.last_success_s for one in found] == [begun.begun_s] * 3 + [None] * 2


async def test_a_window_ahead_of_the_clock_seals_nothing(pool: asyncpg.Pool) -> None:
    """A cursor that was written by a jumped clock does not keep windows from being published."""
    await pool.execute(
        "INSERT INTO tickwright.fanout_cursors (entity_code, task_type, last_window_at, last_success_at) "
        "VALUES ('E', 'L', clock_timestamp() + interval '1 day', clock_timestamp() + interval '1 day')"
    )
    window = await pool.fetchval("SELECT date_part('epoch', clock_timestamp())::bigint / 900 * 900")
    [found] = await LedgerMarks(pool).claim([EntityWindow("E", "L", window)], "a", LONG)
    assert found == (Mark.MINE, None)
