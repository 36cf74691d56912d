"""The decorators of the app object: they register handlers, partners, modules, listeners, reports and batches."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, cast, overload

from tickwright.domain import strict_json
from tickwright.domain.errors import Rejected, takes_one
from tickwright.domain.retries import RetryPolicy
from tickwright.domain.time_texts import format_duration
from tickwright.plugin import Registrations
from tickwright.plugin.lifespan import Lifespan, Middleware, opener_of

if TYPE_CHECKING:  # a program loads the capabilities that it declares something for
    from tickwright.app.jobs import ChunkDecorator, JobDecorator
    from tickwright.app.scheduling import JobCalls
    from tickwright.capabilities.batches.executions.work import DeclaredBatch, Plan
    from tickwright.capabilities.batches.executions.work import Function as BatchFunction
    from tickwright.capabilities.fanout.handlers import DeclaredModule
    from tickwright.capabilities.fanout.handlers import Handler as ModuleHandler
    from tickwright.capabilities.jobs.handlers import Function, Handler
    from tickwright.capabilities.jobs.unique import Unique
    from tickwright.capabilities.polling.consumer.courier import Courier, DeclaredPartner
    from tickwright.capabilities.reports.handlers import DeclaredListener, DeclaredReport
    from tickwright.capabilities.reports.handlers import Function as ListenerFunction

Duration = str | timedelta
_TIMES = ("cron", "every", "timezone", "overlap", "misfire", "spread")
_HANDLER_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,49}")


def declare_job(name: str, function: "Function", options: Mapping[str, Any], lifespan: Lifespan) -> "Handler":
    """Return the handler that ``@app.job(name, **options)`` makes of ``function``.

    Raises:
        Rejected: ``invalid_task_type`` with every mistake, or ``invalid_handler``. Permanent.
    """
    from tickwright.capabilities.jobs.handlers import make_chunk_handler, make_handler
    from tickwright.capabilities.jobs.task_types import read_task_type

    problems: list[str] = []
    where = f"@app.job({name!r})"
    chunk, options = _chunk_options(options, problems, where=where)
    if not _HANDLER_NAME.fullmatch(name):
        problems.append(f"{where}: a handler's name has 1 to 50 letters, digits, '_', '.' or '-', a letter first")
    kind = read_task_type("handler", {"target": "python:handler", **options}, problems, where=where)
    kind = replace(kind, name=name, target=f"python:{name}")
    if problems:
        raise Rejected("invalid_task_type", "\n".join(problems), problems=problems)
    if chunk is not None:
        return make_chunk_handler(kind, function, lifespan, size=chunk[0], within=chunk[1])
    return make_handler(kind, function, lifespan)


def _chunk_options(
    options: Mapping[str, Any], problems: list[str], *, where: str
) -> "tuple[tuple[int, timedelta] | None, dict[str, Any]]":
    """Return the size of chunks and the wait for them, if the options have some, and the other options."""
    from tickwright.capabilities.jobs.worker.chunks import SIZE_MAX, WITHIN_DEFAULT, WITHIN_MAX

    left = {name: value for name, value in options.items() if name not in {"batch", "within"}}
    size = options.get("batch")
    try:
        within = as_duration("within", options.get("within"))
    except Rejected as error:
        problems.append(f"{where}.{error.message}")
        within = None
    if size is None and "within" in options:
        problems.append(f"{where}.within: only with batch=…, the most jobs of a chunk")
    if size is not None and not (type(size) is int and 1 <= size <= SIZE_MAX):
        problems.append(f"{where}.batch: a whole number from 1 to {SIZE_MAX:,}")
    if within is not None and within > WITHIN_MAX:
        problems.append(f"{where}.within: at most {format_duration(WITHIN_MAX)}")
    return (None if size is None else (size, WITHIN_DEFAULT if within is None else within)), left


def declare_partner(name: str, function: "Courier", options: Mapping[str, Any]) -> "DeclaredPartner":
    """Return the partner of ``@app.partner``. Raises ``Rejected`` (``invalid_partner``, all mistakes): permanent."""
    from tickwright.capabilities.polling.consumer.courier import DeclaredPartner
    from tickwright.capabilities.polling.partners import read_partner

    problems: list[str] = []
    read_partner(name, options, problems, where=f"@app.partner({name!r})")
    if problems:
        raise Rejected("invalid_partner", "\n".join(problems), problems=problems)
    return DeclaredPartner(name, options, function)


def declare_module(name: str, function: "ModuleHandler", options: Mapping[str, Any]) -> "DeclaredModule":
    """Return the module of ``@app.module``. Raises ``Rejected`` (``invalid_module``, all mistakes): permanent."""
    from tickwright.capabilities.fanout.entities.modules import check_module
    from tickwright.capabilities.fanout.handlers import DeclaredModule

    check_module(name, options, where=f"@app.module({name!r})")
    return DeclaredModule(name, options, function)


def declare_listener(
    name: str, function: "ListenerFunction", options: Mapping[str, Any], lifespan: Lifespan
) -> "DeclaredListener":
    """Return the listener of ``@app.listener``. Raises ``Rejected`` (``invalid_listener``, all mistakes): permanent."""
    from tickwright.capabilities.reports.handlers import DeclaredListener
    from tickwright.capabilities.reports.schema import read_listener

    problems: list[str] = []
    read = read_listener(name, options, problems, where=f"@app.listener({name!r})")
    if read is None:
        raise Rejected("invalid_listener", "\n".join(problems), problems=problems)
    timeout = read.timeout if "timeout" in options else None
    columns = read.columns if "columns" in options else None
    filled = lifespan.filled(function)
    return DeclaredListener(name, read.source, options.get("attempts"), timeout, columns, filled, lifespan)


def declare_report(name: str, function: Callable[[], str | None], options: Mapping[str, Any]) -> "DeclaredReport":
    """Return the report type that ``@app.report(name, **options)`` makes of ``function``, which is called here, once.

    Raises:
        Rejected: ``invalid_report_type`` with every mistake that can be found without DuckDB. Permanent.
    """
    from tickwright.capabilities.reports.handlers import DeclaredReport
    from tickwright.capabilities.reports.schema import check_definition

    where = f"@app.report({name!r})"
    if inspect.iscoroutinefunction(function) or inspect.signature(function).parameters:
        raise Rejected("invalid_report_type", f"{where}: the function takes nothing, is not async, and returns SQL")
    merge = function()
    table = options if merge is None else {**options, "merge": merge}
    check_definition(name, table, where=where)
    return DeclaredReport(name, table)


def declare_batch(
    name: str, function: "BatchFunction", plan: "Plan | None", options: Mapping[str, Any]
) -> "DeclaredBatch":
    """Return the batch that ``@app.batch(name, **options)`` makes of ``function``.

    Raises:
        Rejected: ``invalid_batch``, or the code that all mistakes share, with every mistake. Permanent.
    """
    from tickwright.capabilities.batches.definitions.schema import NAME, read_program
    from tickwright.capabilities.batches.executions.work import DeclaredBatch

    where = f"@app.batch({name!r})"
    if not NAME.fullmatch(name):
        text = f"{where}: a name has 1 to 100 letters, digits, '_', '.' or '-', a letter or digit first"
        raise Rejected("invalid_batch", text)
    if not inspect.iscoroutinefunction(function) or not takes_one(function):
        raise Rejected("invalid_batch", f"{where}: write an 'async def' that takes the chunk, and nothing else")
    if plan is not None and "audience" in options:
        raise Rejected("invalid_batch", f"{where}: an audience or a plan, one of them")
    if plan is not None and not (inspect.isasyncgenfunction(plan) and takes_one(plan)):
        text = f"{where}: the plan is an 'async def' that takes the run and yields a value per chunk"
        raise Rejected("invalid_batch", text)
    return DeclaredBatch(name, read_program(options, lambda _: None), function, plan)


def as_duration(field: str, value: Duration | None) -> timedelta | None:
    """Parse a duration, ``"30s"`` or a ``timedelta``. Raises ``Rejected`` (``invalid_duration``): permanent."""
    from tickwright.capabilities.jobs.task_types import read_duration

    if value is None:
        return None
    try:
        duration = read_duration(value)
    except Rejected as error:
        message = error.message.removeprefix("duration: ")
        raise Rejected("invalid_duration", f"{field}: {message}", field=field) from None
    if duration < timedelta():
        raise Rejected("invalid_duration", f"{field}: zero or more", field=field)
    return duration


F = TypeVar("F", bound=Callable[..., Any])
B = TypeVar("B", bound="BatchFunction")
P = TypeVar("P", bound="Courier")
M = TypeVar("M", bound="ModuleHandler")
L = TypeVar("L", bound="ListenerFunction")
R = TypeVar("R", bound=Callable[[], str | None])
W = TypeVar("W", bound=Middleware)


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options among a decorator's arguments that are set."""
    return {name: value for name, value in arguments.items() if value is not None and name not in {"self", "name"}}


