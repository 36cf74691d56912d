"""The overview as one value, which the dashboard, ``top``, ``up`` and scripts read.

Counts of every kind stop at ``jobs.capped_at`` and then mean "that many or more". A rate is ``None`` until two
heartbeats of the living processes are known, which takes a few seconds. Fields of unused capabilities are zero or
empty.
"""

from datetime import datetime
from typing import Literal

import msgspec

Severity = Literal["critical", "warning", "info"]
WhyNotCaughtUp = Literal["nothing_due", "capped", "not_catching_up", "measuring"]


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


class PartnerNow(msgspec.Struct, frozen=True):
    """What became of one partner's time slots of the last ten minutes, and whether it is called."""

    name: str
    state: str
    selected: int
    polled: int
    late: int
    superseded: int
    polls_per_s: float
    allowed: str


class PollsNow(msgspec.Struct, frozen=True):
    """Polling. ``ahead``: polls released in each second of the next minute; ``trackers`` is estimated above 50,000."""

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
    """Messages that wait for the relay. The first message of ``failing`` destinations has an error."""

    waiting: int
    oldest_s: float
    destinations: int
    failing: int
    published_per_s: float | None


class FanoutNow(msgspec.Struct, frozen=True):
    """Entity fan-out; ``queued`` is ``None`` where no consumer has counted.

    ``succeeded``, ``failed``, ``superseded`` and ``expired`` are of the last minute. ``called_per_s`` counts ended
    calls of modules' functions, with any outcome.
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
    """The newest finished report. ``took_s`` is from the request until its file existed."""

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
    """Executions: waiting and for how long, working, actions that have not left; and the last few."""

    waiting: int
    oldest_s: float
    working: int
    unreleased: int
    latest: list[ExecutionNow]


class FiringAlert(msgspec.Struct, frozen=True):
    """A firing alert."""

    id: int
    rule: str
    subject: str
    severity: Severity
    summary: str
    fired_at: datetime


class AlertsNow(msgspec.Struct, frozen=True):
    """Firing alerts by severity, and five of them: the most severe first, of equal ones the newest."""

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
    """Leases of the control loops. ``overdue`` have an owner that missed the deadline, and no successor."""

    held: int
    free: int
    overdue: list[str]


class DeadLettersNow(msgspec.Struct, frozen=True):
    """Dead letters, each counted up to the bound; ``fanout`` is ``None`` where no consumer has counted."""

    jobs: int
    outbox: int
    fanout: int | None


class OverviewSeries(msgspec.Struct, frozen=True):
    """The main figures of the last fifteen minutes, a point every five seconds, oldest first.

    All lists are as long as ``at``. While the overview is not in use there are no points.
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

    ``stale_since`` is set while the database does not answer, and ``stale_why`` is the reason: the rest is then the
    last snapshot. ``changes`` has a number per list (``jobs alerts executions reports outbox leases workers
    dead_letters accounts partners fanout``), which changes when the list has changed: fetch a list again when its
    number differs from the one you have. ``series`` is only in ``GET /v1/overview``; in the stream it is ``None``.
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
