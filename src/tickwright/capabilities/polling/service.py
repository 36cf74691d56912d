"""Actions on trackers for the API, the command line and programs; accounts, partners and slices are attributes.

Every instant is the database's. Each action locks its tracker first and writes one line of the audit trail in its own
transaction. Events are many: each writes a message, and an audit line only when it ends the tracker.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from tickwright.capabilities.polling.partners import Partners
from tickwright.capabilities.polling.trackers import store
from tickwright.capabilities.polling.trackers.accounts import Accounts
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
    RegisteredTracker,
    TrackerDetail,
    TrackerEvent,
    TrackerView,
    read_columns,
    read_tracker,
    tracker_of_row,
)
from tickwright.capabilities.polling.trackers.store import TrackerQuery, list_trackers
from tickwright.capabilities.polling.wheels.slices import Slices
from tickwright.domain.errors import Rejected
from tickwright.domain.lines import ImportResult, csv_reader
from tickwright.engine.bulk_import import BatchedImport
from tickwright.engine.outbox.table import put_message
from tickwright.ports.caller import Caller
from tickwright.ports.views import Explanation, Page, view
from tickwright.store.audit import write_audit
from tickwright.store.paging import Cursors
from tickwright.store.pool import Connection, Pool

IMPORT_ROWS_MAX = 5_000
POLL_EVENTS = "pg:tickwright.poll-events"


class PollingService:
    """The actions of operators, users and couriers; one per process and pool.

    Poll events go to ``events_to``, a topic inside PostgreSQL or of Kafka; ``shards`` relays share the partners.

    Raises:
        Rejected: ``tracker_not_found`` (404) from every method with a tracker id. Permanent.
    """

    def __init__(self, pool: Pool, *, events_to: str = POLL_EVENTS, shards: int = 1) -> None:
        self._pool, self._events_to = pool, events_to
        self._cursors = Cursors(pool)
        self.accounts = Accounts(pool, self._cursors)
        self.partners = Partners(pool)
        self.slices = Slices(pool, self._cursors, shards=shards)

    async def register(self, new: NewTracker, *, caller: Caller) -> RegisteredTracker:
        """Register a tracker; one (partner, external id) is one tracker, and a second request returns it unchanged.

        Raises:
            Rejected: ``unknown_partner``. Permanent until the partner is created.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            tracker_id, created = await store.register(connection, new)
            if tracker_id is None:
                raise unknown_partner(new.partner)
            [row] = await store.get_trackers(connection, [tracker_id])
            tracker = view(TrackerView, row)
            if created:
                names = ("account_id", "partner", "external_id", "tracking_until")
                after = {name: getattr(tracker, name) for name in names}
                await write_audit(connection, caller, "trackers.register", f"tracker:{tracker_id}", after=after)
        return RegisteredTracker(tracker, created)

    async def import_trackers(
        self, chunks: AsyncIterator[bytes], *, caller: Caller, as_csv: bool = False, now: datetime | None = None
    ) -> ImportResult:
        """Register a stream of trackers, one per line, in constant memory; registered ones are counted and unchanged.

        Lines are NDJSON, or CSV after a line of columns. An exception of ``chunks`` (never an ``OSError``) ends the
        import and passes through. Without ``now``, the database's clock, ``tracking_until`` is not compared with it.

        Raises:
            Rejected: ``invalid_columns`` (400): the first line of a CSV file names others. Permanent.
            Unavailable: ``import_interrupted`` with ``committed_lines``. Send it again; nothing is registered twice.
        """
        read = csv_reader(read_columns, partial(tracker_of_row, now=now)) if as_csv else partial(read_tracker, now=now)
        return await _TrackerImport(self._pool, caller, read).run(chunks)

    async def get(self, tracker_id: int) -> TrackerDetail:
        """Return one tracker with its last scan events."""
        rows = await store.get_trackers(self._pool, [tracker_id])
        if not rows:
            raise _not_found(tracker_id)
        events = await self._pool.fetch(store.SQL["scan_events"], tracker_id)
        return view(TrackerDetail, rows[0], events=[TrackerEvent(row["at"], row["text"]) for row in events])

    async def list(self, query: TrackerQuery) -> Page[TrackerView]:
        """Return one page of trackers; see :func:`list_trackers` for what it reads and for the errors."""
        return await list_trackers(self._pool, self._cursors, query)

    async def explain(self, tracker_id: int) -> Explanation:
        """Return why a tracker is where it is."""
        facts = await self._pool.fetchrow(store.SQL["explain"], tracker_id)
        if facts is None:
            raise _not_found(tracker_id)
        return explain(facts, await find_in_kafka(self._pool, facts))

    async def end(self, tracker_id: int, *, caller: Caller) -> EndedTracker:
        """Stop polling a tracker; a poll that is selected already is still made. Twice is harmless."""
        async with self._pool.acquire() as connection, connection.transaction():
            before, waiting = await self._locked(connection, tracker_id)
            if before["ended_at"] is not None:
                return EndedTracker(tracker_id, "already_ended", before["ended_at"])
            ended_at = await store.end(connection, tracker_id, "request", waiting=waiting)
            if ended_at is None:
                raise _not_found(tracker_id)
            await _audit_end(connection, caller, before, {"ended_at": ended_at})
        return EndedTracker(tracker_id, "ended", ended_at)

    async def take_event(self, tracker_id: int, event: StatusEvent, *, caller: Caller) -> EventOutcome:
        """Apply an event that a courier sent: a newer status counts, and the next poll waits one whole interval.

        :mod:`.events` has the rules. The message to the topic of poll events is written in the same transaction, so an
        event is published once or never.

        Raises:
            Rejected: ``time_in_future``. Permanent.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            tracker, waiting = await self._locked(connection, tracker_id)
            check_event(event, tracker["now"])
            seen = event.event_id is not None and await store.note_event(
                connection, tracker_id, event.event_id, REMEMBERED
            )
            verdict = judge(tracker, event, seen=seen)
            if verdict != EventVerdict.APPLIED:
                return EventOutcome(tracker_id, verdict, tracker["status"], tracker["status_at"])
            counted = replace(event, at=counted_at(tracker, event))
            return await self._apply(connection, tracker, counted, caller, waiting=waiting)

    async def _apply(
        self, connection: Connection, tracker: Mapping[str, Any], event: StatusEvent, caller: Caller, *, waiting: bool
    ) -> EventOutcome:
        tracker_id, minutes = tracker["id"], tracker["polling_interval_minutes"]
        ended = is_terminal(event.status, tracker["terminal"])
        query = store.SQL["event_waiting" if waiting else "event_placed"]
        until: datetime | None = await connection.fetchval(query, tracker_id, event.status, event.at, minutes)
        if ended:
            ended_at = await store.end(connection, tracker_id, "terminal", waiting=waiting)
            await _audit_end(connection, caller, tracker, {"status": event.status, "ended_at": ended_at})
            until = None
        message = message_of(tracker, event, ended=ended)
        await put_message(connection, self._events_to, message, key=str(tracker_id))
        return EventOutcome(tracker_id, EventVerdict.APPLIED, event.status, event.at, until, ended)

    async def _locked(self, connection: Connection, tracker_id: int) -> tuple[Any, bool]:
        row, waiting = await store.lock(connection, tracker_id)
        if row is None:
            raise _not_found(tracker_id)
        return row, waiting


class _TrackerImport(BatchedImport[NewTracker]):
    """One running import."""

    def __init__(self, pool: Pool, caller: Caller, read: Callable[[bytes], NewTracker | None]) -> None:
        super().__init__(pool, caller, action="trackers.import", subject="trackers", rows_max=IMPORT_ROWS_MAX)
        self._read_line = read
        self._accounts: set[str] = set()
        self._partners: frozenset[str] = frozenset()

    async def _learn(self, connection: Connection) -> None:
        self._partners = frozenset(row[0] for row in await connection.fetch(store.SQL["partner_names"]))

    async def _thing(self, line: bytes, _number: int) -> NewTracker | None:
        tracker = self._read_line(line)
        if tracker is not None and tracker.partner not in self._partners:
            raise unknown_partner(tracker.partner)
        return tracker

    async def _write(self, connection: Connection, batch: Sequence[NewTracker]) -> None:
        if not batch:
            return
        new_accounts = {tracker.account_id for tracker in batch} - self._accounts
        if new_accounts:
            await connection.fetchval(store.SQL["account_numbers"], sorted(new_accounts))
        created = await store.register_many(connection, batch)
        self._accounts = new_accounts if len(self._accounts) > IMPORT_ROWS_MAX else self._accounts | new_accounts
        self.result.created += created
        self.result.existing += len(batch) - created


def unknown_partner(name: str) -> Rejected:
    """Return the refusal of a partner that does not exist; most often its name is misspelled."""
    return Rejected("unknown_partner", f"there is no partner {name[:50]!r}; tickwright partners put", field="partner")


async def _audit_end(
    connection: Connection, caller: Caller, tracker: Mapping[str, Any], after: Mapping[str, Any]
) -> None:
    before = {"status": tracker["status"]}
    await write_audit(connection, caller, "trackers.end", f"tracker:{tracker['id']}", before=before, after=after)


def _not_found(tracker_id: int) -> Rejected:
    return Rejected("tracker_not_found", f"there is no tracker {tracker_id}", status=404)
