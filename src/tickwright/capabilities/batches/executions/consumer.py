"""The consumers of executions: they begin one, cut it into chunks, and work on its chunks.

::

    NEW ──claim, snapshot──▶ IN_PROGRESS ──plan──▶ waiting ──claim──▶ working ──complete──▶ done ──the last──▶ FINISHED
                                 │ cannot be cut                         │ failed: waiting again after 1, 2, 4 s …
                                 └─▶ EXCEPTION_OCCURRED ◀────────────────┘ permanent error or last attempt

Any number of consumers work side by side. A chunk is read and decided outside any transaction; one transaction writes
its actions, marks it done and counts it. When a session is lost, the chunks that it had claimed are due again.

An error that may pass is retried with a growing pause; a permanent one ends the execution as ``EXCEPTION_OCCURRED``,
with text and trace. An error that a program's function raises ends its own execution, not the process.
"""

import traceback
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import asyncpg
import structlog

from tickwright.capabilities.batches.executions.checker import report_end
from tickwright.capabilities.batches.executions.chunks_store import (
    SQL,
    ChunkClaim,
    ChunkKey,
    ChunksStore,
    Failure,
    PlanClaim,
    end_chunk,
    lock_chunk,
)
from tickwright.capabilities.batches.executions.remote_work import ChunkPostponed
from tickwright.capabilities.batches.executions.work import ProcessWorks
from tickwright.domain.errors import Contended, Rejected, failure_text, storable
from tickwright.domain.retries import RetryPolicy
from tickwright.engine.claimed_work import UNAVAILABLE_S, ClaimedWork, Held, write_end
from tickwright.engine.tasks import is_final_cancel, take_cancels_back
from tickwright.engine.wakeup.listener import WakeupListener
from tickwright.observe.logs import MASKED_CHARS_MAX, without_secrets
from tickwright.observe.metrics import Sample, Source
from tickwright.ports.batches import ChunkResult, PlannedChunk
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.ports.session import Session
from tickwright.store.pool import UNAVAILABLE, Connection, Pool

CHANNEL = "tickwright_batches"
BUSY_S = 0.02
FULL_POLL_S = 1.0
"""How long nothing ends before a full process looks for another batch's chunks; a wake-up makes it look at once."""
RETRY_CAP = timedelta(minutes=5)
RETRIES = RetryPolicy(cap=RETRY_CAP)
LOST_MAX = 25
"""Sessions that may be lost with a chunk or a plan before it is taken for the cause."""
ATTEMPTS = 10
CHUNKS_MAX = 1_000_000
TRACE_CHARS = 8000
MESSAGE_CHARS = 2000

_log = structlog.get_logger("tickwright.batches")


class BatchConsumer(ClaimedWork[int | ChunkKey, Held[Any]]):
    """Claims plans and chunks, ``at_once`` of them (1 to 64), and makes an attempt at each.

    Where these take long, it claims one more of a batch that has none here.

    Invariants:
        BCO-1: work needs a claim, and counts only under that claim.
        BCO-2: work whose claim is lost, or whose execution has ended, is cancelled within two seconds.
        BCO-3: a chunk that is done is never done again.
        BCO-4: chunks of one batch, however long they take, leave room for those of another batch.
    """

    name = "campaign-consumer"
    owns_any_sql = SQL["owned"]

    def __init__(
        self,
        store: ChunksStore,
        session: Session,
        wakeups: WakeupListener,
        works: ProcessWorks,
        *,
        at_once: int,
        probe: Probe = NO_PROBE,
    ) -> None:
        super().__init__(session, wakeups, store.connect)
        self._store, self._works, self._at_once = store, works, at_once
        self._attempts = Attempts(store, session, works, probe=probe)

    @property
    def is_full(self) -> bool:
        """Whether each of its ordinary slots is taken."""
        return len(self._held) >= self._at_once

    async def _claim_due(self) -> float:
        """Take what there is room for; return the seconds until the next try."""
        served = self._works.served()
        if not self._session.holds() or not served:
            return UNAVAILABLE_S
        poll_s = self._poll_s
        # Full, and nothing has ended since the last try: a batch that has nothing here may take one more.
        is_full = self.is_full
        excluding = sorted({held.claim.run.batch_id for held in self._held.values()}) if is_full else []
        try:
            while len(self._held) < self._at_once + is_full:
                if not await self._take(served, excluding):
                    next_s = await self._store.next_in_s(served, excluding=excluding)
                    # due, and nothing could be taken: another consumer has the row locked
                    return poll_s if next_s is None else min(max(next_s, BUSY_S), poll_s)
        except UNAVAILABLE as error:
            _log.warning("batches.claim_failed", error=repr(error))
            return UNAVAILABLE_S
        return poll_s if is_full else min(FULL_POLL_S, poll_s)  # a running chunk that ends wakes this loop

    async def _take(self, served: Sequence[str], excluding: Sequence[int]) -> bool:
        async with self._gate.claiming() as (owner, number):
            chunk = await self._store.claim_chunk(owner, served, number=number, excluding=excluding)
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

    async def _release_unknown(self, connection: Connection, owner: int) -> int:
        return await self._store.release_unknown(connection, owner, *_fences(self._held))

    async def _release(self, held: Held[Any]) -> None:
        await self._store.release(held.claim, held.owner)

    async def _ours(self, held: Mapping[int | ChunkKey, Held[Any]]) -> Collection[int | ChunkKey]:
        plans, chunks = _fences(held)
        own, kept = await self._store.confirm(self._session.token, plans, chunks)
        return own | kept


