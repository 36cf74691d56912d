"""Trackers: registered, imported, listed, changed by events of couriers, and ended.

Every instant is the database's. Each action locks its tracker first and writes one line of the audit trail in its own
transaction. Events are many: each writes a message, and an audit line only when it ends the tracker.

A tracker goes from the intake to its place and never back. So a change reads the intake first: a tracker that is being
placed at that moment is then found at its place.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Literal, TypeAlias

from tickwright.capabilities.polling.partners import Partners
from tickwright.capabilities.polling.trackers.accounts import Accounts
from tickwright.capabilities.polling.trackers.events import (
    REMEMBERED,
    EventVerdict,
    StatusEvent,
    check_event,
    counted_at,
    decide_event,
    is_terminal,
    message_of,
)
from tickwright.capabilities.polling.trackers.explain import explain, find_in_kafka
from tickwright.capabilities.polling.trackers.requests import (
    COLUMNS,
    NEEDED,
    OPTIONAL,
    EndedTracker,
    EventOutcome,
    NewTracker,
    RegisteredTracker,
    TrackerDetail,
    TrackerEvent,
    TrackerView,
    read_tracker,
    tracker_of_row,
)
from tickwright.capabilities.polling.wheels.slices import Slices
from tickwright.domain.errors import Rejected
from tickwright.domain.lines import ImportResult, csv_reader
from tickwright.engine.bulk_import import BatchedImport
from tickwright.engine.outbox.table import put_message
from tickwright.ports.caller import Caller
from tickwright.ports.views import Explanation, Page, view
from tickwright.store.audit import write_audit
from tickwright.store.paging import LIMIT_DEFAULT, NEWEST, Cursors, checked_limit, fetch_page
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

SQL = load("tickwright.capabilities.polling.sql", "trackers.sql")
_GET = SQL["get"].format(shown="\n".join(SQL["shown"].splitlines()[1:]))
IMPORT_ROWS_MAX = 5_000
POLL_EVENTS = "pg:tickwright.poll-events"
READ_MAX = 20_000
FEW_MAX = 20_000
LAST_CHARACTER = "\U0010ffff"
"""Sorts after every other character, as the column compares."""

Row: TypeAlias = Any
State = Literal["waiting", "placed", "ended"]


@dataclass(frozen=True, slots=True)
class TrackerQuery:
    """Filters of a listing of trackers.

    Attributes:
        states: Only these; ``None`` is all.
        external_id: How it begins.
        limit: 1 to 200.
    """

    account_id: str | None = None
    partner: str | None = None
    status: str | None = None
    states: tuple[State, ...] | None = None
    external_id: str | None = None
    cursor: str | None = None
    limit: int = LIMIT_DEFAULT


def states_of(state: State | None, *, ended: bool | None) -> tuple[State, ...] | None:
    """Return the states that fit both filters; ``None`` for all of them."""
    if state is None and ended is None:
        return None
    states: tuple[State, ...] = ("waiting", "placed", "ended") if state is None else (state,)
    return tuple(kind for kind in states if ended is None or (kind == "ended") is ended)


async def register(connection: Connection, new: NewTracker) -> tuple[int | None, bool]:
    """Register a tracker in the caller's transaction; return its id, and whether it is new.

    The id is ``None`` when the partner does not exist. A tracker in the intake prevents the insert; one that is being
    placed is found after it, because placing removes from the intake and adds to the trackers at once. Only ``fetch``
    of the connection is used, so that it may be the caller's own, of another driver.
    """
    await connection.fetch(SQL["account_number"], new.account_id)
    made = await connection.fetch(
        SQL["register"], new.account_id, new.partner, new.external_id, new.status, new.tracking_until
    )
    found = await connection.fetch(SQL["find"], new.external_id, new.partner)
    if made and found[0][0] != made[0][0]:
        await connection.fetch(SQL["unregister"], made[0][0])
        made = []
    return (found[0][0] if found else None), bool(made)


class PollingService:
    """The actions of operators, users and partners on trackers; accounts, partners and slices are attributes.

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
            tracker_id, created = await register(connection, new)
            if tracker_id is None:
                raise unknown_partner(new.partner)
            tracker = view(TrackerView, await connection.fetchrow(_GET, [tracker_id]))
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
        read: Callable[[bytes], NewTracker | None] = partial(read_tracker, now=now)
        if as_csv:
            read = csv_reader(NEEDED, OPTIONAL, partial(tracker_of_row, now=now))
        return await _TrackerImport(self._pool, caller, read).run(chunks)

    async def get(self, tracker_id: int) -> TrackerDetail:
        """Return one tracker with its last scan events."""
        row = await self._pool.fetchrow(_GET, [tracker_id])
        if row is None:
            raise _not_found(tracker_id)
        events = await self._pool.fetch(SQL["scan_events"], tracker_id)
        return view(TrackerDetail, row, events=[TrackerEvent(event["at"], event["text"]) for event in events])

    async def list(self, query: TrackerQuery) -> Page[TrackerView]:
        """Return one page: newest first, or ordered by external ids that begin with a text.

        A page reads ``READ_MAX`` trackers at most, so that a filter that fits none does not walk all of them. It may
        hold fewer than its limit, or none, and still have a next one. An account with few trackers is read as a whole.

        Raises:
            Rejected: ``invalid_limit``, ``invalid_cursor``. Permanent.
        """
        checked_limit(query.limit)
        account_no, partner_no = await self._pool.fetchrow(SQL["numbers"], query.account_id, query.partner)
        unknown = (query.account_id is not None and account_no is None) or (
            query.partner is not None and partner_no is None
        )
        if unknown or query.states == ():
            return Page([])
        filters = (account_no, partner_no, query.status, None if query.states is None else [*query.states])
        read_max = query.limit + 1 if all(value is None for value in filters) else READ_MAX
        if query.external_id is not None:
            return await self._by_external(query, query.external_id, *filters, query.limit + 1, read_max)
        return await self._newest(query, *filters, query.limit + 1, read_max)

    async def _newest(self, query: TrackerQuery, account_no: int | None, *given: Any) -> Page[TrackerView]:
        listing = ("trackers", query.account_id, query.partner, query.status, query.states)
        before = NEWEST if query.cursor is None else await self._cursors.read(query.cursor, int, *listing)
        is_few = account_no is not None and await self._pool.fetchval(SQL["is_few"], account_no, FEW_MAX)
        sql = SQL["page_of_few" if is_few else "page"]
        [found] = await fetch_page(self._pool, sql, before, account_no, *given)
        ids = found["ids"][: query.limit]
        position = ids[-1] if len(found["ids"]) > query.limit else None if found["whole"] else found["lowest_id"]
        items = [view(TrackerView, row) for row in await self._pool.fetch(_GET, ids)] if ids else []
        return Page(items, None if position is None else await self._cursors.make(position, *listing))

    async def _by_external(self, query: TrackerQuery, begins: str, *given: Any) -> Page[TrackerView]:
        listing = ("trackers", query.account_id, query.partner, query.status, query.states, begins)
        after, partner_no = begins, -1
        if query.cursor is not None:
            after, partner_no = await self._cursors.read(query.cursor, tuple[str, int], *listing)
        sql = SQL["page_by_external"]
        [found] = await fetch_page(self._pool, sql, after, *given, partner_no, begins + LAST_CHARACTER)
        ids = found["ids"][: query.limit]
        position = None if found["whole"] else (found["last_external_id"], found["last_partner_no"])
        if len(found["ids"]) > query.limit:
            position = (found["external_ids"][query.limit - 1], found["partner_nos"][query.limit - 1])
        rows = {row["id"]: row for row in await self._pool.fetch(_GET, ids)} if ids else {}
        items = [view(TrackerView, rows[tracker_id]) for tracker_id in dict.fromkeys(ids) if tracker_id in rows]
        return Page(items, None if position is None else await self._cursors.make(position, *listing))

    async def explain(self, tracker_id: int) -> Explanation:
        """Return why a tracker is where it is."""
        facts = await self._pool.fetchrow(SQL["explain"], tracker_id)
        if facts is None:
            raise _not_found(tracker_id)
        return explain(facts, await find_in_kafka(self._pool, facts))

    async def end(self, tracker_id: int, *, caller: Caller) -> EndedTracker:
        """Stop polling a tracker; a poll that is selected already is still made. Twice is harmless."""
        async with self._pool.acquire() as connection, connection.transaction():
            tracker, waiting = await _locked(connection, tracker_id)
            if tracker["ended_at"] is not None:
                return EndedTracker(tracker_id, "already_ended", tracker["ended_at"])
            ended_at = await _end(connection, caller, tracker, "request", waiting=waiting)
        return EndedTracker(tracker_id, "ended", ended_at)

    async def take_event(self, tracker_id: int, event: StatusEvent, *, caller: Caller) -> EventOutcome:
        """Apply an event that a partner sent: a newer status counts, and the next poll waits one whole interval.

        :mod:`.events` has the rules. The message to the topic of poll events is written in the same transaction, so an
        event is published once or never.

        Raises:
            Rejected: ``time_in_future``. Permanent.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            tracker, waiting = await _locked(connection, tracker_id)
            check_event(event, tracker["now"])
            verdict = decide_event(tracker, event, seen=await _is_recorded(connection, tracker_id, event.event_id))
            if verdict != EventVerdict.APPLIED:
                return EventOutcome(tracker_id, verdict, tracker["status"], tracker["status_at"])
            event = replace(event, at=counted_at(tracker, event))
            sql, minutes = SQL["event_waiting" if waiting else "event_placed"], tracker["polling_interval_minutes"]
            until: datetime | None = await connection.fetchval(sql, tracker_id, event.status, event.at, minutes)
            ended = is_terminal(event.status, tracker["terminal"])
            if ended:
                until = None
                await _end(connection, caller, tracker, "terminal", waiting=waiting, status=event.status)
            message = message_of(tracker, event, ended=ended)
            await put_message(connection, self._events_to, message, key=str(tracker_id))
            return EventOutcome(tracker_id, verdict, event.status, event.at, until, ended)


async def _is_recorded(connection: Connection, tracker_id: int, event_id: str | None) -> bool:
    """Store the sender's id of an event; return whether it came before."""
    if event_id is None:
        return False
    if await connection.fetchval(SQL["note_event"], tracker_id, event_id) is None:
        return True
    await connection.execute(SQL["forget_events"], REMEMBERED)
    return False


