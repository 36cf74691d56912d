"""Attempt outcomes and their writing: many results in one statement, each fenced by the session's token.

There are three steps. ``outcome_of_result`` and ``outcome_of_raised`` turn what a handler returns or raises into an
outcome. :class:`OutcomeRecorder` decides what follows: completed, retried after a wait, failed, cancelled, released.
:class:`ResultWriter` collects these results and writes them.

The first result after a quiet time is written at once; further ones gather for at most ``FLUSH_GAP_S``, or for
``SOON_S`` once one of them carries a value, is awaited or is of a workflow. So a crash loses at most that much work,
which runs again. While the database is unavailable, results wait until the lease is lost. Then other workers own these
jobs, and the results are dropped and counted.

A program may lock rows of running jobs in a transaction of its own, for any time. A write that meets such a row waits
for it, with all other results in it. After such a wait, writes skip locked rows for a minute, at the cost of one more
statement each. The results of locked rows are tried again every second and delay no other result.
"""

import asyncio
import traceback
from collections import defaultdict
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, Literal

import asyncpg
import structlog

from tickwright.capabilities.jobs.arguments import PayloadInvalid
from tickwright.capabilities.jobs.model import (
    ERROR_MESSAGE_MAX,
    AttemptOutcome,
    Begin,
    Completed,
    Deferred,
    Errored,
    Fail,
    Job,
    Retry,
    Snooze,
    Snoozed,
    TaskType,
)
from tickwright.capabilities.jobs.worker.claims import ClaimStore
from tickwright.capabilities.jobs.worker.encryption import withheld
from tickwright.capabilities.jobs.worker.places import Place, PlaceQueues
from tickwright.capabilities.jobs.worker.steps import StepRefused
from tickwright.domain.envelopes import Purpose
from tickwright.domain.errors import error_text, storable
from tickwright.domain.retries import WAIT_MAX
from tickwright.domain.strict_json import encode_value
from tickwright.domain.time_texts import parse_duration
from tickwright.engine.payload_keys import NO_KEYS, PayloadKeys
from tickwright.engine.tasks import is_set_within
from tickwright.observe import traces
from tickwright.observe.logs import without_secrets
from tickwright.ports.ids import monotonic, random_unit
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.ports.session import Session
from tickwright.store.pool import UNAVAILABLE

FLUSH_GAP_S = 0.05
SOON_S = 0.005
"""The same for a result for which others may wait: one with a value, of an awaited job, or of a job of a workflow."""
FLUSHES_AT_ONCE = 2
BESIDE_S = 0.2
"""A statement that takes longer waits for a row or a slow server; the next one then runs beside it."""
FULL = 2000
"""So many results are written without further waiting."""
BATCH_MAX = 8000
RETRY_S = 0.2
LOCKED_AGAIN_S = 1.0
PASSES_LOCKED_S = 60.0
LOCKED_MAX = 100_000

WITH_VALUE = "complete_with_result"

RELEASING = frozenset({"retry", "snooze", "defer"})
"""Results after which the job is pending again, and may be due before the next claim."""

FENCED_BY_JOB = RELEASING | {"release", "release_with_error"}
"""Results that leave the job in the table. Besides the session's token they carry the job's fence (the first column),
so that a second write, after a lost answer, does not change a later attempt of the same session. The other results
delete the row: a second write finds none."""

INTERRUPTED = "interrupted: its worker stopped before it ended"
CANCELLED = "cancelled while it ran"
EXPIRED = "expired: it could not start before expires_at"
ERROR_REFUSED = "result_refused: the database refuses the error's text"

_log = structlog.get_logger("tickwright.jobs")


def outcome_of_raised(job: Job, error: BaseException) -> AttemptOutcome:
    """Return the outcome of an attempt whose handler raised ``error``; methods of its class may raise anything."""
    try:
        outcome = outcome_of_error(error)
        is_known = isinstance(error, Exception)
    except BaseException as failure:  # noqa: BLE001  as above
        is_known, is_final = False, issubclass(type(error), Fail)
        outcome = Errored("handler_error", f"{type(error).__name__}: {error_text(failure)}", final=is_final)
    if not is_known:
        _log.warning("jobs.handler_raised", job=job.id, task_type=job.type, error=type(error).__name__)
    return outcome


