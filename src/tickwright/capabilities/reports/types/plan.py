"""What a report is made of: its listeners, stages and limits, as one value that is frozen with each record.

The value is stored as JSON, as the definition of a report type and again as the ``plan`` of every report, so that
nothing changes under a running report. Every field is written out, so that a default of a later release changes no plan
that is stored; fields that a newer release adds have defaults.
"""

from datetime import timedelta
from typing import Literal

import msgspec

Kind = Literal["function", "sql", "service"]
Format = Literal["csv", "parquet"]
ParameterType = Literal["text", "integer", "number", "boolean", "date", "timestamp", "list"]


class Listener(msgspec.Struct, frozen=True, kw_only=True):
    """Who brings one part.

    Attributes:
        kind: ``function``: registered by a program. ``sql``: a query on a named source. ``service``: somebody who hears
            the exchange and delivers by HTTP.
        source: Of a query; of a function where it names one.
        sql: Of a query; it names its values as ``:name``.
        stage: From 1 on; a stage begins when the one before it is complete.
        required: Without it there is no file; one that is not may be missing, and the manifest says so.
        attempts: 1 to 100.
        timeout_ms: Of one attempt, 10 ms to 6 hours.
        columns: Types by name, where the source does not know them: of a part without rows nothing else is known.
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
    """One condition that may be given. ``default`` stands where it is not; without one it is null if not required."""

    type: ParameterType = "text"
    required: bool = True
    default: str | int | float | bool | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A report type's definition.

    Attributes:
        listeners: 1 to 100, with names of their own.
        merge: One SELECT over the parts by their listeners' names, in DuckDB's SQL.
        feeds: By stage from 2 on: one SELECT over the parts so far that gives one row; its columns are values of the
            queries of that stage.
        parameters: What conditions may be given; ``None`` takes any.
        format: Where the request names none.
        bom: Whether CSV begins with a byte order mark.
        checks: How often the delayed check looks, 1 to 1,000, before it gives up on a stage.
        check_every_s: Between two of them, 1 s to 1 h.
        deadline_s: Of the whole report, 1 s to 7 days.
        keep_s: Of the file, 1 minute to 10 years.
        notify: The receiver that hears of the end, where the request names none.
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
        """How many there are."""
        return max(one.stage for one in self.listeners)

    @property
    def waits(self) -> timedelta:
        """How long a stage waits for a part: until the last delayed check, or the deadline."""
        return timedelta(seconds=min(self.deadline_s, self.checks * self.check_every_s))

    def listener(self, name: str) -> Listener | None:
        """Return the listener of that name."""
        return next((one for one in self.listeners if one.name == name), None)
