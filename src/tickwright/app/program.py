"""The app object: handlers by decorator, jobs and messages by call, a worker inside one's own program.

::

    app = Tickwright()                      # environment, TOML file, or the embedded PostgreSQL

    @app.job("invoice.remind", timeout="30s", rate="50/s")
    async def remind(job: Job, invoice_id: int) -> None: ...

    async with app:
        await app.schedule("invoice.remind", {"invoice_id": 42}, delay="3d", key="remind-42")

The object decides nothing: it turns arguments into values, and capabilities do the rest. It trusts
no argument, and refuses what PostgreSQL would refuse before it reaches a statement that other callers share.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from opentelemetry.trace import Span

from tickwright.app.borrowed import borrow, borrow_sync, finish, schedule_through
from tickwright.app.bulk import copy_jobs
from tickwright.app.declarations import Declarations, Duration, as_duration
from tickwright.app.entities import Entities
from tickwright.app.payloads import to_json
from tickwright.app.reporting import RequestedReport, request_report
from tickwright.app.tracking import Tracked, Trackers, new_tracker, track, track_borrowed
from tickwright.capabilities.batches.definitions.campaigns import StoredCampaign
from tickwright.capabilities.batches.service import CampaignsService
from tickwright.capabilities.fanout.service import FanoutService
from tickwright.capabilities.jobs.admin.service import JobService
from tickwright.capabilities.jobs.admin.views import JobAction, JobDetail
from tickwright.capabilities.jobs.enqueue import Enqueuer, Scheduled
from tickwright.capabilities.jobs.requests import NewJob, check_new_job, with_digest
from tickwright.capabilities.operations.listings import Operations
from tickwright.capabilities.polling.service import PollingService
from tickwright.capabilities.reports.service import ReportsService
from tickwright.domain.addresses import refusal_unasked
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.domain.functions import storable
from tickwright.domain.targets import PythonTarget, WebTarget, parse_target
from tickwright.domain.traceparent import NAME
from tickwright.observe import traces
from tickwright.observe.logs import log_like_a_library
from tickwright.outbound import check_headers
from tickwright.outbound.headers import HEADERS_MAX
from tickwright.plugin.settings import Settings
from tickwright.ports.caller import Caller, Role
from tickwright.ports.views import Explanation
from tickwright.process.database import Database
from tickwright.process.installation import Installation, open_installation
from tickwright.process.node import run_node
from tickwright.process.settings import load_settings
from tickwright.store.pool import Pool
from tickwright.store.queries import load

MESSAGE_BYTES_MAX = 1_048_576
MESSAGE_KEY_MAX = 1024
_SQL = load("tickwright.app.sql", "publish.sql")
_CALLER = Caller("python", Role.ADMIN)


class Tickwright(Declarations):
    """One program's Tickwright.

    Making it costs nothing: settings are read and connections opened by ``async with app:``, so a module
    may define it at import time. One event loop uses it.

    Args:
        database_url: ``postgresql://…`` instead of ``TICKWRIGHT_DATABASE_URL``.
        settings: Any other setting by its name in lower case, instead of its variable: ``home=…``, ``config=…``.
    """

    def __init__(self, database_url: str | None = None, **settings: Any) -> None:
        super().__init__()
        self._given = {"database_url": database_url, **settings}
        self._settings: Settings | None = None
        self._stack: AsyncExitStack | None = None
        self._installation: Installation | None = None

    # ------------------------------------------------------------------ scheduling

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
    ) -> NewJob:
        """Return a checked job for :meth:`schedule_many`; the arguments are those of :meth:`schedule`."""
        job = _job(name, payload, at, delay, key, priority, max_attempts, timeout, expires_at)
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
        connection: Any = None,
    ) -> Scheduled:
        """Schedule one job and return its id; when this returns the job is committed, or part of your transaction.

        Calls that come together go into the database together, so many callers cost little more than one.

        Args:
            name: A registered task type.
            payload: What JSON has, at most 65,536 bytes; ``{}`` by default. Handlers read their arguments by name.
            at: Aware; it never starts earlier, by the database's clock. Now by default.
            delay: Instead of ``at``: this much after the database's now.
            key: Idempotency key, 1 to 255 characters: the same key schedules nothing twice.
            priority: -100 to 100; higher ones first among the jobs that are due.
            max_attempts: 1 to 1,000; the task type's by default.
            timeout: Of one attempt; the task type's by default.
            expires_at: When it has not started by then, it is cancelled.
            connection: Yours, in a transaction: asyncpg, psycopg, SQLAlchemy (asynchronous ones). The job is there
                when your transaction commits, and never was when it rolls back.

        Raises:
            Rejected: Something is out of bounds, or the task type is unknown; ``no_transaction``, where your connection
                commits each statement at once. Permanent.
            Contended: ``key_reused``, the key belongs to a different job (do not retry with it);
                ``key_in_flight`` (retry).
            Unavailable: ``app_not_open``, outside ``async with app``.
        """
        job = _job(name, payload, at, delay, key, priority, max_attempts, timeout, expires_at)
        if key is not None or max_attempts is not None:  # the enqueuer checks all others itself
            job = check_new_job(job) if key is None else with_digest(check_new_job(job))
        if connection is None:
            return await self._open.of(Enqueuer).schedule(job)
        return await self._open.of(Enqueuer).schedule(job, connection=borrow(connection))

    async def schedule_many(self, jobs: Iterable[NewJob], *, connection: Any = None) -> list[Scheduled]:
        """Schedule jobs made by :meth:`new_job`, all or none; one answer per job, in order. Errors as ``schedule``."""
        borrowed = None if connection is None else borrow(connection)
        return await self._open.of(Enqueuer).schedule_many(list(jobs), connection=borrowed)

    async def schedule_bulk(self, jobs: Iterable[NewJob]) -> int:
        """Schedule very many jobs without keys, all or none, by COPY; return how many.

        The fastest way in: no ids come back. ``jobs`` may be a generator; its rows are made while PostgreSQL stores
        the ones before, and the event loop is busy with that for up to half a second at a time, so a program that
        also runs handlers does this elsewhere. Errors as ``schedule``, and ``key_in_bulk`` for a job with a key.
        """
        return await copy_jobs(self._open.pool, self._open.of(Enqueuer).types, jobs)

    def schedule_sync(
        self,
        name: str,
        payload: Any = None,
        *,
        connection: Any,
        at: datetime | None = None,
        delay: Duration | None = None,
        key: str | None = None,
        priority: int = 0,
        max_attempts: int | None = None,
        timeout: Duration | None = None,
        expires_at: datetime | None = None,
    ) -> Scheduled:
        """Do what :meth:`schedule` does, from a synchronous program, on its own connection.

        The app need not be open: nothing but ``connection`` is used, a psycopg ``Connection`` or an SQLAlchemy
        ``Connection`` or ``Session``. Arguments and errors as ``schedule``.
        """
        job = self.new_job(
            name, payload, at=at, delay=delay, key=key, priority=priority, max_attempts=max_attempts, timeout=timeout,
            expires_at=expires_at,
        )  # fmt: skip
        return finish(schedule_through(borrow_sync(connection), job))

    # ------------------------------------------------------------------ tracking

    async def track(
        self,
        account_id: str,
        partner: str,
        external_id: str,
        *,
        status: str | None = None,
        until: datetime | None = None,
        connection: Any = None,
    ) -> Tracked:
        """Register a tracker, to be polled at its account's interval; one (partner, external id) is one tracker.

        A second call answers with the tracker that is there, whatever else it says. The first poll comes within one
        interval after the commit.

        Args:
            account_id: 1 to 200 characters without ``/``; one that nobody knew is polled every 120 minutes.
            partner: Whom to ask; declared here, in the TOML file or by an operator.
            external_id: What the partner calls it, 1 to 200 characters.
            status: Where it stands now; ``registered`` by default.
            until: Aware; polled no more after that. The account's age from now on by default.
            connection: Yours, in a transaction that is READ COMMITTED, as for :meth:`schedule`.

        Raises:
            Rejected: Something is out of bounds, ``unknown_partner``, or ``unsupported_isolation``. Permanent.
            Unavailable: ``app_not_open``.
        """
        new = new_tracker(account_id, partner, external_id, status, until)
        return await track(self._open.pool, new, connection)

    def track_sync(
        self,
        account_id: str,
        partner: str,
        external_id: str,
        *,
        connection: Any,
        status: str | None = None,
        until: datetime | None = None,
    ) -> Tracked:
        """Do what :meth:`track` does on a synchronous program's own connection; the app need not be open."""
        new = new_tracker(account_id, partner, external_id, status, until)
        return finish(track_borrowed(borrow_sync(connection), new))

    @property
    def trackers(self) -> Trackers:
        """Looking at trackers, ending them, news of them. Raises ``Unavailable`` (``app_not_open``)."""
        return Trackers(self._open.of(PollingService), _CALLER)

    @property
    def entities(self) -> Entities:
        """Whom fan-out polls: set, looked at, paused. Raises ``Unavailable`` (``app_not_open``)."""
        return Entities(self._open.of(FanoutService), _CALLER)

    # ------------------------------------------------------------------ reports

    async def request_report(
        self,
        report_type: str,
        conditions: Mapping[str, Any] | None = None,
        *,
        requester: str | None = None,
        department: str | None = None,
        format: str | None = None,  # noqa: A002  the word of the field
        notify: str | None = None,
        source: str | None = None,
        connection: Any = None,
    ) -> RequestedReport:
        """Ask for a report; the answer is the id of its record, at once. ``app.reports`` looks at it.

        Where the same requester has an equal one under way (same type, format and conditions) that one is the answer.

        Args:
            report_type: One that the app, the TOML file or an operator has set up.
            conditions: Values of its parameters.
            requester: For whom; ``"python"`` by default.
            department: Of the requester, to find reports by.
            format: ``csv`` or ``parquet``; the type's by default.
            notify: The receiver that hears of the end; the type's by default.
            source: Who sent the requester to you, in your own words.
            connection: Yours, in a transaction that is READ COMMITTED, as for :meth:`schedule`.

        Raises:
            Rejected: ``unknown_report_type``, ``invalid_conditions``, ``receiver_not_found``, something is out of
                bounds, or ``unsupported_isolation``. Permanent.
            Contended: ``report_in_flight``. Retry.
            Unavailable: ``app_not_open``.
        """
        wanted = {
            "type": report_type, "conditions": conditions, "requester": requester, "department": department,
            "format": format, "notify": notify, "source": source,
        }  # fmt: skip
        return await request_report(self._open.of(ReportsService), self._open.pool, wanted, _CALLER, connection)

    @property
    def reports(self) -> ReportsService:
        """Records, their files, report types. Raises ``Unavailable`` (``app_not_open``)."""
        return self._open.of(ReportsService)

    # ------------------------------------------------------------------ campaigns and batches

    async def put_campaign(self, name: str, words: Mapping[str, Any]) -> StoredCampaign:
        """Make a campaign, or set it whole: a new version. The same again changes nothing.

        Args:
            name: 1 to 100 letters, digits, ``_ . -``.
            words: ``type``, ``audience``, ``expression``, ``action`` and the others of the page of campaigns.

        Raises:
            Rejected: ``invalid_campaign``, or what all mistakes have for a code, with every mistake. Permanent.
            Unavailable: ``app_not_open``, or the audience's source does not answer. Retry.
        """
        return await self.campaigns.campaigns.put(name, words, caller=_CALLER)

    async def start_campaign(self, name: str) -> int:
        """Execute a campaign now, whatever its schedule, and return the id of the execution.

        Raises:
            Rejected: ``campaign_not_found``; ``execution_open``, where its overlap policy is ``skip``. Permanent until
                that one has ended.
            Unavailable: ``app_not_open``.
        """
        return (await self.campaigns.campaign_batches.start(name, caller=_CALLER)).executions[-1].id

    async def start_batch(self, name: str) -> int:
        """Do the same with a batch of ``@app.batch``, of this program or another one; ``batch_not_found``."""
        return (await self.campaigns.programs.start(name, caller=_CALLER)).executions[-1].id

    @property
    def campaigns(self) -> CampaignsService:
        """Campaigns, batches and their executions. Raises ``Unavailable`` (``app_not_open``)."""
        return self._open.of(CampaignsService)

    # ------------------------------------------------------------------ publishing

    async def publish(
        self,
        destination: str,
        payload: Any,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        connection: Any = None,
    ) -> int:
        """Put a message into the outbox and return its number; the relay sends it after the commit, at least once.

        Args:
            destination: ``https://…``, ``wss://…``, ``amqp:EXCHANGE/ROUTING_KEY``, ``kafka:TOPIC``, ``pg:TOPIC``.
            payload: As for ``schedule``, at most 1 MiB.
            key: Messages with equal keys keep their order where the destination knows one.
            headers: Sent with it; names in lower case. Without a ``traceparent`` among them the message belongs to
                the trace of the code that calls, where there is one.
            connection: Yours, in a transaction; the message leaves when it commits, or never.

        Raises:
            Rejected: ``invalid_target``, ``ssrf_blocked`` as for task types, ``invalid_key``, a payload as for
                ``schedule``. Permanent.
            Unavailable: ``app_not_open``.
        """
        _check_destination(destination, self.settings)
        with traces.working("create", traces.shown(destination)) as span:
            values = _message(destination, payload, key, headers)
            if connection is not None:
                rows = await borrow(connection).fetch(_SQL["publish"], *values)
            else:
                rows = await self._open.pool.fetch(_SQL["publish"], *values)
            return _stored(rows, span)

    def publish_sync(
        self,
        destination: str,
        payload: Any,
        *,
        connection: Any,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Do what :meth:`publish` does on a synchronous program's own connection; the app need not be open."""
        _check_destination(destination, self.settings)
        with traces.working("create", traces.shown(destination)) as span:
            values = _message(destination, payload, key, headers)
            return _stored(finish(borrow_sync(connection).fetch(_SQL["publish"], *values)), span)

    # ------------------------------------------------------------------ opening

    def using(self, settings: Settings) -> Self:
        """Use ``settings`` from the next opening on, whatever the environment says; for programs that run apps."""
        self._settings = settings
        return self

    @property
    def own_settings(self) -> Mapping[str, Any]:
        """The settings that this object was made with, without those that were left out."""
        return {name: value for name, value in self._given.items() if value is not None}

    @property
    def pool(self) -> Pool:
        """The open app's asyncpg pool, for your own transactions. Raises ``Unavailable`` (``app_not_open``)."""
        return self._open.pool

    @property
    def database(self) -> Database:
        """Where the open app is. Raises ``Unavailable`` (``app_not_open``)."""
        return self._open.database

    @property
    def settings(self) -> Settings:
        """The settings in force; read when first asked for.

        Raises:
            Rejected: ``invalid_settings``, with every mistake. Permanent.
        """
        if self._settings is None:
            self._settings = load_settings(**self._given)
        return self._settings

    async def __aenter__(self) -> Self:
        if self._installation is not None:
            raise Rejected("app_already_open", "this app object is open already; use it, or make another one")
        log_like_a_library()
        stack = AsyncExitStack()
        try:
            opened = await stack.enter_async_context(open_installation(self.settings, self.registrations))
        except BaseException:
            await stack.aclose()
            raise
        self._installation, self._stack = opened, stack
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack, self._stack, self._installation = self._stack, None, None
        if stack is not None:
            await stack.aclose()

    # ------------------------------------------------------------------ looking after

    @property
    def service(self) -> JobService:
        """What operators do with jobs: listings, dead letters, task types. What is below is the daily part."""
        return self._open.of(JobService)

    @property
    def operations(self) -> Operations:
        """Workers, alerts, the outbox, the audit trail and API keys."""
        return self._open.of(Operations)

    async def get(self, job_id: int) -> JobDetail:
        """Return one job. Raises ``Rejected`` (``job_not_found``)."""
        return await self.service.get(job_id)

    async def explain(self, job_id: int) -> Explanation:
        """Return why a job is where it is. Raises ``Rejected`` (``job_not_found``)."""
        return await self.service.explain(job_id)

    async def cancel(self, job_id: int) -> JobAction:
        """Cancel a job; ``outcome`` is ``cancelled``, or ``requested`` while its handler runs.

        Raises:
            Rejected: ``job_not_found``, ``job_finished``. Permanent.
        """
        return await self.service.cancel(job_id, caller=_CALLER)

    async def retry(self, job_id: int) -> JobAction:
        """Put a failed job back to work. Raises ``Rejected`` (``job_not_found``, ``job_not_failed``)."""
        return await self.service.retry(job_id, caller=_CALLER)

    async def reschedule(self, job_id: int, *, at: datetime | None = None, delay: Duration | None = None) -> JobAction:
        """Give a pending job another time. Raises ``Rejected`` (``job_not_found``, ``job_not_pending``)."""
        if (at is None) == (delay is None):
            raise Rejected("execute_at_and_delay", "give at or delay, one of them", field="delay")
        return await self.service.reschedule(job_id, caller=_CALLER, execute_at=at, delay=as_duration("delay", delay))

    async def run_now(self, job_id: int) -> JobAction:
        """Make a pending job due now. Raises ``Rejected`` (``job_not_found``, ``job_not_pending``)."""
        return await self.service.run_now(job_id, caller=_CALLER)

    # ------------------------------------------------------------------ working

    @property
    def _open(self) -> Installation:
        if self._installation is None:
            raise Unavailable("app_not_open", "the app is not open; work inside 'async with app:'")
        return self._installation

    async def run_worker(self, *, roles: Sequence[str] = ("worker", "scheduler", "relay")) -> None:
        """Run a worker inside this program until cancelled; then finish what runs and give back the rest.

        Raises:
            Rejected: ``unknown_role``. Permanent.
            Unavailable: ``app_not_open``, or the database does not answer at the start. Retry.
        """
        await run_node(self.settings, roles, database=self._open.database, registrations=self.registrations)


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
    )


