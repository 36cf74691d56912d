"""Entities that hang hold a share of the slots; every other slot is left to the healthy ones."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest
import structlog.testing

from kit.fanout import MODULE, FanoutWorld, Hub, fanout_world
from kit.servers import RabbitServer, RedisServer
from kit.waiting import eventually_async
from tickwright.capabilities.fanout.handlers import EntityTask
from tickwright.capabilities.fanout.windows import Window

SLOTS, SHARE = 8, 2
HANGING = [f"H{number}" for number in range(10)]
HEALTHY = [f"E{number}" for number in range(30)]
TIMED_OUT = """
INSERT INTO tickwright.fanout_cursors (entity_code, task_type, failures, last_error, last_error_at)
SELECT code, $2, $3, 'timeout', clock_timestamp() FROM unnest($1::text[]) AS u (code)
"""


@pytest.fixture(params=["rabbitmq and redis", "postgres alone"])
async def world(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[FanoutWorld]:
    """A world with everything, and one with PostgreSQL alone."""
    with_all = request.param != "postgres alone"
    rabbit: RabbitServer | None = request.getfixturevalue("rabbit_server") if with_all else None
    redis: RedisServer | None = request.getfixturevalue("redis_server") if with_all else None
    amqp_url, redis_url = [None if server is None else server.url for server in (rabbit, redis)]
    async with fanout_world(database_url, amqp_url, redis_url) as world:
        await world.put_module()
        yield world


@pytest.mark.matrix
@pytest.mark.parametrize("failures", [1, 0], ids=["its last run", "one before its last run"])
async def test_entities_that_timed_out_leave_the_slots_to_healthy_ones(world: FanoutWorld, failures: int) -> None:
    """FAN-10: by the ledger, so also after a restart; slow ones run when there is room, until they are quick again."""
    await world.pool.execute(TIMED_OUT, HANGING, MODULE, failures)
    hub = Hub()
    for code in HANGING:
        hub.hold(code)
        await world.put_task(code)
    for code in HEALTHY:
        await world.put_task(code)
    async with world.consumer({MODULE: hub}, slots=SLOTS) as consumer:
        await eventually_async(lambda: len(hub.ended) == len(HEALTHY), what="the healthy ones are done")
        await eventually_async(lambda: consumer.slow.running == SHARE, what="slow ones use their share")
        assert sum(code in HANGING for code in hub.codes) == SHARE
        assert consumer.counts["slow"] >= len(HANGING) - SHARE
        for code in HANGING:
            hub.release(code)
        await eventually_async(lambda: len(hub.ended) == len(HEALTHY) + len(HANGING), 30, what="the slow ones, too")
        await eventually_async(lambda: consumer.running == 0)
        assert consumer.slow.entities == []
    assert not hub.overlaps


class HangingHub:
    """Entities that hang until their timeout; counts concurrent runs of those that have timed out before."""

    def __init__(self) -> None:
        self.ended: Counter[str] = Counter()
        self.timed_out: Counter[str] = Counter()
        self.known_slow = self.known_slow_most = 0

    async def __call__(self, task: EntityTask) -> None:
        """Run a task."""
        if task.entity_code not in HANGING:
            self.ended[task.entity_code] += 1
            return
        was_known = self.timed_out[task.entity_code] > 0
        self.known_slow += was_known
        self.known_slow_most = max(self.known_slow_most, self.known_slow)
        try:
            await asyncio.Event().wait()
        finally:
            self.known_slow -= was_known
            self.timed_out[task.entity_code] += 1


@pytest.mark.matrix
async def test_an_entity_that_times_out_is_slow_in_every_consumer(world: FanoutWorld) -> None:
    """FAN-10: three consumers with eight slots each; through the ledger all know of a time-out in one of them."""
    hub = HangingHub()
    handlers = {MODULE: hub}
    async with (
        world.consumer(handlers, slots=SLOTS) as one,
        world.consumer(handlers, slots=SLOTS) as two,
        world.consumer(handlers, slots=SLOTS) as three,
    ):
        for code in [*HANGING, *HEALTHY]:
            await world.put_task(code, timeout_ms=500)
        await eventually_async(lambda: len(hub.ended) == len(HEALTHY), 30, what="the healthy ones are done")
        await eventually_async(lambda: hub.timed_out.total() >= 2 * len(HANGING), 60, what="they are tried again")
        assert 0 < hub.known_slow_most <= 3 * SHARE
        consumers = [one, two, three]
        assert {code for consumer in consumers for code, _ in consumer.slow.entities} == set(HANGING)


@pytest.mark.matrix
async def test_a_window_that_a_slow_entity_loses_is_in_the_log(world: FanoutWorld) -> None:
    """Operators see which entity lost which window for lack of a slow slot."""
    holder, loser = HANGING[:2]
    await world.pool.execute(TIMED_OUT, [holder, loser], MODULE, 1)
    hub = Hub()
    hub.hold(holder)
    with structlog.testing.capture_logs() as logs:
        async with world.consumer({MODULE: hub}, slots=2) as consumer:
            await world.put_task(holder)
            await eventually_async(lambda: consumer.slow.running == 1, what="the slow slot is taken")
            task = await world.put_task(loser, window=Window((await world.window(1)).start_s, 3))
            await eventually_async(lambda: consumer.counts["expired"] == 1, 30, what="its window is over")
            await eventually_async(lambda: "fanout.windows_lost_while_slow" in [one["event"] for one in logs], 20)
            hub.release(holder)
    [lost] = [entry for entry in logs if entry["event"] == "fanout.windows_lost_while_slow"]
    assert (lost["windows"], lost["tasks"], lost["slow_slots"]) == (1, [task], 1)
