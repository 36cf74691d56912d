"""What is said of a report type: read from JSON, TOML or keyword arguments, in the same words, with the same remedies.

::

    [report_types.withdrawals]
    merge = "SELECT …"             # over the parts, by their listeners' names; with one listener it may be left out
    format = "csv"                 # or "parquet", where the request names none
    bom = false                    # CSV begins with a byte order mark
    checks = 6                     # the delayed check looks so often before it gives up on a stage
    check_every = "1m"
    deadline = "30m"               # of the whole report
    keep = "7d"                    # the file
    notify = "receiver"            # who hears of the end, where the request names nobody

    [report_types.withdrawals.parameters]     # the conditions that may be given; left out: any
    country = "text"
    since = { type = "date", required = false, default = "2026-01-01" }

    [report_types.withdrawals.feeds]          # by stage: one row, whose columns are values of that stage's queries
    2 = "SELECT list(user_id) AS user_ids FROM users"

    [report_types.withdrawals.listeners.users]
    source = "plt_user"
    sql = "SELECT … WHERE country = :country" # without: a function; `service = true`: who delivers by HTTP
    stage = 1
    required = true
    attempts = 3
    timeout = "5m"                 # of one attempt; at most checks x check_every, and the deadline
    columns = { id = "BIGINT" }    # types that the source does not know

Where there is nothing more to say of a listener than its name: ``listeners = ["users", "withdrawals"]``, or
``stages = [["users"], ["withdrawals"]]``. Every mistake is named at once; what needs the whole of a definition is
checked in :mod:`definition_checks`.
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

import msgspec

from tickwright.capabilities.reports.requests.conditions import read_condition
from tickwright.capabilities.reports.types.definition_checks import SqlChecks, check_whole
from tickwright.capabilities.reports.types.names import PARAMETER_NAME, TYPE_NAME, listener_problem
from tickwright.capabilities.reports.types.plan import Listener, Parameter, Plan
from tickwright.capabilities.reports.types.schema_fields import FIELDS, LISTENER_WORDS, PARAMETER_WORDS, TYPE_WORDS
from tickwright.domain.errors import Rejected
from tickwright.domain.wording import read_fields

LISTENERS_MAX, PARAMETERS_MAX, PROBLEMS_MAX = 100, 100, 100
DEFINITION_BYTES_MAX = 262_144


def read_definition(
    name: str, table: Any, problems: list[str], *, where: str, checks: SqlChecks | None = None
) -> Plan | None:
    """Return the plan that ``table`` describes, or ``None`` and every mistake in ``problems`` with its remedy.

    Args:
        name: The type's.
        table: The words above.
        problems: Gets what is wrong.
        where: What a mistake's line begins with.
        checks: Understands SQL; without them texts of SQL are taken as they are.
    """
    before = len(problems)
    if not TYPE_NAME.fullmatch(name):
        problems.append(f"{where}: a name has 1 to 50 letters, digits, '_', '.' or '-', a letter or digit first")
    if not isinstance(table, Mapping):
        problems.append(f"{where}: write a table, [report_types.NAME]")
        return None
    values = read_fields(table, TYPE_WORDS, problems, where=where)
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
    """Return the plan that ``table`` describes.

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
    """Return who brings a part, or ``None`` and every mistake in ``problems``."""
    before = len(problems)
    if wrong := listener_problem(name):
        problems.append(f"{where}: {wrong}")
    if not isinstance(table, Mapping):
        problems.append(f"{where}: write a table, such as {{ source = …, sql = … }}; or {{}} for a function")
        return None
    values = {"stage": stage, **_as_fields(read_fields(table, LISTENER_WORDS, problems, where=where))}
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


def _listeners(values: dict[str, Any], said: set[Any], problems: list[str], *, where: str) -> tuple[Listener, ...]:
    before = len(problems)
    named, staged = values.pop("listeners", None), values.pop("stages", None)
    if named is not None and staged is not None:
        problems.append(f"{where}.stages: listeners or stages, one of them")
    elif not {"listeners", "stages"} & said:
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
    return tuple(one for one in found if one is not None)


def _untimed(values: Mapping[str, Any]) -> set[str]:
    """Return whose timeout is not said."""
    groups = [values.get("listeners"), *(values.get("stages") or ())]
    return {
        name
        for group in groups
        for name, table in _tables(group)
        if not isinstance(table, Mapping) or "timeout" not in table
    }


def _with_timeouts(plan: Plan, untimed: set[str]) -> Plan:
    """Return the plan with the timeouts that nobody said: five minutes, or as long as the report waits for a part."""
    waits_ms = int(plan.waits / timedelta(milliseconds=1))
    made = (
        msgspec.structs.replace(one, timeout_ms=min(one.timeout_ms, waits_ms)) if one.name in untimed else one
        for one in plan.listeners
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
        words = {"type": table} if isinstance(table, str) else table
        if isinstance(words, Mapping):
            found[name] = _parameter(words, problems, where=f"{where}.{name}")
        else:
            problems.append(f'{where}.{name}: write its type, such as "text", or {{ type = "text", required = false }}')
    if len(tables) > PARAMETERS_MAX:
        problems.append(f"{where}: at most {PARAMETERS_MAX}")
    return found


def _parameter(table: Mapping[str, Any], problems: list[str], *, where: str) -> Parameter:
    before = len(problems)
    values = read_fields(table, PARAMETER_WORDS, problems, where=where)
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
