"""Schedulers and consumers of fan-out are killed or stopped midway: no task is lost, and none counts twice."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from kit.fanout import MODULE, FanoutWorld, Hub, killed
from kit.fanout_worlds import DAY_S, Worlds, killed_at_the_end, stopped, told, wake, wins_of, won
from kit.tcp_proxy import TcpProxy
from kit.waiting import eventually_async
from tickwright.capabilities.fanout.consumer.run_claims import LedgerRunClaims
from tickwright.capabilities.fanout.scheduler.publisher import LEASE

pytestmark = pytest.mark.storm

CODES = [f"E{number}" for number in range(12)]
LOSE_ALL = "UPDATE tickwright.workers SET lost_at = clock_timestamp() WHERE lost_at IS NULL RETURNING id"
LEASE_S = LEASE.total_seconds()
PUBLISHED_AGAIN_S = LEASE_S + 50  # the claim's length, the next check, and a busy machine
RUN_AGAIN_S = 50


# ---------------------------------------------------------------------------------------------- schedulers


async def check_a_killed_scheduler(world: FanoutWorld, log: Path, point: str) -> None:
    """Its claims are published by another scheduler when they expire; published tasks run once."""
    before = 0 if point == "fanout.claimed" else len(CODES)
    await world.put_entities(CODES)
    window = await world.window(DAY_S)
    victim = world.spawn("scheduler", log, FANOUT_KILL_AT=point)
    async with killed_at_the_end(victim):
        await killed(victim)
        await world.queues.counted(world.queue, before)
        hub = Hub()
        async with world.scheduler() as other:
            await eventually_async(
                lambda: other.counts["published"] == len(CODES), PUBLISHED_AGAIN_S, what="another one publishes"
            )
            async with world.consumer({MODULE: hub}, slots=4) as consumer:
                await won(world, CODES, window)
                await eventually_async(
                    lambda: consumer.counts["superseded"] == before, what="the first copies are dropped"
                )
    assert Counter(hub.ended) == world.ids(CODES, window)
    assert (other.counts["missed"], hub.overlaps) == (0, [])


async def check_a_stopped_scheduler(world: FanoutWorld, log: Path, point: str) -> None:
    """It resumes after another scheduler has taken its claims."""
    await world.put_entities(CODES)
    window = await world.window(DAY_S)
    zombie = world.spawn("scheduler", log, FANOUT_STOP_AT=point)
    async with killed_at_the_end(zombie):
        await stopped(zombie)
        async with world.scheduler() as other:
            await eventually_async(
                lambda: other.counts["published"] == len(CODES), PUBLISHED_AGAIN_S, what="another one publishes"
            )
        checks = len(told(log, "reached"))
        wake(zombie)
        if point == "fanout.claimed":  # it claims again; after a publish it seals and is done
            await eventually_async(
                lambda: [one["places"] for one in told(log, "reached")[checks:]] == [0], what="nothing is left for it"
            )
        async with world.consumer({MODULE: Hub()}, slots=4) as consumer:
            await won(world, CODES, window)
            before = 0 if point == "fanout.claimed" else len(CODES)
            await eventually_async(lambda: consumer.counts["superseded"] == before, what="the first copies are dropped")
        async with world.scheduler() as late:
            await eventually_async(lambda: late.settled == len(CODES), what="the window is sealed")
            assert late.counts["published"] == 0


async def test_claims_of_a_killed_or_stopped_scheduler_are_published_by_another_one(worlds: Worlds) -> None:
    """Kill -9 and SIGSTOP before and after the publish: published in little more than ten seconds, and run once."""
    points = ("fanout.claimed", "fanout.published_not_sealed")
    checks = (check_a_killed_scheduler, check_a_stopped_scheduler)
    await worlds.each(*((check, point) for check in checks for point in points))


# ---------------------------------------------------------------------------------------------- consumers


async def check_a_killed_consumer(world: FanoutWorld, log: Path, point: str) -> None:
    """Another consumer runs its task within seconds, or drops it because it is done."""
    window = await world.window(DAY_S)
    task = await world.put_task("A", window=window)
    victim = world.spawn("consumer", log, FANOUT_KILL_AT=point)
    hub = Hub()
    async with killed_at_the_end(victim):
        await killed(victim)
        async with world.consumer({MODULE: hub}) as consumer:
            done = "superseded" if point == "fanout.ended" else "succeeded"
            await eventually_async(lambda: consumer.counts[done] == 1, RUN_AGAIN_S, what=f"it is {done}")
            await won(world, ["A"], window)
    assert len(told(log, "done")) == (0 if point == "fanout.begun" else 1)
    assert hub.ended == ([] if point == "fanout.ended" else [task])


async def check_a_stopped_consumer(world: FanoutWorld, log: Path) -> None:
    """A duplicate of its task runs on another consumer meanwhile."""
    window = await world.window(DAY_S)
    task = await world.put_task("A", window=window)
    zombie = world.spawn("consumer", log, FANOUT_STOP_AT="fanout.called")
    hub = Hub()
    async with killed_at_the_end(zombie):
        await stopped(zombie)
        await world.put_task("A", window=window)
        async with world.consumer({MODULE: hub}) as consumer:
            await eventually_async(lambda: hub.ended == [task], RUN_AGAIN_S, what="the duplicate runs")
            await won(world, ["A"], window)
            first = await world.cursor("A")
            wake(zombie)
            await eventually_async(
                lambda: consumer.counts["superseded"] + len(told(log, "acked")) == 1, what="the zombie drops its task"
            )
    assert "fanout.ended" not in [one["reached"] for one in told(log, "reached")], "a zombie's end was taken"
    assert dict(await world.cursor("A")) == dict(first)
    await won(world, ["A"], window)


async def test_the_task_of_a_killed_or_stopped_consumer_is_run_by_another_one(worlds: Worlds) -> None:
    """Kill -9 before the call, after it and after writing the end; SIGSTOP after the call: one success each."""
    points = ("fanout.begun", "fanout.called", "fanout.ended")
    await worlds.each(*((check_a_killed_consumer, point) for point in points), check_a_stopped_consumer)


async def test_a_run_that_outlives_its_session_counts_while_redis_keeps_its_claim(worlds: Worlds) -> None:
    """The ledger released its run, but Redis let no consumer take it: its success counts once and is not repeated."""
    world, log = await worlds.make("redis"), worlds.folder / "zombie.log"
    window = await world.window(DAY_S)
    await world.put_task("A", window=window)
    zombie = world.spawn("consumer", log, FANOUT_STOP_AT="fanout.called")
    hub = Hub()
    async with killed_at_the_end(zombie):
        await stopped(zombie)
        async with world.consumer({MODULE: hub}) as consumer:
            lost = "SELECT count(*) FROM tickwright.workers WHERE lost_at IS NOT NULL"
            await eventually_async(lambda: world.pool.fetchval(lost), what="its session is lost")
            await world.put_task("A", window=window)
            await eventually_async(lambda: consumer.counts["busy"] >= 1, what="the duplicate has to wait")
            wake(zombie)
            await eventually_async(lambda: told(log, "acked"), what="its end is accepted")
            assert await wins_of(world) == [("A", MODULE, window.start_s)], "the ledger gets it before the broker"
            await eventually_async(lambda: consumer.counts["superseded"] == 1, what="the duplicate is dropped")
            await won(world, ["A"], window)
    assert (hub.runs, len(told(log, "run"))) == ([], 1)
    [dropped] = told(log, "acked")
    assert dropped["why"] in {"succeeded", "superseded"}, "it may notice the lost session while its end is written"


async def test_a_stopped_consumer_blocks_one_entity_only(worlds: Worlds) -> None:
    """Every other task runs while it is stopped."""

    async def check(world: FanoutWorld, log: Path) -> None:
        window = await world.window(DAY_S)
        await world.put_task("A", window=window)
        zombie = world.spawn("consumer", log, FANOUT_STOP_AT="fanout.begun")
        async with killed_at_the_end(zombie):
            await stopped(zombie)
            async with world.consumer({MODULE: Hub()}):
                await asyncio.gather(*(world.put_task(code, window=window) for code in CODES))
                await won(world, CODES, window)

    await worlds.each(check)


async def test_a_success_that_is_in_no_store_yet_outlives_its_session(worlds: Worlds) -> None:
    """The consumer keeps it while the database is unavailable; a session lost meanwhile does not undo it."""
    world, hub = await worlds.make("postgres"), Hub()
    window = await world.window(DAY_S)
    hub.hold("A")
    async with (
        TcpProxy("127.0.0.1", worlds.postgres.port) as proxy,
        world.consumer({MODULE: hub}, database_url=proxy.rewrite(world.url)) as consumer,
    ):
        await world.put_task("A", window=window)
        await eventually_async(lambda: hub.codes == ["A"], what="it runs")
        proxy.refuse()
        proxy.reset()
        hub.release("A")
        await eventually_async(lambda: consumer.counts["succeeded"] == 1, what="it has ended, in no store")
        async with world.pool.acquire() as connection, connection.transaction():
            tokens = [row["id"] for row in await connection.fetch(LOSE_ALL)]
            await LedgerRunClaims(world.pool).reclaim(connection, tokens)
        assert await wins_of(world) == []
        proxy.heal()
        await won(world, ["A"], window)
    row = await world.cursor("A")
    assert row["last_success_at"].timestamp() >= window.start_s
