"""Retention of batches: old executions are deleted with their chunks and actions, a bounded part at a time.

One process at a time does it, under a lease; each part is a transaction of its own with the lease's fence. The row of
an execution is deleted last, so the next round goes on where a round was interrupted.
"""

from datetime import timedelta

from tickwright.engine.retention import EVERY_S, Retention
from tickwright.ports.session import HeldLease
from tickwright.store.queries import load

SQL = load("tickwright.capabilities.batches.sql", "upkeep.sql")
BATCH = 5000
EXECUTIONS_MAX = 100
BATCHES_MAX = 100
"""Of a round: deletions, each of up to ``BATCH`` rows."""


EXECUTIONS_KEPT = timedelta(days=90)
"""Since they ended; those that still release actions stay."""
SKIPS_KEPT = timedelta(days=90)
"""Since the occurrence."""


class BatchRetention(Retention):
    """The round of a loop under the lease ``campaign-upkeep``.

    Invariants:
        BUP-1: nothing of an execution that could go on is deleted: a failed one is ``STOPPED`` before its chunks go.
        BUP-2: a round deletes at most ``BATCHES_MAX`` times.
    """

    def __init__(self) -> None:
        super().__init__(SQL)

    async def round(self, lease: HeldLease) -> float:
        """Delete what is old; return the seconds until the next round, 0 where more is left."""
        left = BATCHES_MAX
        await self.execute(lease, "delete_skips", SKIPS_KEPT, BATCH)
        await self.execute(lease, "give_up", EXECUTIONS_KEPT, EXECUTIONS_MAX)
        old = await self.fetch(lease, "old", EXECUTIONS_KEPT, EXECUTIONS_MAX)
        for row in old:
            for query in ("delete_actions", "delete_chunks"):
                left = await self._empty(lease, query, row["id"], left)
            if left <= 0 or not lease.holds():
                return 0.0
            await self.execute(lease, "delete_execution", row["id"])
        return 0.0 if len(old) == EXECUTIONS_MAX else EVERY_S

    async def _empty(self, lease: HeldLease, query: str, execution_id: int, left: int) -> int:
        """Delete an execution's rows; return how many deletions are left in this round, 0 where some rows may be."""
        while left > 0:
            left -= 1
            if await self.execute(lease, query, execution_id, BATCH) < BATCH:
                return left
        return 0
