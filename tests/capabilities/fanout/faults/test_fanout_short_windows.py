"""Windows that are shorter than a claim of the usual length: a killed scheduler loses none of them either."""

from pathlib import Path

from kit.fanout import FanoutWorld, killed
from kit.fanout_worlds import Worlds, killed_at_the_end
from kit.waiting import eventually_async

CODES = [f"E{number}" for number in range(12)]
WINDOW_S = 15


async def check_a_killed_scheduler(world: FanoutWorld, log: Path) -> None:
    """It dies at the beginning of its second window, with everything of it claimed."""
    await world.put_module(interval_s=WINDOW_S)
    await world.put_entities(CODES)
    victim = world.spawn("scheduler", log, FANOUT_KILL_AT="fanout.claimed", FANOUT_KILL_TIMES="2")
    async with killed_at_the_end(victim):
        await killed(victim, within_s=40)
        window = await world.window(WINDOW_S)
        async with world.scheduler() as other:
            await eventually_async(
                lambda: other.counts["published"] + other.counts["missed"] > 0, 3 * WINDOW_S, what="published or missed"
            )
            assert other.counts["missed"] == 0
    queued = await world.queued()
    assert world.ids(CODES, window) <= queued
    assert set(queued.values()) == {1}


async def test_what_a_killed_scheduler_had_claimed_of_a_short_window_is_published_within_it(worlds: Worlds) -> None:
    """A claim lives for half of a window that is shorter than twenty seconds."""
    await worlds.each(check_a_killed_scheduler)
