"""Limits that all workers share: a type's concurrency and its rate.

Concurrency is divided into grants, one row per type and worker, whose sum never exceeds the limit. With every heartbeat
a worker takes its even share and releases what others wait for, so no row is written per job. A worker that claims
nothing, because it stops or its slots are full, has no share beyond what it runs. It settles its share again before the
next claim for which it has room.

A rate is a row with the first start that is not taken (GCRA). A claim takes as many starts as jobs, and each job starts
at its own, in any worker.
"""

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from tickwright.capabilities.jobs.model import RATE_LIMITED_AHEAD_S, TaskType, furthest_start_s
from tickwright.capabilities.jobs.worker.claims import ClaimedJobs, ClaimRequest, ClaimStore
from tickwright.capabilities.jobs.worker.type_state import TypeState
from tickwright.ports.ids import monotonic
from tickwright.ports.session import Session
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

_SQL = load("tickwright.capabilities.jobs.sql", "shared_limits.sql")
AGAIN_S = 0.2
AGAIN_MAX = 4
"""The interval, and how many times a worker that shares again asks for what the others have not released yet."""


class SharedLimits:
    """Takes grants and starts for one worker.

    Attributes:
        withheld: This worker claims nothing and has no share of limited types.
        again_s: When to settle again (monotonic): other workers held a part of its share, or it held a part of theirs.
    """

    def __init__(self, pool: Pool, store: ClaimStore, session: Session) -> None:
        self._pool, self._store, self._session = pool, store, session
        self._settled = set[str]()
        self._settling = 0
        self._tries = 0
        self.withheld = False
        self.again_s = math.inf

    async def share_out(
        self,
        connection: Connection,
        types: Mapping[str, TypeState],
        asked: Callable[[], Mapping[str, int]],
        *,
        left: Mapping[str, TypeState] = MappingProxyType({}),
        shares: bool = True,
    ) -> Callable[[], None]:
        """Settle this worker's grants, in the heartbeat's transaction.

        In use is what runs and what running claims may still return (``asked``). Until the commit the worker may hold
        no more. Both are counted at one instant, after the wait for the lock: a claim that returned during the wait
        would count twice. From that instant on no earlier settling raises a grant, and the session is that of the
        instant. A lost session is granted nothing.

        Args:
            connection: Inside a transaction.
            types: The worker's task types.
            asked: Returns what running claims may still return.
            left: Types that it can no longer run; their running attempts count. Its rows of other types are deleted.
            shares: Whether it claims; otherwise it leaves its share to the others.

        Returns:
            The function to call after the commit. If the transaction rolls back, a grant belongs to another worker.
        """
        limited = [state for state in types.values() if state.task_type.concurrency is not None]
        names = [state.task_type.name for state in limited]
        former = sorted(self._settled.difference(names))
        if not names and not former:
            self.withheld, self.again_s = False, math.inf
            return _nothing
        await lock_limited(connection, [*names, *former])
        arriving, token = asked(), self._session.token
        self._settling = settling = self._settling + 1
        self._settled.update(names, former)
        for state in limited:
            state.granted = state.held + arriving.get(state.task_type.name, 0)
        in_use = [state.granted for state in limited] + [left[name].held if name in left else 0 for name in former]
        may = [shares] * len(names) + [False] * len(former)
        rows = await connection.fetch(_SQL["share_out"], token, [*names, *former], in_use, may)
        granted = {row["name"]: row["granted"] for row in rows}
        for state in limited:
            state.granted = min(state.granted or 0, granted.get(state.task_type.name, 0))
        if not rows or settling != self._settling:  # the session is lost, in the database or in this process
            return _nothing
        has_changed = shares == self.withheld
        keeps = any(
            used > granted.get(name, 0) and arriving.get(name) for name, used in zip(names, in_use, strict=False)
        )
        self._note(shares=shares, short=any(row["short"] for row in rows), keeps=keeps)
        if has_changed:
            await connection.execute(_SQL["notify_workers"])

        def committed() -> None:
            if settling == self._settling:  # a later settling has counted what is in use since
                self._settled.difference_update(name for name in former if name not in left)
                for state in limited:
                    state.granted = granted.get(state.task_type.name, 0)

        return committed

    def session_lost(self, types: Iterable[TypeState]) -> None:
        """Drop the grants of the lost session; the next session settles before it claims."""
        self._settling += 1
        self._settled.clear()
        self.withheld = True
        for state in types:
            if state.granted is not None:
                state.granted = 0

    def _note(self, *, shares: bool, short: bool, keeps: bool) -> None:
        """Note whether this worker ``shares``, and when it settles again.

        ``short``: others hold a part of its share, and must release it. ``keeps``: it holds more than its share, for
        running claims that may return nothing.
        """
        self._tries = AGAIN_MAX if shares and self.withheld else max(0, self._tries - 1)
        self.withheld = not shares
        self.again_s = monotonic() + AGAIN_S if keeps or (short and self._tries) else math.inf

    async def claim(self, state: TypeState, request: ClaimRequest) -> ClaimedJobs | None:
        """Claim jobs of a rate-limited type with a start for each (``fire_s``); ``None`` when no start is free yet."""
        async with self._pool.acquire() as connection, connection.transaction():
            claimed, asked, wait_s = await claim_at_rate(self._store.claim, connection, state.task_type, request)
        if claimed is None:
            state.rate_limited_more = True
            state.rate_limited_until_s = monotonic() + wait_s
            return None
        self._note_more(state, claimed, asked)
        return claimed

    @staticmethod
    def _note_more(state: TypeState, claimed: ClaimedJobs, asked: int) -> None:
        """Time the next claim: while jobs wait, when half of the taken starts are used; else the next ordinary one.

        A claim finds one priority between two known ones. Where it found one, there may be more.
        """
        state.rate_limited_more = claimed.was_cut or len(claimed.rows) >= asked or bool(claimed.new_ranges)
        wait_s = 0.0
        if state.rate_limited_more:
            wait_s = min(RATE_LIMITED_AHEAD_S / 2, len(claimed.rows) / (state.task_type.rate_per_s or 1.0) / 2)
        state.rate_limited_until_s = monotonic() + wait_s


