"""Alert rules as data: a query, a severity, and a text for operators.

A rule's query takes the rule's bounds as arguments, and returns one row per subject in trouble (``subject`` and
``facts``). A returned subject fires. One that is no longer returned is resolved, unless the answer was cut: then it may
be among the omitted rows. So every rule clears by itself, and one trouble is one alert however often it is found. Each
plugin has its own rules; rules with one name are one rule whose findings come from several plugins.
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
        severity: How urgent it is.
        summary: For operators; may contain ``{subject}`` and the facts.
        bounds: The query's arguments, in order.
        hold: A subject fires only after it was found for this long, in every round: hides the effects of a deploy.
        every: Minimum time between two evaluations, for queries that read more than a few pages.
        rows_max: Most rows that its query returns; an answer with as many may be cut. A column ``cut`` also says so.
        sql: Its query; empty for a rule that the alert loop evaluates itself.
        counts_addresses: Its subjects are destinations. They are masked, and equal ones are counted together.
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
class AlertFinding:
    """One affected subject, found by a rule."""

    subject: str
    facts: Mapping[str, Any]


class AlertRules(tuple[AlertRule, ...]):
    """The rules of every plugin."""

    __slots__ = ()


def with_queries(queries: Mapping[str, str], *rules: AlertRule) -> tuple[AlertRule, ...]:
    """Return ``rules`` with their queries of the same names. Raises ``KeyError`` where one is missing."""
    return tuple(replace(rule, sql=queries[rule.name]) for rule in rules)


DEAD_LETTERS = AlertRule(
    "dead_letters",
    "warning",
    "{count} new dead letters of {subject} within the last hour; see dead-letters list.",
    (timedelta(hours=1),),
)
DEAD_LETTERS_MANY = AlertRule(
    "dead_letters_many",
    "warning",
    "More than {count} jobs or messages died within the last hour; the alerts on dead letters read the newest "
    "{count}, and may leave out types and destinations.",
    (timedelta(hours=1),),
    every=timedelta(minutes=1),
)
"""Rules of two plugins, one for failed jobs and one for messages, with a query each."""

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
"""Rules that the alert loop evaluates itself, without a query."""


def summary_of(rule: AlertRule, finding: AlertFinding) -> str:
    """Return the text of a firing alert; a missing fact becomes ``?``."""

    class _Facts(dict[str, Any]):
        def __missing__(self, key: str) -> str:
            return "?"

    return rule.summary.format_map(_Facts(finding.facts, subject=finding.subject))[:1000]
