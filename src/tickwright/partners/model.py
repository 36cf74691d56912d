"""The partner contract as decisions on plain values: no clock, no database, no asyncio.

In one exchange, one process reports to the shared state of one partner, which decides three things.

*How often*: instants are granted one after the other, ``step_s`` apart; unused ones are not saved (GCRA without a
burst). A budget of *n* calls in *w* seconds holds in **every** window of *w* seconds when instants are
``(w + SLACK_S) / n`` apart: n + 1 of them span more than *w* even if the first call began ``SLACK_S`` late and
the last one on time. The tightest budget decides. An instant that cannot be used within ``LATE_S`` is lost; the
rest of the slack is for the network.

A grant arrives as late as an exchange takes (``Report.exchange_s``, up to ``EXCHANGE_MAX_S``), and is used until the
next one arrives. So its instants begin that much later, and it is valid two exchanges longer.

*How many at once*: an even share per process, never more than the others leave.

*Whether at all*: a pause by an operator, quiet hours, ``Retry-After``, and the breaker.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

from tickwright.domain.retries import RetryPolicy
from tickwright.partners.quiet import DAY_S, open_seconds_max, quiet_next, quiet_until
from tickwright.partners.settings import PartnerSettings

BreakerState = Literal["closed", "open", "half_open"]


class BreakerEvent(Enum):
    """Events of a breaker."""

    TOO_MANY_FAILED = "too many failed"
    TIME_PASSED = "time passed"
    TRIAL_ANSWERED = "trial answered"
    TRIAL_FAILED = "trial failed"


BREAKER: Mapping[tuple[BreakerState, BreakerEvent], BreakerState] = {
    ("closed", BreakerEvent.TOO_MANY_FAILED): "open",
    ("open", BreakerEvent.TIME_PASSED): "half_open",
    ("half_open", BreakerEvent.TRIAL_ANSWERED): "closed",
    ("half_open", BreakerEvent.TRIAL_FAILED): "open",
}
"""Every transition; other events change nothing::

    closed ──too many failed──▶ open ──time passed──▶ half_open ──trial answered──▶ closed
                                 ▲                        │
                                 └─────trial failed───────┘ twice as long

Calls of all processes are counted over a window. Calls that end while the breaker is not closed do not count, except
the one trial. After it has closed, a window with an answered call and too few failures resets the pause to the first.
"""


@dataclass(frozen=True, slots=True)
class SharedState:
    """The state of a partner that all processes share; instants in seconds since 1970, by the database's clock.

    Attributes:
        next_free_s: The first free instant.
        blocked_until_s: No calls before (``Retry-After``); 0 for none.
        opened_times: Pauses in a row.
        trial_owner: Session that makes the trial, a single call.
        window_at_s: Start of the window in which calls are counted.
    """

    next_free_s: float
    blocked_until_s: float = 0.0
    breaker: BreakerState = "closed"
    open_until_s: float = 0.0
    opened_times: int = 0
    trial_owner: int | None = None
    trial_until_s: float = 0.0
    window_at_s: float = 0.0
    window_ok: int = 0
    window_failed: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """Counts of one process since its last exchange, and its request.

    Attributes:
        waiting: Calls that wait for their permit.
        wanted: Those of them without an instant yet.
        held: Running calls.
        share: Of the concurrency, in use until the next grant; ``None`` is no limit.
        trial: Result of this process's trial.
        blocked_until_s: ``Retry-After`` as an instant.
        unused_from_s: First instant of its last grant that it returns unused; 0 for none.
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


def advance(shared: SharedState, event: BreakerEvent, settings: PartnerSettings, now_s: float) -> SharedState:
    """Return the state after ``event``; the same one when the table has no transition."""
    state = BREAKER.get((shared.breaker, event))
    if state is None:
        return shared
    fresh = replace(shared, breaker=state, trial_owner=None, window_at_s=now_s, window_ok=0, window_failed=0)
    if state != "open":
        return fresh
    pause_s = RetryPolicy(settings.breaker.open, cap=settings.breaker.open_max).ceiling_s(shared.opened_times + 1)
    return replace(fresh, opened_times=shared.opened_times + 1, open_until_s=now_s + pause_s)


def apply_report(
    shared: SharedState, report: Report, settings: PartnerSettings, session: int, now_s: float
) -> SharedState:
    """Return the state after a report of a session: ``Retry-After``, the trial, and failed calls."""
    shared = replace(shared, blocked_until_s=max(shared.blocked_until_s, report.blocked_until_s))
    if report.unused_from_s and abs(report.unused_to_s - shared.next_free_s) < 1e-5:
        shared = replace(shared, next_free_s=max(report.unused_from_s, now_s))
    if shared.breaker == "half_open":
        if report.trial is None or shared.trial_owner != session:
            return shared
        event = BreakerEvent.TRIAL_ANSWERED if report.trial else BreakerEvent.TRIAL_FAILED
        return advance(shared, event, settings, now_s)
    return _count(shared, report, settings, now_s) if shared.breaker == "closed" else shared


