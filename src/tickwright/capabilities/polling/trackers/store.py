"""The tables of trackers as operators read and write them: registering, listing, ending, events.

A tracker goes from the intake to its place and never back. So a change reads the intake first: a tracker that is being
placed at that moment is then found at its place.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias

from tickwright.capabilities.polling.trackers.requests import NewTracker, TrackerView
from tickwright.ports.views import Page, view
from tickwright.store.paging import LIMIT_DEFAULT, NEWEST, Cursors, bounded, fetch_page
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

SQL = load("tickwright.capabilities.polling.sql", "trackers.sql")
_GET = SQL["get"].format(shown="\n".join(SQL["shown"].splitlines()[1:]))
READ_MAX = 20_000
FEW_MAX = 20_000
LAST_CHARACTER = "\U0010ffff"
"""Sorts after every other character, as the column compares."""

Row: TypeAlias = Any
State = Literal["waiting", "placed", "ended"]
LIVE: tuple[State, ...] = ("waiting", "placed")


async def get_trackers(pool: Pool | Connection, ids: Sequence[int]) -> Sequence[Row]:
    """Return trackers by their ids, newest first; unknown ids are skipped."""
    rows: Sequence[Row] = await pool.fetch(_GET, list(ids))
    return rows


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


async def register_many(connection: Connection, trackers: Sequence[NewTracker]) -> int:
    """Register trackers of existing accounts in the caller's transaction; return how many are new."""
    columns = [
        [getattr(one, name) for one in trackers]
        for name in ("account_id", "partner", "external_id", "status", "tracking_until")
    ]
    done: str = await connection.execute(SQL["register_many"], *columns)
    return int(done.rpartition(" ")[2])


async def lock(connection: Connection, tracker_id: int) -> tuple[Row | None, bool]:
    """Lock a tracker; return it and whether it waits for its place."""
    row = await connection.fetchrow(SQL["lock_waiting"], tracker_id)
    if row is not None:
        return row, True
    return await connection.fetchrow(SQL["lock_placed"], tracker_id), False


async def end(
    connection: Connection, tracker_id: int, by: Literal["terminal", "request"], *, waiting: bool
) -> datetime | None:
    """End a locked tracker; return when."""
    ended: datetime | None = await connection.fetchval(SQL["end_waiting" if waiting else "end_placed"], tracker_id, by)
    return ended


async def note_event(connection: Connection, tracker_id: int, event_id: str, remembered: timedelta) -> bool:
    """Store the sender's id of an event; return whether it came before."""
    fresh = await connection.fetchval(SQL["note_event"], tracker_id, event_id)
    if fresh is not None:
        await connection.execute(SQL["forget_events"], remembered)
    return fresh is None


async def set_events_destination(connection: Connection | Pool, destination: str) -> None:
    """Store where poll events go, for programs that change trackers by plain SQL."""
    await connection.execute(SQL["set_events_destination"], destination)


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
    wanted: tuple[State, ...] = (*LIVE, "ended") if state is None else (state,)
    return tuple(one for one in wanted if ended is None or (one == "ended") is ended)


async def list_trackers(pool: Pool, cursors: Cursors, query: TrackerQuery) -> Page[TrackerView]:
    """Return one page: newest first, or ordered by external ids that begin with a text.

    A page reads ``READ_MAX`` trackers at most, so that a filter that fits none does not walk all of them. It may hold
    fewer than its limit, or none, and still have a next one. An account with few trackers is read as a whole.

    Raises:
        Rejected: ``invalid_limit``, ``invalid_cursor``. Permanent.
    """
    limit = bounded(query.limit)
    found = await pool.fetchrow(SQL["numbers"], query.account_id, query.partner)
    numbers = (found["account_no"], found["partner_no"])
    unknown = (query.account_id is not None and numbers[0] is None) or (
        query.partner is not None and numbers[1] is None
    )
    if unknown or query.states == ():
        return Page([])
    if query.external_id is not None:
        return await _by_external(pool, cursors, query, numbers, limit)
    return await _newest(pool, cursors, query, numbers, limit)


def _filter(query: TrackerQuery, numbers: tuple[Any, Any], limit: int) -> tuple[Any, ...]:
    """Return the filters of a page, its rows with one more than the limit, and how many trackers it reads."""
    states = None if query.states is None else list(query.states)
    given = (*numbers, query.status, states)
    return (*given, limit + 1, limit + 1 if all(one is None for one in given) else READ_MAX)


async def _newest(
    pool: Pool, cursors: Cursors, query: TrackerQuery, numbers: tuple[Any, Any], limit: int
) -> Page[TrackerView]:
    listing = ("trackers", query.account_id, query.partner, query.status, query.states)
    before = NEWEST if query.cursor is None else await cursors.read(query.cursor, int, *listing)
    few = numbers[0] is not None and await pool.fetchval(SQL["is_few"], numbers[0], FEW_MAX)
    [found] = await fetch_page(pool, SQL["page_of_few" if few else "page"], before, *_filter(query, numbers, limit))
    ids = found["ids"][:limit]
    position = ids[-1] if len(found["ids"]) > limit else None if found["whole"] else found["lowest_id"]
    items = [view(TrackerView, row) for row in await get_trackers(pool, ids)] if ids else []
    return Page(items, None if position is None else await cursors.make(position, *listing))


async def _by_external(
    pool: Pool, cursors: Cursors, query: TrackerQuery, numbers: tuple[Any, Any], limit: int
) -> Page[TrackerView]:
    begins = query.external_id or ""
    listing = ("trackers", query.account_id, query.partner, query.status, query.states, begins)
    after, partner_no = begins, -1
    if query.cursor is not None:
        after, partner_no = await cursors.read(query.cursor, tuple[str, int], *listing)
    given = _filter(query, numbers, limit)
    [found] = await fetch_page(pool, SQL["page_by_external"], after, *given, partner_no, begins + LAST_CHARACTER)
    ids = found["ids"][:limit]
    position = None if found["whole"] else (found["last_external_id"], found["last_partner_no"])
    if len(found["ids"]) > limit:
        position = (found["external_ids"][limit - 1], found["partner_nos"][limit - 1])
    rows = {row["id"]: row for row in await get_trackers(pool, ids)} if ids else {}
    items = [view(TrackerView, rows[one]) for one in dict.fromkeys(ids) if one in rows]
    return Page(items, None if position is None else await cursors.make(position, *listing))
