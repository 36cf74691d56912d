"""The alert rules of batches; their queries are in ``sql/alerts.sql``."""

from datetime import timedelta

from tickwright.observe.alerts import AlertRule, with_queries
from tickwright.store.queries import load

_SQL = load("tickwright.capabilities.batches.sql", "alerts.sql")
RULES: tuple[AlertRule, ...] = with_queries(
    _SQL,
    AlertRule(
        "scheduler_stopped",
        "critical",
        "{what}: no process is the {subject} (dead-man). Start a process with the role scheduler.",
        (timedelta(seconds=10), timedelta(seconds=30), timedelta(minutes=10)),
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
        "{count} executions of {subject} are due and not started, {execution} for {late_s} s.",
        (timedelta(minutes=10),),
    ),
    AlertRule(
        "execution_stalled",
        "critical",
        "Execution {execution} of {subject} has made no progress for {idle_s} s: {done} of {chunks} "
        "chunks are done (dead-man).",
        (timedelta(minutes=10),),
        every=timedelta(minutes=1),
    ),
)
