"""A process listens only while something in it waits, on one connection, that of its roles if it has roles."""

import asyncio

import asyncpg
import pytest

from kit.awaiting import ConnectGate
from kit.waiting import eventually_async
from tickwright.engine.wakeup import on_demand
from tickwright.engine.wakeup.connection import DirectConnection
from tickwright.engine.wakeup.on_demand import DirectAccess, OnDemandListener

LISTENING = "SELECT count(*) FROM pg_listening_channels()"


class Heard:
    """Counts what a listener reports."""

    def __init__(self) -> None:
        self.payloads: list[str] = []
        self.changes = 0

    def changed(self) -> None:
        """Count a change of the connection."""
        self.changes += 1

    def listener(self, access: DirectAccess) -> OnDemandListener:
        """Return a listener of ``here``."""
        return OnDemandListener(access, "here", self.payloads.append, self.changed)


async def test_a_program_without_roles_connects_for_its_users_only(
    database_url: str, other: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first use opens the connection, a moment without users closes it, the next use opens it again."""
    monkeypatch.setattr(on_demand, "LINGER_S", 0.05)
    gate, heard = ConnectGate(monkeypatch), Heard()
    listener = heard.listener(DirectAccess(database_url))
    for opened in (1, 2):
        with listener.used(), listener.used():
            await eventually_async(lambda: listener.works, what="it listens")
            await other.execute("NOTIFY here, 'x'")
            await eventually_async(lambda: len(heard.payloads) == opened, what="it is notified")  # noqa: B023
        await eventually_async(lambda: listener._serving is None, what="it is closed")
        assert (listener.works, gate.connected) == (False, opened)
    await listener.aclose()


async def test_a_use_that_follows_soon_finds_the_connection_open(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls one after the other share it."""
    gate = ConnectGate(monkeypatch)
    listener = Heard().listener(DirectAccess(database_url))
    for _ in range(3):
        with listener.used():
            await eventually_async(lambda: listener.works, what="it listens")
    assert gate.connected == 1
    await listener.aclose()
    assert listener._serving is None


async def test_a_process_with_roles_listens_on_their_connection(
    database_url: str, other: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens none, and listens no more after the last use."""
    monkeypatch.setattr(on_demand, "LINGER_S", 0.05)
    gate, heard = ConnectGate(monkeypatch), Heard()
    direct = DirectConnection(database_url)
    running = asyncio.create_task(direct.run())
    await eventually_async(lambda: direct.works, what="the roles' connection is open")
    listener = heard.listener(DirectAccess(database_url, direct))
    with listener.used():
        await eventually_async(lambda: listener.works, what="it listens")
        assert await direct.fetchval(LISTENING) == 1
        assert heard.changes, "what came before it listened is lost: users have to look"
        await other.execute("NOTIFY here, 'x'")
        await eventually_async(lambda: heard.payloads == ["x"], what="it is notified")
    await eventually_async(lambda: listener._serving is None, what="it listens no more")
    assert await direct.fetchval(LISTENING) == 0
    assert gate.connected == 1
    await listener.aclose()
    await direct.stop()
    await running


async def test_without_a_direct_url_it_does_not_listen() -> None:
    """Behind a pooler, or with notifications off."""
    listener = Heard().listener(DirectAccess(None))
    with listener.used():
        assert (listener.can_listen, listener.works, listener._serving) == (False, False, None)
    await listener.aclose()
