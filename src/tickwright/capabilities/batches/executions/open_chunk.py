"""A claimed chunk as its work sees it: what to do, and the one transaction in which that counts."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tickwright.capabilities.batches.executions.chunks_store import ChunkClaim, end_chunk, lock_chunk
from tickwright.capabilities.batches.executions.completion import tell_ended
from tickwright.domain.errors import Contended
from tickwright.engine.claimed_work import Held
from tickwright.ports.batches import ChunkResult, Run
from tickwright.ports.probe import NO_PROBE, Probe
from tickwright.store.pool import Connection, Pool


class ClaimedChunk:
    """Implements :class:`tickwright.ports.batches.OpenChunk`.

    Attributes:
        is_lost: Its completion found that the claim was lost, or that the execution had ended.

    Invariants:
        BOC-1: actions, the mark, the counts and whatever the work writes are committed together or not at all.
    """

    def __init__(self, pool: Pool, held: Held[ChunkClaim], *, probe: Probe = NO_PROBE) -> None:
        self._pool, self._held, self._claim, self._probe = pool, held, held.claim, probe
        self._is_completed, self.is_lost = False, False

    @property
    def run(self) -> Run:
        """Whose it is."""
        return self._claim.run

    @property
    def number(self) -> int:
        """From 0 on."""
        return self._claim.key.number

    @property
    def value(self) -> Mapping[str, Any]:
        """As it was planned."""
        return self._claim.value

    @property
    def is_completed(self) -> bool:
        """Whether it counts already."""
        return self._is_completed

    @asynccontextmanager
    async def complete(self, result: ChunkResult) -> AsyncIterator[Connection]:
        """Open the transaction that makes it count; see the port.

        Raises:
            Contended: ``chunk_lost``. Do not retry.
        """
        await self._probe.reached("batches.chunk_decided", key=self._claim.key)
        try:
            async with self._pool.acquire() as connection, connection.transaction():
                if not await lock_chunk(connection, self._claim, self._held.owner):
                    self.is_lost = True
                    raise Contended("chunk_lost", "the chunk is somebody else's by now; nothing is written")
                yield connection
                self._held.is_ending = True
                await self._end(connection, result)
            self._is_completed = True
        finally:
            self._held.is_ending = self._is_completed
        await self._probe.reached("batches.chunk_done", key=self._claim.key)

    async def _end(self, connection: Connection, result: ChunkResult) -> None:
        status = await end_chunk(connection, self._claim, result)
        if status is None:
            self.is_lost = True
            raise Contended("chunk_lost", "its execution was stopped; nothing is written")
        if status == "FINISHED":
            await tell_ended(connection, self._claim.run)
        await self._probe.reached("batches.chunk_written", key=self._claim.key)
