"""Evaluates the alert rules, in a leased loop that every role carries, so that the dead one is not its own judge.

A round is one transaction under the lease ``alerting``: ask every rule, open what is new, say that
the rest is still seen, resolve what is over. Of an answer that was cut nothing is over, and the alerts of one rule stay
bounded. When a rule fails, the round is done again with a savepoint
around each rule, and so are the next ones until none fails: the others are evaluated, and the one that failed is an
alert itself. So is one with a statement that takes longer than ``RULE_S``: what rules read may grow with rows that any
program inserts. A round ends after ``ROUND_S``, and the next one begins with the rules that it left out.

A round also renews the lease, so an idle process pays four transactions a minute. What fired or was resolved is told
in the same transaction: one outbox row per alert and receiver that wants to hear of it, which the relay delivers
(:mod:`.receivers`). Of a rule whose alerts fire by the hundreds it tells ``TOLD_MAX`` a round.
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
from tickwright.observe.alerts import CLOCK_JUMP, RULE_FAILED, AlertRule, Finding, summary_of
from tickwright.ports.ids import monotonic
from tickwright.ports.probe import NO_PROBE, Probe
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
TOLD_MAX = 20

_log = structlog.get_logger("tickwright.alerts")


class _RuleFailedError(Exception):
    """A rule failed, and with it the transaction of the round."""


class Findings(list[Finding]):
    """What a rule found; ``cut`` where more may be in trouble than it read."""

    def __init__(self, found: Iterable[Finding] = (), *, cut: bool = False) -> None:
        super().__init__(found)
        self.cut = cut


class ClockWatch:
    """Compares the database's clock with the monotonic one from round to round."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None
        self._jump_s = 0.0
        self._seen_s = float("-inf")

    def sample(self, db_s: float, asked_s: float, answered_s: float) -> None:
        """Take in one reading, taken between two instants of the monotonic clock."""
        middle_s, doubt_s = (asked_s + answered_s) / 2, (answered_s - asked_s) / 2
        if self._last is not None:
            jump_s = (db_s - self._last[0]) - (middle_s - self._last[1])
            if abs(jump_s) > JUMP_S + 2 * doubt_s:
                self._jump_s, self._seen_s = jump_s, answered_s
        self._last = (db_s, middle_s)

    def findings(self, now_s: float) -> list[Finding]:
        """Return the jump of the last five minutes, if there was one."""
        if now_s - self._seen_s > JUMP_SHOWN_S:
            return []
        return [Finding("database", {"jump_s": round(self._jump_s, 1)})]


class Patience:
    """Which rules are asked in a round, and which subjects were in trouble for long enough to fire."""

    def __init__(self) -> None:
        self._asked_s: dict[str, float] = {}
        self._since_s: dict[str, dict[str, float]] = {}

    def asked_s(self, rule: AlertRule) -> float:
        """Return when it was asked last."""
        return self._asked_s.get(rule.name, float("-inf"))

    def is_due(self, rule: AlertRule, now_s: float) -> bool:
        """Whether to ask it now."""
        asked_s = self.asked_s(rule)
        if (
            asked_s < now_s < asked_s + rule.every.total_seconds()
        ):  # asked at this very instant: the round is done again
            return False
        self._asked_s[rule.name] = now_s
        return True

    def lasting(
        self, rule: AlertRule, findings: Sequence[Finding], firing: Collection[str], now_s: float
    ) -> list[Finding]:
        """Return what has lasted as long as the rule wants, and what fires already, whoever found it first."""
        before = self._since_s.get(rule.name, {})
        since_s = {finding.subject: before.get(finding.subject, now_s) for finding in findings}
        self._since_s[rule.name] = since_s
        hold_s = rule.hold.total_seconds()
        return [one for one in findings if one.subject in firing or now_s - since_s[one.subject] >= hold_s]


