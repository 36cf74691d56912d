"""Jobs by call: schedule them, wait for their results, read and change them. A base of the app object."""

from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from tickwright.app.borrowed import schedule_through
from tickwright.app.declarations import Duration, as_duration
from tickwright.app.jobs import JobCall, JobHandle, result_of
from tickwright.app.payloads import as_tags, metadata_json, to_json
from tickwright.capabilities.jobs.enqueue import MANY_JOBS, Enqueuer, Scheduled
from tickwright.capabilities.jobs.requests import (
    JobEdit,
    NewJob,
    check_instant,
    check_new_job,
    unique_of_call,
    with_digest,
)
from tickwright.capabilities.jobs.unique import Unique
from tickwright.domain.errors import Rejected
from tickwright.observe import traces
from tickwright.plugin.settings import Settings
from tickwright.ports.caller import Caller, Role
from tickwright.ports.views import Explanation
from tickwright.process.installation import Installation
from tickwright.store.borrowed import borrow, borrow_sync, finish

if TYPE_CHECKING:  # a program loads the capabilities that it uses
    from tickwright.app.workflows import Flow
    from tickwright.capabilities.jobs.admin.service import JobService
    from tickwright.capabilities.jobs.admin.views import JobAction, JobDetail
    from tickwright.capabilities.jobs.workflows.service import Workflows

T = TypeVar("T")
CALLER = Caller("python", Role.ADMIN)


