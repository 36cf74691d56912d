"""Trackers as a listing: newest first, or in the order of external ids that begin with a text.

A page looks at ``LOOKED_MAX`` trackers at most, so that a filter that fits nothing costs no walk over ten million; it
may hold fewer than its limit, or none, and still have a next one. An account with few trackers is looked at whole.
"""

from dataclasses import dataclass
from typing import Any, Literal

from tickwright.capabilities.polling.trackers import store
from tickwright.capabilities.polling.trackers.views import TrackerView
from tickwright.ports.views import Page, view
from tickwright.store.paging import LIMIT_DEFAULT, NEWEST, Cursors, bounded
from tickwright.store.pool import Pool

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
    found = await store.numbers_of(pool, query.account_id, query.partner)
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
    looked = limit + 1 if all(one is None for one in given) else store.LOOKED_MAX
    return (*given, limit + 1, looked)


async def _newest(
    pool: Pool, cursors: Cursors, query: TrackerQuery, numbers: tuple[Any, Any], limit: int
) -> Page[TrackerView]:
    listing = ("trackers", query.account_id, query.partner, query.status, query.states)
    before = NEWEST if query.cursor is None else await cursors.read(query.cursor, int, *listing)
    few = numbers[0] is not None and await store.is_few(pool, numbers[0])
    name = "page_of_few" if few else "page"
    found = await store.page_of_ids(pool, name, before, *_filter(query, numbers, limit))
    ids = found["ids"][:limit]
    position = ids[-1] if len(found["ids"]) > limit else None if found["whole"] else found["lowest_id"]
    items = [view(TrackerView, row) for row in await store.get_trackers(pool, ids)] if ids else []
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
    found = await store.page_of_ids(pool, "page_by_external", after, *given, partner_no, begins + LAST_CHARACTER)
    ids = found["ids"][:limit]
    position = None if found["whole"] else (found["last_external_id"], found["last_partner_no"])
    if len(found["ids"]) > limit:
        position = (found["external_ids"][limit - 1], found["partner_nos"][limit - 1])
    rows = {row["id"]: row for row in await store.get_trackers(pool, ids)} if ids else {}
    items = [view(TrackerView, rows[one]) for one in dict.fromkeys(ids) if one in rows]
    return Page(items, None if position is None else await cursors.make(position, *listing))
