"""The alert rules of one-shot jobs; their queries are in ``sql/alerts.sql``."""

from datetime import timedelta

from tickwright.capabilities.jobs.queries import with_claim_ranges
from tickwright.observe.alerts import DEAD_LETTERS, DEAD_LETTERS_MANY, AlertRule, with_queries
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
    DEAD_LETTERS,
    DEAD_LETTERS_MANY,
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
        "schedule_late",
        "critical",
        "No job is made of schedule {subject}, due for {late_s} s: start a process with the role scheduler.",
        (timedelta(seconds=30),),
    ),
    AlertRule("schedule_failing", "warning", "The jobs of schedule {subject} cannot be made: {problem}"),
    AlertRule(
        "not_served",
        "critical",
        "Jobs of {subject} are due and no live worker serves them: its queue is {queue}, it needs {needs}.",
        (timedelta(seconds=30),),
    ),
    AlertRule(
        "payload_key_missing",
        "critical",
        "{workers} workers cannot read jobs of {subject}: add the key {key} to their TICKWRIGHT_PAYLOAD_KEYS.",
    ),
    AlertRule(
        "workflow_blocked",
        "warning",
        "Workflow {subject} waits until a failed job of it is retried: {open} jobs have not ended.",
    ),
    AlertRule(
        "workflow_failed", "warning", "{count} workflows {subject} failed within an hour.", (timedelta(hours=1),)
    ),
    AlertRule(
        "threads_stuck", "warning", "{count} synchronous handlers of {subject} do not return; each keeps a thread."
    ),
)
