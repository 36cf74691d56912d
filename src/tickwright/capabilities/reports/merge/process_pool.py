"""The merge processes of a worker: as many as merges usually run at a time, started before they are needed.

A merge waits for no interpreter and for no DuckDB to load. A process that answered takes the next job, unless it kept
memory; one that died is replaced. Who asks watches the disk, and kills the process when the job is not wanted any more:
nothing that a stranger's SQL does can stop that.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from tickwright.capabilities.reports.merge.duck import SPILL, MergeBounds, too_large
from tickwright.capabilities.reports.merge.merge import MergedFile
from tickwright.capabilities.reports.merge.messages import Answer, Job
from tickwright.capabilities.reports.merge.part_tables import PartFile
from tickwright.capabilities.reports.merge.process import START_S, MergeProcess, NotBegunError
from tickwright.capabilities.reports.types.plan import Format
from tickwright.domain.errors import TickwrightError, Unavailable
from tickwright.ports.ids import monotonic

LOOK_S = 0.2
"""How often a merge's files are measured."""
KEEP_LOOK_S = 5.0
AWAY_S = 1.0
TAKES_MAX = 5

_log = structlog.get_logger("tickwright.reports")


class MergeProcesses:
    """A :class:`tickwright.ports.service.Service` that keeps processes, and merges in them.

    Args:
        at_once: Processes, 1 to 16.
        spare: Further ones, started where all have work and another merge waits, and ended behind it.

    Invariants:
        RDK-1: when a merge is over, however it ended, nothing of it writes any more.
    """

    name = "report-merges"

    def __init__(self, *, at_once: int, spare: int = 0) -> None:
        self._at_once, self._spare, self._waiting = at_once, spare, 0
        self._all: set[MergeProcess] = set()
        self._warm: list[MergeProcess] = []
        self._spent: list[MergeProcess] = []
        self._came, self._needed = asyncio.Event(), asyncio.Event()
        self._stopping, self._over = asyncio.Event(), asyncio.Event()
        self._over.set()
        self._ticked_s: float | None = None

    @property
    def pids(self) -> list[int]:
        """The process ids of those that are there."""
        return sorted(process.pid for process in self._all)

    # ------------------------------------------------------------------ service

    async def run(self) -> None:
        """Keep processes warm until stopped; all are gone when this returns."""
        self._over.clear()
        try:
            while not self._stopping.is_set():
                look_s = await self._keep()
                self._ticked_s = monotonic()
                with suppress(TimeoutError):
                    async with asyncio.timeout(look_s):
                        await self._needed.wait()
        finally:
            await _heard_out(self._end([*self._all]))
            self._over.set()

    async def quiesce(self) -> None:
        """Merge on: steps that run may still come to their merges."""

    async def stop(self) -> None:
        """End the processes; a merge that runs is lost."""
        self._stopping.set()
        self._needed.set()
        await self._over.wait()

    def last_tick_age_s(self) -> float | None:
        """Seconds since it looked whether all are there."""
        return None if self._ticked_s is None else monotonic() - self._ticked_s

    async def _keep(self) -> float:
        """End what is spent or dead, start what is missing; return after how many seconds to look again."""
        self._needed.clear()
        spent, self._spent = self._spent, []
        dead = [process for process in self._warm if not process.is_alive]
        self._warm = [process for process in self._warm if process.is_alive]
        await self._end([*spent, *dead])
        while len(self._all) < self._wanted and not self._stopping.is_set():
            try:
                process = await MergeProcess.start()
            except TickwrightError as error:
                _log.warning("reports.merge_process_missing", code=error.code, reason=error.message)
                return AWAY_S
            self._all.add(process)
            self._warm.append(process)
            self._came.set()
        return KEEP_LOOK_S

    @property
    def _wanted(self) -> int:
        busy = len(self._all) - len(self._warm)
        return max(self._at_once, min(self._at_once + self._spare, busy + self._waiting))

    async def _end(self, processes: Sequence[MergeProcess]) -> None:
        for process in processes:
            await process.end()
            self._all.discard(process)
            self._needed.set()

    # ------------------------------------------------------------------ merging

    async def merge(
        self,
        parts: Sequence[PartFile],
        sql: str,
        out: Path,
        *,
        form: Format,
        bom: bool,
        folder: Path,
        bounds: MergeBounds | None = None,
    ) -> MergedFile:
        """Do what :func:`tickwright.capabilities.reports.merge.merge.merge` does, in a process of its own.

        Cancelled, it stops at once, and whatever of it was there is gone.

        Raises:
            Rejected: As there. Permanent.
            Unavailable: As there; ``merge_lost``: the process died, or there is none. Retry.
        """
        job = Job(parts=parts, sql=sql, folder=folder, bounds=bounds or MergeBounds(), out=out, form=form, bom=bom)
        answer = await self._done(job)
        assert answer.file is not None  # noqa: S101  an answer to a job with a file
        return answer.file

    async def feed(
        self, parts: Sequence[PartFile], sql: str, *, folder: Path, bounds: MergeBounds | None = None
    ) -> dict[str, Any]:
        """Do what :func:`tickwright.capabilities.reports.merge.merge.feed` does, in the same way.

        Raises:
            Rejected: As there. Permanent.
            Unavailable: As :meth:`merge`. Retry.
        """
        answer = await self._done(Job(parts=parts, sql=sql, folder=folder, bounds=bounds or MergeBounds()))
        assert answer.values is not None  # noqa: S101  an answer to a job without a file
        return answer.values

    async def _done(self, job: Job) -> Answer:
        for _ in range(TAKES_MAX):
            try:
                answer = await self._watched(await self._take(), job)
            except NotBegunError:
                continue  # it had died while it was warm
            if answer.problem is not None:
                raise answer.problem.error()
            return answer
        raise Unavailable("merge_lost", f"{TAKES_MAX} merge processes died before they began")

    async def _take(self) -> MergeProcess:
        self._waiting += 1
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(START_S):
                    while not self._stopping.is_set():
                        for process in reversed(self._warm):
                            if process.is_alive:
                                self._warm.remove(process)
                                return process
                        self._came.clear()
                        self._needed.set()
                        await self._came.wait()
        finally:
            self._waiting -= 1
        raise Unavailable("merge_lost", "there is no merge process; the log says why")

    async def _watched(self, process: MergeProcess, job: Job) -> Answer:
        """Ask, and measure the files meanwhile; whatever ends it before the answer ends the process, too."""
        asking = asyncio.create_task(process.ask(job))
        try:
            while not (await asyncio.wait([asking], timeout=LOOK_S))[0]:
                _check_disk(job)
            answer = asking.result()
        except BaseException:
            await _heard_out(self._broken_off(process, asking, job))
            raise
        if answer.again and len(self._all) <= self._at_once:
            self._warm.append(process)
            self._came.set()
        else:
            self._spent.append(process)
            self._needed.set()
        return answer

    async def _broken_off(self, process: MergeProcess, asking: "asyncio.Task[Answer]", job: Job) -> None:
        await self._end([process])
        await asyncio.wait([asking])
        asking.exception()
        await asyncio.to_thread(_remove, job)


async def _heard_out(work: Awaitable[None]) -> None:
    """Wait until ``work`` is over, however often we are cancelled meanwhile; that counts behind it."""
    task, cancelled = asyncio.ensure_future(work), False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    if cancelled:
        raise asyncio.CancelledError


def _check_disk(job: Job) -> None:
    files = [] if job.out is None else [job.out]
    with suppress(OSError):  # nothing is spilled yet, or no longer
        files += (job.folder / SPILL).iterdir()
    if sum(map(_bytes, files)) > job.bounds.disk_bytes:
        raise too_large(f"spilling and the file take more than {job.bounds.disk_bytes} bytes of disk")


def _bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _remove(job: Job) -> None:
    """Remove what a killed process left; one that answered has done so itself."""
    shutil.rmtree(job.folder / SPILL, ignore_errors=True)
    if job.out is not None:
        job.out.unlink(missing_ok=True)