C = TypeVar("C", bound=ClaimedJobs)


class RatedClaim(NamedTuple, Generic[C]):
    """A claim at a rate: its jobs, how many it asked for; without a free start no jobs, and when there may be one."""

    claimed: C | None
    asked: int
    wait_s: float


async def claim_at_rate(
    claim: Callable[[ClaimRequest, Connection], Awaitable[C]],
    connection: Connection,
    kind: TaskType,
    request: ClaimRequest,
) -> RatedClaim[C]:
    """Claim jobs of a rate-limited type with a start for each (``fire_s``), in the caller's transaction."""
    name, rate = kind.name, kind.rate_per_s or 1.0
    row = await _lock_rate(connection, name)
    start_s, ahead_s = max(row["next_free_s"], row["now_s"]), max(RATE_LIMITED_AHEAD_S, 1 / rate)
    if start_s > row["now_s"] + furthest_start_s(rate):
        start_s = row["now_s"]  # no claim takes so much: a raised rate, or a clock set back
    room = math.floor((row["now_s"] + ahead_s - start_s) * rate)
    if room <= 0:
        return RatedClaim(None, 0, max(0.01, start_s - row["now_s"] - RATE_LIMITED_AHEAD_S / 2))
    asked = min(room, request.plan.rows_max[0])
    plan = replace(request.plan, rows_max=(asked,))
    claimed = replace(await claim(replace(request, plan=plan), connection), rate_per_s=rate)
    if claimed.rows:
        await connection.execute(_SQL["take_starts"], name, _assign(claimed, start_s, 1 / rate))
    return RatedClaim(claimed, asked, 0.0)


async def lock_limited(connection: Connection, names: Sequence[str]) -> None:
    """Wait for the other workers that share the concurrency of these types, until the end of the transaction."""
    await connection.fetch(_SQL["lock_limited"], names)


async def _lock_rate(connection: Connection, name: str) -> Any:
    row = await connection.fetchrow(_SQL["lock_rate"], name)
    if row is None:
        await connection.execute(_SQL["create_rate"], name)
        row = await connection.fetchrow(_SQL["lock_rate"], name)
    return row


def _assign(claimed: ClaimedJobs, start_s: float, step_s: float) -> float:
    claimed.sort()
    for row in claimed.rows:
        fire_s = max(start_s, claimed.fire_s.get(row.id, 0.0), row.due_s)
        claimed.fire_s[row.id] = fire_s
        start_s = fire_s + step_s
    return start_s


def _nothing() -> None:
    """Do nothing: no grant was settled."""
