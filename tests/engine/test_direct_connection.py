"""The direct connection of a process: several users of one channel, reopened when it ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from kit.waiting import eventually_async
from tickwright.engine.wakeup.connection import DirectConnection
from tickwright.engine.wakeup.listener import ArmedWakeup, WakeupListener

PID = "SELECT pid FROM pg_stat_activity WHERE query LIKE '%this-test%' AND pid <> pg_backend_pid()"


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[tuple[DirectConnection, asyncpg.Connection]]:
    """Yield a running connection, and one beside it."""
    direct, beside = DirectConnection(url), await asyncpg.connect(url)
    task = asyncio.create_task(direct.run())
    try:
        await eventually_async(lambda: direct.works, what="it is open")
        yield direct, beside
    finally:
        await direct.stop()
        await task
        await beside.close()


async def test_two_users_of_one_channel_hear_each_notification(database_url: str) -> None:
    """The end of one takes nothing from the other; LISTEN ends with the last one."""
    heard: list[str] = []

    def first(payload: str) -> None:
        heard.append(f"first {payload}")

    def second(payload: str) -> None:
        heard.append(f"second {payload}")

    async with opened(database_url) as (direct, beside):
        await direct.listen({"here": first})
        await direct.listen({"here": second})
        await beside.execute("NOTIFY here, 'both'")
        await eventually_async(lambda: len(heard) == 2)
        await direct.unlisten({"here": first})
        await beside.execute("NOTIFY here, 'one'")
        await eventually_async(lambda: len(heard) == 3)
        await direct.unlisten({"here": second})
        assert await direct.fetchval("SELECT count(*) FROM pg_listening_channels()") == 0
    assert sorted(heard) == ["first both", "second both", "second one"]


async def test_a_connection_that_ends_is_opened_again_with_its_channels(database_url: str) -> None:
    """Its users learn when it ends and when it is open again: notifications between are lost."""
    async with opened(database_url) as (direct, beside):
        event = WakeupListener(direct, "late").subscribe()  # listens from the next opening on
        wakeup = ArmedWakeup(direct, channel="here", lock=4711)
        await wakeup.listen()
        assert await wakeup.arm() == "new"
        wakeup.woken.clear()
        await beside.execute("SELECT pg_terminate_backend($1)", await direct.fetchval("SELECT pg_backend_pid()"))
        await eventually_async(lambda: wakeup.woken.is_set() and not wakeup.armed, what="told of its end")
        await eventually_async(lambda: direct.works, what="open again")
        await eventually_async(event.is_set, what="told of its opening")
        event.clear()
        await beside.execute("NOTIFY late")
        await eventually_async(event.is_set, what="the channel that was added while it was open")
        await beside.execute("NOTIFY here")
        await eventually_async(lambda: wakeup.notified, what="the channel of before")


async def test_a_wakeup_that_releases_its_lock_tells_who_relies_on_it(database_url: str) -> None:
    """Two sleepers: the second relies on the first one's lock, and takes it when the first one is awake."""
    async with opened(database_url) as (one, _), opened(database_url) as (two, _):
        first, second = (ArmedWakeup(direct, channel="here", lock=4712) for direct in (one, two))
        await first.listen()
        await second.listen()
        assert await first.arm() == "new"
        assert await second.arm() == "kept"
        assert second.relied
        second.woken.clear()
        await first.unlisten()
        await eventually_async(lambda: second.woken.is_set() and not second.relied)
        assert await second.arm() == "new"


@pytest.mark.mutant
async def test_the_suite_notices_a_lock_that_is_released_in_silence(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second sleeper would rely on a lock that no process has."""

    async def in_silence(wakeup: ArmedWakeup, *_locks: int) -> None:
        wakeup.held.clear()
        await wakeup._direct.fetchval("SELECT pg_advisory_unlock_all()")

    monkeypatch.setattr(ArmedWakeup, "disarm", in_silence)
    monkeypatch.setattr("kit.waiting.PATIENCE", 0.2)
    with pytest.raises(AssertionError, match="not within"):
        await test_a_wakeup_that_releases_its_lock_tells_who_relies_on_it(database_url)
