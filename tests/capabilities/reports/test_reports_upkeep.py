"""Retention of reports removes what is no longer needed from the store and the tables, and nothing else."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kit.leases import LONG, run_out
from kit.report_faults import ask, functions, is_made
from kit.reports import ReportWorld
from tickwright.capabilities.reports import retention as module
from tickwright.capabilities.reports.retention import ReportRetention
from tickwright.engine.leases import Lease, Leases
from tickwright.transports.objectstore.plugin import LazyObjects

NAME = "report-upkeep"
AGO = """
UPDATE tickwright.reports SET finished_at = now() - $2::interval, file_expires_at = now() + $3::interval WHERE id = $1
"""
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.fixture
async def lease(alone: ReportWorld) -> Lease:
    """The lease of retention."""
    lease = await Leases(alone.pool, owner="test", terms=LONG).take(NAME)
    assert lease is not None
    return lease


async def made(world: ReportWorld, *, ended: timedelta, expires: timedelta) -> Any:
    """Return a finished record that ended so long ago, and whose file has so long to live."""
    async with world.process(functions()):
        row = await is_made(world, await ask(world))
    await world.pool.execute(AGO, row["id"], ended, expires)
    return await world.record(row["id"])


async def put(world: ReportWorld, key: str) -> None:
    """Store an object, as a killed process leaves one."""
    path = world.folder / "left"
    path.write_bytes(b"left")
    await world.objects.put_file(key, path)


async def keys(world: ReportWorld) -> set[str]:
    """Return every object."""
    return {one.key for folder in ("parts/", "reports/") for one in await world.objects.listing(folder, 1000)}


async def test_an_expired_file_is_removed_and_its_record_says_so(alone: ReportWorld, lease: Lease) -> None:
    """Not earlier; the record stays, with the instant of its expiry."""
    row = await made(alone, ended=DAY, expires=HOUR)
    await ReportRetention(alone.objects).round(lease)
    assert await keys(alone) == {row["file_key"]}
    await alone.pool.execute(AGO, row["id"], DAY, -HOUR)
    upkeep = ReportRetention(alone.objects)
    assert await upkeep.round(lease) > 0
    after = await alone.record(row["id"])
    assert (after["status"], after["file_key"], after["file_address"]) == ("finished", None, None)
    assert (after["checksum"], after["file_expires_at"] is not None) == (row["checksum"], True)
    assert (await keys(alone), upkeep.counts["forget_files"]) == (set(), 1)


async def test_objects_that_did_not_count_are_removed_an_hour_after_the_end(alone: ReportWorld, lease: Lease) -> None:
    """Parts and files of other attempts; the report's file stays, and all objects of a running report."""
    row = await made(alone, ended=HOUR / 2, expires=DAY)
    running = await ask(alone)
    left = {f"reports/{row['id']}/1-9/x.csv", f"parts/{row['id']}/1/lefts-x.ndjson"}
    others = {f"parts/{running}/1/lefts-x.ndjson", f"reports/{running}/1-1/x.csv", row["file_key"]}
    for key in left | others - {row["file_key"]}:
        await put(alone, key)
    await ReportRetention(alone.objects).round(lease)
    assert await keys(alone) == left | others
    await alone.pool.execute(AGO, row["id"], 2 * HOUR, DAY)
    await ReportRetention(alone.objects).round(lease)
    assert await keys(alone) == others


async def test_old_records_are_removed_with_their_parts(alone: ReportWorld, lease: Lease) -> None:
    """Ninety days after their end; a record with a file stays as long as the file."""
    kept = await made(alone, ended=timedelta(days=91), expires=DAY)
    gone = await made(alone, ended=timedelta(days=91), expires=-DAY)
    young = await made(alone, ended=timedelta(days=89), expires=-DAY)
    await ReportRetention(alone.objects).round(lease)
    left = {row["id"] for row in await alone.pool.fetch("SELECT id FROM tickwright.reports")}
    assert left == {kept["id"], young["id"]}
    assert (
        await alone.pool.fetchval("SELECT count(*) FROM tickwright.report_parts WHERE report_id = $1", gone["id"]) == 0
    )
    assert await keys(alone) == {kept["file_key"]}


async def test_objects_of_deleted_records_are_removed_and_foreign_ones_stay(alone: ReportWorld, lease: Lease) -> None:
    """An id below the newest record's is of a deleted one; above it, of another installation or a lost table."""
    newest = await ask(alone)
    await alone.pool.execute("DELETE FROM tickwright.reports WHERE id = $1", newest)
    newest = await ask(alone)
    unknown, foreign, strange = f"reports/{newest - 1}/1-1/x.csv", f"reports/{newest + 9}/1-1/x.csv", "reports/readme/x"
    for key in (unknown, foreign, strange):
        await put(alone, key)
    await ReportRetention(alone.objects).round(lease)
    assert await keys(alone) == {foreign, strange}


async def test_batches_are_bounded_and_a_lost_lease_ends_the_round(
    alone: ReportWorld, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round that leaves work returns 0; a process that lost the lease writes nothing."""
    monkeypatch.setattr(module, "BATCH", 2)
    monkeypatch.setattr(module, "BATCHES_MAX", 1)
    asked = [await ask(alone, seed=seed) for seed in range(3)]
    for report in asked:
        assert await alone.cancel(report)
    await alone.pool.execute("UPDATE tickwright.reports SET finished_at = now() - interval '2 hours'")
    assert await ReportRetention(alone.objects).round(lease) == 0
    cleared = "SELECT count(*) FROM tickwright.reports WHERE cleared_at IS NOT NULL"
    assert await alone.pool.fetchval(cleared) == 2
    await run_out(alone.pool, NAME)
    successor = await Leases(alone.pool, owner="successor", terms=LONG).take(NAME)
    assert successor is not None
    await ReportRetention(alone.objects).round(lease)
    assert await alone.pool.fetchval(cleared) == 2
    assert await ReportRetention(alone.objects).round(successor) > 0
    assert await alone.pool.fetchval(cleared) == 3


async def test_a_store_that_cannot_be_opened_costs_the_round_only(
    alone: ReportWorld, lease: Lease, tmp_path: Path
) -> None:
    """The scheduler opens it for each round, and goes on with its other work."""
    (tmp_path / "file").write_text("no folder")
    place = (tmp_path / "file" / "objects").as_uri()
    assert await ReportRetention(LazyObjects(place, {})).round(lease) > 0
