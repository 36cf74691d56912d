"""A notification wakes the leader of a group; others are woken only for what it has no room for."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from math import inf
from typing import Any
from unittest.mock import AsyncMock

import asyncpg
import pytest

from engine.test_direct_connection import opened
from kit.waiting import eventually_async
from tickwright.engine.claimed_work import ClaimedWork, Held
from tickwright.engine.tasks import is_set_within
from tickwright.engine.wakeup import listener
from tickwright.engine.wakeup.connection import DirectConnection
from tickwright.engine.wakeup.listener import LedWakeup, WakeupListener
from tickwright.engine.wakeup.turns import ROUND_S
from tickwright.ports.ids import database_seconds, record_database_time
from tickwright.ports.session import Place

CHANNEL = "work"


@dataclass
class Heartbeats:
    """What a session's heartbeats tell of one group; the rest of a session is not used here."""

    others: int = 0
    before: int = 0
    from_round: float = inf
    """The round in which it begins to have this rank; before, two others come first."""
    rank: int = 0

    def join(self, _group: str, _joins: Callable[[], bool]) -> Callable[[], Place | None]:
        """Return its place, as a heartbeat of this moment would: the test may take any time."""
        return lambda: Place(self.others, self.before, self._rank_in(now()), self._rank_in(now() + 1), now())

    def _rank_in(self, round_: int) -> int:
        return self.rank if round_ >= self.from_round else 2


