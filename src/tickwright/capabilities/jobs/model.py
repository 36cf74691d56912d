"""Task types, jobs, attempt outcomes and claim plans. Pure; a failed attempt is a value, not an exception."""

import math
import threading
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeVar, overload

import msgspec
from opentelemetry.trace import Span

from tickwright.capabilities.jobs.unique import Unique
from tickwright.capabilities.jobs.worker.pools import QUEUE
from tickwright.domain.errors import Rejected
from tickwright.domain.retries import RetryPolicy
from tickwright.domain.strict_json import encode_value

if TYPE_CHECKING:
    from tickwright.capabilities.jobs.worker.steps import Steps

P = ParamSpec("P")
R = TypeVar("R")
ERROR_MESSAGE_MAX = 2000
PROGRESS_BYTES_MAX = 65_536
_RESULT_TARGETS = ("python:", "remote:")
_PLAIN_TARGETS = ("python:", "remote:", "http:", "https:", "ws:", "wss:")
RATE_LIMITED_AHEAD_S = 0.5
"""How far ahead a claim takes starts of a rate-limited type. It takes at least one start."""
RATE_LIMITED_SLACK_S = 0.25
"""The horizon of a claim, and a margin."""


@dataclass(frozen=True, slots=True)
class TaskType:
    """One row of ``tickwright.task_types``: where jobs of this type go, and under which limits.

    ``needs`` is what its workers must have. ``queue_paused``: its queue is paused, for all of the queue's types.
    ``group_order``: what follows a failed job of an ordered group, ``stop``, ``skip`` or ``continue``; ``None`` for
    groups without an order. ``has_groups``: there are jobs with a group, or settings for them.
    """

    name: str
    target: str
    timeout: timedelta = timedelta(seconds=30)
    max_attempts: int = 3
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    final_statuses: frozenset[int] = frozenset()
    concurrency: int | None = None
    rate_per_s: float | None = None
    keep_history: bool = True
    queue: str = QUEUE
    needs: frozenset[str] = frozenset()
    group_limit: int | None = None
    group_rate_per_s: float | None = None
    group_order: str | None = None
    has_groups: bool = False
    paused: bool = False
    gone: bool = False
    queue_paused: bool = False
    secrets: tuple[str, ...] = ()
    version: int = 1
    unique: Unique | None = None
    encrypted: bool = False
    deliver: Literal["plain", "cipher"] | None = None
    """``plain`` or ``cipher``; ``None`` is ``cipher`` for brokers and ``plain`` elsewhere."""
    waits: bool = field(init=False)
    """Whether its jobs wait for an operator."""

    def __post_init__(self) -> None:
        waits = self.paused or self.gone or self.queue_paused
        object.__setattr__(self, "waits", waits)  # a field: the worker reads it for each job

    @property
    def needs_keys(self) -> bool:
        """Whether a process needs payload keys to run its attempts: to open payloads, or to seal results."""
        return self.encrypted and (self.opens or self.target.startswith(_RESULT_TARGETS))

    @property
    def opens(self) -> bool:
        """Whether its target gets plain texts, so that the process that delivers needs the keys."""
        if not self.encrypted:
            return False
        return self.deliver == "plain" or (self.deliver is None and self.target.startswith(_PLAIN_TARGETS))


@dataclass(frozen=True, slots=True)
class Completed:
    """The attempt succeeded; ``result`` is JSON text or ``None``."""

    result: str | None = None


@dataclass(frozen=True, slots=True)
class Errored:
    """The attempt failed, or its outcome is unknown. The job is retried, unless this was its last attempt.

    Attributes:
        code: Why; a stable code.
        final: Do not retry: the job fails.
        gone: The receiver wants no more jobs of this type: the type waits for an operator. The attempt does not count.
        retry_after: The wait before the next attempt is at least this long; asked for by the receiver or the handler.
    """

    code: str
    message: str
    final: bool = False
    gone: bool = False
    retry_after: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The handler asked to be called again later; costs no attempt."""

    wait: timedelta


@dataclass(frozen=True, slots=True)
class Deferred:
    """This process cannot run the attempt: another one may, after ``wait``. It costs no attempt."""

    code: str
    message: str
    wait: timedelta


AttemptOutcome = Completed | Errored | Snoozed | Deferred


class Retry(Exception):
    """Raise in a handler to fail this attempt; ``after`` is the least wait, at most 3660 days, beside the policy's."""

    def __init__(self, message: str = "retry", *, after: str | timedelta | None = None) -> None:
        super().__init__(message)
        self.after = after


