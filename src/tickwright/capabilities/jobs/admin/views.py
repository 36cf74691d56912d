"""Results of the REST API, of ``--json`` and of the Python API, as types.

No type has a field for a secret or a hash, so none can leak. The exceptions, :class:`StoredTaskType` and
:class:`SecretView`, show a new secret once.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar, Self, TypeVar

import msgspec

from tickwright.capabilities.jobs.admin.unique_views import UniqueView, unique_reasons, unique_view
from tickwright.capabilities.jobs.model import TaskType, furthest_start_s
from tickwright.capabilities.jobs.unique import UniqueRequest, unique_of
from tickwright.capabilities.jobs.workflows.explain import Surroundings, place_in_workflow, reasons_to_wait
from tickwright.domain.masking import masked_address
from tickwright.domain.strict_json import decode_stored
from tickwright.domain.time_texts import RATE_PER_S_MIN, format_duration, instant_text, wait_text
from tickwright.domain.traceparent import read_traceparent
from tickwright.ports.views import AccessGranting, Explanation, Reason, UserData, view

T = TypeVar("T")


class JobView(msgspec.Struct, kw_only=True):
    """A job in a list; ``payload``, ``metadata``, ``result`` and ``progress`` are in :class:`JobDetail`.

    ``version`` rises with each claim and each edit. ``status`` is ``waiting`` while it waits for other jobs of its
    workflow, ``workflow_id``.
    """

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
    tags: list[str]
    group: str | None
    version: int
    workflow_id: int | None


class AttemptView(msgspec.Struct):
    """One attempt of a job; ``lateness_ms`` is from its due instant to its start.

    ``outcome`` is ``failed``, ``timed_out``, ``lost`` (with its worker) or ``released`` (interrupted, not counted); for
    the last attempt also ``running``, ``completed`` or ``cancelled``.
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


class StepView(msgspec.Struct):
    """A step that the job's handler has done, with the attempt that did it."""

    name: str
    at: datetime
    attempt: int


class JobDetail(JobView, UserData, kw_only=True):
    """One job with its JSON and its attempts; ``lateness_ms`` is that of its first start, where it is still known.

    ``step_results`` has the results of its ``steps``, by name.

    ``traceparent``, its trace, has only ids, so every role sees it; an invalid one is not shown.
    """

    USER_DATA: ClassVar[tuple[str, ...]] = ("payload", "metadata", "result", "progress", "step_results")
    payload: Any
    metadata: Any
    result: Any
    progress: Any
    step_results: Any = None
    steps: list[StepView] = []
    attempt_log: list[AttemptView] = []
    lateness_ms: float | None = None
    traceparent: str | None = None
    unique: UniqueView | None = None
    payload_hidden: bool = False


class JobPage(msgspec.Struct):
    """One page of jobs; ``searched`` rows were read.

    A page may be short or empty and still have a ``next``: a search is bounded, and the next one continues.
    """

    items: list[JobView]
    next: str | None = None
    searched: int = 0


class JobCounts(msgspec.Struct):
    """Jobs by state. Each count stops at ``capped_at``; the states in ``at_least`` may have more jobs than counted.

    ``partial`` is true when some are in ``at_least`` because the search was bounded, not because of ``capped_at``.
    """

    counts: dict[str, int]
    capped_at: int
    at_least: list[str]
    partial: bool


class CreatedJob(msgspec.Struct):
    """The scheduled job; ``created`` is false when its idempotency key, or its unique arguments, belong to another job.

    ``outcome`` is ``inserted``, ``existing``, or ``replaced`` with what ``replaced`` names: ``payload``, ``time``,
    ``priority``. ``status`` is that of a unique job that existed.
    """

    id: int
    created: bool
    outcome: str
    replaced: list[str] = []
    status: str | None = None


class JobAction(msgspec.Struct):
    """The result of an action.

    ``outcome`` is ``cancelled`` (it never starts), ``requested`` (its worker was asked to stop it), ``rescheduled``,
    ``run_now``, ``retried`` or ``edited``, with the new ``version``.
    """

    id: int
    status: str
    outcome: str
    execute_at: datetime | None = None
    version: int | None = None


