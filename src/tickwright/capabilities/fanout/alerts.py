"""The alert rules of fan-out; their queries are in ``sql/alerts.sql``."""

from datetime import timedelta

from tickwright.capabilities.fanout.overview import WALKS
from tickwright.observe.alerts import AlertRule, with_queries
from tickwright.store.queries import load, with_shared

_SQL = with_shared(load("tickwright.capabilities.fanout.sql", "alerts.sql"), "listed", "lists", of=WALKS)
RULES: tuple[AlertRule, ...] = with_queries(
    _SQL,
    AlertRule(
        "fanout_dead_letters", "warning", "{count} dead letters of fan-out; see dead-letters list --kind fanout."
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
        "{count} entities name the module {subject}, which is not registered. Register it (modules put) "
        "or correct the list.",
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
        "{count} entities fail repeatedly for {subject}, the last one {entity}: {error}",
        (3,),
        every=timedelta(minutes=1),
    ),
)
