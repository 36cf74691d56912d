"""Settings of a partner: read from JSON, TOML or keyword arguments, with the same fields and errors.

::

    rate = "50/s"                                # calls of all processes together, spread evenly
    per_minute = 1200                            # limit for any 60 seconds
    per_day = 400_000                            # limit for any 24 hours
    concurrency = 20                             # calls at once, all processes together
    timeout = "10s"
    quiet = ["22:00-06:00 Europe/Berlin", "sat,sun 00:00-24:00 Europe/Berlin"]
    breaker = { failures = 10, share = 0.5, window = "10s", open = "5s", open_max = "5m" }
    terminal_statuses = ["Delivered"]            # not part of the contract: callers use it, and http
    http = { url = "https://…/{external_id}" }
    target = "remote:couriers"                   # instead: remote workers of this pool make the calls

All mistakes are reported at once. The table ``tickwright.partners`` stores the settings as they were written.
"""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec

from tickwright.domain.errors import Rejected
from tickwright.domain.field_readers import Reader, bad, lasting, read_fields, whole
from tickwright.domain.targets import remote_target
from tickwright.domain.time_texts import parse_rate
from tickwright.partners.quiet import QuietHours, parse_quiet

COUNT_MAX = 1_000_000_000
CONCURRENCY_MAX = 100_000
TIMEOUT_MAX = timedelta(minutes=5)
OPEN_MAX = timedelta(days=1)
WINDOW_MAX = timedelta(minutes=10)
QUIET_MAX = 20
TEXTS_MAX = 200
TEXT_CHARS_MAX = 100


class BreakerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When calls to a failing partner stop, and for how long.

    Attributes:
        failures: Least number of failed calls in one window, 1 to 10,000.
        share: Least share of the window's calls that failed, above 0 to 1; both conditions must hold.
        window: In which calls are counted, 1 s to 10 min.
        open: The first pause, 10 ms to 1 day; each further one in a row is twice as long.
    """

    failures: int = 10
    share: float = 0.5
    window: timedelta = timedelta(seconds=10)
    open: timedelta = timedelta(seconds=5)
    open_max: timedelta = timedelta(minutes=5)


class PartnerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one partner, for all processes together.

    Attributes:
        budgets: ``(calls, seconds)``: at most that many calls in any window of that length.
        concurrency: Calls at once, 1 to 100,000; ``None`` is no limit.
        timeout: Of one call, 10 ms to 5 min.
        quiet: When no calls are made; at most 20 windows.
        terminal_statuses: Statuses that end a tracker; for the callers.
        http: How calls are made without a function; for the callers.
        target: ``remote:POOL``: remote workers make the calls; for the callers.
    """

    budgets: tuple[tuple[float, int], ...] = ()
    concurrency: int | None = None
    timeout: timedelta = timedelta(seconds=10)
    quiet: tuple[QuietHours, ...] = ()
    breaker: BreakerSettings = BreakerSettings()
    terminal_statuses: tuple[str, ...] | None = None
    http: Mapping[str, Any] | None = None
    target: str | None = None

    @property
    def rate_per_s(self) -> float | None:
        """Calls a second that the tightest budget allows; ``None`` without one."""
        return min((calls / window_s for calls, window_s in self.budgets), default=None)


def read_settings(table: Any, problems: list[str], *, where: str) -> PartnerSettings:
    """Return the settings in ``table``, and add every mistake to ``problems``, each with its remedy."""
    if not isinstance(table, Mapping):
        problems.append(f"{where}: write a table, [partners.NAME]")
        return PartnerSettings()
    values = read_fields(table, _READERS, problems, where=where)
    budgets = tuple(values.pop(key) for key in ("rate", "per_minute", "per_day") if key in values)
    breaker = read_fields(values.pop("breaker", {}), _BREAKER, problems, where=f"{where}.breaker")
    limits = BreakerSettings(**breaker)
    if limits.open > limits.open_max:
        problems.append(f"{where}.breaker: open, {limits.open}, is above open_max, {limits.open_max}")
    if values.get("target") is not None and values.get("http") is not None:
        problems.append(f"{where}.target: remote workers or http, one of them")
    return PartnerSettings(budgets=budgets, breaker=limits, **values)


def check_settings(table: Any, *, where: str = "partner") -> PartnerSettings:
    """Return the settings in ``table``.

    Raises:
        Rejected: ``invalid_partner`` with every mistake. Permanent.
    """
    problems: list[str] = []
    settings = read_settings(table, problems, where=where)
    if problems:
        raise Rejected("invalid_partner", "\n".join(problems), problems=problems)
    return settings


def read_kept(text: str) -> tuple[PartnerSettings, str]:
    """Return the settings in the JSON of ``tickwright.partners.settings``, and their mistakes as text."""
    problems: list[str] = []
    settings = read_settings(json.loads(text), problems, where="settings")
    return settings, "; ".join(problems)


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise bad("a number above 0 and at most 1")
    return float(value)


def _per(window_s: int) -> Reader:
    count = whole(1, COUNT_MAX)
    return lambda value: (float(count(value)), window_s)


def _quiet(value: Any) -> tuple[QuietHours, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or len(texts) > QUIET_MAX:
        raise bad(f'write at most {QUIET_MAX} texts such as "22:00-06:00 Europe/Berlin"')
    return tuple(parse_quiet(text) for text in texts)


def texts(value: Any) -> tuple[str, ...]:
    """Read a list of short texts."""
    if not isinstance(value, list | tuple) or len(value) > TEXTS_MAX:
        raise bad(f"write a list of at most {TEXTS_MAX} texts")
    if not all(isinstance(text, str) and 0 < len(text) <= TEXT_CHARS_MAX for text in value):
        raise bad(f"each has 1 to {TEXT_CHARS_MAX} characters")
    return tuple(value)


def _table(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise bad("write a table")
    return value


_READERS: Mapping[str, Reader] = {
    "rate": parse_rate,
    "per_minute": _per(60),
    "per_day": _per(86_400),
    "concurrency": whole(1, CONCURRENCY_MAX),
    "timeout": lasting(timedelta(milliseconds=10), TIMEOUT_MAX),
    "quiet": _quiet,
    "breaker": _table,
    "terminal_statuses": texts,
    "http": _table,
    "target": remote_target,
}
_BREAKER: Mapping[str, Reader] = {
    "failures": whole(1, 10_000),
    "share": _share,
    "window": lasting(timedelta(seconds=1), WINDOW_MAX),
    "open": lasting(timedelta(milliseconds=10), OPEN_MAX),
    "open_max": lasting(timedelta(milliseconds=10), OPEN_MAX),
}


def as_json(table: Mapping[str, Any]) -> str:
    """Return checked settings as the JSON text of ``tickwright.partners.settings``."""

    def spell(value: Any) -> str:
        if isinstance(value, timedelta):
            return f"{value // timedelta(milliseconds=1)}ms"
        raise bad(f"{type(value).__name__} cannot be kept as JSON")

    return json.dumps(table, default=spell, sort_keys=True)
