"""The definition of a periodic job, read from JSON, TOML, options of a command or keyword arguments.

::

    task_type = "report.nightly"
    payload = { region = "eu" }     # {} when left out
    cron = "0 3 * * *"              # or a name such as @daily; either this or every
    every = "15m"                   # whole seconds from 1s: steps of wall-clock time
    first_at = "2030-01-31T09:00:00Z"   # not before it; every counts from it, otherwise from a Monday, 0:00
    time_zone = "Europe/Kyiv"       # UTC when left out
    spread = "5m"                   # its jobs run at a fixed place of this window, by the hash of its name
    overlap = "allow"               # a job of an earlier slot has not ended: allow both, skip, replace (cancel it)
    misfire = "one"                 # slots found too late: the newest one, all (up to misfire_max), none
    misfire_max = 100
    misfire_grace = "1m"            # later than this is too late
    priority = 0
    max_attempts = 3                # those of the task type when left out
    timeout = "30s"                 # that of the task type when left out
    expires_after = "1h"            # a job that did not start by then is cancelled; never when left out
"""

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tickwright.capabilities.jobs.requests import (
    ATTEMPTS_MAX,
    PRIORITY_MAX,
    TIMEOUT_MAX,
    TYPE_NAME,
    Attempts,
    NewJob,
    check_new_job,
)
from tickwright.domain.calendars.occurrences import Policies, spread_offset
from tickwright.domain.calendars.recurrence import EVERY_MAX, EVERY_MIN, Recurrence, parse_cron
from tickwright.domain.calendars.wallclock import zone_of
from tickwright.domain.errors import Rejected
from tickwright.domain.field_readers import Reader, bad, one_of, read_fields, whole
from tickwright.domain.time_texts import DurationText, InstantText, format_duration, parse_duration, parse_instant

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
SPREAD_MAX, GRACE_MAX, EXPIRES_MAX = timedelta(days=1), timedelta(days=7), timedelta(days=366)
MISFIRE_MAX_MAX = 1_000
Overlap = Literal["allow", "skip", "replace"]
Misfire = Literal["one", "all", "none"]
_MS = timedelta(milliseconds=1)
_NO_DURATION = 'write a duration with its unit, such as "15m"'


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """A checked definition; ``payload`` is JSON text."""

    task_type: str
    payload: str = "{}"
    cron: str | None = None
    every: timedelta | None = None
    first_at: datetime | None = None
    time_zone: str = "UTC"
    spread: timedelta = timedelta()
    overlap: Overlap = "allow"
    misfire: Misfire = "one"
    misfire_max: int = 100
    misfire_grace: timedelta = timedelta(minutes=1)
    priority: int = 0
    max_attempts: int | None = None
    timeout: timedelta | None = None
    expires_after: timedelta | None = None

    def recurrence(self) -> Recurrence:
        """Return when it occurs, without the spread; errors as :class:`Recurrence`."""
        return Recurrence(self.first_at, self.time_zone, cron=self.cron, every=self.every)

    def offset(self, name: str) -> timedelta:
        """Return the time from each slot to its job, by the schedule's name."""
        return spread_offset(name, self.spread)

    def columns(self) -> tuple[Any, ...]:
        """Return the values of the table's columns, in the order of the fields."""
        timeout_ms = None if self.timeout is None else round(self.timeout / _MS)
        values = {**{name: getattr(self, name) for name in self.__struct_fields__}, "timeout": timeout_ms}
        return tuple(values.values())


def policies_of(row: Any) -> Policies:
    """Return the policies of a row."""
    return Policies(row["overlap"], row["misfire"], row["misfire_max"], row["misfire_grace"])


def recurrence_of(row: Any) -> Recurrence:
    """Return when the schedule of a row occurs.

    Raises:
        Rejected: The row was written by SQL and has no valid calendar. Permanent.
    """
    return Recurrence(row["first_at"], row["time_zone"], cron=row["cron"], every=row["every"])


class ScheduleRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A periodic job: one job of ``task_type`` for each occurrence of ``cron`` or ``every``, in ``time_zone``.

    With ``version`` a put is refused (409) unless that is the newest version.
    """

    task_type: Annotated[str, Meta(min_length=1, max_length=50, pattern="^[A-Za-z0-9][A-Za-z0-9_.:-]*$")]
    payload: Annotated[Any, Meta(description="Any JSON, at most 65536 bytes; {} when left out")] | UnsetType = UNSET
    cron: Annotated[str, Meta(examples=["0 3 * * *"])] | UnsetType | None = UNSET
    every: DurationText | UnsetType | None = UNSET
    first_at: InstantText | UnsetType | None = UNSET
    time_zone: Annotated[str, Meta(examples=["Europe/Kyiv"])] | UnsetType = UNSET
    spread: DurationText | UnsetType = UNSET
    overlap: Overlap | UnsetType = UNSET
    misfire: Misfire | UnsetType = UNSET
    misfire_max: Annotated[int, Meta(ge=1, le=MISFIRE_MAX_MAX)] | UnsetType = UNSET
    misfire_grace: DurationText | UnsetType = UNSET
    priority: Annotated[int, Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX)] | UnsetType = UNSET
    max_attempts: Attempts | UnsetType | None = UNSET
    timeout: DurationText | UnsetType | None = UNSET
    expires_after: DurationText | UnsetType | None = UNSET
    version: Annotated[int, Meta(ge=1)] | UnsetType = UNSET


class ScheduleChange(ScheduleRequest, kw_only=True):
    """Changes of a periodic job; a field that is left out keeps its value, ``null`` removes it.

    ``cron`` replaces ``every`` and the other way round. If the schedule has another version than ``version`` by now,
    nothing changes.
    """

    task_type: Annotated[str, Meta(min_length=1, max_length=50)] | UnsetType = UNSET  # type: ignore[assignment]


def fields_of(request: ScheduleRequest) -> dict[str, Any]:
    """Return the fields that a request has, without its version."""
    values = {name: getattr(request, name) for name in Definition.__struct_fields__}
    return {name: value for name, value in values.items() if value is not UNSET}


def check_name(name: str) -> None:
    """Refuse a name that no schedule can have.

    Raises:
        Rejected: ``invalid_name``. Permanent.
    """
    if not NAME.fullmatch(name):
        text = "name: 1 to 100 letters, digits, '_', '.' or '-', a letter or digit first"
        raise Rejected("invalid_name", text, field="name")


def read_schedule(name: str, table: Any, problems: list[str], *, where: str) -> Definition | None:
    """Return the definition of a table or of keyword arguments; add every mistake to ``problems``."""
    if not NAME.fullmatch(name):
        problems.append(f"{where}: a name has 1 to 100 letters, digits, '_', '.' or '-', a letter or digit first")
    if not isinstance(table, Mapping):
        problems.append(f"{where}: write a table, [schedules.NAME]")
        return None
    try:
        return definition_of(table)
    except Rejected as error:
        problems += [f"{where}.{text}" for text in error.details["problems"]]
        return None


def definition_of(fields: Mapping[str, Any]) -> Definition:
    """Return a checked definition.

    Raises:
        Rejected: ``invalid_schedule`` with every mistake in ``problems``, or the code of the only one, such as
            ``invalid_cron``. Permanent.
    """
    found: list[tuple[str, Rejected]] = []
    readers = {name: _noting(name, read, found) for name, read in _READERS.items()}
    texts: list[str] = []
    given = {name: value for name, value in fields.items() if value is not None or name == "payload"}
    values = read_fields(given, readers, texts, where="")
    unknown = [text.removeprefix(".") for text in texts if ": unknown key" in text]
    found += [(text.partition(":")[0], Rejected("unknown_field", text)) for text in unknown]
    if not found:
        found += _contradictions(values)
    if found:
        raise _refused(found)
    return Definition(**values)


def _noting(name: str, read: Reader, found: list[tuple[str, Rejected]]) -> Reader:
    def noting(value: Any) -> Any:
        try:
            return read(value)
        except Rejected as error:
            found.append((name, error))
            raise

    return noting


def _contradictions(values: Mapping[str, Any]) -> list[tuple[str, Rejected]]:
    def wrong(field: str, text: str) -> list[tuple[str, Rejected]]:
        return [(field, Rejected("invalid_schedule", text))]

    if "task_type" not in values:
        return wrong("task_type", "missing; say which jobs it makes")
    if ("cron" in values) == ("every" in values):
        return wrong("cron", 'either cron, such as "0 3 * * *", or every, such as "15m"; one of them')
    try:
        check_new_job(NewJob(values["task_type"], values.get("payload", "{}")))
    except Rejected as error:
        return [(error.details.get("field", "payload"), error)]
    return []


def _refused(found: list[tuple[str, Rejected]]) -> Rejected:
    texts = [
        f"{field}: {error.message.removeprefix('duration: ').removeprefix(f'{field}: ')}" for field, error in found
    ]
    field, first = found[0]
    code = first.code if len(found) == 1 and first.code != "invalid_value" else "invalid_schedule"
    status = first.http_status if len(found) == 1 else 422
    return Rejected(code, "\n".join(texts), status=status, field=field, problems=texts)


def _lasting(low: timedelta, high: timedelta) -> Reader:
    def read(value: Any) -> timedelta:
        if not isinstance(value, str | timedelta):
            raise Rejected("invalid_duration", _NO_DURATION)
        duration = parse_duration(value) if isinstance(value, str) else value
        if not low <= duration <= high:
            raise Rejected("invalid_duration", f"from {format_duration(low)} to {format_duration(high)}")
        return duration

    return read


def _every(value: Any) -> timedelta:
    every: timedelta = _lasting(EVERY_MIN, EVERY_MAX)(value)
    if every % EVERY_MIN:
        raise Rejected("invalid_duration", "whole seconds")
    return every


def _text(read: Callable[[str], Any], form: str) -> Reader:
    def checked(value: Any) -> Any:
        if not isinstance(value, str):
            raise bad(form)
        return read(value)

    return checked


def _cron(value: str) -> str:
    parse_cron(value)
    return " ".join(value.split())


def _first_at(value: Any) -> datetime:
    if isinstance(value, datetime):
        value = value.isoformat()
    if not isinstance(value, str):
        raise bad('write an instant, such as "2030-01-31T09:00:00Z"')
    return parse_instant(value, field="duration")  # the prefix that is removed from a message


def _payload(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError) as error:
        raise Rejected("payload_not_json", f"{error}") from None


def _task_type(value: str) -> str:
    if not TYPE_NAME.fullmatch(value):
        raise Rejected("invalid_task_type", "1 to 50 letters, digits, '_', '.', ':' or '-'")
    return value


_READERS: Mapping[str, Reader] = {
    "task_type": _text(_task_type, "write the name of a task type"),
    "payload": _payload,
    "cron": _text(_cron, 'write five fields, such as "0 3 * * *"'),
    "every": _every,
    "first_at": _first_at,
    "time_zone": _text(lambda value: zone_of(value).key, 'write a name, such as "Europe/Kyiv"'),
    "spread": _lasting(timedelta(), SPREAD_MAX),
    "overlap": one_of("allow", "skip", "replace"),
    "misfire": one_of("one", "all", "none"),
    "misfire_max": whole(1, MISFIRE_MAX_MAX),
    "misfire_grace": _lasting(timedelta(), GRACE_MAX),
    "priority": whole(-PRIORITY_MAX, PRIORITY_MAX),
    "max_attempts": whole(1, ATTEMPTS_MAX),
    "timeout": _lasting(_MS, TIMEOUT_MAX),
    "expires_after": _lasting(timedelta(seconds=1), EXPIRES_MAX),
}
