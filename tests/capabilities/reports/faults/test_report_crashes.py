"""Processes of reports killed in the middle: another one makes the file, whole and once, and nothing else is left."""

import os
import signal
from pathlib import Path

import pytest

from kit.fanout import killed
from kit.fanout_worlds import killed_at_the_end
from kit.merges import lives
from kit.report_faults import AGAIN_S, LARGE, SMALL, ReportWorlds, ask, functions, is_clean, is_made, start
from kit.reports import ReportWorld, plan_of
from kit.waiting import eventually_async
from tickwright.capabilities.reports.plan import Listener

POINTS = ("part_claimed", "part_fetched", "part_uploaded", "part_marked", "merging", "merged", "uploaded", "finished")
ALONE = ("part_fetched", "part_uploaded", "merged", "uploaded")
"""Points that are tested without Redis, as well."""


def log_of(world: ReportWorld, name: str = "child") -> Path:
    """Return where a child of a world writes to."""
    return world.folder / f"{name}.log"


async def check_killed(world: ReportWorld, redis: str | None, case: tuple[str, int]) -> None:
    """G1, G2, G3: within a lease and seconds another process has made the file."""
    point, rows = case
    child = start(world, log_of(world), redis, REPORT_KILL_AT=f"reports.{point}")
    async with killed_at_the_end(child):
        report = await ask(world, rows)
        await killed(child, within_s=60)
    async with world.process(functions()):
        row = await is_made(world, report)
    assert row["restarts"] == 0
    await is_clean(world, report)


@pytest.mark.storm
async def test_another_process_finishes_the_report_of_a_killed_one(report_worlds: ReportWorlds) -> None:
    """Kill -9 at every point between two effects, with Redis and without: the same file, once."""
    cases = [("redis", check_killed, (point, LARGE)) for point in POINTS]
    cases += [("redis", check_killed, ("part_marked", SMALL))]
    cases += [("postgres", check_killed, (point, LARGE)) for point in ALONE]
    for some in (cases[:5], cases[5:9], cases[9:]):  # each case starts an interpreter
        await report_worlds.each(*some)


async def test_a_part_that_kills_its_process_fails_its_own_report_only(report_worlds: ReportWorlds) -> None:
    """Its attempts count although no process reported their failure; the error names the lost process."""
    world = await report_worlds.make("redis")
    plan = plan_of(Listener(name="lefts", kind="function", attempts=2), merge="SELECT * FROM lefts")
    asked = {"rows": 1, "seed": 1}
    report = await world.request(plan, asked)
    for number in range(2):
        child = start(world, log_of(world, f"poisoned{number}"), report_worlds.redis.url, REPORT_POISON="lefts")
        async with killed_at_the_end(child):
            await killed(child, within_s=AGAIN_S)
    async with world.process(functions()):
        good = await ask(world)
        row = await world.over(report, AGAIN_S)
        await is_made(world, good)
    assert (row["status"], row["error_code"]) == ("failed", "part_failed")
    assert row["error"] == "lefts: the process that ran it was lost 2 times after 3 attempts"
    await is_clean(world, report)


async def test_a_merge_that_kills_its_process_is_given_up(report_worlds: ReportWorlds) -> None:
    """A file too large for every machine must not kill one process after another until its deadline."""
    world = await report_worlds.make("postgres")
    report = await ask(world)
    async with world.process(functions()) as process:
        await is_made(world, report)
        await process.stop()
    lost = "UPDATE tickwright.reports SET tries = 10 WHERE id = $1"
    second = await ask(world)
    await world.pool.execute(lost, second)
    async with world.process(functions()):
        row = await world.over(second)
    assert (row["error_code"], row["status"]) == ("merge_lost", "failed")
    assert "was lost in each of 10 tries" in row["error"]


def merging(world: ReportWorld) -> list[str]:
    """Return the files that merges are writing."""
    return [str(path) for path in (world.folder / "work").glob("*/out.csv") if path.stat().st_size > 0]


async def test_a_merge_process_that_is_killed_costs_a_try_and_no_report(report_worlds: ReportWorlds) -> None:
    """Kill -9 in the middle of a merge: the worker goes on, and the next try has another process."""
    world = await report_worlds.make("postgres")
    many = 5_000_000
    report = await world.request(
        plan_of("lefts", "rights", merge=f"SELECT range AS n FROM range({many})"), {"rows": 1, "seed": 1}
    )
    async with world.process(functions()) as process:
        await eventually_async(lambda: merging(world))
        for pid in process.merges.pids:
            os.kill(pid, signal.SIGKILL)
        row = await world.finished(report)
    assert (row["rows"], row["tries"]) == (many, 2)


async def test_cancelling_a_report_ends_its_merge(report_worlds: ReportWorlds) -> None:
    """Even if its SQL does not end: its process and its files are gone."""
    world = await report_worlds.make("postgres")
    endless = "SELECT a.range AS a, b.range AS b FROM range(10000000) a, range(10000000) b"
    report = await world.request(plan_of("lefts", "rights", merge=endless), {"rows": 1, "seed": 1})
    async with world.process(functions()) as process:
        await eventually_async(lambda: merging(world))
        pids = process.merges.pids
        await world.cancel(report)
        await eventually_async(lambda: not all(map(lives, pids)))
        await eventually_async(lambda: not [*(world.folder / "work").iterdir()])
        await is_made(world, await ask(world))
