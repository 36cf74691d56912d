"""The part of jobs in the overview."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec

from tickwright.capabilities.jobs.queries import with_claim_ranges
from tickwright.observe.metrics import LATENESS_BUCKETS_S, Sample
from tickwright.plugin.overview import (
    ANSWER_S,
    COUNT_MAX,
    SMOOTHED_S,
    SPAN_MIN_S,
    FastReading,
    OverviewPart,
    Rates,
    Reading,
    Shown,
)
from tickwright.store.pool import Connection
from tickwright.store.queries import load

SQL = with_claim_ranges(load("tickwright.capabilities.jobs.sql", "overview.sql"))
LATEST_JOBS = 10
WhyNotCaughtUp = Literal["nothing_due", "capped", "not_catching_up", "measuring"]
_ENDED = {
    "completed": ("completed",),
    "failed": ("failed",),
    "retried": ("retried",),
    "cancelled": ("cancel", "expired"),
    "snoozed": ("snoozed",),
    "given_back": ("released", "deferred", "shutdown", "gone", "lost"),
}
"""The attempt outcomes of each figure."""


class LatenessNow(msgspec.Struct, frozen=True):
    """Start minus due of the last minute's starts; a figure is the upper end of its histogram's bucket.

    ``None`` for a figure means more than an hour, the last bucket.
    """

    p50_s: float | None
    p99_s: float | None
    starts: int


class FinishedRates(msgspec.Struct, frozen=True):
    """How attempts end, per second. ``given_back`` (released) and ``snoozed`` cost no attempt."""

    completed: float = 0.0
    failed: float = 0.0
    retried: float = 0.0
    cancelled: float = 0.0
    snoozed: float = 0.0
    given_back: float = 0.0


class LatestJob(msgspec.Struct, frozen=True):
    """One of the newest jobs, with the first line of its error."""

    id: int
    task_type: str
    status: str
    attempts: int
    max_attempts: int
    due_at: datetime
    error: str | None


class JobsNow(msgspec.Struct, frozen=True):
    """One-shot jobs.

    ``running`` is the sum of the living workers' last heartbeats. ``caught_up_in_s`` is ``due`` divided by how fast it
    falls; where it is ``None``, ``not_caught_up`` is the reason. ``due_changes_per_s`` is below zero while the backlog
    falls. ``partial``: jobs have more task types and priorities than were counted, so there may be more.
    """

    due: int
    waiting: int
    running: int
    capped_at: int
    partial: bool
    oldest_due_s: float
    started_per_s: float | None
    finished_per_s: FinishedRates | None
    due_changes_per_s: float | None
    lateness: LatenessNow | None
    caught_up_in_s: float | None
    not_caught_up: WhyNotCaughtUp | None
    latest: list[LatestJob]


class WorkflowsNow(msgspec.Struct, frozen=True):
    """Workflows that run, and those that ended within the last hour by state; each is counted up to 10,000.

    ``waiting_jobs`` wait for other jobs of their workflow.
    """

    running: int = 0
    waiting_jobs: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0


class JobCounters(msgspec.Struct):
    """The counters of a process for all its jobs, or for those of one task type."""

    starts: int = 0
    late: list[int] = []
    ended: dict[str, int] = {}
    running: int = 0


class Backlog(NamedTuple):
    """What changes every second; ``cut``: more claim ranges have jobs than were counted."""

    cut: bool
    due: int
    waiting: int
    oldest_due_s: float
    latest: list[LatestJob]


_LATEST = msgspec.json.Decoder(list[LatestJob])


async def read_backlog(connection: Connection, before: Backlog | None = None) -> Backlog:
    """Read the backlog. Counts that stopped at the bound in ``before`` cost most, and would not change."""
    capped = {} if before is None else {"due": before.due, "waiting": before.waiting}
    capped = {name: count for name, count in capped.items() if count >= COUNT_MAX}
    due_max, waiting_max = (0 if name in capped else COUNT_MAX for name in ("due", "waiting"))
    row = await connection.fetchrow(SQL["now"], due_max, waiting_max, LATEST_JOBS, timeout=ANSWER_S)
    return Backlog(
        row["cut"],
        capped.get("due", row["due"]),
        capped.get("waiting", row["waiting"]),
        round(max(0.0, row["oldest_due_s"]), 3),
        _LATEST.decode(row["latest"]),
    )


async def read_workflows(connection: Connection) -> WorkflowsNow:
    """Return the numbers of workflows."""
    row = await connection.fetchrow(SQL["workflows"], COUNT_MAX, timeout=ANSWER_S)
    return WorkflowsNow(*(row[name] for name in WorkflowsNow.__struct_fields__))


async def read_dead_letters(connection: Connection) -> int:
    """Return the number of dead letters."""
    count: int = await connection.fetchval(SQL["dead_letters"], COUNT_MAX, timeout=ANSWER_S)
    return count


class JobsPart(OverviewPart):
    """The backlog of jobs, how fast it changes, and when it is over."""

    fields: ClassVar = {"jobs": JobsNow, "workflows": WorkflowsNow}
    counters: ClassVar = {"jobs": JobCounters}
    dead_letters: ClassVar = {"jobs": int}
    lists = ("jobs", "workflows")
    series: ClassVar = {
        "due": int,
        "oldest_due_s": float,
        "started_per_s": float | None,
        "completed_per_s": float | None,
        "failed_per_s": float | None,
        "p50_s": float | None,
        "p99_s": float | None,
    }

    def __init__(self) -> None:
        self._trend = Trend()

    def fast(self) -> Mapping[str, FastReading]:
        """Return the reading of the backlog."""
        return {"jobs": read_backlog}

    def readings(self) -> Mapping[str, Reading]:
        """Return the readings of the dead letters and of workflows."""
        return {"job_dead_letters": read_dead_letters, "workflows": read_workflows}

    def show(self, read: Mapping[str, Any], rates: Rates) -> Shown:
        """Return the figures of jobs."""
        backlog: Backlog = read["jobs"]
        self._trend.take(rates.now_s, backlog.due)
        change = self._trend.per_s()
        seconds, why_not = caught_up(backlog.due, change)
        jobs = JobsNow(
            due=backlog.due,
            waiting=backlog.waiting,
            running=rates.total(lambda counters: _jobs(counters).running),
            capped_at=COUNT_MAX,
            partial=backlog.cut,
            oldest_due_s=backlog.oldest_due_s,
            started_per_s=rates.per_s(lambda counters: _jobs(counters).starts),
            finished_per_s=finished(rates, _jobs),
            due_changes_per_s=change,
            lateness=lateness(rates, _jobs),
            caught_up_in_s=seconds,
            not_caught_up=why_not,
            latest=backlog.latest,
        )
        done = rates.total(lambda counters: _jobs(counters).starts + sum(_jobs(counters).ended.values()))
        points = {
            "due": jobs.due,
            "oldest_due_s": jobs.oldest_due_s,
            "started_per_s": jobs.started_per_s,
            "completed_per_s": jobs.finished_per_s and jobs.finished_per_s.completed,
            "failed_per_s": jobs.finished_per_s and jobs.finished_per_s.failed,
            "p50_s": jobs.lateness and jobs.lateness.p50_s,
            "p99_s": jobs.lateness and jobs.lateness.p99_s,
        }
        changed = (jobs.due, jobs.waiting, jobs.running, jobs.latest, done)
        fields = {"jobs": jobs, "workflows": read["workflows"]}
        lists = {"jobs": changed, "workflows": read["workflows"]}
        return Shown(fields, lists, {"jobs": read["job_dead_letters"]}, points)

    async def gauges(self, connection: Connection) -> Sequence[Sample]:
        """Return the jobs of each task type, workflows, and the dead letters."""
        rows = await connection.fetch(SQL["gauges"], COUNT_MAX)
        samples = [Sample("tickwright_jobs_partial", int(any(row["cut"] for row in rows)))]
        for row in rows:
            label = (row["task_type"],)
            samples += [
                Sample("tickwright_jobs_due", row["due"], label),
                Sample("tickwright_jobs_processing", row["processing"], label),
                Sample("tickwright_jobs_upcoming", row["upcoming"], label),
                Sample("tickwright_jobs_oldest_due_seconds", row["oldest_due_s"], label),
            ]
        now = await read_workflows(connection)
        samples += [
            Sample("tickwright_workflows_running", now.running),
            Sample("tickwright_jobs_waiting", now.waiting_jobs),
            *(
                Sample("tickwright_workflows_ended", getattr(now, state), (state,))
                for state in ("completed", "failed", "cancelled")
            ),
        ]
        return [*samples, Sample("tickwright_dead_letters", await read_dead_letters(connection), ("job",))]


def _jobs(counters: Any) -> JobCounters:
    found: JobCounters = counters.jobs
    return found


def finished(rates: Rates, of: Callable[[Any], JobCounters]) -> FinishedRates | None:
    """Return how attempts end, per second, by the counters ``of`` a process."""
    if not rates.known:
        return None

    def per_s(outcomes: Sequence[str]) -> float:
        return rates.per_s(lambda counters: sum(of(counters).ended.get(name, 0) for name in outcomes)) or 0.0

    return FinishedRates(**{name: per_s(outcomes) for name, outcomes in _ENDED.items()})


def lateness(rates: Rates, of: Callable[[Any], JobCounters]) -> LatenessNow | None:
    """Return the lateness of the last minute's starts, including those of lost sessions."""
    late: list[int] = []
    for first, last in rates.last_minute():
        new = (max(0, now - then) for now, then in zip_longest(of(last).late, of(first).late, fillvalue=0))
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


