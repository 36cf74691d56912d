"""Alert rules as data: what is asked, how bad it is, and what a person should read.

A rule is a named query of ``store/sql/alerts.sql`` that returns one row per subject in trouble
(``subject`` and ``facts``), with bounds as its arguments. A subject that is returned fires; one that
is returned no longer is resolved. So every rule clears by itself, and the same trouble is one alert
however often it is seen.
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
    """

    name: str
    severity: Severity
    summary: str
    bounds: tuple[Bound, ...] = ()


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
        "session_lost",
        "warning",
        "{subject} lost its lease; its jobs were given to others.",
        (timedelta(minutes=10),),
    ),
    AlertRule(
        "old_snapshot",
        "warning",
        "{subject} has had a transaction open for {age_s} s; it keeps dead rows alive and slows everything down.",
        (timedelta(minutes=5),),
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
)

CLOCK_JUMP = AlertRule(
    "db_clock_jump",
    "critical",
    "The database's clock jumped by {jump_s} s against this host's; jobs due in between ran early or late.",
)


def summary_of(rule: AlertRule, finding: Finding) -> str:
    """Return the text of a firing alert; a fact that is missing reads ``?``."""

    class _Facts(dict[str, Any]):
        def __missing__(self, key: str) -> str:
            return "?"

    return rule.summary.format_map(_Facts(finding.facts, subject=finding.subject))[:1000]
