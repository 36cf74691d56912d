"""Alert rules as data: what is asked, how bad it is, and what a person should read.

A rule is a query that returns one row per subject in trouble (``subject`` and ``facts``), with bounds as its
arguments. A returned subject fires; one that is no longer returned is resolved, unless the answer was cut: then it may
be among what was left out. So every rule clears by itself, and the same trouble is one alert however often it is found.
Each plugin has rules of its own; rules of one name are one rule whose findings come from several plugins.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
        hold: A subject fires only when it was found for so long, round after round: for what a deploy looks like.
        every: At least so long between two looks: for what costs more than a few pages.
        rows_max: As many rows as its query returns at most; an answer of so many may be cut. A column
            ``cut`` says so, too.
        sql: Its query; empty for a rule that the alert loop evaluates by itself.
        counts_addresses: Its subjects are destinations, which are masked; equal ones are counted together.
    """

    name: str
    severity: Severity
    summary: str
    bounds: tuple[Bound, ...] = ()
    hold: timedelta = timedelta()
    every: timedelta = timedelta()
    rows_max: int = 1000
    sql: str = ""
    counts_addresses: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """One subject in trouble, as a rule found it."""

    subject: str
    facts: Mapping[str, Any]


class AlertRules(tuple[AlertRule, ...]):
    """The rules of every plugin."""

    __slots__ = ()


def with_queries(queries: Mapping[str, str], *rules: AlertRule) -> tuple[AlertRule, ...]:
    """Return ``rules`` with their queries, which have the same names. Raises ``KeyError`` where one is missing."""
    return tuple(replace(rule, sql=queries[rule.name]) for rule in rules)


CLOCK_JUMP = AlertRule(
    "db_clock_jump",
    "critical",
    "The database's clock jumped by {jump_s} s against this host's; jobs due in between ran early or late.",
)

RULE_FAILED = AlertRule(
    "alert_rule_failed",
    "critical",
    "The alert rule {subject} cannot be evaluated, so its alerts stay as they are: {error}",
)
OWN_RULES = (CLOCK_JUMP, RULE_FAILED)
"""What the loop finds by itself, without a query."""


def summary_of(rule: AlertRule, finding: Finding) -> str:
    """Return the text of a firing alert; a fact that is missing reads ``?``."""

    class _Facts(dict[str, Any]):
        def __missing__(self, key: str) -> str:
            return "?"

    return rule.summary.format_map(_Facts(finding.facts, subject=finding.subject))[:1000]
