"""The merge processes of a worker: as many as merges usually run at a time, started before they are needed.

A merge waits neither for an interpreter nor for DuckDB to load. A process that answered takes the next job, unless it
kept memory; one that died is replaced. The pool measures the files of each merge, and kills the process when the job is
cancelled: no SQL can prevent that.
"""

import asyncio
import shutil
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import structlog

from tickwright.capabilities.reports.merge.merge import MergedFile, PartFile
from tickwright.capabilities.reports.merge.program import (
    ANSWER_BYTES_MAX,
    BEGUN,
    READY,
    Answer,
    Job,
    answer_of,
    line_of,
)
from tickwright.capabilities.reports.merge.sandbox import SPILL, MergeBounds, too_large
from tickwright.capabilities.reports.types.plan import Format
from tickwright.domain.errors import TickwrightError, Unavailable
from tickwright.engine.service import LoopService
from tickwright.sources.confined import (
    command,
    died_for_memory,
    environment,
    killed_for_memory,
    shown_errors,
    shown_status,
)

# ---------------------------------------------------------------------- one process

START_S = 30.0
DEATH_S = 5.0
"""How long a process that said its last word may take to be gone, before it is killed."""
ERRORS_BYTES = 4096
PROGRAM = "tickwright.capabilities.reports.merge.program"

_log = structlog.get_logger("tickwright.reports")


class NotBegunError(Exception):
    """The process had died before it began the job; another one may have it."""


class MergeProcess:
    """One process with the program :mod:`merge_program`.

    Invariants:
        RMP-1: it has no secret of ours: of our environment it gets a few names, and no open file.
        RMP-2: it is gone when :meth:`end` is over, and soon after our own death, whatever we died of.
    """

    def __init__(self, process: Process) -> None:
        assert process.stdin and process.stdout and process.stderr  # noqa: S101, PT018  they are pipes
        self._process = process
        self._jobs, self._lines, self._stderr = process.stdin, process.stdout, process.stderr
        self._errors = b""
        self._wakeups = asyncio.create_task(self._hear())

    @classmethod
    async def start(cls) -> "MergeProcess":
        """Start one and wait until it has loaded what it needs, 0.2 s.

        Raises:
            Unavailable: ``merge_lost``: it did not start. Retry.
        """
        started, ready = cls(await _spawned()), False
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(START_S):
                    ready = await started._line() == READY
        finally:
            if not ready:
                await started.end()
        if ready:
            return started
        _log.warning("reports.merge_process_not_started", status=started._process.returncode, errors=started.errors)
        raise Unavailable("merge_lost", "a merge process did not start; the log says why")

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it is not known to be dead."""
        return self._process.returncode is None

    @property
    def errors(self) -> str:
        """The end of what it wrote as errors, as it may be seen."""
        return shown_errors(self._errors)

    async def ask(self, job: Job) -> Answer:
        """Have the job carried out, and return its answer.

        Raises:
            NotBegunError: Nothing of it was done.
            Rejected: ``merge_too_large``: it died of its own bound of memory. Permanent.
            Unavailable: ``merge_lost``: it died otherwise, of the machine's want of memory too. Retry.
        """
        killed_before = killed_for_memory()
        with suppress(OSError):  # it is dead, which reading finds as well
            self._jobs.write(line_of(job))
            await self._jobs.drain()
        if await self._line() != BEGUN:
            raise NotBegunError
        line = await self._line()
        with suppress(msgspec.MsgspecError, ValueError, RecursionError):  # cut off, or no UTF-8
            return answer_of(line)
        with suppress(TimeoutError):
            async with asyncio.timeout(DEATH_S):
                await self._process.wait()
        await self.end()
        raise self._death(killed=killed_for_memory() > killed_before)

    async def end(self) -> None:
        """Kill it, if it lives, and return when it is gone; any number of times."""
        if self.is_alive:
            with suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()
        await asyncio.wait([self._wakeups])

    def _death(self, *, killed: bool) -> TickwrightError:
        status = self._process.returncode
        _log.warning("reports.merge_process_lost", pid=self.pid, status=status, errors=self.errors)
        if died_for_memory(status, self._errors):
            return too_large("its process ran out of memory")
        how = shown_status(status, killed=killed)
        return Unavailable("merge_lost", f"the merge process died ({how})")

    async def _line(self) -> bytes:
        """Return the next line; what is left at the end, or nothing where it is too long."""
        try:
            return await self._lines.readline()
        except (ValueError, OSError):
            return b""

    async def _hear(self) -> None:
        """Keep the end of its errors."""
        with suppress(OSError):
            while piece := await self._stderr.read(ERRORS_BYTES):
                self._errors = (self._errors + piece)[-ERRORS_BYTES:]


async def _spawned() -> Process:
    """Start the program."""
    try:
        return await asyncio.create_subprocess_exec(
            *command(PROGRAM), stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=ANSWER_BYTES_MAX,
            cwd="/", env=environment(), start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise Unavailable("merge_lost", f"a merge process cannot be started: {error.strerror}") from error


LOOK_S = 0.2
"""How often a merge's files are measured."""
KEEP_LOOK_S = 5.0
AWAY_S = 1.0
TAKES_MAX = 5


class MergeProcesses(LoopService):
    """A :class:`tickwright.ports.service.Service` that keeps processes, and merges in them.

    Args:
        at_once: Processes, 1 to 16.
        spare: Further ones, started where all have work and another merge waits, and ended behind it.

    Invariants:
        RDK-1: when a merge is over, however it ended, nothing of it writes any more.
    """

    name = "report-merges"

    def __init__(self, *, at_once: int, spare: int = 0) -> None:
        super().__init__()
        self._at_once, self._spare, self._waiting = at_once, spare, 0
        self._all: set[MergeProcess] = set()
        self._warm: list[MergeProcess] = []
        self._spent: list[MergeProcess] = []
        self._came = asyncio.Event()

    @property
    def pids(self) -> list[int]:
        """The process ids of those that are there."""
        return sorted(process.pid for process in self._all)

    # ------------------------------------------------------------------ service

    async def _work(self) -> None:
        """Keep processes warm until stopped; all have ended when this returns."""
        try:
            while not self.stopping.is_set():
                look_s = await self._keep()
                self.tick()
                await self.wait_for_work(look_s)
        finally:
            await _heard_out(self._end([*self._all]))

    async def quiesce(self) -> None:
        """Merge on: steps that run may still come to their merges."""

    async def stop(self) -> None:
        """End the processes; a merge that runs is lost."""
        await super().quiesce()

    async def _keep(self) -> float:
        """End what is spent or dead, start what is missing; return after how many seconds to look again."""
        self.wakeup.clear()
        spent, self._spent = self._spent, []
        dead = [process for process in self._warm if not process.is_alive]
        self._warm = [process for process in self._warm if process.is_alive]
        await self._end([*spent, *dead])
        while len(self._all) < self._wanted and not self.stopping.is_set():
            try:
                process = await MergeProcess.start()
            except TickwrightError as error:
                _log.warning("reports.merge_process_unavailable", code=error.code, reason=error.message)
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
            self.wakeup.set()

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
                    while not self.stopping.is_set():
                        for process in reversed(self._warm):
                            if process.is_alive:
                                self._warm.remove(process)
                                return process
                        self._came.clear()
                        self.wakeup.set()
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
            self.wakeup.set()
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
