"""Upkeep of fan-out: claims, counts and cursors that nobody needs any more go, a bounded batch at a time.

One process at a time does it, under a lease; each batch is a transaction of its own that carries the lease's fence.
"""

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta

from tickwright.ports.lease import HeldLease
from tickwright.store.queries import load

SQL = load("tickwright.capabilities.fanout.sql", "upkeep.sql")
BATCH = 1000
BATCHES_MAX = 100
FIRST = ("", "")


@dataclass(frozen=True, slots=True)
class FanoutRetentionSettings:
    """How long things are kept, and how often upkeep looks.

    Attributes:
        every: Between two rounds.
        claims: Of windows that are over, behind the longest window that there is.
        windows: What became of each window.
        cursors: Of entities that are gone, since their last run: one that comes back earlier goes on where it was.
    """

    every: timedelta = timedelta(seconds=30)
    claims: timedelta = timedelta(hours=1)
    windows: timedelta = timedelta(days=30)
    cursors: timedelta = timedelta(days=30)


class Upkeep:
    """The round of a loop under the lease ``fanout-upkeep``.

    Invariants:
        FAN-8: a round looks at no more than ``BATCHES_MAX`` batches of claims and of counts, and at one of cursors.
    """

    def __init__(self, terms: FanoutRetentionSettings | None = None) -> None:
        self.terms = terms or FanoutRetentionSettings()
        self.counts: Counter[str] = Counter()
        self._behind = FIRST

    async def round(self, lease: HeldLease) -> float:
        """Do everything once; return in how many seconds to come again, 0 where more is left."""
        terms = self.terms
        await self._look_at_cursors(lease)
        more = [
            await self._delete(lease, "delete_claims", terms.claims),
            await self._delete(lease, "delete_windows", terms.windows),
        ]
        return 0.0 if any(more) else terms.every.total_seconds()

    async def _delete(self, lease: HeldLease, query: str, age: timedelta) -> bool:
        """Delete batch after batch; return whether more is left although all of them were used."""
        for _ in range(BATCHES_MAX):
            async with lease.transaction() as connection:
                if connection is None:
                    return False
                tag = await connection.execute(SQL[query], age, BATCH)
            deleted = int(tag.rsplit(" ", 1)[1])
            self.counts[query] += deleted
            if deleted < BATCH or not lease.holds():
                return False
        return True

    async def _look_at_cursors(self, lease: HeldLease) -> None:
        """Look at the next cursors; they are as many as the entity list is long, so it takes rounds to see all."""
        async with lease.transaction() as connection:
            if connection is None:
                return
            row = await connection.fetchrow(SQL["delete_cursors"], self.terms.cursors, BATCH, *self._behind)
        self.counts["delete_cursors"] += row["gone"]
        self._behind = FIRST if row["entity_code"] is None else (row["entity_code"], row["task_type"])
