"""Merges that cannot go on: no memory, no disk, or a cancelled caller. They leave no file and no process."""

import asyncio
from pathlib import Path

import pytest

from kit.merges import ENDLESS, failed, grown, left, lives, merge_processes, merged
from kit.waiting import eventually_async
from tickwright.capabilities.reports.merge.merge import PartFile
from tickwright.capabilities.reports.merge.process_pool import MergeProcesses
from tickwright.capabilities.reports.merge.program import MergeJob
from tickwright.capabilities.reports.merge.sandbox import MergeBounds, threads_for
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.ports.reports import Column

BOUNDS = MergeBounds(memory_bytes=128 * 1024 * 1024, threads=1)  # each thread reads with 64 MiB
ROWS = 200_000


@pytest.fixture
def numbers(tmp_path: Path) -> PartFile:
    """A part of 200,000 rows."""
    path = tmp_path / "numbers.ndjson"
    pad = "x" * 100
    path.write_text("".join(f'{{"id": {number * 7919 % ROWS}, "pad": "{pad}"}}\n' for number in range(ROWS)))
    return PartFile("numbers", path, (Column("id", "BIGINT"), Column("pad", "VARCHAR")))


@pytest.mark.storm
async def test_a_sort_that_memory_does_not_hold_is_spilled_and_complete(
    merges: MergeProcesses, tmp_path: Path, numbers: PartFile
) -> None:
    """A sort of more than it may hold spills into the folder; every row comes out, and no spilled file stays."""
    sql = "SELECT n.id, n.pad || range AS p FROM numbers AS n, range(16) ORDER BY hash(n.id), range"
    out, spill = tmp_path / "out.csv", tmp_path / "spill"
    bounds = BOUNDS
    task = asyncio.create_task(merged(merges, [numbers], sql, tmp_path, bounds))
    await eventually_async(lambda: task.done() or (spill.is_dir() and any(spill.iterdir())), 60)
    assert not task.done(), "nothing was spilled"
    assert (await task).rows == 16 * ROWS
    assert merges._warm, "the process has not released its memory"
    assert left(tmp_path) == ["out.csv"]
    ids = [int(line.split(b",")[0]) for line in out.read_bytes().split(b"\r\n")[1:-1]]
    assert (len(ids), sum(ids)) == (16 * ROWS, 16 * sum(range(ROWS)))


async def test_a_merge_that_needs_more_memory_than_it_may_use_is_refused(
    merges: MergeProcesses, tmp_path: Path, numbers: PartFile
) -> None:
    """What cannot be spilled, such as one long list, ends the merge and not the process."""
    error = await failed(merges, [numbers], "SELECT list(pad || id) AS l FROM numbers", tmp_path, BOUNDS)
    assert isinstance(error, Rejected)
    assert error.code == "merge_too_large"


async def test_a_file_that_outgrows_its_bound_is_stopped(
    merges: MergeProcesses, tmp_path: Path, numbers: PartFile
) -> None:
    """The bound on disk holds for the file, too, which DuckDB itself does not limit."""
    error = await failed(merges, [numbers], ENDLESS, tmp_path, BOUNDS._replace(disk_bytes=4 * 1024 * 1024))
    assert isinstance(error, Rejected)
    assert error.code == "merge_too_large"
    assert "4194304 bytes of disk" in error.message


async def test_spilling_has_a_bound(merges: MergeProcesses, tmp_path: Path, numbers: PartFile) -> None:
    """A sort of four times its memory, every byte of which comes out, needs more of the disk than it may use."""
    sql = "SELECT pad || range AS p FROM numbers, range(20) ORDER BY hash(p)"
    error = await failed(merges, [numbers], sql, tmp_path, BOUNDS._replace(disk_bytes=8 * 1024 * 1024))
    assert error.code == "merge_too_large"


