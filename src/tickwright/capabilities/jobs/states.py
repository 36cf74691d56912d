"""The states of a one-shot job, as data.

::

    waiting ──all that it waits for have ended──▶ pending; or cancelled, failed
    pending ──claim──▶ processing ──ok──────────▶ completed
       ▲  │                │  │  └──last failure─▶ failed ──retry──▶ pending
       │  └──cancel──┐     │  └──stopped─────────▶ cancelled
       │             ▼     │
       │         cancelled │
       └──failure, release, reclaim──┘

The diagram in ``capabilities/jobs/README.md`` is this table. Names are those of the source document.
``tests/capabilities/jobs/test_job_life.py`` compares the database with it.
"""

from enum import StrEnum


class JobStatus(StrEnum):
    """The status of a job."""

    WAITING = "waiting"
    """For other jobs of its workflow, in a table of its own; there its column ``status`` is ``pending``."""
    PENDING = "pending"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINAL = frozenset({JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED})

TRANSITIONS: dict[JobStatus, frozenset[JobStatus]] = {
    JobStatus.WAITING: frozenset({JobStatus.PENDING, JobStatus.FAILED, JobStatus.CANCELLED}),
    JobStatus.PENDING: frozenset({JobStatus.PROCESSING, JobStatus.CANCELLED}),
    JobStatus.PROCESSING: frozenset({JobStatus.PENDING, JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED}),
    JobStatus.COMPLETED: frozenset(),
    JobStatus.FAILED: frozenset({JobStatus.PENDING, JobStatus.WAITING}),  # an operator's retry, never a worker's
    JobStatus.CANCELLED: frozenset({JobStatus.WAITING}),  # by the retry of its workflow
}
