"""Takes due work, and decides when to look again.

Precision is look-ahead, not polling. A claim reaches a fifth of a second ahead; every claim answers
with the next due instant behind that, and the worker sleeps until it comes into reach, for a second
at most. What is inserted closer than that rings the doorbell. Between claims nothing is held back:
while work is found the next claim follows at once, as far as slots and limits allow.

An old snapshot in somebody's open transaction keeps dead rows at the head of the index. Claims that
follow each other therefore start where the last one ended (``Lane.frontier_s``), and a claim without
that bound runs beside them now and then for what came in late.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from operator import itemgetter
from typing import Protocol

import structlog

from tickwright.capabilities.jobs.claims_store import Claimed, ClaimRequest, ClaimStore, Row
from tickwright.capabilities.jobs.doorbell import Doorbell
from tickwright.capabilities.jobs.entries import Entry
from tickwright.capabilities.jobs.model import ClaimPlan, Lane, allot, plan_claim
from tickwright.capabilities.jobs.pacing import Pacer
from tickwright.capabilities.jobs.runner import Runner
from tickwright.capabilities.jobs.settler import AWAY
from tickwright.domain.dbclock import DbClock
from tickwright.ports.ids import monotonic
from tickwright.ports.session import Session

HORIZON = timedelta(milliseconds=200)
POLL_S = 1.0
GAP_S = 0.02
AWAKE_GAP_S = 0.003
AWAKE_FOR_S = 0.03
AWAKE_GAP_MAX_S = 0.25
WATCHED_S = 5.0
BATCH_MAX = 1000
PREFETCH_S = 0.2
PREFETCH_MAX = 4000
BACKLOG_MAX = 20_000
SWEEP_S = 0.5
SWEEP_SHARE = 20
DRAG_CLAIM_S = 0.03
DRAG_CLAIMS = 3
DRAG_FOR_S = 10.0
DRAG_LOOKBACK_S = 2.0
AWAY_S = 0.5

_log = structlog.get_logger("tickwright.jobs")


class Takes(Protocol):
    """Who runs what was claimed, and knows what may be claimed."""

    def entries(self) -> Mapping[str, Entry]:
        """The task types that this worker can run now, by name."""
        ...

    def take(self, claimed: Claimed) -> None:
        """Run the claimed rows."""
        ...

    def backlog(self) -> int:
        """Results that are not written yet."""
        ...


class Claimer:
    """The claiming loop of one worker."""

    def __init__(
        self,
        store: ClaimStore,
        session: Session,
        runner: Runner,
        clock: DbClock,
        doorbell: Doorbell,
        takes: Takes,
        pacer: Pacer,
    ) -> None:
        self._store, self._session, self._runner, self._clock = store, session, runner, clock
        self._bell, self._takes, self._pacer = doorbell, takes, pacer
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._hot: frozenset[str] = frozenset()
        self._turn = 0
        self._ahead: asyncio.Task[tuple[ClaimPlan, Claimed]] | None = None
        self._chained = False
        self._crowded = False
        self._awake_until_s = 0.0
        self._arm_failures = 0
        self._watched_until_s = 0.0
        self._drag_until_s = 0.0
        self._slow_claims = 0
        self._swept_s = 0.0
        self._sweep_took_s = 0.0
        self._sweep: asyncio.Task[None] | None = None
        self._stopping = False
        self._started = False
        self._over = asyncio.Event()
        self._changed = asyncio.Event()
        self.ticked_s: float | None = None
        runner.freed = self._changed.set

    def wake(self) -> None:
        """Look again now: types, grants or capacity have changed."""
        self._changed.set()
        self._bell.rung.set()

    def stop(self) -> None:
        """Claim nothing more."""
        self._stopping = True
        self.wake()

    async def wait_stopped(self) -> None:
        """Return when no claim is under way any more."""
        if self._started:
            await self._over.wait()

    async def run(self) -> None:
        """Claim until stopped."""
        self._started = True
        self._over.clear()
        try:
            while not self._stopping:
                await self._turn_or_wait()
            await self._finish_claims()
            await self._bell.disarm()
        finally:
            self._over.set()

    async def _turn_or_wait(self) -> None:
        try:
            await self._turn_once()
        except AWAY as error:
            _log.warning("jobs.claim_failed", error=repr(error))
            await asyncio.sleep(AWAY_S)

    async def _finish_claims(self) -> None:
        """Take over what claims that are under way still bring, so that it can be given back."""
        if self._ahead is not None:
            with suppress(*AWAY):
                self._accept((await self._ahead)[1])
        if self._sweep is not None:
            await asyncio.wait([self._sweep])

    async def _turn_once(self) -> None:
        claim = self._ahead or self._start_claim()
        self._ahead = None
        if claim is None:
            await self._nothing_to_claim()
            return
        plan, claimed = await claim
        full = self._note(plan, claimed)
        if full:  # the database works on the next batch while this one is taken over
            self._ahead = self._start_claim(arriving=claimed.rows)
        self._accept(claimed)
        await self._claim_paced(self._budget())
        if not full:
            await self._rest(claimed)

    def _start_claim(self, arriving: Sequence[Row] = ()) -> "asyncio.Task[tuple[ClaimPlan, Claimed]] | None":
        budget = self._budget() - len(arriving)
        if budget <= 0 or not self._session.holds():
            return None
        self._turn += 1
        held = Counter(row[1] for row in arriving)
        plan = plan_claim(self._allowance(budget, held), self._hot, min(budget, BATCH_MAX), self._turn)
        return None if plan is None else asyncio.ensure_future(self._claim(plan))

    async def _nothing_to_claim(self) -> None:
        self.ticked_s = monotonic()
        if self._budget() <= 0 or not self._session.holds():
            await self._wait_for_room()
            return
        await self._claim_paced(self._budget())
        await self._rest(Claimed([], 0.0, None, []))

    # ------------------------------------------------------------------ how much

    def _prefetch(self) -> int:
        return min(PREFETCH_MAX, int(self._runner.measure_rate() * PREFETCH_S))

    def _budget(self) -> int:
        if self._takes.backlog() > BACKLOG_MAX:
            return 0
        runner = self._runner
        return runner.slots - runner.busy + self._prefetch() - runner.queued

    def _allowance(self, budget: int, arriving: Mapping[str, int]) -> dict[str, int]:
        allowance = {}
        self._crowded = False
        for name, entry in self._takes.entries().items():
            if entry.kind.waits or entry.kind.rate_per_s is not None:
                continue
            held = entry.held + arriving[name]
            rows, free = allot(budget, held, all_free=budget), entry.free(held)
            self._crowded = self._crowded or (rows == 0 and free != 0)
            allowance[name] = rows if free is None else min(rows, free)
        return allowance

    async def _wait_for_room(self) -> None:
        """Wait until half of what is queued has started; a little later at most, some slot may be free again."""
        self._changed.clear()
        self._runner.tell_when_below(self._prefetch() // 2)
        self.ticked_s = monotonic()
        try:
            async with asyncio.timeout(0.05):
                await self._changed.wait()
        except TimeoutError:
            return

    # ------------------------------------------------------------------ claiming

    def _lanes_of(self, plan: ClaimPlan) -> list[Lane]:
        names = set(plan.types)
        for name in names:
            self._lanes.setdefault((name, 0), Lane(name, 0))
        return [lane for lane in self._lanes.values() if lane.task_type in names]

    async def _claim(self, plan: ClaimPlan) -> tuple[ClaimPlan, Claimed]:
        bounded = self._chained or self._dragging
        if bounded:
            self._sweep_if_due(plan)
        request = ClaimRequest(
            self._session.token,
            plan,
            self._lanes_of(plan),
            HORIZON,
            bounded=bounded,
        )
        started = monotonic()
        claimed = await self._store.claim(request)
        self._watch_for_drag(bounded=bounded, took_s=monotonic() - started, rows=len(claimed.rows))
        return plan, claimed

    def _accept(self, claimed: Claimed) -> None:
        self.ticked_s = monotonic()
        if self._clock.sample(claimed.now_s, self.ticked_s):
            _log.warning("jobs.db_clock_jump", now_s=claimed.now_s)
        self._know(claimed.new_lanes)
        if claimed.rows:
            self._takes.take(claimed)

    def _know(self, lanes: Sequence[Lane]) -> None:
        for lane in lanes:
            self._lanes.setdefault((lane.task_type, lane.priority), lane)

    def _note(self, plan: ClaimPlan, claimed: Claimed) -> bool:
        """Remember which types had more to give; True when the next claim should follow at once."""
        self._know(claimed.new_lanes)
        counts = Counter(row[1] for row in claimed.rows)
        asked = dict(zip(plan.types, plan.rows_max, strict=True))
        total_full = len(claimed.rows) >= plan.total_max
        self._hot = frozenset(name for name, count in counts.items() if count >= asked[name] or total_full)
        self._chained = bool(self._hot)
        self._move_frontiers(claimed)
        if counts and monotonic() < self._awake_until_s:
            self._awake_until_s = monotonic() + AWAKE_FOR_S
        return self._chained or bool(claimed.new_lanes)

    def _move_frontiers(self, claimed: Claimed) -> None:
        if self._chained:
            for key, due_s in _latest(claimed.rows).items():
                if self._dragging or not self._limited(key[0]):
                    self._lanes[key].frontier_s = max(self._lanes[key].frontier_s, due_s)
        lookback_s = claimed.now_s - DRAG_LOOKBACK_S
        for lane in self._lanes.values():
            if lane.task_type not in self._hot:
                lane.frontier_s = lookback_s if self._dragging else 0.0

    # ------------------------------------------------------------------ old snapshots

    @property
    def _dragging(self) -> bool:
        return monotonic() < self._drag_until_s

    def _watch_for_drag(self, *, bounded: bool, took_s: float, rows: int) -> None:
        if bounded:
            return
        slow = took_s > DRAG_CLAIM_S and took_s > rows * DRAG_CLAIM_S / 500
        self._slow_claims = self._slow_claims + 1 if slow else 0
        if self._slow_claims >= DRAG_CLAIMS:
            _log.warning("jobs.dead_rows_drag", claim_s=round(took_s, 3), advice="look for a long-open transaction")
            self._drag_until_s = monotonic() + DRAG_FOR_S
            self._swept_s, self._sweep_took_s = monotonic(), took_s

    def _sweep_if_due(self, plan: ClaimPlan) -> None:
        wait_s = max(SWEEP_S, SWEEP_SHARE * self._sweep_took_s)
        if self._sweep is None and monotonic() - self._swept_s > wait_s:
            self._swept_s = monotonic()
            for lane in self._lanes.values():
                if self._limited(lane.task_type):
                    lane.frontier_s = 0.0  # a second claim beside this one could exceed the limit: look with this one
            free = [
                (name, rows) for name, rows in zip(plan.types, plan.rows_max, strict=True) if not self._limited(name)
            ]
            if free:
                beside = ClaimPlan(tuple(name for name, _ in free), tuple(rows for _, rows in free), plan.total_max)
                self._sweep = asyncio.create_task(self._sweep_once(beside))

    def _limited(self, name: str) -> bool:
        entry = self._takes.entries().get(name)
        return entry is None or entry.granted is not None

    async def _sweep_once(self, plan: ClaimPlan) -> None:
        """Claim without the bound, beside the bounded claims, for what came in behind them."""
        started = monotonic()
        request = ClaimRequest(self._session.token, plan, self._lanes_of(plan), HORIZON)
        try:
            self._accept(await self._store.claim(request))
        except AWAY as error:
            _log.warning("jobs.claim_failed", error=repr(error))
        finally:
            self._swept_s, self._sweep = monotonic(), None
            self._sweep_took_s = self._swept_s - started
            if self._sweep_took_s > DRAG_CLAIM_S and self._dragging:
                self._drag_until_s = self._swept_s + max(DRAG_FOR_S, 2 * SWEEP_SHARE * self._sweep_took_s)

    # ------------------------------------------------------------------ rate limits

    async def _claim_paced(self, budget: int) -> None:
        now = monotonic()
        for entry in self._takes.entries().values():
            if entry.kind.rate_per_s is None or entry.kind.waits or now < entry.paced_until_s:
                continue
            rows, free = allot(budget, entry.held, all_free=budget), entry.free(entry.held)
            plan = ClaimPlan((entry.kind.name,), (rows if free is None else min(rows, free),), BATCH_MAX)
            if plan.rows_max[0] > 0:
                request = ClaimRequest(self._session.token, plan, self._lanes_of(plan), HORIZON)
                if (claimed := await self._pacer.claim(entry, request)) is not None:
                    self._accept(claimed)

    # ------------------------------------------------------------------ resting

    async def _rest(self, claimed: Claimed) -> None:
        now = monotonic()
        if now < self._awake_until_s:
            await self._nap(AWAKE_GAP_S)
            return
        wait_s = GAP_S if self._crowded else POLL_S  # a type that had no room was not looked at
        if claimed.next_due_s is not None:
            wait_s = min(wait_s, claimed.next_due_s - claimed.now_s - HORIZON.total_seconds() + GAP_S / 2)
        paced = [e.paced_until_s - now for e in self._takes.entries().values() if e.kind.rate_per_s is not None]
        wait_s = max(GAP_S, min([wait_s, *(p for p in paced if p > 0)]))
        if wait_s > GAP_S and not await self._armed():
            return
        if await self._nap(wait_s):
            self._watched_until_s = 0.0
            self._awake_until_s = monotonic() + AWAKE_FOR_S
            await self._bell.disarm()

    async def _armed(self) -> bool:
        """Make sure that an insert would wake us; False when one more claim is due before sleeping."""
        if self._bell.armed or monotonic() < self._watched_until_s or not self._bell.works:
            return True
        self._bell.rung.clear()
        if await self._bell.arm():
            self._arm_failures = 0
            if not self._bell.armed:  # another sleeper has the lock, so inserts notify everybody: believe it for a while
                self._watched_until_s = monotonic() + WATCHED_S
            return False
        self._arm_failures += 1  # somebody inserts right now, or keeps a transaction open: stay awake, but less and less
        await self._nap(min(AWAKE_GAP_MAX_S, AWAKE_GAP_S * 2 ** min(self._arm_failures, 10)))
        return False

    async def _nap(self, seconds: float) -> bool:
        """Sleep, or until the doorbell rings; return whether it did."""
        try:
            async with asyncio.timeout(seconds):
                await self._bell.rung.wait()
        except TimeoutError:
            return False
        self._bell.rung.clear()
        return True


_LANE_OF, _DUE_OF = itemgetter(1, 3), itemgetter(9)


def _latest(rows: Sequence[Row]) -> dict[tuple[str, int], float]:
    """Return the latest due instant per lane."""
    keys = set(map(_LANE_OF, rows))
    if len(keys) == 1:
        return {keys.pop(): max(map(_DUE_OF, rows))}
    latest: dict[tuple[str, int], float] = {}
    for row in rows:
        key = _LANE_OF(row)
        latest[key] = max(latest.get(key, 0.0), row[9])
    return latest