async def test_a_full_disk_is_a_retriable_error_and_leaves_no_file(
    merges: MergeProcesses, tmp_path: Path, numbers: PartFile
) -> None:
    """``/dev/full`` answers every write as a full disk does."""
    out = tmp_path / "out.csv"
    out.symlink_to("/dev/full")
    error = await failed(merges, [numbers], "SELECT * FROM numbers", tmp_path, BOUNDS)
    assert isinstance(error, Unavailable)
    assert error.code == "no_space"


async def test_a_part_whose_file_is_missing_is_not_an_empty_part(
    merges: MergeProcesses, tmp_path: Path, numbers: PartFile
) -> None:
    """A report is never made without its rows."""
    numbers.path.unlink()
    assert (await failed(merges, [numbers], "SELECT * FROM numbers", tmp_path, BOUNDS)).code == "part_unreadable"


@pytest.mark.parametrize("times", [1, 3])
async def test_a_cancelled_merge_stops_at_once_and_is_waited_for(
    merges: MergeProcesses, tmp_path: Path, numbers: PartFile, times: int
) -> None:
    """Afterwards nothing writes into its folder any more, however often it was cancelled."""
    out = tmp_path / "out.csv"
    task = asyncio.create_task(merged(merges, [numbers], ENDLESS, tmp_path, BOUNDS))
    await eventually_async(lambda: grown(out))
    pids = merges.pids
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left(tmp_path) == []
    assert not any(map(lives, pids))


async def test_a_merge_cancelled_before_its_first_statement_runs_none(
    merges: MergeProcesses, tmp_path: Path, numbers: PartFile
) -> None:
    """No statement runs after its end."""
    task = asyncio.create_task(merged(merges, [numbers], ENDLESS, tmp_path, BOUNDS))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left(tmp_path) == []


async def test_a_deadline_of_the_caller_ends_a_merge(merges: MergeProcesses, tmp_path: Path, numbers: PartFile) -> None:
    """The report sets how long it may take."""
    out = tmp_path / "out.csv"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await merges.answer(MergeJob(parts=[numbers], sql=ENDLESS, out=out, folder=tmp_path, bounds=BOUNDS))
    assert left(tmp_path) == []


async def test_merges_in_parallel_share_nothing(tmp_path: Path) -> None:
    """Each has a connection, a process and a folder of its own, and other rows under the same name."""
    parts = []
    for number in range(6):
        path = tmp_path / f"{number}" / "part.ndjson"
        path.parent.mkdir()
        path.write_text(f'{{"id": {number}}}\n')
        parts.append(PartFile("numbers", path, (Column("id", "BIGINT"),)))
    outs = [part.path.parent / "out.csv" for part in parts]
    async with merge_processes(3) as merges:
        await asyncio.gather(
            *(
                merges.answer(MergeJob(parts=[part], sql="SELECT * FROM numbers", out=out, folder=out.parent))
                for part, out in zip(parts, outs, strict=True)
            )
        )
    assert [out.read_bytes() for out in outs] == [f"id\r\n{number}\r\n".encode() for number in range(6)]


@pytest.mark.parametrize("order", ["", " ORDER BY a.pad, n"], ids=["joined", "sorted"])
async def test_the_least_memory_is_enough_for_a_join_that_has_to_spill(
    merges: MergeProcesses, tmp_path: Path, numbers: PartFile, order: str
) -> None:
    """A join of far more than it may hold is spilled, not refused."""
    others = PartFile("others", tmp_path / "others.ndjson", numbers.columns)
    others.path.write_bytes(numbers.path.read_bytes())
    sql = (
        f"SELECT a.id, a.pad, b.pad AS other, n FROM numbers a JOIN others b USING (id) CROSS JOIN range(4) r(n){order}"
    )
    least = BOUNDS.memory_bytes
    file = await merged(merges, [numbers, others], sql, tmp_path, MergeBounds(least, threads_for(least)))
    assert file.rows == 4 * ROWS