class Alerting(LeasedService):
    """Evaluates the rules until stopped; a :class:`tickwright.ports.service.Service`.

    Args:
        leases: Of this process.
        rules: Of all plugins; those of one name are evaluated as one rule.
        every: Between two rounds; at most a third of the lease's length.
    """

    def __init__(
        self,
        leases: Leases,
        *,
        rules: Sequence[AlertRule],
        every: timedelta = EVERY,
        lease_terms: LeaseTerms = TERMS,
        probe: Probe = NO_PROBE,
    ) -> None:
        super().__init__("alerting", leases, LEASE, self._rounds, terms=lease_terms, kept=False, probe=probe)
        self._every = every
        self._rules: dict[str, list[AlertRule]] = defaultdict(list)
        for rule in rules:
            self._rules[rule.name].append(rule)
        self.clock = ClockWatch()
        self.patience = Patience()
        self._failed: dict[str, str] = {}

    async def _rounds(self, lease: Lease) -> None:
        while lease.holds() and not self.stopping.is_set():
            try:
                await self.round(lease)
            except UNAVAILABLE as error:
                _log.warning("alerts.round_failed", error=repr(error))
            self.tick()
            await self._probe.reached("alerts.evaluated")
            await self.rest(self._every.total_seconds())

    async def round(self, lease: Lease) -> None:
        """Evaluate every rule once; nothing is written when the lease is lost."""
        now_s = monotonic()
        try:
            await self._round(lease, now_s, isolated=bool(self._failed))
        except _RuleFailedError:
            await self._round(lease, now_s, isolated=True)

    async def _round(self, lease: Lease, now_s: float, *, isolated: bool) -> None:
        async with lease.transaction() as connection:
            if connection is None:
                return
            asked_s = monotonic()
            db_s = await connection.fetchval(SQL["clock"], f"{round(1000 * RULE_S)}ms")
            self.clock.sample(db_s, asked_s, monotonic())
            firing: defaultdict[str, set[str]] = defaultdict(set)
            for row in await connection.fetch(SQL["firing"]):
                firing[row["rule"]].add(row["subject"])
            for rule in sorted((parts[0] for parts in self._rules.values()), key=self._turn):
                if self.stopping.is_set():  # a far database makes rounds long; what was found is written
                    return
                if self.patience.is_due(rule, now_s):
                    await self._evaluate(connection, rule, firing[rule.name], isolated=isolated)
                if monotonic() - asked_s > ROUND_S:
                    break
            await _settle(connection, CLOCK_JUMP, self.clock.findings(monotonic()), firing[CLOCK_JUMP.name])
            failed = [Finding(name, {"error": error}) for name, error in self._failed.items()]
            await _settle(connection, RULE_FAILED, failed, firing[RULE_FAILED.name])

    def _turn(self, rule: AlertRule) -> tuple[bool, float]:
        """Return what orders a round: those that failed come last, of the others those first that were left out."""
        return rule.name in self._failed, self.patience.asked_s(rule)

    async def _evaluate(
        self, connection: Connection, rule: AlertRule, firing: Collection[str], *, isolated: bool
    ) -> None:
        try:
            async with connection.transaction() if isolated else nullcontext():
                found = await _ask(connection, self._rules[rule.name])
                lasting = self.patience.lasting(rule, found, firing, monotonic()) if rule.hold else found
                await _settle(connection, rule, lasting, firing, cut=found.cut)
        except Exception as error:
            if connection.is_closed() or isinstance(error, TimeoutError):  # the database, not the rule
                raise
            self._failed[rule.name] = repr(error)[:ERROR_CHARS_MAX]
            if not isolated:
                raise _RuleFailedError from error
            _log.error("alerts.rule_failed", rule=rule.name, error=repr(error))
        else:
            self._failed.pop(rule.name, None)


async def _ask(connection: Connection, parts: Sequence[AlertRule]) -> Findings:
    """Return what a rule finds; its parts are the queries that several plugins have for it."""
    findings: dict[str, Finding] = {}
    cut = False
    for part in parts:
        if part.name in OUTBOX:
            return await _ask_outbox(connection, part)
        rows = await connection.fetch(part.sql, *part.bounds)
        cut = cut or len(rows) >= part.rows_max or any(row.get("cut") for row in rows)
        for row in rows:
            _take(findings, part, row["subject"], json.loads(row["facts"]))
    return Findings(findings.values(), cut=cut)


def _take(findings: dict[str, Finding], part: AlertRule, subject: str, facts: dict[str, Any]) -> None:
    """Take one subject. Equal ones are counted together where they are counted, else the first one is kept.

    What is behind the host of an address may be a credential, and alerts are sent to receivers.
    """
    subject = (masked_address(subject) if part.counts_addresses else subject)[:SUBJECT_CHARS_MAX]
    found = findings.get(subject)
    if found is None:
        findings[subject] = Finding(subject, facts)
    elif part.counts_addresses:
        findings[subject] = Finding(subject, {"count": found.facts["count"] + facts["count"]})


async def _ask_outbox(connection: Connection, rule: AlertRule) -> Findings:
    findings: dict[str, Finding] = {}
    heads = await lane_heads(connection)
    cut = any(head["cut"] for head in heads)
    if rule.name == "outbox_many_destinations":
        return Findings([Finding("destinations", {"count": LANES_WALKED})] if cut else [])
    for head in sorted(heads, key=lambda one: one["age_s"]):  # of those alike the oldest one
        subject = masked_address(head["destination"])[:SUBJECT_CHARS_MAX]
        reason = head["error_message"] or "no relay has tried it"
        unknown = reason.startswith("unknown_scheme")
        bound = rule.bounds[0] if rule.bounds else timedelta()
        late = isinstance(bound, timedelta) and head["age_s"] > bound.total_seconds()
        if unknown if rule.name == "outbox_unknown_scheme" else late and not unknown:
            findings[subject] = Finding(subject, {"age_s": round(head["age_s"]), "reason": reason[:300]})
    return Findings(findings.values(), cut=cut)


async def _settle(
    connection: Connection, rule: AlertRule, findings: Sequence[Finding], firing: Collection[str], *, cut: bool = False
) -> None:
    """Open, refresh and resolve the alerts of one rule, and tell the receivers what changed.

    What a cut answer leaves out may still be in trouble, so it resolves nothing; and it opens no alert beyond
    ``FIRING_MAX``, or made-up names would fire without end.

    They are others' servers, so of an address in an error they hear the host; operators find the whole of it where the
    error is.
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
        await connection.execute(RECEIVERS["tell"], changed, TOLD_MAX)
