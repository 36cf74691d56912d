"""A storm of faults over fan-out, the checker that says whether F1 and F2 held, and tests of that checker."""

import secrets
from dataclasses import replace

import pytest

from kit.fanout_storm import CODES, Call, FanoutStorm, History, Strike, Task, Win, complaints
from kit.fanout_worlds import Worlds
from kit.servers import RedisServer
from kit.tcp_proxy import TcpProxy

pytestmark = pytest.mark.storm

STRIKES = {
    "redis": ("consumer", "scheduler", "zombie", "flush", "scheduler", "reset", "consumer", "zombie", "scheduler"),
    "postgres": ("consumer", "scheduler", "reset", "zombie", "scheduler"),
}
A1, A2 = Task("A", "LOCATIONS", 3), Task("A", "LOCATIONS", 6)
SOUND = History(
    expected=[A1, A2],
    calls=[Call(A1, 1, 10.0, 11.0), Call(A2, 2, 12.0, 13.0)],
    wins=[Win(A1, 1), Win(A2, 2)],
    confirmed=[(A1, 1), (A2, 2)],
    lengths_s={"LOCATIONS": 3},
)


@pytest.fixture
def redis_server(mortal_redis: RedisServer) -> RedisServer:
    """The worlds of this module have a Redis that tests may flush."""
    return mortal_redis


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", STRIKES)
async def test_a_storm_breaks_no_promise(worlds: Worlds, kind: str) -> None:
    """F1 and F2 over windows of two and three seconds, with a fault in a process or server every few seconds."""
    number = secrets.randbelow(1_000_000)
    print(f"chances from seed {number}")  # noqa: T201  shown when the test fails
    world = await worlds.make(kind)
    async with TcpProxy("127.0.0.1", worlds.rabbit.port) as proxy:
        storm = FanoutStorm(world, proxy, worlds.folder, number)
        async with storm.raging():
            for what in STRIKES[kind]:
                await storm.strike(what)
            await storm.calm_down()
            history = await storm.history()
    assert complaints(history) == []
    assert len(history.expected) >= 8 * len(CODES), "too little happened"
    won = {win.task for win in history.wins}
    assert len(won & set(history.expected)) >= len(history.expected) // 2, "most windows should have run"


# ---------------------------------------------------------------------------------------------- the checker itself


def test_a_sound_history_has_no_complaints() -> None:
    """Also with a zombie's call whose end was refused, and one that was cut off."""
    assert complaints(SOUND) == []
    zombie, cut = Call(A1, 7, 10.5, 12.5), Call(A2, 8, 12.0, None)
    assert complaints(replace(SOUND, calls=[*SOUND.calls, zombie, cut])) == []


def test_an_injected_duplicate_is_found() -> None:
    """A second call of the same task whose end was taken, in the calls or in the ledger."""
    again = Call(A1, 7, 20.0, 21.0)
    doubled = replace(SOUND, calls=[*SOUND.calls, again], confirmed=[*SOUND.confirmed, (A1, 7)])
    assert complaints(doubled) == [f"F1 broken: {A1} ran 2 times with effect"]
    written = replace(SOUND, calls=[*SOUND.calls, again], wins=[*SOUND.wins, Win(A1, 7)])
    assert [one[:10] for one in complaints(written)] == ["F1 broken:"] * 2


def test_an_injected_overlap_is_found() -> None:
    """Two windows of one entity and module at once."""
    early = replace(SOUND, calls=[SOUND.calls[0], Call(A2, 2, 10.9, 13.0)])
    assert complaints(early) == [f"F1 broken: {A1} and {A2} overlap"]


def test_an_injected_step_back_is_found() -> None:
    """The ledger's windows go forward only."""
    assert len(complaints(replace(SOUND, wins=[Win(A2, 2), Win(A1, 1)]))) == 1


def test_an_injected_loss_is_found() -> None:
    """A window that was not run, dropped or missed; and a success that the ledger does not have."""
    lost = replace(SOUND, calls=SOUND.calls[:1], wins=SOUND.wins[:1], confirmed=SOUND.confirmed[:1])  # type: ignore[index]
    assert complaints(lost) == [f"F2 broken: {A2} is lost"]
    assert complaints(replace(lost, dropped=[A2])) == []
    assert complaints(replace(lost, missed=[A2])) == [f"F2 broken: {A2} is lost"], "nothing had struck"
    assert complaints(replace(lost, missed=[A2], strikes=[Strike(7.0, 8.0)])) == []
    assert complaints(replace(SOUND, wins=SOUND.wins[:1], dropped=[A2])) == [
        f"F2 broken: {A2} ran, and the ledger does not know"
    ]
