"""Typed calls: the object that ``@app.job`` makes of a handler, its options, and the handle of a scheduled job.

::

    @app.job("invoice.remind")
    async def remind(job: Job, invoice_id: int) -> str: ...

    handle = await remind.options(delay="3d", key="remind-42").schedule(invoice_id=42)
    text = await handle.result(timeout="4d")

The parameters of ``schedule`` and ``call`` are the handler's without the job, so a type checker refuses a wrong call
and an editor completes it. At run time the same struct that the worker reads the payload with checks it.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from datetime import datetime, timedelta
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, cast, overload

import msgspec
from msgspec import UNSET, UnsetType

from tickwright.app.declarations import Duration, as_duration
from tickwright.app.payloads import as_tags, metadata_json, to_json
from tickwright.capabilities.jobs.enqueue import Scheduled
from tickwright.capabilities.jobs.requests import NewJob, check_new_job, unique_of_call, with_digest
from tickwright.capabilities.jobs.unique import Unique
from tickwright.domain.errors import JobCancelled, JobFailed, Rejected
from tickwright.domain.strict_json import from_json_value

if TYPE_CHECKING:
    from tickwright.app.scheduling import JobCalls
    from tickwright.capabilities.jobs.admin.views import JobAction, JobDetail
    from tickwright.capabilities.jobs.arguments import Arguments
    from tickwright.capabilities.jobs.handlers import Handler
    from tickwright.capabilities.jobs.model import Job
    from tickwright.capabilities.jobs.results import JobState
    from tickwright.capabilities.jobs.worker.chunks import JobChunk
    from tickwright.ports.views import Explanation

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class JobCall(NewJob, Generic[R], frozen=True):
    """A checked call of a job, to be scheduled later: by ``schedule_many`` of the job or of the app.

    Attributes:
        returns: The type of its result.
    """

    returns: Any = Any


class JobHandle(Scheduled, Generic[R], frozen=True, eq=False, kw_only=True):
    """A scheduled job: its id, whether this call created it, and its result.

    Attributes:
        id: The same on every attempt.
        created: ``False`` if its idempotency key, or its unique arguments, belong to an existing job.
        outcome: ``inserted``, ``existing``, or ``replaced`` with what ``replaced`` names.
        status: Of a unique job that existed, at that moment.
    """

    app: "JobCalls"
    returns: Any = Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scheduled) and (self.id, self.created) == (other.id, other.created)

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"JobHandle(id={self.id}, created={self.created})"

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait for the end of the job and return its result, decoded to the handler's return type.

        A notification ends the wait; all waits of a program share one connection. The job has to be committed.

        Args:
            timeout: How long to wait, such as ``"10s"``; ``None`` waits without a limit.

        Raises:
            JobFailed: Its last attempt failed. Permanent.
            JobCancelled: It was cancelled, or it expired. Permanent.
            Unavailable: ``result_timeout``: it has not ended yet. Retry. ``app_not_open``.
            Rejected: ``job_not_found``: it is not committed, or it has ended and its type keeps no history. Permanent.
        """
        return await self.app.result(self.id, timeout=timeout, returns=self.returns)  # type: ignore[no-any-return]

    def result_sync(self, timeout: Duration | None = None) -> R:
        """Do what :meth:`result` does in a synchronous program, inside ``with app:``."""
        return self.app.run_sync(self.result(timeout))

    def progress(self) -> AsyncIterator[Any]:
        """Return the values that the handler reports with ``job.progress``, as they come, until the job ends."""
        return self.app.progress(self.id)

    async def get(self) -> "JobDetail":
        """Return the job. Raises ``Rejected`` (``job_not_found``)."""
        return await self.app.get(self.id)

    async def explain(self) -> "Explanation":
        """Return an explanation of the job's status. Raises ``Rejected`` (``job_not_found``)."""
        return await self.app.explain(self.id)

    async def edit(
        self,
        *,
        version: int | UnsetType = UNSET,
        payload: Any = UNSET,
        priority: int | UnsetType = UNSET,
        tags: Iterable[str] | UnsetType | None = UNSET,
        metadata: Mapping[str, Any] | UnsetType | None = UNSET,
        from_start: bool = False,
    ) -> "JobAction":
        """Change the job while it is pending; see :meth:`~tickwright.Tickwright.edit`."""
        return await self.app.edit(
            self.id,
            version=version,
            payload=payload,
            priority=priority,
            tags=tags,
            metadata=metadata,
            from_start=from_start,
        )

    async def cancel(self) -> "JobAction":
        """Cancel the job. Raises ``Rejected`` (``job_not_found``, ``job_finished``)."""
        return await self.app.cancel(self.id)


