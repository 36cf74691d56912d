"""Why a schedule makes jobs or does not, and what became of one occurrence: pure decisions over what was read."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from tickwright.capabilities.jobs.schedules.definition import recurrence_of
from tickwright.capabilities.jobs.schedules.views import ScheduleExplanation, next_slot_of, schedule_view
from tickwright.domain.calendars.occurrences import spread_offset
from tickwright.domain.errors import Rejected
from tickwright.domain.time_texts import format_duration, instant_text, wait_text
from tickwright.ports.views import Reason

_TICK = timedelta(microseconds=1)
LATE = timedelta(seconds=5)


def explain_schedule(row: Any, facts: Any, skips: Sequence[Any]) -> ScheduleExplanation:
    """Return why a schedule makes jobs or does not, and when the next one is due."""
    shown = schedule_view(row)
    reasons = [*_of_schedule(row, shown.next_at), *_of_surroundings(row, facts), *map(_of_skip, skips[:3])]
    if row["last_job_id"] is not None:
        last = f"the newest occurrence with a job is {instant_text(row['last_slot_at'])}: job {row['last_job_id']}"
        reasons.append(Reason("last_job", last))
    return ScheduleExplanation(row["name"], shown.state, reasons[0].text, reasons)


def _of_schedule(row: Any, next_at: datetime | None) -> list[Reason]:
    if row["paused_at"] is not None:
        since = instant_text(row["paused_at"])
        return [Reason("paused", f"it is paused since {since}: no job is made until it is enabled")]
    if row["problem"] is not None:
        return [Reason("failing", f"its jobs cannot be made: {row['problem']}")]
    if next_at is None:
        return [Reason("over", "it has no further occurrence")]
    wait = next_at - row["now"]
    if wait < -LATE:
        return [Reason("late", f"its job of {instant_text(next_at)} is late by {wait_text(-wait)}")]
    return [Reason("next", f"its next job is due at {instant_text(next_at)}, in {wait_text(max(wait, timedelta()))}")]


def _of_surroundings(row: Any, facts: Any) -> list[Reason]:
    found = []
    kind = row["task_type"]
    if not facts["has_producer"]:
        text = "no process makes jobs of schedules now: start a process with the role scheduler"
        found.append(Reason("no_producer", text))
    if not facts["is_known"]:
        text = f"its task type {kind} is not registered: its jobs wait until a program or task-types put registers it"
        found.append(Reason("unknown_task_type", text))
    elif facts["is_type_paused"] or facts["is_gone"]:
        why = "is paused" if facts["is_type_paused"] else "has an endpoint that answered 410"
        text = f"its task type {kind} {why}: its jobs wait until task-types enable"
        found.append(Reason("task_type_waits", text))
    if facts["open_job_id"] is not None and row["overlap"] != "allow":
        what = "is skipped" if row["overlap"] == "skip" else "cancels that job"
        text = f"job {facts['open_job_id']} of it has not ended: an occurrence until then {what}"
        found.append(Reason("job_open", text))
    return found


def _of_skip(skip: Any) -> Reason:
    if skip["reason"] == "overlap":
        why = "a job of an earlier occurrence had not ended"
    else:
        why = "found later than its misfire grace, and its misfire policy does not catch it up"
    one = skip["slots"] == 1
    when = (
        instant_text(skip["slot_at"]) if one else f"{instant_text(skip['slot_at'])} to {instant_text(skip['until_at'])}"
    )
    return Reason(
        f"skipped_{skip['reason']}", f"{skip['slots']} occurrence{'' if one else 's'} without a job, {when}: {why}"
    )


def explain_slot(row: Any, slot_at: datetime, job: Any, skip: Any) -> ScheduleExplanation:
    """Return what became of an occurrence; ``job`` and ``skip`` are what was found for it."""
    status, reason = _slot(row, slot_at, job, skip)
    return ScheduleExplanation(row["name"], status, reason.text, [reason])


def _slot(row: Any, slot_at: datetime, job: Any, skip: Any) -> tuple[str, Reason]:  # noqa: PLR0911  a case each
    when = instant_text(slot_at)
    if job is not None:
        state = job["status"] or "not kept any more"
        return "made", Reason("job_made", f"the occurrence of {when} has job {job['id']}, which is {state}")
    if skip is not None:
        return "skipped", _of_skip(skip)
    try:
        recurrence = recurrence_of(row)
    except Rejected as error:
        return "failing", Reason("failing", f"its times cannot be read: {error.message}")
    if recurrence.next_after(slot_at - _TICK) != slot_at:
        following = recurrence.next_after(slot_at)
        text = "none follows" if following is None else f"the next one after it is {instant_text(following)}"
        return "no_occurrence", Reason("no_occurrence", f"{when} is no occurrence as it is defined now; {text}")
    offset = spread_offset(row["name"], row["spread"])
    if slot_at + offset < row["counts_from"]:
        text = f"{when} is before {instant_text(row['counts_from'])}, when it was created, enabled or edited last"
        return "before", Reason("before_edit", f"{text}: earlier occurrences are not caught up")
    following = next_slot_of(row)
    if following is None:
        return "paused", Reason("paused", "it is paused, or has no further occurrence")
    if slot_at < following:
        return "forgotten", Reason(
            "forgotten", f"{when} was decided; its job or the reason for its skip is not kept any more"
        )
    place = f", {format_duration(offset)} after it by its spread" if offset else ""
    return "waiting", Reason("waiting", f"its job of {when} is made when it is due{place}")