def _count(shared: SharedState, report: Report, settings: PartnerSettings, now_s: float) -> SharedState:
    limits = settings.breaker
    if now_s - shared.window_at_s >= limits.window.total_seconds():
        healthy = shared.window_ok > 0 and not _too_many(shared, settings)
        times = 0 if healthy else shared.opened_times
        shared = replace(shared, window_at_s=now_s, window_ok=0, window_failed=0, opened_times=times)
    ok, failed = shared.window_ok + report.ok, shared.window_failed + report.failed
    shared = replace(shared, window_ok=ok, window_failed=failed)
    return advance(shared, BreakerEvent.TOO_MANY_FAILED, settings, now_s) if _too_many(shared, settings) else shared


def _too_many(shared: SharedState, settings: PartnerSettings) -> bool:
    limits = settings.breaker
    calls = shared.window_ok + shared.window_failed
    return shared.window_failed >= limits.failures and shared.window_failed >= limits.share * calls


SLACK_S = 0.1
LATE_S = 0.05
AHEAD_S = 0.3
VALID_S = 0.6
EXCHANGE_MAX_S = 1.2
TRIAL_GRACE_S = 5.0
QUIET_CREDIT_MIN = 10
STEP_MAX_S = 2 * DAY_S
"""Above the step of every budget. An instant that is one step ahead fits into a timestamp."""

Why = Literal["paused", "quiet", "retry_after", "breaker_open", "on_trial", "budget", "concurrency"]


@dataclass(frozen=True, slots=True)
class Grant:
    """What one process may do until ``valid_until_s``.

    Attributes:
        instants: How many calls, the first at ``first_s``, each ``step_s`` later; ``None`` is no limit.
        share: Of the concurrency; ``None`` is no limit.
        trial: One single call, to test a half-open breaker.
        why: The first reason against calls, if any.
        wait_until_s: When to exchange again; 0 for soon.
        blocked_until_s: ``Retry-After`` in the shared state and the report; infinite when nothing was decided.
    """

    valid_until_s: float
    instants: int | None = 0
    first_s: float = 0.0
    step_s: float = 0.0
    share: int | None = None
    trial: bool = False
    why: Why | None = None
    wait_until_s: float = 0.0
    blocked_until_s: float = math.inf


def step_of(settings: PartnerSettings) -> float:
    """Return the least seconds between the starts of two calls; 0 without a budget."""
    step_s = max((_step(calls, window_s, settings) for calls, window_s in settings.budgets), default=0.0)
    return min(step_s, STEP_MAX_S)


def _step(calls: float, window_s: int, settings: PartnerSettings) -> float:
    if calls < 1:  # "0.5/s" is one in two seconds
        return (window_s + SLACK_S) / calls
    gaps = len(settings.quiet) + 1
    if window_s >= DAY_S and settings.quiet and calls > QUIET_CREDIT_MIN * gaps:
        return (open_seconds_max(settings.quiet) + SLACK_S) / (math.floor(calls) - gaps)
    return (window_s + SLACK_S) / math.floor(calls)


def valid_s(exchange_s: float) -> float:
    """Return how long a grant is valid after its decision, for a process whose exchanges take ``exchange_s``."""
    return VALID_S + 2 * min(exchange_s, EXCHANGE_MAX_S)


def ahead_s(exchange_s: float) -> float:
    """Return how far after the decision such a process's instants may lie."""
    return AHEAD_S + 2 * min(exchange_s, EXCHANGE_MAX_S)


def take_instants(
    now_s: float, next_free_s: float, step_s: float, wanted: int, exchange_s: float = 0.0
) -> tuple[float, int]:
    """Return the first instant and how many; none when the first is further ahead than ``ahead_s``."""
    first_s, last_s = max(now_s + min(exchange_s, EXCHANGE_MAX_S), next_free_s), now_s + ahead_s(exchange_s)
    room = math.floor((last_s - first_s) / step_s) + 1 if first_s <= last_s else 0
    return first_s, max(0, min(wanted, room))


def believed(next_free_s: float, now_s: float, step_s: float) -> float:
    """Return the first free instant, or the latest possible one if that is earlier.

    Instants are granted at most ``ahead_s`` of the slowest exchange ahead, so the next one is at most a step later. A
    later value is left from a slower budget or from a clock that was set back, and would block the partner as long.
    """
    return min(next_free_s, now_s + ahead_s(EXCHANGE_MAX_S) + step_s)


def share_of(limit: int, shares: Mapping[int, int], session: int, rotation: int) -> int:
    """Return how much of ``limit`` session ``session`` may use beside the ``shares`` of the others.

    The remainder rotates with ``rotation``, so that a limit below the number of processes reaches each of them. The sum
    over all never exceeds ``limit``, whatever their earlier shares were.
    """
    sessions = sorted({*shares, session})
    rank = (sessions.index(session) + rotation) % len(sessions)
    even = limit // len(sessions) + (1 if rank < limit % len(sessions) else 0)
    others = sum(granted for owner, granted in shares.items() if owner != session)
    return max(0, min(even, limit - others))


