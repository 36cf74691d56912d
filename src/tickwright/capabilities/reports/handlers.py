"""How a user plugs in: a listener makes rows of a request; a report names its listeners and the SQL that merges."""

import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from tickwright.domain.errors import Rejected
from tickwright.domain.functions import takes_one
from tickwright.ports.reports import Source
from tickwright.sources.rows import mappings_of

Row: TypeAlias = Mapping[str, Any]
"""One row of a part: values by their columns' names, every row with the same ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRequest:
    """One part of one report, as its listener is asked for it.

    Attributes:
        report_id: Of the record.
        epoch: Rises when parts were lost and all are asked again.
        listener: Whose part it is.
        type: The report type.
        stage: From 1 on.
        conditions: As they were given, checked, with their defaults.
        feed: What the stages before gave to this one's queries.
        requester: For whom.
        attempt: From 1 on.
        fence: Higher with each attempt; whoever keeps something elsewhere may refuse older ones.
        deadline_at: When the report fails, by the database's clock.
        timeout: After which this attempt is cancelled.
        source: The database that the listener names; none where it names none.
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
        """Give the rows of a query on the listener's source, one by one, while it runs, as Python's values.

        Args:
            sql: Names its values as ``:name``: the conditions and the feed, and before these ``values``.
            values: More of them, or other ones.

        Raises:
            Rejected: ``no_source``, ``source_refused``, ``missing_value``. Permanent.
            Unavailable: ``source_unavailable``. Retry; the part is tried again when the listener lets it through.
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
    """A listener that a program brings, checked; ``None`` is what was not said.

    A report that names it takes these where it says nothing else.

    Attributes:
        source: The name of the one that its requests carry.
        attempts: 1 to 100.
        timeout: Of one attempt, 10 ms to 6 hours.
        columns: Types by name, in DuckDB's words.
    """

    name: str
    source: str | None
    attempts: int | None
    timeout: timedelta | None
    columns: Mapping[str, str] | None
    function: Function

    @property
    def words(self) -> dict[str, Any]:
        """What was said, in the words of ``[report_types.NAME.listeners.NAME]``."""
        said = {"source": self.source, "attempts": self.attempts, "timeout": self.timeout, "columns": self.columns}
        return {word: value for word, value in said.items() if value is not None}


class ListenerRegistry:
    """The listeners of one program, by their names."""

    def __init__(self) -> None:
        self._listeners: dict[str, DeclaredListener] = {}

    def add(self, listener: DeclaredListener) -> None:
        """Register ``listener``.

        Raises:
            Rejected: ``duplicate_listener``, ``invalid_listener`` (the function gives no rows, or takes something else
                than one request). Permanent.
        """
        name, function = listener.name, listener.function
        if name in self._listeners:
            raise Rejected("duplicate_listener", f"two functions for listener {name!r}")
        if not inspect.isasyncgenfunction(function):
            raise Rejected("invalid_listener", f"{name}: write an 'async def' that yields rows")
        if not takes_one(function):
            raise Rejected("invalid_listener", f"{name}: the function takes the request, and nothing else")
        self._listeners[name] = listener

    def get(self, name: str) -> DeclaredListener | None:
        """Return the listener of that name."""
        return self._listeners.get(name)

    def all(self) -> list[DeclaredListener]:
        """Return every listener that the program brings."""
        return list(self._listeners.values())


@dataclass(frozen=True, slots=True)
class DeclaredReport:
    """A report type that a program brings; ``table`` has the words of ``[report_types.NAME]``."""

    name: str
    table: Mapping[str, Any]


class ReportRegistry:
    """The report types of one program, by their names."""

    def __init__(self) -> None:
        self._reports: dict[str, DeclaredReport] = {}

    def add(self, report: DeclaredReport) -> None:
        """Register ``report``.

        Raises:
            Rejected: ``duplicate_report``. Permanent.
        """
        if report.name in self._reports:
            raise Rejected("duplicate_report", f"two functions for report {report.name!r}")
        self._reports[report.name] = report

    def all(self) -> list[DeclaredReport]:
        """Return every report type that the program brings."""
        return list(self._reports.values())


def with_declared(table: Mapping[str, Any], listeners: ListenerRegistry) -> dict[str, Any]:
    """Return the words of a report type, with what the program says of the listeners that it names.

    What the table says itself comes first; a query and a service are nobody's function.
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
    for name, words in tables.items():
        found = listeners.get(name)
        ours = found is not None and isinstance(words, Mapping) and not {"sql", "service"} & words.keys()
        made[name] = {**found.words, **words} if found is not None and ours else words
    return made
