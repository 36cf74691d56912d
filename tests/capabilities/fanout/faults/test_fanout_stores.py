"""Redis is flushed or killed, PostgreSQL killed, or both, under fan-out at work: no task is lost, each counts once."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from redis.asyncio import Redis

from kit.fanout import MODULE, FanoutWorld, Hub
from kit.fanout_worlds import DAY_S, Worlds, wins_of, won
from kit.probes import Stops
from kit.servers import PostgresServer, RedisServer
from kit.waiting import eventually_async
from tickwright.capabilities.fanout.windows import Window
from tickwright.store.migrate import migrate

CODES = [f"E{number}" for number in range(40)]
MANY = [f"E{number}" for number in range(600)]
TEMPLATE = "fanout_template"
BACK_S = 40  # a delay of ten seconds, a session, and a busy machine


@pytest.fixture
def redis_server(mortal_redis: RedisServer) -> RedisServer:
    """The worlds of this module have a Redis that tests may flush and kill."""
    return mortal_redis


@pytest.fixture(scope="module")
def pg_server(mortal_postgres: PostgresServer) -> PostgresServer:
    """The worlds of this module have a PostgreSQL that tests may kill."""
    return mortal_postgres


@pytest.fixture(scope="module")
def template_database(pg_server: PostgresServer) -> str:
    """Return the name of a database there with the newest schema and no rows."""
    migrate(pg_server.create_database(TEMPLATE))
    return TEMPLATE


@asynccontextmanager
async def dead(*servers: PostgresServer | RedisServer) -> AsyncIterator[None]:
    """Kill -9 servers for the length of the block."""
    try:
        for server in servers:
            await asyncio.to_thread(server.kill9)
        yield
    finally:
        for server in servers:
            await asyncio.to_thread(server.start)


# ---------------------------------------------------------------------------------------------- Redis


async def test_a_flush_costs_a_duplicate_message_at_worst(worlds: Worlds) -> None:
    """FLUSHALL during runs, then another scheduler: every message is sent twice, and each task counts once."""
    world, hub = await worlds.make("redis"), Hub()
    await world.put_entities(CODES)
    window = await world.window(DAY_S)
    for code in CODES[:6]:
        hub.hold(code)
    async with world.consumer({MODULE: hub}, slots=6) as one, world.consumer({MODULE: hub}, slots=6) as two:
        async with world.scheduler():
            await eventually_async(lambda: len(hub.ended) == len(CODES) - 6, 20, what="all but those that are held")
        client = Redis.from_url(worlds.redis.url)
        await client.flushall()
        await client.aclose()
        async with world.scheduler() as restarted:
            await eventually_async(lambda: restarted.counts["published"] == len(CODES), 20, what="all are sent again")
        await eventually_async(lambda: one.counts["busy"] + two.counts["busy"] >= 6, 20, what="the held ones wait")
        for code in CODES[:6]:
            hub.release(code)
        await won(world, CODES, window)
        await eventually_async(
            lambda: one.counts["superseded"] + two.counts["superseded"] == len(CODES),
            20,
            what="the second copies are dropped",
        )
    assert Counter(hub.ended) == world.ids(CODES, window)
    assert hub.overlaps == []


@pytest.mark.storm
async def test_redis_killed_while_a_window_is_published_loses_nothing(worlds: Worlds) -> None:
    """Three chunks are published and not sealed: the ledger decides about the rest for every scheduler."""
    world, hub, stops = await worlds.make("redis"), Hub(), Stops()
    await world.put_entities(MANY)
    window = await world.window(DAY_S)
    stops.close("fanout.published_not_sealed")
    async with world.scheduler(probe=stops) as first:
        await eventually_async(lambda: stops.reached_times["fanout.published_not_sealed"] >= 1, 20, what="published")
        async with dead(worlds.redis):
            stops.open("fanout.published_not_sealed")
            await eventually_async(lambda: first.settled == len(MANY), 20, what="all are published and sealed")
            async with world.scheduler() as second:
                await eventually_async(lambda: second.settled == len(MANY), 30, what="another one sees that they are")
                assert second.counts["published"] == 0
            async with world.consumer({MODULE: hub}, slots=20):
                await won(world, MANY, window, 40)
        async with world.scheduler() as late, world.consumer({MODULE: hub}, slots=20) as consumer:
            await eventually_async(lambda: late.settled == len(MANY), 30, what="Redis is back")
            again = late.counts["published"]
            await eventually_async(lambda: consumer.counts["superseded"] == again, 30, what="what was sent again")
    assert Counter(hub.ended) == world.ids(MANY, window)
    assert (hub.overlaps, first.counts["missed"]) == ([], 0)


# ---------------------------------------------------------------------------------------------- PostgreSQL


async def check_last_executed(world: FanoutWorld, hub: Hub, code: str) -> None:
    """Every run of an entity gets the instant at which the one before it began, also across a database outage."""
    runs = [task for task in hub.runs if task.entity_code == code]
    assert len({task.last_executed_at for task in runs}) == len(runs), code  # each gets another instant
    for before, task in pairwise(runs):
        assert task.last_executed_at is not None, task.id
        assert before.window_at <= task.last_executed_at, task.id  # it may have begun late, on a busy machine
    ledger = (await world.cursor(code))["last_success_at"]
    assert runs[-1].window_at <= ledger


@pytest.mark.storm
async def test_with_redis_fan_out_goes_on_while_the_database_is_down(worlds: Worlds) -> None:
    """Each window is published from the lists and run under Redis' claims; the ledger gets the ends later."""
    world, hub = await worlds.make("redis"), Hub()
    codes = CODES[:5]
    await world.put_module(interval_s=2)
    await world.put_entities(codes)
    async with world.scheduler(), world.consumer({MODULE: hub}, slots=3), world.consumer({MODULE: hub}, slots=3):
        await eventually_async(lambda: len(hub.ended) >= 10, 20, what="two windows")
        async with dead(worlds.postgres):
            before = {task.window_at for task in hub.runs}
            await eventually_async(
                lambda: len({task.window_at for task in hub.runs} - before) >= 3, 30, what="three more windows"
            )
            without = max(task.window_at for task in hub.runs if task.id in hub.ended)

        async def carried_over() -> bool:
            newest = await world.pool.fetchval("SELECT min(last_window_at) FROM tickwright.fanout_cursors")
            return bool(newest > without)

        await eventually_async(carried_over, BACK_S, what="the ledger has caught up")
        await world.pool.execute("UPDATE tickwright.entities SET is_polling_enabled = false")
        owned = "SELECT count(*) FROM tickwright.fanout_cursors WHERE owner IS NOT NULL"
        await eventually_async(lambda: nothing_of(world, owned), 20, what="nothing is under way")
    assert max(Counter(hub.ended).values()) == 1, "something ran twice"
    assert hub.overlaps == []
    taken = await wins_of(world)
    assert len(taken) == len(set(taken))
    for code in codes:
        windows = [window for entity, _, window in taken if entity == code]
        assert windows == sorted(windows)
        await check_last_executed(world, hub, code)


