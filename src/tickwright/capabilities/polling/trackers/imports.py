"""Trackers by the million: NDJSON or CSV, one tracker per line, in constant memory.

A tracker that is registered already is counted and left as it is: after a cut the same file is sent again, and nobody
is registered twice. How lines are read and committed is :mod:`tickwright.engine.bulk_import`.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from functools import partial

from tickwright.capabilities.polling.trackers import store
from tickwright.capabilities.polling.trackers.requests import NewTracker, read_columns, read_tracker, tracker_of_row
from tickwright.domain.errors import Rejected
from tickwright.domain.lines import ImportResult, csv_reader
from tickwright.engine.bulk_import import BatchedImport
from tickwright.ports.caller import Caller
from tickwright.store.pool import Connection, Pool

BATCH_ROWS_MAX = 5_000


class Imports:
    """Streams of trackers into the intake."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def run(
        self, chunks: AsyncIterator[bytes], *, caller: Caller, as_csv: bool = False, now: datetime | None = None
    ) -> ImportResult:
        """Import a stream.

        Args:
            chunks: Bytes as they come; what it raises (never an ``OSError``) ends the import and passes through.
            caller: For the audit trail.
            as_csv: CSV with a line of columns instead of NDJSON.
            now: The database's clock as far as known; ``None`` lets ``tracking_until`` lie anywhere.

        Raises:
            Rejected: ``invalid_columns`` (400): the first line of a CSV file names others. Permanent.
            Unavailable: ``import_interrupted`` with ``committed_lines``. Send it again; nothing is registered twice.
        """
        read = csv_reader(read_columns, partial(tracker_of_row, now=now)) if as_csv else partial(read_tracker, now=now)
        return await _TrackerImport(self._pool, caller, read).run(chunks)


class _TrackerImport(BatchedImport[NewTracker]):
    """One import under way."""

    def __init__(self, pool: Pool, caller: Caller, read: Callable[[bytes], NewTracker | None]) -> None:
        super().__init__(pool, caller, action="trackers.import", subject="trackers", rows_max=BATCH_ROWS_MAX)
        self._read_line = read
        self._accounts: set[str] = set()
        self._partners: frozenset[str] = frozenset()

    async def _learn(self, connection: Connection) -> None:
        self._partners = await store.partner_names(connection)

    async def _thing(self, line: bytes, _number: int) -> NewTracker | None:
        tracker = self._read_line(line)
        if tracker is not None and tracker.partner not in self._partners:
            raise unknown_partner(tracker.partner)
        return tracker

    async def _write(self, connection: Connection, batch: Sequence[NewTracker]) -> None:
        if not batch:
            return
        strange = {tracker.account_id for tracker in batch} - self._accounts
        if strange:
            await store.make_accounts(connection, list(strange))
        created = await store.register_many(connection, batch)
        self._accounts = strange if len(self._accounts) > BATCH_ROWS_MAX else self._accounts | strange
        self.result.created += created
        self.result.existing += len(batch) - created


def unknown_partner(name: str) -> Rejected:
    """Return the refusal of a partner that nobody has set up: most often its name is misspelled."""
    return Rejected("unknown_partner", f"there is no partner {name[:50]!r}; tickwright partners put", field="partner")
