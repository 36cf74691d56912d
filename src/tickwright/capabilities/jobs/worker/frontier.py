"""Which claim ranges a claim reads, and from where.

A claim range is a task type and a priority. While claims follow each other, each starts where the last one ended
(``ClaimRange.frontier_s``), so that rows which are claimed or deleted but still in the index are not read again. A
*sweep*, a claim without that bound beside the others, finds jobs that are inserted behind the frontier.

Normally only drains need frontiers. But while an old transaction is open, its snapshot keeps every dead row at the head
of the index, and claims without a bound become slow (*drag*). Then all claims use the frontier, a little behind now,
and sweeps take at most a twentieth of the time. So does the discovery of priorities: between the known ones, a claim
passes over every row that is not visible, without a bound.

Each range costs each claim two probes of the index. So a priority without jobs is forgotten: claims from the head check
a few ranges at a time, and discovery finds a priority that gets jobs again. With very many ranges, claims that follow
each other read all ranges of a few task types at a time, a *round*. Of the other types they read the default priority
and the ranges that had jobs last.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import islice

import structlog

from tickwright.capabilities.jobs.model import FAIR_EVERY, ClaimPlan, ClaimRange, first_priority
from tickwright.capabilities.jobs.worker.claims import ClaimedJobs
from tickwright.ports.ids import monotonic

SWEEP_S = 0.5
SWEEP_SHARE = 20
DRAG_CLAIM_S = 0.03
DRAG_CLAIMS = 3
DRAG_FOR_S = 10.0
LOOKBACK_S = 2.0
RANGE_S = 0.0001
"""Each range may add this much to the time of a claim before the claim counts as slow."""
CHECKED_MAX = 256
CHECK_GAP_S = 1.0
RANGES_MAX = 512
PRODUCTIVE_MAX = 256

_log = structlog.get_logger("tickwright.jobs")


@dataclass(frozen=True, slots=True)
class ClaimScope:
    """The ranges of one claim; those of the types in ``whole`` are complete, and the claim discovers priorities."""

    ranges: Sequence[ClaimRange]
    whole: AbstractSet[str]


class ClaimFrontier:
    """The claim ranges of one worker.

    Attributes:
        hot: Task types with more due jobs than the last claim took.
        next_due_s: The first due instant behind the horizon that claims of this round have found.
    """

    def __init__(self, is_serial: Callable[[str], bool]) -> None:
        self._is_serial = is_serial
        self._ranges: dict[tuple[str, int], ClaimRange] = {}
        self._productive: dict[tuple[str, int], ClaimRange] = {}
        self._round: list[str] = []
        self._check_from_s = 0.0
        self.hot: frozenset[str] = frozenset()
        self.next_due_s: float | None = None
        self._drag_until_s = 0.0
        self._slow_claims = 0
        self._swept_s = 0.0
        self._sweep_took_s = 0.0
        self._discovered_s = 0.0
        self._discovery_took_s = 0.0

    @property
    def dragging(self) -> bool:
        """Whether an old snapshot makes unbounded claims slow."""
        return monotonic() < self._drag_until_s

    def follows(self, plan: ClaimPlan) -> bool:
        """Whether a claim continues where others ended: some of its types had more due jobs."""
        return not self.hot.isdisjoint(plan.types)

    def scope(self, names: Iterable[str]) -> ClaimScope:
        """Return the ranges of the next claim for some task types: all, or the next part of the round."""
        scope = self.whole_scope(names)
        if not self._round:
            self.next_due_s = None
        if len(scope.ranges) <= RANGES_MAX:
            self._round = []
            return scope
        counts = Counter(claim_range.task_type for claim_range in scope.ranges)
        self._round = [name for name in self._round if name in counts] or list(counts)
        whole: set[str] = set()
        room = RANGES_MAX
        while self._round and (room >= counts[self._round[-1]] or not whole):
            whole.add(name := self._round.pop())
            room -= counts[name]
        ranges = [
            claim_range
            for claim_range in scope.ranges
            if claim_range.task_type in whole or not claim_range.priority or claim_range.key in self._productive
        ]
        return ClaimScope(ranges, whole)

    def whole_scope(self, names: Iterable[str]) -> ClaimScope:
        """Return all known ranges of some task types; the default priority is always known."""
        wanted = frozenset(names)
        for name in wanted:
            self._ranges.setdefault((name, 0), ClaimRange(name, 0))
        ranges = [claim_range for claim_range in self._ranges.values() if claim_range.task_type in wanted]
        return ClaimScope(ranges, wanted)

    def next_to_check(self, ranges: Sequence[ClaimRange]) -> list[ClaimRange]:
        """Return the next few of ``ranges`` to check, at most every ``CHECK_GAP_S``; never the default priority.

        Call it only while no other claim uses these ranges, because such a claim needs them for its result.
        """
        now = monotonic()
        if now < self._check_from_s:
            return []
        self._check_from_s = now + CHECK_GAP_S
        checked = list(islice((claim_range for claim_range in ranges if claim_range.priority), CHECKED_MAX))
        for claim_range in checked:  # move each to the end of the order
            key = claim_range.key
            self._ranges[key] = self._ranges.pop(key, claim_range)
        return checked

    def learn(self, found: Iterable[ClaimRange]) -> None:
        """Add ranges that a claim found."""
        for claim_range in found:
            self._ranges.setdefault(claim_range.key, claim_range)

    def forget(self, empty: Iterable[ClaimRange]) -> None:
        """Forget ranges without jobs; the claim that checked them must be the last one to return."""
        for claim_range in empty:
            self._ranges.pop(claim_range.key, None)
            self._productive.pop(claim_range.key, None)

    def note(self, plan: ClaimPlan, scope: ClaimScope, claimed: ClaimedJobs) -> bool:
        """Remember which types have more due jobs; return whether the next claim should follow at once."""
        self.forget(claimed.empty_ranges)
        self.learn(claimed.new_ranges)
        if claimed.next_due_s is not None:
            self.next_due_s = min(claimed.next_due_s, self.next_due_s or claimed.next_due_s)
        rows_max = dict(zip(plan.types, plan.rows_max, strict=True))
        all_full = claimed.was_cut or len(claimed.rows) >= plan.total_max
        more = {name for name, count in claimed.counts.items() if count >= rows_max[name] or all_full}
        heated = more - self.hot
        self.hot = frozenset(self.hot.difference(plan.types) | more)
        latest = claimed.latest()
        self.learn(ClaimRange(*key) for key in latest)  # of a type with a new rate, another claim may have forgotten it
        self._keep_productive(latest)
        if more:
            self._advance(latest, heated)
        self._settle(scope, claimed.snapshot_s)
        return bool(more or claimed.new_ranges or self._round)

    def _keep_productive(self, keys: Iterable[tuple[str, int]]) -> None:
        for key in keys:
            if key[1]:
                self._productive.pop(key, None)
                self._productive[key] = self._ranges[key]
        for key in list(islice(self._productive, max(0, len(self._productive) - PRODUCTIVE_MAX))):
            del self._productive[key]

    def _advance(self, latest: Mapping[tuple[str, int], float], heated: AbstractSet[str]) -> None:
        """Set the frontiers; a type that has just become hot has none in ranges that the claim did not reach."""
        if not self.dragging:
            for claim_range in self._ranges.values():
                if claim_range.task_type in heated:
                    claim_range.frontier_s = 0.0
        for key, due_s in latest.items():
            if self.dragging or not self._is_serial(key[0]):
                self._ranges[key].frontier_s = due_s

    def _settle(self, scope: ClaimScope, snapshot_s: float) -> None:
        """Reset the frontiers of types without more due jobs; while sweeps run, to a little before the last claim.

        Without a frontier, each claim of another type's drain would read their dead rows.
        """
        frontier_s = snapshot_s - LOOKBACK_S if self.hot or self.dragging else 0.0
        for claim_range in scope.ranges:
            if claim_range.task_type not in self.hot:
                claim_range.frontier_s = frontier_s

    def may_discover(self) -> bool:
        """Whether a claim may discover priorities; in a drag, discovery has a share of the time only."""
        share_s = max(SWEEP_S, SWEEP_SHARE * self._discovery_took_s)
        return not self.dragging or monotonic() - self._discovered_s > share_s

    def discovered(self, took_s: float) -> None:
        """Note how long a claim with discovery took."""
        self._discovered_s, self._discovery_took_s = monotonic(), took_s

    def sweep_due(self, plan: ClaimPlan) -> frozenset[str]:
        """Return the types of a sweep beside a bounded claim, or none when it is not time for one.

        Serial types are left out, because two parallel claims could exceed their limits. The next ordinary claim reads
        them without the bound instead.
        """
        if monotonic() - self._swept_s <= max(SWEEP_S, SWEEP_SHARE * self._sweep_took_s):
            return frozenset()
        self._swept_s = monotonic()
        for claim_range in self._ranges.values():
            if self._is_serial(claim_range.task_type):
                claim_range.frontier_s = 0.0
        return frozenset(name for name in plan.types if not self._is_serial(name))

    def swept(self, took_s: float) -> None:
        """Note how long a sweep took; slow sweeps prolong the drag."""
        self._swept_s, self._sweep_took_s = monotonic(), took_s
        if took_s > DRAG_CLAIM_S and self.dragging:
            self._drag_until_s = self._swept_s + max(DRAG_FOR_S, 2 * SWEEP_SHARE * took_s)

    def watch(self, *, took_s: float, rows: int, ranges: int) -> None:
        """Judge an unbounded claim by its time, rows and ranges: several slow ones in a row mean drag."""
        slow = took_s > DRAG_CLAIM_S + ranges * RANGE_S and took_s > rows * DRAG_CLAIM_S / 500
        self._slow_claims = self._slow_claims + 1 if slow else 0
        if self._slow_claims >= DRAG_CLAIMS:
            _log.warning(
                "jobs.dead_rows_slow_claims",
                claim_s=round(took_s, 3),
                advice="find a long-open transaction",
            )
            self._drag_until_s = monotonic() + DRAG_FOR_S
            self._swept_s, self._sweep_took_s = monotonic(), took_s


def fair_plan(plan: ClaimPlan, number: int, scope: ClaimScope) -> ClaimPlan:
    """Return the plan of claim ``number`` of those that follow claims which left jobs over; see ``FAIR_EVERY``."""
    fair_claims, rest = divmod(number, FAIR_EVERY)
    if rest:
        return plan
    rows = sorted(zip(plan.types, plan.rows_max, strict=True))
    turn = fair_claims % len(rows)
    rows = rows[turn:] + rows[:turn]
    first = first_priority(fair_claims, {each.priority for each in scope.ranges}, types=len(rows))
    return ClaimPlan(tuple(name for name, _ in rows), tuple(most for _, most in rows), plan.total_max, first)
