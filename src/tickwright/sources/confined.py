"""Processes for the SQL of strangers: how one is started, what it gives up, what its death means.

The program of such a process calls :func:`take_stdout`, :func:`confine` and :func:`bound` before it reads anything of a
stranger's. The kernel bounds it: what it may allocate, its processor time, no core file. It has no secrets of ours (an
environment of a few harmless names, no open files, no memory of its parent's), and is the first to go when the machine
has no memory left. It ends with its parent, however that ends; on Linux with the thread that started it.

What it may allocate is bounded as data (``RLIMIT_DATA``), not as address space: DuckDB's allocator and the threads
reserve three times of that. Its allocator keeps no address ranges (``retain:false`` in :data:`ENVIRONMENT`), else the
bound would count what was given back.
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
"""What the allocators read when the process starts."""
PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""What of our environment an interpreter may need to start."""
NICENESS = 5
PROGRAM = (
    f"import os, sys; os.nice({NICENESS}); sys.path[:] = sys.argv[3:]; from importlib import import_module; "
    "import_module(sys.argv[1]).main(int(sys.argv[2]))"
)
"""Behind its parent from the first moment: it starts while that one works."""
GOES_FIRST = "1000"
SHOWN_MAX = 1000
_PR_SET_PDEATHSIG = 1
_MEMORY = re.compile(r"bad_alloc|MemoryError|OutOfMemory|<jemalloc>|annot allocate memory|out of memory", re.IGNORECASE)


class Problem(msgspec.Struct, frozen=True):
    """An error of ours, told from one process to the other."""

    family: Literal["Rejected", "Unavailable"]
    code: str
    message: str
    details: dict[str, Any]

    @classmethod
    def of(cls, error: Rejected | Unavailable) -> "Problem":
        """Return what is told of ``error``."""
        family: Literal["Rejected", "Unavailable"] = "Rejected" if isinstance(error, Rejected) else "Unavailable"
        return cls(family, error.code, error.message, dict(error.details))

    def error(self) -> TickwrightError:
        """Return the error, to be raised."""
        kind = Rejected if self.family == "Rejected" else Unavailable
        return kind(self.code, self.message, **self.details)


# ---------------------------------------------------------------------- in the parent


def command(program: str) -> list[str]:
    """Return the words that start ``main`` of a module, importing from where we do, whatever a variable says."""
    words = [sys.executable, *(["-B"] if sys.dont_write_bytecode else []), "-I", "-c", PROGRAM]
    return [*words, program, str(os.getpid()), *map(os.path.abspath, sys.path)]


def environment() -> dict[str, str]:
    """Return the whole environment of such a process."""
    return {name: os.environ[name] for name in PASSED_ON if name in os.environ} | ENVIRONMENT


def died_for_memory(status: int | None, errors: bytes) -> bool:
    """Whether a process died of its own bound of memory, and would again.

    One that was killed is no proof: when the machine has no memory left, whoever took it, the kernel kills these first.

    Args:
        status: Its exit status, below zero for a signal.
        errors: The end of what it wrote as errors.
    """
    return status != -signal.SIGKILL and _MEMORY.search(errors.decode(errors="replace")) is not None


def shown_errors(errors: bytes) -> str:
    """Return errors without paths, and without the texts of C++ exceptions, which may have values of rows in them."""
    lines = errors.decode(errors="replace").splitlines()
    told = [line for line in lines if "what():" not in line or "std::bad_alloc" in line]
    return re.sub(r"(?:/[^\s/'\":]+)+/?", "…", "\n".join(told))[-SHOWN_MAX:]


def shown_status(status: int | None, *, killed: bool) -> str:
    """Return an exit status as it is read; ``killed``: the kernel has killed somebody for memory meanwhile."""
    if status == -signal.SIGKILL and killed:
        return f"signal {-status}; the machine, or the container, had no memory left"
    return f"signal {-status}" if status is not None and status < 0 else f"status {status}"


def killed_for_memory() -> int:
    """Return how many processes the kernel has killed for memory since the machine started; 0 where it does not say."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


# ---------------------------------------------------------------------- in the process itself


def take_stdout() -> BinaryIO:
    """Return the pipe to who asks; whatever else writes to standard output writes to standard error from now on."""
    own = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(own, "wb")


def tell(output: BinaryIO, content: bytes) -> None:
    """Write all of it, now: a write of the system's writes less where the process is paused while the pipe is full."""
    output.write(content)
    output.flush()


def confine(parent: int) -> None:
    """Give up what the work does not need; errors that end the process are told without their texts."""
    sys.excepthook = _die
    for one in (signal.SIGINT, signal.SIGTERM):  # they are for the parent, which lets its work end
        signal.signal(one, signal.SIG_IGN)
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        Path("/proc/self/oom_score_adj").write_text(GOES_FIRST)
    if os.getppid() != parent:  # it died before that was in force
        os._exit(0)


def bound(*, data_bytes: int, cpu_s: int) -> None:
    """Have the kernel bound the next job."""
    limit(resource.RLIMIT_DATA, data_bytes)
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + cpu_s)


def has_released_memory(bytes_max: int) -> bool:
    """Whether the memory of the last job is back but for ``bytes_max``; where that is not known, it is not."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[5])
    except OSError:
        return False
    return pages * resource.getpagesize() <= bytes_max


def limit(which: int, most: int) -> None:
    """Have the kernel bound one thing, as far as it lets us."""
    _, hard = resource.getrlimit(which)
    resource.setrlimit(which, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _die(kind: type[BaseException], _error: BaseException, trace: TracebackType | None) -> None:
    """Say which error it was and where; its text may have values of rows in it."""
    places = " < ".join(f"{Path(one.filename).name}:{one.lineno}" for one in reversed(traceback.extract_tb(trace)))
    sys.stderr.write(f"{kind.__name__} at {places}\n")
    sys.stderr.flush()
    os._exit(1)
