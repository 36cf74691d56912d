"""Retention of operations: resolved alerts, and ended sessions of browsers."""

from datetime import timedelta

from tickwright.engine.retention import Retention, RetentionRule
from tickwright.store.queries import load


def operations_retention(*, alerts: timedelta = timedelta(days=30), sessions: timedelta = timedelta()) -> Retention:
    """Return the retention that deletes resolved alerts and ended sessions after these times."""
    rules = [RetentionRule("delete_alerts", alerts), RetentionRule("delete_sessions", sessions)]
    return Retention(load("tickwright.capabilities.operations.sql", "upkeep.sql"), rules)
