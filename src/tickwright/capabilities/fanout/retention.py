"""Retention of fan-out: deletes old claims, counts and cursors, under the lease ``fanout-upkeep``."""

from datetime import timedelta

from tickwright.engine.retention import BATCH, Retention, RetentionRule
from tickwright.ports.session import HeldLease
from tickwright.store.queries import load

SQL = load("tickwright.capabilities.fanout.sql", "retention.sql")
FIRST = ("", "")
CLAIMS_KEPT = timedelta(hours=1)
"""Of windows that are over, in addition to the longest window."""
WINDOWS_KEPT = timedelta(days=30)
CURSORS_KEPT = timedelta(days=30)
"""Of deleted entities, since their last run: one that is created again within it continues from them."""


class FanoutRetention(Retention):
    """Applies the rules of claims and counts, and reads the cursors, of which all take several rounds.

    Invariants:
        FAN-8: a round reads at most ``BATCHES_MAX`` batches of claims and of counts, and one of cursors.
    """

    def __init__(self) -> None:
        rules = [RetentionRule("delete_claims", CLAIMS_KEPT), RetentionRule("delete_windows", WINDOWS_KEPT)]
        super().__init__(SQL, rules)
        self._after = FIRST

    async def round(self, lease: HeldLease) -> float:
        """Delete old rows; return the seconds until the next round, 0 if more are left."""
        for row in await self.fetch(lease, "delete_cursors", CURSORS_KEPT, BATCH, *self._after):
            self.counts["delete_cursors"] += row["gone"]
            self._after = FIRST if row["entity_code"] is None else (row["entity_code"], row["task_type"])
        return await super().round(lease)
