"""Retention of reports: expired files, objects that lost claims left in the object store, old records.

One process at a time runs it, under a lease. An object is deleted before its key is cleared in the record, so after a
crash a later round repeats the deletion. Open reports are not touched: a report's objects are cleared an hour after its
end, when every writer has long lost its claim.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog

from tickwright.domain.errors import TickwrightError
from tickwright.ports.objects import LazyObjectStore, ObjectStore
from tickwright.ports.session import HeldLease
from tickwright.store.queries import load

SQL = load("tickwright.capabilities.reports.sql", "upkeep.sql")
_log = structlog.get_logger("tickwright.reports")
BATCH = 100
BATCHES_MAX = 20
LISTED = 1000
PAGES_MAX = 100
FOLDERS = ("parts", "reports")


@dataclass(frozen=True, slots=True)
class ReportRetentionSettings:
    """How long things are kept, and the interval of rounds.

    Attributes:
        every: Between two rounds.
        objects: Age of objects of an ended report, except its file: parts, and files of steps that did not count.
        records: Age of ended records; a record with a file stays as long as the file.
    """

    every: timedelta = timedelta(seconds=30)
    objects: timedelta = timedelta(hours=1)
    records: timedelta = timedelta(days=90)


class ReportRetention:
    """One round of the loop under the lease ``report-upkeep``.

    Invariants:
        RPU-1: a record's file is removed after its expiry; nothing else that a record names is removed.
        RPU-2: a round handles at most ``BATCHES_MAX`` batches of each kind.
    """

    def __init__(self, objects: ObjectStore, terms: ReportRetentionSettings | None = None) -> None:
        self._objects, self.terms = objects, terms or ReportRetentionSettings()
        self.counts: Counter[str] = Counter()

    async def round(self, lease: HeldLease) -> float:
        """Run one round; return the seconds until the next one, 0 if more is left.

        Raises:
            Unavailable: The object store does not answer. Retry.
            Rejected: The object store refuses. Permanent until an operator acts.
        """
        objects, records = self.terms.objects, self.terms.records
        more = [
            await self._batches(lease, "expired_files", self._remove_files, "forget_files"),
            await self._batches(lease, "reports_to_clear", self._remove_objects, "note_cleared", objects),
            await self._batches(lease, "old_reports", self._remove_objects, "delete_reports", records),
        ]
        await self._unknown(lease)
        return 0.0 if any(more) else self.terms.every.total_seconds()

    async def _batches(
        self, lease: HeldLease, find: str, remove: Callable[[Sequence[Any]], Awaitable[None]], note: str, *given: Any
    ) -> bool:
        """Remove the objects of the rows of ``find``, then ``note`` it, by batches; return whether more are left."""
        for _ in range(BATCHES_MAX):
            rows = await _fetch(lease, find, *given, BATCH)
            if rows:
                await remove(rows)
                async with lease.transaction() as connection:
                    if connection is not None:
                        await connection.execute(SQL[note], [row["id"] for row in rows])
                        self.counts[note] += len(rows)
            if len(rows) < BATCH:
                return False
        return True

    async def _remove_files(self, rows: Sequence[Any]) -> None:
        await self._objects.delete([row["file_key"] for row in rows])

    async def _remove_objects(self, rows: Sequence[Any]) -> None:
        """Remove all objects of ended reports, except their files."""
        for row in rows:
            await self._remove(row["id"], but=row["file_key"])

    async def _unknown(self, lease: HeldLease) -> None:
        """Remove objects of deleted reports, as far as one listing shows them."""
        for folder in FOLDERS:
            numbers = {_report_of(stored.key) for stored in await self._objects.listing(f"{folder}/", LISTED)}
            ids = sorted(number for number in numbers if number is not None)
            for row in await _fetch(lease, "unknown_reports", ids) if ids else ():
                self.counts["unknown"] += 1
                await self._remove(row["id"])

    async def _remove(self, report_id: int, *, but: str | None = None) -> None:
        """Remove every object of a report except ``but``, in at most ``PAGES_MAX`` pages per folder."""
        for folder in FOLDERS:
            for _ in range(PAGES_MAX):
                found = await self._objects.listing(f"{folder}/{report_id}/", LISTED)
                keys = [stored.key for stored in found if stored.key != but]
                if keys:
                    await self._objects.delete(keys)
                    self.counts["objects"] += len(keys)
                if len(found) < LISTED:
                    break


async def _fetch(lease: HeldLease, query: str, *arguments: Any) -> Sequence[Any]:
    """Fetch rows; none if the lease is lost."""
    if not lease.holds():
        return ()
    async with lease.transaction() as connection:
        return () if connection is None else await connection.fetch(SQL[query], *arguments)


def _report_of(key: str) -> int | None:
    number = key.split("/")[1]
    return int(number) if number.isascii() and number.isdigit() and len(number) < 19 else None


class LazyRetention:
    """Retention in the scheduler role; opens the object store at its first round.

    If the store does not answer or refuses, the round is skipped.
    """

    def __init__(self, objects: LazyObjectStore, terms: ReportRetentionSettings | None = None) -> None:
        self._objects, self._terms = objects, terms or ReportRetentionSettings()

    async def round(self, lease: HeldLease) -> float:
        """Run one round; return the seconds until the next one."""
        try:
            return await ReportRetention(await self._objects.opened(), self._terms).round(lease)
        except TickwrightError as error:
            _log.warning("reports.retention_failed", code=error.code, reason=error.message)
            return self._terms.every.total_seconds()
