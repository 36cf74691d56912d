"""Retention of jobs. A drop never blocks traffic: a table that a session reads is dropped in a later round."""

from datetime import timedelta
from typing import Any

import asyncpg
import structlog

from tickwright.capabilities.jobs.queries import with_claim_ranges
from tickwright.engine.retention import BATCH, EVERY_S, Retention
from tickwright.ports.session import HeldLease
from tickwright.store.pool import Connection
from tickwright.store.queries import load

SQL = with_claim_ranges(load("tickwright.capabilities.jobs.sql", "upkeep.sql"))
DAYS_AHEAD = 3
HISTORY_KEPT = timedelta(days=7)
"""Of finished jobs. Whole days are dropped, unless a job in them finished later."""
DEAD_LETTERS_KEPT = timedelta(days=30)
KEYS_KEPT = timedelta(days=7)
"""Of idempotency keys, after their job ended."""
UNIQUES_KEPT = timedelta(days=1)
"""Of unique arguments that no job holds, for those who ask what happened to a job."""
WORKFLOWS_KEPT = timedelta(days=7)
"""Of workflows, after they ended. One that runs keeps the results that later jobs may need."""
LOCK_WAIT_MS = 200
GROUP_WAIT = timedelta(seconds=30)
"""After which a group with a due job is looked at again, if no claim will."""
GROUPS_READ = 5000

_log = structlog.get_logger("tickwright.upkeep")


class JobRetention(Retention):
    """The retention rules of jobs; see :class:`tickwright.engine.retention.Retention`.

    Args:
        stuck_after: A job in processing without an owner that was not touched for so long is released.
    """

    def __init__(self, *, stuck_after: timedelta = timedelta(minutes=5)) -> None:
        super().__init__(SQL)
        self._stuck_after = stuck_after
        self._days_kept: set[str] = set()
        self._groups_from, self._idle_from = ("", ""), ("", "")

    async def round(self, lease: HeldLease) -> float:
        """Apply every rule once; return the seconds until the next round, 0 where more is left."""
        await self._make_days(lease)
        await self._return_stuck(lease)
        await self._drop_days(lease)
        await self._keep_groups(lease)
        more = [
            await self.delete_old(lease, "delete_dead_jobs", DEAD_LETTERS_KEPT),
            await self.delete_old(lease, "delete_keys", KEYS_KEPT),
            await self.delete_old(lease, "delete_unique_ends", timedelta()),
            await self.delete_old(lease, "delete_uniques", UNIQUES_KEPT),
            await self.delete_old(lease, "delete_workflow_nodes", WORKFLOWS_KEPT),
            await self.delete_old(lease, "delete_workflows", WORKFLOWS_KEPT),
        ]
        return 0.0 if any(more) else EVERY_S

    async def _make_days(self, lease: HeldLease) -> None:
        async with lease.transaction() as connection:
            if connection is None:
                return
            for ahead in range(DAYS_AHEAD + 1):
                await connection.execute(SQL["ensure_day"], ahead)

    async def _return_stuck(self, lease: HeldLease) -> None:
        rows = await self.fetch(lease, "return_stuck", self._stuck_after, BATCH)
        if rows:
            self.counts["return_stuck"] += len(rows)
            _log.warning("upkeep.stuck_returned", jobs=len(rows), failed=sum(row["status"] == "failed" for row in rows))

    async def _keep_groups(self, lease: HeldLease) -> None:
        """Hint at some groups with due jobs that no claim will look at, and delete some that have none."""
        [row] = await self.fetch(lease, "hint_waiting_groups", *self._groups_from, GROUP_WAIT, GROUPS_READ) or [None]
        if row is not None:
            self._groups_from = _behind(row)
            if row["hinted"]:
                self.counts["groups_hinted"] += row["hinted"]
                _log.info("upkeep.groups_hinted", groups=row["hinted"])
        [row] = await self.fetch(lease, "delete_idle_groups", *self._idle_from, GROUPS_READ) or [None]
        if row is not None:
            self._idle_from = _behind(row)

    async def _drop_days(self, lease: HeldLease) -> None:
        for row in await self.fetch(lease, "old_days", HISTORY_KEPT):
            name = row["relname"]
            try:
                async with lease.transaction() as connection:
                    if connection is None:
                        return
                    dropped = await self._drop_day(connection, name)
            except asyncpg.LockNotAvailableError:
                _log.info("upkeep.day_in_use", table=name, advice="tried again in the next round")
            else:
                if dropped:
                    self.counts["days_dropped"] += 1
                    _log.info("upkeep.day_dropped", table=name)

    async def _drop_day(self, connection: Connection, name: str) -> bool:
        """Drop a history table, unless a job in it finished within the time that history is kept."""
        in_use = SQL["is_day_in_use"].format(name=name)
        if not await connection.fetchval(in_use, HISTORY_KEPT):
            await connection.execute(SQL["bound_lock"], str(LOCK_WAIT_MS))
            await connection.execute(SQL["keep_results"].format(name=name))
            await connection.execute(SQL["lock_day"].format(name=name))
            if not await connection.fetchval(in_use, HISTORY_KEPT):
                await connection.execute(SQL["drop_day"].format(name=name))
                return True
        if name not in self._days_kept:
            self._days_kept.add(name)
            _log.warning("upkeep.day_not_dropped", table=name, reason="a job that finished later is in it")
        return False


def _behind(row: Any) -> tuple[str, str]:
    """Return where the next round continues: behind the last group, or from the first one."""
    return (row["task_type"], row["group_key"]) if row["groups"] >= GROUPS_READ else ("", "")
