"""The consumers of executions: one is begun, cut into chunks, and its chunks are worked by whoever is free.

::

    NEW ──claim, snapshot──▶ IN_PROGRESS ──plan──▶ waiting ──claim──▶ working ──complete──▶ done ──the last──▶ FINISHED
                                 │ cannot be cut                         │ failed: waiting again after 1, 2, 4 s …
                                 └─▶ EXCEPTION_OCCURRED ◀────────────────┘ or for good

Any number of them work side by side. A chunk is read and decided outside any transaction; one transaction writes what
it decided, marks it done and counts it. What a killed consumer had in its hands is due again when its session is lost.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import asyncpg
import structlog

from tickwright.capabilities.batches.executions.attempts import Attempts, Works
from tickwright.capabilities.batches.executions.chunks_store import ChunkKey, ChunksStore, PlanClaim
from tickwright.engine.claimed_work import AWAY_S, ClaimedWork, Held
from tickwright.engine.hearing import Hearing
from tickwright.ports.probe import NO_PROBE, Probe
from tickwright.ports.session import Session
from tickwright.store.pool import UNAVAILABLE, Connection

CHANNEL = "tickwright_batches"
BUSY_S = 0.02
FULL_LOOK_S = 1.0
"""How long nothing ends before a full process looks for another batch's chunks; a wake-up makes it look at once."""

_log = structlog.get_logger("tickwright.batches")


class BatchConsumer(ClaimedWork[int | ChunkKey, Held[Any]]):
    """A :class:`tickwright.ports.service.Service`.

    Args:
        works: What this process can do.
        at_once: Chunks and plans at a time in this process, 1 to 64; where these take long, one more of a batch that
            has none here.

    Invariants:
        BCO-1: nothing is worked without a claim, and counts only under that claim.
        BCO-2: work whose claim is lost, or whose execution has ended, is cancelled within two seconds.
        BCO-3: a chunk that is done is never done again.
        BCO-4: chunks of one batch, however long they take, never keep all others from a place.
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
        super().__init__(session, hearing, store.connect)
        self._store, self._works, self._at_once = store, works, at_once
        self._attempts = Attempts(store, session, works, probe=probe)

    # ------------------------------------------------------------------ claiming

    async def _look(self) -> float:
        """Take what there is room for; return after how many seconds to look again."""
        served = self._works.served()
        if not self._session.holds() or not served:
            return AWAY_S
        look_s = self._look_s
        # Full, and no end made room for this look: a batch that has nothing here gets a place beside all others.
        is_full = len(self._held) >= self._at_once
        but = sorted({held.claim.run.batch_id for held in self._held.values()}) if is_full else []
        try:
            while len(self._held) < self._at_once + is_full:
                if not await self._take(served, but):
                    next_s = await self._store.next_in_s(served, but=but)
                    # due, and nothing could be taken: somebody else is at the row just now
                    return look_s if next_s is None else min(max(next_s, BUSY_S), look_s)
        except UNAVAILABLE as error:
            _log.warning("batches.not_claimed", error=repr(error))
            return AWAY_S
        return look_s if is_full else min(FULL_LOOK_S, look_s)  # the end of what runs is news

    async def _take(self, served: Sequence[str], but: Sequence[int]) -> bool:
        async with self._gate.claiming() as (owner, number):
            chunk = await self._store.claim_chunk(owner, served, number=number, but=but)
            if chunk is not None:
                self._begin(chunk.key, Held(chunk, owner), self._attempts.chunk)
                return True
            try:
                plan = await self._store.claim_execution(owner, served, number=number)
            except asyncpg.UniqueViolationError:
                return False  # another execution of the batch began at this moment
            if plan is None:
                return False
            if plan.is_to_be_planned:
                self._begin(plan.key, Held(plan, owner), self._attempts.plan)
            return True

    async def _strays(self, connection: Connection, owner: int) -> int:
        return await self._store.give_back_strays(connection, owner, *_fences(self._held))

    async def _release(self, held: Held[Any]) -> None:
        if isinstance(held.claim, PlanClaim):
            await self._store.release_plan(held.claim, held.owner)
        else:
            await self._store.release_chunk(held.claim, held.owner)

    # ------------------------------------------------------------------ keeping

    async def _ours(self, held: Mapping[int | ChunkKey, Held[Any]]) -> Collection[int | ChunkKey]:
        plans, chunks = _fences(held)
        own, kept = await self._store.kept(self._session.token, plans, chunks)
        return own | kept


def _fences(held: Mapping[int | ChunkKey, Held[Any]]) -> tuple[dict[int, int], dict[ChunkKey, int]]:
    """Return plans and chunks with their fences."""
    plans = {key: one.claim.fence for key, one in held.items() if isinstance(key, int)}
    return plans, {key: one.claim.fence for key, one in held.items() if isinstance(key, ChunkKey)}
