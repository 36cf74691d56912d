"""Assertions about scheduled jobs: by handler, arguments and options, as they were scheduled.

::

    await assert_scheduled(app, remind, invoice_id=42)
    await assert_scheduled(app, remind.options(delay="3d", key="remind-42"), invoice_id=42)
    await assert_scheduled(connection, "invoice.remind", {"invoice_id": 42})
    await refute_scheduled(app, remind)

Arguments that are left out may have any value; so may options. Jobs count that are pending or running.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

import msgspec

from tickwright import Tickwright
from tickwright.app.declarations import Duration, as_duration
from tickwright.app.jobs import JobOptions, Options
from tickwright.app.payloads import to_json
from tickwright.capabilities.jobs.requests import NewJob
from tickwright.capabilities.jobs.unique import Unique, unique_of
from tickwright.capabilities.jobs.worker.chunks import ChunkArguments
from tickwright.capabilities.jobs.worker.drain import live_jobs
from tickwright.domain.errors import Rejected
from tickwright.store.borrowed import borrow, borrow_sync, finish

JOBS_MAX = 1000
"""How many jobs of a type are read."""
SHOWN_MAX = 5
WITHIN = timedelta(minutes=1)

Wanted = JobOptions[Any, Any] | NewJob | str
Fetch = Callable[..., Awaitable[Sequence[Any]]]


class ScheduledJob(msgspec.Struct, frozen=True):
    """A job that is pending or running.

    Attributes:
        due_at: When its next attempt is due.
        payload: Decoded.
        attempts: How many have begun.
        metadata: Decoded.
        unique: The rule that holds for it: its own, or that of its type.
    """

    id: int
    name: str
    payload: Any
    status: str
    due_at: datetime
    priority: int
    attempts: int
    max_attempts: int
    key: str | None
    timeout: timedelta | None = None
    expires_at: datetime | None = None
    tags: list[str] = []
    metadata: Any = None
    group: str | None = None
    unique: Unique | None = None


class _Expected(NamedTuple):
    """What a job has to be like; ``None`` means anything."""

    name: str
    payload: Any
    options: Options
    within: timedelta

    def differences(self, job: ScheduledJob, now: datetime) -> list[str]:
        """Return what of ``job`` differs, as text."""
        found = list(_differences("payload", self.payload, job.payload))
        given = self.options
        at = now + given.delay if given.delay is not None else given.at
        if at is not None and abs(job.due_at - at) > self.within:
            found.append(f"due at {job.due_at.isoformat()}, not within {self.within} of {at.isoformat()}")
        for name in ("key", "priority", "max_attempts", "timeout", "expires_at", "group"):
            wanted, there = getattr(given, name), getattr(job, name)
            if wanted and wanted != there:
                found.append(f"{name} is {there!r}, not {wanted!r}")
        if missing := sorted(set(given.tags) - set(job.tags)):
            found.append(f"tags are {job.tags!r}, without {missing[0]!r}")
        if given.metadata is not None:
            found += _differences("metadata", msgspec.json.decode(given.metadata), job.metadata)
        if given.unique is not None and _rule(given.unique) != _rule(job.unique):
            found.append(f"unique is {job.unique!r}, not {given.unique!r}")
        return found

    def __str__(self) -> str:
        options = {name: value for name, value in msgspec.structs.asdict(self.options).items() if value}
        options.pop("connection", None)
        parts = [to_json(self.payload) if self.payload else "", *(f"{name}={value}" for name, value in options.items())]
        return " ".join([self.name, *filter(None, parts)])


def _rule(unique: Unique | Literal[False] | None) -> Any:
    return unique.stored() if unique else None


def _differences(place: str, wanted: Any, there: Any) -> Sequence[str]:
    """Compare JSON values; an object may have more fields than wanted."""
    if isinstance(wanted, Mapping) and isinstance(there, Mapping):
        return [
            text
            for name, value in wanted.items()
            for text in (
                _differences(f"{place}.{name}", value, there[name]) if name in there else [f"{place}.{name} is missing"]
            )
        ]
    return (
        []
        if wanted == there and isinstance(wanted, bool) == isinstance(there, bool)
        else [f"{place} is {there!r}, not {wanted!r}"]
    )


class _Read(NamedTuple):
    """Jobs that fit, those that do not, with what differs, and the jobs of other types."""

    fitting: list[ScheduledJob]
    others: list[tuple[list[str], ScheduledJob]]
    names: list[str]


def _expected(job: Wanted, payload: Any, arguments: Mapping[str, Any], within: Duration) -> _Expected:
    if arguments and payload is not None:
        raise Rejected("invalid_arguments", "give the arguments by name, or as one mapping, not both")
    given = arguments or payload or {}
    tolerance = as_duration("within", within) or timedelta()
    if isinstance(job, NewJob):
        if given:
            raise Rejected("invalid_arguments", "a job of new_job or call has its arguments already")
        options = Options(
            job.execute_at, job.delay, job.key, job.priority, job.max_attempts, job.timeout, job.expires_at, job.tags,
            job.metadata, job.group, job.unique,
        )  # fmt: skip
        return _Expected(job.task_type, msgspec.json.decode(job.payload), options, tolerance)
    if isinstance(job, str):
        return _Expected(job, _plain(given), Options(), tolerance)
    arguments_of = job.handler.arguments
    known = () if isinstance(arguments_of, ChunkArguments) else arguments_of.names
    if known and isinstance(given, Mapping) and (unknown := given.keys() - set(known)):
        text = f"{job.name} has no argument {min(unknown)!r}; it has: {', '.join(known) or 'none'}"
        raise Rejected("invalid_arguments", text)
    return _Expected(job.name, _plain(given), job.chosen, tolerance)


def _plain(payload: Any) -> Any:
    return msgspec.json.decode(to_json(payload))


async def _read(fetch: Fetch, expected: _Expected) -> _Read:
    rows = await live_jobs(fetch, expected.name, JOBS_MAX)
    fitting, others = [], []
    for row in rows:
        job = _job_of(row)
        differing = expected.differences(job, row["now"])
        if differing:
            others.append((differing, job))
        else:
            fitting.append(job)
    others.sort(key=lambda other: len(other[0]))
    names = [] if rows else sorted({row["task_type"] for row in await live_jobs(fetch, None, JOBS_MAX)})
    return _Read(fitting, others, names)


def _job_of(row: Any) -> ScheduledJob:
    return ScheduledJob(
        row["id"], row["task_type"], msgspec.json.decode(row["payload"]), row["status"], row["due_at"], row["priority"],
        row["attempts"], row["max_attempts"], row["key"],
        None if row["timeout_ms"] is None else timedelta(milliseconds=row["timeout_ms"]), row["expires_at"],
        list(row["tags"]), msgspec.json.decode(row["metadata"] or "null"), row["group"], unique_of(row["uniqueness"]),
    )  # fmt: skip


def _fetch_of(where: Any, job: Wanted) -> Fetch:
    """Return how to query: on the connection of the options, on that of the caller, or through the app's pool."""
    connection = job.chosen.connection if isinstance(job, JobOptions) else None
    if connection is None and isinstance(where, Tickwright):
        return where.pool.fetch  # type: ignore[no-any-return]  # the driver has no types
    found = where if connection is None else connection
    return _reading(found) if _is_asyncpg(found) else borrow(found).fetch


