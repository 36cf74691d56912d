"""Evaluates the alert rules in a leased loop that runs in every role, so that no process is the only monitor of itself.

A round is one transaction under the lease ``alerting``. It queries every rule, opens new alerts, refreshes the firing
ones and resolves those that are over. A cut result resolves nothing, and the number of firing alerts per rule is
bounded.

When a rule fails, the round runs again with a savepoint around each rule, and so do the next rounds until none fails.
The other rules are evaluated, and the failed one is an alert itself. So is a rule whose statement takes longer than
``RULE_S``: rules may read rows that any program inserts. A round ends after ``ROUND_S``, and the next one begins with
the rules that it left out.

A round also renews the lease, so an idle process has four transactions a minute. The same transaction writes one outbox
row per changed alert and matching receiver, which the relay delivers (:mod:`.receivers`). Of a rule with hundreds of
new alerts it writes ``NOTIFIED_MAX`` a round.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import structlog

from tickwright.capabilities.operations.alerts.rules import OUTBOX, SQL
from tickwright.domain.leases import LeaseTerms
from tickwright.domain.masking import masked_address, masked_text, masked_tokens
from tickwright.engine.leases import Lease, LeasedService, Leases
from tickwright.engine.outbox.table import LANES_WALKED, lane_heads
from tickwright.observe.alerts import CLOCK_JUMP, RULE_FAILED, AlertFinding, AlertRule, summary_of
from tickwright.ports.ids import monotonic
from tickwright.store.pool import UNAVAILABLE, Connection
from tickwright.store.queries import load

RECEIVERS = load("tickwright.capabilities.operations.sql", "alert_receivers.sql")
LEASE = "alerting"
EVERY = timedelta(seconds=15)
TERMS = LeaseTerms(ttl=timedelta(seconds=45), margin=timedelta(seconds=5))
RULE_S = 5.0
ROUND_S = 20.0
JUMP_S = 1.0
JUMP_SHOWN_S = 300.0
SUBJECT_CHARS_MAX = 200
ERROR_CHARS_MAX = 300
FIRING_MAX = 2000
NOTIFIED_MAX = 20

_log = structlog.get_logger("tickwright.alerts")


class _RuleFailedError(Exception):
    """A rule failed and aborted the transaction of the round."""


class Findings(list[AlertFinding]):
    """The findings of a rule; ``cut`` where there may be more than it read."""

    def __init__(self, found: Iterable[AlertFinding] = (), *, cut: bool = False) -> None:
        super().__init__(found)
        self.cut = cut


class ClockWatch:
    """Compares the database's clock with the monotonic one from round to round."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None
        self._jump_s = 0.0
        self._seen_s = float("-inf")

    def sample(self, db_s: float, queried_s: float, answered_s: float) -> None:
        """Take one reading, made between two instants of the monotonic clock."""
        middle_s, doubt_s = (queried_s + answered_s) / 2, (answered_s - queried_s) / 2
        if self._last is not None:
            jump_s = (db_s - self._last[0]) - (middle_s - self._last[1])
            if abs(jump_s) > JUMP_S + 2 * doubt_s:
                self._jump_s, self._seen_s = jump_s, answered_s
        self._last = (db_s, middle_s)

    def findings(self, now_s: float) -> list[AlertFinding]:
        """Return the jump within the last five minutes, if there was one."""
        if now_s - self._seen_s > JUMP_SHOWN_S:
            return []
        return [AlertFinding("database", {"jump_s": round(self._jump_s, 1)})]


class RuleSchedule:
    """Which rules are due in a round, and which subjects were found for long enough to fire."""

    def __init__(self) -> None:
        self._queried_s: dict[str, float] = {}
        self._since_s: dict[str, dict[str, float]] = {}

    def queried_s(self, rule: AlertRule) -> float:
        """Return when the rule was queried last."""
        return self._queried_s.get(rule.name, float("-inf"))

    def is_due(self, rule: AlertRule, now_s: float) -> bool:
        """Whether to query the rule now."""
        queried_s = self.queried_s(rule)
        if queried_s < now_s < queried_s + rule.every.total_seconds():  # equal: the same round runs again
            return False
        self._queried_s[rule.name] = now_s
        return True

    def lasting(
        self, rule: AlertRule, findings: Sequence[AlertFinding], firing: Collection[str], now_s: float
    ) -> list[AlertFinding]:
        """Return the findings that last as long as the rule requires, and those that fire already in any process."""
        before = self._since_s.get(rule.name, {})
        since_s = {finding.subject: before.get(finding.subject, now_s) for finding in findings}
        self._since_s[rule.name] = since_s
        hold_s = rule.hold.total_seconds()
        return [one for one in findings if one.subject in firing or now_s - since_s[one.subject] >= hold_s]


