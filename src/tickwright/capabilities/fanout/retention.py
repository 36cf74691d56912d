"""Retention of fan-out: deletes old claims, counts and cursors, under the lease ``fanout-upkeep``."""

from dataclasses import dataclass
from datetime import timedelta

from tickwright.engine.retention import BATCH, Retention, RetentionRule
from tickwright.ports.session import HeldLease
from tickwright.store.queries import load

SQL = load("tickwright.capabilities.fanout.sql", "retention.sql")
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


class FanoutRetention(Retention):
    """Applies the rules of claims and counts, and reads the cursors, of which all take several rounds.

    Invariants:
        FAN-8: a round reads at most ``BATCHES_MAX`` batches of claims and of counts, and one of cursors.
    """

    def __init__(self, settings: FanoutRetentionSettings | None = None) -> None:
        ages = settings or FanoutRetentionSettings()
        rules = [RetentionRule("delete_claims", ages.claims), RetentionRule("delete_windows", ages.windows)]
        super().__init__(SQL, rules, every=ages.every)
        self._cursors_age, self._after = ages.cursors, FIRST

    async def round(self, lease: HeldLease) -> float:
        """Delete old rows; return the seconds until the next round, 0 if more are left."""
        for row in await self.fetch(lease, "delete_cursors", self._cursors_age, BATCH, *self._after):
            self.counts["delete_cursors"] += row["gone"]
            self._after = FIRST if row["entity_code"] is None else (row["entity_code"], row["task_type"])
        return await super().round(lease)