def result_of(job_id: int, ended: "JobState", returns: Any) -> Any:
    """Return the result of a job that has ended, as a value of its handler's return type.

    Raises:
        JobFailed, JobCancelled: As it ended. Permanent.
        Rejected: ``result_type_differs``: the stored result does not fit the type. Permanent.
    """
    if ended.status == "failed":
        raise JobFailed("job_failed", f"job {job_id} failed: {ended.error}", job_id=job_id, attempts=ended.attempts)
    if ended.status == "cancelled":
        why = f": {ended.error}" if ended.error else ""
        raise JobCancelled("job_cancelled", f"job {job_id} was cancelled{why}", job_id=job_id)
    if ended.result is None:
        return None
    try:
        return msgspec.json.decode(ended.result, type=returns, dec_hook=from_json_value)
    except (msgspec.ValidationError, TypeError) as error:
        text = f"the result of job {job_id} does not fit the handler's return type: {error}"
        raise Rejected("result_type_differs", text, job_id=job_id) from error


class Options(msgspec.Struct, frozen=True):
    """How a call is scheduled; the arguments of :meth:`JobOptions.options`."""

    at: datetime | None = None
    delay: timedelta | None = None
    key: str | None = None
    priority: int = 0
    max_attempts: int | None = None
    timeout: timedelta | None = None
    expires_at: datetime | None = None
    tags: tuple[str, ...] = ()
    metadata: str | None = None
    group: str | None = None
    unique: Unique | Literal[False] | None = None
    connection: Any = None


_NONE = Options()