async def nothing_of(world: FanoutWorld, query: str) -> bool:
    """Return whether a count is zero."""
    return await world.pool.fetchval(query) == 0  # type: ignore[no-any-return]


async def put_tasks(world: FanoutWorld, window: Window, codes: list[str]) -> None:
    """Put a task of each entity into the queue."""
    await asyncio.gather(*(world.put_task(code, window=window) for code in codes))


async def test_while_the_database_is_down_no_partner_is_called(worlds: Worlds) -> None:
    """A partner's limits are in the database: tasks of its entities wait, those of others run."""
    world, hub = await worlds.make("redis"), Hub()
    await world.pool.execute("INSERT INTO tickwright.partners (name) VALUES ('hub')")
    window = await world.window(DAY_S)
    async with world.consumer({MODULE: hub}, slots=4) as consumer:
        await world.put_task("FIRST", window=window, partner="hub")
        await eventually_async(lambda: len(hub.ended) == 1, 20, what="the partner can be called")
        async with dead(worlds.postgres):
            session = consumer._claims._session
            await eventually_async(lambda: not session.holds(), 20, what="what it was granted is over")
            await world.put_task("LIMITED", window=window, partner="hub")
            await eventually_async(lambda: consumer.counts["no_permit"] >= 2, 30, what="it waits")
            await world.put_task("FREE", window=window)
            await eventually_async(lambda: "FREE" in hub.codes, 20, what="an entity without a partner runs")
            assert "LIMITED" not in hub.codes
        await won(world, ["FIRST", "FREE", "LIMITED"], window, BACK_S)


@pytest.mark.storm
async def test_without_redis_tasks_wait_while_the_database_is_down(worlds: Worlds) -> None:
    """Delivered tasks are delayed; ends are written when it is back; tasks that could not end run again."""
    world, hub = await worlds.make("postgres"), Hub()
    window, codes = await world.window(DAY_S), CODES[:10]
    hub.hold("ENDS")
    async with world.consumer({MODULE: hub}, slots=4) as one, world.consumer({MODULE: hub}, slots=4) as two:
        await world.put_task("ENDS", window=window)
        await eventually_async(lambda: hub.codes == ["ENDS"], what="it runs")
        async with dead(worlds.postgres):
            hub.release("ENDS")
            await eventually_async(lambda: len(hub.ended) == 1, what="it ends without a database")
            await put_tasks(world, window, codes)
            counts = [one.counts, two.counts]
            await eventually_async(
                lambda: sum(count["stores_away"] for count in counts) >= len(codes), 20, what="they are delayed"
            )
            assert len(hub.ended) == 1
            sessions = [one._claims._session, two._claims._session]
            await eventually_async(lambda: not any(session.holds() for session in sessions), what="no session is left")
        await won(world, [*codes, "ENDS"], window, BACK_S)
    assert set(hub.ended) == set(world.ids([*codes, "ENDS"], window))
    assert Counter(hub.ended) - world.ids(["ENDS"], window) <= world.ids([*codes, "ENDS"], window)
    assert (await world.cursor("ENDS"))["last_success_at"] >= hub.runs[0].window_at


async def test_with_both_stores_down_nothing_runs_and_nothing_is_lost(worlds: Worlds) -> None:
    """No store says which process runs or publishes what, so none does; both go on when the stores are back."""
    world, hub, stops = await worlds.make("redis"), Hub(), Stops()
    window, codes = await world.window(DAY_S), CODES[:10]
    await world.put_entities(codes)
    stops.close("fanout.claimed")
    async with world.consumer({MODULE: hub}, slots=4) as consumer, world.scheduler(probe=stops) as scheduler:
        await eventually_async(lambda: stops.reached_times["fanout.claimed"] == 1, what="it has claimed")
        async with dead(worlds.postgres, worlds.redis):
            await put_tasks(world, window, codes)
            await eventually_async(lambda: consumer.counts["stores_away"] >= len(codes), 20, what="they are delayed")
            stops.open("fanout.claimed")
            assert (hub.runs, scheduler.counts["published"]) == ([], 0)
        await eventually_async(lambda: scheduler.settled == len(codes), BACK_S, what="the scheduler goes on")
        await won(world, codes, window, BACK_S)
    assert Counter(hub.ended) == world.ids(codes, window)
