"""The program of a merge process: it takes jobs from its standard input, one after the other, and carries them out.

It is a process of its own because the SQL is a stranger's, and because DuckDB allocates single values beyond its own
bound. The kernel bounds it, and it has nothing of the worker's; see :mod:`tickwright.sources.confined`.

Measured in sorts, joins and groups of JSON: 150 MiB above DuckDB's own bound at 256 MiB, 190 at 1 GiB, 380 at 4 GiB.
"""

import os
import sys

from msgspec import structs

from tickwright.capabilities.reports.merge.duck import MergeBounds, warm_up
from tickwright.capabilities.reports.merge.merge import feed, merge
from tickwright.capabilities.reports.merge.messages import (
    BEGUN,
    JOB_BYTES_MAX,
    READY,
    Answer,
    Job,
    job_of,
    line_of,
)
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.sources.confined import Problem, bound, confine, is_light, own_output, tell

HEADROOM_BYTES = 256 * 1024 * 1024
HEADROOM_SHARE = 8
"""What a job may allocate beyond DuckDB's bound, and an eighth of that, for what it does not count."""
STACK_BYTES = 8 * 1024 * 1024
JOBS_MAX = 100
IDLE_BYTES_MAX = 128 * 1024 * 1024
"""What a process may hold behind a job to take another one; a fresh one that has merged once holds 80 MiB."""


def main(parent: int) -> None:
    """Take jobs until there are no more; never returns, because DuckDB's ends of a process are long and loud.

    Args:
        parent: The process that asks.
    """
    answers = own_output()
    confine(parent)
    warm_up()
    tell(answers, READY)
    for left in reversed(range(JOBS_MAX)):
        line = sys.stdin.buffer.readline(JOB_BYTES_MAX)
        if not line.endswith(b"\n"):
            break
        tell(answers, BEGUN)
        answer = structs.replace(_answer(job_of(line)), again=left > 0 and is_light(IDLE_BYTES_MAX))
        tell(answers, line_of(answer))
        if not answer.again:
            break
    os._exit(0)


def _answer(job: Job) -> Answer:
    bound(data_bytes=_data_bytes(job.bounds), cpu_s=job.bounds.cpu_s)
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


def _data_bytes(bounds: MergeBounds) -> int:
    headroom = HEADROOM_BYTES + bounds.memory_bytes // HEADROOM_SHARE + bounds.threads * STACK_BYTES
    return bounds.memory_bytes + headroom
