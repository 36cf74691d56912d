"""The operators' side of the tables of trackers: registering, reading, ending, and news.

A tracker goes from the intake to its place and never back, so whoever looks for one to change it looks into the intake
first: one that is being placed at that moment is met at its place.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias

from tickwright.capabilities.polling.trackers.requests import NewTracker
from tickwright.store.paging import fetch_page
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


async def write_news(
    connection: Connection, tracker_id: int, status: str, at: datetime, minutes: int, *, waiting: bool
) -> datetime:
    """Write news into a locked tracker; return until when it is not polled."""
    until: datetime = await connection.fetchval(
        _SQL["news_waiting" if waiting else "news_placed"], tracker_id, status, at, minutes
    )
    return until


async def note_news(connection: Connection | Pool, destination: str) -> None:
    """Say where news of trackers go, for those who change trackers by plain SQL."""
    await connection.execute(_SQL["note_news"], destination)


async def explain_facts(pool: Pool, tracker_id: int) -> Row | None:
    """Return what decides where a tracker is."""
    return await pool.fetchrow(_SQL["explain"], tracker_id)
