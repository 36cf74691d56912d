"""Where a worker looks for work, and what it knows of each place.

A lane is one range of the index: a task type and a priority. While claims follow each other, each
starts where the last one ended (``ClaimRange.frontier_s``), so that rows which are claimed or deleted but
still in the index are not walked again. What came in behind the frontier is found by a claim without
the bound, a *sweep*, beside the others.

Normally frontiers are only needed in a drain. An old snapshot in somebody's open transaction keeps
every dead row at the head of the index: unbounded claims then get slow (*drag*), and the frontier is
used all the time, a little behind now, with sweeps that take at most a twentieth of the time. So do looks for new
priorities then: between the known ones a claim passes over every row that is not visible, without a bound.

Each lane costs each claim two looks into the index. So a priority that has no job any more is forgotten: claims from
the head ask for a few of them in turns, and one that gets a job again is found by the look for new priorities. Where
very many have jobs, claims that follow each other look at all lanes of a few task types in turns, a *round*; of the
other types at the default priority and at the lanes that brought jobs last.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter

import structlog

from tickwright.capabilities.jobs.model import ClaimedRow, ClaimPlan, ClaimRange
from tickwright.capabilities.jobs.worker.claims import ClaimedJobs
from tickwright.ports.ids import monotonic

SWEEP_S = 0.5
SWEEP_SHARE = 20
DRAG_CLAIM_S = 0.03
DRAG_CLAIMS = 3
DRAG_FOR_S = 10.0
LOOKBACK_S = 2.0
LANE_S = 0.0001
"""A claim may take this much longer for each lane, before it is a slow one."""
DOUBTED_MAX = 256
DOUBT_GAP_S = 1.0
LANES_MAX = 512
FRUITFUL_MAX = 256

_log = structlog.get_logger("tickwright.jobs")


@dataclass(frozen=True, slots=True)
class ClaimScope:
    """Where one claim looks.

    Attributes:
        lanes: Ranges of the index.
        whole: Task types of which all known lanes are among them: new priorities are looked for between these.
    """

    lanes: Sequence[ClaimRange]
    whole: AbstractSet[str]


class ClaimFrontier:
    """The lanes of one worker.

    Attributes:
        hot: Task types that had more to give than the last claim took.
        next_due_s: The first due instant behind the horizon that claims of this round have seen.
    """

    def __init__(self, limited: Callable[[str], bool]) -> None:
        self._limited = limited
        self._lanes: dict[tuple[str, int], ClaimRange] = {}
        self._fruitful: dict[tuple[str, int], ClaimRange] = {}
        self._round: list[str] = []
        self._doubt_from_s = 0.0
        self.hot: frozenset[str] = frozenset()
        self.next_due_s: float | None = None
        self._drag_until_s = 0.0
        self._slow_claims = 0
        self._swept_s = 0.0
        self._sweep_took_s = 0.0
        self._looked_around_s = 0.0
        self._look_took_s = 0.0

    @property
    def dragging(self) -> bool:
        """Whether somebody's old snapshot makes unbounded claims slow."""
        return monotonic() < self._drag_until_s

    def follows(self, plan: ClaimPlan) -> bool:
        """Whether a claim goes on where others ended: some of its types had more to give."""
        return not self.hot.isdisjoint(plan.types)

    def look(self, names: Iterable[str]) -> ClaimScope:
        """Return where the next claim for some task types looks: everywhere, or where its turn in the round is."""
        look = self.look_everywhere(names)
        if not self._round:
            self.next_due_s = None
        if len(look.lanes) <= LANES_MAX:
            self._round = []
            return look
        counts = Counter(lane.task_type for lane in look.lanes)
        self._round = [name for name in self._round if name in counts] or list(counts)
        whole: set[str] = set()
        room = LANES_MAX
        while self._round and (room >= counts[self._round[-1]] or not whole):
            whole.add(name := self._round.pop())
            room -= counts[name]
        lanes = [
            lane
            for lane in look.lanes
            if lane.task_type in whole or not lane.priority or (lane.task_type, lane.priority) in self._fruitful
        ]
        return ClaimScope(lanes, whole)

    def look_everywhere(self, names: Iterable[str]) -> ClaimScope:
        """Return all known lanes of some task types; the default priority is always known."""
        wanted = frozenset(names)
        for name in wanted:
            self._lanes.setdefault((name, 0), ClaimRange(name, 0))
        return ClaimScope([lane for lane in self._lanes.values() if lane.task_type in wanted], wanted)

    def doubt(self, lanes: Sequence[ClaimRange]) -> list[ClaimRange]:
        """Return the next few of ``lanes`` to ask for, or none so soon; those of the default priority stay.

        No other claim may be under way that was told of them: what it brings has its place by lane.
        """
        now = monotonic()
        if now < self._doubt_from_s:
            return []
        self._doubt_from_s = now + DOUBT_GAP_S
        doubted = list(islice((lane for lane in lanes if lane.priority), DOUBTED_MAX))
        for lane in doubted:  # behind all others
            key = lane.task_type, lane.priority
            self._lanes[key] = self._lanes.pop(key, lane)
        return doubted

    def learn(self, found: Iterable[ClaimRange]) -> None:
        """Remember lanes that a claim found."""
        for lane in found:
            self._lanes.setdefault((lane.task_type, lane.priority), lane)

    def forget(self, empty: Iterable[ClaimRange]) -> None:
        """Forget lanes that have no jobs, as the claim said that was asked for them and has come back last."""
        for lane in empty:
            self._lanes.pop((lane.task_type, lane.priority), None)
            self._fruitful.pop((lane.task_type, lane.priority), None)

    def note(self, plan: ClaimPlan, look: ClaimScope, claimed: ClaimedJobs) -> bool:
        """Remember which types had more to give; True when the next claim should follow at once."""
        self.forget(claimed.empty_lanes)
        self.learn(claimed.new_lanes)
        if claimed.next_due_s is not None:
            self.next_due_s = min(claimed.next_due_s, self.next_due_s or claimed.next_due_s)
        asked = dict(zip(plan.types, plan.rows_max, strict=True))
        all_full = claimed.was_cut or len(claimed.rows) >= plan.total_max
        more = {name for name, count in claimed.counts.items() if count >= asked[name] or all_full}
        heated = more - self.hot
        self.hot = frozenset(self.hot.difference(plan.types) | more)
        latest = _latest(claimed.rows)
        self.learn(
            ClaimRange(*key) for key in latest
        )  # of a type that has a rate since, another claim may have forgotten it
        self._keep_fruitful(latest)
        if more:
            self._advance(latest, heated)
        self._settle(look, claimed.looked_s)
        return bool(more or claimed.new_lanes or self._round)

    def _keep_fruitful(self, keys: Iterable[tuple[str, int]]) -> None:
        for key in keys:
            if key[1]:
                self._fruitful.pop(key, None)
                self._fruitful[key] = self._lanes[key]
        for key in list(islice(self._fruitful, max(0, len(self._fruitful) - FRUITFUL_MAX))):
            del self._fruitful[key]

    def _advance(self, latest: Mapping[tuple[str, int], float], heated: AbstractSet[str]) -> None:
        """Set the frontiers; where a type that just turned hot was not reached, nothing is known and there is none."""
        if not self.dragging:
            for lane in self._lanes.values():
                if lane.task_type in heated:
                    lane.frontier_s = 0.0
        for key, due_s in latest.items():
            if self.dragging or not self._limited(key[0]):
                self._lanes[key].frontier_s = due_s

    def _settle(self, look: ClaimScope, looked_s: float) -> None:
        """Types that are exhausted start from the head again; while sweeps run, from a little behind the last look.

        Beside a drain of another type they would walk their dead rows with each of its claims.
        """
        frontier_s = looked_s - LOOKBACK_S if self.hot or self.dragging else 0.0
        for lane in look.lanes:
            if lane.task_type not in self.hot:
                lane.frontier_s = frontier_s

    # ------------------------------------------------------------------ sweeps and drag

    def looks_around(self) -> bool:
        """Whether a claim may look for priorities that are not known yet: always, but in a drag."""
        share_s = max(SWEEP_S, SWEEP_SHARE * self._look_took_s)
        return not self.dragging or monotonic() - self._looked_around_s > share_s

    def looked_around(self, took_s: float) -> None:
        """Note how long a claim took that did."""
        self._looked_around_s, self._look_took_s = monotonic(), took_s

    def sweep_due(self, plan: ClaimPlan) -> frozenset[str]:
        """Return the types of a sweep beside a bounded claim, when it is time for one.

        Limited types are left out: two claims at once could exceed their limit. They are looked at without
        the bound by the next ordinary claim instead.
        """
        if monotonic() - self._swept_s <= max(SWEEP_S, SWEEP_SHARE * self._sweep_took_s):
            return frozenset()
        self._swept_s = monotonic()
        for lane in self._lanes.values():
            if self._limited(lane.task_type):
                lane.frontier_s = 0.0
        return frozenset(name for name in plan.types if not self._limited(name))

    def swept(self, took_s: float) -> None:
        """Note how long a sweep took; while sweeps are slow the drag goes on."""
        self._swept_s, self._sweep_took_s = monotonic(), took_s
        if took_s > DRAG_CLAIM_S and self.dragging:
            self._drag_until_s = self._swept_s + max(DRAG_FOR_S, 2 * SWEEP_SHARE * took_s)

    def watch(self, *, took_s: float, rows: int, lanes: int) -> None:
        """Judge an unbounded claim by its time, its rows and its lanes: several slow ones in a row mean drag."""
        slow = took_s > DRAG_CLAIM_S + lanes * LANE_S and took_s > rows * DRAG_CLAIM_S / 500
        self._slow_claims = self._slow_claims + 1 if slow else 0
        if self._slow_claims >= DRAG_CLAIMS:
            _log.warning("jobs.dead_rows_drag", claim_s=round(took_s, 3), advice="look for a long-open transaction")
            self._drag_until_s = monotonic() + DRAG_FOR_S
            self._swept_s, self._sweep_took_s = monotonic(), took_s


_lane_of, _due_of = attrgetter("task_type", "priority"), attrgetter("due_s")


def _latest(rows: Sequence[ClaimedRow]) -> dict[tuple[str, int], float]:
    """Return the latest due instant per lane."""
    keys = set(map(_lane_of, rows))
    if len(keys) == 1:
        return {keys.pop(): max(map(_due_of, rows))}
    latest: dict[tuple[str, int], float] = {}
    for row in rows:
        key = _lane_of(row)
        latest[key] = max(latest.get(key, 0.0), row.due_s)
    return latest
