"""Merge processes for tests, and what the machine says of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kit.waiting import eventually_async
from tickwright.capabilities.reports.merge_processes import MergeProcesses


@asynccontextmanager
async def merge_processes(at_once: int = 1) -> AsyncIterator[MergeProcesses]:
    """Keep merge processes for the length of the block; all of them are there when it begins, and gone behind it."""
    merges = MergeProcesses(at_once=at_once)
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
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


def status_bytes(pid: int, name: str) -> int:
    """Return a figure of ``/proc/PID/status``, such as ``VmHWM``."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