class JobTypeOptions(TypedDict, total=False):
    """Options of :meth:`Declarations.job`: defaults of the task type, which an operator's settings override.

    Attributes:
        timeout: Of one attempt, 1 ms to 1 day; 30 s by default.
        max_attempts: 1 to 1,000; 3 by default.
        retry: ``{"base": "1s", "factor": 2, "cap": "1h"}`` or a :class:`~tickwright.RetryPolicy`.
        concurrency: Concurrent attempts in all workers together; no limit by default.
        rate: Starts in all workers together, such as ``"50/s"``.
        keep_history: Whether completed jobs stay readable for the retention time; true by default.
        queue: Workers reserve slots for queues, and operators pause them; ``default`` by default.
        needs: What a worker must have to run it, such as ``["gpu"]``, up to 10 names.
        group_limit: Jobs of one group that run at once in all workers together, 1 to 1,000; no limit by default.
        group_rate: Starts of jobs of one group, such as ``"10/m"``.
        group_order: The jobs of a group run one after another, by id. Behind a failed one the group stops (``"stop"``),
            goes on (``"skip"``), or does not wait for its retries (``"continue"``).
        unique: What makes its jobs unique: a :class:`~tickwright.Unique`, or a mapping of its fields.
        encrypted: Store payloads, results and progress encrypted; cannot be undone. See docs/encryption.md.
        deliver: ``"cipher"`` to get the envelope instead of the plain payload.
        cron: Also makes it periodic, by a schedule of the same name; with the next five, see
            :meth:`Declarations.periodic`.
        every: The same, in steps; with ``timezone``, ``overlap`` and ``misfire`` as there.
        spread: A window in which its jobs have a fixed place.
    """

    timeout: Duration | None
    max_attempts: int | None
    retry: RetryPolicy | Mapping[str, Any] | None
    concurrency: int | None
    rate: str | None
    keep_history: bool
    queue: str | None
    needs: Sequence[str] | None
    group_limit: int | None
    group_rate: str | None
    group_order: Literal["stop", "skip", "continue"] | None
    unique: "Unique | Mapping[str, Any] | None"
    encrypted: bool
    deliver: Literal["plain", "cipher"] | None
    cron: str | None
    every: Duration | None
    timezone: str | None
    overlap: Literal["allow", "skip", "replace"] | None
    misfire: Literal["one", "all", "none"] | None
    spread: Duration | None


