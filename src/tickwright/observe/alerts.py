"""Alert rules as data: what is asked, how bad it is, and what a person should read.

A rule is a named query of ``store/sql/alerts.sql`` that returns one row per subject in trouble
(``subject`` and ``facts``), with bounds as its arguments. A subject that is returned fires; one that
is returned no longer is resolved, unless the answer was cut: then it may be among what was left out. So every
rule clears by itself, and the same trouble is one alert however often it is seen.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

Severity = Literal["info", "warning", "critical"]
Bound = timedelta | int


@dataclass(frozen=True, slots=True)
class AlertRule:
    """One rule.

    Attributes:
        name: Stable; also the name of its query.
        severity: How soon somebody should look.
        summary: For a person; ``{subject}`` and the facts may stand in it.
        bounds: The query's arguments, in order.
        hold: A subject fires only when it was found for so long, round after round: for what a deploy looks like.
        every: At least so long between two looks: for what costs more than a few pages.
        rows_max: As many rows as its query returns at most; an answer of so many may be cut.
    """

    name: str
    severity: Severity
    summary: str
    bounds: tuple[Bound, ...] = ()
    hold: timedelta = timedelta()
    every: timedelta = timedelta()
    rows_max: int = 1000


@dataclass(frozen=True, slots=True)
class Finding:
    """One subject in trouble, as a rule found it."""

    subject: str
    facts: Mapping[str, Any]


RULES: tuple[AlertRule, ...] = (
    AlertRule(
        "unknown_task_type",
        "warning",
        "Jobs of type {subject} wait: nobody knows the type. Register it (task-types put) or cancel them.",
        (timedelta(seconds=10),),
    ),
    AlertRule(
        "task_type_gone",
        "warning",
        "The endpoint of {subject} answered 410; its jobs wait until task-types enable.",
    ),
    AlertRule(
        "dead_letters",
        "warning",
        "{count} new dead letters of {subject} within the last hour; see dead-letters list.",
        (timedelta(hours=1),),
    ),
    AlertRule(
        "dead_letters_many",
        "warning",
        "More than {count} jobs or messages died within the last hour; the alerts on dead letters read the newest "
        "{count}, and may leave out types and destinations.",
        (timedelta(hours=1),),
        every=timedelta(minutes=1),
    ),
    AlertRule(
        "lateness",
        "critical",
        "Jobs of {subject} are {late_s} s late although workers are alive.",
        (timedelta(seconds=60),),
    ),
    AlertRule(
        "no_live_worker",
        "critical",
        "Jobs are due and no worker is alive (dead-man).",
        (timedelta(seconds=30),),
    ),
    AlertRule(
        "outbox_oldest",
        "critical",
        "The outbox row to {subject} that waits longest is {age_s} s old: {reason}",
        (timedelta(seconds=120),),
    ),
    AlertRule(
        "outbox_unknown_scheme",
        "warning",
        "Outbox rows to {subject} wait: {reason}",
    ),
    AlertRule(
        "outbox_many_destinations",
        "warning",
        "Messages to more than {count} destinations wait; alerts and metrics on the outbox may leave out some of them.",
        hold=timedelta(minutes=1),
    ),
    AlertRule(
        "possible_data_loss",
        "critical",
        "The database went from timeline {old} to {new} at {noticed_at} (forked at {forked_at}): "
        "what was committed last may be missing.",
        (timedelta(days=1),),
        rows_max=10,
    ),
    AlertRule(
        "session_lost",
        "warning",
        "{subject} lost its lease; its jobs were given to others.",
        (timedelta(minutes=10),),
    ),
    AlertRule(
        "database_slow",
        "critical",
        "{subject}: {what} takes {took_ms} ms, more than {bound_ms} ms: everything runs late, or partners are not "
        "called, and leases may be lost. Run it near the database, or set TICKWRIGHT_LEASE=10s.",
        (500, 3000),
    ),
    AlertRule(
        "old_snapshot",
        "warning",
        "{subject} has had a transaction open for {age_s} s; it keeps dead rows alive, or tables from being changed, "
        "and slows everything down.",
        (timedelta(minutes=5),),
    ),
    AlertRule(
        "table_lock",
        "critical",
        "{subject} of role {role} waits with {mode} of {relation}, to which it has no right, and holds up everybody "
        "there. End it (pg_terminate_backend); ALTER ROLE … NOLOGIN keeps it away.",
    ),
    AlertRule(
        "notifications_pile_up",
        "critical",
        "The queue of notifications is {percent} % full; full, it stops all. {subject} ({application}) keeps it.",
        (25,),
    ),
    AlertRule(
        "dead_rows",
        "warning",
        "{subject} has {dead} dead rows; is autovacuum stopped, or a transaction open?",
        (500_000,),
    ),
    AlertRule(
        "threads_stuck",
        "warning",
        "{count} synchronous handlers of {subject} do not come back; each keeps its thread.",
    ),
    AlertRule(
        "report_calls_stuck",
        "warning",
        "{count} calls of listeners of {subject} do not come back; each keeps its place.",
    ),
    AlertRule(
        "scheduler_stopped",
        "critical",
        "{what}: nobody is the {subject} (dead-man). Start a process with the role scheduler.",
        (timedelta(seconds=10), timedelta(seconds=10), timedelta(seconds=30), timedelta(minutes=10)),
    ),
    AlertRule(
        "config_time_miss",
        "critical",
        "{count} trackers have no schedule long after they were registered.",
        (timedelta(minutes=10),),
    ),
    AlertRule(
        "missed_previous_poll",
        "warning",
        "{count} trackers of {subject} were due again before their previous poll was made.",
        (timedelta(hours=1),),
    ),
    AlertRule(
        "account_lag",
        "warning",
        "{stale} of {polls} polls of account {subject} came after more than 1.1 intervals; its lag is {lag_percent} %.",
    ),
    AlertRule(
        "poll_relay_stalled",
        "critical",
        "Polls of shard {subject} are {late_s} s behind their release: no relay runs, or its broker does not answer.",
        (timedelta(seconds=60),),
    ),
    AlertRule(
        "polls_wait",
        "critical",
        "Polls of {subject} wait for {late_s} s although it may be called; consumers are too slow, or none runs.",
        (timedelta(minutes=2),),
    ),
    AlertRule(
        "partner_breaker_open",
        "warning",
        "Nobody calls {subject} until {open_until}, because it fails: {error}",
        (timedelta(hours=1),),
    ),
    AlertRule(
        "partner_not_callable",
        "warning",
        "Nobody can call {subject}, and trackers of it are due: its settings have no http, and no consumer a function.",
        (timedelta(minutes=1),),
    ),
    AlertRule(
        "poll_group_lag",
        "critical",
        "Polls on {subject} wait unread for {late_s} s: {lag} in {partitions} partitions, read by {readers} consumers.",
        (timedelta(minutes=2),),
    ),
    AlertRule(
        "freshness_budget",
        "warning",
        "Account {subject} has overdrawn its error budget: {percent} % of a month's polls were fresh, "
        "{recent_percent} % of its last interval's, and its objective is {objective_percent} %.",
    ),
    AlertRule(
        "freshness_unknown",
        "warning",
        "How fresh accounts are was last judged at {since}, on {wheels} wheels; the role scheduler does it.",
        (timedelta(minutes=15),),
    ),
    AlertRule(
        "fanout_dead_letters",
        "warning",
        "{count} dead letters of fan-out; see dead-letters list --kind fanout.",
    ),
    AlertRule(
        "fanout_no_consumer",
        "critical",
        "{count} entities are not polled for {modules}: no fanout-consumer is alive (dead-man).",
        hold=timedelta(minutes=1),
    ),
    AlertRule(
        "fanout_no_handler",
        "warning",
        "No fanout-consumer has a function for {subject}, for which {count} entities are polled.",
        hold=timedelta(minutes=1),
    ),
    AlertRule(
        "fanout_unknown_module",
        "warning",
        "{count} entities name the module {subject}, which nobody knows. Set it up (modules put) or correct the list.",
        rows_max=100,
    ),
    AlertRule(
        "fanout_many_lists",
        "info",
        "Entities have more than {count} different lists of modules; alerts on what they name read {count} of them.",
        every=timedelta(minutes=1),
    ),
    AlertRule(
        "fanout_stale",
        "warning",
        "{count} entities had no success for {subject} within three intervals, {entity} since {since}.",
        (timedelta(minutes=1),),
        every=timedelta(minutes=1),
    ),
    AlertRule(
        "fanout_failing",
        "warning",
        "{count} entities fail for {subject} again and again, the last one {entity}: {error}",
        (3,),
        every=timedelta(minutes=1),
    ),
    AlertRule(
        "report_failed",
        "warning",
        "{count} reports of {subject} failed within 15 minutes, the last one {report}: {error}",
        (timedelta(minutes=15),),
    ),
    AlertRule(
        "report_overdue",
        "critical",
        "{count} reports of {subject} are not over behind their deadline, {report} for {late_s} s (dead-man).",
        (timedelta(seconds=60),),
    ),
    AlertRule(
        "report_unserved",
        "warning",
        "Nobody alive serves {subject}: {count} {what} of reports wait, first of all report {report}.",
        hold=timedelta(minutes=1),
    ),
    AlertRule(
        "execution_failed",
        "warning",
        "{count} executions of {subject} failed within a day and were not retried, the last one {execution}: {error}",
        (timedelta(days=1),),
        every=timedelta(minutes=1),
    ),
    AlertRule(
        "execution_backlog",
        "warning",
        "{count} executions of {subject} are due and not begun, {execution} for {late_s} s.",
        (timedelta(minutes=10),),
    ),
    AlertRule(
        "execution_stalled",
        "critical",
        "Execution {execution} of {subject} stands for {idle_s} s: {done} of {chunks} chunks are done (dead-man).",
        (timedelta(minutes=10),),
        every=timedelta(minutes=1),
    ),
)

CLOCK_JUMP = AlertRule(
    "db_clock_jump",
    "critical",
    "The database's clock jumped by {jump_s} s against this host's; jobs due in between ran early or late.",
)

RULE_FAILED = AlertRule(
    "alert_rule_failed",
    "critical",
    "The alert rule {subject} cannot be evaluated, so its alerts stay as they are: {error}",
)
OWN_RULES = (CLOCK_JUMP, RULE_FAILED)
"""What the loop finds by itself, without a query."""


def summary_of(rule: AlertRule, finding: Finding) -> str:
    """Return the text of a firing alert; a fact that is missing reads ``?``."""

    class _Facts(dict[str, Any]):
        def __missing__(self, key: str) -> str:
            return "?"

    return rule.summary.format_map(_Facts(finding.facts, subject=finding.subject))[:1000]