async def _locked(connection: Connection, tracker_id: int) -> tuple[Row, bool]:
    """Lock a tracker; return it and whether it waits for its place."""
    row = await connection.fetchrow(SQL["lock_waiting"], tracker_id)
    if row is not None:
        return row, True
    row = await connection.fetchrow(SQL["lock_placed"], tracker_id)
    if row is None:
        raise _not_found(tracker_id)
    return row, False


async def _end(
    connection: Connection,
    caller: Caller,
    tracker: Row,
    by: Literal["terminal", "request"],
    *,
    waiting: bool,
    **changes: str,
) -> datetime:
    """End a locked tracker; return when."""
    tracker_id, sql = tracker["id"], SQL["end_waiting" if waiting else "end_placed"]
    ended_at: datetime | None = await connection.fetchval(sql, tracker_id, by)
    if ended_at is None:
        raise _not_found(tracker_id)
    before, after = {"status": tracker["status"]}, {**changes, "ended_at": ended_at}
    await write_audit(connection, caller, "trackers.end", f"tracker:{tracker_id}", before=before, after=after)
    return ended_at


class _TrackerImport(BatchedImport[NewTracker]):
    """One running import."""

    def __init__(self, pool: Pool, caller: Caller, read: Callable[[bytes], NewTracker | None]) -> None:
        super().__init__(pool, caller, action="trackers.import", subject="trackers", rows_max=IMPORT_ROWS_MAX)
        self._read_line = read
        self._accounts: set[str] = set()
        self._partners: frozenset[str] = frozenset()

    async def _learn(self, connection: Connection) -> None:
        self._partners = frozenset(row[0] for row in await connection.fetch(SQL["partner_names"]))

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
            await connection.fetchval(SQL["account_numbers"], sorted(new_accounts))
        columns = ([getattr(tracker, name) for tracker in batch] for name in COLUMNS)
        done: str = await connection.execute(SQL["register_many"], *columns)
        created = int(done.rpartition(" ")[2])
        self._accounts = new_accounts if len(self._accounts) > IMPORT_ROWS_MAX else self._accounts | new_accounts
        self.result.created += created
        self.result.existing += len(batch) - created


def unknown_partner(name: str) -> Rejected:
    """Return the refusal of a partner that does not exist; most often its name is misspelled."""
    return Rejected("unknown_partner", f"there is no partner {name[:50]!r}; tickwright partners put", field="partner")


def _not_found(tracker_id: int) -> Rejected:
    return Rejected("tracker_not_found", f"there is no tracker {tracker_id}", status=404)