class JobOptions(Generic[P, R]):
    """A job with options for its next calls; it can be kept and used any number of times."""

    def __init__(self, app: "JobCalls", handler: "Handler", options: Options = _NONE) -> None:
        self._app, self._handler, self._options = app, handler, options

    @property
    def name(self) -> str:
        """The name of the task type."""
        return self._handler.name

    @property
    def handler(self) -> "Handler":
        """The registered handler."""
        return self._handler

    @property
    def chosen(self) -> Options:
        """The options of its next calls."""
        return self._options

    def options(
        self,
        *,
        at: datetime | None = None,
        delay: Duration | None = None,
        key: str | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        timeout: Duration | None = None,
        expires_at: datetime | None = None,
        tags: Iterable[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        group: str | None = None,
        unique: Unique | Literal[False] | None = None,
        connection: Any = None,
    ) -> "JobOptions[P, R]":
        """Return the job with options for its calls; options that are left out stay as they are.

        Args:
            at: Aware; it never starts earlier, by the database's clock. Now by default.
            delay: Instead of ``at``: this long after the database's now.
            key: Idempotency key, 1 to 255 characters: the same key schedules nothing twice.
            priority: -100 to 100; due jobs with a higher one start first.
            max_attempts: 1 to 1,000; the task type's by default.
            timeout: Of one attempt; the task type's by default.
            expires_at: If it has not started by then, it is cancelled.
            tags: At most 20 labels of 1 to 100 characters, to find it by.
            metadata: JSON values by name, at most 16,384 bytes, to find it by.
            group: A customer, tenant or device, 1 to 255 bytes, for which the task type has limits. Groups take turns.
            unique: What makes it unique, instead of the declared rule; ``False``: nothing does.
            connection: Yours, in a transaction: the job exists if and only if it commits.

        Raises:
            Rejected: ``execute_at_and_delay``, ``invalid_duration``; ``invalid_unique``: the handler has no such
                argument. Permanent.
        """
        unique = unique_of_call(unique)
        if unique:
            self._handler.check_unique(unique)
        if at is not None and delay is not None:
            raise Rejected("execute_at_and_delay", "give at or delay, not both", field="delay")
        given = {
            "at": at, "delay": as_duration("delay", delay), "key": key, "priority": priority,
            "max_attempts": max_attempts, "timeout": as_duration("timeout", timeout), "expires_at": expires_at,
            "tags": None if tags is None else as_tags(tags),
            "metadata": None if metadata is None else metadata_json(metadata), "group": group, "unique": unique,
            "connection": connection,
        }  # fmt: skip
        changes = {name: value for name, value in given.items() if value is not None}
        if at is not None or delay is not None:
            changes = {"at": None, "delay": None} | changes
        return JobOptions(self._app, self._handler, msgspec.structs.replace(self._options, **changes))

    def call(self, *args: P.args, **kwargs: P.kwargs) -> JobCall[R]:
        """Return a checked call as a value, to be scheduled later with :meth:`schedule_many`.

        Raises:
            Rejected: ``invalid_arguments``, or as for ``schedule``. Permanent.
        """
        return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> JobCall[R]:
        return self.call_with(self._handler.arguments.bind(args, kwargs))

    def call_with(self, bound: Any, later: frozenset[str] = frozenset()) -> JobCall[R]:
        """Return the call of bound arguments; those named ``later`` get their values when the job is due."""
        given, arguments = self._options, self._handler.arguments
        if later:
            payload = to_json({name: value for name, value in bound.items() if name not in later})
            payload = cast("Arguments", arguments).check_without(payload, later)
        else:
            payload = arguments.check(to_json(bound))
        call: JobCall[R] = JobCall(
            self._handler.name,
            payload,
            given.at,
            given.key,
            None,
            given.priority,
            given.max_attempts,
            given.timeout,
            given.expires_at,
            given.delay,
            tags=given.tags,
            metadata=given.metadata,
            group=given.group,
            unique=given.unique,
            returns=arguments.returns,
        )
        check_new_job(call)
        return call if given.key is None else with_digest(call)

    def _call_with(self, given: Any) -> JobCall[R]:
        """Return the call of a mapping of arguments; of a chunk's job, of its value."""
        return self._call(*self._handler.arguments.split(given))

    async def schedule(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Schedule one job with the handler's arguments; on return it is committed, or part of your transaction.

        Raises:
            Rejected: ``invalid_arguments``, or as for ``app.schedule``. Permanent.
            Contended: ``key_reused`` (do not retry with it), ``key_in_flight`` (retry).
            Unavailable: ``app_not_open``, outside ``async with app``.
        """
        return await self._app.schedule_call(self._call(args, kwargs), connection=self._options.connection)

    def schedule_sync(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Do what :meth:`schedule` does in a synchronous program: on its connection, or inside ``with app:``."""
        return self._app.schedule_call_sync(self._call(args, kwargs), connection=self._options.connection)

    async def schedule_many(self, calls: Iterable[JobCall[R] | Mapping[str, Any]]) -> list[JobHandle[R]]:
        """Schedule many calls, all or none; one handle per call, in order.

        Args:
            calls: Of :meth:`call`, with their own options, or mappings of arguments, with the options of this object.
        """
        jobs = [call if isinstance(call, JobCall) else self._call_with(call) for call in calls]
        return await self._app.schedule_many(jobs, connection=self._options.connection)

    def schedule_many_sync(self, calls: Iterable[JobCall[R] | Mapping[str, Any]]) -> list[JobHandle[R]]:
        """Do what :meth:`schedule_many` does in a synchronous program."""
        jobs = [call if isinstance(call, JobCall) else self._call_with(call) for call in calls]
        return self._app.schedule_many_sync(jobs, connection=self._options.connection)


class JobFunction(JobOptions[P, R]):
    """The handler of a job: an ``async`` function that can be called as before, and scheduled with its arguments."""

    __name__: str

    def __init__(self, app: "JobCalls", handler: "Handler") -> None:
        super().__init__(app, handler)
        update_wrapper(self, handler.function)

    async def __call__(self, job: "Job", /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, as in a test of it."""
        return await self._handler.function(job, *args, **kwargs)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<job {self.name!r}>"


class SyncJobFunction(JobOptions[P, R]):
    """The same for a synchronous function, which runs in a thread."""

    __name__: str

    def __init__(self, app: "JobCalls", handler: "Handler") -> None:
        super().__init__(app, handler)
        update_wrapper(self, handler.function)

    def __call__(self, job: "Job", /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, as in a test of it."""
        return self._handler.function(job, *args, **kwargs)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<job {self.name!r}>"


class ChunkFunction(JobOptions[[T], Any], Generic[T]):
    """A handler of chunks; it is scheduled with the value of one item: ``await index.schedule(document)``."""

    __name__: str

    def __init__(self, app: "JobCalls", handler: "Handler") -> None:
        super().__init__(app, handler)
        update_wrapper(self, handler.function)

    async def __call__(self, chunk: "JobChunk[T]", /) -> None:
        """Call the function, as in a test of it."""
        await self._handler.function(chunk)

    async def schedule_many(self, calls: "Iterable[JobCall[Any] | T]") -> list[JobHandle[Any]]:  # type: ignore[override]
        """Schedule many values or calls, all or none; one handle each, in order."""
        return await super().schedule_many(cast("Any", calls))

    def schedule_many_sync(self, calls: "Iterable[JobCall[Any] | T]") -> list[JobHandle[Any]]:  # type: ignore[override]
        """Do what :meth:`schedule_many` does in a synchronous program."""
        return super().schedule_many_sync(cast("Any", calls))

    def __repr__(self) -> str:
        return f"<job {self.name!r}>"


class ChunkDecorator(Protocol):
    """What ``app.job(name, batch=…)`` returns."""

    def __call__(self, function: "Callable[[JobChunk[T]], Coroutine[Any, Any, None]]", /) -> ChunkFunction[T]:
        """Register the function."""


class JobDecorator(Protocol):
    """What ``app.job(name)`` returns."""

    @overload  # the first one that fits counts: a coroutine is a value, too
    def __call__(  # type: ignore[overload-overlap]
        self, function: "Callable[Concatenate[Job, P], Coroutine[Any, Any, R]]", /
    ) -> JobFunction[P, R]: ...

    @overload
    def __call__(self, function: "Callable[Concatenate[Job, P], R]", /) -> SyncJobFunction[P, R]: ...
