"""Trackers by the million: NDJSON or CSV, one tracker per line, in constant memory.

A tracker that is registered already is counted and left as it is: after a cut the same file is sent again, and nobody
is registered twice. How lines are read and committed is :mod:`tickwright.engine.bulk_import`.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from tickwright.capabilities.polling.partners import CallHistory, PartnerFigures, Partners, partner_figures
from tickwright.capabilities.polling.trackers import store
from tickwright.capabilities.polling.trackers.accounts import Accounts, LoadPreview, preview_load
from tickwright.capabilities.polling.trackers.events import (
    REMEMBERED,
    EventVerdict,
    StatusEvent,
    check_event,
    counted_at,
    is_terminal,
    judge,
    message_of,
)
from tickwright.capabilities.polling.trackers.explain import explain, find_in_kafka
from tickwright.capabilities.polling.trackers.requests import (
    EndedTracker,
    EventOutcome,
    NewTracker,
    PreviewRequest,
    RegisteredTracker,
    TrackerDetail,
    TrackerEvent,
    TrackerView,
    read_columns,
    read_tracker,
    tracker_of_row,
)
from tickwright.capabilities.polling.trackers.store import TrackerQuery, list_trackers
from tickwright.capabilities.polling.wheels.slices import SliceHeat, Slices, slice_heat
from tickwright.domain.errors import Rejected
from tickwright.domain.lines import ImportResult, csv_reader
from tickwright.engine.bulk_import import BatchedImport
from tickwright.engine.outbox.table import put_message
from tickwright.ports.caller import Caller
from tickwright.ports.views import Explanation, Page, view
from tickwright.store.audit import write_audit
from tickwright.store.paging import Cursors
from tickwright.store.pool import Connection, Pool

BATCH_ROWS_MAX = 5_000


class TrackerImports:
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


# What operators, users and couriers do with trackers; accounts, partners and slices have modules of their own.
#
# Decides nothing about time: every instant is the database's. Each action locks its tracker first and leaves
# one line in
# the audit trail, in its own transaction; news come by the thousand and leave a message each, and a line where they end
# their tracker.

POLL_EVENTS = "pg:tickwright.poll-events"


class PollingService:
    """Everything that the API and the command line do with polling; one per process and pool.

    Args:
        pool: Of this process.
        events_to: Destination of poll events: a topic inside PostgreSQL, or Kafka's where there is one.
        shards: How many relays share the partners.

    Attributes:
        accounts: How often.
        partners: Whom.
        slices: What became of each minute.
        imports: Trackers by the million.
    """

    def __init__(self, pool: Pool, *, events_to: str = POLL_EVENTS, shards: int = 1) -> None:
        self._pool, self._events_to = pool, events_to
        self._cursors = Cursors(pool)
        self.accounts = Accounts(pool, self._cursors)
        self.partners = Partners(pool)
        self.slices = Slices(pool, self._cursors, shards=shards)
        self.imports = TrackerImports(pool)
        self._calls = CallHistory()

    async def partner_figures(self, name: str) -> PartnerFigures:
        """Return how a partner is called now; see :func:`partner_figures` for the errors."""
        return await partner_figures(self._pool, self._calls, name)

    async def preview(self, account_id: str, change: PreviewRequest) -> LoadPreview:
        """Return what a change of an account would do to the load; see :func:`preview_load` for the errors."""
        return await preview_load(self._pool, account_id, change)

    async def register(self, new: NewTracker, *, caller: Caller) -> RegisteredTracker:
        """Register a tracker; one (partner, external id) is one tracker, whatever else the second request says.

        Raises:
            Rejected: ``unknown_partner``. Permanent until somebody sets the partner up.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            tracker_id, created = await store.register(connection, new)
            if tracker_id is None:
                raise unknown_partner(new.partner)
            [row] = await store.get_trackers(connection, [tracker_id])
            tracker = view(TrackerView, row)
            if created:
                await write_audit(
                    connection, caller, "trackers.register", f"tracker:{tracker_id}", after=_named(tracker)
                )
        return RegisteredTracker(tracker, created)

    async def import_trackers(
        self, chunks: AsyncIterator[bytes], *, caller: Caller, as_csv: bool, now: datetime | None
    ) -> ImportResult:
        """Register a stream of trackers; see :meth:`Imports.run` for the errors."""
        return await self.imports.run(chunks, caller=caller, as_csv=as_csv, now=now)

    async def get(self, tracker_id: int) -> TrackerDetail:
        """Return one tracker with its last scan events.

        Raises:
            Rejected: ``tracker_not_found`` (404). Permanent.
        """
        rows = await store.get_trackers(self._pool, [tracker_id])
        if not rows:
            raise _not_found(tracker_id)
        events = await store.scan_events(self._pool, tracker_id)
        return view(TrackerDetail, rows[0], events=[TrackerEvent(row["at"], row["text"]) for row in events])

    async def list(self, query: TrackerQuery) -> Page[TrackerView]:
        """Return one page of trackers; see :func:`list_trackers` for what it looks at and for the errors."""
        return await list_trackers(self._pool, self._cursors, query)

    async def heat(self, **asked: Any) -> SliceHeat:
        """Return the slice ledger as a heat map; see :func:`slice_heat` for the arguments and errors."""
        return await slice_heat(self._pool, **asked)

    async def explain(self, tracker_id: int) -> Explanation:
        """Return why a tracker is where it is.

        Raises:
            Rejected: ``tracker_not_found`` (404). Permanent.
        """
        facts = await store.explain_facts(self._pool, tracker_id)
        if facts is None:
            raise _not_found(tracker_id)
        return explain(facts, await find_in_kafka(self._pool, facts))

    async def end(self, tracker_id: int, *, caller: Caller) -> EndedTracker:
        """Poll a tracker no more; a poll that was selected already still goes out. Twice is harmless.

        Raises:
            Rejected: ``tracker_not_found`` (404). Permanent.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            before, waiting = await self._locked(connection, tracker_id)
            if before["ended_at"] is not None:
                return EndedTracker(tracker_id, "already_ended", before["ended_at"])
            ended_at = await store.end(connection, tracker_id, "request", waiting=waiting)
            if ended_at is None:
                raise _not_found(tracker_id)
            await _audit_end(connection, caller, before, {"ended_at": ended_at})
        return EndedTracker(tracker_id, "ended", ended_at)

    async def take_event(self, tracker_id: int, news: StatusEvent, *, caller: Caller) -> EventOutcome:
        """Take news that somebody brought: a newer status counts, and the next poll waits for one whole interval.

        :mod:`.events` has the rules; a terminal status counts whatever its instant.

        The message to the topic of poll events is written in the same transaction, so news are told once or never.

        Raises:
            Rejected: ``tracker_not_found`` (404), ``time_in_future``. Permanent.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            tracker, waiting = await self._locked(connection, tracker_id)
            check_event(news, tracker["now"])
            seen = news.event_id is not None and await store.note_event(
                connection, tracker_id, news.event_id, REMEMBERED
            )
            verdict = judge(tracker, news, seen=seen)
            if verdict != EventVerdict.APPLIED:
                return EventOutcome(tracker_id, verdict, tracker["status"], tracker["status_at"])
            counted = replace(news, at=counted_at(tracker, news))
            return await self._apply(connection, tracker, counted, caller, waiting=waiting)

    async def _apply(
        self, connection: Connection, tracker: Mapping[str, Any], news: StatusEvent, caller: Caller, *, waiting: bool
    ) -> EventOutcome:
        tracker_id, minutes = tracker["id"], tracker["polling_interval_minutes"]
        ended = is_terminal(news.status, tracker["terminal"])
        until: datetime | None = await store.write_event(
            connection, tracker_id, news.status, news.at, minutes, waiting=waiting
        )
        if ended:
            ended_at = await store.end(connection, tracker_id, "terminal", waiting=waiting)
            await _audit_end(connection, caller, tracker, {"status": news.status, "ended_at": ended_at})
            until = None
        message = message_of(tracker, news, ended=ended)
        await put_message(connection, self._events_to, message, key=str(tracker_id))
        return EventOutcome(tracker_id, EventVerdict.APPLIED, news.status, news.at, until, ended)

    async def _locked(self, connection: Connection, tracker_id: int) -> tuple[Any, bool]:
        row, waiting = await store.lock(connection, tracker_id)
        if row is None:
            raise _not_found(tracker_id)
        return row, waiting


async def _audit_end(
    connection: Connection, caller: Caller, tracker: Mapping[str, Any], after: Mapping[str, Any]
) -> None:
    before = {"status": tracker["status"]}
    await write_audit(connection, caller, "trackers.end", f"tracker:{tracker['id']}", before=before, after=after)


def _named(tracker: TrackerView) -> dict[str, Any]:
    return {name: getattr(tracker, name) for name in ("account_id", "partner", "external_id", "tracking_until")}


def _not_found(tracker_id: int) -> Rejected:
    return Rejected("tracker_not_found", f"there is no tracker {tracker_id}", status=404)
