"""Merge processes for tests, and figures of the operating system about them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kit.waiting import eventually_async
from tickwright.capabilities.reports.merge.merge import MergedFile, PartFile
from tickwright.capabilities.reports.merge.process_pool import MergeProcesses
from tickwright.capabilities.reports.merge.program import MergeJob
from tickwright.capabilities.reports.merge.sandbox import MergeBounds
from tickwright.domain.errors import TickwrightError

ENDLESS = "SELECT a.r AS x, b.r AS y FROM range(10000000) AS a(r), range(10000000) AS b(r)"


@asynccontextmanager
async def merge_processes(at_once: int = 1, spare: int = 0) -> AsyncIterator[MergeProcesses]:
    """Run merge processes for the length of the block; all are running when it begins, and ended after it."""
    merges = MergeProcesses(at_once=at_once, spare=spare)
    running = asyncio.create_task(merges.run())
    try:
        await warm(merges, at_once)
        yield merges
    finally:
        await merges.stop()
        await running


async def warm(merges: MergeProcesses, at_once: int = 1) -> list[int]:
    """Wait until so many processes are there, and return their ids."""
    await eventually_async(lambda: len(merges.pids) == at_once, 30, what="the merge processes are there")
    return merges.pids


def lives(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


def status_bytes(pid: int, name: str) -> int:
    """Return a figure of ``/proc/PID/status``, such as ``VmHWM``; 0 for a process that is ending."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)


async def merged(
    merges: MergeProcesses, parts: Sequence[PartFile], sql: str, folder: Path, bounds: MergeBounds
) -> MergedFile:
    """Merge into ``out.csv``."""
    out = folder / "out.csv"
    answer = await merges.answer(MergeJob(parts=parts, sql=sql, out=out, folder=folder, bounds=bounds))
    assert answer.file is not None
    return answer.file


async def failed(
    merges: MergeProcesses, parts: Sequence[PartFile], sql: str, folder: Path, bounds: MergeBounds
) -> TickwrightError:
    """Return the error of a merge that leaves nothing."""
    with pytest.raises(TickwrightError) as caught:
        await merged(merges, parts, sql, folder, bounds)
    assert left(folder) == []
    return caught.value


def left(folder: Path) -> list[str]:
    """Return the files beside the parts."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".ndjson")


def grown(path: Path) -> bool:
    """Whether a file is not empty."""
    return path.exists() and path.stat().st_size > 0
