"""What a merge process is asked, and what it answers: one line of JSON each, over its standard input and output.

::

    ──▶ job              ◀── ready, once        ◀── begun, then an answer, per job

``begun`` comes before anything of a job is done, so that a job whose process died earlier can go to another one.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tickwright.capabilities.reports.merge.duck import MergeBounds
from tickwright.capabilities.reports.merge.merge import MergedFile
from tickwright.capabilities.reports.merge.part_tables import PartFile
from tickwright.capabilities.reports.types.plan import Format
from tickwright.sources.confined import Problem

READY, BEGUN = b"ready\n", b"begun\n"
JOB_BYTES_MAX = 16 * 1024 * 1024
ANSWER_BYTES_MAX = 4 * 1024 * 1024
"""A feed has at most 1 MiB as DuckDB writes it."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One file or one feed; see :mod:`merging` for what the fields mean. A job without ``out`` is a feed."""

    parts: Sequence[PartFile]
    sql: str
    folder: Path
    bounds: MergeBounds
    out: Path | None = None
    form: Format = "csv"
    bom: bool = False


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a job: a file, the values of a feed, or a problem.

    Attributes:
        again: Whether the process takes another job; it has given back its memory.
    """

    file: MergedFile | None = None
    values: dict[str, Any] | None = None
    problem: Problem | None = None
    again: bool = False


_encoder = msgspec.json.Encoder(enc_hook=str)
_jobs = msgspec.json.Decoder(Job, dec_hook=lambda kind, text: kind(text))
_answers = msgspec.json.Decoder(Answer)


def line_of(one: Job | Answer) -> bytes:
    """Return it as a line."""
    return _encoder.encode(one) + b"\n"


def job_of(line: bytes) -> Job:
    """Return the job that a line is."""
    return _jobs.decode(line)


def answer_of(line: bytes) -> Answer:
    """Return the answer that a line is.

    Raises:
        msgspec.MsgspecError, ValueError, RecursionError: It is none, or was cut off.
    """
    return _answers.decode(line)
