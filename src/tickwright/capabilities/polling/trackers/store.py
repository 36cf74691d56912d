"""The operators' side of the tables of trackers: registering, reading, ending, and news.

A tracker goes from the intake to its place and never back, so whoever looks for one to change it looks into the intake
first: one that is being placed at that moment is met at its place.
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

_SQL = load("tickwright.capabilities.polling.sql", "trackers.sql")
_GET = _SQL["get"].format(shown="\n".join(_SQL["shown"].splitlines()[1:]))
LOOKED_MAX = 20_000
FEW_MAX = 20_000

Row = Any
EndedBy: TypeAlias = Literal["terminal", "request"]


async def get_trackers(pool: Pool | Connection, ids: Sequence[int]) -> Sequence[Row]:
    """Return trackers by their ids, newest first; ids that nobody has are left out."""
    rows: Sequence[Row] = await pool.fetch(_GET, list(ids))
    return rows


async def scan_events(pool: Pool, tracker_id: int) -> Sequence[Row]:
    """Return ``at text`` of a tracker's last scan events, newest last; at most ten."""
    rows: Sequence[Row] = await pool.fetch(_SQL["scan_events"], tracker_id)
    return rows


async def numbers_of(pool: Pool, account_id: str | None, partner: str | None) -> Row:
    """Return ``account_no partner_no`` of names, nothing for one that is unknown."""
    return await pool.fetchrow(_SQL["numbers"], account_id, partner)


async def is_few(pool: Pool, account_no: int) -> bool:
    """Whether an account has so few trackers that a page looks at all of them."""
    return bool(await pool.fetchval(_SQL["is_few"], account_no, FEW_MAX))


async def page_of_ids(pool: Pool, query: str, *arguments: Any) -> Row:
    """Return the one row of ``page``, ``page_of_few`` or ``page_by_external``, read in the order of its index."""
    [row] = await fetch_page(pool, _SQL[query], *arguments)
    return row


async def register(connection: Connection, new: NewTracker) -> tuple[int | None, bool]:
    """Register a tracker in the caller's transaction; return its id, and whether it is new.

    The id is nothing when nobody knows the partner. Whoever waits in the intake keeps the insert away; whoever is
    placed just now is found after it, because placing removes from the intake and adds to the trackers at once.
    Only ``fetch`` is asked of the connection, so that it may be one of the caller's own, of another driver.
    """
    await connection.fetch(_SQL["account_number"], new.account_id)
    made = await connection.fetch(
        _SQL["register"], new.account_id, new.partner, new.external_id, new.status, new.tracking_until
    )
    found = await connection.fetch(_SQL["find"], new.external_id, new.partner)
    if made and found[0][0] != made[0][0]:
        await connection.fetch(_SQL["unregister"], made[0][0])
        made = []
    return (found[0][0] if found else None), bool(made)


async def register_many(connection: Connection, trackers: Sequence[NewTracker]) -> int:
    """Register trackers in the caller's transaction; return how many are new. Their accounts exist already."""
    columns = [
        [getattr(one, name) for one in trackers]
        for name in ("account_id", "partner", "external_id", "status", "tracking_until")
    ]
    done: str = await connection.execute(_SQL["register_many"], *columns)
    return int(done.rpartition(" ")[2])


async def make_accounts(connection: Connection, account_ids: Sequence[str]) -> None:
    """Give accounts that nobody knew a row with the default interval."""
    await connection.fetchval(_SQL["account_numbers"], sorted(account_ids))


async def partner_names(connection: Connection) -> frozenset[str]:
    """Return who can be polled."""
    return frozenset(row[0] for row in await connection.fetch(_SQL["partner_names"]))


async def lock(connection: Connection, tracker_id: int) -> tuple[Row | None, bool]:
    """Lock a tracker; return it and whether it waits for its place."""
    row = await connection.fetchrow(_SQL["lock_waiting"], tracker_id)
    if row is not None:
        return row, True
    return await connection.fetchrow(_SQL["lock_placed"], tracker_id), False


async def end(connection: Connection, tracker_id: int, by: EndedBy, *, waiting: bool) -> datetime | None:
    """End a locked tracker; return when."""
    ended: datetime | None = await connection.fetchval(_SQL["end_waiting" if waiting else "end_placed"], tracker_id, by)
    return ended


async def note_event(connection: Connection, tracker_id: int, event_id: str, remembered: timedelta) -> bool:
    """Remember the sender's id of news; return whether it came before."""
    fresh = await connection.fetchval(_SQL["note_event"], tracker_id, event_id)
    if fresh is not None:
        await connection.execute(_SQL["forget_events"], remembered)
    return fresh is None


