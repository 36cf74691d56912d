"""The schema of a report type: read from JSON, TOML or keyword arguments, with the same keys and the same remedies.

::

    [report_types.withdrawals]
    merge = "SELECT …"             # over the parts, by their listeners' names; optional with one listener
    format = "csv"                 # or "parquet"; used if the request names none
    bom = false                    # CSV begins with a byte order mark
    checks = 6                     # delayed checks before the report stops waiting for a stage
    check_every = "1m"
    deadline = "30m"               # of the whole report
    keep = "7d"                    # the file
    notify = "receiver"            # notified of the end, if the request names no receiver

    [report_types.withdrawals.parameters]     # the allowed conditions; without this table: any
    country = "text"
    since = { type = "date", required = false, default = "2026-01-01" }

    [report_types.withdrawals.feeds]          # by stage: one row, whose columns are values of that stage's queries
    2 = "SELECT list(user_id) AS user_ids FROM users"

    [report_types.withdrawals.listeners.users]
    source = "plt_user"
    sql = "SELECT … WHERE country = :country" # without: a function; `service = true`: a program delivers by HTTP
    stage = 1
    required = true
    attempts = 3
    timeout = "5m"                 # of one attempt; at most checks x check_every, and the deadline
    columns = { id = "BIGINT" }    # types that the source does not know

For listeners with defaults alone, write ``listeners = ["users", "withdrawals"]``, or
``stages = [["users"], ["withdrawals"]]``. Every mistake is reported at once; :func:`check_whole` checks what needs the
whole definition.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, get_args

import msgspec

from tickwright.capabilities.reports.parts.values import COLUMNS_MAX, check_type
from tickwright.capabilities.reports.plan import Format, Listener, Parameter, ParameterType, Plan
from tickwright.capabilities.reports.requests.conditions import read_condition
from tickwright.domain.errors import Rejected
from tickwright.domain.field_readers import Reader, bad, flag, lasting, one_of, read_fields, whole
from tickwright.domain.time_texts import format_duration
from tickwright.ports.reports import RESERVED_LISTENERS

# ---------------------------------------------------------------------- names

TYPE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,49}")
SOURCE_NAME = TYPE_NAME
PARAMETER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,49}")
_LISTENER_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,49}")
RESERVED_FIELDS = frozenset(name.lower() for name in RESERVED_LISTENERS)
"""Fields of the report itself in the Redis hash, and the queue of dead letters."""
_WORDS = (
    "all analyse analyze and any array as asc asymmetric both case cast check collate column constraint create default "
    "deferrable desc describe distinct do else end except false fetch for foreign from group having in initially "
    "intersect into lambda lateral leading limit not null offset on only or order pivot pivot_longer pivot_wider "
    "placing primary qualify references returning select show some summarize symmetric table then to trailing true "
    "union unique unpivot using variadic when where window with"
)
RESERVED = frozenset(_WORDS.split())
"""Keywords of DuckDB: a table of such a name would have to be quoted everywhere."""


def listener_problem(name: str) -> str | None:
    """Return what is wrong with a listener's name, or ``None``."""
    if not _LISTENER_NAME.fullmatch(name):
        return "a listener's name has 1 to 50 letters, digits or '_', a letter first: it is a table of the merging SQL"
    if name.lower() in RESERVED:
        return f"{name} is a word of SQL; call the listener something else, such as {name[:45]}_rows"
    if name.lower() in RESERVED_FIELDS:
        return f"{name} is a field or a queue of our own; call the listener something else, such as {name[:45]}_rows"
    return None


# ---------------------------------------------------------------------- fields

STAGES_MAX = 10
SQL_BYTES_MAX = 65_536
COLUMN_CHARS_MAX = 200
NAMES_MAX = 1_000
_SECOND = timedelta(seconds=1)


def definition_of(plan: Plan) -> dict[str, Any]:
    """Return a plan with the keys above; reading it gives the same plan again."""
    table: dict[str, Any] = {"merge": plan.merge, "format": plan.format, "bom": plan.bom, "checks": plan.checks}
    for word, seconds in (("check_every", plan.check_every_s), ("deadline", plan.deadline_s), ("keep", plan.keep_s)):
        table[word] = format_duration(seconds * _SECOND)
    if plan.notify is not None:
        table["notify"] = plan.notify
    if plan.parameters is not None:
        table["parameters"] = {name: _parameter_table(value) for name, value in plan.parameters.items()}
    if plan.feeds:
        table["feeds"] = {str(stage): sql for stage, sql in sorted(plan.feeds.items())}
    table["listeners"] = {listener.name: _listener_table(listener) for listener in plan.listeners}
    return table


