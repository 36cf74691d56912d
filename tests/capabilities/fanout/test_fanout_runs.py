"""Run claims in Redis and in PostgreSQL: never two at once, never one twice, windows only forward."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from kit.redis_fanout import (
    BRIEF,
    LOSE,
    RunStore,
    begin_one,
    end_one,
    fresh_prefix,
    open_session,
    redis_link,
    run_store,
    start_of,
)
from kit.servers import RedisServer
from kit.tcp_proxy import TcpProxy
from kit.waiting import eventually_async
from tickwright.capabilities.fanout.consumer.run_claims import LedgerRunClaims
from tickwright.domain.errors import Unavailable
from tickwright.engine.session import WorkerSession
from tickwright.ports.fanout import HeldRun, Run, RunStart, Success
from tickwright.store.pool import open_pool
from tickwright.transports.redis.stores import RedisRunClaims

WINDOW = 1_700_000_000
RUN = Run("DE*ABC", "LOCATIONS", WINDOW, 2)
NEXT = RUN._replace(window_s=WINDOW + 900)
CURSOR = "SELECT * FROM tickwright.fanout_cursors WHERE entity_code = 'DE*ABC' AND task_type = 'LOCATIONS'"
COUNTS = (
    "SELECT succeeded, failed, superseded, expired FROM tickwright.fanout_windows WHERE window_at = to_timestamp($1)"
)


@pytest.fixture(params=["redis", "ledger"])
async def stores(
    request: pytest.FixtureRequest, redis_server: RedisServer, database_url: str
) -> AsyncIterator[RunStore]:
    """Return each store, as two processes see it."""
    async with run_store(request.param, redis_server.url, database_url) as stores:
        yield stores


@pytest.fixture
async def ledger(redis_server: RedisServer, database_url: str) -> AsyncIterator[RunStore]:
    """Return the store in PostgreSQL."""
    async with run_store("ledger", redis_server.url, database_url) as stores:
        yield stores


# ---------------------------------------------------------------------- both


async def test_one_run_begins_and_the_others_are_busy(stores: RunStore) -> None:
    """An entity and task type has one run at a time, whichever window and owner: the owner's own slots, too."""
    first, second = stores.owners
    begun = await begin_one(stores.store, RUN, first)
    assert begun.start is RunStart.BEGUN
    assert begun.last_success_s is None
    assert await start_of(stores.other, RUN, second) is RunStart.BUSY
    assert await start_of(stores.other, NEXT, second) is RunStart.BUSY
    assert await start_of(stores.store, RUN, first) is RunStart.BUSY
    assert await start_of(stores.other, RUN._replace(entity_code="other"), second) is RunStart.BEGUN


async def test_neither_a_window_that_succeeded_nor_an_older_one_runs_again(stores: RunStore) -> None:
    """Duplicates and latecomers are done; the next window gets the instant at which the last success began."""
    first, second = stores.owners
    begun = await begin_one(stores.store, RUN, first)
    assert await end_one(stores.store, RUN, begun, first)
    older = RUN._replace(window_s=WINDOW - 900)
    assert [await start_of(stores.other, run, second) for run in (RUN, older)] == [RunStart.DONE] * 2
    following = await begin_one(stores.other, NEXT, second)
    assert following.start is RunStart.BEGUN
    assert following.last_success_s == pytest.approx(begun.begun_s, abs=1e-5)
    assert following.fence > begun.fence
    assert await start_of(stores.store, RUN, first) is RunStart.DONE


async def test_a_failed_or_released_run_may_begin_again(stores: RunStore) -> None:
    """Only a success is kept."""
    first, second = stores.owners
    failed = await begin_one(stores.store, RUN, first)
    assert await end_one(stores.store, RUN, failed, first, error="no luck")
    released = await begin_one(stores.other, RUN, second)
    assert released.start is RunStart.BEGUN
    assert await end_one(stores.other, RUN, released, second, released=True)
    again = await begin_one(stores.store, RUN, first)
    assert again.start is RunStart.BEGUN
    assert again.last_success_s is None
    assert failed.fence < released.fence < again.fence