def _is_asyncpg(connection: Any) -> bool:
    return any(kind.__module__.partition(".")[0] == "asyncpg" for kind in type(connection).__mro__)


def _reading(connection: Any) -> Fetch:
    fetch: Fetch = connection.fetch  # to read needs no transaction
    return fetch


def _complaint(expected: _Expected, read: _Read, count: int | None) -> str:
    wanted = "no job" if count == 0 else "a job" if count is None else f"{count} jobs"
    lines = [f"{wanted} scheduled: {expected}"]
    if read.fitting:
        lines += [f"found {len(read.fitting)}:", *(f"  {_shown(job)}" for job in read.fitting[:SHOWN_MAX])]
    if read.others and count != 0:
        lines.append("the closest:" if not read.fitting else "and not fitting:")
        for differing, job in read.others[:SHOWN_MAX]:
            lines += [f"  {_shown(job)}", *(f"    {text}" for text in differing)]
    if not (read.fitting or read.others):
        there = ", ".join(read.names[:20]) or "none at all"
        lines.append(f"there is no live job of this type; of others: {there}")
    return "\n".join(lines)


def _shown(job: ScheduledJob) -> str:
    key = "" if job.key is None else f" key={job.key}"
    due = job.due_at.isoformat()
    return f"job {job.id}, {job.status}, due {due}, priority {job.priority}{key}: {to_json(job.payload)}"


