"""What callers get to see, as types: the answers of the REST API, of ``--json`` and of the Python API.

No secret and no hash has a field here, so none can be shown by accident; the two answers that do show a
secret, once, are :class:`SecretView` and :class:`NewKeyView`.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar, Self, TypeVar

import msgspec

from tickwright.domain.masking import masked_address
from tickwright.domain.time_texts import format_duration
from tickwright.ports.user_data import Doors, UserData
from tickwright.ports.views import view

T = TypeVar("T")


class JobView(msgspec.Struct, kw_only=True):
    """A job in a listing; ``payload``, ``result`` and ``progress`` are in :class:`JobDetail`."""

    id: int
    task_type: str
    status: str
    execute_at: datetime
    due_at: datetime
    attempts: int
    max_attempts: int
    priority: int
    idempotency_key: str | None
    timeout: str | None
    expires_at: datetime | None
    error_message: str | None
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    retry_at: datetime | None
    cancel_requested_at: datetime | None
    fence: int
    worker: int | None


class AttemptView(msgspec.Struct):
    """One attempt of a job.

    ``outcome`` is ``failed``, ``timed_out``, ``lost`` (its worker), ``released`` (interrupted, at no cost), or of the
    last one also ``running``, ``completed`` or ``cancelled``. ``lateness_ms`` is from its due instant to its start.
    """

    attempt: int
    due_at: datetime
    started_at: datetime
    ended_at: datetime | None
    worker: int | None
    fence: int
    outcome: str
    error: str | None
    lateness_ms: float


class JobDetail(JobView, UserData, kw_only=True):
    """One job with its JSON and its attempts; ``lateness_ms`` is that of its first start, where that is still known.

    ``traceparent`` is the trace that it was scheduled in. Ids alone, so every role sees it; what is none is not shown.
    """

    USER_DATA: ClassVar[tuple[str, ...]] = ("payload", "result", "progress")
    payload: Any
    result: Any
    progress: Any
    attempt_log: list[AttemptView] = []
    lateness_ms: float | None = None
    traceparent: str | None = None
    payload_hidden: bool = False


class JobPage(msgspec.Struct):
    """One page of jobs, after ``searched`` rows were looked at.

    A page may be short, even empty, and have a ``next`` all the same: a look is bounded, and the next one goes on.
    """

    items: list[JobView]
    next: str | None = None
    searched: int = 0


class JobCounts(msgspec.Struct):
    """Jobs by state. Each count stops at ``capped_at``; of the states in ``at_least`` there may be more than it says.

    ``partial`` says that some are in ``at_least`` because the look was bounded, not because there are so many.
    """

    counts: dict[str, int]
    capped_at: int
    at_least: list[str]
    partial: bool


class CreatedJob(msgspec.Struct):
    """The answer to a request for a job; ``created`` is false when its idempotency key had made the job before."""

    id: int
    created: bool


class JobAction(msgspec.Struct):
    """What an action did.

    ``outcome`` is ``cancelled`` (it will never start), ``requested`` (its worker was asked to stop it),
    ``rescheduled``, ``run_now`` or ``retried``.
    """

    id: int
    status: str
    outcome: str
    execute_at: datetime | None = None


class BulkAction(msgspec.Struct):
    """What an action on many jobs did, or would have done (``dry_run``).

    ``more`` when the limit left some over: ask again, with ``cursor`` set to ``next`` to go on behind the last one.
    """

    changed: int
    requested: int
    ids: list[int]
    more: bool
    next: str | None = None
    dry_run: bool = False


class TaskTypeView(msgspec.Struct, Doors, kw_only=True):
    """A task type; ``signing_secrets`` says how many secrets sign, never which."""

    name: str
    target: str
    timeout: str
    max_attempts: int
    retry_base: str
    retry_factor: float
    retry_cap: str
    final_statuses: list[int]
    concurrency: int | None
    rate_per_s: float | None
    keep_history: bool
    paused_at: datetime | None
    gone_at: datetime | None
    signing_secrets: int
    version: int
    created_at: datetime
    updated_at: datetime

    def masked(self) -> Self:
        """Return it with no more of its target than the host."""
        return msgspec.structs.replace(self, target=masked_address(self.target))


class StoredTaskType(msgspec.Struct):
    """The answer to a put; ``secret`` only when this call made it. It is shown this once."""

    task_type: TaskTypeView
    created: bool
    secret: str | None = None


class SecretView(msgspec.Struct):
    """A new signing secret, shown this once; the old ones sign beside it for ``overlap``."""

    task_type: str
    secret: str
    overlap: str


class DeadLetter(msgspec.Struct, Doors):
    """Something that was given up and can be requeued."""

    kind: str
    id: int
    subject: str
    error_message: str | None
    attempts: int
    created_at: datetime
    died_at: datetime

    def masked(self) -> Self:
        """Return it with no more of a destination than the host; the name of a task type may have a colon."""
        if self.kind != "outbox":
            return self
        return msgspec.structs.replace(self, subject=masked_address(self.subject))


class Requeued(msgspec.Struct):
    """What went back to work, or would have gone (``dry_run``); ``more`` when the limit left some over.

    ``key_reused``: the jobs that stay dead letters, because another job has their idempotency key by now.
    ``unfit``: those that stay, because they break a rule of new ones that is younger than they are.
    """

    requeued: int
    ids: list[int]
    more: bool
    next: str | None = None
    dry_run: bool = False
    key_reused: list[int] = []
    unfit: list[int] = []


def milliseconds(value: int | None) -> str | None:
    """Return a column in milliseconds as people write it."""
    return None if value is None else format_duration(timedelta(milliseconds=value))


def job_view(kind: type[T], row: Mapping[str, Any], **more: Any) -> T:
    """Return a job's row as :class:`JobView` or :class:`JobDetail`."""
    return view(kind, row, timeout=milliseconds(row["timeout_ms"]), worker=row["owner"], **more)


def task_type_view(row: Mapping[str, Any]) -> TaskTypeView:
    """Return a row of ``task_types`` as callers see it."""
    return view(
        TaskTypeView,
        row,
        timeout=milliseconds(row["timeout_ms"]),
        retry_base=milliseconds(row["retry_base_ms"]),
        retry_cap=milliseconds(row["retry_cap_ms"]),
        retry_factor=round(row["retry_factor"], 6),
    )