class Attempts:
    """Makes the attempts of one process; each returns its outcome, for the counters."""

    def __init__(self, store: ChunksStore, session: Session, works: ProcessWorks, *, probe: Probe = NO_PROBE) -> None:
        self._store, self._session, self._works, self._probe = store, session, works, probe

    async def plan(self, held: Held[PlanClaim]) -> str:
        """Cut an execution into chunks: ``planned``, ``retried``, ``failed``, or ``late`` where the claim was lost."""
        await self._probe.reached("batches.claimed", execution=held.claim.run.execution_id)
        try:
            return "planned" if await self._cut(held) else "late"
        except BaseException as error:  # noqa: BLE001  the attempt's boundary: what a program raises is its execution's
            return await self._end(held, error, await _failure(error))

    async def _cut(self, held: Held[PlanClaim]) -> bool:
        claim = held.claim
        _check_lost("the process that cut it into chunks", claim.lost)
        chunks: list[PlannedChunk] = []
        async for chunk in self._works.of(claim.run).plan(claim.run):
            chunks.append(chunk)
            if len(chunks) > CHUNKS_MAX:
                raise Rejected("too_many_chunks", f"more than {CHUNKS_MAX:,} chunks; make them larger")
        await self._probe.reached("batches.cut", execution=claim.run.execution_id, chunks=len(chunks))
        held.is_ending = True
        return await self._store.end_plan(claim, held.owner, chunks)

    async def chunk(self, held: Held[ChunkClaim]) -> str:
        """Work on one chunk: ``done``, ``retried``, ``postponed``, ``failed``, or ``late`` where the claim was lost."""
        claim = held.claim
        await self._probe.reached("batches.chunk_claimed", key=claim.key)
        chunk = ClaimedChunk(self._store.pool, held, probe=self._probe)
        try:
            await self._work(claim, chunk)
        except BaseException as error:  # noqa: BLE001  as above
            why = await _failure(error)
            if isinstance(error, ChunkPostponed):
                return await self._postpone(held, error)
            if chunk.is_completed:
                _log.warning("batches.error_after_completion", key=claim.key, code=why.code, reason=why.message)
                return "done"
            return "late" if chunk.is_lost else await self._end(held, error, why)
        return "done"

    async def _work(self, claim: ChunkClaim, chunk: "ClaimedChunk") -> None:
        _check_lost(f"the process that worked on chunk {claim.key.number}", claim.lost)
        await self._works.of(claim.run).work(chunk)
        if not chunk.is_completed:
            raise Rejected("chunk_not_completed", "the work ended without completing its chunk")

    async def _postpone(self, held: Held[ChunkClaim], why: ChunkPostponed) -> str:
        later = partial(
            self._store.postpone, held.claim, held.owner, after_s=why.by.total_seconds(), lost=int(why.is_lost)
        )
        return "postponed" if await write_end(self._session, held, later) else "late"

    async def _end(self, held: Held[Any], error: BaseException, why: Failure) -> str:
        """Write that an attempt failed: permanently, or due again after a pause that doubles."""
        claim, owner, store = held.claim, held.owner, self._store
        tries = claim.tries + 1
        _log.warning("batches.attempt_failed", key=claim.key, tries=tries, code=why.code, reason=why.message)
        if isinstance(error, Rejected) or tries >= int(claim.run.definition.get("attempts", ATTEMPTS)):
            outcome, end = "failed", partial(store.fail, claim, owner, why)
        else:
            after_s = max(RETRIES.ceiling_s(tries), getattr(error, "details", {}).get("wait_s", 0.0))
            outcome, end = "retried", partial(store.retry, claim, owner, why, after_s=after_s)
        return outcome if await write_end(self._session, held, end) else "late"


