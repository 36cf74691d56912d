"""A scheduler reads its lists regularly, also without a notification of changes."""

from collections.abc import AsyncIterator

import pytest

from kit.fanout import MODULE, FanoutWorld, fanout_world
from kit.waiting import eventually_async
from tickwright.capabilities.fanout.scheduler import scheduler as rooms


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[FanoutWorld]:
    """A world in PostgreSQL alone, in which changes of entities notify no scheduler."""
    async with fanout_world(database_url, None, None) as world:
        await world.put_module()
        await world.pool.execute("ALTER TABLE tickwright.entities DISABLE TRIGGER tell_entities")
        yield world


async def test_a_change_without_a_notification_is_found_by_the_next_reading(
    world: FanoutWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost notification costs the time between two readings, five minutes."""
    assert rooms.REFRESH_S == 300
    monkeypatch.setattr(rooms, "REFRESH_S", 2.0)
    async with world.scheduler() as scheduler:
        await eventually_async(lambda: MODULE in scheduler.lists.modules, what="the first reading")
        await world.put_entities(["A"])
        await eventually_async(lambda: scheduler.counts["published"] == 1, 20, what="the new one is published")


async def test_without_a_connection_of_its_own_the_lists_are_read_every_ten_seconds(
    world: FanoutWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a pooler a scheduler gets no notifications and does not keep the long pause."""
    assert rooms.REFRESH_WITHOUT_WAKEUPS_S == 10
    monkeypatch.setattr(rooms, "REFRESH_WITHOUT_WAKEUPS_S", 2.0)
    async with world.scheduler(hears=False) as scheduler:
        await eventually_async(lambda: MODULE in scheduler.lists.modules, what="the first reading")
        await world.put_entities(["A"])
        await eventually_async(lambda: scheduler.counts["published"] == 1, 20, what="the new one is published")
