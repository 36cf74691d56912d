"""A1: alerts about the producer and the consumer side while their processes are dead, and after they work again."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from kit.alerts import RULES
from kit.consumers import running_consumer, seed
from kit.leases import LONG
from kit.processes import kill_group, spawn
from kit.waiting import eventually_async
from kit.wheels import REGISTER, Wheels
from tickwright import Answer, Poll
from tickwright.capabilities.operations.alerts.alerting import Alerting
from tickwright.engine.leases import Leases

PROGRAM = Path(__file__).parents[3] / "kit" / "loop_process.py"
AT_ONCE = tuple(
    replace(rule, bounds=tuple(timedelta() if isinstance(bound, timedelta) else bound for bound in rule.bounds))
    for rule in RULES
    if rule.name in {"config_time_miss", "polls_wait"}
)


@contextmanager
def registrar(url: str, folder: Path) -> Iterator[None]:
    """Run a registrar as a process; it is killed at the end."""
    child = spawn([sys.executable, str(PROGRAM), url, "registrar", "2"], folder / "registrar.log")
    try:
        yield
    finally:
        kill_group(child)


async def until(wheels: Wheels, rule: str, *states: str) -> None:
    """Evaluate the rules until the alerts of one are in these states, oldest first."""
    loop = Alerting(Leases(wheels.pool, owner="test"), rules=AT_ONCE)
    lease = await Leases(wheels.pool, owner="judge", terms=LONG).take("alerting")
    assert lease is not None

    async def in_states() -> bool:
        await loop.round(lease)
        rows = await wheels.pool.fetch("SELECT state FROM tickwright.alerts WHERE rule = $1 ORDER BY id", rule)
        return tuple(row["state"] for row in rows) == states

    await eventually_async(in_states, 60, what=f"{rule} is {states}")
    await lease.release()


async def test_trackers_that_no_registrar_places_raise_config_time_miss(wheels: Wheels, tmp_path: Path) -> None:
    """It is resolved once another one has placed them, and fires again when that one is killed, too."""
    await wheels.account("a", 6)
    with registrar(wheels.url, tmp_path):
        await wheels.pool.execute(REGISTER, "a", "dhl", "X", 50)
        await eventually_async(lambda: _are_placed(wheels, 50), 60, what="the registrar works")
        await until(wheels, "config_time_miss")
    await wheels.pool.execute(REGISTER, "a", "dhl", "Y", 50)
    await until(wheels, "config_time_miss", "firing")
    with registrar(wheels.url, tmp_path):
        await until(wheels, "config_time_miss", "resolved")
    assert await _are_placed(wheels, 100)
    await wheels.pool.execute(REGISTER, "a", "dhl", "Z", 50)
    await until(wheels, "config_time_miss", "resolved", "firing")


async def test_polls_that_no_consumer_takes_raise_polls_wait(wheels: Wheels) -> None:
    """It fires for the partner, and is resolved when a consumer works again."""

    async def moving(_poll: Poll) -> Answer:
        return Answer("moving")

    await seed(wheels.pool, 50, due="now() - interval '10 seconds'")
    await wheels.pool.execute("UPDATE tickwright.partners SET promised_since = now() - interval '1 day'")
    await until(wheels, "polls_wait", "firing")
    async with running_consumer(wheels.url, functions={"acme": moving}, terms=LONG):
        await until(wheels, "polls_wait", "resolved")


async def _are_placed(wheels: Wheels, count: int) -> bool:
    return bool(await wheels.pool.fetchval("SELECT count(*) FROM tickwright.trackers") == count)