class ClaimedChunk:
    """Implements :class:`tickwright.ports.batches.OpenChunk`.

    Attributes:
        is_lost: Its completion found that the claim was lost, or that the execution had ended.

    Invariants:
        BOC-1: actions, the mark, the counts and whatever the work writes are committed together or not at all.
    """

    def __init__(self, pool: Pool, held: Held[ChunkClaim], *, probe: Probe = NO_PROBE) -> None:
        self._pool, self._held, self._claim, self._probe = pool, held, held.claim, probe
        self.run, self.number, self.value = held.claim.run, held.claim.key.number, held.claim.value
        self.is_completed, self.is_lost = False, False

    @asynccontextmanager
    async def complete(self, result: ChunkResult) -> AsyncIterator[Connection]:
        """Open the transaction that completes it; see the port.

        Raises:
            Contended: ``chunk_lost``. Do not retry.
        """
        await self._probe.reached("batches.chunk_decided", key=self._claim.key)
        try:
            async with self._pool.acquire() as connection, connection.transaction():
                if not await lock_chunk(connection, self._claim, self._held.owner):
                    self.is_lost = True
                    raise Contended("chunk_lost", "the claim of the chunk is lost; nothing is written")
                yield connection
                self._held.is_ending = True
                await self._end(connection, result)
            self.is_completed = True
        finally:
            self._held.is_ending = self.is_completed
        await self._probe.reached("batches.chunk_done", key=self._claim.key)

    async def _end(self, connection: Connection, result: ChunkResult) -> None:
        status = await end_chunk(connection, self._claim, result)
        if status is None:
            self.is_lost = True
            raise Contended("chunk_lost", "its execution was stopped; nothing is written")
        if status == "FINISHED":
            await report_end(connection, self._claim.run)
        await self._probe.reached("batches.chunk_written", key=self._claim.key)


def consumer_source(consumer: BatchConsumer) -> Source:
    """Return the metrics of a consumer."""

    def read() -> Sequence[Sample]:
        return [
            Sample("tickwright_batch_running_chunks", consumer.running),
            *(Sample("tickwright_batch_chunks_total", n, (name,)) for name, n in sorted(consumer.counts.items())),
        ]

    return read


def _fences(held: Mapping[int | ChunkKey, Held[Any]]) -> tuple[dict[int, int], dict[ChunkKey, int]]:
    """Return plans and chunks with their fences."""
    plans = {key: work.claim.fence for key, work in held.items() if isinstance(key, int)}
    return plans, {key: work.claim.fence for key, work in held.items() if isinstance(key, ChunkKey)}


def _check_lost(process: str, times: int) -> None:
    """Refuse work that seems to kill its process."""
    if times > LOST_MAX:
        text = f"{process} was lost {times} times; it probably kills the process that works on it"
        raise Rejected("chunk_lost", text)


async def _failure(error: BaseException) -> Failure:
    """Return an error as the ledger keeps it; raise the cancellation that ends this task."""
    if is_final_cancel(error):
        raise error
    await take_cancels_back()
    code, text = failure_text(error, without_secrets)
    if isinstance(error, UNAVAILABLE):
        code = "database_unavailable"
    return Failure(code, text[:MESSAGE_CHARS], storable(_trace_of(error)[-TRACE_CHARS:]))


def _trace_of(error: BaseException) -> str:
    """Return an error's trace without secrets; a long one part by part, since its end is kept and not its beginning."""
    try:
        parts = traceback.format_exception(error)
    except BaseException:  # noqa: BLE001  the user's class
        return "no trace"
    if sum(map(len, parts)) <= MASKED_CHARS_MAX:
        return without_secrets("".join(parts))
    return "".join(map(without_secrets, parts))