class BulkAction(msgspec.Struct):
    """The result of a bulk action, or what it would change (``dry_run``).

    ``more`` is true when the limit left some over: call again with ``cursor`` set to ``next`` to continue.
    """

    changed: int
    requested: int
    ids: list[int]
    more: bool
    next: str | None = None
    dry_run: bool = False


class TaskTypeView(msgspec.Struct, AccessGranting, kw_only=True):
    """A task type; ``signing_secrets`` is the number of secrets in use, ``queue_paused_at`` the pause of its queue.

    ``deliver`` of an encrypted one is what its target gets, ``plain`` or ``cipher``; ``null``: brokers get ``cipher``.
    """

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
    queue: str
    needs: list[str]
    group_limit: int | None
    group_rate_per_s: float | None
    group_order: str | None
    unique: UniqueRequest | None
    paused_at: datetime | None
    gone_at: datetime | None
    queue_paused_at: datetime | None
    encrypted: bool
    deliver: str | None
    signing_secrets: int
    version: int
    created_at: datetime
    updated_at: datetime

    def masked(self) -> Self:
        """Return it with only the host of its target."""
        return msgspec.structs.replace(self, target=masked_address(self.target))


class StoredTaskType(msgspec.Struct):
    """The stored task type; ``secret`` only when this request made it, shown only in this response."""

    task_type: TaskTypeView
    created: bool
    secret: str | None = None


class SecretView(msgspec.Struct):
    """A new signing secret, shown only in this response; the old ones stay in use for ``overlap``."""

    task_type: str
    secret: str
    overlap: str


class DeadLetter(msgspec.Struct, AccessGranting):
    """A dead letter, which can be requeued."""

    kind: str
    id: int
    subject: str
    error_message: str | None
    attempts: int
    created_at: datetime
    died_at: datetime

    def masked(self) -> Self:
        """Return it with only the host of a destination; the name of a task type may have a colon."""
        if self.kind != "outbox":
            return self
        return msgspec.structs.replace(self, subject=masked_address(self.subject))


class Requeued(msgspec.Struct):
    """The requeued letters, or those that would be (``dry_run``); ``more`` when the limit left some over.

    ``key_reused``: jobs that stay dead letters, because another job has their idempotency key. ``unique_held``: those
    whose unique arguments another job holds. ``unfit``: letters that stay, because they break a rule that is newer than
    they are.
    """

    requeued: int
    ids: list[int]
    more: bool
    next: str | None = None
    dry_run: bool = False
    key_reused: list[int] = []
    unique_held: list[int] = []
    unfit: list[int] = []


def milliseconds(value: int | None) -> str | None:
    """Return a column in milliseconds as a duration such as ``30s``."""
    return None if value is None else format_duration(timedelta(milliseconds=value))


def job_view(kind: type[T], row: Mapping[str, Any], **more: Any) -> T:
    """Return a job's row as :class:`JobView` or :class:`JobDetail`."""
    return view(kind, row, timeout=milliseconds(row["timeout_ms"]), worker=row["owner"], **more)


def task_type_view(row: Mapping[str, Any]) -> TaskTypeView:
    """Return a row of ``task_types`` as :class:`TaskTypeView`."""
    rule = unique_of(row["uniqueness"])
    return view(
        TaskTypeView,
        row,
        timeout=milliseconds(row["timeout_ms"]),
        retry_base=milliseconds(row["retry_base_ms"]),
        retry_cap=milliseconds(row["retry_cap_ms"]),
        retry_factor=round(row["retry_factor"], 6),
        unique=rule and rule.shown(),
    )


class _Noted(msgspec.Struct):
    """An entry of ``attempt_errors``; manual changes may leave entries of other shapes."""

    attempt: int
    due_at: datetime
    started_at: datetime
    ended_at: datetime
    fence: int
    outcome: str
    worker: int | None = None
    error: str | None = None


def job_detail(row: Mapping[str, Any]) -> JobDetail:
    """Return a job's row with its known attempts."""
    log = attempt_log(row)
    first = next((attempt.lateness_ms for attempt in log if attempt.fence == 1), None)
    trace = read_traceparent(row["traceparent"])
    unique = unique_view(row["id"], row["uniqueness"])
    done = _done_steps(row["steps"])
    results = msgspec.json.encode({name: step.result for name, step in done.items()}).decode() if done else None
    steps = [StepView(name, step.at, step.attempt) for name, step in done.items()]
    return job_view(
        JobDetail, row, attempt_log=log, lateness_ms=first, traceparent=trace, unique=unique, steps=steps,
        step_results=results,
    )  # fmt: skip


