"""Retention of fan-out: deletes old claims, counts and cursors in bounded batches.

One process at a time does it, under a lease; each batch is a transaction of its own that carries the lease's fence.
"""

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta

from tickwright.ports.session import HeldLease
from tickwright.store.queries import load

SQL = load("tickwright.capabilities.fanout.sql", "retention.sql")
BATCH = 1000
BATCHES_MAX = 100
FIRST = ("", "")


@dataclass(frozen=True, slots=True)
class FanoutRetentionSettings:
    """How long rows are kept.

    Attributes:
        claims: Of windows that are over, in addition to the longest window.
        cursors: Of deleted entities, since their last run: one that is created again within it continues from them.
    """

    every: timedelta = timedelta(seconds=30)
    claims: timedelta = timedelta(hours=1)
    windows: timedelta = timedelta(days=30)
    cursors: timedelta = timedelta(days=30)


class FanoutRetention:
    """The round of a loop under the lease ``fanout-upkeep``.

    Invariants:
        FAN-8: a round reads at most ``BATCHES_MAX`` batches of claims and of counts, and one of cursors.
    """

    def __init__(self, settings: FanoutRetentionSettings | None = None) -> None:
        self.settings = settings or FanoutRetentionSettings()
        self.counts: Counter[str] = Counter()
        self._behind = FIRST

    async def round(self, lease: HeldLease) -> float:
        """Delete old rows; return the seconds until the next round, 0 if more are left."""
        settings = self.settings
        await self._delete_cursors(lease)
        more = [
            await self._delete(lease, "delete_claims", settings.claims),
            await self._delete(lease, "delete_windows", settings.windows),
        ]
        return 0.0 if any(more) else settings.every.total_seconds()

    async def _delete(self, lease: HeldLease, query: str, age: timedelta) -> bool:
        """Delete batch after batch; return whether rows are left after the last allowed batch."""
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

    async def _delete_cursors(self, lease: HeldLease) -> None:
        """Read the next cursors and delete the old ones. Reading all of them takes several rounds."""
        async with lease.transaction() as connection:
            if connection is None:
                return
            row = await connection.fetchrow(SQL["delete_cursors"], self.settings.cursors, BATCH, *self._behind)
        self.counts["delete_cursors"] += row["gone"]
        self._behind = FIRST if row["entity_code"] is None else (row["entity_code"], row["task_type"])