async def test_an_end_with_an_old_fence_or_another_owner_changes_nothing(stores: RunStore) -> None:
    """An owner ends only its own run."""
    first, second = stores.owners
    old = await begin_one(stores.store, RUN, first)
    await end_one(stores.store, RUN, old, first, released=True)
    now = await begin_one(stores.store, RUN, first)
    assert not await end_one(stores.store, RUN, old, first)
    assert not await end_one(stores.store, RUN, now, second)
    assert not await end_one(stores.other, RUN, now._replace(fence=now.fence + 1), first, error="no luck")
    assert await start_of(stores.other, RUN, second) is RunStart.BUSY
    assert await end_one(stores.store, RUN, now, first)
    assert await start_of(stores.other, RUN, second) is RunStart.DONE


async def test_a_repeated_end_succeeds_again_and_is_written_once(stores: RunStore) -> None:
    """A consumer that did not get the answer repeats it."""
    first, second = stores.owners
    begun = await begin_one(stores.store, RUN, first)
    assert [await end_one(stores.other, RUN, begun, first, error="no luck") for _ in range(3)] == [True] * 3
    heir = await begin_one(stores.store, RUN, second)
    assert heir.start is RunStart.BEGUN
    assert not await end_one(stores.store, RUN, begun, first)
    assert await stores.store.renew([HeldRun(RUN, heir)], second) == [True]
    if stores.name == "ledger":
        assert tuple(await stores.pool.fetchrow(COUNTS, WINDOW)) == (0, 1, 0, 0)


async def test_the_runs_of_an_entity_never_pass_its_limit(stores: RunStore) -> None:
    """Over all task types, within one call and across calls; the first ones in the call begin."""
    first, second = stores.owners
    kinds = ["CDRS", "LOCATIONS", "SESSIONS", "TARIFFS"]
    runs = [RUN._replace(task_type=kind) for kind in kinds] + [RUN._replace(entity_code="other")]
    found = [one.start for one in await stores.store.begin(runs, first)]
    assert found == [RunStart.BEGUN, RunStart.BEGUN, RunStart.BUSY, RunStart.BUSY, RunStart.BEGUN]
    assert await start_of(stores.other, runs[3], second) is RunStart.BUSY
    assert await start_of(stores.other, runs[3]._replace(at_once=3), second) is RunStart.BEGUN


async def test_done_or_busy_runs_do_not_count_for_an_entitys_limit(stores: RunStore) -> None:
    """A call with such messages still begins what may begin."""
    first, second = stores.owners
    begun = await begin_one(stores.store, RUN, first)
    await end_one(stores.store, RUN, begun, first)
    await begin_one(stores.store, RUN._replace(task_type="BUSY"), first)
    runs = [RUN, RUN._replace(task_type="BUSY"), RUN._replace(task_type="CDRS"), RUN._replace(task_type="TARIFFS")]
    found = [one.start for one in await stores.other.begin(runs, second)]
    assert found == [RunStart.DONE, RunStart.BUSY, RunStart.BEGUN, RunStart.BUSY]


async def test_two_messages_of_one_task_in_one_call_begin_once(stores: RunStore) -> None:
    """A duplicate that comes together with its original is busy, and so is a newer window beside it."""
    found = await stores.store.begin([RUN, RUN, NEXT, RUN._replace(task_type="CDRS")], stores.owners[0])
    assert [one.start for one in found] == [RunStart.BEGUN, RunStart.BUSY, RunStart.BUSY, RunStart.BEGUN]


async def test_a_renewal_succeeds_only_for_the_owner_of_a_run(stores: RunStore) -> None:
    """Until the run ends."""
    first, second = stores.owners
    begun = await begin_one(stores.store, RUN, first)
    held = HeldRun(RUN, begun)
    assert await stores.store.renew([held], first) == [True]
    stranger, old = HeldRun(NEXT._replace(entity_code="x"), begun), HeldRun(RUN, begun._replace(fence=1))
    assert await stores.store.renew([stranger, held, old], first) == [False, True, False]
    assert await stores.store.renew([held], second) == [False]
    await end_one(stores.store, RUN, begun, first)
    assert await stores.store.renew([held], first) == [False]


