"""Builds an overview from what was read; pure."""

from collections import Counter, deque
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from tickwright.capabilities.operations.overview.rates import Rates, caught_up
from tickwright.capabilities.operations.overview.reads import COUNT_MAX, Moment
from tickwright.capabilities.operations.overview.views import (
    AlertsNow,
    DeadLettersNow,
    JobsNow,
    LeasesNow,
    OutboxNow,
    OverviewSeries,
    OverviewView,
    PollsNow,
    WorkersNow,
)

WORST_SHOWN = 3
POINT_EVERY = timedelta(seconds=5)
KEPT = timedelta(minutes=15)


def build(moment: Moment, parts: Mapping[str, Any], rates: Rates, changes: "Changes", *, version: str) -> OverviewView:
    """Return the overview.

    ``parts`` are the last results of all :data:`READINGS` by name, ``rates`` include ``moment``, and ``changes`` are
    the numbers of the lists so far.
    """
    view = OverviewView(
        at=moment.at,
        version=version,
        stale_since=None,
        stale_why=None,
        jobs=_jobs(moment, rates),
        polls=_polls(parts, rates),
        outbox=_outbox(parts, rates),
        fanout=msgspec.structs.replace(parts["fanout"], called_per_s=rates.per_s("fanout_called")),
        reports=parts["reports"],
        executions=parts["executions"],
        alerts=_alerts(parts["alerts"]),
        workers=_workers(moment),
        leases=_leases(parts["standing"]),
        dead_letters=_dead_letters(parts),
        changes={},
    )
    view.changes.update(changes.numbers(moment.at, _marks(view, moment, parts, rates.done)))
    return view


def _jobs(moment: Moment, rates: Rates) -> JobsNow:
    changes = rates.due_changes_per_s()
    seconds, why_not = caught_up(moment.due, changes, cap=COUNT_MAX)
    return JobsNow(
        due=moment.due,
        waiting=moment.waiting,
        running=rates.running,
        capped_at=COUNT_MAX,
        partial=moment.cut,
        oldest_due_s=moment.oldest_due_s,
        started_per_s=rates.per_s("started"),
        finished_per_s=rates.finished(),
        due_changes_per_s=changes,
        lateness=rates.lateness(),
        caught_up_in_s=seconds,
        not_caught_up=why_not,
        latest=list(moment.latest),
    )


def _polls(parts: Mapping[str, Any], rates: Rates) -> PollsNow:
    polls, fresh = parts["polls"], parts["freshness"]
    worst = zip(fresh["accounts"], fresh["intervals"], fresh["ratios"], strict=True)
    return PollsNow(
        trackers=polls["trackers"],
        unplaced=polls["unplaced"],
        waiting=polls["waiting"],
        oldest_s=round(max([polls["oldest_s"], *(row["oldest_s"] for row in parts["poll_lags"])]), 3),
        unread_records=sum(row["lag"] for row in parts["poll_lags"]),
        published_per_s=rates.per_s("polls_published"),
        answered_per_s=rates.per_s("polls_answered"),
        fresh_ratio=fresh["share"],
        lagging_accounts=fresh["lagging"],
        judged_accounts=fresh["judged"],
        worst_accounts=[f"{name} ({minutes} min) {lag:.0%}" for name, minutes, lag in worst][:WORST_SHOWN],
        ahead=polls["ahead"],
        partners=parts["partners"],
    )


def _outbox(parts: Mapping[str, Any], rates: Rates) -> OutboxNow:
    heads = parts["outbox"]
    return OutboxNow(
        waiting=parts["standing"]["outbox_waiting"],
        oldest_s=round(max((head["age_s"] for head in heads), default=0.0), 3),
        destinations=len(heads),
        failing=sum(head["error_message"] is not None for head in heads),
        published_per_s=rates.per_s("relay_published"),
    )


