"""The plan of a report: its listeners, stages and limits, as one value that is frozen with each record.

It is stored as JSON, as the definition of a report type and as the ``plan`` of every report, so that nothing changes
under a running report. Every field is stored, so that a later default changes no stored plan. Fields that a newer
release adds have defaults.
"""

from datetime import timedelta
from typing import Literal

import msgspec

Kind = Literal["function", "sql", "service"]
Format = Literal["csv", "parquet"]
ParameterType = Literal["text", "integer", "number", "boolean", "date", "timestamp", "list"]


class Listener(msgspec.Struct, frozen=True, kw_only=True):
    """The listener of one part.

    Attributes:
        kind: ``function``: registered by a program. ``sql``: a query on a named source. ``service``: an external
            program that reads the announcements and delivers by HTTP.
        source: Of a query; of a function if it names one.
        sql: Of a query, with placeholders ``:name``.
        stage: From 1 on; a stage begins when the one before it is complete.
        required: Without it there is no file. An optional part may be missing; then the manifest names it.
        attempts: 1 to 100.
        timeout_ms: Of one attempt, 10 ms to 6 hours.
        columns: Types by name that the source does not know; the only types of a part without rows.
    """

    name: str
    kind: Kind
    source: str | None = None
    sql: str | None = None
    stage: int = 1
    required: bool = True
    attempts: int = 3
    timeout_ms: int = 300_000
    columns: dict[str, str] = {}

    @property
    def timeout(self) -> timedelta:
        """Of one attempt."""
        return timedelta(milliseconds=self.timeout_ms)


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """A condition that may be given. If it is optional and not given, it is ``default``, or null."""

    type: ParameterType = "text"
    required: bool = True
    default: str | int | float | bool | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A report type's definition.

    Attributes:
        listeners: 1 to 100, with distinct names.
        merge: One SELECT over the parts by their listeners' names, in DuckDB's SQL.
        feeds: By stage from 2 on: one SELECT over the parts so far with one row; its columns are values for the queries
            of that stage.
        parameters: The allowed conditions; ``None`` allows any.
        format: Used if the request names none.
        bom: Whether CSV begins with a byte order mark.
        checks: Delayed checks before the report stops waiting for a stage, 1 to 1,000.
        check_every_s: Between two checks, 1 s to 1 h.
        deadline_s: Of the whole report, 1 s to 7 days.
        keep_s: Of the file, 1 minute to 10 years.
        notify: The receiver to notify of the end, if the request names none.
    """

    listeners: tuple[Listener, ...]
    merge: str
    feeds: dict[int, str] = {}
    parameters: dict[str, Parameter] | None = None
    format: Format = "csv"
    bom: bool = False
    checks: int = 6
    check_every_s: int = 60
    deadline_s: int = 1800
    keep_s: int = 604_800
    notify: str | None = None

    @property
    def stages(self) -> int:
        """The number of stages."""
        return max(listener.stage for listener in self.listeners)

    @property
    def waits(self) -> timedelta:
        """How long a stage waits for a part: until the last delayed check, or the deadline."""
        return timedelta(seconds=min(self.deadline_s, self.checks * self.check_every_s))

    def listener(self, name: str) -> Listener:
        """Return the listener of a part; the parts of a record are made from its plan."""
        return next(listener for listener in self.listeners if listener.name == name)