class Fail(Exception):
    """Raise in a handler when another attempt cannot help: the job fails at once."""


class Snooze(Exception):
    """Raise in a handler to be called again after ``wait``, at most 3660 days; costs no attempt."""

    def __init__(self, wait: str | timedelta) -> None:
        super().__init__(f"snoozed for {wait}")
        self.wait = wait


class Begin(Enum):
    """Whether a last attempt begins."""

    BEGINS = "begins"
    LOCKED = "locked"
    """Another session has locked the row, so that the begin cannot be written; the worker releases the job."""
    LOST = "lost"


class ClaimedRow(msgspec.Struct, frozen=True, gc=False):
    """A job as a claim returns it: the columns of the query ``claim``, in their order.

    All instants are in seconds since 1970 by the database's clock.

    Attributes:
        attempts: Including this one.
        execute_s: When its user wanted it to run; ``None`` where that is ``due_s``.
        due_s: When this attempt is due.
        expires_s: From this instant on it must not start.
        details: Its tags, metadata, group and workflow, and whether it is awaited, as JSON; ``None`` where it has none
            of them.
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
    details: str | None = None


class _Reporter(Protocol):
    async def report_progress(self, job: "Job", progress: str) -> bool: ...

    def steps_of(self, job: "Job") -> "Steps": ...


class Job:
    """One attempt of one job: the first argument of its handler. Read-only.

    ``fence`` rises with every attempt: pass it to the systems that you write to, and refuse a lower fence there.

    Attributes, for the worker only:
        fire_s: When it may start, by the database's clock.
        deadline_s: How long it may run; 0 means without a limit.
        started_s: When it started, or began to wait for a slot (monotonic); 0 before that.
        stop_reason: Why its handler must stop: ``timeout``, ``cancel``, ``lost`` or ``shutdown``.
    """

    __slots__ = (
        "_reporter", "_steps", "_stop_event", "deadline_s", "fire_s", "row", "span", "started_s",
        "stop_reason", "type_state",
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
        """The job's id, the same on every attempt."""
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
    def tags(self) -> list[str]:
        """The job's tags, in the order in which they were given."""
        return self._details().get("tags") or []

    @property
    def metadata(self) -> dict[str, Any]:
        """The job's metadata, decoded; empty without any."""
        return self._details().get("metadata") or {}

    @property
    def group(self) -> str | None:
        """The job's group; ``None`` without one."""
        return self._details().get("group")

    @property
    def workflow_id(self) -> int | None:
        """The workflow that the job belongs to, if any."""
        return self._details().get("workflow")

    def _details(self) -> dict[str, Any]:
        return {} if self.row.details is None else msgspec.json.decode(self.row.details)

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self.row.attempts

    @property
    def max_attempts(self) -> int:
        """How many attempts the job has in total."""
        return self.row.max_attempts

    @property
    def fence(self) -> int:
        """The fence, which rises with every attempt of this job."""
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
        """The instant from which on it must not start, in seconds since 1970 by the database's clock."""
        return self.row.expires_s

    @property
    def traceparent(self) -> str | None:
        """The trace context that the job was scheduled with, as stored; not validated."""
        return self.row.traceparent

    @property
    def cancelled(self) -> bool:
        """Whether the handler should stop: on a cancel, a timeout, a lost lease or a shutdown."""
        return self.stop_reason is not None

    def wait_cancelled(self, timeout_s: float) -> bool:
        """Wait in a synchronous handler's thread until ``cancelled`` is set; return whether it is."""
        if self._stop_event is None:
            self._stop_event = threading.Event()
            if self.stop_reason is not None:
                self._stop_event.set()
        return self._stop_event.wait(timeout_s)

    async def progress(self, value: Any) -> bool:
        """Write ``value`` (JSON) to the job's ``progress``; return whether this session still holds the job.

        Raises:
            Unavailable: ``database_unavailable``: it is not written. Retry, or go on without it.
            Rejected: ``progress_too_large``: it has more than 65,536 bytes as JSON. Permanent.
            ValueError: It has a NaN or an infinity. Permanent.
        """
        text = encode_value(value)
        if len(text) > PROGRESS_BYTES_MAX or len(text.encode()) > PROGRESS_BYTES_MAX:
            advice = "store it elsewhere and report a reference"
            raise Rejected("progress_too_large", f"progress: at most {PROGRESS_BYTES_MAX} bytes as JSON; {advice}")
        return await self._reporter.report_progress(self, text)

    def progress_sync(self, value: Any) -> bool:
        """Do what :meth:`progress` does, in a synchronous handler."""
        is_held: bool = self._steps_of_attempt().wait(self.progress(value))
        return is_held

    @overload
    async def step(self, name: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    async def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    async def step(self, name: str, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call a function once for all attempts of this job: its result is kept, and a later attempt returns that.

        The result is committed before this returns. If the process dies between the call and the commit, the next
        attempt calls the function again: at least once. For exactly once, see :meth:`step_in`.

        Args:
            name: Of the step, 1 to 100 characters; each step of an attempt has its own.
            function: A synchronous one runs in a thread, which a timeout does not stop.
            args: Of the function.
            kwargs: Of the function.

        Returns:
            The result after its way through JSON, decoded to the function's return type, on every attempt.

        Raises:
            Rejected: ``step_repeated``, ``invalid_step_name``, ``too_many_steps`` (100), ``step_result_too_large``
                (65,536 bytes), ``steps_too_large`` (1 MiB), ``step_result_invalid`` (not JSON), ``step_type_differs``
                (the return type has changed). Permanent: the job fails at once.
            Contended: ``attempt_ended``: the attempt was stopped, or its worker has lost the job. Let it end the
                handler.
            Exception: What the function raises; nothing is kept then, and it may be called again.
        """
        return await self._steps_of_attempt().run(name, function, args, kwargs)

    def step_sync(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do what :meth:`step` does, in a synchronous handler."""
        result: R = self._steps_of_attempt().run_sync(name, function, args, kwargs)
        return result

    async def step_in(
        self, connection: Any, name: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Call a function once for all attempts, and keep its result in a transaction of the handler.

        What the function writes on ``connection`` takes effect exactly once: its writes and the kept result are
        committed together or not at all. The job's row stays locked until the transaction ends, so end it at once; in
        it, other steps and ``progress`` of this job wait.

        Args:
            connection: With an open transaction on the database of Tickwright: an asyncpg connection, a psycopg
                AsyncConnection, or an SQLAlchemy AsyncConnection or AsyncSession. Pass it to the function, too.
            name: As of :meth:`step`.
            function: An asynchronous one.
            args: Of the function.
            kwargs: Of the function.

        Raises:
            Rejected: As :meth:`step`; ``unsupported_connection``, ``no_transaction``. Permanent.
            Contended: As :meth:`step`. Let it end the transaction, which is then rolled back.
        """
        result: R = await self._steps_of_attempt().run_in(connection, name, function, args, kwargs)
        return result

    def step_in_sync(
        self, connection: Any, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Do what :meth:`step_in` does, in a synchronous handler, with a psycopg or SQLAlchemy connection."""
        result: R = self._steps_of_attempt().run_in_sync(connection, name, function, args, kwargs)
        return result

    def _steps_of_attempt(self) -> "Steps":
        if not hasattr(self, "_steps"):  # not set before: most jobs have none, and each field costs them time
            self._steps: Steps = self._reporter.steps_of(self)
        return self._steps

    def was_awaited(self) -> bool:
        """Return whether a process waited for its end when it was claimed; for the worker, not for handlers."""
        return bool(self._details().get("awaited"))

    def stop_because(self, reason: str) -> None:
        """Ask the handler to stop; for the worker, not for handlers."""
        self.stop_reason = self.stop_reason or reason
        if self._stop_event is not None:
            self._stop_event.set()


@dataclass(slots=True)
class ClaimRange:
    """A claim range: the jobs of one type and priority.

    ``frontier_s`` is a keyset bound: as far as this worker's claims know, no job that is due earlier is left.
    """

    task_type: str
    priority: int
    frontier_s: float = 0.0

    @property
    def key(self) -> tuple[str, int]:
        """What identifies it."""
        return self.task_type, self.priority


PRIORITY_FIRST = 32_767
"""Above every priority."""


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """One claim: how many rows of which types, in the order in which the claim reads them.

    Of each type it reads the jobs from ``first_priority`` downwards, then those above.
    """

    types: tuple[str, ...]
    rows_max: tuple[int, ...]
    total_max: int
    first_priority: int = PRIORITY_FIRST

    def split(self, names: Container[str]) -> "tuple[ClaimPlan, ClaimPlan]":
        """Split off a plan for a parallel claim: a quarter of the rows of the types ``names``; return it and the rest.

        Each type keeps at least one row, so that the two together may exceed a very small plan by one row a type.
        """
        parts = {name: max(1, rows // 4) for name, rows in zip(self.types, self.rows_max, strict=True) if name in names}
        total = max(1, self.total_max // 4)
        left = tuple(max(1, rows - parts.get(name, 0)) for name, rows in zip(self.types, self.rows_max, strict=True))
        return (
            ClaimPlan(tuple(parts), tuple(parts.values()), total),
            ClaimPlan(self.types, left, max(1, self.total_max - total), self.first_priority),
        )


COLD_ROWS = 64
FAIR_EVERY = 16
"""One of so many claims that leave jobs over begins with another priority, and not with the highest."""


def first_priority(fair_claims: int, priorities: Iterable[int], *, types: int) -> int:
    """Return the priority with which a fair claim begins, from the number of fair claims before it.

    So a job of any priority starts in the end, however many jobs of higher priority there are. A claim begins with each
    priority once for each of the types, because the first types of a claim may take all that it may return.
    """
    ordered = sorted(priorities)
    return ordered[fair_claims // max(1, types) % len(ordered)] if ordered else PRIORITY_FIRST


def allot(free: int, used: int, *, all_free: int) -> int:
    """Return how many jobs of one type, which has ``used`` slots, may be claimed.

    ``free`` are the slots that this claim may fill, ``all_free`` those that are free. A type may take three quarters of
    what the other types leave, so that one slow target never takes the last slot.
    """
    ceiling = (3 * (all_free + used) + 3) // 4
    return max(0, min(free, ceiling - used))


def type_slots_max(slots: int, *, types: int) -> int:
    """Return how many of a worker's slots one type may have, because any type may hang at once.

    All, where the worker has one type only; else all but a sixteenth, and of four or more slots all but at least one.
    """
    return slots - max(slots // 16, 1 if slots >= 4 else 0) if types > 1 else slots


def ahead_max(rate_per_s: float) -> int:
    """Return how many jobs of a rate-limited type a worker may hold before they start."""
    return max(1, math.ceil(RATE_LIMITED_AHEAD_S * rate_per_s))


def furthest_start_s(rate_per_s: float) -> float:
    """Return the longest time in seconds until a type's next start, while its rate is unchanged.

    A claim takes starts that far ahead; the rest is its horizon and a margin for corrections of the database's clock.
    """
    return max(RATE_LIMITED_AHEAD_S, 1.05 / rate_per_s) + RATE_LIMITED_SLACK_S


def plan_claim(allowance: Mapping[str, int], hot: frozenset[str], budget: int, turn: int) -> ClaimPlan | None:
    """Split ``budget`` rows over the types that may have some; the first type rotates with ``turn``.

    A hot type, which had more rows than the last claim asked for, gets an even part. Other types get ``COLD_ROWS``. The
    next claim follows at once and takes what is left over.
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