async def test_a_window_that_a_jumped_clock_wrote_blocks_nothing(stores: RunStore) -> None:
    """A success of a window far ahead is ignored; the next success repairs what it left."""
    first, _ = stores.owners
    ahead = RUN._replace(window_s=4_000_000_000)
    begun = await begin_one(stores.store, ahead, first)
    await end_one(stores.store, ahead, begun._replace(begun_s=4_000_000_000.0), first)
    now = await begin_one(stores.store, RUN, first)
    assert now.start is RunStart.BEGUN
    assert now.last_success_s is None
    await end_one(stores.store, RUN, now, first)
    assert await start_of(stores.store, RUN, first) is RunStart.DONE
    following = await begin_one(stores.store, NEXT, first)
    assert following.last_success_s == pytest.approx(now.begun_s, abs=1e-5)


async def test_processes_that_race_for_one_task_begin_it_once(stores: RunStore) -> None:
    """Twenty at once over two processes: one begins."""
    sides = [(stores.store, stores.owners[0]), (stores.other, stores.owners[1])] * 10
    for number in range(5):
        run = RUN._replace(entity_code=f"E{number}")
        found = await asyncio.gather(*(start_of(store, run, owner) for store, owner in sides))
        assert found.count(RunStart.BEGUN) == 1


async def test_processes_that_race_for_one_entity_never_pass_its_limit(stores: RunStore) -> None:
    """Ten task types at once over two processes: as many begin as the limit allows, not one more."""
    sides = [(stores.store, stores.owners[0]), (stores.other, stores.owners[1])] * 5
    for number in range(10):
        runs = [Run(f"E{number}", f"T{kind}", WINDOW, 3) for kind in range(10)]
        asked = zip(sides, runs, strict=True)
        found = await asyncio.gather(*(start_of(store, run, owner) for (store, owner), run in asked))
        assert found.count(RunStart.BEGUN) == 3


async def test_overlapping_calls_in_any_order_do_not_deadlock(stores: RunStore) -> None:
    """Two processes begin and end the same two hundred entities in opposite orders."""
    runs = [Run(f"E{number}", "L", WINDOW, 1) for number in range(200)]

    async def process(side: int) -> int:
        store, owner = (stores.store, stores.other)[side], stores.owners[side]
        asked = runs if side else runs[::-1]
        found = await store.begin(asked, owner)
        held = [HeldRun(run, one) for run, one in zip(asked, found, strict=True) if one.start is RunStart.BEGUN]
        return sum(await store.end(held, owner))

    assert sum(await asyncio.gather(process(0), process(1))) == 200
    assert {one.start for one in await stores.store.begin(runs, stores.owners[0])} == {RunStart.DONE}


# ---------------------------------------------------------------------- Redis


async def test_a_claim_in_redis_ends_by_itself_unless_it_is_renewed(redis_server: RedisServer) -> None:
    """A dead consumer's task is free again; a run whose claim expired and was not taken may still end."""
    async with redis_link(redis_server.url) as link:
        runs = RedisRunClaims(link, prefix=fresh_prefix(), lease=BRIEF)
        dead = await begin_one(runs, RUN, 1)

        async def taken_over() -> int:
            begun = await begin_one(runs, RUN, 2)
            return begun.fence if begun.start is RunStart.BEGUN else 0

        fence = await eventually_async(taken_over)
        assert not await end_one(runs, RUN, dead, 1), "a zombie ended its heir's run"
        assert await runs.renew([HeldRun(RUN, dead)], 1) == [False]
        assert await end_one(runs, RUN, dead._replace(fence=fence), 2)


async def test_successes_are_carried_until_they_are_deleted(redis_server: RedisServer) -> None:
    """The newest of each task is kept, also when it changed since it was read."""
    async with redis_link(redis_server.url) as link:
        runs = RedisRunClaims(link, prefix=fresh_prefix())
        assert await runs.carried(10) == []
        codes = ["a|b", "a", "c:d"]
        expected = []
        for code in codes:
            run = Run(code, "L", WINDOW, 1)
            begun = await begin_one(runs, run, 1)
            assert await runs.end([HeldRun(run, begun)], 1, carry=True) == [True]
            expected.append(Success(code, "L", WINDOW, begun.begun_s))
        failing = Run("f", "L", WINDOW, 1)
        await runs.end([HeldRun(failing, await begin_one(runs, failing, 1), error="no luck")], 1, carry=True)
        assert sorted(await runs.carried(10)) == sorted(expected)
        assert len(await runs.carried(2)) == 2
        newer = Run("a", "L", WINDOW + 900, 1)
        begun = await begin_one(runs, newer, 1)
        await runs.end([HeldRun(newer, begun)], 1, carry=True)
        await runs.forget(expected)
        assert await runs.carried(10) == [Success("a", "L", WINDOW + 900, begun.begun_s)]


