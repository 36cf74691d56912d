"""The alert rules of reports; their queries are in ``sql/alerts.sql``."""

from datetime import timedelta

from tickwright.observe.alerts import AlertRule, with_queries
from tickwright.store.queries import load

_SQL = load("tickwright.capabilities.reports.sql", "alerts.sql")
RULES: tuple[AlertRule, ...] = with_queries(
    _SQL,
    AlertRule("report_calls_stuck", "warning", "{count} listener calls of {subject} do not return; each keeps a slot."),
    AlertRule(
        "report_failed",
        "warning",
        "{count} reports of {subject} failed within 15 minutes, the last one {report}: {error}",
        (timedelta(minutes=15),),
    ),
    AlertRule(
        "report_overdue",
        "critical",
        "{count} reports of {subject} are unfinished after their deadline, {report} for {late_s} s (dead-man).",
        (timedelta(seconds=60),),
    ),
    AlertRule(
        "report_unserved",
        "warning",
        "No live process serves {subject}: {count} {what} of reports wait, first report {report}.",
        hold=timedelta(minutes=1),
    ),
)
