"""Processes of reports that sleep for longer than their lease: what they write when they wake up changes nothing."""

import signal
from typing import Any

from kit.fanout_worlds import killed_at_the_end
from kit.forks import Child
from kit.probes import Stops
from kit.report_faults import (
    AGAIN_S,
    LARGE,
    ReportWorlds,
    ask,
    asleep,
    functions,
    is_clean,
    is_made,
    is_true,
    start,
    wake,
)
from kit.reports import ReportWorld
from kit.waiting import eventually_async
from tickwright.capabilities.reports.parts.store import PartStorage
from tickwright.ports.reports import PartFacts

POINTS = ("part_claimed", "part_fetched", "part_uploaded", "part_marked", "merging", "merged", "uploaded")


async def woken(child: Child) -> None:
    """Wake a process, and wait until it has finished its work and ended."""
    wake(child)
    child.send_signal(signal.SIGTERM)
    await eventually_async(lambda: child.poll() is not None, AGAIN_S, what="the zombie has ended")
    assert child.returncode == 0


async def rows_of(world: ReportWorld, report: int) -> list[Any]:
    """Return all rows of a report."""
    parts = "SELECT * FROM tickwright.report_parts WHERE report_id = $1 ORDER BY listener"
    return [dict(await world.record(report)), *(dict(row) for row in await world.pool.fetch(parts, report))]


async def check_asleep(world: ReportWorld, redis: str | None, point: str) -> None:
    """Another process makes the file meanwhile; the zombie's objects do not count, and retention removes them."""
    child = start(world, world.folder / "zombie.log", redis, REPORT_STOP_AT=f"reports.{point}")
    async with killed_at_the_end(child):
        report = await ask(world, LARGE)
        await eventually_async(lambda: asleep(child), 60, what="it sleeps")
        async with world.process(functions()):
            row = await is_made(world, report)
            before = await rows_of(world, report)
            await woken(child)
    assert row["restarts"] == 0
    assert await rows_of(world, report) == before
    await is_true(world, row)
    assert row["file_key"] in [one.key for one in await world.objects.listing(f"reports/{report}/", 10)]
    await is_clean(world, report)


async def test_a_zombie_changes_nothing(report_worlds: ReportWorlds) -> None:
    """SIGSTOP during the query and during the merge, after each effect, with Redis and without."""
    await report_worlds.each(*(("redis", check_asleep, point) for point in POINTS[:4]))
    await report_worlds.each(
        *(("redis", check_asleep, point) for point in POINTS[5:]),
        *(("postgres", check_asleep, point) for point in ("part_uploaded", "uploaded")),
    )


async def test_a_zombie_does_not_remove_a_part_that_it_marked(report_worlds: ReportWorlds) -> None:
    """Its mark counts, so another attempt uses its object; the zombie has lost its claim, and leaves the object."""
    world, redis = await report_worlds.make("redis"), report_worlds.redis.url
    child = start(world, world.folder / "zombie.log", redis, REPORT_STOP_AT="reports.part_marked")
    stops = Stops()
    stops.close("reports.merging")
    async with killed_at_the_end(child):
        report = await ask(world, LARGE)
        await eventually_async(lambda: asleep(child), 60, what="it sleeps")
        async with world.process(functions(), probe=stops):
            await eventually_async(lambda: stops.reached_times["reports.merging"] == 1, AGAIN_S)
            await woken(child)
            stops.open("reports.merging")
            row = await is_made(world, report)
    assert (row["epoch"], row["restarts"]) == (1, 0)
    await is_clean(world, report)


async def test_an_attempt_that_lost_does_not_remove_the_object_of_the_hash(report_worlds: ReportWorlds) -> None:
    """The same, step by step: the second attempt uses the first one's object, and the first one has lost."""
    world = await report_worlds.make("redis")
    await ask(world)
    slots, places = {"function:lefts": 1}, PartStorage(world.parts, world.shared, world.objects)
    path = world.folder / "rows.ndjson"
    path.write_bytes(b'{"id":1}\n' * 40_000)
    facts = PartFacts((), 40_000, path.stat().st_size, "0" * 64)
    [first] = await world.parts.claim(1, slots)
    kept = await places.put(first.key, path, facts, plan=first.plan)
    await world.pool.execute("UPDATE tickwright.report_parts SET state = 'due', owner = NULL WHERE owner = 1")
    [second] = await world.parts.claim(2, slots)
    assert await places.put(second.key, path, facts, plan=second.plan) == kept
    assert kept is not None
    assert kept.object_key is not None
    assert await world.parts.finish(second, 2, kept)
    assert not await world.parts.finish(first, 1, kept)
    await places.forget(kept)
    assert await world.objects.size(kept.object_key) == facts.bytes
