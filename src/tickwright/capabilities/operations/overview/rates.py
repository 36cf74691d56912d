"""Rates of the whole installation, from the counters that its processes report; pure, on plain values.

A session's counters only rise while it lives (:mod:`tickwright.process.counters`), so two of its heartbeats give a
rate, and the sum over living sessions is the total. While a heartbeat is overdue, its session's rate falls; a lost
session has no rate. Instants are seconds of the database's clock.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import msgspec

from tickwright.capabilities.operations.overview.views import FinishedRates, LatenessNow, WhyNotCaughtUp
from tickwright.observe.metrics import LATENESS_BUCKETS_S

SMOOTHED_S = 10.0
SPAN_MIN_S = 2.0
OVERDUE_S = 4.0
GAP_MAX_S = 20.0
LATENESS_S = 60.0
_ENDED = {
    "completed": "completed", "failed": "failed", "retried": "retried", "cancel": "cancelled", "expired": "cancelled",
    "snoozed": "snoozed", "released": "given_back", "shutdown": "given_back", "gone": "given_back",
    "lost": "given_back",
}  # fmt: skip


class JobsSaid(msgspec.Struct):
    """The counters of all jobs of a process."""

    starts: int = 0
    late: list[int] = []
    ended: dict[str, int] = {}
    running: int = 0


class CountersSaid(msgspec.Struct):
    """The counters of a process that rates use."""

    jobs: JobsSaid | None = None
    polls: dict[str, int] = {}
    relay: dict[str, int] = {}
    fanout: dict[str, int] = {}

    def totals(self) -> dict[str, int]:
        """Return the rising counters by the names of rates."""
        found = {f"polls_{name}": count for name, count in self.polls.items()}
        found |= {f"relay_{name}": count for name, count in self.relay.items()}
        found["fanout_called"] = sum(self.fanout.values())
        if self.jobs is not None:
            found["started"] = self.jobs.starts
            for outcome, count in self.jobs.ended.items():
                name = _ENDED.get(outcome, outcome)
                found[name] = found.get(name, 0) + count
        return found


@dataclass(frozen=True, slots=True)
class Beat:
    """One heartbeat: its instant, and the totals until then."""

    seen_s: float
    totals: Mapping[str, int]
    late: Sequence[int]


@dataclass(slots=True)
class _Session:
    """The heartbeats of a minute; ``running`` is the number of attempts at the last one."""

    beats: deque[Beat] = field(default_factory=deque)
    running: int = 0
    is_alive: bool = True

    def since(self, age_s: float) -> Beat | None:
        """Return the oldest heartbeat of the last ``age_s``; ``None`` if there is only one, or a gap before it."""
        last = self.beats[-1]
        found = [beat for beat in self.beats if last.seen_s - beat.seen_s <= age_s + SPAN_MIN_S]
        return found[0] if len(found) > 1 else None


class Rates:
    """Computes rates from heartbeats and backlogs."""

    def __init__(self) -> None:
        self._sessions: dict[int, _Session] = {}
        self._due: deque[tuple[float, int]] = deque()
        self._now_s = 0.0

    def take(self, now_s: float, said: Mapping[int, tuple[float, CountersSaid | None]]) -> None:
        """Take the living sessions and their new counters.

        ``said`` has per living session the instant of its last heartbeat and its counters: ``None`` where they are
        known already, or unreadable.
        """
        self._now_s = now_s
        for token, (seen_s, counters) in said.items():
            session = self._sessions.setdefault(token, _Session())
            if counters is not None and not (session.beats and session.beats[-1].seen_s >= seen_s):
                session.beats.append(Beat(seen_s, counters.totals(), counters.jobs.late if counters.jobs else ()))
                session.running = counters.jobs.running if counters.jobs is not None else 0
        for token, session in list(self._sessions.items()):
            session.is_alive = token in said
            while session.beats and session.beats[0].seen_s < now_s - LATENESS_S - GAP_MAX_S:
                session.beats.popleft()
            if not session.is_alive and not session.beats:
                del self._sessions[token]

    def take_due(self, due: int, *, cap: int) -> None:
        """Take the number of due jobs; a count that stopped at ``cap`` gives no rate."""
        if due >= cap or (self._due and self._now_s - self._due[-1][0] > SMOOTHED_S):
            self._due.clear()
        if due < cap:
            self._due.append((self._now_s, due))
        while self._due and self._due[0][0] < self._now_s - SMOOTHED_S:
            self._due.popleft()

    @property
    def running(self) -> int:
        """Running attempts, by the last heartbeats of the living sessions."""
        return sum(session.running for session in self._sessions.values() if session.is_alive)

    @property
    def done(self) -> int:
        """The sum of all known totals; it changes when anything has happened."""
        return sum(sum(one.beats[-1].totals.values()) for one in self._sessions.values() if one.beats)

    @property
    def known(self) -> bool:
        """Whether rates are known: a session has sent two heartbeats, or no session lives."""
        living = [one for one in self._sessions.values() if one.is_alive and one.beats]
        return not living or any(one.since(SMOOTHED_S) is not None for one in living)

    def per_s(self, name: str) -> float | None:
        """Return how often per second something happens, over about ten seconds; ``None`` while that is unknown."""
        if not self.known:
            return None
        living = (one for one in self._sessions.values() if one.is_alive and one.beats)
        return round(sum(self._rate(session, name) for session in living), 3)

    def _rate(self, session: _Session, name: str) -> float:
        first = session.since(SMOOTHED_S)
        if first is None:
            return 0.0
        last = session.beats[-1]
        span_s = max(last.seen_s, self._now_s - OVERDUE_S) - first.seen_s
        return max(0, last.totals.get(name, 0) - first.totals.get(name, 0)) / max(span_s, 0.1)

    def finished(self) -> FinishedRates | None:
        """Return how attempts end, per second."""
        if not self.known:
            return None
        names = [one.name for one in msgspec.structs.fields(FinishedRates)]
        return FinishedRates(**{name: self.per_s(name) or 0.0 for name in names})

    def due_changes_per_s(self) -> float | None:
        """Return how fast the backlog changes; ``None`` while that is unknown."""
        if not self._due or self._due[-1][0] - self._due[0][0] < SPAN_MIN_S:
            return None
        (then_s, before), (now_s, after) = self._due[0], self._due[-1]
        return round((after - before) / (now_s - then_s), 3)

    def lateness(self) -> LatenessNow | None:
        """Return the lateness of the last minute's starts, including those of lost sessions."""
        late: list[int] = []
        for session in self._sessions.values():
            beats = [beat for beat in session.beats if beat.seen_s >= self._now_s - LATENESS_S]
            if len(beats) > 1:
                new = (max(0, now - then) for now, then in zip_longest(beats[-1].late, beats[0].late, fillvalue=0))
                late = [total + more for total, more in zip_longest(late, new, fillvalue=0)]
        starts = sum(late)
        return LatenessNow(quantile(late, 0.5), quantile(late, 0.99), starts) if starts else None


def quantile(late: Sequence[int], share: float) -> float | None:
    """Return the upper end of the bucket that reaches this share of the starts; ``None`` above the last bucket."""
    wanted, seen = share * sum(late), 0
    for count, bound_s in zip(late, LATENESS_BUCKETS_S, strict=False):
        seen += count
        if seen >= wanted:
            return bound_s
    return None


def caught_up(due: int, changes_per_s: float | None, *, cap: int) -> tuple[float | None, WhyNotCaughtUp | None]:
    """Return in how many seconds nothing is due at the present rate, or why that is unknown."""
    if not due:
        return None, "nothing_due"
    if due >= cap:
        return None, "capped"
    if changes_per_s is None:
        return None, "measuring"
    if changes_per_s >= 0:
        return None, "not_catching_up"
    return round(due / -changes_per_s, 1), None