def now() -> int:
    """Return the number of the present round."""
    return int((database_seconds() or 0.0) // ROUND_S)


@asynccontextmanager
async def group(url: str, size: int) -> AsyncIterator[tuple[list[LedWakeup], list[Any], asyncpg.Connection]]:
    """Yield the wake-ups of ``size`` processes, the first of which leads, what sets their places, and a connection."""
    wakeups: list[LedWakeup] = []
    beats: list[Heartbeats] = []
    async with AsyncExitStack() as stack:
        for _ in range(size):
            direct, beside = await stack.enter_async_context(opened(url))
            beats.append(Heartbeats(size - 1, len(beats)))
            wakeups.append(LedWakeup(direct, CHANNEL, beats[-1], "group"))  # type: ignore[arg-type]
            wakeups[-1].join(lambda: True)
            await direct.listen({CHANNEL: wakeups[-1]._notified})
        record_database_time(float(await beside.fetchval("SELECT date_part('epoch', clock_timestamp())")))
        beats[0].from_round = 0
        yield wakeups, beats, beside


async def heard(events: list[asyncio.Event], connection: asyncpg.Connection, wakeups: list[LedWakeup]) -> list[bool]:
    """Return which events are set, once all of what was sent before has arrived."""
    arrived = [asyncio.Event() for _ in wakeups]
    channels = [{"arrived": lambda _, event=event: event.set()} for event in arrived]
    for wakeup, channel in zip(wakeups, channels, strict=True):
        await wakeup._direct.listen(channel)
    await connection.execute("NOTIFY arrived")
    for event in arrived:
        await event.wait()
    for wakeup, channel in zip(wakeups, channels, strict=True):
        await wakeup._direct.unlisten(channel)
    return [event.is_set() for event in events]


async def test_a_notification_wakes_the_leader_and_no_other(database_url: str) -> None:
    """Statements per unit of work must not grow with the number of processes that wait for it."""
    async with group(database_url, 4) as (wakeups, _, connection):
        events = [wakeup.subscribe() for wakeup in wakeups]
        await connection.execute("NOTIFY work")
        assert await heard(events, connection, wakeups) == [True, False, False, False]


async def test_the_deputy_looks_later_than_the_leader(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader may be dead or stopped; what its deputy has no room for it passes on in the leader's place."""
    monkeypatch.setattr(listener, "DEPUTY_AFTER_S", 0.01)
    async with group(database_url, 3) as (wakeups, beats, connection):
        beats[1].from_round, beats[1].rank = 0, 1
        events = [wakeup.subscribe() for wakeup in wakeups]
        await connection.execute("NOTIFY work")
        await eventually_async(events[1].is_set)
        assert await heard(events, connection, wakeups) == [True, True, False]
        await wakeups[1].pass_on()
        assert await heard(events, connection, wakeups) == [True, True, True]


async def test_a_deputy_passes_nothing_on_where_the_leader_has(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a group without room would be asked twice."""
    monkeypatch.setattr(listener, "DEPUTY_AFTER_S", 3600.0)
    async with group(database_url, 3) as (wakeups, beats, connection):
        beats[2].from_round, beats[2].rank = 0, 1
        events = [wakeup.subscribe() for wakeup in wakeups]
        await connection.execute("NOTIFY work")
        assert await heard(events, connection, wakeups) == [True, False, False]
        await wakeups[0].pass_on()
        assert await heard(events, connection, wakeups) == [True, True, False]
        assert (pending := wakeups[2]._deputy_look) is not None  # noqa: RUF018
        pending.cancel()
        wakeups[2]._look_as_deputy()
        events[0].clear()
        await wakeups[2].pass_on()
        assert await heard(events, connection, wakeups) == [False, True, True]


async def test_a_deputy_looks_once_for_several_notifications(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its looks cost statements, and find nothing where the leader works."""
    monkeypatch.setattr(listener, "DEPUTY_AFTER_S", 3600.0)
    async with group(database_url, 2) as (wakeups, beats, connection):
        beats[1].from_round, beats[1].rank = 0, 1
        events = [wakeup.subscribe() for wakeup in wakeups]
        pending = []
        for _ in range(2):
            await connection.execute("NOTIFY work")
            assert await heard(events, connection, wakeups) == [True, False]
            pending.append(wakeups[1]._deputy_look)
    assert pending[0] is not None
    assert pending[0] is pending[1]
    pending[0].cancel()


async def test_a_process_without_room_wakes_the_next_one_until_each_was_asked(database_url: str) -> None:
    """And the last one wakes none: a full fleet does not ask itself in a circle."""
    async with group(database_url, 3) as (wakeups, _, connection):
        events = [wakeup.subscribe() for wakeup in wakeups]
        await connection.execute("NOTIFY work")
        for number, expected in enumerate(([True, False, False], [True, True, False], [True, True, True])):
            assert await heard(events, connection, wakeups) == expected
            await wakeups[number].pass_on()
        for event in events:
            event.clear()
        assert await heard(events, connection, wakeups) == [False] * 3


async def test_a_process_that_looked_for_itself_wakes_no_other(database_url: str) -> None:
    """Its own task has ended, for example: nothing new is there."""
    async with group(database_url, 2) as (wakeups, _, connection):
        events = [wakeup.subscribe() for wakeup in wakeups]
        await wakeups[0].pass_on()
        assert await heard(events, connection, wakeups) == [False, False]


async def test_a_process_that_had_room_for_the_group_wakes_no_other_later(database_url: str) -> None:
    """It is full when it looks again, because its own task has ended, and passes on what is not new."""
    async with group(database_url, 2) as (wakeups, _, connection):
        events = [wakeup.subscribe() for wakeup in wakeups]
        await connection.execute("NOTIFY work")
        assert await heard(events, connection, wakeups) == [True, False]
        events[0].clear()
        asyncio.get_running_loop().call_soon(events[0].set)
        await wakeups[0].wait(events[0], 3600.0)
        await wakeups[0].pass_on()
        assert await heard(events, connection, wakeups) == [True, False]


@pytest.mark.parametrize("payload", ["group", "group 1", "group 1 x", "group x 1", "other 1 5", "group 1 -1", "later"])
async def test_a_payload_of_others_wakes_no_process(database_url: str, payload: str) -> None:
    """Everyone who may connect to the database may notify."""
    async with group(database_url, 2) as (wakeups, _, connection):
        events = [wakeup.subscribe() for wakeup in wakeups]
        await connection.execute("SELECT pg_notify('work', $1)", payload)
        assert await heard(events, connection, wakeups) == [False, False]


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_process_looks_when_it_becomes_leader_or_deputy(
    database_url: str, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    """Work that was announced to two that are dead or stopped is found by the next ones."""
    monkeypatch.setattr(listener, "LATER_S", 0.05)
    async with group(database_url, 2) as (wakeups, beats, _):
        number = now()
        beats[1].from_round, beats[1].rank = number + 1, rank
        event = wakeups[1].subscribe()
        await wakeups[1].wait(event, 3600.0)
        assert not event.is_set()
        assert now() > number


async def test_a_process_that_is_neither_leader_nor_deputy_waits_for_no_due_instant(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process knows the next one, and only these two look then; the others look rarely."""
    monkeypatch.setattr(listener, "FOLLOW_S", 0.5)
    async with group(database_url, 3) as (wakeups, beats, _):
        beats[2].from_round, beats[2].rank = 0, 1
        ended: list[int] = []

        async def waits(number: int) -> None:
            await wakeups[number].wait(asyncio.Event(), 0.01)
            ended.append(number)

        await asyncio.gather(waits(1), waits(2), waits(0))
    assert ended == [0, 2, 1]


async def test_without_notifications_others_look_more_often(database_url: str) -> None:
    """Behind a pooler, a process that does not lead polls so that all of them together look every half second."""
    async with group(database_url, 2) as (wakeups, _, _):
        assert wakeups[1]._follow_s == listener.FOLLOW_S
        await wakeups[1]._direct.stop()
        await eventually_async(lambda: not wakeups[1].works)
        assert wakeups[1]._follow_s == 2 * listener.UNHEARD_S


class Recorded(WakeupListener):
    """Records what its loop asks for."""

    def __init__(self) -> None:
        super().__init__(DirectConnection(None), CHANNEL)
        self.asked: list[str] = []
        self.has_room: Callable[[], bool] = lambda: True

    def join(self, has_room: Callable[[], bool]) -> None:
        """Keep it."""
        self.has_room = has_room

    async def pass_on(self) -> None:
        """Record it."""
        self.asked.append("passed on")

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Record it, and end the wait at once."""
        self.asked.append(f"waits {seconds}")
        await asyncio.sleep(0)


class Work(ClaimedWork[int, Held[Any]]):
    """Finds nothing, and is full or not."""

    name = "work"
    owns_any_sql = "SELECT false"
    full = False

    @property
    def is_full(self) -> bool:
        """As the test says."""
        return self.full

    async def _claim_due(self) -> float:
        self.full = not self.full
        if len(self._wakeups.asked) >= 3:  # type: ignore[attr-defined]
            self.request_stop()
        return 7.0

    async def _release_unknown(self, _connection: Any, _owner: int) -> int:
        return 0

    async def _release(self, _held: Held[Any]) -> None: ...

    async def _ours(self, _held: Any) -> list[int]:
        return []


class Quiet(Heartbeats):
    """A session that is never lost."""

    def on_lost(self, _lost: Callable[[], None]) -> None: ...

    def add_gate(self, _gate: Any) -> None: ...


async def test_a_loop_passes_on_while_it_is_full_and_leaves_the_group() -> None:
    """After its look, so that it takes first what it has room for."""
    wakeups = Recorded()
    work = Work(Quiet(), wakeups, AsyncMock())  # type: ignore[arg-type]
    await work.run()
    assert wakeups.asked == ["passed on", "waits 7.0", "waits 7.0", "passed on", "waits 7.0"]
    work.full = True
    assert not wakeups.has_room()


MUTANTS: dict[str, tuple[str, Callable[..., Any], Callable[..., Any]]] = {
    "everyone is woken": (
        "_notified",
        lambda self, _: self.notify(),
        test_a_notification_wakes_the_leader_and_no_other,
    ),
    "no deputy looks": (
        "_notified",
        lambda self, _: self.notify() if self._turns.listens() else None,
        test_the_deputy_looks_later_than_the_leader,
    ),
    "nothing is passed on": (
        "pass_on",
        AsyncMock(),
        test_a_process_without_room_wakes_the_next_one_until_each_was_asked,
    ),
}


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS)
async def test_mutants(database_url: str, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    """Each one is caught by the test that names the promise."""
    name, changed, check = MUTANTS[mutant]
    monkeypatch.setattr(LedWakeup, name, changed)
    monkeypatch.setattr("kit.waiting.PATIENCE", 0.3)
    more = (monkeypatch,) if check is test_the_deputy_looks_later_than_the_leader else ()
    with pytest.raises(AssertionError):
        await check(database_url, *more)


@pytest.mark.mutant
async def test_a_mutant_that_waits_for_no_round(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is not told of its lead looks only after twenty seconds."""

    async def wait(_self: LedWakeup, event: asyncio.Event, seconds: float) -> None:
        await is_set_within(event, seconds)

    monkeypatch.setattr(LedWakeup, "wait", wait)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2 * ROUND_S):
            await test_a_process_looks_when_it_becomes_leader_or_deputy(database_url, monkeypatch, 0)
