"""Schedules as operators see them."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

import msgspec

from tickwright.capabilities.jobs.schedules.definition import recurrence_of
from tickwright.domain.calendars.occurrences import spread_offset
from tickwright.domain.calendars.recurrence import Recurrence, describe_cron
from tickwright.domain.errors import Rejected
from tickwright.domain.time_texts import format_duration
from tickwright.ports.views import Reason, UserData

_TICK = timedelta(microseconds=1)
_MS = timedelta(milliseconds=1)


class OccurrenceView(msgspec.Struct, kw_only=True):
    """An occurrence.

    Attributes:
        slot_at: By the calendar.
        at: When its job is due: ``slot_at`` and the schedule's place in its spread.
        local: ``slot_at`` on the clocks of the time zone, with their offset from UTC.
        clock_change: What the clocks do between the occurrence before it and this one, such as ``+1h``.
    """

    slot_at: datetime
    at: datetime
    local: str
    clock_change: str | None


class SkipView(msgspec.Struct):
    """A range of occurrences without a job, and why: ``misfire`` (found too late) or ``overlap``."""

    slot_at: datetime
    until_at: datetime
    slots: int
    reason: str
    decided_at: datetime


class ScheduleView(msgspec.Struct, kw_only=True):
    """A schedule in a list.

    Attributes:
        text: Its times in words, such as ``At 03:00 every day``.
        state: ``active``, ``paused``, ``over`` (no occurrence is left) or ``failing`` (see ``problem``).
        set_by: ``app``: a program declared it; ``operator``: an operator or a file set it, which a program cannot
            change.
        next_at: When its next job is due.
        last_slot_at: The newest occurrence with a job.
    """

    name: str
    task_type: str
    state: str
    text: str
    cron: str | None
    every: str | None
    first_at: datetime | None
    time_zone: str
    spread: str
    overlap: str
    misfire: str
    misfire_max: int
    misfire_grace: str
    priority: int
    max_attempts: int | None
    timeout: str | None
    expires_after: str | None
    next_at: datetime | None
    last_slot_at: datetime | None
    last_job_id: int | None
    problem: str | None
    paused_at: datetime | None
    set_by: str
    version: int
    created_at: datetime
    updated_at: datetime


class ScheduleDetail(ScheduleView, UserData, kw_only=True):
    """A schedule with the payload of its jobs, its next occurrences and its newest skips."""

    USER_DATA: ClassVar[tuple[str, ...]] = ("payload",)
    payload: Any
    last_job_status: str | None
    next_occurrences: list[OccurrenceView]
    skips: list[SkipView]
    payload_hidden: bool = False


class StoredSchedule(msgspec.Struct):
    """The stored schedule, and whether this request created it."""

    schedule: ScheduleView
    created: bool


class StartedJob(msgspec.Struct):
    """The job of ``run-now``; not ``created`` where the same ``Idempotency-Key`` made it before."""

    id: int
    created: bool


class ScheduleExplanation(msgspec.Struct):
    """Why a schedule makes jobs or does not."""

    name: str
    status: str
    summary: str
    reasons: list[Reason]


class Preview(msgspec.Struct):
    """The next occurrences of a definition, its times in words, and its place in the spread."""

    text: str
    time_zone: str
    offset: str
    occurrences: list[OccurrenceView]


def schedule_view(row: Any) -> ScheduleView:
    """Return a row as it is shown in a list."""
    return ScheduleView(**_fields(row))


def schedule_detail(row: Any, **more: Any) -> ScheduleDetail:
    """Return a row with more of it."""
    return ScheduleDetail(**_fields(row), **more)


def next_slot_of(row: Any) -> datetime | None:
    """Return the next occurrence that has no job yet; ``None`` for one that is paused, over or wrong."""
    if row["paused_at"] is not None:
        return None
    try:
        recurrence = recurrence_of(row)
    except Rejected:
        return None
    offset = spread_offset(row["name"], row["spread"])
    found: datetime | None = row["next_slot_at"] or recurrence.next_after(row["counts_from"] - offset - _TICK)
    return found


def times_text(cron: str | None, every: timedelta | None) -> str:
    """Return the times of a schedule in words."""
    if every is not None:
        return f"Every {format_duration(every)}"
    try:
        return describe_cron(cron or "")
    except Rejected:
        return cron or ""


def occurrences(recurrence: Recurrence, offset: timedelta, after: datetime, count: int) -> list[OccurrenceView]:
    """Return the next ``count`` occurrences whose jobs are due after an instant."""
    zone, before = ZoneInfo(recurrence.time_zone), after
    found = []
    for slot_at in _slots(recurrence, after - offset, count):
        local, former = slot_at.astimezone(zone), before.astimezone(zone)
        shift = (local.utcoffset() or timedelta()) - (former.utcoffset() or timedelta())
        change = None if not shift else f"{'+' if shift > timedelta() else '-'}{format_duration(abs(shift))}"
        found.append(OccurrenceView(slot_at=slot_at, at=slot_at + offset, local=local.isoformat(), clock_change=change))
        before = slot_at
    return found


def _slots(recurrence: Recurrence, after: datetime, count: int) -> Iterator[datetime]:
    at = recurrence.next_after(after)
    while at is not None and count > 0:
        yield at
        at, count = recurrence.next_after(at), count - 1


def _fields(row: Any) -> dict[str, Any]:
    next_slot_at = next_slot_of(row)
    next_at = None if next_slot_at is None else next_slot_at + spread_offset(row["name"], row["spread"])
    same = {name: row[name] for name in ScheduleView.__struct_fields__ if name in row and name not in _DURATIONS}
    texts = {name: None if row[name] is None else format_duration(row[name]) for name in _DURATIONS}
    timeout_ms = row["timeout_ms"]
    return {
        **same,
        **texts,
        "timeout": None if timeout_ms is None else format_duration(timeout_ms * _MS),
        "text": times_text(row["cron"], row["every"]),
        "state": _state(row, next_at),
        "next_at": next_at,
    }


_DURATIONS = ("every", "spread", "misfire_grace", "expires_after")


def _state(row: Any, next_at: datetime | None) -> str:
    if row["paused_at"] is not None:
        return "paused"
    if row["problem"] is not None:
        return "failing"
    return "over" if next_at is None else "active"
