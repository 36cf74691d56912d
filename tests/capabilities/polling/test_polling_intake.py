"""A registration wakes the registrar, which otherwise looks every ten seconds."""

import asyncio
from functools import partial

import pytest

from kit.waiting import eventually_async
from kit.wheels import REGISTER, Wheels, open_wheels
from tickwright.capabilities.polling.wheels import loops
from tickwright.capabilities.polling.wheels.loops import INTAKE_CHANNEL, INTAKE_LOCK, Registrar
from tickwright.engine.leases import TERMS, LeasedRounds
from tickwright.engine.wakeup.connection import DirectConnection
from tickwright.engine.wakeup.listener import ArmedWakeup

NEVER_S = 3600.0
PLACED = "SELECT count(*) FROM tickwright.trackers"


async def _placed_by_a_registration(url: str, monkeypatch: pytest.MonkeyPatch, drop: str = "") -> None:
    monkeypatch.setattr(loops, "INTAKE_IDLE_S", NEVER_S)
    async with open_wheels(url) as wheels:
        await wheels.account("a", 10)
        if drop:
            await wheels.pool.execute(drop)
        direct = DirectConnection(url)
        armed = ArmedWakeup(direct, channel=INTAKE_CHANNEL, lock=INTAKE_LOCK)
        rounds = LeasedRounds(
            "registrar", wheels.leases, Registrar().round, terms=TERMS, rest_max_s=NEVER_S, armed=armed
        )
        tasks = [asyncio.create_task(one.run()) for one in (direct, rounds)]
        try:
            for count in (1, 2):
                await eventually_async(lambda: armed.armed, what="it sleeps")
                await _insert(wheels, count)
                await eventually_async(partial(_has_placed, wheels, count), what="it is placed")
        finally:
            await rounds.stop()
            await direct.stop()
            await asyncio.gather(*tasks)


async def _insert(wheels: Wheels, number: int) -> None:
    await wheels.pool.execute(REGISTER, "a", "dhl", f"AWB{number}-", 1)


async def _has_placed(wheels: Wheels, count: int) -> bool:
    return bool(await wheels.pool.fetchval(PLACED) == count)


async def test_a_registration_wakes_the_registrar(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the second one, after it has fallen asleep again."""
    await _placed_by_a_registration(database_url, monkeypatch)


@pytest.mark.mutant
async def test_the_suite_notices_registrations_that_do_not_notify(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tracker would wait for the next look."""
    monkeypatch.setattr("kit.waiting.PATIENCE", 0.3)
    with pytest.raises(AssertionError, match="it is placed"):
        await _placed_by_a_registration(
            database_url, monkeypatch, drop="DROP TRIGGER notify_of_tracker ON tickwright.tracker_intake"
        )
