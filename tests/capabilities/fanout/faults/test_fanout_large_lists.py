"""Entities with large parties or many module names: schedulers keep little of them and go on working."""

import json
from collections.abc import AsyncIterator

import asyncpg
import pytest

from kit.fanout import MODULE, FanoutWorld, Hub, fanout_world
from kit.waiting import eventually_async
from tickwright.capabilities.fanout.entities.schemas import check_modules
from tickwright.capabilities.fanout.scheduler import lists
from tickwright.capabilities.fanout.scheduler.lists import PARTY_KEPT_BYTES, UNKNOWN_MAX, read_lists
from tickwright.domain.errors import Rejected
from tickwright.store.pool import Pool

PUT = "INSERT INTO tickwright.entities (code, party, polling_enabled_modules) VALUES ($1, $2, $3)"
LARGE = {
    "packed": json.dumps({"a": "x" * 60_000}),
    "numbers": '{"a": [' + ",".join(["1e308"] * 200) + "]}",
    "long": json.dumps({"a": [f"{number:08x}" for number in range(3_000)]}),
}


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[FanoutWorld]:
    """A world in PostgreSQL alone."""
    async with fanout_world(database_url, None, None) as world:
        await world.put_module()
        yield world


async def check_large_parties(world: FanoutWorld) -> None:
    """Parties are read when they are published: every run has its own, whole."""
    for code, party in LARGE.items():
        await world.pool.execute(PUT, code, party, MODULE)
    await world.put_entities(["small"])
    kept = (await read_lists(world.pool)).modules[MODULE].entities
    assert {code for code, entry in kept.items() if len(entry.party) > PARTY_KEPT_BYTES} == set(), "it is kept"
    hub = Hub()
    async with world.scheduler(), world.consumer({MODULE: hub}, slots=4):
        await eventually_async(lambda: len(hub.ended) == 4, 30, what="every entity has run")
    rows = await world.pool.fetch("SELECT code, party::text FROM tickwright.entities")
    assert {task.entity_code: task.party for task in hub.runs} == {code: json.loads(party) for code, party in rows}


async def test_large_parties_are_published_and_not_kept(world: FanoutWorld) -> None:
    """Including those that are compressed on disk, or longer as text."""
    await check_large_parties(world)


async def test_the_suite_notices_lists_that_keep_large_parties(
    world: FanoutWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: every party is kept."""
    guard = "NOT tickwright.may_be_long(party) AND octet_length(party::text) <= $1"
    sql = lists._LISTS_SQL["list_enabled"]
    assert guard in sql
    mutated = {**lists._LISTS_SQL, "list_enabled": sql.replace(guard, "$1::integer > 0")}
    monkeypatch.setattr(lists, "_LISTS_SQL", mutated)
    with pytest.raises(AssertionError, match="it is kept"):
        await check_large_parties(world)


async def test_an_entity_that_is_gone_when_its_party_is_read_is_left_out(world: FanoutWorld) -> None:
    """The others of its chunk are published."""
    await world.put_entities(["small"])
    await world.pool.execute(PUT, "packed", LARGE["packed"], MODULE)
    hub = Hub()
    async with world.scheduler() as scheduler:
        scheduler._publisher._parties = _no_entities
        await eventually_async(lambda: scheduler.counts["published"] == 1, 30)
        async with world.consumer({MODULE: hub}):
            await eventually_async(lambda: len(hub.ended) == 1, 30)
    assert [task.entity_code for task in hub.runs] == ["small"]


async def _no_entities(_codes: object) -> dict[str, lists.ListedEntity]:
    return {}


async def test_unknown_module_names_are_counted_up_to_a_bound(pool: Pool) -> None:
    """The count of names that no module has stops at a hundred."""
    await pool.executemany(PUT, [(f"e{n}", "{}", ",".join(f"M{n}_{k}" for k in range(50))) for n in range(10)])
    assert len((await read_lists(pool)).unknown) == UNKNOWN_MAX


async def test_an_entity_has_fifty_modules_at_most(pool: Pool) -> None:
    """Schedulers and alerts split these lists often."""
    names = [f"M{number}" for number in range(51)]
    await pool.execute(PUT, "a", "{}", ",".join(names[:50]))
    with pytest.raises(asyncpg.CheckViolationError, match="entities_at_most_50_modules"):
        await pool.execute(PUT, "b", "{}", ",".join(names))
    assert check_modules(names[:50])
    with pytest.raises(Rejected, match="at most 50 names"):
        check_modules(names)