async def scheduled(
    where: Any, job: Wanted, payload: Any = None, /, *, within: Duration = WITHIN, **arguments: Any
) -> list[ScheduledJob]:
    """Return the live jobs that fit, in the order of their due times; at most 1,000 of the type are read.

    Args:
        where: The open app, or a connection as for ``schedule``, which may be in a transaction.
        job: A job of ``@app.job``, with :meth:`~tickwright.JobFunction.options` that count, of ``tags`` and
            ``metadata`` some; the name of a type; or a job of ``new_job`` or ``call``.
        payload: Some of the arguments, as a mapping.
        within: How far the due time may be from ``at``, or from now and ``delay``.
        arguments: Some of the arguments, by name, instead of ``payload``.

    Raises:
        Rejected: ``invalid_arguments``: the handler has no such argument. Permanent.
    """
    expected = _expected(job, payload, arguments, within)
    return (await _read(_fetch_of(where, job), expected)).fitting


async def assert_scheduled(
    where: Any,
    job: Wanted,
    payload: Any = None,
    /,
    *,
    count: int | None = None,
    within: Duration = WITHIN,
    **arguments: Any,
) -> list[ScheduledJob]:
    """Fail unless a job is scheduled, or as many as ``count``; return the jobs. Arguments as :func:`scheduled`.

    Raises:
        AssertionError: It shows the closest jobs, and what of them differs.
    """
    expected = _expected(job, payload, arguments, within)
    return _checked(expected, await _read(_fetch_of(where, job), expected), count)


async def refute_scheduled(
    where: Any, job: Wanted, payload: Any = None, /, *, within: Duration = WITHIN, **arguments: Any
) -> None:
    """Fail if such a job is scheduled. Arguments as :func:`scheduled`."""
    await assert_scheduled(where, job, payload, count=0, within=within, **arguments)


def _checked(expected: _Expected, read: _Read, count: int | None) -> list[ScheduledJob]:
    fits = bool(read.fitting) if count is None else len(read.fitting) == count
    if not fits:
        raise AssertionError(_complaint(expected, read, count))
    return read.fitting


def _run_sync(where: Any, job: Wanted, expected: _Expected) -> _Read:
    """Query in a synchronous test: through the app that is open with ``with``, or on the connection."""
    connection = job.chosen.connection if isinstance(job, JobOptions) else None
    if connection is None and isinstance(where, Tickwright):
        return where.run_sync(_read(where.pool.fetch, expected))
    return finish(_read(borrow_sync(where if connection is None else connection).fetch, expected))


def scheduled_sync(
    where: Any, job: Wanted, payload: Any = None, /, *, within: Duration = WITHIN, **arguments: Any
) -> list[ScheduledJob]:
    """Do what :func:`scheduled` does in a synchronous test."""
    return _run_sync(where, job, _expected(job, payload, arguments, within)).fitting


def assert_scheduled_sync(
    where: Any,
    job: Wanted,
    payload: Any = None,
    /,
    *,
    count: int | None = None,
    within: Duration = WITHIN,
    **arguments: Any,
) -> list[ScheduledJob]:
    """Do what :func:`assert_scheduled` does in a synchronous test."""
    expected = _expected(job, payload, arguments, within)
    return _checked(expected, _run_sync(where, job, expected), count)


def refute_scheduled_sync(
    where: Any, job: Wanted, payload: Any = None, /, *, within: Duration = WITHIN, **arguments: Any
) -> None:
    """Do what :func:`refute_scheduled` does in a synchronous test."""
    assert_scheduled_sync(where, job, payload, count=0, within=within, **arguments)
