"""The alert rules of one-shot jobs; their queries are in ``sql/alerts.sql``."""

from datetime import timedelta

from tickwright.capabilities.jobs.model import with_claim_ranges
from tickwright.observe.alerts import AlertRule, with_queries
from tickwright.store.queries import load

_SQL = with_claim_ranges(load("tickwright.capabilities.jobs.sql", "alerts.sql"))
RULES: tuple[AlertRule, ...] = with_queries(
    _SQL,
    AlertRule(
        "unknown_task_type",
        "warning",
        "Jobs of type {subject} wait: the type is not registered. Register it (task-types put) or cancel them.",
        (timedelta(seconds=10),),
    ),
    AlertRule(
        "task_type_gone", "warning", "The endpoint of {subject} answered 410; its jobs wait until task-types enable."
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
        "no_live_worker", "critical", "Jobs are due and no worker is alive (dead-man).", (timedelta(seconds=30),)
    ),
    AlertRule(
        "threads_stuck", "warning", "{count} synchronous handlers of {subject} do not return; each keeps a thread."
    ),
)
