"""The TOML file: task types, partners, modules and report types that are set when a process starts.

::

    [task_types."invoice.remind"]
    target = "https://shop.example/hooks/remind"
    timeout = "30s"
    max_attempts = 5
    retry = { base = "1s", factor = 2, cap = "1h" }
    final_statuses = [401, 403]
    concurrency = 20
    rate = "50/s"
    keep_history = true

    [partners.acme]
    rate = "50/s"
    concurrency = 20

    [modules.LOCATIONS]
    every = "15m"

    [report_types.withdrawals]
    merge = "SELECT … FROM users JOIN withdrawals USING (user_id)"

The words of a partner are in :mod:`tickwright.partners.settings`, those of a module in
:mod:`tickwright.capabilities.fanout.entities.modules`, those of a report type in
:mod:`tickwright.capabilities.reports.types.schema`. The same words are the keyword arguments of ``@app.job``,
``@app.partner``, ``@app.module`` and ``@app.report``. Every mistake is reported, with file, key and remedy, before
anything is applied: half a configuration is worse than none.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from tickwright.capabilities.fanout.entities.modules import read_module
from tickwright.capabilities.jobs.model import TaskType
from tickwright.capabilities.polling.consumer.http_courier import read_http
from tickwright.capabilities.reports.merge.sandbox import sql_checks
from tickwright.capabilities.reports.types.schema import read_definition
from tickwright.domain.errors import Rejected
from tickwright.domain.retries import RetryPolicy
from tickwright.domain.targets import parse_target
from tickwright.domain.time_texts import format_duration, parse_duration, parse_rate
from tickwright.partners.settings import PartnerSettings, read_settings
from tickwright.sources.named import SourceTerms, read_source

TIMEOUT_MAX = timedelta(days=1)
RETRY_BASE_MAX = timedelta(days=1)
RETRY_CAP_MAX = timedelta(days=7)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,49}")
_PARTNER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,49}")
_KINDS = ("task_types", "partners", "modules", "sources", "report_types")
_TABLES = ", ".join(f"[{kind}.NAME]" for kind in _KINDS)


def _bad(remedy: str) -> Rejected:
    return Rejected("invalid_value", remedy)


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What the file says."""

    path: Path | None = None
    task_types: tuple[TaskType, ...] = ()
    partners: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    modules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sources: Mapping[str, SourceTerms] = field(default_factory=dict)
    report_types: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(slots=True)
class Problems:
    """Collects mistakes instead of stopping at the first one."""

    found: list[str] = field(default_factory=list)

    def read(self, key: str, read: Callable[[Any], Any], value: Any, default: Any) -> Any:
        """Return ``read(value)``, or note what is wrong with ``key`` and return ``default``."""
        try:
            return read(value)
        except Rejected as error:
            self.found.append(f"{key}: {error.message}")
        return default


