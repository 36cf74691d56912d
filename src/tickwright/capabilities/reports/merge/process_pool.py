"""The merge processes of a worker, as many as merges usually run at a time, started before they are needed.

So a merge waits neither for an interpreter nor for DuckDB to load. A process that answered takes the next job unless it
kept memory. The pool measures the files of each merge, and kills the process of a cancelled job.
"""

import asyncio
import shutil
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from tickwright.capabilities.reports.merge.program import (
    ANSWER_BYTES_MAX,
    BEGUN,
    READY,
    Answer,
    MergeJob,
    decode_answer,
    encode_line,
)
from tickwright.capabilities.reports.merge.sandbox import SPILL, too_large
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
EXIT_WAIT_S = 5.0
"""How long an ending process may take to exit before it is killed."""
ERRORS_BYTES = 4096
PROGRAM = "tickwright.capabilities.reports.merge.program"

_log = structlog.get_logger("tickwright.reports")


class NotBegunError(Exception):
    """The process died before it began the job; another process may take it."""


class MergeProcess:
    """One process with the program :mod:`.program`.

    Invariants:
        RMP-1: it has no secret of Tickwright: a few variables of the environment, and no open file.
        RMP-2: it is gone when :meth:`end` returns, and soon after this process ends for any reason.
    """

    def __init__(self, process: Process) -> None:
        assert process.stdin and process.stdout and process.stderr  # noqa: S101, PT018  they are pipes
        self._process = process
        self._jobs, self._lines, self._stderr = process.stdin, process.stdout, process.stderr
        self._errors = b""
        self._error_reader = asyncio.create_task(self._read_errors())

    @classmethod
    async def start(cls) -> "MergeProcess":
        """Start a process and wait until it has loaded its libraries, 0.2 s.

        Raises:
            Unavailable: ``merge_lost``: it did not start. Retry.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                *command(PROGRAM), stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=ANSWER_BYTES_MAX,
                cwd="/", env=environment(), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise Unavailable("merge_lost", f"a merge process cannot be started: {error.strerror}") from error
        started, ready = cls(process), False
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
        """Whether it is not known to have exited."""
        return self._process.returncode is None

    @property
    def errors(self) -> str:
        """The end of its standard error, without private data."""
        return shown_errors(self._errors)

    async def ask(self, job: MergeJob) -> Answer:
        """Send a job and return its answer.

        Raises:
            NotBegunError: Nothing of it was done.
            Rejected: ``merge_too_large``: it died of its own memory bound. Permanent.
            Unavailable: ``merge_lost``: it died otherwise, also because the machine had no memory left. Retry.
        """
        killed_before = killed_for_memory()
        with suppress(OSError):  # it is dead, which the read detects as well
            self._jobs.write(encode_line([job]))
            await self._jobs.drain()
        if await self._line() != BEGUN:
            raise NotBegunError
        line = await self._line()
        with suppress(msgspec.MsgspecError, ValueError, RecursionError):  # cut off, or no UTF-8
            return decode_answer(line)
        with suppress(TimeoutError):
            async with asyncio.timeout(EXIT_WAIT_S):
                await self._process.wait()
        await self.end()
        raise self._death(killed=killed_for_memory() > killed_before)

    async def end(self) -> None:
        """Kill the process if it is alive, and wait until it is gone; any number of times."""
        if self.is_alive:
            with suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()
        await asyncio.wait([self._error_reader])

    def _death(self, *, killed: bool) -> TickwrightError:
        status = self._process.returncode
        _log.warning("reports.merge_process_lost", pid=self.pid, status=status, errors=self.errors)
        if died_for_memory(status, self._errors):
            return too_large("its process ran out of memory")
        how = shown_status(status, killed=killed)
        return Unavailable("merge_lost", f"the merge process died ({how})")

    async def _line(self) -> bytes:
        """Return the next line; at the end the rest, and nothing for a line that is too long."""
        try:
            return await self._lines.readline()
        except (ValueError, OSError):
            return b""

    async def _read_errors(self) -> None:
        """Keep the end of its standard error."""
        with suppress(OSError):
            while piece := await self._stderr.read(ERRORS_BYTES):
                self._errors = (self._errors + piece)[-ERRORS_BYTES:]


POLL_S = 0.2
"""Interval at which a merge's files are measured."""
KEEP_CHECK_S = 5.0
UNAVAILABLE_S = 1.0
TAKES_MAX = 5


