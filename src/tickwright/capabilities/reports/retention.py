"""Retention of reports: expired files, objects that lost claims left in the object store, old records.

One process at a time runs it, under a lease. An object is deleted before its key is cleared in the record, so after a
crash a later round repeats the deletion. Open reports are not touched: a report's objects are cleared an hour after its
end, when every writer has long lost its claim.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import structlog

from tickwright.domain.errors import TickwrightError
from tickwright.engine.retention import EVERY_S, Retention
from tickwright.ports.objects import ObjectStore
from tickwright.ports.session import HeldLease
from tickwright.store.queries import load

SQL = load("tickwright.capabilities.reports.sql", "upkeep.sql")
_log = structlog.get_logger("tickwright.reports")
BATCH = 100
BATCHES_MAX = 20
LISTED = 1000
PAGES_MAX = 100
FOLDERS = ("parts", "reports")


OBJECTS_KEPT = timedelta(hours=1)
"""Of an ended report, except its file: parts, and files of steps that did not count."""
RECORDS_KEPT = timedelta(days=90)
"""Of ended reports; a record with a file stays as long as the file."""


class ReportRetention(Retention):
    """One round of the loop under the lease ``report-upkeep``.

    Invariants:
        RPU-1: a record's file is removed after its expiry; nothing else that a record names is removed.
        RPU-2: a round handles at most ``BATCHES_MAX`` batches of each kind.
    """

    def __init__(self, objects: ObjectStore, *, objects_kept: timedelta = OBJECTS_KEPT) -> None:
        super().__init__(SQL)
        self._objects, self._objects_kept = objects, objects_kept

    async def round(self, lease: HeldLease) -> float:
        """Run one round; return the seconds until the next one, 0 if more is left.

        If the object store does not answer or refuses, the rest of the round is skipped.
        """
        try:
            more = [
                await self._batches(lease, "expired_files", self._remove_files, "forget_files"),
                await self._batches(
                    lease, "reports_to_clear", self._remove_objects, "note_cleared", self._objects_kept
                ),
                await self._batches(lease, "old_reports", self._remove_objects, "delete_reports", RECORDS_KEPT),
            ]
            await self._unknown(lease)
        except TickwrightError as error:
            _log.warning("reports.retention_failed", code=error.code, reason=error.message)
            return EVERY_S
        return 0.0 if any(more) else EVERY_S

    async def _batches(
        self, lease: HeldLease, find: str, remove: Callable[[Sequence[Any]], Awaitable[None]], note: str, *given: Any
    ) -> bool:
        """Remove the objects of the rows of ``find``, then ``note`` it, by batches; return whether more are left."""
        for _ in range(BATCHES_MAX):
            rows = await self.fetch(lease, find, *given, BATCH)
            if rows:
                await remove(rows)
                await self.execute(lease, note, [row["id"] for row in rows])
            if len(rows) < BATCH:
                return False
        return True

    async def _remove_files(self, rows: Sequence[Any]) -> None:
        await self._objects.delete([row["file_key"] for row in rows])

    async def _remove_objects(self, rows: Sequence[Any]) -> None:
        """Remove all objects of ended reports, except their files."""
        for row in rows:
            await self._remove(row["id"], excluding=row["file_key"])

    async def _unknown(self, lease: HeldLease) -> None:
        """Remove objects of deleted reports, as far as one listing shows them."""
        for folder in FOLDERS:
            numbers = {_report_of(stored.key) for stored in await self._objects.listing(f"{folder}/", LISTED)}
            ids = sorted(number for number in numbers if number is not None)
            for row in await self.fetch(lease, "unknown_reports", ids) if ids else ():
                self.counts["unknown"] += 1
                await self._remove(row["id"])

    async def _remove(self, report_id: int, *, excluding: str | None = None) -> None:
        """Remove every object of a report except ``excluding``, in at most ``PAGES_MAX`` pages per folder."""
        for folder in FOLDERS:
            for _ in range(PAGES_MAX):
                found = await self._objects.listing(f"{folder}/{report_id}/", LISTED)
                keys = [stored.key for stored in found if stored.key != excluding]
                if keys:
                    await self._objects.delete(keys)
                    self.counts["objects"] += len(keys)
                if len(found) < LISTED:
                    break


def _report_of(key: str) -> int | None:
    number = key.split("/")[1]
    return int(number) if number.isascii() and number.isdigit() and len(number) < 19 else None
