"""What is said of a source in the TOML file.

::

    [sources.plt_fund]
    url = "postgresql://reader:${env:FUND_PASSWORD}@db/plt_fund"   # or sqlite:///…, duckdb:///…, files:///…
    connections_max = 5           # queries at once from one process, 1 to 50
    statement_timeout = "10m"     # of one query, 10 ms to 6 h

Every mistake is named at once. An URL is not repeated: it may have a password in it.
"""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from tickwright.domain.durations import parse_duration
from tickwright.domain.errors import Rejected
from tickwright.sources.named import CONNECTIONS_MAX, SCHEMES_SHOWN, STATEMENT_TIMEOUT_MAX, SourceTerms

STATEMENT_TIMEOUT_MIN = timedelta(milliseconds=10)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,49}", re.ASCII)


def read_source(name: str, table: Any, problems: list[str], *, where: str) -> SourceTerms | None:
    """Return what ``table`` says of a source; ``None``, and its mistakes in ``problems``, where it is wrong."""
    before = len(problems)
    if not _NAME.fullmatch(name):
        problems.append(f"{where}: a name has 1 to 50 letters, digits or '_', no digit first")
    if not isinstance(table, Mapping):
        problems.append(f"{where}: write a table, [sources.NAME]")
        return None
    problems.extend(
        f"{where}.{key}: unknown key; allowed: {', '.join(_READERS)}" for key in table if key not in _READERS
    )
    values: dict[str, Any] = {}
    for key, read in _READERS.items():
        if key in table:
            try:
                values[key] = read(table[key])
            except Rejected as error:
                problems.append(f"{where}.{key}: {error.message}")
    if "url" not in table:
        problems.append(f"{where}.url: missing; write {SCHEMES_SHOWN}")
    return None if len(problems) > before else SourceTerms(**values)


def _read_url(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise Rejected("invalid_value", f"write {SCHEMES_SHOWN}")
    return value


def _read_connections(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= CONNECTIONS_MAX:
        raise Rejected("invalid_value", f"a whole number from 1 to {CONNECTIONS_MAX}")
    return value


def _read_timeout(value: Any) -> timedelta:
    if not isinstance(value, str):
        raise Rejected("invalid_value", 'write a duration with its unit, such as "30s"')
    timeout = parse_duration(value)
    if not STATEMENT_TIMEOUT_MIN <= timeout <= STATEMENT_TIMEOUT_MAX:
        raise Rejected("invalid_value", "between 10ms and 6h")
    return timeout


_READERS: Mapping[str, Any] = {
    "url": _read_url,
    "connections_max": _read_connections,
    "statement_timeout": _read_timeout,
}
