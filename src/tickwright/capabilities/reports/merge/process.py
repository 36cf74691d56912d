"""One merge process, as the one who asks holds it: started, asked, ended, and what its death means."""

import asyncio
from asyncio.subprocess import PIPE, Process
from contextlib import suppress

import msgspec
import structlog

from tickwright.capabilities.reports.merge.duck import too_large
from tickwright.capabilities.reports.merge.messages import (
    ANSWER_BYTES_MAX,
    BEGUN,
    READY,
    Answer,
    Job,
    answer_of,
    line_of,
)
from tickwright.domain.errors import TickwrightError, Unavailable
from tickwright.sources.confined import (
    command,
    died_for_memory,
    environment,
    killed_for_memory,
    shown_errors,
    shown_status,
)

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
        self._hearing = asyncio.create_task(self._hear())

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
        await asyncio.wait([self._hearing])

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