def _alerts(firing: Any) -> AlertsNow:
    counts = Counter[str]()
    for one in firing.counts:
        counts[one.severity] += one.firing
    return AlertsNow(counts["critical"], counts["warning"], counts["info"], firing.newest)


def _workers(moment: Moment) -> WorkersNow:
    roles = Counter(role for session in moment.sessions for role in session.roles)
    draining = sum(session.draining for session in moment.sessions)
    return WorkersNow(len(moment.sessions), draining, moment.lost_lately, dict(sorted(roles.items())))


def _leases(standing: Any) -> LeasesNow:
    return LeasesNow(standing["held"], standing["free"], standing["overdue"])


def _dead_letters(parts: Mapping[str, Any]) -> DeadLettersNow:
    return DeadLettersNow(parts["standing"]["jobs"], parts["standing"]["outbox"], parts["fanout"].dead_letters)


def _marks(view: OverviewView, moment: Moment, parts: Mapping[str, Any], done: int) -> dict[str, Any]:
    """Return per list a value that differs when the list has changed."""
    jobs, polls = view.jobs, view.polls
    at_work = [(one.id, one.status, one.paused, one.chunks_done, one.released) for one in view.executions.latest]
    return {
        "jobs": (jobs.due, jobs.waiting, jobs.running, jobs.latest, done),
        "alerts": (view.alerts, parts["alerts"].last_id),
        "executions": (view.executions.waiting, at_work),
        "reports": view.reports,
        "outbox": (view.outbox.waiting, view.outbox.destinations, view.outbox.failing),
        "leases": (view.leases, parts["standing"]["versions"]),
        "workers": ([(one.id, one.draining) for one in moment.sessions], view.workers.lost_lately),
        "dead_letters": view.dead_letters,
        "accounts": (polls.fresh_ratio, polls.lagging_accounts, polls.judged_accounts, polls.worst_accounts),
        "partners": polls.partners,
        "fanout": parts["fanout"],
    }


class Changes:
    """Gives each list a number that changes with the list.

    The numbers start at the present time, so that those of another process differ.
    """

    def __init__(self) -> None:
        self._marks: dict[str, Any] = {}
        self._numbers: dict[str, int] = {}

    def numbers(self, at: datetime, marks: Mapping[str, Any]) -> dict[str, int]:
        """Compare the marks at ``at`` with the former ones; return the number of each list."""
        for name, mark in marks.items():
            if name not in self._numbers:
                self._numbers[name] = int(at.timestamp())
            elif self._marks[name] != mark:
                self._numbers[name] += 1
        self._marks = dict(marks)
        return dict(self._numbers)


class Series:
    """The main figures of the last fifteen minutes, one point every five seconds."""

    def __init__(self) -> None:
        self._views: deque[OverviewView] = deque()

    def take(self, view: OverviewView) -> None:
        """Add a point when the last one is five seconds old, and drop points older than fifteen minutes."""
        if not self._views or view.at - self._views[-1].at >= POINT_EVERY:
            self._views.append(view)
        while self._views and self._views[0].at < view.at - KEPT:
            self._views.popleft()

    def show(self) -> OverviewSeries:
        """Return the points as columns."""
        jobs = [view.jobs for view in self._views]
        ends = [one.finished_per_s for one in jobs]
        return OverviewSeries(
            at=[view.at for view in self._views],
            due=[one.due for one in jobs],
            oldest_due_s=[one.oldest_due_s for one in jobs],
            started_per_s=[one.started_per_s for one in jobs],
            completed_per_s=[None if one is None else one.completed for one in ends],
            failed_per_s=[None if one is None else one.failed for one in ends],
            p50_s=[None if one.lateness is None else one.lateness.p50_s for one in jobs],
            p99_s=[None if one.lateness is None else one.lateness.p99_s for one in jobs],
            answered_per_s=[view.polls.answered_per_s for view in self._views],
            outbox_waiting=[view.outbox.waiting for view in self._views],
        )
