"""The breaker, which all processes share: when nobody calls a failing partner, and how it is tried again. Pure.

::

    closed ──too many failed──▶ open ──time passed──▶ half_open ──trial answered──▶ closed
                                 ▲                        │
                                 └─────trial failed───────┘ twice as long

Calls are counted over a window, all processes together; those that end while it is not closed say nothing, but for
the one trial. After it has closed, a window in which most calls are answered makes the next pause the first one again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

from tickwright.partners.settings import PartnerSettings

State = Literal["closed", "open", "half_open"]
DOUBLINGS_MAX = 40


class Event(Enum):
    """What can happen to a breaker."""

    TOO_MANY_FAILED = "too many failed"
    TIME_PASSED = "time passed"
    TRIAL_ANSWERED = "trial answered"
    TRIAL_FAILED = "trial failed"


BREAKER: Mapping[tuple[State, Event], State] = {
    ("closed", Event.TOO_MANY_FAILED): "open",
    ("open", Event.TIME_PASSED): "half_open",
    ("half_open", Event.TRIAL_ANSWERED): "closed",
    ("half_open", Event.TRIAL_FAILED): "open",
}
"""Every transition there is; what is not here changes nothing."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What all processes know together of a partner; instants in seconds since 1970, by the database's clock.

    Attributes:
        next_free_s: The first instant that nobody has taken.
        blocked_until_s: Nobody calls before (``Retry-After``); 0 for never asked.
        opened_times: Pauses in a row.
        trial_owner: Session whose single call is the trial.
        window_at_s: Since when calls are counted.
    """

    next_free_s: float
    blocked_until_s: float = 0.0
    breaker: State = "closed"
    open_until_s: float = 0.0
    opened_times: int = 0
    trial_owner: int | None = None
    trial_until_s: float = 0.0
    window_at_s: float = 0.0
    window_ok: int = 0
    window_failed: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """What one process saw since its last exchange, and what it wants.

    Attributes:
        waiting: Calls that wait for their permit.
        wanted: Those of them for which no instant is there yet.
        held: Calls that run.
        share: Of the concurrency, that it uses until it hears of another one; ``None`` is no limit.
        ok: Calls that the partner answered.
        failed: Calls that failed.
        trial: What became of this process's trial.
        blocked_until_s: ``Retry-After`` as an instant.
        unused_from_s: First instant of its last grant that it has not used and will not; 0 for none.
        unused_to_s: The end of that grant.
        exchange_s: How long its exchanges take.
    """

    waiting: int = 0
    wanted: int = 0
    held: int = 0
    share: int | None = None
    ok: int = 0
    failed: int = 0
    trial: bool | None = None
    blocked_until_s: float = 0.0
    unused_from_s: float = 0.0
    unused_to_s: float = 0.0
    exchange_s: float = 0.0


def advance(shared: Shared, event: Event, settings: PartnerSettings, now_s: float) -> Shared:
    """Return the state after ``event``; the same one where the table has no transition."""
    state = BREAKER.get((shared.breaker, event))
    if state is None:
        return shared
    fresh = replace(shared, breaker=state, trial_owner=None, window_at_s=now_s, window_ok=0, window_failed=0)
    if state != "open":
        return fresh
    terms = settings.breaker
    pause_s = min(
        terms.open.total_seconds() * 2.0 ** min(shared.opened_times, DOUBLINGS_MAX), terms.open_max.total_seconds()
    )
    return replace(fresh, opened_times=shared.opened_times + 1, open_until_s=now_s + pause_s)


def hear(shared: Shared, report: Report, settings: PartnerSettings, mine: int, now_s: float) -> Shared:
    """Return the state after what session ``mine`` reports: Retry-After, the trial, calls that failed."""
    shared = replace(shared, blocked_until_s=max(shared.blocked_until_s, report.blocked_until_s))
    if report.unused_from_s and abs(report.unused_to_s - shared.next_free_s) < 1e-5:
        shared = replace(shared, next_free_s=max(report.unused_from_s, now_s))
    if shared.breaker == "half_open":
        if report.trial is None or shared.trial_owner != mine:
            return shared
        event = Event.TRIAL_ANSWERED if report.trial else Event.TRIAL_FAILED
        return advance(shared, event, settings, now_s)
    return _count(shared, report, settings, now_s) if shared.breaker == "closed" else shared


def _count(shared: Shared, report: Report, settings: PartnerSettings, now_s: float) -> Shared:
    terms = settings.breaker
    if now_s - shared.window_at_s >= terms.window.total_seconds():
        healthy = shared.window_ok > 0 and not _too_many(shared, settings)
        times = 0 if healthy else shared.opened_times
        shared = replace(shared, window_at_s=now_s, window_ok=0, window_failed=0, opened_times=times)
    ok, failed = shared.window_ok + report.ok, shared.window_failed + report.failed
    shared = replace(shared, window_ok=ok, window_failed=failed)
    return advance(shared, Event.TOO_MANY_FAILED, settings, now_s) if _too_many(shared, settings) else shared


def _too_many(shared: Shared, settings: PartnerSettings) -> bool:
    terms = settings.breaker
    calls = shared.window_ok + shared.window_failed
    return shared.window_failed >= terms.failures and shared.window_failed >= terms.share * calls
