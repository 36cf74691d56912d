"""RabbitMQ is killed, silent or full while fan-out publishes and consumes: no task is lost, each counts once."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic

import pytest

from kit.fanout import MODULE, FanoutWorld, Hub
from kit.fanout_worlds import DAY_S, Worlds, killed_at_the_end, told, wins_of, won
from kit.preloads import WorkerClock
from kit.probes import Stops
from kit.servers import RabbitServer
from kit.tcp_proxy import TcpProxy
from kit.waiting import eventually_async
from tickwright.capabilities.fanout.scheduler.scheduler import FanoutScheduler

CODES = [f"E{number}" for number in range(60)]
MANY = [f"E{number}" for number in range(400)]
TARIFF_CODES = [f"T{number}" for number in range(50)]
BACK_S = 60  # RabbitMQ takes its time to start


@pytest.fixture(scope="module")
def rabbit_server(mortal_rabbit: RabbitServer) -> RabbitServer:
    """The worlds of this module use a node that tests may kill."""
    return mortal_rabbit


def not_sent(scheduler: FanoutScheduler) -> int:
    """Return how often a message was not confirmed."""
    return scheduler.counts["refused"] + scheduler.counts["unknown"]


@pytest.mark.storm
async def test_a_killed_node_loses_nothing_that_is_published_or_worked_on(worlds: Worlds) -> None:
    """Kill -9 between claim and publish of one module, and during another: tasks run once, processes reconnect."""
    world, hub, stops = await worlds.make("redis"), Hub(), Stops()
    await world.put_module("TARIFFS", interval_s=DAY_S)
    await world.put_entities(MANY, MODULE)
    window = await world.window(DAY_S)
    for code in MANY[:20]:
        hub.hold(code)
    handlers = {MODULE: hub, "TARIFFS": hub}
    async with (
        world.scheduler(probe=stops) as scheduler,
        world.consumer(handlers, slots=30) as one,
        world.consumer(handlers, slots=30) as two,
    ):
        await eventually_async(lambda: len(hub.ended) >= 100, 30, what="some are done")
        await eventually_async(lambda: scheduler.settled == len(MANY), 30, what="the first module is published")
        stops.close("fanout.claimed")
        before = stops.reached_times["fanout.claimed"]
        await world.put_entities(TARIFF_CODES, "TARIFFS")
        await eventually_async(lambda: stops.reached_times["fanout.claimed"] > before, 20, what="they are claimed")
        await asyncio.to_thread(worlds.rabbit.sync_definitions)
        await asyncio.to_thread(worlds.rabbit.kill9)
        stops.open("fanout.claimed")
        for code in MANY[:20]:
            hub.release(code)
        await eventually_async(lambda: not_sent(scheduler) > 0, 20, what="refused")
        await asyncio.to_thread(worlds.rabbit.start)
        places = {(code, MODULE, window.start_s) for code in MANY} | {
            (code, "TARIFFS", window.start_s) for code in TARIFF_CODES
        }

        async def all_won() -> bool:
            return set(await wins_of(world)) >= places

        await eventually_async(all_won, BACK_S, what="all succeeded")
        await eventually_async(
            lambda: (
                one.counts["succeeded"] + two.counts["succeeded"] + one.counts["lost"] + two.counts["lost"]
                >= len(places)
            ),
            20,
            what="all are acknowledged, or come again",
        )
        await world.queues.counted(world.queue, 0)
        assert scheduler.counts["missed"] == 0
    assert Counter(await wins_of(world)) == Counter(places)
    assert Counter(hub.ended) == world.ids(MANY, window) + world.ids(TARIFF_CODES, window, "TARIFFS")
    assert hub.overlaps == []


@pytest.mark.storm
async def test_lost_confirms_cost_duplicates_and_nothing_else(worlds: Worlds) -> None:
    """Unconfirmed messages are sent again under the same claim and id; consumers drop the second copy."""

    async def check(world: FanoutWorld, _log: Path) -> None:
        hub = Hub()
        window = await world.window(DAY_S)
        async with TcpProxy("127.0.0.1", worlds.rabbit.port) as proxy:
            stops = Stops()
            async with world.scheduler(probe=stops, amqp_url=proxy.rewrite(world.queues.url)) as scheduler:
                await world.put_entities(["FIRST"])
                await eventually_async(lambda: scheduler.counts["published"] == 1, what="it is connected")
                stops.close("fanout.claimed")
                await world.put_entities(CODES)
                await eventually_async(lambda: stops.facts["fanout.claimed"] == {"places": len(CODES)}, what="claimed")
                proxy.drop_replies()
                stops.open("fanout.claimed")
                await world.queues.counted(world.queue, 1 + len(CODES))
                await eventually_async(lambda: scheduler.counts["unknown"] == len(CODES), what="nothing is confirmed")
                proxy.heal()
                proxy.reset()
                await eventually_async(lambda: scheduler.settled == 1 + len(CODES), 20, what="sent again")
        async with world.consumer({MODULE: hub}, slots=8) as consumer:
            await won(world, ["FIRST", *CODES], window)
            await eventually_async(
                lambda: consumer.counts["superseded"] >= len(CODES), what="the second copies are dropped"
            )
        assert Counter(hub.ended) == world.ids(["FIRST", *CODES], window)

    await worlds.each(check)


async def test_an_alarm_delays_a_window_and_no_consumer(worlds: Worlds) -> None:
    """With a full disk, publishes are refused and retried without piling up; consumers work on what is queued."""
    world, hub = await worlds.make("redis"), Hub()
    window = await world.window(DAY_S)
    early = [f"F{number}" for number in range(20)]
    await asyncio.gather(*(world.put_task(code, window=window) for code in early))
    await world.put_entities(CODES)
    await asyncio.to_thread(worlds.rabbit.set_disk_alarm, on=True)
    try:
        async with world.scheduler() as scheduler:
            async with world.consumer({MODULE: hub}, slots=4) as consumer:
                await eventually_async(lambda: len(hub.ended) == len(early), 20, what="consumers go on")
                await eventually_async(lambda: consumer.counts["succeeded"] == len(early), 20, what="acknowledged")
            await eventually_async(
                lambda: not_sent(scheduler) >= 2 * len(CODES), 30, what="the publish was tried twice"
            )
            tasks = len(asyncio.all_tasks())
            await eventually_async(lambda: not_sent(scheduler) >= 4 * len(CODES), 30, what="and twice more")
            await eventually_async(lambda: len(asyncio.all_tasks()) <= tasks, what="no tries pile up")
            await eventually_async(lambda: (scheduler.last_tick_age_s() or 0) < 10, 30, what="it ticks")
            assert scheduler.counts["published"] == 0
            async with world.scheduler() as other:
                since = monotonic()
                await other.quiesce()
                assert monotonic() - since < 50, "a stop waits for the alarm"
            await asyncio.to_thread(worlds.rabbit.set_disk_alarm, on=False)
            async with world.consumer({MODULE: hub}, slots=8):
                await won(world, [*early, *CODES], window, 30)
            assert scheduler.counts["missed"] == 0
    finally:
        await asyncio.to_thread(worlds.rabbit.set_disk_alarm, on=False)
    assert set(hub.ended) == set(world.ids([*early, *CODES], window))
    assert hub.overlaps == []


# ---------------------------------------------------------------------------------------------- no node is killed


async def test_duplicates_under_load_run_once(worlds: Worlds) -> None:
    """Every task three times, three consumers: one run each, two dropped."""

    async def check(world: FanoutWorld, _log: Path) -> None:
        hub = Hub()
        window = await world.window(DAY_S)
        await asyncio.gather(*(world.put_task(code, window=window, times=3) for code in CODES))
        async with AsyncExitStack() as stack:
            consumers = [await stack.enter_async_context(world.consumer({MODULE: hub}, slots=7)) for _ in range(3)]
            await won(world, CODES, window)
            await eventually_async(
                lambda: sum(one.counts["superseded"] for one in consumers) == 2 * len(CODES), 20, what="dropped"
            )
        assert Counter(hub.ended) == world.ids(CODES, window)
        assert (Counter(hub.codes), hub.overlaps) == (Counter(CODES), [])

    await worlds.each(check)


@pytest.mark.matrix
@pytest.mark.parametrize("hours", [1.0, -1.0])
async def test_a_schedulers_own_clock_decides_nothing(worlds: Worlds, tmp_path: Path, hours: float) -> None:
    """A scheduler whose wall clock is off by an hour publishes the same windows as one whose clock is right."""
    clock = WorkerClock(tmp_path)
    clock.jump(hours)

    async def check(world: FanoutWorld, log: Path) -> None:
        await world.put_module(interval_s=2)
        await world.put_entities(CODES)
        begun = await world.window(2)
        shifted = world.spawn("scheduler", log, **clock.environment)
        hub = Hub()
        async with killed_at_the_end(shifted), world.consumer({MODULE: hub}, slots=8) as consumer:
            await eventually_async(lambda: told(log, "reached"), 20, what="it has begun")
            async with world.scheduler() as right:
                await eventually_async(lambda: right.settled == len(CODES), 20, what="they work side by side")
            await eventually_async(lambda: len({task.window_at for task in hub.runs}) >= 3, 20, what="three windows")
            ended = await world.window(2)
            assert consumer.counts["window_in_future"] == 0
        windows = {task.window_at.timestamp() for task in hub.runs}
        assert all(begun.start_s <= window <= ended.start_s for window in windows), windows
        assert Counter(hub.ended).most_common(1)[0][1] == 1

    await worlds.each(check)


async def test_a_disabled_entity_runs_no_more_after_the_next_reading_and_window_end(worlds: Worlds) -> None:
    """F3: no run begins after both the next reading of the list and the end of the current window."""

    async def check(world: FanoutWorld, _log: Path) -> None:
        hub = Hub()
        await world.put_module(interval_s=2)
        await world.put_entities(["OFF", "ON"])
        async with world.scheduler() as scheduler, world.consumer({MODULE: hub}, slots=4):
            await eventually_async(lambda: "OFF" in hub.codes, 20, what="it is polled")
            await world.pool.execute("UPDATE tickwright.entities SET is_polling_enabled = false WHERE code = 'OFF'")
            at_s = await world.pool.fetchval("SELECT date_part('epoch', clock_timestamp())")
            await eventually_async(
                lambda: "OFF" not in scheduler.lists.modules[MODULE].entities, 50, what="the list is read"
            )
            refreshed = await world.window(2)
            await eventually_async(
                lambda: max(task.window_at.timestamp() for task in hub.runs) >= refreshed.end_s + 4,
                20,
                what="three windows later",
            )
        last_s = max(task.window_at.timestamp() for task in hub.runs if task.entity_code == "OFF")
        assert last_s <= refreshed.start_s
        assert refreshed.start_s <= at_s + 50

    await worlds.each(check)