async def test_a_flush_repeats_no_fence(redis_server: RedisServer) -> None:
    """A claim from before the flush cannot end or renew one from after it."""
    async with redis_link(redis_server.url) as link:
        prefix = fresh_prefix()
        runs = RedisRunClaims(link, prefix=prefix)
        before = await begin_one(runs, RUN, 1)
        await link._client.delete(f"{prefix}:runs:DE*ABC")
        after = await begin_one(runs, RUN, 1)
        assert after.fence > before.fence
        assert not await end_one(runs, RUN, before, 1)
        assert await runs.renew([HeldRun(RUN, before), HeldRun(RUN, after)], 1) == [False, True]


# ---------------------------------------------------------------------- the ledger


async def test_the_ledger_counts_the_outcomes_of_a_window(ledger: RunStore) -> None:
    """Successes, failures and dropped tasks, each in its column; a release counts as nothing."""
    owner = ledger.owners[0]
    for ending in ({"error": "no luck"}, {"released": True}, {"error": "no luck"}, {}):
        begun = await begin_one(ledger.store, RUN, owner)
        assert await end_one(ledger.store, RUN, begun, owner, **ending)
    assert isinstance(ledger.store, LedgerRunClaims)
    await ledger.store.count_dropped(
        {("LOCATIONS", WINDOW, "superseded"): 2, ("LOCATIONS", WINDOW, "expired"): 1, ("CDRS", WINDOW, "expired"): 1}
    )
    rows = await ledger.pool.fetch(COUNTS, WINDOW)
    assert sorted(map(tuple, rows)) == [(0, 0, 0, 1), (1, 2, 2, 1)]
    await ledger.store.count_dropped({})


async def test_a_cursor_counts_failures_until_a_success(ledger: RunStore) -> None:
    """They are counted in a row; the last error stays, made valid and cut to 500 characters."""
    owner = ledger.owners[0]
    for error in ("first", "\x00\ud800" + "x" * 1_000):
        await end_one(ledger.store, RUN, await begin_one(ledger.store, RUN, owner), owner, error=error)
    row = await ledger.pool.fetchrow(CURSOR)
    assert (row["failures"], row["last_error"]) == (2, "��" + "x" * 498)
    assert row["last_error_at"] is not None
    assert row["owner"] is row["running_since"] is row["running_window_at"] is None
    await end_one(ledger.store, RUN, await begin_one(ledger.store, RUN, owner), owner)
    row = await ledger.pool.fetchrow(CURSOR)
    assert (row["failures"], row["last_error"]) == (0, "��" + "x" * 498)


async def test_the_runs_of_a_lost_session_are_free(ledger: RunStore) -> None:
    """Reclaimed or not, any live consumer may begin them; the zombie ends nothing and begins nothing."""
    zombie, heir = ledger.owners
    other = RUN._replace(task_type="CDRS")
    held = await ledger.store.begin([RUN, other], zombie)
    assert isinstance(ledger.store, LedgerRunClaims)
    async with ledger.pool.acquire() as connection, connection.transaction():
        await connection.execute(LOSE, zombie)
        await ledger.store.reclaim(connection, [zombie])
    assert await ledger.store.renew([HeldRun(RUN, held[0])], zombie) == [False]
    assert not await end_one(ledger.store, RUN, held[0], zombie), "a zombie ended what was reclaimed"
    assert [one.start for one in await ledger.other.begin([RUN, other], heir)] == [RunStart.BEGUN] * 2
    assert not await end_one(ledger.store, other, held[1], zombie), "a zombie ended its heir's run"
    assert await start_of(ledger.store, NEXT._replace(entity_code="new"), zombie) is RunStart.BUSY
    assert await start_of(ledger.store, NEXT._replace(entity_code="new"), 0) is RunStart.BUSY


