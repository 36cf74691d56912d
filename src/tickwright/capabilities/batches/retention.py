"""Retention of batches: old executions are deleted with their chunks and actions, a bounded part at a time.

One process at a time does it, under a lease; each part is a transaction of its own with the lease's fence. The row of
an execution is deleted last, so the next round goes on where a round was interrupted.
"""

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta

from tickwright.ports.session import HeldLease
from tickwright.store.queries import load

SQL = load("tickwright.capabilities.batches.sql", "upkeep.sql")
BATCH = 5000
EXECUTIONS_MAX = 100
BATCHES_MAX = 100
"""Of a round: deletions, each of up to ``BATCH`` rows."""


@dataclass(frozen=True, slots=True)
class BatchRetentionSettings:
    """How long rows are kept, and the pause between two rounds.

    Attributes:
        every: Between two rounds.
        executions: Since they ended; those that still release actions stay.
        skips: Since the occurrence.
    """

    every: timedelta = timedelta(seconds=30)
    executions: timedelta = timedelta(days=90)
    skips: timedelta = timedelta(days=90)


class BatchRetention:
    """The round of a loop under the lease ``campaign-upkeep``.

    Invariants:
        BUP-1: nothing of an execution that could go on is deleted: a failed one is ``STOPPED`` before its chunks go.
        BUP-2: a round deletes at most ``BATCHES_MAX`` times.
    """

    def __init__(self, settings: BatchRetentionSettings | None = None) -> None:
        self.settings = settings or BatchRetentionSettings()
        self.counts: Counter[str] = Counter()

    async def round(self, lease: HeldLease) -> float:
        """Delete what is old; return the seconds until the next round, 0 where more is left."""
        settings, left = self.settings, BATCHES_MAX
        await self._run(lease, "delete_skips", settings.skips, BATCH)
        await self._run(lease, "give_up", settings.executions, EXECUTIONS_MAX)
        async with lease.transaction() as connection:
            if connection is None:
                return 0.0
            old = await connection.fetch(SQL["old"], settings.executions, EXECUTIONS_MAX)
        for row in old:
            for query in ("delete_actions", "delete_chunks"):
                left = await self._empty(lease, query, row["id"], left)
            if left <= 0 or not lease.holds():
                return 0.0
            await self._run(lease, "delete_execution", row["id"])
        return 0.0 if len(old) == EXECUTIONS_MAX else settings.every.total_seconds()

    async def _empty(self, lease: HeldLease, query: str, execution_id: int, left: int) -> int:
        """Delete an execution's rows; return how many deletions are left in this round, 0 where some rows may be."""
        while left > 0:
            left -= 1
            if await self._run(lease, query, execution_id, BATCH) < BATCH:
                return left
        return 0

    async def _run(self, lease: HeldLease, query: str, *arguments: object) -> int:
        """Write in a transaction of its own; return the number of rows, 0 where the lease is lost."""
        async with lease.transaction() as connection:
            if connection is None:
                return 0
            tag = await connection.execute(SQL[query], *arguments)
        rows = int(tag.rsplit(" ", 1)[1])
        self.counts[query] += rows
        return rows
