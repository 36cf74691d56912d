"""One merge process, as the one who asks holds it: started, asked, ended, and what its death means."""

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from tickwright.capabilities.reports.duck import too_large
from tickwright.capabilities.reports.merge_messages import (
    ANSWER_BYTES_MAX,
    BEGUN,
    READY,
    Answer,
    Job,
    answer_of,
    line_of,
)
from tickwright.capabilities.reports.merge_program import ENVIRONMENT
from tickwright.domain.errors import TickwrightError, Unavailable

START_S = 30.0
DEATH_S = 5.0
"""How long a process that said its last word may take to be gone, before it is killed."""
ERRORS_BYTES = 4096
SHOWN_MAX = 1000
PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""What of our environment an interpreter may need to start."""
NICENESS = 5
PROGRAM = (
    f"import os, sys; os.nice({NICENESS}); sys.path[:] = sys.argv[2:]; "
    "from tickwright.capabilities.reports.merge_program import main; main(int(sys.argv[1]))"
)
"""Behind the worker from the first moment: it starts while that one works."""
_MEMORY = re.compile(r"bad_alloc|MemoryError|OutOfMemory|<jemalloc>|annot allocate memory|out of memory", re.IGNORECASE)

_log = structlog.get_logger("tickwright.reports")


class NotBegunError(Exception):
    """The process had died before it began the job; another one may have it."""


class MergeProcess:
    """One process with the program :mod:`merge_program`.

    Invariants:
        RMP-1: it has no secret of ours: of our environment it gets :data:`PASSED_ON`, and no open file.
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
            Rejected: ``merge_too_large``: it died for memory. Permanent.
            Unavailable: ``merge_lost``: it died otherwise. Retry.
        """
        killed_before = _killed_for_memory()
        with suppress(OSError):  # it is dead, which reading finds as well
            self._jobs.write(line_of(job))
            await self._jobs.drain()
        if await self._line() != BEGUN:
            raise NotBegunError
        line = await self._line()
        with suppress(msgspec.MsgspecError):
            return answer_of(line)
        with suppress(TimeoutError):
            async with asyncio.timeout(DEATH_S):
                await self._process.wait()
        await self.end()
        raise self._death(_killed_for_memory() > killed_before)

    async def end(self) -> None:
        """Kill it, if it lives, and return when it is gone; any number of times."""
        if self.is_alive:
            with suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()
        await asyncio.wait([self._hearing])

    def _death(self, killed_for_memory: bool) -> TickwrightError:
        status = self._process.returncode
        _log.warning("reports.merge_process_lost", pid=self.pid, status=status, errors=self.errors)
        if died_for_memory(status, self._errors, killed=killed_for_memory):
            return too_large("its process ran out of memory")
        how = f"signal {-status}" if status is not None and status < 0 else f"status {status}"
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


def died_for_memory(status: int | None, errors: bytes, *, killed: bool) -> bool:
    """Whether a process died because there was no memory for it.

    Args:
        status: Its exit status, below zero for a signal.
        errors: The end of what it wrote as errors.
        killed: Whether the kernel has killed something for memory meanwhile.
    """
    return (status == -signal.SIGKILL and killed) or _MEMORY.search(errors.decode(errors="replace")) is not None


def shown_errors(errors: bytes) -> str:
    """Return errors without paths, and without the texts of C++ exceptions, which may have values of rows in them."""
    lines = errors.decode(errors="replace").splitlines()
    told = [line for line in lines if "what():" not in line or "std::bad_alloc" in line]
    return re.sub(r"(?:/[^\s/'\":]+)+/?", "…", "\n".join(told))[-SHOWN_MAX:]


async def _spawned() -> Process:
    """Start an interpreter that imports from where we do, whatever folder or variable says so."""
    words = [sys.executable, *(["-B"] if sys.dont_write_bytecode else []), "-I", "-c", PROGRAM, str(os.getpid())]
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ} | ENVIRONMENT
    try:
        return await asyncio.create_subprocess_exec(
            *words, *map(os.path.abspath, sys.path), stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=ANSWER_BYTES_MAX,
            cwd="/", env=environment, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise Unavailable("merge_lost", f"a merge process cannot be started: {error.strerror}") from error


def _killed_for_memory() -> int:
    """Return how many processes the kernel has killed for memory since the machine started; 0 where it does not say."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
