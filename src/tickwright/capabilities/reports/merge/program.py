"""The program of a merge process: it reads jobs from standard input and runs them one after the other.

A job and its answer are one line of JSON each. ``begun`` precedes all work, so a job whose process had died before can
go to another process::

    ──▶ job              ◀── ready, once        ◀── begun, then an answer, per job

The process is separate because the SQL is untrusted, and because DuckDB allocates single values beyond its own bound.
See :mod:`tickwright.sources.confined`. Measured in sorts, joins and groups of JSON: 150 MiB above DuckDB's own bound at
256 MiB, 190 at 1 GiB, 380 at 4 GiB.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from tickwright.capabilities.reports.merge.merge import MergedFile, PartFile, feed, merge
from tickwright.capabilities.reports.merge.sandbox import MergeBounds, warm_up
from tickwright.capabilities.reports.plan import Format
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.sources.confined import Problem, bound, confine, has_released_memory, take_stdout, tell

READY, BEGUN = b"ready\n", b"begun\n"
JOB_BYTES_MAX = 16 * 1024 * 1024
ANSWER_BYTES_MAX = 4 * 1024 * 1024
"""A feed has at most 1 MiB as DuckDB writes it."""


class MergeJob(msgspec.Struct, frozen=True, kw_only=True):
    """One file or one feed; the fields are the arguments of :func:`merge`. A job without ``out`` is a feed."""

    parts: Sequence[PartFile]
    sql: str
    folder: Path
    bounds: MergeBounds = MergeBounds()
    out: Path | None = None
    form: Format = "csv"
    bom: bool = False


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A file, the values of a feed, or a problem; ``again``: the process takes another job, its memory is released."""

    file: MergedFile | None = None
    values: dict[str, Any] | None = None
    problem: Problem | None = None
    again: bool = False


encode_line = msgspec.json.Encoder(enc_hook=str).encode_lines
decode_answer = msgspec.json.Decoder(Answer).decode
_decode_job = msgspec.json.Decoder(MergeJob, dec_hook=lambda kind, text: kind(text)).decode


HEADROOM_BYTES = 256 * 1024 * 1024
HEADROOM_SHARE = 8
"""A job may allocate this and an eighth of DuckDB's bound beyond that bound, for memory that DuckDB does not count."""
STACK_BYTES = 8 * 1024 * 1024
JOBS_MAX = 100
IDLE_BYTES_MAX = 128 * 1024 * 1024
"""Memory that a process may hold after a job to take another one; after its first merge it holds 80 MiB."""


def main(parent: int) -> None:
    """Run jobs of the process ``parent``; never returns.

    It leaves out DuckDB's exit handlers, which are slow and write to standard error.
    """
    answers = take_stdout()
    confine(parent)
    warm_up()
    tell(answers, READY)
    for left in reversed(range(JOBS_MAX)):
        line = sys.stdin.buffer.readline(JOB_BYTES_MAX)
        if not line.endswith(b"\n"):
            break
        tell(answers, BEGUN)
        answer = structs.replace(_answer(_decode_job(line)), again=left > 0 and has_released_memory(IDLE_BYTES_MAX))
        tell(answers, encode_line([answer]))
        if not answer.again:
            break
    os._exit(0)


def _answer(job: MergeJob) -> Answer:
    memory_bytes, threads = job.bounds.memory_bytes, job.bounds.threads
    headroom = HEADROOM_BYTES + memory_bytes // HEADROOM_SHARE + threads * STACK_BYTES
    bound(data_bytes=memory_bytes + headroom, cpu_s=job.bounds.cpu_s)
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
