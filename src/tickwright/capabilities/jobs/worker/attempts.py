"""The attempts of a job as a list: those that left a trace, and the present or last one from the row itself. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from tickwright.capabilities.jobs.admin.views import AttemptView, JobDetail, job_view
from tickwright.domain.traceparent import read_traceparent


class _Noted(msgspec.Struct):
    """What ``attempt_errors`` keeps of one attempt; whoever writes to it by hand may leave something else there."""

    attempt: int
    due_at: datetime
    started_at: datetime
    ended_at: datetime
    fence: int
    outcome: str
    worker: int | None = None
    error: str | None = None


def job_detail(row: Mapping[str, Any]) -> JobDetail:
    """Return a job's row with the attempts that are known of it."""
    log = attempt_log(row)
    first = next((one.lateness_ms for one in log if one.fence == 1), None)
    trace = read_traceparent(row["traceparent"])
    return job_view(JobDetail, row, attempt_log=log, lateness_ms=first, traceparent=trace)


def attempt_log(row: Mapping[str, Any]) -> list[AttemptView]:
    """Return the attempts in their order: at most ten that left a trace, and the one that the row speaks of."""
    noted = [_seen(one) for one in _read(row["attempt_errors"])]
    present = _present(row)
    if present is None or any(one.fence >= present.fence for one in noted):
        return noted
    return [*noted, present]


def _read(text: str | None) -> Sequence[_Noted]:
    try:
        return [] if text is None else msgspec.json.decode(text, type=list[_Noted])
    except msgspec.DecodeError:
        return []


def _seen(one: _Noted) -> AttemptView:
    return AttemptView(
        one.attempt, one.due_at, one.started_at, one.ended_at, one.worker, one.fence, one.outcome, one.error,
        _late_ms(one.due_at, one.started_at),
    )  # fmt: skip


def _present(row: Mapping[str, Any]) -> AttemptView | None:
    """Return the attempt that runs or that ended the job; a pending job has none, nor one that never started."""
    status, started_at, due_at = row["status"], row["started_at"], row["due_at"]
    never = started_at is None or status == "pending" or (status == "cancelled" and row["cancel_requested_at"] is None)
    if never:
        return None
    started_at = max(started_at, due_at)  # a claim may look ahead, but none starts before it is due
    outcome = "running" if status == "processing" else status
    return AttemptView(
        row["attempts"], due_at, started_at, row["completed_at"], row["owner"], row["fence"], outcome,
        None if outcome == "running" else row["error_message"], _late_ms(due_at, started_at),
    )  # fmt: skip


def _late_ms(due_at: datetime, started_at: datetime) -> float:
    return round((started_at - due_at).total_seconds() * 1000, 3)
