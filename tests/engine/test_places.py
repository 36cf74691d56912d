"""Places of sessions in their groups, as heartbeats read them."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import asyncpg

from tickwright.engine.session import WorkerSession
from tickwright.engine.wakeup.connection import DirectConnection
from tickwright.ports.session import Place
from tickwright.store.pool import open_pool

Read = Callable[[], Place | None]


@asynccontextmanager
async def sessions(url: str, *groups: str) -> AsyncIterator[tuple[asyncpg.Pool, list[WorkerSession], list[Read]]]:
    """Yield open sessions, one for each named group, that know of each other."""
    pool = await open_pool(url)
    opened = [
        WorkerSession(pool, name=str(number), roles=["worker"], version="0", direct=DirectConnection(None))
        for number in range(len(groups))
    ]
    places = [session.join(group, lambda: True) for session, group in zip(opened, groups, strict=True)]
    for session in opened:
        await session.open()
    for session in opened:
        await session.renew()
    try:
        yield pool, opened, places
    finally:
        await pool.close()


async def test_each_session_of_a_group_has_a_place_and_a_rank_of_its_own(database_url: str) -> None:
    """Sessions of other groups do not count."""
    async with sessions(database_url, *["a"] * 7, "b", "b") as (_, opened, places):
        for session in opened:  # within one round, as far as rounds are read
            await session.renew()
        found = [place() for place in places]
    group = [place for place in found[:7] if place is not None]
    assert sorted(place.before for place in group) == list(range(7))
    assert {place.others for place in group} == {6}
    assert [place.others for place in found[7:] if place is not None] == [1, 1]
    if len({place.round for place in group}) == 1:
        assert sorted(place.rank for place in group) == list(range(7))
        assert sorted(place.rank_next for place in group) == list(range(7))


async def test_a_session_that_is_lost_or_leaves_its_group_does_not_count(database_url: str) -> None:
    """An expired lease, a lost session and one without the group: the others divide the turns."""
    joins = True
    async with sessions(database_url, *["a"] * 4) as (pool, opened, places):
        await pool.execute("UPDATE tickwright.workers SET lost_at = now() WHERE id = $1", opened[0].token)
        await pool.execute("UPDATE tickwright.workers SET lease_until = now() WHERE id = $1", opened[1].token)
        opened[2]._groups["a"] = lambda: joins
        joins = False
        await opened[2].renew()
        await opened[3].renew()
        assert places[2]() is None
        place = places[3]()
    assert place is not None
    assert (place.others, place.before, place.rank) == (0, 0, 0)


async def test_the_listener_changes_from_round_to_round(database_url: str) -> None:
    """Each session listens in some round: the hash of session and round decides."""
    async with sessions(database_url, *["a"] * 3) as (pool, opened, _):
        tokens = [session.token for session in opened]
        first = "SELECT id FROM unnest($1::bigint[]) AS id ORDER BY hashint8extended(id, $2) LIMIT 1"
        listeners = {await pool.fetchval(first, tokens, number) for number in range(100)}
    assert listeners == set(tokens)
