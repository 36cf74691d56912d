"""What a program brings: handlers, partners, modules, listeners and reports, each by a decorator of the app object."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from tickwright.app.batching import BatchDeclarations
from tickwright.app.declare import (
    Duration,
    declare_job,
    declare_listener,
    declare_module,
    declare_partner,
    declare_report,
)
from tickwright.capabilities.fanout.handlers import Handler as ModuleHandler
from tickwright.capabilities.polling.consumer.courier import Courier
from tickwright.capabilities.reports.handlers import Function as ListenerFunction
from tickwright.domain.retries import RetryPolicy

F = TypeVar("F", bound=Callable[..., Any])
P = TypeVar("P", bound=Courier)
M = TypeVar("M", bound=ModuleHandler)
L = TypeVar("L", bound=ListenerFunction)
R = TypeVar("R", bound=Callable[[], str | None])


class Declarations(BatchDeclarations):
    """The decorators of :class:`~tickwright.Tickwright`; they only fill ``brought``, and may be used at import time."""

    def job(
        self,
        name: str,
        *,
        timeout: Duration | None = None,
        max_attempts: int | None = None,
        retry: RetryPolicy | Mapping[str, Any] | None = None,
        concurrency: int | None = None,
        rate: str | None = None,
        keep_history: bool = True,
    ) -> Callable[[F], F]:
        """Register the decorated function as the handler of one-shot jobs called ``name``.

        The function takes the :class:`~tickwright.Job` and then arguments that are read from the payload by name
        and checked against their annotations. It may be ``async`` or not; one that is not runs in a thread.

        Args:
            name: 1 to 50 letters, digits, ``_ . : -``.
            timeout: Of one attempt, 1 ms to 1 day; 30 s by default.
            max_attempts: 1 to 1,000; 3 by default.
            retry: ``{"base": "1s", "factor": 2, "cap": "1h"}`` or a :class:`~tickwright.RetryPolicy`.
            concurrency: Attempts at once in all workers together; no limit by default.
            rate: Starts in all workers together, such as ``"50/s"``.
            keep_history: Whether completed jobs stay readable for the retention time.

        Raises:
            Rejected: ``invalid_task_type``, ``invalid_handler``, ``duplicate_handler``. Permanent.
        """
        options = {
            "timeout": timeout,
            "max_attempts": max_attempts,
            "retry": retry,
            "concurrency": concurrency,
            "rate": rate,
            "keep_history": keep_history,
        }

        def register(function: F) -> F:
            self.brought.handlers.add(declare_job(name, function, options))
            return function

        return register

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
        """Register the decorated function as the one who asks the partner ``name`` for what trackers poll.

        The function takes a :class:`~tickwright.Poll` and returns an :class:`~tickwright.Answer`;
        :class:`~tickwright.Throttled` when the partner asks for silence. What it raises is a failed call, which
        changes nothing of the tracker and is tried again. Limits hold for all processes together; where an operator
        has set the partner up, his count and not these.

        Args:
            name: 1 to 50 letters, digits, ``_ . -``: the trackers' ``partner``.
            rate: Calls, such as ``"50/s"``, spread evenly.
            per_minute: Calls in any minute.
            per_day: Calls in any 24 hours.
            concurrency: Calls at once.
            timeout: Of one call, 10 ms to 5 min; 10 s by default.
            quiet: When nobody calls: ``"22:00-06:00 Europe/Berlin"``, or several.
            breaker: ``{"failures": 10, "share": 0.5, "window": "10s", "open": "5s", "open_max": "5m"}``.
            terminal_statuses: After which a tracker ends; ``["Delivered"]`` by default.

        Raises:
            Rejected: ``invalid_partner`` with every mistake, ``duplicate_partner``. Permanent.
        """
        options = {
            "rate": rate,
            "per_minute": per_minute,
            "per_day": per_day,
            "concurrency": concurrency,
            "timeout": timeout,
            "quiet": quiet,
            "breaker": breaker,
            "terminal_statuses": terminal_statuses,
        }

        def register(function: P) -> P:
            self.brought.couriers.add(declare_partner(name, function, options))
            return function

        return register

    def module(
        self, name: str, *, every: Duration | None = None, timeout: Duration | None = None, gated: bool | None = None
    ) -> Callable[[M], M]:
        """Register the decorated function as the one who polls entities for the module ``name``.

        The function takes an :class:`~tickwright.EntityTask` and runs to its end once for each entity and window. What
        it raises is a failed run, which is tried again while the window lasts; when it returns a
        :class:`~tickwright.Throttled`, it is called again when the other side allows. Anything else that it returns is
        ignored. What is given here counts where nobody has set the module up by hand.

        Args:
            name: 1 to 50 capitals, digits or ``_``: in the entities' ``polling_enabled_modules``.
            every: Length of a window, whole seconds from 1 s to 1 day; 15 min where nothing else is known.
            timeout: Of one run, 10 ms to 25 min; 60 s where nothing else is known.
            gated: Whether it is polled only where ``ENABLE_<NAME>_POLLING=true``.

        Raises:
            Rejected: ``invalid_module`` with every mistake, ``duplicate_module``. Permanent.
        """
        options = {"every": every, "timeout": timeout, "gated": gated}

        def register(function: M) -> M:
            self.brought.modules.add(declare_module(name, function, options))
            return function

        return register

    def listener(
        self,
        name: str,
        *,
        source: str | None = None,
        attempts: int | None = None,
        timeout: Duration | None = None,
        columns: Mapping[str, str] | None = None,
    ) -> Callable[[L], L]:
        """Register the decorated function as the one who brings the part ``name`` of every report that expects it.

        The function is an ``async def`` that takes a :class:`~tickwright.ReportRequest` and yields rows: mappings, each
        with the names of the first one. What it raises is a failed attempt, which is made again. What is given here
        counts for reports that this program declares, where they say nothing else.

        Args:
            name: 1 to 50 letters, digits or ``_``, a letter first: the part's table in the SQL that merges.
            source: The one of ``[sources.NAME]`` that ``request.rows`` asks.
            attempts: 1 to 100; 3 by default.
            timeout: Of one attempt, 10 ms to 6 hours; 5 min by default.
            columns: Types by name, in DuckDB's words, where rows do not tell them: ``{"id": "BIGINT"}``.

        Raises:
            Rejected: ``invalid_listener`` with every mistake, ``duplicate_listener``. Permanent.
        """
        options = {"source": source, "attempts": attempts, "timeout": timeout, "columns": columns}

        def register(function: L) -> L:
            self.brought.listeners.add(declare_listener(name, function, options))
            return function

        return register

    def report(
        self,
        name: str,
        *,
        listeners: Sequence[str] | Mapping[str, Mapping[str, Any]] | None = None,
        stages: Sequence[Sequence[str] | Mapping[str, Mapping[str, Any]]] | None = None,
        feeds: Mapping[int, str] | None = None,
        parameters: Mapping[str, str | Mapping[str, Any]] | None = None,
        format: Literal["csv", "parquet"] | None = None,  # noqa: A002  the word of the file, of REST and of this
        bom: bool | None = None,
        checks: int | None = None,
        check_every: Duration | None = None,
        deadline: Duration | None = None,
        keep: Duration | None = None,
        notify: str | None = None,
    ) -> Callable[[R], R]:
        """Register a report type; the decorated function takes nothing and returns the SQL that merges the parts.

        It is called once, here. With one listener it may return ``None``: the file has that part's rows. What is given
        counts where nobody has set the type up by hand.

        Args:
            name: 1 to 50 letters, digits, ``_ . -``.
            listeners: Their names; or their tables by name, in the words of ``[report_types.NAME.listeners.NAME]``.
            stages: Instead of ``listeners``: a list of them per stage; a stage begins when the one before is complete.
            feeds: By stage from 2 on: one query over the parts so far, whose one row that stage's queries may use.
            parameters: The conditions that may be given: ``{"country": "text"}``; any by default.
            format: Where a request names none; ``csv`` by default.
            bom: Whether CSV begins with a byte order mark.
            checks: How often the delayed check looks before it gives up on a stage, 1 to 1,000; 6 by default.
            check_every: Between two of them, 1 s to 1 h; 1 min by default.
            deadline: Of the whole report, 1 s to 7 days; 30 min by default.
            keep: Of the file, 1 min to 10 years; 7 days by default.
            notify: The receiver that hears of the end, where a request names none.

        Raises:
            Rejected: ``invalid_report_type`` with every mistake, ``duplicate_report``. Permanent.
        """
        options = {
            "listeners": listeners,
            "stages": stages,
            "feeds": feeds,
            "parameters": parameters,
            "format": format,
            "bom": bom,
            "checks": checks,
            "check_every": check_every,
            "deadline": deadline,
            "keep": keep,
            "notify": notify,
        }

        def register(function: R) -> R:
            self.brought.reports.add(declare_report(name, function, options))
            return function

        return register