def load_config(path: Path | None) -> ConfigFile:
    """Return what the file at ``path`` says; nothing without a path.

    Raises:
        Rejected: ``config_unreadable`` or ``invalid_config``, with every mistake. Permanent.
    """
    if path is None:
        return ConfigFile()
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise Rejected("config_unreadable", f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise Rejected("invalid_config", f"{path} is not TOML: {error}") from error
    problems = Problems()
    types = _read_document(document, problems)
    partners = _read_tables("partners", document.get("partners", {}), problems, read_partner)
    modules = _read_tables("modules", document.get("modules", {}), problems, read_module)
    sources = _read_tables("sources", document.get("sources", {}), problems, read_source)
    read_type = partial(read_definition, checks=sql_checks())
    report_types = _read_tables("report_types", document.get("report_types", {}), problems, read_type)
    if problems.found:
        lines = "\n".join(f"  {line}" for line in problems.found)
        raise Rejected("invalid_config", f"{path} is not valid:\n{lines}", file=str(path), problems=problems.found)
    terms = {name: read_source(name, table, [], where=name) for name, table in sources.items()}
    found = {name: one for name, one in terms.items() if one is not None}
    return ConfigFile(path, types, partners, modules, found, report_types)


def _read_tables(
    kind: str, tables: Any, problems: Problems, read: Callable[..., Any]
) -> Mapping[str, Mapping[str, Any]]:
    if not isinstance(tables, dict):
        problems.found.append(f"{kind}: write a table for each, [{kind}.NAME]")
        return {}
    for name, table in tables.items():
        read(name, table, problems.found, where=f"{kind}.{name}")
    return tables


def read_partner(name: str, table: Any, problems: list[str], *, where: str) -> PartnerSettings:
    """Return what a table or a set of keyword arguments says of a partner; note every mistake."""
    if not _PARTNER_NAME.fullmatch(name):
        problems.append(f"{where}: a name has 1 to 50 letters, digits, '_', '.' or '-'")
    settings = read_settings(table, problems, where=where)
    if settings.http is not None:
        read_http(settings.http, problems, where=f"{where}.http", secrets=lambda _: "")
    return settings


def _read_document(document: Mapping[str, Any], problems: Problems) -> tuple[TaskType, ...]:
    for key in document:
        if key not in _KINDS:
            problems.found.append(f"[{key}]: unknown table; allowed: {_TABLES}")
    tables = document.get("task_types", {})
    if not isinstance(tables, dict):
        problems.found.append("task_types: write a table per type, [task_types.NAME]")
        return ()
    return tuple(read_task_type(name, table, problems, where=f"task_types.{name}") for name, table in tables.items())


def read_task_type(name: str, table: Any, problems: Problems, *, where: str) -> TaskType:
    """Return the type that a table or a set of keyword arguments describes; note every mistake."""
    if not _NAME.fullmatch(name):
        problems.found.append(f"{where}: a name has 1 to 50 letters, digits, '_', '.', ':' or '-'")
    if not isinstance(table, dict):
        problems.found.append(f"{where}: write a table, [task_types.NAME]")
        return TaskType(name, "")
    if "target" not in table:
        problems.found.append(f"{where}.target: missing; such as https://… or python:{name}")
    values = {}
    for key, value in table.items():
        if key in _READERS:
            field_name, read, default = _READERS[key]
            values[field_name] = problems.read(f"{where}.{key}", read, value, default)
        else:
            near = difflib.get_close_matches(key, _READERS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"allowed: {', '.join(_READERS)}"
            problems.found.append(f"{where}.{key}: unknown key; {hint}")
    return TaskType(name, values.pop("target", ""), **values)


def check_partner(settings: Mapping[str, Any]) -> None:
    """Refuse settings of a partner that nobody could keep to.

    Raises:
        Rejected: ``invalid_partner`` with every mistake. Permanent.
    """
    problems: list[str] = []
    read_partner("partner", settings, problems, where="settings")
    if problems:
        raise Rejected("invalid_partner", "\n".join(problems), problems=problems)


def read_duration(value: Any) -> timedelta:
    """Return a duration from ``"30s"`` or a ``timedelta``; a bare number has no unit and is refused."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _bad('write a duration with its unit, such as "30s"')
    if not isinstance(value, str):
        raise _bad(f'{value} has no unit; write "{value}s" for seconds')
    return parse_duration(value)


def read_rate(value: Any) -> float:
    """Return starts per second from ``"50/s"``, ``"10/min"`` or ``"3/h"``."""
    count, unit_s = parse_rate(value)
    return count / unit_s


def read_retry(value: Any) -> RetryPolicy:
    """Return a policy from ``{ base = "1s", factor = 2, cap = "1h" }``, each part optional."""
    policy = value if isinstance(value, RetryPolicy) else _policy_of(value)
    if policy.base > policy.cap:
        raise _bad(f"base, {format_duration(policy.base)}, is above cap, {format_duration(policy.cap)}")
    return policy


def _policy_of(value: Any) -> RetryPolicy:
    if not isinstance(value, Mapping):
        raise _bad('write { base = "1s", factor = 2, cap = "1h" }')
    strange = sorted(set(value) - {"base", "factor", "cap"})
    if strange:
        raise _bad(f"unknown part {strange[0]!r}; allowed: base, factor, cap")
    default = RetryPolicy()
    return RetryPolicy(
        _within("base", read_duration(value.get("base", default.base)), timedelta(), RETRY_BASE_MAX),
        _number("factor", value.get("factor", default.factor), 1, 10),
        _within("cap", read_duration(value.get("cap", default.cap)), timedelta(), RETRY_CAP_MAX),
    )


def _within(what: str, value: timedelta, low: timedelta, high: timedelta) -> timedelta:
    if not low <= value <= high:
        raise _bad(f"{what} is between {low} and {high}")
    return value


def _number(what: str, value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise _bad(f"{what} is a number from {low} to {high}")
    return float(value)


def _read_timeout(value: Any) -> timedelta:
    return _within("a timeout", read_duration(value), timedelta(milliseconds=1), TIMEOUT_MAX)


def _read_target(value: Any) -> str:
    if not isinstance(value, str):
        raise _bad("write a destination, such as https://… or python:NAME")
    parse_target(value)
    return value


def _read_statuses(value: Any) -> frozenset[int]:
    if not isinstance(value, list | tuple | set | frozenset) or not all(
        isinstance(status, int) and 300 <= status <= 599 for status in value
    ):
        raise _bad("write a list of HTTP statuses from 300 to 599, such as [401, 403]")
    return frozenset(value)


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _bad(f"a whole number from {low} to {high}")
        return value

    return read


def _read_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _bad("true or false")
    return value


_READERS: Mapping[str, tuple[str, Callable[[Any], Any], Any]] = {
    "target": ("target", _read_target, ""),
    "timeout": ("timeout", _read_timeout, timedelta(seconds=30)),
    "max_attempts": ("max_attempts", _whole(1, 1000), 3),
    "retry": ("retry", read_retry, RetryPolicy()),
    "final_statuses": ("final_statuses", _read_statuses, frozenset()),
    "concurrency": ("concurrency", _whole(1, 100_000), None),
    "rate": ("rate_per_s", read_rate, None),
    "keep_history": ("keep_history", _read_flag, True),
}