def outcome_of_error(error: BaseException) -> AttemptOutcome:
    """Return the outcome of a handler's error."""
    match error:
        case Snooze():
            return Snoozed(_checked(error.wait))
        case Fail():
            return Errored("handler_failed", str(error), final=True)
        case Retry():
            return Errored(
                "handler_retry", str(error), retry_after=None if error.after is None else _checked(error.after)
            )
        case PayloadInvalid():
            return Errored("payload_invalid", f"payload_invalid: {error}", final=True)
        case StepRefused():
            return Errored(error.code, f"{error.code}: {error}", final=True)
        case _:
            return Errored("handler_error", "".join(traceback.format_exception_only(error)).strip())


def _checked(wait: object) -> timedelta:
    if isinstance(wait, str):
        wait = parse_duration(wait, field="wait")
    if not isinstance(wait, timedelta):
        raise TypeError(f"a wait is a duration, such as '30s', or a timedelta, not {type(wait).__name__}")
    if wait > WAIT_MAX:
        raise ValueError(f"a wait has {WAIT_MAX.days} days at the most")
    return max(wait, timedelta())


def outcome_of_result(job: Job, result: Any) -> AttemptOutcome:
    """Return the outcome of an attempt whose handler returned ``result``."""
    try:
        if isinstance(result, Snoozed):
            return Snoozed(_checked(result.wait))
        if isinstance(result, Errored) and result.retry_after is not None:
            return replace(result, retry_after=_checked(result.retry_after))
        if isinstance(result, (Completed, Errored, Deferred)):
            return result
        return Completed(encode_value(result))
    except BaseException as error:  # noqa: BLE001  as above: to read the result may raise anything
        _log.warning("jobs.result_invalid", job=job.id, task_type=job.type, error=type(error).__name__)
        why = f"result_invalid: the handler's result is not JSON: {error_text(error)}"
        return Errored("result_invalid", why, final=True)


class OutcomeRecorder:
    """Decides what follows from each outcome, and queues the result.

    Args:
        gone: Called with a job whose endpoint answered that it is gone, and why; releases it when its type waits.
        freed: Called when a slot of a limited type is free again.
        begins: Returns whether a last attempt may begin, and counts it.
        keys: Seal the results of encrypted types.
    """

    def __init__(
        self,
        writer: "ResultWriter",
        *,
        gone: Callable[[Job, str], None],
        freed: Callable[[], None],
        begins: Callable[[Job], Awaitable[Begin]],
        keys: PayloadKeys = NO_KEYS,
    ) -> None:
        self._writer = writer
        self.begins = begins
        self._gone = gone
        self._freed = freed
        self._keys = keys
        self.places = writer.places
        self.places.release = partial(self.record_unstarted, reason="waits")
        self._in_places = self.places.known
        self._noted: Callable[[Job, str], None] | None = None
        self._awaited: set[Job] = set()
        self._watches = False

    def watch(self, noted: Callable[[Job, str], None]) -> None:
        """Call ``noted`` with each outcome from now on."""
        self._noted, self._watches = noted, True

    def expect_soon(self, job: Job) -> None:
        """Write the end of a held attempt soon, because a process waits for it."""
        self._awaited.add(job)
        self._watches = True

    def record_completed(self, job: Job) -> None:
        """Record the common case: the attempt succeeded and returned ``None``."""
        self._count(job, "completed")
        is_awaited = job.row.details is not None and job.workflow_id is not None
        self._writer.add_completed(job.row.id, keep=job.type_state.task_type.keep_history, soon=is_awaited)

    def record_ended(self, job: Job, outcome: AttemptOutcome) -> None:
        """Record an attempt that ended by itself."""
        match outcome:
            case Completed(result=None):
                self.record_completed(job)
            case Completed(result=str(result)):
                self._count(job, "completed")
                if job.type_state.task_type.encrypted:
                    result = self._keys.seal(result, Purpose.RESULT, str(job.id))
                self._writer.add(WITH_VALUE, job.id, result)
            case Deferred(wait=wait):
                self._count(job, "deferred")
                text = f"{outcome.code}: {outcome.message}"
                self._writer.add("defer", job.id, job.fence, wait.total_seconds(), _storable_text(text))
            case Snoozed(wait=wait):
                self._count(job, "snoozed")
                self._writer.add("snooze", job.id, job.fence, wait.total_seconds())
            case Errored():
                self._errored(job, outcome)

    def _errored(self, job: Job, error: Errored) -> None:
        if job.type_state.task_type.encrypted:
            error = withheld(error)
        if job.span is not None:
            traces.fail(job.span, error.code)
        if error.gone:  # the type waits for an operator, and this attempt does not count
            self._count(job, "gone")
            self._gone(job, _storable_text(error.message))
            return
        query, columns = result_of_error(error, job.type_state.task_type, job.attempt, job.max_attempts)
        self._count(job, "failed" if query == "fail" else "retried")
        self._writer.add(query, job.id, *((job.fence,) if query in FENCED_BY_JOB else ()), *columns)

    def record_stopped(self, job: Job, reason: str) -> None:
        """Record a stopped attempt: ``cancel``, ``shutdown``, or ``lost``, for which nothing is written."""
        self._count(job, reason)
        if reason == "shutdown":
            self._writer.add("release_with_error", job.id, job.fence, INTERRUPTED)
        elif reason == "cancel":
            self._writer.add("cancel_held", job.id, CANCELLED)

    def record_unstarted(self, job: Job, reason: str) -> None:
        """Record an attempt that ends before its start; it does not count.

        ``cancel`` ends the job and ``lost`` writes nothing. Every other reason (``shutdown``, ``locked``, ``timeout``,
        ``no_slot``, ``waits``: its type waits) releases it.
        """
        if reason == "cancel":
            self._count(job, reason)
            self._writer.add("cancel_unstarted", job.id, "cancelled before it started")
        elif reason == "lost":
            self.record_stopped(job, reason)
        else:
            self._count(job, "released")
            self._writer.add("release", job.id, job.fence)

    def record_expired(self, job: Job) -> None:
        """Record an attempt whose job expired before its start."""
        self._count(job, "expired")
        self._writer.add("cancel_unstarted", job.id, EXPIRED)

    def _count(self, job: Job, outcome: str) -> None:
        state = job.type_state
        if job.span is not None:
            job.span.set_attribute("tickwright.outcome", outcome)
        state.held -= 1
        state.counts[outcome] = state.counts.get(outcome, 0) + 1
        if self._watches:
            self._note(job, outcome)
        if self._in_places:
            self.places.leave(job, outcome)
        if state.granted is not None:
            self._freed()

    def _note(self, job: Job, outcome: str) -> None:
        if job in self._awaited:
            self._awaited.remove(job)
            self._writer.write_soon()
        if self._noted is not None:
            self._noted(job, outcome)
        else:
            self._watches = bool(self._awaited)