class Declarations:
    """The decorators of :class:`~tickwright.Tickwright`; they fill ``registrations``, also at import time."""

    def __init__(self) -> None:
        self.registrations = Registrations()

    def lifespan(self, function: F) -> F:
        """Register an async generator that opens resources before the program's handlers run, and closes them after.

        It takes the app or nothing and yields a mapping of resources by name, or nothing. Each process that runs
        functions of the program opens all lifespans in their order; see :mod:`tickwright.plugin.lifespan`.

        Raises:
            Rejected: ``invalid_lifespan``. Permanent.
        """
        self.registrations.lifespan.add(opener_of(function, self))
        return function

    def middleware(self, function: W) -> W:
        """Register an ``async def`` that runs around each attempt of the program's functions, of every capability.

        It takes the work (a :class:`~tickwright.Job`, ``Poll``, ``EntityTask``, ``ReportRequest`` or ``BatchChunk``)
        and a function that runs the rest of the attempt. It sees what the handler returns or raises, and what it
        returns or raises itself is the attempt's result. The first one registered is the outermost.

        Raises:
            Rejected: ``invalid_middleware``. Permanent.
        """
        self.registrations.lifespan.add_middleware(function)
        return function

    @overload
    def job(
        self, name: str, *, batch: int, within: Duration | None = None, **settings: Unpack[JobTypeOptions]
    ) -> "ChunkDecorator": ...

    @overload
    def job(self, name: str, **settings: Unpack[JobTypeOptions]) -> "JobDecorator": ...

    def job(
        self, name: str, *, batch: int | None = None, within: Duration | None = None, **settings: Unpack[JobTypeOptions]
    ) -> "JobDecorator | ChunkDecorator":
        """Register the decorated function as the handler of one-shot jobs called ``name``.

        The function takes the :class:`~tickwright.Job`, then arguments that are read from the payload by name and
        checked against their annotations. It is ``async``, or it runs in a thread. What the decorator returns can
        still be called, and schedules the job with its arguments: ``await remind.schedule(invoice_id=42)``; see
        :class:`~tickwright.JobFunction`.

        Args:
            name: 1 to 50 letters, digits, ``_ . -``, a letter first.
            batch: The function takes a :class:`~tickwright.JobChunk` of up to so many jobs at once, 1 to 10,000, and no
                more than the worker has slots for the type. Each job has its own outcome. Limits count jobs.
            within: How long the oldest job of a chunk waits for others, at most 1 min; 1 s by default.
            settings: Of the task type, and when it is periodic: see :class:`JobTypeOptions`.

        Raises:
            Rejected: ``invalid_task_type``, ``invalid_handler``, ``duplicate_handler``, and as :meth:`periodic`.
        """
        if not isinstance(name, str):
            raise Rejected("invalid_handler", 'name the job: @app.job("invoice.remind")')
        options = _given({"batch": batch, "within": within, **settings})
        times = {option: options.pop(option) for option in _TIMES if option in options}

        def register(function: Any) -> Any:
            from tickwright.app.jobs import ChunkFunction, JobFunction, SyncJobFunction
            from tickwright.capabilities.jobs.handlers import HandlerRegistry

            handler = declare_job(name, function, options, self.registrations.lifespan)
            self.registrations.of(HandlerRegistry).add(handler)
            if times:
                handler.arguments.check("{}")  # its jobs have no arguments
                self.periodic(name, name, **times)
            kind: type[Any] = JobFunction if handler.is_async else SyncJobFunction
            return (kind if batch is None else ChunkFunction)(cast("JobCalls", self), handler)

        return cast("JobDecorator", register)

    def periodic(
        self,
        name: str,
        job: Any,
        *,
        payload: Any = None,
        cron: str | None = None,
        every: Duration | None = None,
        timezone: str | None = None,
        first_at: datetime | str | None = None,
        spread: Duration | None = None,
        overlap: Literal["allow", "skip", "replace"] | None = None,
        misfire: Literal["one", "all", "none"] | None = None,
        misfire_max: int | None = None,
        misfire_grace: Duration | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        timeout: Duration | None = None,
        expires_after: Duration | None = None,
    ) -> None:
        """Declare a schedule: one job for each occurrence. Several schedules may make jobs of one type.

        The schedule is stored when a process of the program starts. What an operator sets under its name (REST, command
        line, dashboard, TOML) overrides the arguments. A schedule that is not declared any more stays until an operator
        deletes it.

        Args:
            name: 1 to 100 letters, digits, ``_ . -``, a letter or digit first.
            job: The handler, a call of it (``remind.call(invoice_id=42)``), or the name of a task type.
            payload: Of each job, any JSON; ``{}`` by default, or the call's.
            cron: Five fields, such as ``"0 3 * * *"``, or a name such as ``"@daily"``; this or ``every``.
            every: ``"15m"``: whole seconds from 1 s to 366 days, in steps of wall-clock time from ``first_at``, or from
                midnight of a Monday.
            timezone: Such as ``"Europe/Kyiv"``; ``"UTC"`` by default.
            first_at: No occurrence is before it.
            spread: A window, at most a day: the jobs run at a fixed place of it, by the hash of the name.
            overlap: A job of an earlier occurrence has not ended: ``"allow"`` (default) both, ``"skip"`` the new one,
                ``"replace"``: cancel the earlier one.
            misfire: Occurrences found later than ``misfire_grace``: ``"one"`` (default), the newest; ``"all"``, up to
                ``misfire_max``; ``"none"``.
            misfire_max: 1 to 1,000; 100 by default.
            misfire_grace: At most 7 days; 1 min by default.
            priority: -100 to 100, higher first.
            max_attempts: Of each job; that of the task type by default.
            timeout: Of one attempt; that of the task type by default.
            expires_after: A job that has not started so long after its slot is cancelled; never by default.

        Raises:
            Rejected: ``invalid_schedule`` with every mistake, ``duplicate_schedule``. Permanent.
        """
        options = _given(locals())
        from tickwright.capabilities.jobs.schedules.declared import ScheduleRegistry, declare_schedule

        del options["job"]
        task_type = job if isinstance(job, str) else self._type_and_payload(job, options)
        self.registrations.of(ScheduleRegistry).add(declare_schedule(name, task_type, options))

    def _type_and_payload(self, job: Any, options: dict[str, Any]) -> str:
        """Return the task type of a handler of this app, or of a call of one, whose payload becomes an option."""
        from tickwright.app.jobs import JobCall
        from tickwright.capabilities.jobs.handlers import HandlerRegistry

        if isinstance(job, JobCall):
            options.setdefault("payload", strict_json.loads(job.payload.encode()))
            return job.task_type
        name = getattr(job, "name", None)
        handler = None if name is None else self.registrations.of(HandlerRegistry).get(name)
        if handler is not None and handler is job.handler:
            return handler.name
        raise Rejected("invalid_schedule", f"{job!r} is no handler of this app; decorate it with @app.job before")

    def partner(
        self,
        name: str,
        *,
        rate: str | None = None,
        per_minute: int | None = None,
        per_day: int | None = None,
        concurrency: int | None = None,
        timeout: Duration | None = None,
        quiet: str | Sequence[str] | None = None,
        breaker: Mapping[str, Any] | None = None,
        terminal_statuses: Sequence[str] | None = None,
    ) -> Callable[[P], P]:
        """Register the decorated function as the courier that polls the partner ``name`` for trackers.

        The function takes a :class:`~tickwright.Poll` and returns an :class:`~tickwright.Answer`, or
        :class:`~tickwright.Throttled` if the partner requests a pause. An exception is a failed call, which changes
        nothing of the tracker and is retried. Limits hold for all processes together. An operator's settings override
        the arguments.

        Args:
            name: 1 to 50 letters, digits, ``_ . -``: the trackers' ``partner``.
            rate: Calls, such as ``"50/s"``, spread evenly.
            per_minute: Calls in any minute.
            per_day: Calls in any 24 hours.
            concurrency: Concurrent calls.
            timeout: Of one call, 10 ms to 5 min; 10 s by default.
            quiet: Hours without calls: ``"22:00-06:00 Europe/Berlin"``, or several.
            breaker: ``{"failures": 10, "share": 0.5, "window": "10s", "open": "5s", "open_max": "5m"}``.
            terminal_statuses: Statuses that end a tracker; ``["Delivered"]`` by default.

        Raises:
            Rejected: ``invalid_partner`` with every mistake, ``duplicate_partner``. Permanent.
        """
        options = _given(locals())
        from tickwright.capabilities.polling.consumer.courier import CourierRegistry

        return self._register(CourierRegistry, lambda function: declare_partner(name, self._attempt(function), options))

    def module(
        self, name: str, *, every: Duration | None = None, timeout: Duration | None = None, gated: bool | None = None
    ) -> Callable[[M], M]:
        """Register the decorated function as the poll of entities for the module ``name``.

        The function takes an :class:`~tickwright.EntityTask` and runs to its end once per entity and window. An
        exception is a failed run, which is retried while the window lasts. If it returns a
        :class:`~tickwright.Throttled`, it is called again when the provider allows. Any other return value is ignored.
        An operator's settings override the arguments.

        Args:
            name: 1 to 50 capitals, digits or ``_``: in the entities' ``polling_enabled_modules``.
            every: Length of a window, whole seconds from 1 s to 1 day; 15 min by default.
            timeout: Of one run, 10 ms to 25 min; 60 s by default.
            gated: Whether it is polled only where ``ENABLE_<NAME>_POLLING=true``.

        Raises:
            Rejected: ``invalid_module`` with every mistake, ``duplicate_module``. Permanent.
        """
        options = _given(locals())
        from tickwright.capabilities.fanout.handlers import ModuleRegistry

        return self._register(ModuleRegistry, lambda function: declare_module(name, self._attempt(function), options))

    def listener(
        self,
        name: str,
        *,
        source: str | None = None,
        attempts: int | None = None,
        timeout: Duration | None = None,
        columns: Mapping[str, str] | None = None,
    ) -> Callable[[L], L]:
        """Register the decorated function as the listener ``name``, which yields its part of each report that needs it.

        The function is an ``async def`` that takes a :class:`~tickwright.ReportRequest` and yields rows: mappings, each
        with the names of the first one. An exception is a failed attempt, which is retried. The arguments are defaults
        for reports of this program.

        Args:
            name: 1 to 50 letters, digits or ``_``, a letter first: the part's table in the SQL that merges.
            source: The ``[sources.NAME]`` that ``request.rows`` queries.
            attempts: 1 to 100; 3 by default.
            timeout: Of one attempt, 10 ms to 6 hours; 5 min by default.
            columns: DuckDB types by name, for columns whose type rows do not show: ``{"id": "BIGINT"}``.

        Raises:
            Rejected: ``invalid_listener`` with every mistake, ``duplicate_listener``. Permanent.
        """
        options = _given(locals())
        from tickwright.capabilities.reports.handlers import ListenerRegistry

        lifespan = self.registrations.lifespan
        return self._register(ListenerRegistry, lambda function: declare_listener(name, function, options, lifespan))

    def report(
        self,
        name: str,
        *,
        listeners: Sequence[str] | Mapping[str, Mapping[str, Any]] | None = None,
        stages: Sequence[Sequence[str] | Mapping[str, Mapping[str, Any]]] | None = None,
        feeds: Mapping[int, str] | None = None,
        parameters: Mapping[str, str | Mapping[str, Any]] | None = None,
        format: Literal["csv", "parquet"] | None = None,  # noqa: A002  the name in the file and in REST
        bom: bool | None = None,
        checks: int | None = None,
        check_every: Duration | None = None,
        deadline: Duration | None = None,
        keep: Duration | None = None,
        notify: str | None = None,
    ) -> Callable[[R], R]:
        """Register a report type; the decorated function takes nothing and returns the SQL that merges the parts.

        The function is called once, here. With one listener it can return ``None``: the file then has the rows of that
        part. An operator's settings override the arguments.

        Args:
            name: 1 to 50 letters, digits, ``_ . -``.
            listeners: Their names, or tables by name with the fields of ``[report_types.NAME.listeners.NAME]``.
            stages: Instead of ``listeners``: a list of them per stage. A stage begins when the one before is complete.
            feeds: By stage from 2 on: one query over the parts so far. The queries of the stage can use its one row.
            parameters: The allowed conditions: ``{"country": "text"}``; any by default.
            format: For requests that name none; ``csv`` by default.
            bom: Whether CSV begins with a byte order mark.
            checks: Number of delayed checks before a stage is given up, 1 to 1,000; 6 by default.
            check_every: Time between two checks, 1 s to 1 h; 1 min by default.
            deadline: Of the whole report, 1 s to 7 days; 30 min by default.
            keep: How long the file is kept, 1 min to 10 years; 7 days by default.
            notify: The receiver that is notified of the end, for requests that name none.

        Raises:
            Rejected: ``invalid_report_type`` with every mistake, ``duplicate_report``. Permanent.
        """
        options = _given(locals())
        from tickwright.capabilities.reports.handlers import ReportRegistry

        return self._register(ReportRegistry, lambda function: declare_report(name, function, options))

    def batch(
        self,
        name: str,
        *,
        audience: Mapping[str, Any] | None = None,
        plan: "Plan | None" = None,
        action: str | None = None,
        release: Literal["finished", "chunk"] | None = None,
        cron: str | None = None,
        date_time_execution: datetime | str | None = None,
        time_zone: str | None = None,
        restartable: bool | None = None,
        restartable_unit: int | None = None,
        restartable_unit_type: Literal["MINUTES", "HOURS", "DAYS", "WEEKS", "MONTHS"] | None = None,
        overlap: Literal["skip", "queue", "replace"] | None = None,
        misfire: Literal["one", "all", "none"] | None = None,
        misfire_max: int | None = None,
        misfire_grace: Duration | None = None,
        chunk_rows: int | None = None,
        rate: str | None = None,
        attempts: int | None = None,
        on_finished: str | None = None,
    ) -> Callable[[B], B]:
        """Register the decorated function as the work of the batch ``name``: imports, exports, reconciliations.

        A due batch becomes an execution, cut into chunks. Any number of consumers process them, each chunk once: the
        function takes a :class:`~tickwright.BatchChunk`. A killed process loses only its open chunks. With a time to
        run, the batch is scheduled when it is first registered; without one it is started by hand. An operator's
        settings override the arguments.

        Args:
            name: 1 to 100 letters, digits, ``_ . -``.
            audience: Its members are cut into chunks: ``{"source": …, "table": …, "key": …, "fields": {…}}``.
            plan: Instead of ``audience``: an ``async def`` that takes the :class:`~tickwright.BatchRun` and yields a
                JSON value per chunk. Without both the batch is one chunk.
            action: Target of the records of ``chunk.act``: a destination, or ``python:NAME``, a job per record.
            release: When they are sent: after the whole execution (``finished``), or after their chunk.
            cron: Five fields, such as ``"0 3 * * *"``.
            date_time_execution: The first run; in ``time_zone`` if it has no offset.
            time_zone: Of both; ``UTC`` by default.
            restartable: Whether it repeats at an interval after the first run.
            restartable_unit: Number of units of the interval.
            restartable_unit_type: Unit of the interval.
            overlap: What happens to an occurrence while an execution is open; ``skip`` by default.
            misfire: Which missed occurrences run: the newest one, all, or none.
            misfire_max: Of ``all``: at most this many, the newest, 1 to 1,000.
            misfire_grace: A delay up to this is not a miss; 1 min by default.
            chunk_rows: Members per chunk, 100 to 100,000; 5,000 by default.
            rate: Members of all consumers together, such as ``"1000/s"``.
            attempts: Of one chunk, 1 to 100; 10 by default.
            on_finished: A destination that is notified of the end, finished or failed.

        Raises:
            Rejected: ``invalid_batch`` with every mistake, ``duplicate_batch``. Permanent.
        """
        options = _given(locals())
        options.pop("plan", None)
        cut = plan and self.registrations.lifespan.filled(plan)
        from tickwright.capabilities.batches.executions.work import BatchRegistry

        return self._register(
            BatchRegistry, lambda function: declare_batch(name, self._attempt(function), cut, options)
        )

    def _attempt(self, function: F) -> F:
        return self.registrations.lifespan.attempt(function)

    def _register(self, registry: type[Any], declare: Callable[[F], Any]) -> Callable[[F], F]:
        def register(function: F) -> F:
            self.registrations.of(registry).add(declare(function))
            return function

        return register
