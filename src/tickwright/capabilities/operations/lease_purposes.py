"""What each lease guards, in the words of an operator."""

from collections.abc import Mapping
from types import MappingProxyType

GUARDS: Mapping[str, str] = MappingProxyType(
    {
        "alerting": "evaluates the alert rules, and tells their receivers",
        "campaign-checker": "lets actions of finished executions leave",
        "campaign-producer": "makes executions of what is due by its calendar",
        "campaign-upkeep": "forgets old executions",
        "corrector": "moves trackers: another interval, a slot too full, too old",
        "fanout-upkeep": "forgets old windows, claims and cursors of fan-out",
        "freshness": "judges every turn, fresh or stale, per account",
        "poll-relay": "publishes polls at their seconds",
        "registrar": "gives registered trackers their places",
        "relay:outbox": "publishes the outbox",
        "report-upkeep": "removes old files and records of reports",
        "selector": "selects what is polled in the next minute",
        "upkeep": "makes history tables, forgets what is old, looks for stuck jobs",
    }
)


def guards(job_name: str) -> str:
    """Return what only the holder of a lease does; empty for one that is not ours."""
    return GUARDS.get(job_name) or GUARDS.get(job_name.partition(":")[0], "")
