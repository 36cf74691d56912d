"""The consumers of executions: one is begun, cut into chunks, and its chunks are worked by whoever is free.

::

    NEW ──claim, snapshot──▶ IN_PROGRESS ──plan──▶ waiting ──claim──▶ working ──complete──▶ done ──the last──▶ FINISHED
                                 │ cannot be cut                         │ failed: waiting again after 1, 2, 4 s …
                                 └─▶ EXCEPTION_OCCURRED ◀────────────────┘ or for good

Any number of them work side by side. A chunk is read and decided outside any transaction; one transaction writes what
it decided, marks it done and counts it. What a killed consumer had in its hands is due again when its session is lost.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import asyncpg
import structlog

from tickwright.batch.attempts import Attempts, Held, Works
from tickwright.batch.chunks_store import ChunkKey, ChunksStore, PlanClaim
from tickwright.ports.ids import monotonic
from tickwright.ports.probe import NO_PROBE, Probe
from tickwright.ports.session import Session
from tickwright.store.hearing import Hearing
from tickwright.store.pool import AWAY

CHANNEL = "tickwright_batches"
LOOK_S = 5.0
LOOK_WITHOUT_NEWS_S = 0.5
BUSY_S = 0.02
KEEP_S = 1.0
AWAY_S = 1.0

_log = structlog.get_logger("tickwright.batches")


class BatchConsumer:
    """A :class:`tickwright.ports.service.Service`.

    Args:
        works: What this process can do.
        at_once: Chunks and plans at a time in this process, 1 to 64.

    Invariants:
        BCO-1: nothing is worked without a claim, and counts only under that claim.
        BCO-2: work whose claim is lost, or whose execution has ended, is cancelled within two seconds.
        BCO-3: a chunk that is done is never done again.
    """

    name = "campaign-consumer"

    def __init__(
        self,
        store: ChunksStore,
        session: Session,
        hearing: Hearing,
        works: Works,
        *,
        at_once: int,
        probe: Probe = NO_PROBE,
    ) -> None:
        self._store, self._session, self._hearing, self._works = store, session, hearing, works
        self._at_once = at_once
        self._attempts = Attempts(store, session, works, probe=probe)
        self.counts: Counter[str] = Counter()
        self._news = hearing.subscribe()
        self._held: dict[int | ChunkKey, Held[Any]] = {}
        self._stopping = asyncio.Event()
        self._over = asyncio.Event()
        self._over.set()
        self._ticked_s: float | None = None
        self._unsure = False
        session.on_lost(self._lose_all)

    # ------------------------------------------------------------------ service

    async def run(self) -> None:
        """Work until stopped."""
        self._over.clear()
        keeping = asyncio.create_task(self._keep())
        try:
            while not self._stopping.is_set():
                self._news.clear()
                wait_s = await self._look()
                self._ticked_s = monotonic()
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._news.wait()
            await self._none_runs()
        finally:
            keeping.cancel()
            self._over.set()

    async def quiesce(self) -> None:
        """Claim nothing more; what runs ends."""
        self._stopping.set()
        self._news.set()
        await self._over.wait()
        await self._none_runs()

    async def stop(self) -> None:
        """Cancel what runs and give it back."""
        self._stopping.set()
        self._news.set()
        for held in [*self._held.values()]:
            if held.task is not None:
                held.task.cancel()
        await self._over.wait()
        await self._none_runs()

    def last_tick_age_s(self) -> float | None:
        """Seconds since it looked what is due."""
        return None if self._ticked_s is None else monotonic() - self._ticked_s

    @property
    def running(self) -> int:
        """Chunks and plans in this process's hands."""
        return len(self._held)

    async def _none_runs(self) -> None:
        while tasks := [held.task for held in self._held.values() if held.task is not None]:
            await asyncio.wait(tasks)

    def _lose_all(self) -> None:
        for held in self._held.values():
            held.lose()

    # ------------------------------------------------------------------ claiming

    async def _look(self) -> float:
        """Take what there is room for; return after how many seconds to look again."""
        served = self._works.served()
        if not self._session.holds() or not served:
            return AWAY_S
        look_s = LOOK_S if self._hearing.works else LOOK_WITHOUT_NEWS_S
        try:
            while len(self._held) < self._at_once:
                if not await self._take(served):
                    next_s = await self._store.next_in_s(served)
                    # due, and nothing could be taken: somebody else is at the row just now
                    return look_s if next_s is None else min(max(next_s, BUSY_S), look_s)
        except AWAY as error:
            _log.warning("batches.not_claimed", error=repr(error))
            return AWAY_S
        return look_s  # full; the end of what runs is news

    async def _take(self, served: Sequence[str]) -> bool:
        owner = self._session.token
        try:
            if self._unsure:
                await self._give_back_strays(owner)
            chunk = await self._store.claim_chunk(owner, served)
            if chunk is not None:
                self._begin(chunk.key, Held(chunk, owner), self._attempts.chunk)
                return True
            plan = await self._store.claim_execution(owner, served)
        except asyncpg.UniqueViolationError:
            return False  # another execution of the batch began at this moment
        except AWAY:
            self._unsure = True
            raise
        if plan is None:
            return False
        if plan.is_to_be_planned:
            self._begin(plan.run.execution_id, Held(plan, owner), self._attempts.plan)
        return True

    async def _give_back_strays(self, owner: int) -> None:
        plans = [key for key in self._held if isinstance(key, int)]
        await self._store.give_back_strays(owner, plans, [key for key in self._held if isinstance(key, ChunkKey)])
        self._unsure = False

    def _begin(self, key: int | ChunkKey, held: Held[Any], attempt: Callable[[Held[Any]], Awaitable[str]]) -> None:
        self._held[key] = held
        held.task = asyncio.create_task(self._try(key, held, attempt))

    async def _try(self, key: int | ChunkKey, held: Held[Any], attempt: Callable[[Held[Any]], Awaitable[str]]) -> None:
        outcome = "lost"
        try:
            outcome = await attempt(held)
        except asyncio.CancelledError:
            if not held.is_lost:
                outcome = "released"
                with suppress(*AWAY):
                    await self._release(held)
        finally:
            if self._held.get(key) is held:
                del self._held[key]
            self.counts[outcome] += 1
            self._news.set()

    async def _release(self, held: Held[Any]) -> None:
        if isinstance(held.claim, PlanClaim):
            await self._store.release_plan(held.claim, held.owner)
        else:
            await self._store.release_chunk(held.claim, held.owner)

    # ------------------------------------------------------------------ keeping

    async def _keep(self) -> None:
        """Find out every second what is not ours any more, or not wanted."""
        while True:
            await asyncio.sleep(KEEP_S)
            held = dict(self._held)
            plans = {key: one.claim.fence for key, one in held.items() if isinstance(key, int)}
            chunks = {key: one.claim.fence for key, one in held.items() if isinstance(key, ChunkKey)}
            try:
                own, kept = await self._store.kept(self._session.token, plans, chunks)
            except AWAY:
                continue
            for key, one in held.items():
                if key not in own and key not in kept and self._held.get(key) is one:
                    one.lose()
