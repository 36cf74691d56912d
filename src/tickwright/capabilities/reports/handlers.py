"""The API for programs: listeners turn a request into rows; a report names its listeners and the merging SQL."""

import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from tickwright.domain.errors import Rejected, takes_one
from tickwright.engine.registry import Registry
from tickwright.plugin.lifespan import Lifespan
from tickwright.ports.reports import Source
from tickwright.sources.rows import mappings_of

Row: TypeAlias = Mapping[str, Any]
"""One row of a part: values by column name; all rows have the same names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRequest:
    """One part of one report, as its listener receives it.

    Attributes:
        epoch: Rises when parts were lost and all are fetched again.
        stage: From 1 on.
        conditions: Of the request, checked, with defaults.
        feed: Values from the stages before, for this stage's queries.
        attempt: From 1 on.
        fence: Higher with each attempt; another store can refuse writes of older ones.
        deadline_at: When the report fails, by the database's clock.
        timeout: After which this attempt is cancelled.
        source: The listener's database, or ``None``.
    """

    report_id: int
    epoch: int
    listener: str
    type: str
    stage: int
    conditions: Mapping[str, Any]
    feed: Mapping[str, Any]
    requester: str
    attempt: int
    fence: int
    deadline_at: datetime
    timeout: timedelta
    source: Source | None = field(default=None, repr=False, compare=False)

    async def rows(self, sql: str, /, **values: Any) -> AsyncIterator[Row]:
        """Yield the rows of a query on the listener's source one by one, with Python's values, while the query runs.

        Args:
            sql: Has placeholders ``:name``. Names are looked up in ``values``, then the feed, then the conditions.
            values: Additional values, or replacements.

        Raises:
            Rejected: ``no_source``, ``source_refused``, ``missing_value``. Permanent.
            Unavailable: ``source_unavailable``. Retry; if the listener lets it through, the part is tried again.
        """
        if self.source is None:
            raise Rejected("no_source", f'{self.listener} names no source; @app.listener("{self.listener}", source=…)')
        bound = {**self.conditions, **self.feed, **values}
        async with self.source.query(sql, bound, timeout=self.timeout) as found:
            async for piece in found:
                for row in mappings_of(found.columns, piece):
                    yield row


Function: TypeAlias = Callable[[ReportRequest], AsyncIterator[Row]]


@dataclass(frozen=True, slots=True)
class DeclaredListener:
    """A checked listener of a program; ``None`` is an option that was not given.

    A report that names the listener takes the options that it does not set itself.

    Attributes:
        source: The name of the source for its requests.
        attempts: 1 to 100.
        timeout: Of one attempt, 10 ms to 6 hours.
        columns: DuckDB types by name.
        lifespan: Of its program: middleware.
    """

    name: str
    source: str | None
    attempts: int | None
    timeout: timedelta | None
    columns: Mapping[str, str] | None
    function: Function
    lifespan: Lifespan = field(default_factory=Lifespan)

    @property
    def options(self) -> dict[str, Any]:
        """The given options, with the keys of ``[report_types.NAME.listeners.NAME]``."""
        given = {"source": self.source, "attempts": self.attempts, "timeout": self.timeout, "columns": self.columns}
        return {word: value for word, value in given.items() if value is not None}


class ListenerRegistry(Registry[DeclaredListener]):
    """The listeners of one program by name."""

    kind = "listener"

    def _check(self, declared: DeclaredListener) -> None:
        if not inspect.isasyncgenfunction(declared.function):
            raise Rejected("invalid_listener", f"{declared.name}: write an 'async def' that yields rows")
        if not takes_one(declared.function):
            raise Rejected("invalid_listener", f"{declared.name}: the function takes the request, and nothing else")


@dataclass(frozen=True, slots=True)
class DeclaredReport:
    """A report type of a program; ``table`` has the keys of ``[report_types.NAME]``."""

    name: str
    table: Mapping[str, Any]


class ReportRegistry(Registry[DeclaredReport]):
    """The report types of one program by name."""

    kind = "report"


def with_declared(table: Mapping[str, Any], listeners: ListenerRegistry) -> dict[str, Any]:
    """Return a report type's table, with the program's options for its listeners filled in.

    Options of the table have priority. Listeners that are queries or services take none.
    """
    made = dict(table)
    if "listeners" in table:
        made["listeners"] = _filled(table["listeners"], listeners)
    if "stages" in table:
        made["stages"] = [_filled(group, listeners) for group in table["stages"]]
    return made


def _filled(group: Any, listeners: ListenerRegistry) -> dict[str, Any]:
    tables = group if isinstance(group, Mapping) else {name: {} for name in group}
    made = {}
    for name, options in tables.items():
        found = listeners.get(name)
        ours = found is not None and isinstance(options, Mapping) and not {"sql", "service"} & options.keys()
        made[name] = {**found.options, **options} if found is not None and ours else options
    return made
