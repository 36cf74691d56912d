"""One attempt: to cut an execution into chunks, or to work one of them; and what becomes of it when that fails.

What will pass is tried again with a growing pause; what will not ends the execution as ``EXCEPTION_OCCURRED``, with
text and trace. Whatever a program's function raises ends its own execution, not the process and not the others.
"""

import traceback
from collections.abc import Sequence
from typing import Protocol

import structlog

from tickwright.capabilities.batches.executions.chunks_store import ChunkClaim, ChunksStore, Failure, PlanClaim
from tickwright.capabilities.batches.executions.open_chunk import ClaimedChunk
from tickwright.domain.errors import Rejected
from tickwright.domain.functions import failure_of, storable
from tickwright.engine.claimed_work import Held, write_surely
from tickwright.observe.logs import MASKED_CHARS_MAX, without_secrets
from tickwright.ports.batches import BatchWork, PlannedChunk, Run
from tickwright.ports.probe import NO_PROBE, Probe
from tickwright.ports.service import ends_task, take_cancels_back
from tickwright.ports.session import Session
from tickwright.store.pool import UNAVAILABLE

RETRY_CAP_S = 300.0
LOST_MAX = 25
"""Processes that may go away with a chunk before it is taken for what kills them."""
ATTEMPTS = 10
CHUNKS_MAX = 1_000_000
TRACE_CHARS = 8000
MESSAGE_CHARS = 2000

_log = structlog.get_logger("tickwright.batches")


class Works(Protocol):
    """What a process can do."""

    def served(self) -> Sequence[str]:
        """Return what it has: ``source:NAME``, ``objects``, ``program:NAME``."""
        ...

    def of(self, run: Run) -> BatchWork:
        """Return whoever knows the work of this execution.

        Raises:
            Rejected: Nobody here does, or its definition is wrong. Permanent.
        """
        ...


class Attempts:
    """Makes attempts for one process; each returns what it ended as, for the counters."""

    def __init__(self, store: ChunksStore, session: Session, works: Works, *, probe: Probe = NO_PROBE) -> None:
        self._store, self._session, self._works, self._probe = store, session, works, probe

    # ------------------------------------------------------------------ planning

    async def plan(self, held: Held[PlanClaim]) -> str:
        """Cut an execution into chunks: ``planned``, ``retried``, ``failed``, or ``late`` where it was not ours."""
        claim, store = held.claim, self._store
        await self._probe.reached("batches.claimed", execution=claim.run.execution_id)
        try:
            return "planned" if await self._cut(held) else "late"
        except BaseException as error:  # noqa: BLE001  the attempt's boundary: what a program raises is its execution's
            why = await _failure(error)
            tries = claim.tries + 1
            if isinstance(error, Rejected) or tries >= attempts_of(claim.run):
                wrote = await write_surely(self._session, held, lambda: store.plan_failed(claim, held.owner, why))
                return "failed" if wrote else "late"
        after_s = min(2.0 ** (tries - 1), RETRY_CAP_S)
        _log.warning("batches.not_cut", execution=claim.run.execution_id, tries=tries, reason=why.message)
        wrote = await write_surely(
            self._session, held, lambda: store.plan_later(claim, held.owner, why, after_s=after_s)
        )
        return "retried" if wrote else "late"

    async def _cut(self, held: Held[PlanClaim]) -> bool:
        claim = held.claim
        if claim.lost > LOST_MAX:
            raise _deadly("the process that cut it into chunks", claim.lost)
        chunks: list[PlannedChunk] = []
        async for chunk in self._works.of(claim.run).plan(claim.run):
            chunks.append(chunk)
            if len(chunks) > CHUNKS_MAX:
                raise Rejected("too_many_chunks", f"more than {CHUNKS_MAX:,} chunks; make them larger")
        await self._probe.reached("batches.cut", execution=claim.run.execution_id, chunks=len(chunks))
        held.is_ending = True
        return await self._store.end_plan(claim, held.owner, chunks)

    # ------------------------------------------------------------------ chunks

    async def chunk(self, held: Held[ChunkClaim]) -> str:
        """Work one chunk: ``done``, ``retried``, ``failed``; ``late`` where it was not ours any more."""
        claim, store = held.claim, self._store
        await self._probe.reached("batches.chunk_claimed", key=claim.key)
        chunk = ClaimedChunk(store.pool, held, probe=self._probe)
        try:
            await self._do(claim, chunk)
        except BaseException as error:  # noqa: BLE001  as above
            why = await _failure(error)
            if chunk.is_completed:  # what came behind cannot take that back
                _log.warning("batches.raised_behind_its_chunk", key=claim.key, code=why.code, reason=why.message)
                return "done"
            if chunk.is_lost:
                return "late"
            tries = claim.tries + 1
            if isinstance(error, Rejected) or tries >= attempts_of(claim.run):
                _log.warning("batches.exception", key=claim.key, code=why.code, reason=why.message)
                wrote = await write_surely(self._session, held, lambda: store.chunk_failed(claim, held.owner, why))
                return "failed" if wrote else "late"
        else:
            return "done"
        after_s = min(2.0 ** (tries - 1), RETRY_CAP_S)
        text = f"{why.message} ({why.code})"
        _log.warning("batches.chunk_not_done", key=claim.key, tries=tries, reason=text)
        wrote = await write_surely(
            self._session, held, lambda: store.chunk_later(claim, held.owner, text, after_s=after_s)
        )
        return "retried" if wrote else "late"

    async def _do(self, claim: ChunkClaim, chunk: ClaimedChunk) -> None:
        if claim.lost > LOST_MAX:
            raise _deadly(f"the process that worked on chunk {claim.key.number}", claim.lost)
        await self._works.of(claim.run).work(chunk)
        if not chunk.is_completed:
            raise Rejected("chunk_not_completed", "the work ended without completing its chunk")


def attempts_of(run: Run) -> int:
    """Return how often a chunk or a plan may fail."""
    return int(run.definition.get("attempts", ATTEMPTS))


def _deadly(who: str, times: int) -> Rejected:
    return Rejected("chunk_lost", f"{who} was lost {times} times; something in it kills whoever takes it")


async def _failure(error: BaseException) -> Failure:
    """Return what an error is for the ledger; a cancellation of ours is none."""
    if ends_task(error):
        raise error
    await take_cancels_back()
    code, text = failure_of(error, without_secrets)
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