class JobCalls:
    """The part of :class:`~tickwright.Tickwright` that concerns jobs."""

    @property
    def _open(self) -> Installation:
        raise NotImplementedError

    @property
    def settings(self) -> Settings:
        """The settings of the program."""
        raise NotImplementedError

    def run_sync(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` for a synchronous program."""
        raise NotImplementedError

    def new_job(
        self,
        name: str,
        payload: Any = None,
        *,
        at: datetime | None = None,
        delay: Duration | None = None,
        key: str | None = None,
        priority: int = 0,
        max_attempts: int | None = None,
        timeout: Duration | None = None,
        expires_at: datetime | None = None,
        tags: Iterable[str] = (),
        metadata: Mapping[str, Any] | None = None,
        group: str | None = None,
        unique: Unique | Literal[False] | None = None,
    ) -> NewJob:
        """Return a checked job for :meth:`schedule_many`; the arguments are those of :meth:`schedule`."""
        job = _job(
            name, payload, at, delay, key, priority, max_attempts, timeout, expires_at, tags, metadata, group, unique
        )
        return check_new_job(job) if key is None else with_digest(check_new_job(job))

    async def schedule(
        self,
        name: str,
        payload: Any = None,
        *,
        at: datetime | None = None,
        delay: Duration | None = None,
        key: str | None = None,
        priority: int = 0,
        max_attempts: int | None = None,
        timeout: Duration | None = None,
        expires_at: datetime | None = None,
        tags: Iterable[str] = (),
        metadata: Mapping[str, Any] | None = None,
        group: str | None = None,
        unique: Unique | Literal[False] | None = None,
        connection: Any = None,
    ) -> JobHandle[Any]:
        """Schedule one job and return its handle. On return the job is committed, or part of your transaction.

        Concurrent calls share one statement, so many callers cost little more than one.

        Args:
            name: A registered task type.
            payload: JSON values, at most 65,536 bytes; ``{}`` by default. Handlers read their arguments by name.
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
            unique: What makes it unique, instead of the rule of its type; ``False``: nothing does.
            connection: Yours, in a transaction: asyncpg, psycopg, SQLAlchemy (asynchronous ones). The job exists if and
                only if your transaction commits.

        Raises:
            Rejected: Something is out of bounds, or the task type is unknown; ``no_transaction``, your connection
                commits each statement at once. Permanent.
            Contended: ``key_reused``, the key belongs to a different job (do not retry with it); ``key_in_flight``
                (retry).
            Unavailable: ``app_not_open``, outside ``async with app``.
        """
        job = _job(
            name, payload, at, delay, key, priority, max_attempts, timeout, expires_at, tags, metadata, group, unique
        )
        if key is not None or max_attempts is not None:  # the enqueuer checks all other arguments
            job = check_new_job(job) if key is None else with_digest(check_new_job(job))
        return await self.schedule_call(job, connection=connection)

    async def schedule_call(self, job: NewJob, *, connection: Any = None) -> JobHandle[Any]:
        """Schedule a job of :meth:`new_job`, or a call of a typed job. Errors as ``schedule``."""
        borrowed = None if connection is None else borrow(connection)
        return self._handle(await self._open.of(Enqueuer).schedule(job, connection=borrowed), job)

    async def schedule_many(self, jobs: Iterable[NewJob], *, connection: Any = None) -> list[JobHandle[Any]]:
        """Schedule jobs of :meth:`new_job` and calls of typed jobs, all or none, in order. Errors as ``schedule``."""
        borrowed, given = None if connection is None else borrow(connection), list(jobs)
        made = await self._open.of(Enqueuer).schedule_many(given, connection=borrowed)
        return list(map(self._handle, made, given))

    def _handle(self, made: Scheduled, job: NewJob) -> JobHandle[Any]:
        returns = job.returns if isinstance(job, JobCall) else Any
        return JobHandle(made.id, made.created, made.replaced, made.status, app=self, returns=returns)

    async def schedule_bulk(self, jobs: Iterable[NewJob]) -> int:
        """Schedule very many jobs without keys, all or none, by COPY; return how many.

        This is the fastest way, but it returns no ids. ``jobs`` can be a generator: its rows are made while PostgreSQL
        stores earlier ones. That blocks the event loop for up to half a second at a time, so do not call it in a
        program that also runs handlers. Errors as ``schedule``, and ``key_in_bulk`` for a job with a key,
        ``unique_in_bulk`` for a unique one.
        """
        enqueuer = self._open.of(Enqueuer)
        with traces.working("send", MANY_JOBS) as span:
            stored = await enqueuer.copy(jobs)
            span.set_attribute("messaging.batch.message_count", stored)
            return stored

    def schedule_sync(
        self,
        name: str,
        payload: Any = None,
        *,
        connection: Any = None,
        at: datetime | None = None,
        delay: Duration | None = None,
        key: str | None = None,
        priority: int = 0,
        max_attempts: int | None = None,
        timeout: Duration | None = None,
        expires_at: datetime | None = None,
        tags: Iterable[str] = (),
        metadata: Mapping[str, Any] | None = None,
        group: str | None = None,
        unique: Unique | Literal[False] | None = None,
    ) -> JobHandle[Any]:
        """Do what :meth:`schedule` does in a synchronous program.

        With ``connection``, a psycopg ``Connection`` or an SQLAlchemy ``Connection`` or ``Session``, nothing else is
        used: the app need not be open. Without one, the program is inside ``with app:``. Arguments and errors as
        ``schedule``.
        """
        job = self.new_job(
            name, payload, at=at, delay=delay, key=key, priority=priority, max_attempts=max_attempts, timeout=timeout,
            expires_at=expires_at, tags=tags, metadata=metadata, group=group, unique=unique,
        )  # fmt: skip
        return self.schedule_call_sync(job, connection=connection)

    def schedule_call_sync(self, job: NewJob, *, connection: Any = None) -> JobHandle[Any]:
        """Do what :meth:`schedule_call` does in a synchronous program."""
        if connection is None:
            return self.run_sync(self.schedule_call(job))
        return self._handle(finish(self._through(connection, [job]))[0], job)

    def schedule_many_sync(self, jobs: Iterable[NewJob], *, connection: Any = None) -> list[JobHandle[Any]]:
        """Do what :meth:`schedule_many` does in a synchronous program."""
        given = list(jobs)
        if connection is None:
            return self.run_sync(self.schedule_many(given))
        return list(map(self._handle, finish(self._through(connection, given)), given))

    def _through(self, connection: Any, jobs: list[NewJob]) -> Coroutine[Any, Any, list[Scheduled]]:
        return schedule_through(borrow_sync(connection), jobs, lambda: self.settings.payload_keys)

    @property
    def service(self) -> "JobService":
        """Operations on jobs for operators: listings, dead letters, task types. Common ones are methods of the app."""
        from tickwright.capabilities.jobs.admin.service import JobService

        return self._open.of(JobService)

    async def get(self, job_id: int) -> "JobDetail":
        """Return one job. Raises ``Rejected`` (``job_not_found``)."""
        return await self.service.get(job_id)

    async def result(self, job_id: int, *, timeout: Duration | None = None, returns: Any = Any) -> Any:
        """Wait for the end of a job and return its result; see :meth:`JobHandle.result`.

        Args:
            job_id: Of the job.
            timeout: How long to wait; ``None`` waits without a limit.
            returns: The type of the result.
        """
        from tickwright.capabilities.jobs.results import JobResults

        results = self._open.of(JobResults)
        ended = await results.wait(job_id, as_duration("timeout", timeout))
        return result_of(job_id, results.opened(ended), returns)

    def workflow(
        self, name: str, *, key: str | None = None, deadline: Duration | None = None, connection: Any = None
    ) -> "Flow":
        """Return a workflow to build in a block, ``async with`` or ``with``, at whose end it is added, all or none.

        Args:
            name: 1 to 200 characters; several workflows may have one name.
            key: Idempotency key, 1 to 255 characters: the same key adds nothing twice.
            deadline: 1 second to 3660 days from then on; what has not ended by then is cancelled, and it has failed.
            connection: Yours, in a transaction: the workflow exists if and only if it commits.

        Raises, at the end of the block:
            Rejected: ``unknown_task_type``; a rule of workflows: codes that begin with ``workflow_``. Permanent.
            Contended: ``key_reused`` (do not retry with it), ``key_in_flight`` (retry).
            Unavailable: ``app_not_open``.
        """
        from tickwright.app.workflows import Flow

        return Flow(self, name, key=key, deadline=deadline, connection=connection)

    @property
    def workflows(self) -> "Workflows":
        """Workflows: read, cancel and retry them. Raises ``Unavailable`` (``app_not_open``)."""
        from tickwright.capabilities.jobs.workflows.service import Workflows

        return self._open.of(Workflows)

    async def workflow_result(self, workflow_id: int, *, timeout: Duration | None = None) -> None:
        """Wait for the end of a workflow; see :meth:`tickwright.app.workflows.Flow.result`."""
        from tickwright.app.workflows import check_ended
        from tickwright.capabilities.jobs.results import WorkflowResults

        ended = await self._open.of(WorkflowResults).wait(workflow_id, as_duration("timeout", timeout))
        check_ended(workflow_id, ended.status, ended.error)

    async def progress(self, job_id: int) -> AsyncIterator[Any]:
        """Yield the values that a job's handler reports, as they come, until the job ends."""
        from tickwright.capabilities.jobs.results import JobResults

        async for value in self._open.of(JobResults).progress(job_id):
            yield value

    async def explain(self, job_id: int) -> Explanation:
        """Return an explanation of a job's status. Raises ``Rejected`` (``job_not_found``)."""
        return await self.service.explain(job_id)

    async def cancel(self, job_id: int) -> "JobAction":
        """Cancel a job; ``outcome`` is ``cancelled``, or ``requested`` while its handler runs.

        Raises:
            Rejected: ``job_not_found``, ``job_finished``. Permanent.
        """
        return await self.service.cancel(job_id, caller=CALLER)

    async def retry(self, job_id: int, *, from_start: bool = False) -> "JobAction":
        """Retry a failed job now; the steps that it has done stay done, unless ``from_start``.

        Raises:
            Rejected: ``job_not_found``, ``job_not_failed``. Permanent.
        """
        return await self.service.retry(job_id, caller=CALLER, from_start=from_start)

    async def reschedule(
        self, job_id: int, *, at: datetime | None = None, delay: Duration | None = None
    ) -> "JobAction":
        """Change the time of a pending job. Raises ``Rejected`` (``job_not_found``, ``job_not_pending``)."""
        check_instant("at", at)
        if (at is None) == (delay is None):
            raise Rejected("execute_at_and_delay", "give at or delay, one of them", field="delay")
        return await self.service.reschedule(job_id, caller=CALLER, execute_at=at, delay=as_duration("delay", delay))

    async def edit(
        self,
        job_id: int,
        *,
        version: int | UnsetType = UNSET,
        payload: Any = UNSET,
        priority: int | UnsetType = UNSET,
        tags: Iterable[str] | UnsetType | None = UNSET,
        metadata: Mapping[str, Any] | UnsetType | None = UNSET,
        from_start: bool = False,
    ) -> "JobAction":
        """Change a pending job; what is left out stays. The answer has its new ``version``.

        Args:
            job_id: Of the job.
            version: As you read it: the job is changed only if it has this version still.
            payload: As for ``schedule``.
            priority: Likewise.
            tags: All of them, instead of those that it has; ``None`` removes them.
            metadata: Likewise.
            from_start: Remove the steps that the job has done, so that they run again; by default they stay, also with
                another payload.

        Raises:
            Rejected: ``version_conflict``; ``job_not_found``, ``job_not_pending``, ``job_finished``; ``empty_edit``, or
                a value is out of bounds. Permanent.
        """
        edit = JobEdit(
            version=version,
            payload=UNSET if payload is UNSET else msgspec.Raw(to_json({} if payload is None else payload).encode()),
            priority=priority,
            tags=UNSET if isinstance(tags, UnsetType) else as_tags(tags or ()),
            metadata=UNSET if isinstance(metadata, UnsetType) else msgspec.Raw(_metadata(metadata).encode()),
            from_start=from_start,
        )
        return await self.service.edit(job_id, edit, caller=CALLER)

    async def run_now(self, job_id: int) -> "JobAction":
        """Make a pending job due now. Raises ``Rejected`` (``job_not_found``, ``job_not_pending``)."""
        return await self.service.run_now(job_id, caller=CALLER)


def _metadata(metadata: Mapping[str, Any] | None) -> str:
    return "null" if metadata is None else metadata_json(metadata)


def _job(  # noqa: PLR0917  the fast path of every call
    name: str,
    payload: Any,
    at: datetime | None,
    delay: Duration | None,
    key: str | None,
    priority: int,
    max_attempts: int | None,
    timeout: Duration | None,
    expires_at: datetime | None,
    tags: Iterable[str],
    metadata: Mapping[str, Any] | None,
    group: str | None,
    unique: Unique | Literal[False] | None,
) -> NewJob:
    if at is not None and delay is not None:
        raise Rejected("execute_at_and_delay", "give at or delay, not both", field="delay")
    return NewJob(
        name,
        "{}" if payload is None else to_json(payload),
        at,
        key,
        None,
        priority,
        max_attempts,
        None if timeout is None else as_duration("timeout", timeout),
        expires_at,
        None if delay is None else as_duration("delay", delay),
        None,
        as_tags(tags) if tags else (),
        None if metadata is None else metadata_json(metadata),
        group,
        unique_of_call(unique),
    )