class _DoneStep(msgspec.Struct):
    """An entry of ``steps``."""

    at: datetime
    attempt: int
    result: msgspec.Raw


def _done_steps(text: str | None) -> dict[str, _DoneStep]:
    """Return steps by name, in the order in which they were done."""
    try:
        done = msgspec.json.decode(text or "{}", type=dict[str, _DoneStep])
    except msgspec.DecodeError:
        return {}
    return dict(sorted(done.items(), key=lambda item: item[1].at))


def decoded(job: JobDetail) -> JobDetail:
    """Return a job with its JSON as Python values."""
    values = {name: getattr(job, name) for name in JobDetail.USER_DATA}
    found = {name: decode_stored(bytes(value)) for name, value in values.items() if isinstance(value, msgspec.Raw)}
    return msgspec.structs.replace(job, **found)


def attempt_log(row: Mapping[str, Any]) -> list[AttemptView]:
    """Return the attempts in order: at most ten noted ones, and the one that the row itself describes."""
    try:
        entries = msgspec.json.decode(row["attempt_errors"] or "[]", type=list[_Noted])
    except msgspec.DecodeError:
        entries = []
    noted = [
        AttemptView(**msgspec.structs.asdict(entry), lateness_ms=_late_ms(entry.due_at, entry.started_at))
        for entry in entries
    ]
    present = _present(row)
    if present is None or any(attempt.fence >= present.fence for attempt in noted):
        return noted
    return [*noted, present]


def _present(row: Mapping[str, Any]) -> AttemptView | None:
    """Return the attempt that runs or that ended the job, or ``None`` for a pending or never started job."""
    status, started_at, due_at = row["status"], row["started_at"], row["due_at"]
    never = started_at is None or status == "pending" or (status == "cancelled" and row["cancel_requested_at"] is None)
    if never:
        return None
    started_at = max(started_at, due_at)  # a claim may reach ahead, but no attempt starts before it is due
    outcome = "running" if status == "processing" else status
    return AttemptView(
        row["attempts"], due_at, started_at, row["completed_at"], row["owner"], row["fence"], outcome,
        None if outcome == "running" else row["error_message"], _late_ms(due_at, started_at),
    )  # fmt: skip


def _late_ms(due_at: datetime, started_at: datetime) -> float:
    return round((started_at - due_at).total_seconds() * 1000, 3)


WAITING_SHOWN_MAX = 10_000


def explain(facts: Mapping[str, Any], surroundings: Surroundings | None = None) -> Explanation:
    """Return the reasons for a job's state from the row of the query ``explain``; ``now`` is the database's clock.

    They go from the request to the last obstacle. The first one that alone keeps the job from running is the summary.
    ``surroundings`` is what the job waits for, and what waits for it, in a workflow.
    """
    match facts["status"]:
        case "waiting" if surroundings is not None:
            reasons = list(reasons_to_wait(surroundings))
        case "pending":
            reasons = list(_pending(facts)) or [Reason("due", "it is due, and a worker takes it with its next claim")]
        case "processing":
            reasons = list(_held(facts))
        case _:
            reasons = list(_finished(facts))
    summary = reasons[0].text
    if facts["status"] != "completed" and (done := _done_steps(facts["steps"])):
        reasons.append(Reason("steps_done", _steps_text(done)))
    if surroundings is not None:
        reasons.append(place_in_workflow(surroundings))
    if facts["idempotency_key"] is not None:
        reasons.append(Reason("has_key", "its idempotency key makes repeated requests answer with this job"))
    reasons += unique_reasons(facts["id"], unique_view(facts["id"], facts["uniqueness"]))
    return Explanation(facts["id"], facts["status"], summary, reasons)


STEPS_SHOWN_MAX = 5


def _steps_text(done: Mapping[str, _DoneStep]) -> str:
    shown = [f"{name} (at {instant_text(step.at)})" for name, step in done.items()][-STEPS_SHOWN_MAX:]
    more = f"{len(done) - len(shown)} others, " if len(done) > len(shown) else ""
    return f"steps that are done and are not repeated: {more}{', '.join(shown)}"


