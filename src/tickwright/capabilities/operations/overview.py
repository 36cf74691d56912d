"""The part of operations in the overview, and the metrics: sessions, leases, the outbox, alerts."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Literal

import msgspec

from tickwright.domain.targets import FORMS
from tickwright.engine.outbox.relay_rules import scheme_of
from tickwright.engine.outbox.table import lane_heads
from tickwright.observe.metrics import MetricSpec, Sample
from tickwright.plugin.overview import ANSWER_S, COUNT_MAX, OverviewPart, Rates, Reading, Shown
from tickwright.store.pool import Connection
from tickwright.store.queries import load, with_shared

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec("tickwright_session_token", "gauge", (), "Fencing token of this session; 0 without one."),
    MetricSpec("tickwright_session_held", "gauge", (), "1 while this session's lease may be relied on."),
    MetricSpec("tickwright_lease_held", "gauge", ("lease",), "1 while this process holds the lease."),
    MetricSpec("tickwright_lease_fence", "gauge", ("lease",), "Fence of a lease that this process holds."),
    MetricSpec("tickwright_lease_age_seconds", "gauge", ("lease",), "Since the last renewal of a held lease."),
    MetricSpec("tickwright_relay_messages_total", "counter", ("outcome",), "Outbox rows settled by this relay."),
    MetricSpec("tickwright_relay_lost_marks_total", "counter", (), "Outcomes dropped after a lost lease."),
    MetricSpec("tickwright_relay_busy_destinations", "gauge", (), "Destinations with a batch under way."),
    MetricSpec("tickwright_relay_failing_destinations", "gauge", (), "Destinations that wait after failures."),
    MetricSpec("tickwright_service_tick_age_seconds", "gauge", ("service",), "Since the last round of the loop."),
    MetricSpec("tickwright_service_restarts_total", "counter", ("service",), "Starts after a crash."),
    MetricSpec("tickwright_dead_letters", "gauge", ("kind",), "Dead letters, counted up to 10,000."),
    MetricSpec("tickwright_outbox_waiting", "gauge", (), "Outbox rows, counted up to 10,000."),
    MetricSpec("tickwright_outbox_oldest_seconds", "gauge", ("scheme",), "Age of the oldest outbox row."),
    MetricSpec("tickwright_alerts_firing", "gauge", ("rule", "severity"), "Alerts that fire now."),
    MetricSpec("tickwright_readings_ok", "gauge", (), "1 when the database's gauges of this page are fresh."),
    MetricSpec("tickwright_database_full", "gauge", (), "1 while the database says that its disk is full."),
)


FRAGMENTS = load("tickwright.capabilities.operations.sql", "fragments.sql")
SQL = with_shared(load("tickwright.capabilities.operations.sql", "overview.sql"), "valid_callers", of=FRAGMENTS)
SESSIONS_MAX = 1_000
Severity = Literal["critical", "warning", "info"]


class OutboxNow(msgspec.Struct, frozen=True):
    """Messages that wait for the relay. The first message of ``failing`` destinations has an error."""

    waiting: int
    oldest_s: float
    destinations: int
    failing: int
    published_per_s: float | None


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


class LivingSession(msgspec.Struct):
    """A living session; ``counters`` is ``null`` where there is no heartbeat since the last reading."""

    id: int
    roles: list[str]
    seen_s: float
    draining: bool
    counters: msgspec.Raw


class FiringCount(msgspec.Struct):
    """How many alerts of one rule fire."""

    rule: str
    severity: str
    firing: int


@dataclass(frozen=True, slots=True)
class Moment:
    """The facts of a snapshot that change every second; ``good_keys`` and ``good_sessions`` are the valid ones."""

    at: datetime
    sessions: Sequence[LivingSession]
    lost_lately: int
    good_keys: frozenset[int]
    good_sessions: frozenset[int]


@dataclass(frozen=True, slots=True)
class Firing:
    """The firing alerts; ``last_id`` is the id of the newest alert in any state."""

    counts: Sequence[FiringCount]
    newest: list[FiringAlert]
    last_id: int | None


_SESSIONS = msgspec.json.Decoder(list[LivingSession])
_NEWEST = msgspec.json.Decoder(list[FiringAlert])
_FIRING = msgspec.json.Decoder(list[FiringCount])


async def read_moment(
    connection: Connection, *, after: datetime, keys: Collection[int], sessions: Collection[int] = ()
) -> Moment:
    """Read the facts of this moment with one statement.

    Counters of sessions that were not seen ``after`` that instant are known already. ``keys`` and ``sessions`` (of
    browsers) are checked.
    """
    row = await connection.fetchrow(SQL["now"], after, SESSIONS_MAX, list(keys), list(sessions), timeout=ANSWER_S)
    good_keys, good_sessions = frozenset(row["good_keys"]), frozenset(row["good_sessions"])
    return Moment(row["at"], _SESSIONS.decode(row["sessions"]), row["lost_lately"], good_keys, good_sessions)


async def read_status(connection: Connection) -> Any:
    """Return the dead letters and waiting messages of the outbox, and the leases."""
    return await connection.fetchrow(SQL["status"], COUNT_MAX, timeout=ANSWER_S)


async def read_alerts(connection: Connection) -> Firing:
    """Return the firing alerts."""
    row = await connection.fetchrow(SQL["alerts"], timeout=ANSWER_S)
    return Firing(_FIRING.decode(row["firing"]), _NEWEST.decode(row["newest"]), row["last_id"])


class OperationsPart(OverviewPart):
    """Sessions, leases, the outbox and alerts; ``moment`` is read by the snapshots themselves."""

    fields: ClassVar = {"outbox": OutboxNow, "alerts": AlertsNow, "workers": WorkersNow, "leases": LeasesNow}
    counters: ClassVar = {"relay": dict[str, int]}
    dead_letters: ClassVar = {"outbox": int}
    series: ClassVar = {"outbox_waiting": int}
    lists = ("alerts", "leases", "outbox", "workers")

    def readings(self) -> Mapping[str, Reading]:
        """Return the readings of operations."""
        return {"alerts": read_alerts, "status": read_status, "outbox": lane_heads}

    def show(self, read: Mapping[str, Any], rates: Rates) -> Shown:
        """Return the figures of operations."""
        moment: Moment = read["moment"]
        firing: Firing = read["alerts"]
        heads, status = read["outbox"], read["status"]
        severities = Counter[str]()
        for rule in firing.counts:
            severities[rule.severity] += rule.firing
        alerts = AlertsNow(severities["critical"], severities["warning"], severities["info"], firing.newest)
        outbox = OutboxNow(
            waiting=status["outbox_waiting"],
            oldest_s=round(max((head["age_s"] for head in heads), default=0.0), 3),
            destinations=len(heads),
            failing=sum(head["error_message"] is not None for head in heads),
            published_per_s=rates.per_s(lambda counters: int(counters.relay.get("published", 0))),
        )
        roles = Counter(role for session in moment.sessions for role in session.roles)
        draining = sum(session.draining for session in moment.sessions)
        workers = WorkersNow(len(moment.sessions), draining, moment.lost_lately, dict(sorted(roles.items())))
        leases = LeasesNow(status["held"], status["free"], status["overdue"])
        lists = {
            "alerts": (alerts, firing.last_id),
            "leases": (leases, status["versions"]),
            "outbox": (outbox.waiting, outbox.destinations, outbox.failing),
            "workers": ([(session.id, session.draining) for session in moment.sessions], workers.lost_lately),
        }
        fields = {"outbox": outbox, "alerts": alerts, "workers": workers, "leases": leases}
        return Shown(fields, lists, {"outbox": status["dead"]}, {"outbox_waiting": outbox.waiting})

    async def gauges(self, connection: Connection) -> Sequence[Sample]:
        """Return the outbox and the firing alerts."""
        status = await read_status(connection)
        oldest_s: dict[str, float] = {}
        for head in await lane_heads(connection):
            scheme = scheme_of(head["destination"])
            label = scheme if scheme in FORMS else "other"  # users choose destinations; labels stay bounded
            oldest_s[label] = max(oldest_s.get(label, 0.0), head["age_s"])
        counts = (await read_alerts(connection)).counts
        return [
            Sample("tickwright_dead_letters", status["dead"], ("outbox",)),
            Sample("tickwright_outbox_waiting", status["outbox_waiting"]),
            *(Sample("tickwright_outbox_oldest_seconds", age_s, (scheme,)) for scheme, age_s in oldest_s.items()),
            *(Sample("tickwright_alerts_firing", rule.firing, (rule.rule, rule.severity)) for rule in counts),
        ]
