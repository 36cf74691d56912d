"""Permits of one partner in one process: waiting calls, grants, and counts to report.

Nothing here waits for an exchange: a permit that the grants allow is given at once. Facts from this process's own
calls (a ``Retry-After``, failures in a row) count here at once, and for other processes from the next exchange on.
"""

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tickwright.domain.dbclock import DbClock
from tickwright.partners.model import LATE_S, Grant, Report, Why
from tickwright.partners.outcomes import Answered, Failed, Outcome, Throttled
from tickwright.partners.settings import PartnerSettings
from tickwright.ports.ids import monotonic
from tickwright.ports.session import Session

BLOCKED = frozenset({"paused", "quiet", "retry_after", "breaker_open"})
ERROR_CHARS_MAX = 500
BLOCKED_WAIT_S = 0.5


@dataclass(slots=True)
class _Series:
    """Unused instants of a grant; the first one in seconds since 1970."""

    first_s: float
    count: int
    step_s: float


@dataclass(slots=True)
class _Unreported:
    """Counts since the last exchange."""

    ok: int = 0
    failed: int = 0
    trial: bool | None = None
    blocked_until_s: float = 0.0
    error: str | None = None

    def add(self, other: "_Unreported") -> None:
        """Add counts that could not be reported."""
        self.ok += other.ok
        self.failed += other.failed
        self.trial = other.trial if self.trial is None else self.trial
        self.blocked_until_s = max(self.blocked_until_s, other.blocked_until_s)
        self.error = self.error or other.error

    def silence(self) -> "_Unreported":
        """Return only the ``Retry-After``, which counts for every session."""
        return _Unreported(blocked_until_s=self.blocked_until_s)


class Permit:
    """The right to make one call now; close it with the outcome.

    Close it with ``None`` after a cancelled call, which is no evidence about the partner.
    """

    __slots__ = ("_generation", "_open", "_permits", "trial")

    def __init__(self, permits: "PartnerPermits", *, trial: bool) -> None:
        self._permits, self.trial = permits, trial
        self._open = True
        self._generation = permits.generation

    def close(self, outcome: Outcome | None) -> None:
        """Return the permit with the outcome of the call. Twice is harmless."""
        if self._open:
            self._open = False
            self._permits.ended(outcome, trial=self.trial, stale=self._generation != self._permits.generation)


