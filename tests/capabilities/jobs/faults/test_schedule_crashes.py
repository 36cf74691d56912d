"""Producers are killed or stopped: each occurrence of each schedule has one job."""

from datetime import timedelta
from pathlib import Path

from kit.fanout import killed
from kit.fanout_worlds import killed_at_the_end, stopped
from kit.report_faults import wake
from kit.schedules import ScheduleWorld, start_producer
from kit.waiting import eventually_async

AGAIN_S = 50
"""Enough for a lease of two seconds, the next round, and a busy machine."""
POINTS = ("producing", "decided", "written", "produced")


async def _nothing_due(world: ScheduleWorld) -> bool:
    return bool(await world.pool.fetchval("SELECT count(*) FROM tickwright.schedules WHERE due_at <= now()") == 0)


async def test_a_killed_or_stopped_producer_makes_each_job_once(schedules: ScheduleWorld, tmp_path: Path) -> None:
    """Kill -9 between any two effects, and a stop with a takeover: nothing is lost and nothing is made twice."""
    for number in range(40):
        await schedules.put_due(f"s{number}", slots=10, step=timedelta(hours=1))
    for point in POINTS:
        child = start_producer(schedules, tmp_path / f"{point}.log", SCHEDULE_KILL_AT=f"schedules.{point}")
        async with killed_at_the_end(child):
            await killed(child, within_s=AGAIN_S)
    sleeper = start_producer(schedules, tmp_path / "sleeper.log", SCHEDULE_STOP_AT="schedules.written")
    async with killed_at_the_end(sleeper):
        await stopped(sleeper, within_s=AGAIN_S)
        heir = start_producer(schedules, tmp_path / "heir.log")
        async with killed_at_the_end(heir):
            await eventually_async(lambda: _nothing_due(schedules), AGAIN_S)
            wake(sleeper)
            await eventually_async(lambda: b"lost" in (tmp_path / "sleeper.log").read_bytes(), AGAIN_S)
    sql = """
        SELECT count(*) AS jobs, count(DISTINCT execute_at) AS slots FROM tickwright.scheduled_tasks
         GROUP BY split_part(idempotency_key, ':', 2)
    """
    counts = [tuple(row) for row in await schedules.pool.fetch(sql)]
    assert counts == [(10, 10)] * 40
