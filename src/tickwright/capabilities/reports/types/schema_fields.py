"""The words of a report type, one by one: how each is read, and how a plan is put into them again."""

from collections.abc import Mapping
from datetime import date, datetime, timedelta
from typing import Any, get_args

from tickwright.capabilities.reports.parts.columns import COLUMNS_MAX, check_type
from tickwright.capabilities.reports.types.names import SOURCE_NAME
from tickwright.capabilities.reports.types.plan import Format, Listener, Parameter, ParameterType, Plan
from tickwright.domain.durations import format_duration
from tickwright.domain.wording import Reader, bad, flag, lasting, one_of, whole

STAGES_MAX = 10
SQL_BYTES_MAX = 65_536
COLUMN_CHARS_MAX = 200
NAMES_MAX = 1_000
_SECOND, _MILLISECOND = timedelta(seconds=1), timedelta(milliseconds=1)


def words_of(plan: Plan) -> dict[str, Any]:
    """Return a plan in the words above: what is read from them is the same plan again."""
    words: dict[str, Any] = {"merge": plan.merge, "format": plan.format, "bom": plan.bom, "checks": plan.checks}
    for word, seconds in (("check_every", plan.check_every_s), ("deadline", plan.deadline_s), ("keep", plan.keep_s)):
        words[word] = format_duration(seconds * _SECOND)
    if plan.notify is not None:
        words["notify"] = plan.notify
    if plan.parameters is not None:
        words["parameters"] = {name: _parameter_words(one) for name, one in plan.parameters.items()}
    if plan.feeds:
        words["feeds"] = {str(stage): sql for stage, sql in sorted(plan.feeds.items())}
    words["listeners"] = {one.name: _listener_words(one) for one in plan.listeners}
    return words


def _parameter_words(parameter: Parameter) -> dict[str, Any]:
    words = {"type": parameter.type, "required": parameter.required}
    return words if parameter.default is None else {**words, "default": parameter.default}


def _listener_words(one: Listener) -> dict[str, Any]:
    given = {"source": one.source, "sql": one.sql, "service": one.kind == "service" or None}
    words: dict[str, Any] = {word: value for word, value in given.items() if value is not None}
    words |= {"stage": one.stage, "required": one.required, "attempts": one.attempts}
    words |= {"timeout": format_duration(one.timeout)}
    return {**words, "columns": dict(one.columns)} if one.columns else words


def _sql(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise bad("write one query in SQL")
    if len(value.encode("utf-8", "surrogatepass")) > SQL_BYTES_MAX:
        raise bad(f"at most {SQL_BYTES_MAX} bytes")
    return value


def _seconds(low: timedelta, high: timedelta) -> Reader:
    read = lasting(low, high)

    def seconds(value: Any) -> int:
        duration: timedelta = read(value)
        if duration % _SECOND:
            raise bad("whole seconds")
        return duration // _SECOND

    return seconds


def _milliseconds(value: Any) -> int:
    duration: timedelta = lasting(timedelta(milliseconds=10), timedelta(hours=6))(value)
    if duration % _MILLISECOND:
        raise bad("whole milliseconds")
    return duration // _MILLISECOND


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
            raise bad(f"{stage}: stands twice")
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
        raise bad(f"nobody is in stage {empty[0]}")
    return [_listener_names(group) for group in value]


def _table(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise bad('write a table, such as { country = "text" }')
    return value


def _default(value: Any) -> Any:
    """TOML has dates and times of its own; elsewhere they are texts."""
    return value.isoformat() if isinstance(value, date | datetime) else value


FIELDS = {"check_every": "check_every_s", "deadline": "deadline_s", "keep": "keep_s", "timeout": "timeout_ms"}
"""Fields of a plan that have their unit in their name."""
TYPE_WORDS: Mapping[str, Reader] = {
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
LISTENER_WORDS: Mapping[str, Reader] = {
    "source": _name,
    "sql": _sql,
    "service": flag,
    "stage": whole(1, STAGES_MAX),
    "required": flag,
    "attempts": whole(1, 100),
    "timeout": _milliseconds,
    "columns": _columns,
}
PARAMETER_WORDS: Mapping[str, Reader] = {
    "type": one_of(*get_args(ParameterType)),
    "required": flag,
    "default": _default,
}
