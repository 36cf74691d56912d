"""Measure what hanging entities cost healthy ones of fan-out: the rule off (100 %), then on (25 %), in one run.

    PYTHONPATH=tests python bench/fanout_slow.py POSTGRES_URL AMQP_URL [SECONDS]

One scheduler and three consumers with eight slots each, 200 entities of which 30 hang until their timeout of 10 s,
windows of 4 s. The database has to be migrated and empty; queues have names of their own and are removed. What is
counted begins with the first window after every hanging entity has timed out once.
"""

import asyncio
import sys
import time
from collections import defaultdict

from kit.fanout import MODULE, FanoutWorld, fanout_world
from kit.waiting import eventually_async
from tickwright.capabilities.fanout.handlers import EntityTask

WINDOW_S, TIMEOUT_MS, SLOTS = 4, 10_000, 8
HEALTHY = [f"E{number}" for number in range(170)]
HANGING = [f"H{number}" for number in range(30)]


class Hub:
    """Healthy entities answer within 20 ms, the others never."""

    def __init__(self) -> None:
        self.done: dict[float, list[float]] = defaultdict(list)
        self.timed_out: set[str] = set()

    async def __call__(self, task: EntityTask) -> None:
        """Run a task; note how long after the begin of its window it ended."""
        if task.entity_code in HANGING:
            try:
                await asyncio.Event().wait()
            finally:
                self.timed_out.add(task.entity_code)
        await asyncio.sleep(0.02)
        window_s = task.window_at.timestamp()
        self.done[window_s].append(time.time() - window_s)


async def measure(world: FanoutWorld, percent: int, seconds: float) -> None:
    """Run for a while; print windows of healthy entities that were lost, and the 99th percentile of the others."""
    hub, modules = Hub(), {}
    modules[MODULE] = hub
    async with (
        world.consumer(modules, slots=SLOTS, slow_percent=percent),
        world.consumer(modules, slots=SLOTS, slow_percent=percent),
        world.consumer(modules, slots=SLOTS, slow_percent=percent),
        world.scheduler(),
    ):
        await eventually_async(lambda: len(hub.timed_out) == len(HANGING), 120)
        begin = time.time() // WINDOW_S * WINDOW_S + WINDOW_S
        await asyncio.sleep(begin - time.time() + seconds)
    windows = [begin + n * WINDOW_S for n in range(int(seconds) // WINDOW_S)]
    late = sorted(one for window in windows for one in hub.done[window])
    wanted = len(windows) * len(HEALTHY)
    p99 = late[int(len(late) * 0.99)] if late else float("nan")
    print(f"{percent:3} % for slow ones: {wanted - len(late)} of {wanted} healthy windows lost, p99 {p99:.2f} s")


async def main() -> None:
    """Measure both."""
    url, amqp_url, seconds = sys.argv[1], sys.argv[2], float((sys.argv[3:] or ["40"])[0])
    for percent in (100, 25):
        async with fanout_world(url, amqp_url or None, None) as world:
            await world.pool.execute("TRUNCATE tickwright.entities, tickwright.fanout_cursors CASCADE")
            await world.put_module(interval_s=WINDOW_S, timeout_ms=TIMEOUT_MS)
            await world.put_entities([*HEALTHY, *HANGING])
            await measure(world, percent, seconds)


if __name__ == "__main__":
    asyncio.run(main())