def result_of_error(
    error: Errored, kind: TaskType, attempt: int, max_attempts: int
) -> tuple[Literal["fail", "retry"], tuple[Any, ...]]:
    """Return the query of ``results.sql`` that follows from a failed attempt, and its columns behind id and fence."""
    outcome, text = "timed_out" if error.code == "timeout" else "failed", _storable_text(error.message)
    if error.final or attempt >= max_attempts:
        return "fail", (outcome, text)
    wait = kind.retry.delay(attempt, random_unit(), error.retry_after)
    return "retry", (wait.total_seconds(), outcome, text)


def _storable_text(text: str) -> str:
    """Return an error's text as its row can store it; secrets are removed before it is cut."""
    clean = storable(without_secrets(text))
    return clean if len(clean) <= ERROR_MESSAGE_MAX else clean[: ERROR_MESSAGE_MAX - 1] + "…"


@dataclass(slots=True)
class _Batch:
    """Results of one kind: ids, and their further columns."""

    ids: list[int] = field(default_factory=list)
    columns: tuple[list[Any], ...] = ()

    def extend(self, more: "_Batch") -> None:
        if not self.columns:
            self.columns = tuple([] for _ in more.columns)
        for column, values in zip((self.ids, *self.columns), (more.ids, *more.columns), strict=True):
            column.extend(values)

    def select(self, wanted: AbstractSet[int]) -> "_Batch":
        indexes = [index for index, job_id in enumerate(self.ids) if job_id in wanted]
        ids, *columns = [[column[index] for index in indexes] for column in (self.ids, *self.columns)]
        return _Batch(ids, tuple(columns))


