"""Processes for untrusted SQL: their start, their confinement, and the meaning of their exit.

The program of such a process calls :func:`take_stdout`, :func:`confine` and :func:`bound` before it reads untrusted
input. The kernel bounds its memory and processor time and writes no core file. The process has no secrets: its
environment is a few harmless names, it has no open files and no memory of its parent. It is killed first when the
machine runs out of memory. It ends with its parent, however that ends; on Linux with the thread that started it.

Memory is bounded as data (``RLIMIT_DATA``), not as address space, of which DuckDB's allocator and the threads reserve
three times as much. The allocator retains no address ranges (``retain:false`` in :data:`ENVIRONMENT`), else the bound
would count freed memory.
"""

import ctypes
import os
import re
import resource
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Literal

import msgspec

from tickwright.domain.errors import Rejected, TickwrightError, Unavailable

ENVIRONMENT: Final = {"DUCKDB_JE_MALLOC_CONF": "retain:false", "MALLOC_ARENA_MAX": "2"}
"""Variables that the allocators read at the start of the process."""
PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Variables that an interpreter may need to start."""
NICENESS = 5
PROGRAM = (
    f"import os, sys; os.nice({NICENESS}); sys.path[:] = sys.argv[3:]; from importlib import import_module; "
    "import_module(sys.argv[1]).main(int(sys.argv[2]))"
)
"""Code that lowers its own priority first, so that the start does not slow the parent."""
GOES_FIRST = "1000"
SHOWN_MAX = 1000
_PR_SET_PDEATHSIG = 1
_MEMORY = re.compile(r"bad_alloc|MemoryError|OutOfMemory|<jemalloc>|annot allocate memory|out of memory", re.IGNORECASE)


class Problem(msgspec.Struct, frozen=True):
    """An error, as one process sends it to the other."""

    family: Literal["Rejected", "Unavailable"]
    code: str
    message: str
    details: dict[str, Any]

    @classmethod
    def of(cls, error: Rejected | Unavailable) -> "Problem":
        """Return ``error`` in the form that is sent."""
        family: Literal["Rejected", "Unavailable"] = "Rejected" if isinstance(error, Rejected) else "Unavailable"
        return cls(family, error.code, error.message, dict(error.details))

    def error(self) -> TickwrightError:
        """Return the error to raise."""
        kind = Rejected if self.family == "Rejected" else Unavailable
        return kind(self.code, self.message, **self.details)


# ---------------------------------------------------------------------- in the parent


def command(program: str) -> list[str]:
    """Return the command line that calls ``main`` of a module, with this process's import path only."""
    words = [sys.executable, *(["-B"] if sys.dont_write_bytecode else []), "-I", "-c", PROGRAM]
    return [*words, program, str(os.getpid()), *map(os.path.abspath, sys.path)]


def environment() -> dict[str, str]:
    """Return the whole environment of such a process."""
    return {name: os.environ[name] for name in PASSED_ON if name in os.environ} | ENVIRONMENT


def died_for_memory(status: int | None, errors: bytes) -> bool:
    """Whether a process died of its own memory bound, and would again; ``errors`` is the end of its standard error.

    SIGKILL proves nothing: the kernel kills these processes first when any process exhausts the machine's memory.
    """
    return status != -signal.SIGKILL and _MEMORY.search(errors.decode(errors="replace")) is not None


def shown_errors(errors: bytes) -> str:
    """Return errors without paths and without texts of C++ exceptions, which may contain values of rows."""
    lines = errors.decode(errors="replace").splitlines()
    shown = [line for line in lines if "what():" not in line or "std::bad_alloc" in line]
    return re.sub(r"(?:/[^\s/'\":]+)+/?", "…", "\n".join(shown))[-SHOWN_MAX:]


def shown_status(status: int | None, *, killed: bool) -> str:
    """Return a readable exit status; ``killed``: meanwhile the kernel has killed a process for memory."""
    if status == -signal.SIGKILL and killed:
        return f"signal {-status}; the machine, or the container, had no memory left"
    return f"signal {-status}" if status is not None and status < 0 else f"status {status}"


def killed_for_memory() -> int:
    """Return how many processes the kernel has killed for memory since the machine started; 0 where it is unknown."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


# ---------------------------------------------------------------------- in the child


def take_stdout() -> BinaryIO:
    """Return the pipe to the parent; from now on, standard output goes to standard error."""
    own = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(own, "wb")


def tell(output: BinaryIO, content: bytes) -> None:
    """Write all of ``content`` now: a plain system write may be short when the process is paused with a full pipe."""
    output.write(content)
    output.flush()


def confine(parent: int) -> None:
    """Drop what the work does not need. From now on, a fatal error is reported without its text."""
    sys.excepthook = _die
    for one in (signal.SIGINT, signal.SIGTERM):  # signals for the parent, which lets its work end
        signal.signal(one, signal.SIG_IGN)
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        Path("/proc/self/oom_score_adj").write_text(GOES_FIRST)
    if os.getppid() != parent:  # the parent died before PR_SET_PDEATHSIG was in force
        os._exit(0)


def bound(*, data_bytes: int, cpu_s: int) -> None:
    """Set the kernel's limits for the next job."""
    limit(resource.RLIMIT_DATA, data_bytes)
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + cpu_s)


def has_released_memory(bytes_max: int) -> bool:
    """Whether the last job's memory is released, except for ``bytes_max``; false where it is unknown."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[5])
    except OSError:
        return False
    return pages * resource.getpagesize() <= bytes_max


def limit(which: int, most: int) -> None:
    """Set one limit of the kernel, at most the hard limit."""
    _, hard = resource.getrlimit(which)
    resource.setrlimit(which, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _die(kind: type[BaseException], _error: BaseException, trace: TracebackType | None) -> None:
    """Write the kind and place of a fatal error; its text may contain values of rows."""
    places = " < ".join(f"{Path(one.filename).name}:{one.lineno}" for one in reversed(traceback.extract_tb(trace)))
    sys.stderr.write(f"{kind.__name__} at {places}\n")
    sys.stderr.flush()
    os._exit(1)