def _message(
    destination: str, payload: Any, key: str | None, headers: Mapping[str, str] | None
) -> tuple[str, str | None, str, str]:
    text = to_json(payload)
    if len(text.encode()) > MESSAGE_BYTES_MAX:
        raise Rejected("payload_too_large", f"payload: at most {MESSAGE_BYTES_MAX} bytes", status=413, field="payload")
    if key is not None and not (len(key) <= MESSAGE_KEY_MAX and storable(key) == key):
        without = "without NUL and halves of surrogate pairs"
        raise Rejected("invalid_key", f"key: at most {MESSAGE_KEY_MAX} characters, {without}", field="key")
    named = dict(headers or {})
    check_headers(named)
    if NAME not in {name.lower() for name in named} and len(named) < HEADERS_MAX and (here := traces.current()):
        named[NAME] = here
    return destination, key, text, to_json(named)


def _stored(rows: Sequence[Any], span: Span) -> int:
    number = int(rows[0][0])
    span.set_attribute("messaging.message.id", f"out_{number}")
    return number


def _check_destination(destination: str, settings: Settings) -> None:
    """Refuse at once what the relay could never send."""
    target = parse_target(destination)
    if isinstance(target, PythonTarget):
        raise Rejected("invalid_target", "a message goes outside; schedule a job for a handler", field="destination")
    if isinstance(target, WebTarget):
        reason = refusal_unasked(target.literal, target.port, tls=target.tls, allow=settings.targets)
        if reason is not None:
            from tickwright.outbound.failures import blocked

            said = blocked(reason)
            raise Rejected(said.code, said.reason, reason=reason, field="destination")