async def test_a_session_that_was_deleted_blocks_nothing(ledger: RunStore) -> None:
    """Nothing was reclaimed, but neither its tasks nor its runs of an entity are taken."""
    gone, heir = ledger.owners
    await ledger.store.begin([RUN, RUN._replace(task_type="CDRS")], gone)
    await ledger.pool.execute("DELETE FROM tickwright.workers WHERE id = $1", gone)
    runs = [RUN._replace(task_type="TARIFFS"), RUN]
    assert [one.start for one in await ledger.other.begin(runs, heir)] == [RunStart.BEGUN] * 2


async def test_carried_successes_go_forward_only_and_count_once(ledger: RunStore) -> None:
    """Old ones change nothing, the same twice counts once, and a run under way stays its owner's."""
    owner = ledger.owners[0]
    assert isinstance(ledger.store, LedgerRunClaims)
    begun = await begin_one(ledger.store, RUN, owner)
    successes = [Success("DE*ABC", "LOCATIONS", WINDOW - 900, 10.0), Success("DE*ABC", "LOCATIONS", WINDOW, 20.0)]
    for _ in range(2):
        await ledger.store.carry_over([*successes, Success("new", "CDRS", WINDOW, 30.0)])
        await ledger.store.carry_over(successes[:1])
    await ledger.store.carry_over([])
    row = await ledger.pool.fetchrow(CURSOR)
    assert (row["last_window_at"].timestamp(), row["last_success_at"].timestamp()) == (WINDOW, 20.0)
    assert (row["owner"], row["fence"]) == (owner, begun.fence)
    assert await end_one(ledger.store, RUN, begun, owner)
    assert sorted(map(tuple, await ledger.pool.fetch(COUNTS, WINDOW))) == [(1, 0, 0, 0)] * 2
    assert (await ledger.pool.fetchrow(CURSOR))["owner"] is None


COMMITS_WAIT = """
CREATE FUNCTION tickwright.test_wait() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN PERFORM pg_advisory_xact_lock_shared(1, 1); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER test_wait AFTER INSERT OR UPDATE ON tickwright.fanout_cursors DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION tickwright.test_wait()"""
WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 1 AND NOT granted AND database = $1"
DATABASE = "SELECT oid FROM pg_database WHERE datname = current_database()"


async def test_a_claim_whose_answer_was_lost_does_not_block_its_own_process(database_url: str) -> None:
    """The commit arrived, its answer did not: the process's next claim frees it, though its session lives on.

    A claim under no session, by a process that doubts its own for a moment, does not discard that knowledge.
    """
    async with TcpProxy(*_place(database_url)) as proxy, await open_pool(database_url) as pool:
        session = WorkerSession(pool, name="test", roles=["fanout-consumer"], version="0")
        await session.open()
        owner, other_owner = session.token, await open_session(pool)
        database = await pool.fetchval(DATABASE)
        await pool.execute(COMMITS_WAIT)
        broken = await open_pool(proxy.rewrite(database_url), max_size=1)
        runs, other = LedgerRunClaims(broken, session), LedgerRunClaims(pool)
        async with pool.acquire() as gate:
            await gate.execute("SELECT pg_advisory_lock(1, 1)")
            asking = asyncio.create_task(start_of(runs, RUN, owner))
            await eventually_async(lambda: gate.fetchval(WAITING, database), what="the commit waits")
            proxy.drop_replies()
            await gate.execute("SELECT pg_advisory_unlock(1, 1)")
            with pytest.raises(Unavailable, match="no answer about run claims"):
                await asyncio.wait_for(asking, 10)
        proxy.heal()
        proxy.reset()
        assert await start_of(other, RUN, other_owner) is RunStart.BUSY, "the claim was not committed"

        async def begins() -> bool:
            try:
                await start_of(runs, RUN._replace(entity_code="E2"), 0)
                return await start_of(runs, RUN, owner) is RunStart.BEGUN
            except Unavailable:
                return False

        await eventually_async(begins, 20)
        broken.terminate()


def _place(url: str) -> tuple[str, int]:
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port
