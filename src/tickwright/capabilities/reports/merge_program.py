"""The program of a merge process: it takes jobs from its standard input, one after the other, and carries them out.

It is a process of its own because the SQL is a stranger's, and because DuckDB allocates single values beyond its own
bound. The kernel bounds it: what it may allocate, the processor time of a job, no core file. It has no secrets of the
program (an environment of a few harmless names, no open files, no memory of its parent's), and is the first to go when
the machine has no memory left. It ends with its parent, however that ends.

What a job may allocate is bounded as data (``RLIMIT_DATA``), not as address space: DuckDB's allocator and the threads
reserve three times of that. Its allocator keeps no address ranges (``retain:false`` in :data:`ENVIRONMENT`), else the
bound would count what was given back. Measured in sorts, joins and groups of JSON: 150 MiB above DuckDB's own bound at
256 MiB, 190 at 1 GiB, 380 at 4 GiB.
"""

import ctypes
import os
import resource
import signal
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final

from msgspec import structs

from tickwright.capabilities.reports.duck import MergeBounds, warm_up
from tickwright.capabilities.reports.merge_messages import (
    BEGUN,
    JOB_BYTES_MAX,
    READY,
    Answer,
    Job,
    Problem,
    job_of,
    line_of,
)
from tickwright.capabilities.reports.merging import feed, merge
from tickwright.domain.errors import Rejected, Unavailable

ENVIRONMENT: Final = {"DUCKDB_JE_MALLOC_CONF": "retain:false", "MALLOC_ARENA_MAX": "2"}
"""What the allocators read when the process starts."""
HEADROOM_BYTES = 256 * 1024 * 1024
HEADROOM_SHARE = 8
"""What a job may allocate beyond DuckDB's bound, and an eighth of that, for what it does not count."""
STACK_BYTES = 8 * 1024 * 1024
JOBS_MAX = 100
IDLE_BYTES_MAX = 128 * 1024 * 1024
"""What a process may hold behind a job to take another one; a fresh one that has merged once holds 80 MiB."""
GOES_FIRST = "1000"
_PR_SET_PDEATHSIG = 1


def main(parent: int) -> None:
    """Take jobs until there are no more; never returns, because DuckDB's ends of a process are long and loud.

    Args:
        parent: The process that asks.
    """
    sys.excepthook = _die
    answers = _own_output()
    _confine(parent)
    warm_up()
    answers.write(READY)
    for left in reversed(range(JOBS_MAX)):
        line = sys.stdin.buffer.readline(JOB_BYTES_MAX)
        if not line.endswith(b"\n"):
            break
        answers.write(BEGUN)
        answer = structs.replace(_answer(job_of(line)), again=left > 0 and _is_light())
        answers.write(line_of(answer))
        if not answer.again:
            break
    os._exit(0)


def _answer(job: Job) -> Answer:
    _bound(job.bounds)
    os.chdir(job.folder)
    try:
        if job.out is None:
            return Answer(values=feed(job.parts, job.sql, folder=job.folder, bounds=job.bounds))
        form, bom, bounds = job.form, job.bom, job.bounds
        return Answer(file=merge(job.parts, job.sql, job.out, form=form, bom=bom, folder=job.folder, bounds=bounds))
    except (Rejected, Unavailable) as error:
        return Answer(problem=Problem.of(error))
    finally:
        os.chdir("/")


def _own_output() -> BinaryIO:
    """Return the pipe to who asks; whatever else writes to standard output writes to standard error from now on."""
    own = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(own, "wb", buffering=0)


def _confine(parent: int) -> None:
    """Give up what a merge does not need, before anything of a stranger's is read."""
    for one in (signal.SIGINT, signal.SIGTERM):  # they are for the parent, which lets merges end
        signal.signal(one, signal.SIG_IGN)
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        Path("/proc/self/oom_score_adj").write_text(GOES_FIRST)
    if os.getppid() != parent:  # it died before that was in force
        os._exit(0)


def _bound(bounds: MergeBounds) -> None:
    """Have the kernel bound the next job."""
    headroom = HEADROOM_BYTES + bounds.memory_bytes // HEADROOM_SHARE + bounds.threads * STACK_BYTES
    _limit(resource.RLIMIT_DATA, bounds.memory_bytes + headroom)
    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + bounds.cpu_s)


def _limit(which: int, most: int) -> None:
    _, hard = resource.getrlimit(which)
    resource.setrlimit(which, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _is_light() -> bool:
    """Whether the memory of the last job is back; where that is not known, it is not."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[5])
    except OSError:
        return False
    return pages * resource.getpagesize() <= IDLE_BYTES_MAX


def _die(kind: type[BaseException], _error: BaseException, trace: TracebackType | None) -> None:
    """Say which error it was and where; its text may have values of rows in it."""
    places = " < ".join(f"{Path(one.filename).name}:{one.lineno}" for one in reversed(traceback.extract_tb(trace)))
    sys.stderr.write(f"{kind.__name__} at {places}\n")
    sys.stderr.flush()
    os._exit(1)
