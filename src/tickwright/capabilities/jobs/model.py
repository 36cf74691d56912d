"""What a job is, what an attempt can end as, and who may claim how much. Pure.

The store loads rows, this module decides on plain values, the store writes. Outcomes are values:
an attempt that failed is not an exception of ours.
"""

import math
import threading
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Protocol

import msgspec
from opentelemetry.trace import Span

from tickwright.domain.retries import RetryPolicy

ERROR_MESSAGE_MAX = 2000
PACED_AHEAD_S = 0.5
"""How far ahead a claim takes starts of a rate-limited type; one start at least."""
PACED_SLACK_S = 0.25
"""A claim's horizon, and a little more."""


@dataclass(frozen=True, slots=True)
class TaskType:
    """One row of ``tickwright.task_types``: where jobs of this type go, and under which limits."""

    name: str
    target: str
    timeout: timedelta = timedelta(seconds=30)
    max_attempts: int = 3
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    final_statuses: frozenset[int] = frozenset()
    concurrency: int | None = None
    rate_per_s: float | None = None
    keep_history: bool = True
    paused: bool = False
    gone: bool = False
    secrets: tuple[str, ...] = ()
    version: int = 1
    waits: bool = field(init=False)
    """Whether its jobs wait for an operator."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "waits", self.paused or self.gone)  # asked of each job: no property


@dataclass(frozen=True, slots=True)
class Completed:
    """The attempt did its work; ``result`` is JSON text or nothing."""

    result: str | None = None


@dataclass(frozen=True, slots=True)
class Errored:
    """The attempt failed: certain (``refused``), or nobody can tell (``unknown``); both are retried."""

    code: str
    message: str
    final: bool = False
    gone: bool = False
    retry_after: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The handler wants to be called again later; costs no attempt."""

    wait: timedelta


AttemptOutcome = Completed | Errored | Snoozed


class Retry(Exception):
    """Raise in a handler to fail this attempt; ``after`` is the least wait, 3660 days at most, beside the policy's."""

    def __init__(self, message: str = "retry", *, after: timedelta | None = None) -> None:
        super().__init__(message)
        self.after = after


class Fail(Exception):
    """Raise in a handler when trying again cannot help: the job fails at once."""


class Snooze(Exception):
    """Raise in a handler to be called again after ``wait``, 3660 days at most; costs no attempt."""

    def __init__(self, wait: timedelta) -> None:
        super().__init__(f"snoozed for {wait}")
        self.wait = wait


class Begin(Enum):
    """Whether a last attempt begins."""

    BEGINS = "begins"
    LOCKED = "locked"
    """Another session has locked its row, so that its begin cannot be written; the job is released."""
    LOST = "lost"


class ClaimedRow(msgspec.Struct, frozen=True, gc=False):
    """A job as a claim returns it: the columns of the query ``claim``, in their order.

    Attributes:
        attempts: With this one.
        execute_s: When its user wanted it to run, where that is not ``due_s``.
        due_s: When this attempt is due. All instants are in seconds since 1970 by the database's clock.
        expires_s: From when on it must not start.
    """

    id: int
    task_type: str
    payload: str
    priority: int
    attempts: int
    max_attempts: int
    fence: int
    timeout_ms: int | None
    execute_s: float | None
    due_s: float
    expires_s: float | None
    traceparent: str | None


class _Reporter(Protocol):
    async def report_progress(self, job: "Job", progress: str) -> bool: ...


