"""The alert rules for the outbox, sessions and the database."""

from dataclasses import replace
from datetime import timedelta

from tickwright.observe.alerts import DEAD_LETTERS, DEAD_LETTERS_MANY, AlertRule, with_queries
from tickwright.store.queries import load, with_shared

SQL = with_shared(load("tickwright.capabilities.operations.sql", "alerts.sql"), "table_lock")
OUTBOX = ("outbox_oldest", "outbox_unknown_scheme", "outbox_many_destinations")
"""Rules on the heads of the outbox, which one query reads for all of them."""
RULES: tuple[AlertRule, ...] = (
    AlertRule(
        "outbox_oldest",
        "critical",
        "The oldest outbox row to {subject} is {age_s} s old: {reason}",
        (timedelta(seconds=120),),
    ),
    AlertRule("outbox_unknown_scheme", "warning", "Outbox rows to {subject} wait: {reason}"),
    AlertRule(
        "outbox_many_destinations",
        "warning",
        "Messages to more than {count} destinations wait; alerts and metrics on the outbox may leave out some of them.",
        hold=timedelta(minutes=1),
    ),
    *with_queries(
        SQL,
        replace(DEAD_LETTERS, counts_addresses=True),
        DEAD_LETTERS_MANY,
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
            "{subject} lost its lease; other processes take its work.",
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
            "{subject} has had a transaction open for {age_s} s; dead rows cannot be removed, or tables "
            "cannot be changed, and everything slows down.",
            (timedelta(minutes=5),),
        ),
        AlertRule(
            "table_lock",
            "critical",
            "{subject} of role {role} waits with {mode} of {relation}, to which it has no right, and "
            "blocks all others there. End it (pg_terminate_backend); ALTER ROLE … NOLOGIN prevents more.",
        ),
        AlertRule(
            "notifications_pile_up",
            "critical",
            "The queue of notifications is {percent} % full; a full queue stops every notification. "
            "{subject} ({application}) holds it back.",
            (25,),
        ),
        AlertRule(
            "dead_rows",
            "warning",
            "{subject} has {dead} dead rows; is autovacuum stopped, or a transaction open?",
            (500_000,),
        ),
    ),
)
