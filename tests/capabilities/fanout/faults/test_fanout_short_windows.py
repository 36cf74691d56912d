"""Windows that are shorter than a claim of the usual length: a killed scheduler loses none of them."""

from pathlib import Path

from kit.fanout import FanoutWorld, killed
from kit.fanout_worlds import Worlds, killed_at_the_end
from kit.waiting import eventually_async

CODES = [f"E{number}" for number in range(12)]
WINDOW_S = 15


async def check_a_killed_scheduler(world: FanoutWorld, log: Path) -> None:
    """It dies at the beginning of its second window, with all of it claimed."""
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


async def test_claims_of_a_killed_scheduler_are_published_within_a_short_window(worlds: Worlds) -> None:
    """A claim lasts half of a window that is shorter than twenty seconds."""
    await worlds.each(check_a_killed_scheduler)