def _parameter_table(parameter: Parameter) -> dict[str, Any]:
    table = {"type": parameter.type, "required": parameter.required}
    return table if parameter.default is None else {**table, "default": parameter.default}


def _listener_table(listener: Listener) -> dict[str, Any]:
    given = {"source": listener.source, "sql": listener.sql, "service": listener.kind == "service" or None}
    table: dict[str, Any] = {word: value for word, value in given.items() if value is not None}
    table |= {"stage": listener.stage, "required": listener.required, "attempts": listener.attempts}
    table |= {"timeout": format_duration(listener.timeout)}
    return {**table, "columns": dict(listener.columns)} if listener.columns else table


def _sql(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise bad("write one query in SQL")
    if len(value.encode("utf-8", "surrogatepass")) > SQL_BYTES_MAX:
        raise bad(f"at most {SQL_BYTES_MAX} bytes")
    return value


def _units(unit: timedelta, plural: str, low: timedelta, high: timedelta) -> Reader:
    """Return a reader of durations as a whole number of units."""
    read = lasting(low, high)

    def units(value: Any) -> int:
        duration: timedelta = read(value)
        if duration % unit:
            raise bad(f"whole {plural}")
        return duration // unit

    return units


_seconds = partial(_units, _SECOND, "seconds")


def _name(value: Any) -> str:
    if not isinstance(value, str) or not SOURCE_NAME.fullmatch(value):
        raise bad("a name has 1 to 50 letters, digits, '_', '.' or '-', a letter or digit first")
    return value


def _columns(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or len(value) > COLUMNS_MAX:
        raise bad(f'write at most {COLUMNS_MAX} types by name, such as {{ id = "BIGINT" }}')
    for name, kind in value.items():
        if not isinstance(name, str) or not 0 < len(name) <= COLUMN_CHARS_MAX or "\0" in name:
            raise bad(f"a column's name has 1 to {COLUMN_CHARS_MAX} characters")
        if not isinstance(kind, str):
            raise bad(f'{name}: write a type in DuckDB\'s words, such as "BIGINT", "DECIMAL(12,2)" or "TIMESTAMPTZ"')
    return {name: check_type(kind) for name, kind in value.items()}


def _feeds(value: Any) -> dict[int, str]:
    if not isinstance(value, Mapping):
        raise bad('write one query by stage, such as { 2 = "…" }')
    feeds = {}
    for stage, sql in value.items():
        number = int(stage) if isinstance(stage, str) and stage.isdecimal() and stage.isascii() else stage
        if isinstance(number, bool) or not isinstance(number, int) or not 2 <= number <= STAGES_MAX:
            raise bad(f"{stage}: a stage from 2 to {STAGES_MAX}: the first one is fed by the conditions")
        if number in feeds:
            raise bad(f"{stage}: duplicate")
        feeds[number] = _sql(sql)
    return feeds


def _listener_names(value: Any) -> Any:
    if not isinstance(value, Mapping | list | tuple) or len(value) > NAMES_MAX:
        raise bad("write a table for each, [report_types.NAME.listeners.LISTENER], or a list of names")
    if any(not isinstance(name, str) for name in value):
        raise bad("a name is a text")
    return value


def _stages(value: Any) -> Any:
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= STAGES_MAX:
        raise bad(f'write 1 to {STAGES_MAX} lists of names, such as [["users"], ["withdrawals"]]')
    empty = [str(stage) for stage, group in enumerate(value, 1) if not group]
    if empty:
        raise bad(f"stage {empty[0]} has no listeners")
    return [_listener_names(group) for group in value]


def _table(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise bad('write a table, such as { country = "text" }')
    return value


def _default(value: Any) -> Any:
    """Return TOML's dates and times as texts, as in other formats."""
    return value.isoformat() if isinstance(value, date | datetime) else value


FIELDS = {"check_every": "check_every_s", "deadline": "deadline_s", "keep": "keep_s", "timeout": "timeout_ms"}
"""Fields of a plan with the unit in their name."""
TYPE_FIELDS: Mapping[str, Reader] = {
    "merge": _sql,
    "format": one_of(*get_args(Format)),
    "bom": flag,
    "checks": whole(1, 1_000),
    "check_every": _seconds(_SECOND, timedelta(hours=1)),
    "deadline": _seconds(_SECOND, timedelta(days=7)),
    "keep": _seconds(timedelta(minutes=1), timedelta(days=3_650)),
    "notify": _name,
    "parameters": _table,
    "feeds": _feeds,
    "listeners": _listener_names,
    "stages": _stages,
}
LISTENER_FIELDS: Mapping[str, Reader] = {
    "source": _name,
    "sql": _sql,
    "service": flag,
    "stage": whole(1, STAGES_MAX),
    "required": flag,
    "attempts": whole(1, 100),
    "timeout": _units(timedelta(milliseconds=1), "milliseconds", timedelta(milliseconds=10), timedelta(hours=6)),
    "columns": _columns,
}
PARAMETER_FIELDS: Mapping[str, Reader] = {
    "type": one_of(*get_args(ParameterType)),
    "required": flag,
    "default": _default,
}


# ---------------------------------------------------------------------- checks of the whole definition
class SqlChecks(NamedTuple):
    """The checks of SQL texts.

    Attributes:
        select: Raises ``Rejected`` unless a text is one SELECT over the tables with the given names.
        placeholders: Returns the names of a query's values; raises ``Rejected`` unless its text is one query.
        columns: Returns the names of a SELECT's columns; ``None`` if only running it would show them.
    """

    select: Callable[[str, Sequence[str]], None]
    placeholders: Callable[[str], frozenset[str]]
    columns: Callable[[str], frozenset[str] | None]


def check_whole(plan: Plan, problems: list[str], *, where: str, checks: SqlChecks | None) -> None:
    """Append the mistakes of ``plan`` to ``problems``, each with its remedy."""
    before = len(problems)
    _check_names(plan.listeners, problems, where=where)
    _check_stages(plan, problems, where=where)
    _check_timeouts(plan, problems, where=where)
    if checks is None or len(problems) > before:
        return
    _check_select(plan, problems, checks, where=where)
    if len(problems) == before:
        _check_feeds(plan, problems, checks, where=where)
        _check_values(plan, problems, checks, where=where)


def _check_names(listeners: Iterable[Listener], problems: list[str], *, where: str) -> None:
    seen: dict[str, str] = {}
    for listener in listeners:
        first = seen.setdefault(listener.name.lower(), listener.name)
        if first != listener.name:
            problems.append(f"{where}.listeners.{listener.name}: for SQL this is the same name as {first}")
    names = [listener.name for listener in listeners]
    problems += [f"{where}.listeners.{name}: duplicate" for name in sorted({n for n in names if names.count(n) > 1})]


def _check_stages(plan: Plan, problems: list[str], *, where: str) -> None:
    stages = {listener.stage for listener in plan.listeners}
    problems += [
        f"{where}: stage {stage} has no listeners; stages have no gaps"
        for stage in range(1, plan.stages)
        if stage not in stages
    ]
    problems += [
        f"{where}.feeds.{stage}: there is no stage {stage}; the last one is {plan.stages}"
        for stage in plan.feeds
        if stage > plan.stages
    ]


def _check_timeouts(plan: Plan, problems: list[str], *, where: str) -> None:
    """Refuse a timeout longer than the report waits: the part would be dropped while its attempt is still in time."""
    waits, every = format_duration(plan.waits), format_duration(timedelta(seconds=plan.check_every_s))
    problems += [
        f"{where}.listeners.{listener.name}.timeout: {format_duration(listener.timeout)}, and the report waits for "
        f"{waits} ({plan.checks} checks of {every}, deadline {format_duration(timedelta(seconds=plan.deadline_s))}); "
        "shorten it, or raise those"
        for listener in plan.listeners
        if listener.timeout > plan.waits
    ]


def _check_select(plan: Plan, problems: list[str], checks: SqlChecks, *, where: str) -> None:
    texts = [("merge", plan.merge, plan.stages + 1)]
    texts += [(f"feeds.{stage}", sql, stage) for stage, sql in sorted(plan.feeds.items())]
    for key, sql, stage in texts:
        try:
            checks.select(sql, [listener.name for listener in plan.listeners if listener.stage < stage])
        except Rejected as error:
            problems.append(f"{where}.{key}: {error.message}")


def _check_values(plan: Plan, problems: list[str], checks: SqlChecks, *, where: str) -> None:
    """Check that each query's values are conditions, or columns of a feed of its stage or an earlier one."""
    conditions: set[str] | None = None if plan.parameters is None else set(plan.parameters)
    fed = {stage: checks.columns(sql) for stage, sql in plan.feeds.items()}
    for listener in sorted(plan.listeners, key=lambda listener: listener.stage):
        if listener.sql is None:
            continue
        given = _with_feeds(conditions, fed, listener.stage)
        try:
            used = checks.placeholders(listener.sql)
        except Rejected as error:
            problems.append(f"{where}.listeners.{listener.name}.sql: {error.message}")
            continue
        problems += [
            f"{where}.listeners.{listener.name}.sql: there is no value :{name}; there are {_listed(given)}"
            for name in sorted(used - given if given is not None else ())
        ]


def _check_feeds(plan: Plan, problems: list[str], checks: SqlChecks, *, where: str) -> None:
    """Refuse a feed's column that is a parameter too: a query would get another value than was requested."""
    for stage, sql in sorted(plan.feeds.items()):
        twice = (checks.columns(sql) or frozenset()) & (plan.parameters or {}).keys()
        problems += [
            f"{where}.feeds.{stage}: its column {name} is a parameter, too; call one of them otherwise"
            for name in sorted(twice)
        ]


def _with_feeds(values: set[str] | None, fed: Mapping[int, frozenset[str] | None], stage: int) -> set[str] | None:
    """Return the values that certainly exist in a stage; ``None`` if that is unknown."""
    for columns in (columns for first, columns in fed.items() if first <= stage):
        values = None if values is None or columns is None else values | columns
    return values


def _listed(names: set[str] | None) -> str:
    return ", ".join(f":{name}" for name in sorted(names or ()))[:500] or "no values: add it to the parameters"


# ---------------------------------------------------------------------- reading


LISTENERS_MAX = 100
PARAMETERS_MAX = 100
PROBLEMS_MAX = 100
DEFINITION_BYTES_MAX = 262_144


def read_definition(
    name: str, table: Any, problems: list[str], *, where: str, checks: SqlChecks | None = None
) -> Plan | None:
    """Return the plan in ``table``, or ``None`` with every mistake and its remedy in ``problems``.

    ``where`` begins the line of each mistake. Without ``checks`` SQL texts are accepted unchecked.
    """
    before = len(problems)
    if not TYPE_NAME.fullmatch(name):
        problems.append(f"{where}: a name has 1 to 50 letters, digits, '_', '.' or '-', a letter or digit first")
    if not isinstance(table, Mapping):
        problems.append(f"{where}: write a table, [report_types.NAME]")
        return None
    values = read_fields(table, TYPE_FIELDS, problems, where=where)
    untimed = _untimed(values)
    listeners = _listeners(values, set(table), problems, where=where)
    parameters = _parameters(values.pop("parameters", None), problems, where=f"{where}.parameters")
    if "merge" not in table and len(listeners) == 1:
        values["merge"] = f"FROM {listeners[0].name}"
    elif "merge" not in table and len(listeners) > 1:
        problems.append(f"{where}.merge: missing; write one query of the parts, tables with their listeners' names")
    if len(problems) > before:
        return None
    plan = _with_timeouts(Plan(listeners=listeners, parameters=parameters, **_as_fields(values)), untimed)
    check_whole(plan, problems, where=where, checks=checks)
    if len(msgspec.json.encode(plan)) > DEFINITION_BYTES_MAX:
        problems.append(f"{where}: the whole definition has at most {DEFINITION_BYTES_MAX} bytes")
    return None if len(problems) > before else plan


def check_definition(name: str, table: Any, *, where: str = "report type", checks: SqlChecks | None = None) -> Plan:
    """Return the plan in ``table``.

    Raises:
        Rejected: ``invalid_report_type`` with every mistake, 100 at most. Permanent.
    """
    problems: list[str] = []
    plan = read_definition(name, table, problems, where=where, checks=checks)
    if plan is None:
        problems = problems[:PROBLEMS_MAX]
        raise Rejected("invalid_report_type", "\n".join(problems), problems=problems)
    return plan


def read_listener(name: str, table: Any, problems: list[str], *, where: str, stage: int = 1) -> Listener | None:
    """Return a listener, or ``None`` with every mistake in ``problems``."""
    before = len(problems)
    if wrong := listener_problem(name):
        problems.append(f"{where}: {wrong}")
    if not isinstance(table, Mapping):
        problems.append(f"{where}: write a table, such as {{ source = …, sql = … }}; or {{}} for a function")
        return None
    values = {"stage": stage, **_as_fields(read_fields(table, LISTENER_FIELDS, problems, where=where))}
    service = values.pop("service", False)
    if service and {"sql", "source"} & table.keys():
        problems.append(f"{where}.service: a service asks a source of its own; leave out sql and source")
    if not service and "sql" in table and "source" not in table:
        problems.append(f"{where}.source: missing; the query is asked of a source, [sources.NAME]")
    if len(problems) > before:
        return None
    return Listener(name=name, kind="service" if service else "sql" if "sql" in values else "function", **values)


def _as_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    return {FIELDS.get(word, word): value for word, value in values.items()}


def _listeners(values: dict[str, Any], keys: set[Any], problems: list[str], *, where: str) -> tuple[Listener, ...]:
    before = len(problems)
    named, staged = values.pop("listeners", None), values.pop("stages", None)
    if named is not None and staged is not None:
        problems.append(f"{where}.stages: listeners or stages, one of them")
    elif not {"listeners", "stages"} & keys:
        problems.append(f"{where}.listeners: missing; who brings the parts, [{where}.listeners.NAME]")
    found = []
    for stage, group in enumerate([named] if staged is None else staged, 1):
        for name, table in _tables(group):
            found.append(read_listener(name, table, problems, where=f"{where}.listeners.{name}", stage=stage))
            if staged is not None and isinstance(table, Mapping) and "stage" in table:
                problems.append(f"{where}.listeners.{name}.stage: stages say it already; leave it out")
    if not found and len(problems) == before:
        problems.append(f"{where}.listeners: give at least one")
    if len(found) > LISTENERS_MAX:
        problems.append(f"{where}.listeners: at most {LISTENERS_MAX}")
    return tuple(listener for listener in found if listener is not None)


def _untimed(values: Mapping[str, Any]) -> set[str]:
    """Return the listeners without a timeout."""
    groups = [values.get("listeners"), *(values.get("stages") or ())]
    return {
        name
        for group in groups
        for name, table in _tables(group)
        if not isinstance(table, Mapping) or "timeout" not in table
    }


def _with_timeouts(plan: Plan, untimed: set[str]) -> Plan:
    """Return the plan with missing timeouts: five minutes, or as long as the report waits for a part."""
    waits_ms = int(plan.waits / timedelta(milliseconds=1))
    made = (
        msgspec.structs.replace(listener, timeout_ms=min(listener.timeout_ms, waits_ms))
        if listener.name in untimed
        else listener
        for listener in plan.listeners
    )
    return msgspec.structs.replace(plan, listeners=tuple(made))


def _tables(group: Any) -> Iterable[tuple[str, Any]]:
    if group is None:
        return ()
    return group.items() if isinstance(group, Mapping) else ((name, {}) for name in group)


def _parameters(tables: Any, problems: list[str], *, where: str) -> dict[str, Parameter] | None:
    if tables is None:
        return None
    found: dict[str, Parameter] = {}
    for name, table in tables.items():
        if not isinstance(name, str) or not PARAMETER_NAME.fullmatch(name):
            problems.append(f"{where}.{name}: a name has 1 to 50 letters, digits or '_', no digit first")
            continue
        options = {"type": table} if isinstance(table, str) else table
        if isinstance(options, Mapping):
            found[name] = _parameter(options, problems, where=f"{where}.{name}")
        else:
            problems.append(f'{where}.{name}: write its type, such as "text", or {{ type = "text", required = false }}')
    if len(tables) > PARAMETERS_MAX:
        problems.append(f"{where}: at most {PARAMETERS_MAX}")
    return found


def _parameter(table: Mapping[str, Any], problems: list[str], *, where: str) -> Parameter:
    before = len(problems)
    values = read_fields(table, PARAMETER_FIELDS, problems, where=where)
    default = values.pop("default", None)
    if default is not None and values.setdefault("required", False):
        problems.append(f"{where}.required: a default is for what may be left out; required = false, or no default")
    parameter = Parameter(**values)
    if default is None or len(problems) > before:
        return parameter
    if parameter.type == "list":
        problems.append(f"{where}.default: a list has none")
        return parameter
    try:
        return msgspec.structs.replace(parameter, default=read_condition(parameter, default))
    except Rejected as error:
        problems.append(f"{where}.default: {error.message}")
    return parameter
