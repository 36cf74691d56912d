"""The TOML file: task types, partners, modules and report types, applied when a process starts.

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
    group_limit = 1
    group_rate = "10/m"
    group_order = "stop"

    [partners.acme]
    rate = "50/s"
    concurrency = 20

    [modules.LOCATIONS]
    every = "15m"

    [report_types.withdrawals]
    merge = "SELECT … FROM users JOIN withdrawals USING (user_id)"

The keys of a table are the keyword arguments of ``@app.job``, ``@app.partner``, ``@app.module`` and ``@app.report``;
each plugin checks its own tables. Every mistake is reported, with file, key and remedy, before anything is applied.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tickwright.domain.errors import Rejected
from tickwright.process.plugins import PLUGINS


def load_config(path: Path | None) -> Mapping[str, Mapping[str, Any]]:
    """Return the tables of the file at ``path``, by kind and name; nothing without a path.

    Raises:
        Rejected: ``config_unreadable`` or ``invalid_config``, with every mistake. Permanent.
    """
    if path is None:
        return {}
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise Rejected("config_unreadable", f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise Rejected("invalid_config", f"{path} is not TOML: {error}") from error
    if problems := _check(document):
        lines = "\n".join(f"  {line}" for line in problems)
        raise Rejected("invalid_config", f"{path} is not valid:\n{lines}", file=str(path), problems=problems)
    return document


def _check(document: Mapping[str, Any]) -> list[str]:
    """Return every mistake of the file."""
    checks = {kind: read for plugin in PLUGINS for kind, read in plugin.config_tables().items()}
    allowed = ", ".join(f"[{kind}.NAME]" for kind in checks)
    problems = [f"[{kind}]: unknown table; allowed: {allowed}" for kind in document if kind not in checks]
    for kind, read in checks.items():
        tables = document.get(kind, {})
        if not isinstance(tables, dict):
            problems.append(f"{kind}: write a table for each, [{kind}.NAME]")
            continue
        for name, table in tables.items():
            read(name, table, problems, where=f"{kind}.{name}")
    return problems