class Job:
    """One attempt of one job, as its handler sees it.

    Handlers get it as their first argument; everything on it is read-only. ``fence`` rises with every
    attempt: hand it to whatever you write to, and refuse a lower one there.

    Attributes, for the worker only:
        row: What was claimed.
        type_state: Of its type.
        fire_s: When it may start, by the database's clock.
        deadline_s: How long it may run; 0 is without an end.
        started_s: When it started, or began to wait for a slot (monotonic); 0 before.
        stop_reason: Why its handler has to stop: ``timeout``, ``cancel``, ``lost`` or ``shutdown``.
        span: Of its trace.
    """

    __slots__ = (
        "_reporter", "_stop_event", "deadline_s", "fire_s", "row", "span", "started_s", "stop_reason", "type_state",
    )  # fmt: skip

    def __init__(self, row: ClaimedRow, type_state: Any, reporter: _Reporter, fire_s: float, deadline_s: float) -> None:
        self.row = row
        self.type_state = type_state
        self._reporter = reporter
        self.fire_s = fire_s
        self.deadline_s = deadline_s
        self.started_s = 0.0
        self.stop_reason: str | None = None
        self.span: Span | None = None
        self._stop_event: threading.Event | None = None

    @property
    def id(self) -> int:
        """The job's id, equal on every attempt."""
        return self.row.id

    @property
    def type(self) -> str:
        """The task type's name."""
        return self.row.task_type

    @property
    def payload_json(self) -> str:
        """The payload as JSON text."""
        return self.row.payload

    @property
    def payload(self) -> Any:
        """The payload, decoded."""
        return msgspec.json.decode(self.row.payload)

    @property
    def attempt(self) -> int:
        """1 for the first attempt."""
        return self.row.attempts

    @property
    def max_attempts(self) -> int:
        """How many attempts the job has in all."""
        return self.row.max_attempts

    @property
    def fence(self) -> int:
        """Rises with every attempt of this job."""
        return self.row.fence

    @property
    def execute_at(self) -> datetime:
        """When the user wanted it to run."""
        row = self.row
        return datetime.fromtimestamp(row.due_s if row.execute_s is None else row.execute_s, UTC)

    @property
    def due_s(self) -> float:
        """When this attempt was due, in seconds since 1970 by the database's clock."""
        return self.row.due_s

    @property
    def expires_s(self) -> float | None:
        """From when on it must not start, in seconds since 1970 by the database's clock."""
        return self.row.expires_s

    @property
    def traceparent(self) -> str | None:
        """The trace that the job was scheduled in, as the row has it; not validated."""
        return self.row.traceparent

    @property
    def cancelled(self) -> bool:
        """Whether the handler should stop: its user, its timeout or a lost lease wants it to."""
        return self.stop_reason is not None

    def wait_cancelled(self, timeout_s: float) -> bool:
        """Wait in a synchronous handler's thread until ``cancelled`` is set; return whether it is."""
        if self._stop_event is None:
            self._stop_event = threading.Event()
            if self.stop_reason is not None:
                self._stop_event.set()
        return self._stop_event.wait(timeout_s)

    async def progress(self, value: Any) -> bool:
        """Write ``value`` (JSON) to the job's ``progress``; return whether the job is still ours."""
        return await self._reporter.report_progress(self, msgspec.json.encode(value).decode())

    def stop_because(self, reason: str) -> None:
        """Tell the handler to stop; for the worker, not for handlers."""
        self.stop_reason = self.stop_reason or reason
        if self._stop_event is not None:
            self._stop_event.set()


@dataclass(slots=True)
class ClaimRange:
    """Jobs of one type and priority: one range of the index.

    ``frontier_s`` is a keyset bound: no job that is due earlier is left, as far as this worker's claims know.
    """

    task_type: str
    priority: int
    frontier_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """One claim: how many rows of which types, in the order in which they are looked at."""

    types: tuple[str, ...]
    rows_max: tuple[int, ...]
    total_max: int

    def split(self, names: Container[str]) -> "tuple[ClaimPlan, ClaimPlan]":
        """Return a part for another claim beside this one, a quarter of the rows of some types, and what is left.

        No type is left without a row, so that a plan of very few rows is exceeded by one of each.
        """
        parts = {name: max(1, rows // 4) for name, rows in zip(self.types, self.rows_max, strict=True) if name in names}
        total = max(1, self.total_max // 4)
        left = tuple(max(1, rows - parts.get(name, 0)) for name, rows in zip(self.types, self.rows_max, strict=True))
        return (
            ClaimPlan(tuple(parts), tuple(parts.values()), total),
            ClaimPlan(self.types, left, max(1, self.total_max - total)),
        )


COLD_ROWS = 64


def allot(free: int, used: int, *, all_free: int) -> int:
    """Return how many jobs of one type may be claimed while ``free`` places are left in all.

    A type may take three quarters of what the others leave, so that one slow target can never take
    the last place from everybody else.

    Args:
        free: Places that this claim may fill.
        used: Places that jobs of this type hold.
        all_free: Places that nobody holds.
    """
    ceiling = (3 * (all_free + used) + 3) // 4
    return max(0, min(free, ceiling - used))


def type_slots_max(slots: int, *, types: int) -> int:
    """Return how many of a worker's slots one type may have, also one whose jobs end quickly: it may hang at once.

    All, where the worker has no other one; else all but a sixteenth, of four slots and more at least one.
    """
    return slots - max(slots // 16, 1 if slots >= 4 else 0) if types > 1 else slots


def ahead_max(rate_per_s: float) -> int:
    """Return how many jobs of a rate-limited type a worker may hold before their starts: those that it takes ahead."""
    return max(1, math.ceil(PACED_AHEAD_S * rate_per_s))


def furthest_start_s(rate_per_s: float) -> float:
    """Return in how many seconds a type's next start can be at the most, where its rate has not changed.

    A claim takes starts that far ahead, and jobs that are due within its horizon; the rest is for small corrections
    of the database's clock.
    """
    return max(PACED_AHEAD_S, 1.05 / rate_per_s) + PACED_SLACK_S


def plan_claim(allowance: Mapping[str, int], hot: frozenset[str], budget: int, turn: int) -> ClaimPlan | None:
    """Split ``budget`` rows over the types that may have some; the first look goes round with ``turn``.

    A type that had more than it was asked for last time gets an even part, the others a small one; what
    is then left over comes with the next claim, which follows at once.
    """
    names = [name for name, rows in allowance.items() if rows > 0]
    if not names or budget <= 0:
        return None
    turn %= len(names)
    names = names[turn:] + names[:turn]
    part = max(1, budget // max(1, sum(name in hot for name in names)))
    share = budget if len(names) == 1 else COLD_ROWS
    rows = tuple(min(allowance[name], part if name in hot else share) for name in names)
    return ClaimPlan(tuple(names), rows, budget)
