"""What an operator sees first, as one value: the page, ``top``, ``up`` and scripts read the same overview.

Counts of every kind stop at ``jobs.capped_at`` and then mean "that many or more". A rate is ``None`` until two
heartbeats of the processes that live are known, which takes a few seconds. Fields about capabilities that nobody uses
are zero or empty.
"""

from datetime import datetime
from typing import Literal

import msgspec

Severity = Literal["critical", "warning", "info"]
WhyNotCaughtUp = Literal["nothing_due", "capped", "not_catching_up", "measuring"]


class LatenessNow(msgspec.Struct, frozen=True):
    """Start minus due of the starts of the last minute; a figure is the upper end of its histogram's bucket.

    ``None`` for a figure means more than an hour, the last bucket.
    """

    p50_s: float | None
    p99_s: float | None
    starts: int


class FinishedRates(msgspec.Struct, frozen=True):
    """How attempts end, per second. ``given_back`` and ``snoozed`` cost no attempt."""

    completed: float = 0.0
    failed: float = 0.0
    retried: float = 0.0
    cancelled: float = 0.0
    snoozed: float = 0.0
    given_back: float = 0.0


class LatestJob(msgspec.Struct, frozen=True):
    """One of the youngest jobs; the first line of its error."""

    id: int
    task_type: str
    status: str
    attempts: int
    max_attempts: int
    due_at: datetime
    error: str | None


class JobsNow(msgspec.Struct, frozen=True):
    """One-shot jobs.

    ``running`` is what the living workers said with their last heartbeat. ``caught_up_in_s`` is ``due`` divided by
    how fast it falls; where it is ``None``, ``not_caught_up`` says why. ``due_changes_per_s`` is below zero while the
    backlog falls. ``partial``: jobs have more task types and priorities than a look counts, so there may be more.
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


class PartnerNow(msgspec.Struct, frozen=True):
    """What the turns of the last ten minutes became for one partner, and whether it is called."""

    name: str
    state: str
    selected: int
    polled: int
    late: int
    superseded: int
    polls_per_s: float
    allowed: str


class PollsNow(msgspec.Struct, frozen=True):
    """Polling. ``ahead``: polls released in each second of a minute; ``trackers`` is an estimate above 50,000."""

    trackers: int
    unplaced: int
    waiting: int
    oldest_s: float
    unread_records: int
    published_per_s: float | None
    answered_per_s: float | None
    fresh_ratio: float | None
    lagging_accounts: int
    judged_accounts: int
    worst_accounts: list[str]
    ahead: list[int]
    partners: list[PartnerNow]


class OutboxNow(msgspec.Struct, frozen=True):
    """Messages that wait for the relay. ``failing`` destinations have an error at their head."""

    waiting: int
    oldest_s: float
    destinations: int
    failing: int
    published_per_s: float | None


class FanoutNow(msgspec.Struct, frozen=True):
    """Entity fan-out; ``queued`` is ``None`` where no consumer has counted.

    ``succeeded``, ``failed``, ``superseded`` and ``expired`` are of the last minute. ``called_per_s`` are calls of
    modules' functions that ended, in whatever way.
    """

    entities: int
    modules: int
    consumers: int
    queued: int | None
    dead_letters: int | None
    succeeded: int
    failed: int
    superseded: int
    expired: int
    called_per_s: float | None = None


class LastFile(msgspec.Struct, frozen=True):
    """The newest report that is finished. ``took_s`` is from the request until its file was there."""

    id: int
    type: str
    rows: int
    bytes: int
    address: str
    took_s: float


class ReportsNow(msgspec.Struct, frozen=True):
    """Reports: ``waiting`` pending, ``running`` querying or merging; finished and failed in the last hour."""

    waiting: int
    running: int
    pending: int
    querying: int
    merging: int
    finished: int
    failed: int
    last: LastFile | None


class ExecutionNow(msgspec.Struct, frozen=True):
    """One execution of a campaign or batch. ``took_s`` is ``None`` before it began."""

    id: int
    name: str
    status: str
    paused: bool
    chunks: int
    chunks_done: int
    members: int
    seen: int
    selected: int
    actions: int
    released: int
    took_s: float | None
    error_message: str | None


class ExecutionsNow(msgspec.Struct, frozen=True):
    """Executions: to be begun, since when, at work, and actions that have not left; the last few of them."""

    waiting: int
    oldest_s: float
    working: int
    unreleased: int
    latest: list[ExecutionNow]


class FiringAlert(msgspec.Struct, frozen=True):
    """An alert that fires."""

    id: int
    rule: str
    subject: str
    severity: Severity
    summary: str
    fired_at: datetime


class AlertsNow(msgspec.Struct, frozen=True):
    """Alerts that fire now, by severity, and five of them: the most severe first, of these the newest."""

    critical: int
    warning: int
    info: int
    newest: list[FiringAlert]


class WorkersNow(msgspec.Struct, frozen=True):
    """Worker sessions: processes of every role. ``lost_lately`` were declared lost in the last hour."""

    alive: int
    draining: int
    lost_lately: int
    by_role: dict[str, int]


class LeasesNow(msgspec.Struct, frozen=True):
    """Leases of the control loops. ``overdue`` have an owner who let the deadline pass, and nobody took over."""

    held: int
    free: int
    overdue: list[str]


class DeadLettersNow(msgspec.Struct, frozen=True):
    """What was given up, each counted up to the bound; ``fanout`` is ``None`` where no consumer has counted."""

    jobs: int
    outbox: int
    fanout: int | None


class OverviewSeries(msgspec.Struct, frozen=True):
    """The main figures of the last fifteen minutes in which somebody looked, a point every five seconds, oldest first.

    All lists are as long as ``at``. Times in which nobody looked are gaps between two instants.
    """

    at: list[datetime]
    due: list[int]
    oldest_due_s: list[float]
    started_per_s: list[float | None]
    completed_per_s: list[float | None]
    failed_per_s: list[float | None]
    p50_s: list[float | None]
    p99_s: list[float | None]
    answered_per_s: list[float | None]
    outbox_waiting: list[int]


class OverviewView(msgspec.Struct, frozen=True):
    """One snapshot; ``at`` is the database's clock.

    ``stale_since`` is set while the database does not answer, and ``stale_why`` says what it said: the rest is then
    the last snapshot. ``changes`` has a number per list (``jobs alerts executions reports outbox leases workers
    dead_letters accounts partners fanout``), which differs from the one before when the list has changed: compare
    it with the one you saw, and fetch the list again when it differs. ``series`` comes with ``GET /v1/overview``
    only; the stream carries ``None``.
    """

    at: datetime
    version: str
    stale_since: datetime | None
    stale_why: str | None
    jobs: JobsNow
    polls: PollsNow
    outbox: OutboxNow
    fanout: FanoutNow
    reports: ReportsNow
    executions: ExecutionsNow
    alerts: AlertsNow
    workers: WorkersNow
    leases: LeasesNow
    dead_letters: DeadLettersNow
    changes: dict[str, int]
    series: OverviewSeries | None = None
