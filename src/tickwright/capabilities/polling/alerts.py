"""The alert rules of polling; their queries are in ``sql/alerts.sql``."""

from datetime import timedelta

from tickwright.observe.alerts import AlertRule, with_queries
from tickwright.store.queries import load

_SQL = load("tickwright.capabilities.polling.sql", "alerts.sql")
RULES: tuple[AlertRule, ...] = with_queries(
    _SQL,
    AlertRule(
        "scheduler_stopped",
        "critical",
        "{what}: no process is the {subject} (dead-man). Start a process with the role scheduler.",
        (timedelta(seconds=10), timedelta(seconds=10), timedelta(seconds=30)),
    ),
    AlertRule(
        "config_time_miss",
        "critical",
        "{count} trackers still have no schedule after their registration.",
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
        "{stale} of {polls} polls of account {subject} were made after more than 1.1 intervals; its lag "
        "is {lag_percent} %.",
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
        "Polls of {subject} wait for {late_s} s although calls are allowed; consumers are too slow, or none runs.",
        (timedelta(minutes=2),),
    ),
    AlertRule(
        "partner_breaker_open",
        "warning",
        "Calls to {subject} are stopped until {open_until} because it fails: {error}",
        (timedelta(hours=1),),
    ),
    AlertRule(
        "partner_not_callable",
        "warning",
        "{subject} cannot be called although its trackers are due: its settings have no http, and no "
        "consumer has a function for it.",
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
        "The freshness of accounts was last computed at {since}, on {wheels} wheels; the role scheduler computes it.",
        (timedelta(minutes=15),),
    ),
)