async def write_event(
    connection: Connection, tracker_id: int, status: str, at: datetime, minutes: int, *, waiting: bool
) -> datetime:
    """Write news into a locked tracker; return until when it is not polled."""
    until: datetime = await connection.fetchval(
        _SQL["event_waiting" if waiting else "event_placed"], tracker_id, status, at, minutes
    )
    return until


async def set_events_destination(connection: Connection | Pool, destination: str) -> None:
    """Say where news of trackers go, for those who change trackers by plain SQL."""
    await connection.execute(_SQL["set_events_destination"], destination)


async def explain_facts(pool: Pool, tracker_id: int) -> Row | None:
    """Return what decides where a tracker is."""
    return await pool.fetchrow(_SQL["explain"], tracker_id)


# Trackers as a listing: newest first, or in the order of external ids that begin with a text.
#
# A page looks at ``LOOKED_MAX`` trackers at most, so that a filter that fits nothing costs no walk over ten million; it
# may hold fewer than its limit, or none, and still have a next one. An account with few trackers is looked at whole.

State = Literal["waiting", "placed", "ended"]
LIVE: tuple[State, ...] = ("waiting", "placed")
FIRST_PARTNER = -1
LAST_CHARACTER = "\U0010ffff"
"""Behind every other one, as the column compares."""


@dataclass(frozen=True, slots=True)
class TrackerQuery:
    """What a listing of trackers is asked for.

    Attributes:
        states: Only these; ``None`` is all.
        external_id: How it begins.
        cursor: From the page before.
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
    """Return the states that fit both; ``None`` for all of them."""
    if state is None and ended is None:
        return None
    wanted: tuple[State, ...] = (*LIVE, "ended") if state is None else (state,)
    return tuple(one for one in wanted if ended is None or (one == "ended") is ended)


async def list_trackers(pool: Pool, cursors: Cursors, query: TrackerQuery) -> Page[TrackerView]:
    """Return one page.

    Raises:
        Rejected: ``invalid_limit``, ``invalid_cursor``. Permanent.
    """
    limit = bounded(query.limit)
    found = await numbers_of(pool, query.account_id, query.partner)
    numbers = (found["account_no"], found["partner_no"])
    if _is_unknown(query.account_id, numbers[0]) or _is_unknown(query.partner, numbers[1]) or query.states == ():
        return Page([])
    if query.external_id is not None:
        return await _by_external(pool, cursors, query, numbers, limit)
    return await _newest(pool, cursors, query, numbers, limit)


def _is_unknown(name: str | None, number: int | None) -> bool:
    return name is not None and number is None


def _filter(query: TrackerQuery, numbers: tuple[Any, Any], limit: int) -> tuple[Any, ...]:
    """Return what every page is filtered by, one row more than asked for, and how many it looks at."""
    states = None if query.states is None else list(query.states)
    given = (*numbers, query.status, states)
    looked = limit + 1 if all(one is None for one in given) else LOOKED_MAX
    return (*given, limit + 1, looked)


async def _newest(
    pool: Pool, cursors: Cursors, query: TrackerQuery, numbers: tuple[Any, Any], limit: int
) -> Page[TrackerView]:
    listing = ("trackers", query.account_id, query.partner, query.status, query.states)
    before = NEWEST if query.cursor is None else await cursors.read(query.cursor, int, *listing)
    few = numbers[0] is not None and await is_few(pool, numbers[0])
    name = "page_of_few" if few else "page"
    found = await page_of_ids(pool, name, before, *_filter(query, numbers, limit))
    ids = found["ids"][:limit]
    position = ids[-1] if len(found["ids"]) > limit else None if found["whole"] else found["lowest_id"]
    items = [view(TrackerView, row) for row in await get_trackers(pool, ids)] if ids else []
    return Page(items, None if position is None else await cursors.make(position, *listing))


async def _by_external(
    pool: Pool, cursors: Cursors, query: TrackerQuery, numbers: tuple[Any, Any], limit: int
) -> Page[TrackerView]:
    begins = query.external_id or ""
    listing = ("trackers", query.account_id, query.partner, query.status, query.states, begins)
    after, partner_no = begins, FIRST_PARTNER
    if query.cursor is not None:
        after, partner_no = await cursors.read(query.cursor, tuple[str, int], *listing)
    given = _filter(query, numbers, limit)
    found = await page_of_ids(pool, "page_by_external", after, *given, partner_no, begins + LAST_CHARACTER)
    ids = found["ids"][:limit]
    position = None if found["whole"] else (found["last_external_id"], found["last_partner_no"])
    if len(found["ids"]) > limit:
        position = (found["external_ids"][limit - 1], found["partner_nos"][limit - 1])
    rows = {row["id"]: row for row in await get_trackers(pool, ids)} if ids else {}
    items = [view(TrackerView, rows[one]) for one in dict.fromkeys(ids) if one in rows]
    return Page(items, None if position is None else await cursors.make(position, *listing))
