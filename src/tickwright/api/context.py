"""What the API is given: everything it answers from, and its limits."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from tickwright.capabilities.batches.service import CampaignsService
from tickwright.capabilities.fanout.service import FanoutService
from tickwright.capabilities.jobs.admin.service import JobService
from tickwright.capabilities.jobs.enqueue import Enqueuer
from tickwright.capabilities.jobs.requests import ScheduleBounds
from tickwright.capabilities.operations.alerts.receivers import AlertReceivers
from tickwright.capabilities.operations.listings import Operations
from tickwright.capabilities.operations.overview.snapshot import Snapshots
from tickwright.capabilities.polling.relay.admin import PollRelayAdmin
from tickwright.capabilities.polling.service import PollingService
from tickwright.capabilities.reports.service import ReportsService
from tickwright.ports.caller import Role
from tickwright.store.pool import Pool


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether this process can do its work now; ``checks`` name what was asked and how it answered."""

    ready: bool
    checks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """The bounds of one API process.

    Attributes:
        body_bytes_max: Of any body but an import's; above it 413.
        body_timeout: From the head of a request to the end of its body.
        idle_timeout: Between two pieces of an import.
        read_timeout: Of the database for one read, a connection included; above it 503 ``query_too_slow``.
        change_timeout: The same for one change that is not of many; above it 504 ``outcome_unknown``. Longer than a
            lock is waited for, so that who waits behind somebody hears ``busy``.
        key_age_max: How long an answer about a key is believed; bounds how long a revoked one works.
        requests_per_s: Per key and process; above it 429.
        burst: Requests that may come at once before the rate counts.
        schedule: How far from now a job may be due.
    """

    body_bytes_max: int = 262_144
    body_timeout: timedelta = timedelta(seconds=20)
    idle_timeout: timedelta = timedelta(seconds=30)
    read_timeout: timedelta = timedelta(seconds=3)
    change_timeout: timedelta = timedelta(seconds=10)
    key_age_max: timedelta = timedelta(milliseconds=800)
    requests_per_s: float = 50_000.0
    burst: int = 50_000
    schedule: ScheduleBounds = field(default_factory=ScheduleBounds)


@dataclass(frozen=True, slots=True)
class ApiContext:
    """Everything that the API answers from.

    Attributes:
        pool: For keys; the services have their own reference.
        jobs: One-shot jobs, task types, dead letters.
        operations: Workers, alerts, the outbox, the audit trail, API keys.
        polling: Trackers, accounts, partners, slices.
        fanout: Entities and modules.
        reports: Report types and reports.
        campaigns: Campaigns, programs' batches, executions.
        polls: The relays of polls.
        receivers: Who hears of alerts.
        enqueuer: The one that ``jobs`` uses; single requests of all connections are collected in it.
        readiness: Asked for ``/readyz``; bounded by its owner to a second.
        metrics: Prometheus text for ``/metrics``.
        overview: Snapshots for the overview; whoever builds it runs it.
        version: Of the product.
        limits: Bounds of this process.
        path_prefix: Under which browsers see this process, such as ``/tickwright``; empty at the root.
        payloads_from: The lowest role that sees payloads and other data of users.
    """

    pool: Pool
    jobs: JobService
    operations: Operations
    polling: PollingService
    fanout: FanoutService
    reports: ReportsService
    campaigns: CampaignsService
    polls: PollRelayAdmin
    receivers: AlertReceivers
    enqueuer: Enqueuer
    readiness: Callable[[], Awaitable[Readiness]]
    metrics: Callable[[], bytes]
    overview: Snapshots
    version: str
    limits: ApiLimits = field(default_factory=ApiLimits)
    path_prefix: str = ""
    payloads_from: Role = Role.VIEWER

    @property
    def cookie_path(self) -> str:
        """What a browser sends the session's cookie to."""
        return f"{self.path_prefix}/"