def _pending(facts: Mapping[str, Any]) -> Iterator[Reason]:
    now, due_at = facts["now"], facts["due_at"]
    if due_at > now:
        wait = wait_text(due_at - now)
        if facts["retry_at"] is not None:
            yield Reason(
                "waits_for_retry",
                f"attempt {facts['attempts']} of {facts['max_attempts']} did not end it; the next one is in {wait}",
            )
        else:
            yield Reason("not_due", f"not due yet: in {wait}")
    yield from _type_reasons(facts)
    yield from _key_reasons(facts)
    if facts["expires_at"] is not None and facts["expires_at"] <= max(now, due_at):
        yield Reason("expires", "it expires before it can start; it will end as cancelled")
    if (facts["target"] or "").startswith("remote:"):
        if not facts["able_workers"]:
            yield _no_remote_worker(facts)
    elif not facts["workers"]:
        yield Reason("no_worker", "no live worker: no process claims jobs")
    elif facts["type_known"] and not facts["serving_workers"]:
        needs = f", and needs {', '.join(facts['needs'])}" if facts["needs"] else ""
        text = f"no live worker serves it: {facts['task_type']} is in queue {facts['queue']}{needs}"
        yield Reason("not_served", f"{text}; start one with such queues, types and needs")
    elif facts["type_known"] and not facts["able_workers"]:
        yield _no_handler(facts["target"])
    if due_at <= now:
        yield from _backlog_reasons(facts)


def _key_reasons(facts: Mapping[str, Any]) -> Iterator[Reason]:
    if not facts["encrypted"]:
        return
    kind = TaskType(facts["task_type"], facts["target"], encrypted=True, deliver=facts["deliver"])
    key, error = facts["payload_key"], facts["error_message"] or ""
    if kind.target.startswith("remote:"):
        if error.startswith("payload_key_missing"):
            yield Reason("payload_key_missing", f"the api process that claimed it last could not read it: {error}")
    elif key is not None and kind.needs_keys and not facts["key_holders"]:
        text = f"no live worker has its payload key {key}; add it to TICKWRIGHT_PAYLOAD_KEYS of the workers"
        yield Reason("payload_key_missing", text)


def _no_remote_worker(facts: Mapping[str, Any]) -> Reason:
    pool = facts["target"].partition(":")[2]
    text = f"it waits for a remote worker of pool {pool} with the type {facts['task_type']}; none is alive"
    return Reason("no_remote_worker", text)


def _no_handler(target: str) -> Reason:
    scheme, _, name = target.partition(":")
    if scheme == "python":
        text = f"no live worker has the handler {name}: start one with the application that registers it"
    else:
        text = f"no live worker delivers to {scheme}: set the broker in the workers' settings"
    return Reason("no_handler", text)


def _type_reasons(facts: Mapping[str, Any]) -> Iterator[Reason]:
    name = facts["task_type"]
    if not facts["type_known"]:
        yield Reason(
            "type_unknown",
            f"task type {name} is not registered; the job waits since {instant_text(facts['created_at'])} until it is",
        )
    if facts["paused_at"] is not None:
        yield Reason("type_paused", f"task type {name} is paused since {instant_text(facts['paused_at'])}")
    if facts["queue_paused_at"] is not None:
        text = f"its queue {facts['queue']} is paused since {instant_text(facts['queue_paused_at'])}"
        yield Reason("queue_paused", text)
    if facts["gone_at"] is not None:
        yield Reason(
            "type_gone",
            f"the endpoint of {name} answered 410 Gone at {instant_text(facts['gone_at'])}; enable the type to go on",
        )


def _backlog_reasons(facts: Mapping[str, Any]) -> Iterator[Reason]:
    limit, running, ahead = facts["concurrency"], facts["running"], facts["waiting_before"]
    saturated = limit is not None and running >= limit
    if saturated:
        yield Reason(
            "concurrency_saturated",
            f"{running} of {limit} jobs of this type are held now; {facts['granted']} places are granted to workers",
        )
    if facts["able_workers"] and facts["full_workers"] == facts["able_workers"]:
        yield Reason("workers_full", _full_text(facts))
    elif limit is not None and not saturated and not facts["has_place"]:
        yield Reason(
            "no_place_granted",
            f"{running} of {limit} jobs of this type are held now, and no worker that has room may take another yet",
        )
    if facts["rate_per_s"] is not None and facts["next_free_at"] is not None:
        wait = facts["next_free_at"] - facts["now"]
        if 0 < wait.total_seconds() <= furthest_start_s(max(facts["rate_per_s"], RATE_PER_S_MIN)):
            text = f"the rate of {facts['rate_per_s']:g}/s is reserved for the next {wait_text(wait)}"
            yield Reason("rate_limited", text)
    if facts["group"] is not None:
        yield from _group_reasons(facts)
    elif ahead:
        more = " or more" if ahead >= WAITING_SHOWN_MAX else ""
        yield Reason("queued_behind", f"{ahead}{more} due jobs of its type and priority are before it")


