"""A disk that is full while a report is made: writes are tried again, and no file is cut short."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

from kit.merges import warm
from kit.probes import Stops
from kit.report_faults import AGAIN_S, LARGE, ReportWorlds, ask, functions, is_clean, is_made
from kit.waiting import eventually_async
from tickwright.capabilities.reports.parts.store import INLINE_BYTES_MAX

SPACE_BYTES = 64 * 1024
"""Less than a part and than the file, so that writing them ends in the middle, as on a full disk."""


@contextmanager
def full_disk() -> Iterator[None]:
    """Let no file of this process grow beyond ``SPACE_BYTES`` in the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SPACE_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_part_that_finds_no_disk_space_is_fetched_again(report_worlds: ReportWorlds) -> None:
    """The part has the error; no part is done meanwhile, nothing stays on the disk, and then the file is whole."""
    world = await report_worlds.make("redis")
    async with world.process(functions()) as process:
        await warm(process.merges)  # a process that starts meanwhile would keep the limit
        with full_disk():
            report = await ask(world, rows=LARGE)

            async def found_no_space() -> bool:
                parts = [await world.part(report, name) for name in ("lefts", "rights")]
                assert "done" not in {part["state"] for part in parts}
                return all("no_space" in (part["error"] or "") for part in parts)

            await eventually_async(found_no_space, AGAIN_S, what="both parts found no space")
            assert [path.name for path in (world.folder / "work").glob("*.ndjson")] == []
        row = await is_made(world, report)
        assert (await world.part(report, "lefts"))["bytes"] > INLINE_BYTES_MAX
    assert row["epoch"] == 1
    await is_clean(world, report)


async def test_a_file_that_finds_no_space_in_the_store_is_uploaded_again(report_worlds: ReportWorlds) -> None:
    """The record is not finished with a cut file; the next try makes the whole file again."""
    world, stops = await report_worlds.make("postgres"), Stops()
    stops.close("reports.merged")
    async with world.process(functions(), probe=stops) as process:
        report = await ask(world, rows=LARGE)
        await eventually_async(lambda: stops.reached_times["reports.merged"] == 1, AGAIN_S, what="it is merged")
        with full_disk():
            stops.open("reports.merged")
            await eventually_async(lambda: process.supervisor.counts["unavailable"] >= 1, AGAIN_S, what="no space")
            row = await world.record(report)
            assert (row["status"], row["file_key"]) == ("merging", None)
        row = await is_made(world, report)
    assert row["tries"] >= 2
    await is_clean(world, report)