class ResultWriter:
    """Collects results and writes them, fenced by the session's token.

    Args:
        lost: Called with the number of dropped results: the session no longer holds their jobs.
        released: Called when jobs are pending again.

    Attributes:
        kept: Ids of completed jobs without a result, of types that keep their history.
        forgotten: Ids of those of types that keep no history.
    """

    def __init__(
        self,
        store: ClaimStore,
        session: Session,
        *,
        lost: Callable[[int], None],
        released: Callable[[], None],
        probe: Probe = NO_PROBE,
    ) -> None:
        self._store = store
        self._session = session
        self._lost = lost
        self._released = released
        self._probe = probe
        self._waiting: dict[str, _Batch] = defaultdict(_Batch)
        self.kept: list[int] = []
        self.forgotten: list[int] = []
        self._writing: dict[asyncio.Task[None], tuple[str, _Batch]] = {}
        self._locked: dict[str, _Batch] = defaultdict(_Batch)
        self._locked_timer: asyncio.TimerHandle | None = None
        self._soon_timer: asyncio.TimerHandle | None = None
        self._passes_locked_until_s = 0.0
        self.places = PlaceQueues()
        self.places.freed_some = released
        self._ended_places: set[Place] = set()
        self._woken = asyncio.Event()
        self._stopping = False
        self._runs = False
        self._awake = False
        self._full = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def wake(self) -> None:
        """Start to write the queued results; cheap, called once per batch of results."""
        self._awake = True
        self._idle.clear()
        self._woken.set()

    def add_completed(self, job_id: int, *, keep: bool, soon: bool = False) -> None:
        """Queue the common case: completed, without a result; ``soon`` where other jobs wait for that."""
        ids = self.kept if keep else self.forgotten
        ids.append(job_id)
        if not self._awake:
            self.wake()
        if len(ids) == FULL:
            self._full.set()
        elif soon:
            self.write_soon()

    def add(self, kind: str, job_id: int, *values: Any) -> None:
        """Queue one result; ``kind`` is a query of ``results.sql``, ``values`` its further columns."""
        batch = self._waiting[kind]
        if not batch.columns and values:
            batch.columns = tuple([] for _ in values)
        batch.ids.append(job_id)
        for column, value in zip(batch.columns, values, strict=True):
            column.append(value)
        self.wake()
        if len(batch.ids) == FULL:
            self._full.set()
        elif kind == WITH_VALUE:
            self.write_soon()

    def write_soon(self) -> None:
        """Write what is queued within ``SOON_S``, because others wait for it."""
        if self._soon_timer is None:
            self._soon_timer = asyncio.get_running_loop().call_later(SOON_S, self._write_gathered)

    def _write_gathered(self) -> None:
        self._soon_timer = None
        self._full.set()

    @property
    def backlog(self) -> int:
        """How many results are not written yet; results of locked rows count only beyond ``LOCKED_MAX``."""
        return self._queued + max(0, self._locked_count - LOCKED_MAX)

    @property
    def _queued(self) -> int:
        return len(self.kept) + len(self.forgotten) + sum(len(batch.ids) for batch in self._waiting.values())

    @property
    def _locked_count(self) -> int:
        return sum(len(batch.ids) for batch in self._locked.values())

    def known(self) -> list[tuple[int, int]]:
        """Return ``(id, fence)`` of jobs whose result may be unwritten; fence 0 where the result ends the job."""
        batches = [*self._waiting.items(), *self._locked.items(), *self._writing.values()]
        known = [(job_id, 0) for job_id in (*self.kept, *self.forgotten)]
        for kind, batch in batches:
            fences = batch.columns[0] if kind in FENCED_BY_JOB else [0] * len(batch.ids)
            known.extend(zip(batch.ids, fences, strict=True))
        return known

    def drop_all(self) -> None:
        """Drop the unwritten results, because the session is lost."""
        dropped = self._queued + self._locked_count
        self.kept.clear()
        self.forgotten.clear()
        self._waiting.clear()
        self._locked.clear()
        if dropped:
            self._lost(dropped)

    async def run(self) -> None:
        """Write until stopped."""
        self._runs = True
        self._woken.set()  # after a crash: also write what was queued for the former run
        try:
            while not self._stopping or self._queued or self._locked:
                await self._woken.wait()
                self._woken.clear()
                while self._queued:
                    self._start_writes()
                    await self._pause()
                self._awake = False
                self._check_idle()
            if self._writing:
                await asyncio.wait(self._writing)
        finally:
            self._runs = False
            self._idle.set()  # callers of drained then write by themselves

    def _check_idle(self) -> None:
        if not (self._writing or self._queued or self._locked):
            self._idle.set()

    async def _pause(self) -> None:
        """Let results gather. One large statement at a time costs less than several small ones beside each other."""
        if self._queued < FULL:
            self._full.clear()
            await is_set_within(self._full, FLUSH_GAP_S)
        if self._writing:
            at_most_s = BESIDE_S if len(self._writing) < FLUSHES_AT_ONCE else None
            await asyncio.wait(self._writing, timeout=at_most_s, return_when=asyncio.FIRST_COMPLETED)

    def _start_writes(self) -> None:
        token = self._session.token
        for kind, batch in self._take():
            task = asyncio.create_task(self._write(kind, token, batch))
            self._writing[task] = kind, batch
            task.add_done_callback(self._write_ended)

    def _write_ended(self, task: asyncio.Task[None]) -> None:
        self._writing.pop(task, None)
        self._check_idle()
        self._free_places()
        if not task.cancelled() and (error := task.exception()):
            _log.error("jobs.result_lost", error=repr(error))

    def _free_places(self) -> None:
        """Free the places that had ended when all results of their jobs are written."""
        if self._ended_places and not self._writing:
            self.places.free(self._ended_places)
            self._ended_places = set()

    def _take(self) -> list[tuple[str, _Batch]]:
        takes_all = max(len(self.kept), len(self.forgotten)) <= BATCH_MAX
        if takes_all and self.places.ended:
            self._ended_places |= self.places.take_ended()
        taken = []
        if self.kept:
            taken.append(("complete", _Batch(self.kept[:BATCH_MAX])))
            del self.kept[:BATCH_MAX]
        if self.forgotten:
            taken.append(("complete_and_forget", _Batch(self.forgotten[:BATCH_MAX])))
            del self.forgotten[:BATCH_MAX]
        taken.extend(self._waiting.items())
        self._waiting = defaultdict(_Batch)
        return taken

    async def _write(self, kind: str, token: int, batch: _Batch) -> None:
        tried = False
        while token == self._session.token:
            try:
                await self._probe.reached("jobs.before_result", kind=kind, ids=batch.ids)
                found = await self._write_once(kind, token, batch)
            except UNAVAILABLE as error:
                tried = True
                if isinstance(error, asyncpg.LockNotAvailableError):
                    self._passes_locked_until_s = monotonic() + PASSES_LOCKED_S
                _log.warning("jobs.result_delayed", kind=kind, jobs=len(batch.ids), error=repr(error))
                await asyncio.sleep(RETRY_S)
            except asyncpg.PostgresError as error:
                await self._refused(kind, token, batch, error)
                return
            else:
                if found < len(batch.ids) and not tried:  # a second try may find that the first one succeeded
                    self._lost(len(batch.ids) - found)
                if kind in RELEASING:
                    self._released()
                return
        self._lost(len(batch.ids))

    async def _write_once(self, kind: str, token: int, batch: _Batch) -> int:
        """Write once; return how many of the jobs the session holds, including those whose rows are locked."""
        if monotonic() >= self._passes_locked_until_s:
            return await self._store.write(kind, token, batch.ids, *batch.columns)
        found, locked = await self._store.write_unlocked(kind, token, batch.ids, *batch.columns)
        if locked and token == self._session.token:
            self._locked[kind].extend(batch.select(locked))
            if self._locked_timer is None:
                _log.warning("jobs.result_locked", kind=kind, jobs=len(locked), example=min(locked))
                self._locked_timer = asyncio.get_running_loop().call_later(LOCKED_AGAIN_S, self._try_locked)
        return found + len(locked)

    def _try_locked(self) -> None:
        self._locked_timer = None
        self._passes_locked_until_s = monotonic() + PASSES_LOCKED_S
        for kind, batch in self._locked.items():
            self._waiting[kind].extend(batch)
        self._locked.clear()
        self.wake()

    async def _refused(self, kind: str, token: int, batch: _Batch, error: asyncpg.PostgresError) -> None:
        """Find the result that the database refuses: its job fails, the others are written."""
        if len(batch.ids) == 1:
            _log.error("jobs.result_refused", kind=kind, job=batch.ids[0], error=repr(error))
            why = ERROR_REFUSED if kind == "fail" else storable(f"result_refused: {error}")[:ERROR_MESSAGE_MAX]
            if [why] not in batch.columns:  # else it was refused with this text, too
                self.add("fail", batch.ids[0], "failed", why)
            return
        half = len(batch.ids) // 2
        for part in (slice(half), slice(half, None)):
            await self._write(kind, token, _Batch(batch.ids[part], tuple(column[part] for column in batch.columns)))

    async def write_now(self) -> None:
        """Write what is queued, at once; for a worker without ``run``."""
        while self._queued or self._writing:
            self._start_writes()
            await asyncio.wait(self._writing)

    async def drained(self) -> None:
        """Return when every queued result is written or dropped; write them here if ``run`` has crashed."""
        while self._queued or self._locked or self._writing:
            if not self._runs:
                self._start_writes()
                await self._pause()
                continue
            self._idle.clear()
            self._woken.set()
            await self._idle.wait()

    def stop(self) -> None:
        """Write the remaining results, then return from ``run``."""
        self._stopping = True
        self._woken.set()