def _group_reasons(facts: Mapping[str, Any]) -> Iterator[Reason]:
    group, limit, running = facts["group"], facts["group_limit"], facts["group_running"]
    if facts["group_order"] == "stop" and facts["group_stopped_by"] is not None:
        yield Reason(
            "group_stopped",
            f"its group {group} is stopped behind the failed job {facts['group_stopped_by']}; retry that job, or "
            "release the group",
        )
    if facts["group_order"] is not None and facts["group_first"] is not None:
        yield Reason("group_in_order", f"job {facts['group_first']} is before it in its group {group}")
    elif facts["group_order"] is not None and running:
        yield Reason("group_in_order", f"the job before it in its group {group} runs now")
    elif limit is not None and running >= limit:
        yield Reason("group_full", f"{running} of {limit} jobs of its group {group} are held now")
    if facts["group_rate_per_s"] is not None and facts["group_free_at"] is not None:
        wait = facts["group_free_at"] - facts["now"]
        if wait.total_seconds() > 0:
            text = f"the rate of its group, {facts['group_rate_per_s']:g}/s, is reserved for the next {wait_text(wait)}"
            yield Reason("group_rate_limited", text)
    if before := facts["group_before"]:
        more = " or more" if before >= WAITING_SHOWN_MAX else ""
        yield Reason("queued_in_group", f"{before}{more} due jobs of its group {group} are before it")


def _full_text(facts: Mapping[str, Any]) -> str:
    able, what = facts["able_workers"], "slot"
    if facts["queue_full_workers"] == able:
        return f"the live workers that can run it ({able}) have no free slot for its queue {facts['queue']}"
    taken, places = facts["able_running"], facts["able_slots"]
    if facts["threadless_workers"] == able:
        what, taken, places = "thread", facts["able_threads_busy"], facts["able_threads"]
    text = f"the live workers that can run it ({able}) have no free {what} for it: {taken} of {places} run jobs"
    return text if taken == places else f"{text}; one type may take three quarters of the {what}s that others leave"


def _held(facts: Mapping[str, Any]) -> Iterator[Reason]:
    if facts["cancel_requested_at"] is not None:
        yield Reason(
            "cancel_requested", f"its worker was asked to stop it at {instant_text(facts['cancel_requested_at'])}"
        )
    holder, until = facts["worker_name"], facts["worker_lease_until"]
    who = f"worker {holder}" if holder else "its worker" if facts["owner"] is None else f"session {facts['owner']}"
    if holder is None or facts["worker_lost_at"] is not None or until < facts["now"]:
        yield Reason("lease_expired", f"{who} lost its lease; another one takes the job back")
        return
    began = facts["started_at"]
    since = "not begun yet" if began is None else f"since {instant_text(began)}"
    yield Reason(
        "held",
        f"held by worker {holder} (session {facts['owner']}) {since}, attempt "
        f"{facts['attempts']} of {facts['max_attempts']}, lease until {instant_text(until)}",
    )


def _finished(facts: Mapping[str, Any]) -> Iterator[Reason]:
    at = instant_text(facts["completed_at"])
    match facts["status"]:
        case "completed":
            yield Reason("completed", f"it was done at {at}, in attempt {facts['attempts']}")
        case "failed":
            yield Reason(
                "dead_letter",
                f"it failed at {at} after {facts['attempts']} of {facts['max_attempts']} attempts and can be retried; "
                f"the last error: {facts['error_message'] or 'no error was reported'}",
            )
        case _:
            why = f": {facts['error_message']}" if facts["error_message"] else ""
            yield Reason("cancelled", f"it was cancelled at {at}{why}")