class MergeProcesses(LoopService):
    """A :class:`tickwright.ports.service.Service` that keeps processes ready and merges in them.

    Args:
        at_once: Processes, 1 to 16.
        spare: Further processes, started when all are busy and a merge waits, and ended after it.

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
        self._ready = asyncio.Event()

    @property
    def pids(self) -> list[int]:
        """The ids of the live processes."""
        return sorted(process.pid for process in self._all)

    # ------------------------------------------------------------------ service

    async def _work(self) -> None:
        """Keep processes ready until stopped; all have ended when this returns."""
        try:
            while not self.stopping.is_set():
                poll_s = await self._keep()
                self.tick()
                await self.wait_for_work(poll_s)
        finally:
            await _finished(self._end([*self._all]))

    async def quiesce(self) -> None:
        """Do nothing: running steps may still need merges."""

    async def stop(self) -> None:
        """End the processes; a running merge is lost."""
        await super().quiesce()

    async def _keep(self) -> float:
        """End used and dead processes, and start missing ones; return the seconds until the next check."""
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
                return UNAVAILABLE_S
            self._all.add(process)
            self._warm.append(process)
            self._ready.set()
        return KEEP_CHECK_S

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

    async def answer(self, job: MergeJob) -> Answer:
        """Run a job in a process: :func:`.merge.merge`, or :func:`.merge.feed` of a job without ``out``.

        Cancellation stops it at once and removes its files.

        Raises:
            Rejected: As there. Permanent.
            Unavailable: As there; ``merge_lost``: the process died, or there is none. Retry.
        """
        for _ in range(TAKES_MAX):
            try:
                answer = await self._watched(await self._take(), job)
            except NotBegunError:
                continue  # it had died before
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
                        self._ready.clear()
                        self.wakeup.set()
                        await self._ready.wait()
        finally:
            self._waiting -= 1
        raise Unavailable("merge_lost", "there is no merge process; the log says why")

    async def _watched(self, process: MergeProcess, job: MergeJob) -> Answer:
        """Send the job and measure its files meanwhile; any error before the answer ends the process."""
        asking = asyncio.create_task(process.ask(job))
        try:
            while not (await asyncio.wait([asking], timeout=POLL_S))[0]:
                _check_disk(job)
            answer = asking.result()
        except BaseException:
            await _finished(self._broken_off(process, asking, job))
            raise
        if answer.again and len(self._all) <= self._at_once:
            self._warm.append(process)
            self._ready.set()
        else:
            self._spent.append(process)
            self.wakeup.set()
        return answer

    async def _broken_off(self, process: MergeProcess, asking: "asyncio.Task[Answer]", job: MergeJob) -> None:
        await self._end([process])
        await asyncio.wait([asking])
        asking.exception()
        await asyncio.to_thread(_remove, job)


async def _finished(work: Awaitable[None]) -> None:
    """Wait until ``work`` is over; raise a cancellation that arrives meanwhile only afterwards."""
    task, cancelled = asyncio.ensure_future(work), False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    if cancelled:
        raise asyncio.CancelledError


def _check_disk(job: MergeJob) -> None:
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


def _remove(job: MergeJob) -> None:
    """Remove files of a killed process; a process that answers has removed them itself."""
    shutil.rmtree(job.folder / SPILL, ignore_errors=True)
    if job.out is not None:
        job.out.unlink(missing_ok=True)