@dataclass(slots=True)
class PartnerPermits:
    """Gives the permits of one partner; see the module's docstring.

    Attributes:
        share: Calls at once; ``None`` is no limit.
        held: Running calls.
        why: What prevented calls at the last exchange.
        exchange_again_s: Monotonic time before which another exchange would change nothing.
        expected: Calls that will follow as soon as there is room, besides those that wait for a permit.
        request_exchange: Called when an exchange should come soon.
    """

    partner_no: int
    clock: DbClock
    session: Session
    request_exchange: Callable[[], None]
    name: str = ""
    settings: PartnerSettings = field(default_factory=PartnerSettings)
    share: int | None = 0
    held: int = 0
    why: Why | None = None
    exchange_again_s: float = 0.0
    generation: int = 0
    listed: bool = False
    unreported: _Unreported = field(default_factory=_Unreported)
    expected: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    _waiters: deque["asyncio.Future[Permit]"] = field(default_factory=deque)
    _series: deque[_Series] = field(default_factory=deque)
    _unlimited: bool = False
    _trial: bool = False
    _valid_until_s: float = 0.0
    _stopped_until_s: float = 0.0
    _tripped: bool = False
    _timer: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------ permits

    async def acquire(self) -> Permit:
        """Wait for a permit."""
        if not self._waiters and (permit := self._take()) is not None:
            return permit
        waiter: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self.pump()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                waiter.result().close(None)
            raise

    def pump(self) -> None:
        """Give permits to waiting calls while the grants allow it."""
        while self._waiters:
            if self._waiters[0].done():
                self._waiters.popleft()
                continue
            if (permit := self._take()) is None:
                return
            self._waiters.popleft().set_result(permit)

    def _take(self) -> Permit | None:
        now = monotonic()
        if now >= self._valid_until_s or not self.session.holds():
            if now >= self.exchange_again_s:
                self.request_exchange()
            return None
        if self._tripped or now < self._stopped_until_s or (self.share is not None and self.held >= self.share):
            return None
        if self._trial:
            self._trial = False
            return self._permit(trial=True)
        return self._permit(trial=False) if self._unlimited or self._take_instant(now) else None

    def _take_instant(self, now: float) -> bool:
        now_s = self.clock.about(now)
        self._drop_late(now_s)
        if not self._series:
            return False
        series = self._series[0]
        if series.first_s > now_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(series.first_s - now_s, self.pump)
            return False
        series.first_s += series.step_s
        series.count -= 1
        return True

    def _drop_late(self, now_s: float) -> None:
        """Drop used and past instants: using late ones now would bunch calls together."""
        while self._series:
            series = self._series[0]
            lost = math.ceil((now_s - LATE_S - series.first_s) / series.step_s) if series.step_s else 0
            if lost > 0:
                series.first_s += lost * series.step_s
                series.count -= lost
            if series.count > 0:
                return
            self._series.popleft()

    def _permit(self, *, trial: bool) -> Permit:
        self.held += 1
        return Permit(self, trial=trial)

    def ended(self, outcome: Outcome | None, *, trial: bool, stale: bool) -> None:
        """Note the end of a call."""
        self.held -= 1
        if not stale and outcome is not None:
            self._note(outcome)
            if trial:
                self.unreported.trial = not isinstance(outcome, Failed)
                self.request_exchange()
        self.pump()

    def _note(self, outcome: Outcome) -> None:
        match outcome:
            case Answered():
                self.outcomes["answered"] += 1
                self.unreported.ok += 1
            case Throttled(retry_after):
                self.outcomes["throttled"] += 1
                self._stop_for(retry_after.total_seconds())
            case Failed(reason, throttled):
                self.outcomes["throttled" if throttled else "failed"] += 1
                self.unreported.failed += 1
                self.unreported.error = reason[:ERROR_CHARS_MAX]
                counts, limits = self.unreported, self.settings.breaker
                if counts.failed >= limits.failures and counts.failed >= limits.share * (counts.failed + counts.ok):
                    self._tripped = True
                    self.request_exchange()

    def _stop_for(self, seconds: float) -> None:
        now = monotonic()
        self._stopped_until_s = max(self._stopped_until_s, now + seconds)
        if self.clock.known:
            self.unreported.blocked_until_s = max(self.unreported.blocked_until_s, self.clock.about(now) + seconds)
        self.request_exchange()

    # ------------------------------------------------------------------ exchanges

    @property
    def blocked(self) -> bool:
        """Whether the last exchange allowed no calls to the partner."""
        return self.why in BLOCKED

    @property
    def waiting(self) -> int:
        """Waiting and expected calls."""
        return sum(not waiter.done() for waiter in self._waiters) + self.expected

    def needs_exchange(self, now: float) -> bool:
        """Return whether there is something to report, to request or to return."""
        counts = self.unreported
        if counts.ok or counts.failed or counts.trial is not None or counts.blocked_until_s:
            return True
        if self.waiting:
            return now >= self.exchange_again_s
        return self.held > 0 or self.listed or bool(self._series)

    def report(self, exchange_s: float = 0.0) -> tuple[Report, _Unreported]:
        """Return what to report, and reset it; ``add`` restores it when the exchange fails."""
        if self._series:  # late instants must not count as available
            self._drop_late(self.clock.about(monotonic()))
        reported, self.unreported, self._tripped = self.unreported, _Unreported(), False
        waiting, left = self.waiting, sum(series.count for series in self._series)
        unused_from_s = unused_to_s = 0.0
        if not waiting and self._series:
            last = self._series[-1]
            unused_from_s, unused_to_s = last.first_s, last.first_s + last.count * last.step_s
            self._series.clear()
        report = Report(
            waiting=waiting,
            wanted=max(0, waiting - left),
            held=self.held,
            share=self.share,
            ok=reported.ok,
            failed=reported.failed,
            trial=reported.trial,
            blocked_until_s=reported.blocked_until_s,
            unused_from_s=unused_from_s,
            unused_to_s=unused_to_s,
            exchange_s=exchange_s,
        )
        return report, reported

    def grant(self, grant: Grant, *, asked_s: float, now_s: float, listed: bool) -> None:
        """Apply a grant of an exchange that read the clock at the monotonic ``asked_s``.

        A silence that an operator ended in the shared state ends here too, unless a later one is not reported yet.
        """
        self.share, self.why, self.listed = grant.share, grant.why, listed
        self._valid_until_s = asked_s + (grant.valid_until_s - now_s)
        self._unlimited = grant.instants is None
        self._trial = grant.trial
        if grant.trial or grant.why in BLOCKED or self._unlimited:
            self._series.clear()
        elif grant.instants:
            self._series.append(_Series(grant.first_s, grant.instants, grant.step_s))
        if self.clock.known and not self.unreported.blocked_until_s:
            now = monotonic()
            self._stopped_until_s = min(self._stopped_until_s, now + grant.blocked_until_s - self.clock.about(now))
        wait_s = max(0.0, grant.wait_until_s - now_s)
        if self.blocked:  # an operator may enable it at any time
            wait_s = min(wait_s or BLOCKED_WAIT_S, BLOCKED_WAIT_S)
        self.exchange_again_s = asked_s + wait_s
        self.pump()

    def forget(self) -> None:
        """Drop all grants and counts, because the session is lost; a silence is reported by the next session."""
        self.generation += 1
        self.unreported = self.unreported.silence()
        self._series.clear()
        self._unlimited = self._trial = self._tripped = self.listed = False
        self._valid_until_s = self.exchange_again_s = 0.0

    def close(self) -> None:
        """Stop the timer and use no share; the callers cancel waiting calls."""
        self.share = None if self.share is None else 0
        if self._timer is not None:
            self._timer.cancel()
