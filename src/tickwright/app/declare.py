"""What the decorator's keyword arguments mean: the same words, checks and remedies as in the TOML file."""

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from tickwright.capabilities.jobs.handlers import Function, Handler, make_handler
from tickwright.domain.errors import Rejected
from tickwright.wiring.configfile import Problems, read_duration, read_task_type

Duration = str | timedelta
_HANDLER_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,49}")


def declare_job(name: str, function: Function, options: Mapping[str, Any]) -> Handler:
    """Return the handler that ``@app.job(name, **options)`` makes of ``function``.

    Raises:
        Rejected: ``invalid_task_type`` with every mistake, or ``invalid_handler``. Permanent.
    """
    problems = Problems()
    table = {key: value for key, value in options.items() if value is not None}
    where = f"@app.job({name!r})"
    if not _HANDLER_NAME.fullmatch(name):
        problems.found.append(f"{where}: a handler's name has 1 to 50 letters, digits, '_', '.' or '-', a letter first")
    kind = read_task_type("handler", {"target": "python:handler", **table}, problems, where=where)
    kind = replace(kind, name=name, target=f"python:{name}")
    if problems.found:
        raise Rejected("invalid_task_type", "\n".join(problems.found), problems=problems.found)
    return make_handler(kind, function)


def as_duration(field: str, value: Duration | None) -> timedelta | None:
    """Return a duration that a caller gave as ``"30s"`` or as a ``timedelta``.

    Raises:
        Rejected: ``invalid_duration``. Permanent.
    """
    if value is None:
        return None
    try:
        duration = read_duration(value)
    except Rejected as error:
        message = error.message.removeprefix("duration: ")
        raise Rejected("invalid_duration", f"{field}: {message}", field=field) from None
    if duration < timedelta():
        raise Rejected("invalid_duration", f"{field}: zero or more", field=field)
    return duration