class Alerting(LeasedService):
    """Evaluates the rules until stopped; a :class:`tickwright.ports.service.Service`.

    Args:
        rules: The rules of all plugins; those of one name are evaluated as one rule.
        every: Between two rounds; at most a third of the lease's length.
    """

    def __init__(self, leases: Leases, *, rules: Sequence[AlertRule], every: timedelta = EVERY) -> None:
        super().__init__("alerting", leases, LEASE, self._rounds, terms=TERMS, kept=False)
        self._every = every
        self._rules: dict[str, list[AlertRule]] = defaultdict(list)
        for rule in rules:
            self._rules[rule.name].append(rule)
        self.clock = ClockWatch()
        self.schedule = RuleSchedule()
        self._failed: dict[str, str] = {}

    async def _rounds(self, lease: Lease) -> None:
        while lease.holds() and not self.stopping.is_set():
            try:
                await self.round(lease)
            except UNAVAILABLE as error:
                _log.warning("alerts.round_failed", error=repr(error))
            self.tick()
            await self.rest(self._every.total_seconds())

    async def round(self, lease: Lease) -> None:
        """Evaluate every rule once; write nothing when the lease is lost."""
        now_s = monotonic()
        try:
            await self._round(lease, now_s, isolated=bool(self._failed))
        except _RuleFailedError:
            await self._round(lease, now_s, isolated=True)

    async def _round(self, lease: Lease, now_s: float, *, isolated: bool) -> None:
        async with lease.transaction() as connection:
            if connection is None:
                return
            queried_s = monotonic()
            db_s = await connection.fetchval(SQL["clock"], f"{round(1000 * RULE_S)}ms")
            self.clock.sample(db_s, queried_s, monotonic())
            firing: defaultdict[str, set[str]] = defaultdict(set)
            for row in await connection.fetch(SQL["firing"]):
                firing[row["rule"]].add(row["subject"])
            for rule in sorted((parts[0] for parts in self._rules.values()), key=self._turn):
                if self.stopping.is_set():  # with a slow database, rounds are long; what was found is written
                    return
                if self.schedule.is_due(rule, now_s):
                    await self._evaluate(connection, rule, firing[rule.name], isolated=isolated)
                if monotonic() - queried_s > ROUND_S:
                    break
            await _apply_findings(connection, CLOCK_JUMP, self.clock.findings(monotonic()), firing[CLOCK_JUMP.name])
            failed = [AlertFinding(name, {"error": error}) for name, error in self._failed.items()]
            await _apply_findings(connection, RULE_FAILED, failed, firing[RULE_FAILED.name])

    def _turn(self, rule: AlertRule) -> tuple[bool, float]:
        """Return the sort key of a round: failed rules come last, else those first that were queried longest ago."""
        return rule.name in self._failed, self.schedule.queried_s(rule)

    async def _evaluate(
        self, connection: Connection, rule: AlertRule, firing: Collection[str], *, isolated: bool
    ) -> None:
        try:
            async with connection.transaction() if isolated else nullcontext():
                found = await _query(connection, self._rules[rule.name])
                lasting = self.schedule.lasting(rule, found, firing, monotonic()) if rule.hold else found
                await _apply_findings(connection, rule, lasting, firing, cut=found.cut)
        except Exception as error:
            if connection.is_closed() or isinstance(error, TimeoutError):  # the database failed, not the rule
                raise
            self._failed[rule.name] = repr(error)[:ERROR_CHARS_MAX]
            if not isolated:
                raise _RuleFailedError from error
            _log.error("alerts.rule_failed", rule=rule.name, error=repr(error))
        else:
            self._failed.pop(rule.name, None)


