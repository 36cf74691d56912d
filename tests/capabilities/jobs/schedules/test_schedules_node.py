"""Schedules under real processes: a job starts at its slot, an edit takes effect at once, old code beside them."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from kit.cli import environment, tickwright
from kit.processes import spawn
from kit.schedules import ScheduleWorld
from kit.waiting import eventually_async
from tickwright import Job, Tickwright
from tickwright.plugin.settings import Settings
from tickwright.process.node import open_node

SECOND = timedelta(seconds=1)


class Log:
    """What the handler of a periodic job saw: when it was due, and the database's clock at its start."""

    def __init__(self, world: ScheduleWorld) -> None:
        self._world = world
        self.starts: list[tuple[datetime, datetime]] = []

    async def note(self, job: Job) -> None:
        """Note a start."""
        self.starts.append((job.execute_at, await self._world.now()))


@asynccontextmanager
async def node(world: ScheduleWorld, *roles: str) -> AsyncIterator[Log]:
    """Run the roles with a handler of the type ``tidy`` in this process."""
    log = Log(world)
    app = Tickwright()
    app.job("tidy")(log.note)
    settings = Settings(database_url=world.url, metrics_bind="127.0.0.1:0")
    async with open_node(settings, roles, registrations=app.registrations, any_port=True) as process:
        running = asyncio.create_task(process.run(signals=False))
        try:
            yield log
        finally:
            process.supervisor.request_stop()
            await running


async def test_jobs_of_every_second_start_at_their_slots(schedules: ScheduleWorld) -> None:
    """Written ahead, in order, each slot once, and none before its instant by the database's clock."""
    async with node(schedules, "worker", "scheduler") as log:
        await schedules.put(every=SECOND)
        await eventually_async(lambda: len(log.starts) >= 4, 60, what="four starts")
    slots = [slot for slot, _ in log.starts]
    assert len(slots) == len(set(slots))
    assert all(slot.microsecond == 0 and start >= slot for slot, start in log.starts)
    ahead = "SELECT count(*) FROM tickwright.scheduled_tasks WHERE created_at < execute_at - interval '0.5 seconds'"
    assert await schedules.pool.fetchval(ahead) >= 2


async def test_a_new_and_an_edited_schedule_wake_the_producer(schedules: ScheduleWorld) -> None:
    """By a notification, while the producer rests until a slot that is hours away."""
    far = (await schedules.now()).replace(microsecond=0) + timedelta(days=2)
    async with node(schedules, "scheduler"):
        await schedules.put("far", every=timedelta(days=3), first_at=far)

        async def is_read() -> bool:
            return bool((await schedules.row("far"))["next_slot_at"] == far)

        await eventually_async(is_read, 30, what="the new schedule is read")
        await schedules.pool.execute("UPDATE tickwright.schedules SET every = '1 second', first_at = NULL")
        await eventually_async(lambda: schedules.jobs("far"), 30, what="the edited schedule has a job")


async def test_a_job_that_did_not_start_in_time_is_cancelled(schedules: ScheduleWorld) -> None:
    """Where the schedule says so: a worker that comes later does not run it."""
    await schedules.put_due(expires_after=timedelta(minutes=5))
    await schedules.produce()
    async with node(schedules, "worker") as log:

        async def is_cancelled() -> bool:
            return [job["status"] for job in await schedules.jobs()] == ["cancelled"]

        await eventually_async(is_cancelled, 30, what="the job is cancelled")
    assert log.starts == []


async def test_the_commands_do_what_the_routes_do(schedules: ScheduleWorld, tmp_path: Path) -> None:
    """Put, change, list, show, preview, pause, enable, run now, explain, delete; a mistake has its code."""
    env = environment(DATABASE_URL=schedules.url, HOME=str(tmp_path))

    async def run(*words: str) -> object:
        said = await asyncio.to_thread(tickwright, "schedules", *words, "--json", env=env)
        assert said.code == 0, said.err
        return said.json

    def of(answer: object, *names: str) -> list[object]:
        assert isinstance(answer, dict)
        return [answer[name] for name in names]

    made = await run("put", "nightly", "--type", "tidy", "--cron", "0 3 * * *", "--time-zone", "Europe/Kyiv")
    assert of(made, "created") == [True]
    changed = await run("put", "nightly", "--every", "15m", "--payload", '{"a": 1}')
    assert of(of(changed, "schedule")[0], "cron", "every", "version") == [None, "15m", 2]
    (listed,) = of(await run("list"), "items")
    assert [of(one, "name", "text") for one in listed] == [["nightly", "Every 15m"]]  # type: ignore[attr-defined]
    assert of(await run("show", "nightly"), "payload") == [{"a": 1}]
    (shown,) = of(await run("preview", "nightly", "--count", "3"), "occurrences")
    assert len(shown) == 3  # type: ignore[arg-type]
    assert of(await run("preview", "--cron", "0 9 * * 1-5"), "text") == ["At 09:00 on Monday through Friday"]
    assert of(await run("pause", "nightly"), "state") == ["paused"]
    assert of(await run("explain", "nightly"), "status") == ["paused"]
    assert of(await run("enable", "nightly"), "state") == ["active"]
    assert of(await run("run-now", "nightly"), "created") == [True]
    assert await run("delete", "nightly") == {"deleted": "nightly"}
    refused = await asyncio.to_thread(
        tickwright, "schedules", "put", "x", "--type", "tidy", "--cron", "0 0 31 2 *", "--json", env=env
    )
    assert (refused.code, refused.error["code"]) == (1, "invalid_cron")


@pytest.mark.storm
async def test_a_killed_scheduler_is_followed_by_another_one(schedules: ScheduleWorld, tmp_path: Path) -> None:
    """Kill -9 of a whole process with the role: the other one continues, and each slot has one job."""
    env = environment(DATABASE_URL=schedules.url, HOME=str(tmp_path), METRICS_BIND="127.0.0.1:0", LOCK_AT_MOST_FOR="2s")
    words = [sys.executable, "-m", "tickwright", "run", "scheduler"]
    children = [spawn(words, tmp_path / f"{number}.log", env) for number in range(2)]
    try:
        await schedules.put(every=SECOND, misfire="all", misfire_grace=timedelta(hours=1))
        await eventually_async(lambda: _has_jobs(schedules, 3), 60, what="three jobs")
        children[0].kill()
        before = len(await schedules.jobs())
        await eventually_async(lambda: _has_jobs(schedules, before + 5), 60, what="five more")
    finally:
        for child in children:
            child.kill()
            child.wait(20)
    slots = [job["execute_at"] for job in await schedules.jobs()]
    assert slots == [slots[0] + number * SECOND for number in range(len(slots))]


async def _has_jobs(world: ScheduleWorld, number: int) -> bool:
    return len(await world.jobs()) >= number
