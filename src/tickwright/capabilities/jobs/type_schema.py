"""The schema of a task type in the TOML file and in ``@app.job``. Every mistake is collected, with its remedy."""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from tickwright.capabilities.jobs.model import TaskType
from tickwright.capabilities.jobs.requests import TaskTypeRequest
from tickwright.domain.errors import Rejected
from tickwright.domain.retries import RetryPolicy
from tickwright.domain.targets import parse_target
from tickwright.domain.time_texts import format_duration, parse_duration, parse_rate

TIMEOUT_MAX = timedelta(days=1)
RETRY_BASE_MAX = timedelta(days=1)
RETRY_CAP_MAX = timedelta(days=7)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,49}")


def _bad(remedy: str) -> Rejected:
    return Rejected("invalid_value", remedy)


@dataclass(slots=True)
class Problems:
    """Collects mistakes; reading does not stop at the first one."""

    found: list[str] = field(default_factory=list)

    def read(self, key: str, read: Callable[[Any], Any], value: Any, default: Any) -> Any:
        """Return ``read(value)``, or add the mistake in ``key`` and return ``default``."""
        try:
            return read(value)
        except Rejected as error:
            self.found.append(f"{key}: {error.message}")
        return default


def read_task_type(name: str, table: Any, problems: Problems, *, where: str) -> TaskType:
    """Return the type that a table or a set of keyword arguments describes; add every mistake to ``problems``."""
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


def read_duration(value: Any) -> timedelta:
    """Return a duration from ``"30s"`` or a ``timedelta``; refuse a bare number, which has no unit."""
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


def check_task_type(name: str, table: Any, problems: list[str], *, where: str) -> None:
    """Add every mistake of one table of the TOML file to ``problems``."""
    read_task_type(name, table, Problems(problems), where=where)


def read_declared(tables: Mapping[str, Any]) -> list[TaskType]:
    """Return the task types of the TOML file, which has passed the checks."""
    return [read_task_type(name, table, Problems(), where=name) for name, table in tables.items()]


def as_declared(kind: TaskType | None) -> TaskType | None:
    """Return ``kind`` without the fields that a file cannot set, so that an unchanged file changes nothing."""
    if kind is None:
        return None
    factor = round(kind.retry.factor, 4)  # the table stores a float of four bytes
    return replace(kind, retry=replace(kind.retry, factor=factor), paused=False, gone=False, secrets=(), version=1)


def request_of(kind: TaskType) -> TaskTypeRequest:
    """Return ``kind`` as the request that creates it."""
    return TaskTypeRequest(
        target=kind.target,
        timeout=format_duration(kind.timeout),
        max_attempts=kind.max_attempts,
        retry_base=format_duration(kind.retry.base),
        retry_factor=kind.retry.factor,
        retry_cap=format_duration(kind.retry.cap),
        final_statuses=sorted(kind.final_statuses),
        concurrency=kind.concurrency,
        rate_per_s=kind.rate_per_s,
        keep_history=kind.keep_history,
    )