async def _query(connection: Connection, parts: Sequence[AlertRule]) -> Findings:
    """Return the findings of a rule; its parts are the queries of several plugins."""
    findings: dict[str, AlertFinding] = {}
    cut = False
    for part in parts:
        if part.name in OUTBOX:
            return await _query_outbox(connection, part)
        rows = await connection.fetch(part.sql, *part.bounds)
        cut = cut or len(rows) >= part.rows_max or any(row.get("cut") for row in rows)
        for row in rows:
            _take(findings, part, row["subject"], json.loads(row["facts"]))
    return Findings(findings.values(), cut=cut)


def _take(findings: dict[str, AlertFinding], part: AlertRule, subject: str, facts: dict[str, Any]) -> None:
    """Add one subject. Equal subjects are summed where they are counted, else the first one is kept.

    An address is cut behind its host: the rest may be a credential, and alerts are sent to receivers.
    """
    subject = (masked_address(subject) if part.counts_addresses else subject)[:SUBJECT_CHARS_MAX]
    found = findings.get(subject)
    if found is None:
        findings[subject] = AlertFinding(subject, facts)
    elif part.counts_addresses:
        findings[subject] = AlertFinding(subject, {"count": found.facts["count"] + facts["count"]})


async def _query_outbox(connection: Connection, rule: AlertRule) -> Findings:
    findings: dict[str, AlertFinding] = {}
    heads = await lane_heads(connection)
    cut = any(head["cut"] for head in heads)
    if rule.name == "outbox_many_destinations":
        return Findings([AlertFinding("destinations", {"count": LANES_WALKED})] if cut else [])
    for head in sorted(heads, key=lambda one: one["age_s"]):  # of equal subjects the oldest wins
        subject = masked_address(head["destination"])[:SUBJECT_CHARS_MAX]
        reason = head["error_message"] or "no relay has tried it"
        unknown = reason.startswith("unknown_scheme")
        bound = rule.bounds[0] if rule.bounds else timedelta()
        late = isinstance(bound, timedelta) and head["age_s"] > bound.total_seconds()
        if unknown if rule.name == "outbox_unknown_scheme" else late and not unknown:
            findings[subject] = AlertFinding(subject, {"age_s": round(head["age_s"]), "reason": reason[:300]})
    return Findings(findings.values(), cut=cut)


async def _apply_findings(
    connection: Connection,
    rule: AlertRule,
    findings: Sequence[AlertFinding],
    firing: Collection[str],
    *,
    cut: bool = False,
) -> None:
    """Open, refresh and resolve the alerts of one rule, and notify the receivers of changes.

    A cut result resolves nothing, because a subject that it left out may still be affected. It opens no alert beyond
    ``FIRING_MAX``, so that made-up names cannot fire without bound. Receivers are external servers: an address in an
    error is cut behind its host.
    """
    changed: list[int] = []
    if cut:
        new = [finding for finding in findings if finding.subject not in firing]
        beyond = {finding.subject for finding in new[max(0, FIRING_MAX - len(firing)) :]}
        findings = [finding for finding in findings if finding.subject not in beyond]
    subjects = [finding.subject for finding in findings]
    if findings:
        summaries = [masked_text(summary_of(rule, finding)) for finding in findings]
        facts = [masked_tokens(json.dumps(dict(finding.facts)).encode()).decode() for finding in findings]
        rows = await connection.fetch(SQL["fire"], rule.name, rule.severity, subjects, summaries, facts)
        for row in rows:
            if row["is_new"]:
                changed.append(row["id"])
                _log.warning("alert.firing", rule=rule.name, subject=row["subject"], severity=rule.severity)
    over = not cut and not set(firing) <= set(subjects)
    for row in await connection.fetch(SQL["resolve"], rule.name, subjects) if over else ():
        changed.append(row["id"])
        _log.info("alert.resolved", rule=rule.name, subject=row["subject"])
    if changed:
        await connection.execute(RECEIVERS["notify"], changed, NOTIFIED_MAX)