class Trend:
    """How fast the number of due jobs changes, over about ten seconds."""

    def __init__(self) -> None:
        self._due: deque[tuple[float, int]] = deque()

    def take(self, now_s: float, due: int) -> None:
        """Take the number at an instant; a count that stopped at its bound gives no rate."""
        if due >= COUNT_MAX or (self._due and now_s - self._due[-1][0] > SMOOTHED_S):
            self._due.clear()
        if due < COUNT_MAX:
            self._due.append((now_s, due))
        while self._due and self._due[0][0] < now_s - SMOOTHED_S:
            self._due.popleft()

    def per_s(self) -> float | None:
        """Return the change per second; ``None`` while that is unknown."""
        if not self._due or self._due[-1][0] - self._due[0][0] < SPAN_MIN_S:
            return None
        (then_s, before), (now_s, after) = self._due[0], self._due[-1]
        return round((after - before) / (now_s - then_s), 3)


def caught_up(due: int, changes_per_s: float | None) -> tuple[float | None, WhyNotCaughtUp | None]:
    """Return in how many seconds nothing is due at the present rate, or why that is unknown."""
    if not due:
        return None, "nothing_due"
    if due >= COUNT_MAX:
        return None, "capped"
    if changes_per_s is None:
        return None, "measuring"
    if changes_per_s >= 0:
        return None, "not_catching_up"
    return round(due / -changes_per_s, 1), None
