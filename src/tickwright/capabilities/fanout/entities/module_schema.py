"""What is said of a module: read from JSON, TOML or keyword arguments, in the same words and with the same remedies.

::

    [modules.LOCATIONS]
    every = "15m"        # length of a window: whole seconds, 1s to 1d
    timeout = "60s"      # of one run: 10ms to 25m
    gated = false        # true: polled only where ENABLE_LOCATIONS_POLLING=true

Every mistake is named at once.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec

from tickwright.domain.durations import DURATION_MAX
from tickwright.domain.errors import Rejected
from tickwright.domain.modules import MODULE_NAME
from tickwright.domain.wording import Reader, bad, lasting, read_fields

EVERY_DEFAULT = timedelta(minutes=15)
EVERY_MAX = timedelta(days=1)
TIMEOUT_DEFAULT = timedelta(seconds=60)
TIMEOUT_MAX = timedelta(minutes=25)
TIMEOUT_MIN = timedelta(milliseconds=10)
_duration = lasting(timedelta(), DURATION_MAX)


class ModuleTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What was said; ``None`` for what was not."""

    every: timedelta | None = None
    timeout: timedelta | None = None
    gated: bool | None = None


def read_module(name: str, table: Any, problems: list[str], *, where: str) -> ModuleTerms:
    """Return what ``table`` says of the module ``name``, and add every mistake to ``problems`` with its remedy."""
    if not MODULE_NAME.fullmatch(name):
        problems.append(f"{where}: a name has 1 to 50 capitals, digits or '_', a letter first, such as LOCATIONS")
    if not isinstance(table, Mapping):
        problems.append(f"{where}: write a table, [modules.NAME]")
        return ModuleTerms()
    return ModuleTerms(**read_fields(table, _READERS, problems, where=where))


def check_module(name: str, table: Any, *, where: str = "module") -> ModuleTerms:
    """Return what ``table`` says.

    Raises:
        Rejected: ``invalid_module`` with every mistake. Permanent.
    """
    problems: list[str] = []
    terms = read_module(name, table, problems, where=where)
    if problems:
        raise Rejected("invalid_module", "\n".join(problems), problems=problems)
    return terms


def _read_every(value: Any) -> timedelta:
    every: timedelta = _duration(value)
    if not timedelta(seconds=1) <= every <= EVERY_MAX:
        raise bad("between 1s and 1d")
    if every % timedelta(seconds=1):
        raise bad("whole seconds: windows are known by the second in which they begin")
    return every


def _read_timeout(value: Any) -> timedelta:
    timeout: timedelta = _duration(value)
    if not TIMEOUT_MIN <= timeout <= TIMEOUT_MAX:
        raise bad("between 10ms and 25m: RabbitMQ takes a message back that is not acknowledged within 30 minutes")
    if timeout % timedelta(milliseconds=1):
        raise bad("whole milliseconds")
    return timeout


def _read_gated(value: Any) -> bool:
    if not isinstance(value, bool):
        raise bad("true or false")
    return value


_READERS: Mapping[str, Reader] = {"every": _read_every, "timeout": _read_timeout, "gated": _read_gated}
