"""The outcomes of a module's windows in the API, counted by consumers that took real messages."""

from collections.abc import AsyncIterator

import pytest

from kit.fanout import MODULE, FanoutWorld, Hub, fanout_world
from kit.servers import RabbitServer
from kit.waiting import eventually_async
from tickwright.capabilities.fanout.entities.modules import Modules
from tickwright.capabilities.fanout.windows import Window
from tickwright.partners.outcomes import Failed

DAY = 86_400
STALE = """
INSERT INTO tickwright.alerts (rule, subject, severity, summary, state, facts)
VALUES ('fanout_stale', $1, 'warning', '', 'firing', '{"count": 3}'),
       ('fanout_stale', 'X', 'warning', '', 'firing', '{"count": 5}')
"""


@pytest.fixture
async def world(database_url: str, rabbit_server: RabbitServer) -> AsyncIterator[FanoutWorld]:
    """A world with windows of a day."""
    async with fanout_world(database_url, rabbit_server.url, None) as world:
        await world.put_module(interval_s=DAY)
        yield world


async def test_a_modules_last_windows_are_shown_with_their_counts(world: FanoutWorld) -> None:
    """The current one and three before it, also empty ones; older ones are not shown."""
    await world.put_entities(["A", "B"], "locations")
    await world.put_entities(["C"], "TARIFFS")
    now = await world.window(DAY)
    before = Window(now.start_s - 2 * DAY, DAY)
    long_ago = Window(now.start_s - 4 * DAY, DAY)
    hub = Hub(fails={"B": Failed("HTTP 500")})
    async with world.consumer({MODULE: hub}) as consumer:
        await world.put_task("A", window=now)
        await eventually_async(lambda: consumer.counts["succeeded"] == 1, what="it ran")
        await world.put_task("A", window=now)
        await world.put_task("B", window=now)
        for window in (before, before, long_ago):
            await world.put_task("A", window=window)
        await eventually_async(
            lambda: (consumer.counts["superseded"], consumer.counts["expired"]) == (1, 3), what="all were taken"
        )
        await eventually_async(lambda: consumer.counts["failed"] >= 1, what="one failed")
    shown = await Modules(world.pool).show(MODULE)
    windows = shown.windows
    assert [window.window_at.timestamp() for window in windows] == [now.start_s - n * DAY for n in range(4)]
    assert (windows[0].succeeded, windows[0].superseded, windows[0].expired) == (1, 1, 0)
    assert windows[0].failed == consumer.counts["failed"]
    assert [window.expired for window in windows] == [0, 0, 2, 0]
    assert (shown.entities, shown.entities_stale, shown.every) == (2, 0, "1d")


async def test_stale_entities_are_those_of_the_alert(world: FanoutWorld) -> None:
    """The query makes no pass over the ledger: the rule made one within the last minute."""
    await world.pool.execute(STALE, MODULE)
    assert (await Modules(world.pool).show(MODULE)).entities_stale == 3
    await world.pool.execute("UPDATE tickwright.alerts SET state = 'resolved', resolved_at = now()")
    assert (await Modules(world.pool).show(MODULE)).entities_stale == 0
