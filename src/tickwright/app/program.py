"""The app object: handlers by decorator, jobs and messages by call, a worker inside your own program.

::

    app = Tickwright()                      # environment, TOML file, or the embedded PostgreSQL

    @app.job("invoice.remind", timeout="30s", rate="50/s")
    async def remind(job: Job, invoice_id: int) -> None: ...

    async with app:
        await app.schedule("invoice.remind", {"invoice_id": 42}, delay="3d", key="remind-42")

The object turns arguments into values; capabilities do the rest. It trusts no argument: it refuses what PostgreSQL
would refuse, before that reaches a statement that other callers share.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from tickwright.app.declarations import Declarations, Duration
from tickwright.app.payloads import to_json
from tickwright.app.scheduling import CALLER, JobCalls
from tickwright.domain.addresses import refusal_unasked
from tickwright.domain.envelopes import Purpose
from tickwright.domain.errors import Rejected, Unavailable, storable
from tickwright.domain.targets import PythonTarget, WebTarget, parse_target
from tickwright.domain.traceparent import NAME
from tickwright.engine.outbox.relay_rules import DELIVER
from tickwright.observe import traces
from tickwright.observe.logs import log_like_a_library
from tickwright.plugin.settings import Settings
from tickwright.process.database import Database
from tickwright.process.installation import Installation, open_installation
from tickwright.process.settings import load_settings
from tickwright.store.borrowed import Fetching, borrow, borrow_sync, finish
from tickwright.store.pool import Pool
from tickwright.store.queries import load

if TYPE_CHECKING:  # a program loads the capabilities that it uses
    from anyio.from_thread import BlockingPortal

    from tickwright.app.draining import Drained, MovableClock
    from tickwright.app.remote import RemotePool
    from tickwright.app.resources import Entities, RequestedReport, Tracked, Trackers
    from tickwright.capabilities.batches.definitions.campaigns import StoredCampaign
    from tickwright.capabilities.batches.service import CampaignsService
    from tickwright.capabilities.jobs.schedules.service import Schedules
    from tickwright.capabilities.operations.listings import Operations
    from tickwright.capabilities.reports.service import ReportsService

T = TypeVar("T")


@dataclass(slots=True)
class Bench:
    """What tests replace in a program while it is open.

    Attributes:
        settings: Instead of those of the environment.
        database: Opens the database of the test.
        resources: Instead of what the lifespans yield.
        clock: Of the database; ``None`` where it cannot be moved.
    """

    settings: Settings | None = None
    database: Callable[[], AbstractAsyncContextManager[Database]] | None = None
    resources: Mapping[str, Any] | None = None
    clock: "MovableClock | None" = None


MESSAGE_BYTES_MAX = 1_048_576
MESSAGE_KEY_MAX = 1024
_SQL = load("tickwright.app.sql", "publish.sql")


class Tickwright(Declarations, JobCalls):
    """The Tickwright of one program.

    Creating it reads no settings and opens no connections; ``async with app:`` does. So a module can define it at
    import time. One event loop uses it.

    Args:
        database_url: ``postgresql://…`` instead of ``TICKWRIGHT_DATABASE_URL``.
        settings: Any other setting by its name in lower case, instead of its variable: ``home=…``, ``config=…``.
    """

    def __init__(self, database_url: str | None = None, **settings: Any) -> None:
        super().__init__()
        self.registrations.lifespan.add(self._adopting)
        self._given = {"database_url": database_url, **settings}
        self._settings: Settings | None = None
        self._stack: AsyncExitStack | None = None
        self._installation: Installation | None = None
        self._portal: BlockingPortal | None = None
        self._sync_stack = ExitStack()
        self._bench: Bench | None = None

    def remote(self, pool: str) -> "RemotePool":
        """Return a pool of workers in other languages, to declare what they do: jobs, polls, tasks and chunks.

        ``app.remote("billing").job("invoice.remind", timeout="30s")`` declares a task type with the target
        ``remote:billing``; ``partner``, ``module`` and ``batch`` do the same. An operator's settings override these.

        Args:
            pool: 1 to 255 letters, digits, ``_ . -``, a letter or ``_`` first.

        Raises:
            Rejected: ``invalid_target``. Permanent.
        """
        from tickwright.app.remote import RemotePool
        from tickwright.engine.remote.declared import RemoteRegistry

        return RemotePool(self.registrations.of(RemoteRegistry), pool)

    async def track(
        self,
        account_id: str,
        partner: str,
        external_id: str,
        *,
        status: str | None = None,
        until: datetime | None = None,
        connection: Any = None,
    ) -> "Tracked":
        """Register a tracker, to be polled at its account's interval; one (partner, external id) is one tracker.

        A second call returns the existing tracker, whatever its other arguments are. The first poll is within one
        interval after the commit.

        Args:
            account_id: 1 to 200 characters without ``/``; a new account is polled every 120 minutes.
            partner: The partner to poll; declared here, in the TOML file or by an operator.
            external_id: The partner's id for it, 1 to 200 characters.
            status: Its present status; ``registered`` by default.
            until: Aware; it is not polled after that. By default the account's age from now on.
            connection: Yours, in a transaction that is READ COMMITTED, as for :meth:`schedule`.

        Raises:
            Rejected: Something is out of bounds, ``unknown_partner``, or ``unsupported_isolation``. Permanent.
            Unavailable: ``app_not_open``.
        """
        from tickwright.app.resources import new_tracker, track

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
    ) -> "Tracked":
        """Do what :meth:`track` does on a synchronous program's own connection; the app need not be open."""
        from tickwright.app.resources import new_tracker, track_borrowed

        new = new_tracker(account_id, partner, external_id, status, until)
        return finish(track_borrowed(borrow_sync(connection), new))

    @property
    def trackers(self) -> "Trackers":
        """Trackers: read them, end them, report their events. Raises ``Unavailable`` (``app_not_open``)."""
        from tickwright.app.resources import Trackers
        from tickwright.capabilities.polling.service import PollingService

        return Trackers(self._open.of(PollingService), CALLER)

    @property
    def entities(self) -> "Entities":
        """Entities that fan-out polls: set, read, pause them. Raises ``Unavailable`` (``app_not_open``)."""
        from tickwright.app.resources import Entities
        from tickwright.capabilities.fanout.service import FanoutService

        return Entities(self._open.of(FanoutService), CALLER)

    async def request_report(
        self,
        report_type: str,
        conditions: Mapping[str, Any] | None = None,
        *,
        requester: str | None = None,
        department: str | None = None,
        format: str | None = None,  # noqa: A002  the name of the field
        notify: str | None = None,
        source: str | None = None,
        connection: Any = None,
    ) -> "RequestedReport":
        """Request a report and return the id of its record at once. Read the report with ``app.reports``.

        If the same requester has an equal report in progress (same type, format and conditions), that one is returned.

        Args:
            report_type: A type that the app, the TOML file or an operator has set up.
            conditions: Values of its parameters.
            requester: The user that the report is for; ``"python"`` by default.
            department: Of the requester, for searching.
            format: ``csv`` or ``parquet``; the type's by default.
            notify: The receiver that is notified of the end; the type's by default.
            source: The origin of the request, as free text.
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
        from tickwright.app.resources import request_report
        from tickwright.capabilities.reports.service import ReportsService

        return await request_report(self._open.of(ReportsService), self._open.pool, wanted, CALLER, connection)

    @property
    def reports(self) -> "ReportsService":
        """Records, their files, report types. Raises ``Unavailable`` (``app_not_open``)."""
        from tickwright.capabilities.reports.service import ReportsService

        return self._open.of(ReportsService)

    async def put_campaign(self, name: str, words: Mapping[str, Any]) -> "StoredCampaign":
        """Create a campaign, or replace its definition: a new version. Repeating a call changes nothing.

        Args:
            name: 1 to 100 letters, digits, ``_ . -``.
            words: ``type``, ``audience``, ``expression``, ``action`` and the other fields of a campaign.

        Raises:
            Rejected: ``invalid_campaign``, or the code that all mistakes share, with every mistake. Permanent.
            Unavailable: ``app_not_open``, or the audience's source does not answer. Retry.
        """
        return await self.campaigns.campaigns.put(name, words, caller=CALLER)

    async def start_campaign(self, name: str) -> int:
        """Execute a campaign now, whatever its schedule, and return the id of the execution.

        Raises:
            Rejected: ``campaign_not_found``; ``execution_open``, if its overlap policy is ``skip``. Permanent until the
                open execution has ended.
            Unavailable: ``app_not_open``.
        """
        from tickwright.capabilities.batches.executions.states import BatchAction

        return (await self.campaigns.campaign_batches.act(BatchAction.START, name, caller=CALLER)).executions[-1].id

    async def start_batch(self, name: str) -> int:
        """Execute a batch of ``@app.batch``, of this or another program, like a campaign; ``batch_not_found``."""
        from tickwright.capabilities.batches.executions.states import BatchAction

        return (await self.campaigns.programs.act(BatchAction.START, name, caller=CALLER)).executions[-1].id

    @property
    def campaigns(self) -> "CampaignsService":
        """Campaigns, batches and their executions. Raises ``Unavailable`` (``app_not_open``)."""
        from tickwright.capabilities.batches.service import CampaignsService

        return self._open.of(CampaignsService)

    async def publish(
        self,
        destination: str,
        payload: Any,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        encrypted: bool = False,
        deliver: Literal["plain", "cipher"] | None = None,
        connection: Any = None,
    ) -> int:
        """Put a message into the outbox and return its number. The relay sends it after the commit, at least once.

        Args:
            destination: ``https://…``, ``wss://…``, ``amqp:EXCHANGE/ROUTING_KEY``, ``kafka:TOPIC``, ``pg:TOPIC``.
            payload: As for ``schedule``, at most 1 MiB.
            key: Messages with equal keys keep their order if the destination supports it.
            headers: Sent with it; names in lower case. Without a ``traceparent`` the message belongs to the trace of
                the calling code, if there is one.
            encrypted: Store the payload encrypted, also as a dead letter; key and headers stay readable.
            deliver: What the destination of an encrypted message gets. By default callbacks and pushes get plain text,
                brokers the envelope.
            connection: Yours, in a transaction; the message is sent if and only if it commits.

        Raises:
            Rejected: ``invalid_target``, ``ssrf_blocked`` as for task types, ``invalid_key``, a payload as for
                ``schedule``. Permanent.
            Unavailable: ``app_not_open``; ``payload_keys_missing``: it cannot encrypt. Retry in a process with keys.
        """
        message = self._message(destination, payload, key, headers, encrypted, deliver)
        return await self._publish(lambda: self._open.pool if connection is None else borrow(connection), *message)

    def publish_sync(
        self,
        destination: str,
        payload: Any,
        *,
        connection: Any,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        encrypted: bool = False,
        deliver: Literal["plain", "cipher"] | None = None,
    ) -> int:
        """Do what :meth:`publish` does on a synchronous program's own connection; the app need not be open."""
        message = self._message(destination, payload, key, headers, encrypted, deliver)
        return finish(self._publish(lambda: borrow_sync(connection), *message))

    def _message(  # noqa: PLR0917  the arguments of publish
        self,
        destination: str,
        payload: Any,
        key: str | None,
        headers: Mapping[str, str] | None,
        encrypted: bool,
        deliver: Literal["plain", "cipher"] | None,
    ) -> tuple[str, str, str | None, Mapping[str, str] | None]:
        """Return destination, payload as JSON, key and headers of a message, checked and encrypted."""
        _check_destination(destination, self.settings)
        text = to_json(payload)
        named = {name.lower() for name in headers or {}}
        if deliver not in (None, "plain", "cipher"):
            raise Rejected("invalid_message", "deliver: plain or cipher", field="deliver")
        if DELIVER in named or (deliver is not None and not encrypted):
            says = "deliver: only with encrypted=True, and not as a header"
            raise Rejected("invalid_message", says, field="deliver")
        if encrypted:
            is_web = isinstance(parse_target(destination), WebTarget)
            headers = {**(headers or {}), DELIVER: deliver or ("plain" if is_web else "cipher")}
            text = self.settings.payload_keys.seal(text, Purpose.MESSAGE, destination)
        return destination, text, key, headers

    async def _publish(
        self,
        connect: Callable[[], Fetching],
        destination: str,
        text: str,
        key: str | None,
        headers: Mapping[str, str] | None,
    ) -> int:
        with traces.working("create", traces.span_destination(destination)) as span:
            values = _message(destination, text, key, headers)
            number = int((await connect().fetch(_SQL["publish"], *values))[0][0])
            span.set_attribute("messaging.message.id", f"out_{number}")
            return number

    def run_sync(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` for a synchronous program, inside ``with app:``. Raises ``Unavailable`` (``app_not_open``)."""
        if self._portal is None:
            work.close()
            raise Unavailable("app_not_open", "the app is not open; work inside 'with app:', or give a connection")

        async def run() -> T:
            return await work

        return self._portal.call(run)

    def __enter__(self) -> Self:
        """Open the app for a synchronous program: its event loop runs in a thread."""
        from anyio.from_thread import start_blocking_portal

        if self._installation is not None:
            raise Rejected("app_already_open", "this app object is open already; use it, or make another one")
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal())
            stack.enter_context(portal.wrap_async_context_manager(self))
            self._portal, self._sync_stack = portal, stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal = None
        self._sync_stack.close()

    @asynccontextmanager
    async def _adopting(self, installation: Installation) -> AsyncIterator[Mapping[str, Any]]:
        """Be open while a process runs functions of the program: they schedule as the program itself does."""
        is_open = self._installation is not None
        self._installation = self._installation or installation
        try:
            yield {}
        finally:
            if not is_open:
                self._installation = None

    @property
    def bench(self) -> Bench | None:
        """What tests have replaced; see :mod:`tickwright.testing`."""
        return self._bench

    @bench.setter
    def bench(self, bench: Bench | None) -> None:
        self._bench = bench
        self._settings = None if bench is None else bench.settings

    async def drain(
        self,
        until: datetime | Duration | None = None,
        *,
        raises: bool = True,
        attempts_max: int = 10_000,
    ) -> "Drained":
        """Run the due jobs of this program's handlers here, one after the other, until none is due.

        For tests, with the worker's own claims and results. The order is by priority, due time and id; jobs that these
        jobs schedule run, too. A retry is due later, so it runs only if the clock moves.

        Args:
            until: In a database of :mod:`tickwright.testing`: move the clock from one due instant to the next, up to
                this instant, or for this long from now on. At the end the clock is there.
            raises: Raise what a handler raises, after its result is written. ``Retry`` and ``Snooze`` are no errors.
            attempts_max: So many attempts end the drain.

        Raises:
            Rejected: ``drain_endless``, ``no_test_clock``, ``naive_datetime``, ``resource_missing``. Permanent.
            JobFailed: An attempt timed out. Permanent.
            Unavailable: ``app_not_open``, outside ``async with app``.
            Exception: What a handler or a lifespan raises.
        """
        from tickwright.app.draining import drain

        bench = self._bench or Bench()
        return await drain(
            self._open, self.registrations.lifespan, clock=bench.clock, resources=bench.resources, until=until,
            raises=raises, attempts_max=attempts_max,
        )  # fmt: skip

    def drain_sync(
        self, until: datetime | Duration | None = None, *, raises: bool = True, attempts_max: int = 10_000
    ) -> "Drained":
        """Do what :meth:`drain` does in a synchronous program, inside ``with app:``."""
        return self.run_sync(self.drain(until, raises=raises, attempts_max=attempts_max))

    def using(self, settings: Settings) -> Self:
        """Use ``settings`` from the next opening on, regardless of the environment; for programs that run apps."""
        self._settings = settings
        return self

    @property
    def own_settings(self) -> Mapping[str, Any]:
        """The settings that this object was created with, without the omitted ones."""
        return {name: value for name, value in self._given.items() if value is not None}

    @property
    def pool(self) -> Pool:
        """The open app's asyncpg pool, for your own transactions. Raises ``Unavailable`` (``app_not_open``)."""
        return self._open.pool

    @property
    def database(self) -> Database:
        """The open app's database. Raises ``Unavailable`` (``app_not_open``)."""
        return self._open.database

    @property
    def settings(self) -> Settings:
        """The settings; read on first use. Raises ``Rejected`` (``invalid_settings``, all mistakes): permanent."""
        if self._settings is None:
            self._settings = load_settings(**self._given)
        return self._settings

    async def __aenter__(self) -> Self:
        if self._installation is not None:
            raise Rejected("app_already_open", "this app object is open already; use it, or make another one")
        log_like_a_library()
        stack = AsyncExitStack()
        try:
            database = None
            if self._bench is not None and self._bench.database is not None:
                database = await stack.enter_async_context(self._bench.database())
            opened = await stack.enter_async_context(
                open_installation(self.settings, self.registrations, database=database)
            )
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

    @property
    def schedules(self) -> "Schedules":
        """Schedules for operators: read, edit, pause, run now, preview, explain."""
        from tickwright.capabilities.jobs.schedules.service import Schedules

        return self._open.of(Schedules)

    @property
    def operations(self) -> "Operations":
        """Workers, alerts, the outbox, the audit trail and API keys."""
        from tickwright.capabilities.operations.listings import Operations

        return self._open.of(Operations)

    @property
    def _open(self) -> Installation:
        if self._installation is None:
            raise Unavailable("app_not_open", "the app is not open; work inside 'async with app:'")
        return self._installation

    async def run_worker(self, *, roles: Sequence[str] = ("worker", "scheduler", "relay")) -> None:
        """Run a worker inside this program until cancelled. Then finish the running work and release the rest.

        Raises:
            Rejected: ``unknown_role``. Permanent.
            Unavailable: ``app_not_open``, or the database does not answer at the start. Retry.
        """
        from tickwright.process.node import run_node

        await run_node(self.settings, roles, database=self._open.database, registrations=self.registrations)


def _message(
    destination: str, text: str, key: str | None, headers: Mapping[str, str] | None
) -> tuple[str, str | None, str, str]:
    if len(text.encode()) > MESSAGE_BYTES_MAX:
        raise Rejected("payload_too_large", f"payload: at most {MESSAGE_BYTES_MAX} bytes", status=413, field="payload")
    if key is not None and not (len(key) <= MESSAGE_KEY_MAX and storable(key) == key):
        without = "without NUL and halves of surrogate pairs"
        raise Rejected("invalid_key", f"key: at most {MESSAGE_KEY_MAX} characters, {without}", field="key")
    from tickwright.outbound.messages import HEADERS_MAX, check_headers

    named = dict(headers or {})
    check_headers(named)
    if NAME not in {name.lower() for name in named} and len(named) < HEADERS_MAX and (here := traces.current()):
        named[NAME] = here
    return destination, key, text, to_json(named)


def _check_destination(destination: str, settings: Settings) -> None:
    """Refuse at once a destination that the relay can never reach."""
    target = parse_target(destination)
    if isinstance(target, PythonTarget):
        raise Rejected("invalid_target", "a message goes outside; schedule a job for a handler", field="destination")
    if isinstance(target, WebTarget):
        reason = refusal_unasked(target.literal, target.port, tls=target.tls, allow=settings.targets)
        if reason is not None:
            from tickwright.outbound.messages import blocked

            refusal = blocked(reason)
            raise Rejected(refusal.code, refusal.reason, reason=reason, field="destination")