@dataclass(frozen=True, slots=True)
class ExchangeContext:
    """The session of an exchange, and the facts of its decision.

    Attributes:
        shares: Concurrency that each live session was granted, this one included.
        now_s: The database's clock.
    """

    session: int
    shares: Mapping[int, int]
    paused: bool
    now_s: float


def decide(
    shared: SharedState, report: Report, settings: PartnerSettings, context: ExchangeContext
) -> tuple[SharedState, Grant, int | None]:
    """Return the new state, what the session may do, and the share to write (``None`` for none).

    Invariants:
        PAR-1: the instants of all grants of all processes are ``step_of(settings)`` apart.
        PAR-2: no instant is granted before ``blocked_until_s``, in quiet hours, or while paused or open; and
            a grant ends where quiet hours begin.
        PAR-3: while half-open, one session has one trial.
        PAR-4: the written shares of all sessions sum up to the limit at most, unless running calls exceed it.
    """
    now_s = context.now_s
    shared = apply_report(shared, report, settings, context.session, now_s)
    shared = replace(shared, next_free_s=believed(shared.next_free_s, now_s, step_of(settings)))
    if shared.breaker == "open" and now_s >= shared.open_until_s:
        shared = advance(shared, BreakerEvent.TIME_PASSED, settings, now_s)
    none: tuple[Why | None, float] = (None, 0.0)
    why, wait_until_s = next(blocks(shared, settings, paused=context.paused, now_s=now_s), none)
    share = written = None
    if settings.concurrency is not None:
        is_used = report.waiting or report.held
        share = share_of(settings.concurrency, context.shares, context.session, int(now_s // 5)) if is_used else 0
        written = _written(share, report, context)
    until_s = _valid_until(now_s, settings, report.exchange_s)
    grant = Grant(until_s, share=share, blocked_until_s=shared.blocked_until_s)
    if why is not None:
        return shared, replace(grant, why=why, wait_until_s=wait_until_s), written
    if not report.waiting and (shared.breaker == "half_open" or step_of(settings)):
        return shared, grant, written  # the next call exchanges; without a budget it needs no instant
    return *_give(shared, grant, report, settings, context), written


def _valid_until(now_s: float, settings: PartnerSettings, exchange_s: float) -> float:
    """Return when a grant ends; earlier when quiet hours begin before, so that no call begins in them."""
    until_s = now_s + valid_s(exchange_s)
    if quiet_until(until_s, settings.quiet) is None:
        return until_s
    following = quiet_next(now_s, settings.quiet)
    return until_s if following is None else min(until_s, following[0])


def blocks(
    shared: SharedState, settings: PartnerSettings, *, paused: bool, now_s: float
) -> Iterator[tuple[Why, float]]:
    """Yield what prevents all calls now, and until when (0 if unknown); where one is shown, it is the first."""
    if paused:
        yield "paused", 0.0
    quiet_s = quiet_until(now_s, settings.quiet)
    if quiet_s is not None:
        yield "quiet", quiet_s
    if shared.blocked_until_s > now_s:
        yield "retry_after", shared.blocked_until_s
    if shared.breaker == "open" and shared.open_until_s > now_s:
        yield "breaker_open", shared.open_until_s


def _written(share: int, report: Report, context: ExchangeContext) -> int | None:
    """Return the share to store; a smaller one only in the next exchange, since the old one is in use until then."""
    old = min(report.share or 0, context.shares.get(context.session, 0))
    return max(share, report.held, old) if report.waiting or report.held or old else None


def _give(
    shared: SharedState, grant: Grant, report: Report, settings: PartnerSettings, context: ExchangeContext
) -> tuple[SharedState, Grant]:
    """Give instants, or a single one for a trial, or the reason against it."""
    now_s, step_s, exchange_s = context.now_s, step_of(settings), report.exchange_s
    crowded, is_trial = settings.concurrency is not None and not grant.share, shared.breaker == "half_open"
    if is_trial and shared.trial_owner is not None and now_s < shared.trial_until_s:
        return shared, replace(grant, why="on_trial")
    if not is_trial and step_s == 0.0:
        return shared, replace(grant, instants=None, why="concurrency" if crowded else None)
    if crowded:
        return shared, replace(grant, why="concurrency")
    wanted = 1 if is_trial else report.wanted
    first_s, count = take_instants(now_s, shared.next_free_s, step_s or AHEAD_S, wanted, exchange_s)
    if not count:  # the instant is too far ahead
        return shared, replace(grant, why="budget", wait_until_s=first_s - ahead_s(exchange_s) + AHEAD_S / 2)
    shared = replace(shared, next_free_s=first_s + count * step_s)
    if not is_trial:
        return shared, replace(grant, instants=count, first_s=first_s, step_s=step_s)
    until_s = now_s + settings.timeout.total_seconds() + valid_s(exchange_s) + TRIAL_GRACE_S
    shared = replace(shared, trial_owner=context.session, trial_until_s=until_s)
    return shared, replace(grant, instants=1, first_s=first_s, trial=True, why="on_trial")
