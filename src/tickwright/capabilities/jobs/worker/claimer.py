"""Claims due jobs; decides how many, and when to claim again.

A claim reaches a fifth of a second ahead, so that each job starts at its instant without polling. While claims find
jobs, the next one follows at once, as far as slots and limits allow. Then the worker sleeps.

A worker that is alone sleeps until the next due instant, which each claim returns, comes into reach, at most two
seconds; an insert that is due earlier wakes it. Workers that run the same types take turns, and the one that listens is
also woken by inserts that are due before the next turn: see :mod:`tickwright.engine.wakeup.turns`.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Protocol

import asyncpg
import structlog

from tickwright.capabilities.jobs.model import (
    ClaimedRow,
    ClaimPlan,
    ClaimRange,
    allot,
    plan_claim,
)
from tickwright.capabilities.jobs.worker.claims import (
    LONG_BYTES,
    LONG_MAX,
    ClaimedJobs,
    ClaimRequest,
    ClaimStore,
    lengths_of,
)
from tickwright.capabilities.jobs.worker.frontier import ClaimFrontier, ClaimScope, fair_plan
from tickwright.capabilities.jobs.worker.groups import ROWS_MAX, WorkerGroups, depth_of
from tickwright.capabilities.jobs.worker.idle_sleep import IdleSleep
from tickwright.capabilities.jobs.worker.runner import Runner
from tickwright.capabilities.jobs.worker.shared_limits import SharedLimits
from tickwright.capabilities.jobs.worker.type_state import TypeState
from tickwright.domain.dbclock import DbClock
from tickwright.engine.claim_gate import ClaimGate, Ticket
from tickwright.engine.tasks import is_set_within
from tickwright.engine.wakeup.listener import ArmedWakeup
from tickwright.engine.wakeup.turns import TURN_S, Turns
from tickwright.ports.ids import monotonic
from tickwright.ports.session import Session
from tickwright.store.pool import UNAVAILABLE

HORIZON = timedelta(milliseconds=200)
POLL_S = 1.0
HEARD_POLL_S = 2.0
"""Where an insert notifies, a poll finds only what was changed without a notification, such as a reclaimed job."""
LISTEN_AHEAD_S = 0.05
"""How long before its round a process begins to listen."""
GAP_S = 0.02
ROOM_S = 0.05
FULL_S = 1.0
"""A worker whose slots are full for longer has no share of limited types until one is free."""
SHARE_S = 0.2
"""How long a claim waits for a share. After that, a blocked lock delays no other type."""
GROUPS_S = 0.2
"""How long a claim of jobs without groups waits for that of jobs with groups."""
BATCH_MAX = 4000
PREFETCH_S = 0.2
PREFETCH_MAX = 16_000
RATE_WINDOW_S = 0.05
BACKLOG_MAX = 20_000
HELD_BYTES_MAX = 128 * 1024 * 1024
UNAVAILABLE_S = 0.5
CLAIM_UNAVAILABLE = (*UNAVAILABLE, asyncpg.ProgramLimitExceededError)
"""The last one (54) for a row from before 0022 whose payload is too long as text."""

_NO_RANGES = ClaimScope((), frozenset())
_log = structlog.get_logger("tickwright.jobs")


class ClaimReceiver(Protocol):
    """The methods of the worker that a claimer calls; see ``JobWorker``."""

    def types(self) -> Mapping[str, TypeState]: ...  # noqa: D102  as there

    def take(self, claimed: ClaimedJobs) -> None: ...  # noqa: D102

    def backlog(self) -> int: ...  # noqa: D102

    async def share_again(self) -> None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class PendingClaim:
    """A running claim; ``follows``: it continues where others ended, not from the head."""

    plan: ClaimPlan
    scope: ClaimScope
    follows: bool
    answer: "asyncio.Task[ClaimedJobs]"


class Claimer:
    """The claim loop of one worker."""

    def __init__(  # noqa: PLR0917  built in one place, by its worker
        self,
        store: ClaimStore,
        gate: ClaimGate,
        session: Session,
        runner: Runner,
        clock: DbClock,
        wakeup: ArmedWakeup,
        receiver: ClaimReceiver,
        limits: SharedLimits,
        groups: WorkerGroups,
        turns: Turns,
    ) -> None:
        self._store, self._gate, self._session, self._runner, self._clock = store, gate, session, runner, clock
        self._wakeup, self._receiver, self._limits, self._turns = wakeup, receiver, limits, turns
        self._groups = groups
        self._frontier = ClaimFrontier(self._is_serial)
        self.sleep = IdleSleep(wakeup)
        self._turn = self._following = 0
        self._others_are_late = False
        self._pending: PendingClaim | None = None
        self._arrived: ClaimedJobs | None = None
        self._rate_limited_plan: ClaimPlan | None = None
        self._groups_plan: ClaimPlan | None = None
        self._sweep: asyncio.Task[None] | None = None
        self._sweep_plan: ClaimPlan | None = None
        self._type_left_out = False
        self._full_since_s: float | None = None
        self._sharing: asyncio.Task[None] | None = None
        self._of_groups: asyncio.Task[bool] | None = None
        self._bytes: Counter[str] = Counter()
        self._ending: Counter[str] = Counter()
        self._measured_s = monotonic()
        self._stopping = False
        self._started = False
        self._over = asyncio.Event()
        self._changed = asyncio.Event()
        self.ticked_s: float | None = None
        runner.freed = self._changed.set
        runner.thread_freed = self.wake

    def wake(self) -> None:
        """Claim again now: types, grants or capacity have changed."""
        self._changed.set()
        self._wakeup.woken.set()

    def stop(self) -> None:
        """Start no more claims."""
        self._stopping = True
        self.wake()

    async def wait_stopped(self) -> None:
        """Return when no claim is running."""
        if self._started:
            await self._over.wait()

    async def run(self) -> None:
        """Claim until stopped."""
        self._started = True
        self._over.clear()
        if self._turns.listens():  # also a worker that never sleeps hears of cancels and changed types
            await self._wakeup.listen()
        try:
            while not self._stopping:
                try:
                    await self._claim_once()
                except CLAIM_UNAVAILABLE as error:
                    _log.warning("jobs.claim_failed", error=repr(error))
                    await asyncio.sleep(UNAVAILABLE_S)
            await self._finish_claims()
            await self._wakeup.unlisten()
        except BaseException:
            self._gate.unsure = True  # a claim may have taken jobs that the worker does not know
            raise
        finally:
            if self._sharing is not None:
                self._sharing.cancel()
                self._sharing = None
            if self._of_groups is not None:
                self._of_groups.cancel()
                self._of_groups = None
            self._over.set()

    async def _finish_claims(self) -> None:
        """Take the jobs of running claims over, so that they can be released."""
        if self._pending is not None:
            with suppress(*CLAIM_UNAVAILABLE):
                self._accept(await self._pending.answer)
            self._pending = None
        if self._sweep is not None:
            await asyncio.wait([self._sweep])
        if self._of_groups is not None:
            with suppress(*CLAIM_UNAVAILABLE):
                await self._of_groups
            self._of_groups = None

    @property
    def claims_nothing(self) -> bool:
        """Whether it has stopped, or waits for a restart, or had no room for ``FULL_S``; see :meth:`note_room`."""
        if self._stopping or (self._started and self._over.is_set()):
            return True
        return self._full_since_s is not None and monotonic() - self._full_since_s >= FULL_S

    def note_room(self) -> int:
        """Return how many jobs it may claim now, and note since when there is no room."""
        budget = self._budget()
        if budget > 0:
            self._full_since_s = None
        elif self._full_since_s is None:
            self._full_since_s = monotonic()
        return budget

    async def _share_again(self) -> None:
        """Settle grants before a claim, where there is room and the last heartbeat left no share or too small a one."""
        budget, limits = self.note_room(), self._limits
        if budget <= 0 or not self._session.holds() or not (limits.withheld or monotonic() >= limits.again_s):
            return
        if self._sharing is None:
            self._sharing = asyncio.create_task(self._receiver.share_again())
        done, _ = await asyncio.wait([self._sharing], timeout=SHARE_S)
        if done:
            sharing, self._sharing = self._sharing, None
            sharing.result()

    def unaccepted(self) -> Sequence[ClaimedRow]:
        """Return the jobs of finished claims that are not taken over yet."""
        rows = list(self._arrived.rows) if self._arrived else []
        answer = None if self._pending is None else self._pending.answer
        if answer is not None and answer.done() and not answer.cancelled() and answer.exception() is None:
            rows += answer.result().rows
        return rows

    def may_return(self) -> Counter[str]:
        """Return how many jobs running claims may still return, by type."""
        plans = [self._rate_limited_plan, self._groups_plan, self._pending and self._pending.plan]
        return Counter(
            {name: rows for plan in plans if plan for name, rows in zip(plan.types, plan.rows_max, strict=True)}
        )

    async def _claim_once(self) -> None:
        """Claim jobs without groups and, beside that, jobs with groups; then sleep, unless there are more."""
        if self._pending is None:
            await self._share_again()
        if self._of_groups is not None and self._of_groups.done():
            await self._groups_claimed()
        if self._of_groups is None and any(state.task_type.has_groups for state in self._receiver.types().values()):
            self._of_groups = asyncio.create_task(self._claim_groups())
        sleep = await self._claim_plain()
        if sleep is not None and not await self._groups_claimed():
            await sleep()

    async def _groups_claimed(self) -> bool:
        """Wait for the claim of jobs with groups; return whether more of them may start at once.

        One that waits for a lock on the row of its type continues, and wakes the claimer: it delays no other jobs.
        """
        if (claiming := self._of_groups) is None:
            return False
        done, _ = await asyncio.wait([claiming], timeout=GROUPS_S)
        if not done:
            claiming.add_done_callback(lambda _: self.wake())
            return False
        self._of_groups = None
        return claiming.result()

    async def _claim_plain(self) -> Callable[[], Awaitable[None]] | None:
        """Claim jobs without groups; return how to wait for the next claim, or ``None`` where it follows at once."""
        self._pending = pending = self._pending or self._start_claim()
        if pending is None:
            return await self._nothing_to_claim()
        try:
            claimed = await pending.answer
        finally:
            self._pending = None
        full = self._frontier.note(pending.plan, pending.scope, claimed)
        if full:  # the database claims the next batch while this one is taken over
            self._arrived, self._pending = claimed, self._start_claim(arriving=claimed)
            try:
                await asyncio.sleep(0)  # sends the statement
            finally:
                self._arrived = None
        self._accept(claimed)
        await self._claim_rate_limited(self._budget())
        if full or pending.follows:  # the last claim of a drain did not start from the head: one more must
            return None
        self._others_are_late = any(row.due_s < claimed.snapshot_s - TURN_S for row in claimed.rows)
        return partial(self._sleep_or_wait, claimed.now_s, self._frontier.next_due_s)

    async def _sleep_or_wait(self, now_s: float, next_due_s: float | None) -> None:
        if self._type_left_out:  # a type had no room and was not claimed
            await self._wait_for_room(GAP_S)
        elif self._turns.alone:
            await self._sleep_alone(now_s, next_due_s)
        else:
            await self._sleep_until_turn()

    def _start_claim(self, arriving: ClaimedJobs | None = None) -> PendingClaim | None:
        """Start a claim for the room that is left beside ``arriving``."""
        budget = self._budget() - (len(arriving.rows) if arriving else 0)
        if budget <= 0 or not self._session.holds():
            return None
        self._turn += 1
        plan = plan_claim(self._allowance(budget, arriving), self._frontier.hot, min(budget, BATCH_MAX), self._turn)
        if plan is None:
            return None
        follows, scope = self._frontier.follows(plan), self._frontier.scope(plan.types)
        if follows:
            self._following += 1
            plan = fair_plan(plan, self._following, scope)
        bounded = follows or self._frontier.dragging
        if bounded and self._sweep is None and (names := self._frontier.sweep_due(plan)):
            self._sweep_plan, plan = plan.split(names)
            self._sweep = asyncio.create_task(self._sweep_once(self._sweep_plan))
        claim = self._claim(plan, scope, bounded=bounded)
        return PendingClaim(plan, scope, follows, asyncio.ensure_future(claim))

    async def _nothing_to_claim(self) -> Callable[[], Awaitable[None]]:
        self.ticked_s = monotonic()
        if self._budget() <= 0 or not self._session.holds():
            return partial(self._wait_for_room, ROOM_S)
        await self._claim_rate_limited(self._budget())
        return partial(self._sleep_or_wait, 0.0, None)

    def _prefetch_by_type(self) -> Counter[str]:
        """Return how many jobs of each type may be held beyond its slots: as many as end in a fifth of a second."""
        now = monotonic()
        if (within_s := now - self._measured_s) >= RATE_WINDOW_S:
            self._measured_s = now
            ending = Counter[str]()
            for name, state in self._receiver.types().items():
                slots = self._runner.slots if state.queue is None else state.queue.slots
                at_once = slots if state.is_async else self._runner.threads
                ending[name] = min(PREFETCH_MAX, int(PREFETCH_S * state.ended.take_rate(within_s, at_once=at_once)))
            self._ending = ending
        return self._ending

    def _prefetch(self) -> int:
        return min(PREFETCH_MAX, self._prefetch_by_type().total())

    def _budget(self) -> int:
        if self._receiver.backlog() > BACKLOG_MAX:
            return 0
        runner, sweep = self._runner, self._sweep_plan
        arriving = min(sweep.total_max, sum(sweep.rows_max)) if sweep else 0
        return (
            runner.slots
            - runner.busy
            + self._prefetch()
            - (runner.queued - runner.blocked - len(runner.places))
            - arriving
        )

    def _weigh(self) -> Counter[str]:
        """Return the bytes of the held payloads by type; those of ended jobs are still counted while the sum is low."""
        if self._bytes.total() > HELD_BYTES_MAX // 2:
            self._bytes = lengths_of([job.row for job in self._runner.held()])
        return self._bytes

    def _allowance(self, budget: int, arriving: ClaimedJobs | None) -> dict[str, int]:
        allowance = {}
        self._type_left_out = False
        counts, lengths = (arriving.counts, arriving.lengths) if arriving else (Counter(), Counter())
        room, shares, threads = self._byte_room(lengths), self._slot_shares(counts), self._thread_shares(counts)
        for name, state in self._receiver.types().items():
            if state.task_type.waits or state.task_type.rate_per_s is not None:
                continue
            rows = min(budget, shares[name]) if room(name) else 0
            free = state.free(state.held + counts[name])
            self._type_left_out = self._type_left_out or (rows == 0 and free != 0)
            allowance[name] = min(rows, rows if free is None else free, threads.get(name, rows))
        return allowance

    def _slot_shares(self, arriving: Mapping[str, int]) -> dict[str, int]:
        """Return how many jobs of each type may be claimed: its share of the slots, and what may be held beyond it.

        Jobs beyond the share take no slot of another type, because jobs of their type end within a fifth of a second.
        """
        arriving, ahead = Counter(arriving), self._prefetch_by_type()
        if self._sweep_plan is not None:
            arriving.update(dict(zip(self._sweep_plan.types, self._sweep_plan.rows_max, strict=True)))
        types, pools, behind = self._receiver.types(), self._runner.pools, self._runner.places.behind
        held = {
            name: state.slots_taken + arriving[name] - behind[name] - state.running + state.running_in_queue
            for name, state in types.items()
        }
        used = {name: min(self._runner.slots_of(types[name]), max(0, held[name] - ahead[name])) for name in held}
        if pools is not None:
            queues = {name: state.task_type.queue for name, state in types.items()}
            shares = pools.shares(used, queues, self._frontier.hot)
            return {name: shares[name] + max(0, ahead[name] - held[name]) for name in held}
        free = self._runner.slots - sum(used.values())
        return {name: allot(free, used[name], all_free=free) + max(0, ahead[name] - held[name]) for name in held}

    def _thread_shares(self, arriving: Mapping[str, int]) -> dict[str, int]:
        """Return how many jobs of each synchronous type may be claimed, by its share of the threads.

        Beside that share, a type may have as many as its threads end in a fifth of a second. Types with more due jobs
        get even parts of the free threads. Each other type gets at least one, so that a claim finds its jobs, too.
        """
        arriving, kinds = Counter(arriving) + self.may_return(), self._receiver.types().items()
        held = {name: state.slots_taken + arriving[name] for name, state in kinds if not state.is_async}
        ahead = self._prefetch_by_type()
        most = allot(self._runner.threads, 0, all_free=self._runner.threads)
        used = {name: min(most, max(0, held[name] - ahead[name])) for name in held}
        left = self._runner.threads - max(self._runner.threads_stuck, sum(used.values()))
        shares = {name: allot(left, used[name], all_free=left) for name in held}
        able = {name for name, share in shares.items() if share}
        parts = able & self._frontier.hot or able
        part = max(1, left // max(1, len(parts)))
        rows = {}
        for name, share in shares.items():
            rows[name] = min(share, part if name in parts else 1) + max(0, ahead[name] - held[name])
            if rows[name] < ahead[name] // 2:  # a claim for a few jobs costs too much
                rows[name], self._type_left_out = 0, True
            elif not rows[name]:
                self._runner.notify_when_thread_free()
        return rows

    def _byte_room(self, arriving: Mapping[str, int] | None = None) -> Callable[[str], int]:
        """Return a function for the bytes of payloads that a type may still have; bytes are shared like slots."""
        held = self._weigh() + Counter(arriving)
        left = max(0, HELD_BYTES_MAX - held.total())
        return lambda name: allot(left, held[name], all_free=left)

    async def _wait_for_room(self, at_most_s: float) -> None:
        """Wait until half of the queue has started, at most ``at_most_s``."""
        self._changed.clear()
        self._runner.notify_when_below(self._prefetch() // 2)
        self.ticked_s = monotonic()
        await is_set_within(self._changed, at_most_s)

    def _request(
        self,
        ticket: Ticket,
        plan: ClaimPlan,
        scope: ClaimScope,
        *,
        bounded: bool = False,
        checked: Sequence[ClaimRange] = (),
    ) -> ClaimRequest:
        room = self._byte_room()
        long_max = max(1, min(LONG_MAX, *(room(name) // LONG_BYTES for name in plan.types)))
        return ClaimRequest(
            ticket.owner,
            plan,
            scope.ranges,
            HORIZON,
            bounded=bounded,
            whole=scope.whole,
            number=ticket.number,
            long_max=long_max,
            checked=checked,
        )

    async def _claim(self, plan: ClaimPlan, scope: ClaimScope, *, bounded: bool) -> ClaimedJobs:
        discovers = self._frontier.may_discover()
        if not discovers:
            scope = replace(scope, whole=frozenset())
        checked = self._frontier.next_to_check(scope.ranges) if discovers and not bounded else ()
        async with self._gate.claiming() as ticket:
            started = monotonic()
            claimed = await self._store.claim(self._request(ticket, plan, scope, bounded=bounded, checked=checked))
        if discovers:
            self._frontier.discovered(monotonic() - started)
        if not bounded:
            self._frontier.watch(took_s=monotonic() - started, rows=len(claimed.rows), ranges=len(scope.ranges))
        return claimed

    async def _sweep_once(self, plan: ClaimPlan) -> None:
        """Claim without the bound, beside the bounded claims, for jobs that were inserted behind them."""
        started = monotonic()
        try:
            async with self._gate.claiming() as ticket:
                scope = self._frontier.whole_scope(plan.types)
                self._accept(await self._store.claim(self._request(ticket, plan, scope)))
        except CLAIM_UNAVAILABLE as error:
            _log.warning("jobs.claim_failed", error=repr(error))
        finally:
            self._sweep = self._sweep_plan = None
            self._frontier.swept(monotonic() - started)

    def _accept(self, claimed: ClaimedJobs) -> None:
        self.ticked_s = monotonic()
        if self._clock.sample(claimed.now_s, claimed.received_s):
            _log.warning("jobs.db_clock_jump", now_s=claimed.now_s)
        self._frontier.learn(claimed.new_ranges)
        if claimed.rows:
            self._bytes += claimed.lengths
            self.sleep.found_work(len(claimed.rows))
            self._receiver.take(claimed)

    def _is_serial(self, name: str) -> bool:
        """Whether a type is claimed by one claim at a time: two could exceed its grant or its share of the threads."""
        state = self._receiver.types().get(name)
        return state is None or state.granted is not None or not state.is_async

    async def _claim_rate_limited(self, budget: int) -> None:
        now = monotonic()
        for name, state in self._receiver.types().items():
            if state.task_type.rate_per_s is None or state.task_type.waits or now < state.rate_limited_until_s:
                continue
            if not self._byte_room()(name):
                continue
            rows, free = min(budget, self._slot_shares({})[name]), state.free(state.held)
            rows = min(rows, rows if free is None else free, self._thread_shares({}).get(name, rows))
            plan = ClaimPlan((name,), (rows,), BATCH_MAX)
            if plan.rows_max[0] <= 0:
                continue
            scope = self._frontier.whole_scope(plan.types)
            if state.rate_limited_more:
                state.limited_claims += 1
                plan = fair_plan(plan, state.limited_claims, scope)
            self._rate_limited_plan = plan
            checked = self._frontier.next_to_check(scope.ranges)
            try:
                async with self._gate.claiming() as ticket:
                    request = self._request(ticket, plan, scope, checked=checked)
                    if (claimed := await self._limits.claim(state, request)) is not None:
                        self._frontier.forget(claimed.empty_ranges)
                        self._accept(claimed)
            finally:
                self._rate_limited_plan = None

    async def _claim_groups(self) -> bool:
        """Claim jobs with groups, of each type that has any; return whether more of them may start at once."""
        has_more, claimed_types = False, set[str]()
        for name, state in self._groups.due(self._receiver.types()):
            free, shares = state.free(state.held), self._slot_shares({})
            rows = min(self._budget(), shares[name])
            if rows > 0:  # jobs that wait for each other in a place take one slot
                rows = min(max(rows, depth_of(state.ended.mean_s) - state.held), ROWS_MAX)
            rows = min(rows, rows if free is None else free, self._thread_shares({}).get(name, rows))
            if rows <= 0 or not self._byte_room()(name) or not self._session.holds():
                continue
            claimed_types.add(name)
            self._groups_plan = plan = ClaimPlan((name,), (rows,), rows)
            try:
                async with self._gate.claiming() as ticket:
                    request = self._request(ticket, plan, _NO_RANGES)
                    claimed = await self._groups.claim(state, request)
                    if claimed is not None:
                        has_more |= claimed.has_more
                        self._accept(claimed)
            finally:
                self._groups_plan = None
        await self._groups.hint(but=claimed_types | self._groups.later)
        return has_more or bool(self._runner.places.types_left_over())

    async def _sleep_alone(self, now_s: float, next_due_s: float | None) -> None:
        await self._wakeup.listen()
        wait_s = HEARD_POLL_S if self._wakeup.works else POLL_S
        if next_due_s is not None:
            wait_s = min(wait_s, next_due_s - now_s - HORIZON.total_seconds() + GAP_S / 2)
        if often := self.sleep.finds_often():  # looks often enough for all that is not due at once
            wait_s = TURN_S
        await self._sleep(wait_s, late=not often)

    async def _sleep_until_turn(self) -> None:
        turns, ends_in_s = self._turns, self._turns.round_ends_in_s()
        listens_next = turns.listens(ends_in_s + TURN_S)
        if turns.listens() or (listens_next and ends_in_s <= LISTEN_AHEAD_S):
            await self._wakeup.listen()
        else:
            await self._wakeup.unlisten()
        wait_s = TURN_S if self._others_are_late else turns.next_in_s()
        if listens_next != self._wakeup.listening:
            wait_s = min(wait_s, ends_in_s - LISTEN_AHEAD_S if listens_next else ends_in_s)
        await self._sleep(wait_s)

    async def _sleep(self, wait_s: float, *, late: bool = False) -> None:
        now = monotonic()
        waiting = [state for state in self._receiver.types().values() if state.rate_limited_more]
        starts_s = [state.rate_limited_until_s - now for state in waiting]
        starts_s += [self._groups.next_s - now]
        await self.sleep.sleep(max(GAP_S, min([wait_s, self._limits.again_s - now, *starts_s])), late=late)
