"""The scheduler role's upkeep: tables ahead, old data away, stuck jobs back.

One process at a time does it, under the lease ``upkeep``. Every step is a short transaction of its own
that first locks the lease, deletes are bounded batches, and a table that somebody reads is dropped in
a later round rather than queueing the traffic behind a lock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import asyncpg
import structlog

from tickwright.domain.leases import LeaseTerms
from tickwright.engine.leases import Lease, LeasedService, Leases
from tickwright.ports.probe import NO_PROBE, Probe
from tickwright.store.pool import UNAVAILABLE, Connection
from tickwright.store.queries import load, with_lanes

SQL = with_lanes(load("tickwright.engine.sql", "upkeep.sql"))
LEASE = "upkeep"
TERMS = LeaseTerms(ttl=timedelta(seconds=90), margin=timedelta(seconds=10))
BATCH = 1000
BATCHES_MAX = 100
LOCK_WAIT_MS = 200

_log = structlog.get_logger("tickwright.upkeep")


@dataclass(frozen=True, slots=True)
class UpkeepTerms:
    """How long things are kept, and how often upkeep looks.

    Attributes:
        every: Between two rounds; at most a third of the lease's length.
        days_ahead: History tables that exist before their day.
        history: Finished jobs; whole days are dropped, when no job in them finished later.
        dead_letters: Of jobs and of the outbox.
        keys: Idempotency keys of jobs that are over.
        lost_workers: Sessions that were lost.
        alerts: Alerts that are resolved.
        sessions: Browsers' sessions that have ended.
        stuck_after: A job in processing without an owner, not touched for so long, goes back.
    """

    every: timedelta = timedelta(seconds=30)
    days_ahead: int = 3
    history: timedelta = timedelta(days=7)
    dead_letters: timedelta = timedelta(days=30)
    keys: timedelta = timedelta(days=7)
    lost_workers: timedelta = timedelta(days=1)
    alerts: timedelta = timedelta(days=30)
    sessions: timedelta = timedelta()
    stuck_after: timedelta = timedelta(minutes=5)


class Upkeep(LeasedService):
    """Runs upkeep rounds until stopped; a :class:`tickwright.ports.service.Service`."""

    def __init__(
        self,
        leases: Leases,
        terms: UpkeepTerms | None = None,
        *,
        lease_terms: LeaseTerms = TERMS,
        probe: Probe = NO_PROBE,
    ) -> None:
        super().__init__("upkeep", leases, LEASE, self._rounds, terms=lease_terms, probe=probe)
        self.terms = terms or UpkeepTerms()
        self.counts: dict[str, int] = {}
        self._days_kept: set[str] = set()

    async def _rounds(self, lease: Lease) -> None:
        while lease.holds() and not self.stopping.is_set():
            try:
                await self.round(lease)
            except UNAVAILABLE as error:
                _log.warning("upkeep.round_failed", error=repr(error))
            self.tick()
            await self.rest(self.terms.every.total_seconds())

    async def round(self, lease: Lease) -> None:
        """Do everything once."""
        terms = self.terms
        await self._make_days(lease)
        await self._return_stuck(lease)
        await self._drop_days(lease)
        for query, age in (
            ("delete_dead_jobs", terms.dead_letters),
            ("delete_dead_messages", terms.dead_letters),
            ("delete_keys", terms.keys),
            ("delete_workers", terms.lost_workers),
            ("delete_alerts", terms.alerts),
            ("delete_sessions", terms.sessions),
        ):
            await self._delete(lease, query, age)

    async def _make_days(self, lease: Lease) -> None:
        async with lease.transaction() as connection:
            if connection is None:
                return
            for ahead in range(self.terms.days_ahead + 1):
                await connection.execute(SQL["ensure_day"], ahead)

    async def _drop_days(self, lease: Lease) -> None:
        for name in await self._old_days(lease):
            try:
                async with lease.transaction() as connection:
                    if connection is None:
                        return
                    dropped = await self._drop_day(connection, name)
            except asyncpg.LockNotAvailableError:
                _log.info("upkeep.day_in_use", table=name, advice="tried again in the next round")
            else:
                if dropped:
                    self._count("days_dropped", 1)
                    _log.info("upkeep.day_dropped", table=name)

    async def _drop_day(self, connection: Connection, name: str) -> bool:
        """Drop a history table, unless a job in it finished within the time that history is kept."""
        in_use = SQL["is_day_in_use"].format(name=name)
        if not await connection.fetchval(in_use, self.terms.history):
            await connection.execute(SQL["bound_lock"], str(LOCK_WAIT_MS))
            await connection.execute(SQL["lock_day"].format(name=name))
            if not await connection.fetchval(in_use, self.terms.history):
                await connection.execute(SQL["drop_day"].format(name=name))
                return True
        if name not in self._days_kept:
            self._days_kept.add(name)
            _log.warning("upkeep.day_kept", table=name, reason="a job that finished later is in it")
        return False

    async def _old_days(self, lease: Lease) -> Sequence[str]:
        async with lease.transaction() as connection:
            if connection is None:
                return []
            return [row["relname"] for row in await connection.fetch(SQL["old_days"], self.terms.history)]

    async def _return_stuck(self, lease: Lease) -> None:
        async with lease.transaction() as connection:
            if connection is None:
                return
            rows = await connection.fetch(SQL["return_stuck"], self.terms.stuck_after, BATCH)
        if rows:
            self._count("return_stuck", len(rows))
            _log.warning("upkeep.stuck_returned", jobs=len(rows), failed=sum(row["status"] == "failed" for row in rows))

    async def _delete(self, lease: Lease, query: str, age: timedelta) -> None:
        for _ in range(BATCHES_MAX):
            async with lease.transaction() as connection:
                if connection is None:
                    return
                tag = await connection.execute(SQL[query], age, BATCH)
            deleted = int(tag.rsplit(" ", 1)[1])
            self._count(query, deleted)
            if deleted < BATCH or self.stopping.is_set():
                return

    def _count(self, what: str, number: int) -> None:
        self.counts[what] = self.counts.get(what, 0) + number
