"""The selector is killed and overtaken: each slot's minute is selected once, and late writes change nothing."""

import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from kit.forks import Child
from kit.leases import run_out
from kit.processes import kill_group, spawn
from kit.waiting import eventually_async
from kit.wheels import Wheels, check_each_once, open_wheels
from tickwright.capabilities.polling.wheels.loops import Selector

CHILD = Path(__file__).parents[3] / "kit" / "selector_process.py"
SOON = """
UPDATE tickwright.poll_slots SET next_due_at = date_trunc('minute', now()) + interval '10 minutes'
"""


@pytest.fixture
async def wheels(database_url: str) -> AsyncIterator[Wheels]:
    """Six hundred trackers on a wheel of six slots that are all due in one minute, soon."""
    async with open_wheels(database_url) as wheels:
        wheels.selector = Selector(ahead=timedelta(minutes=20))
        await wheels.account("a", 6)
        await wheels.register(600)
        await wheels.pool.execute(SOON)
        yield wheels


@contextmanager
def child(url: str, folder: Path, probe: str | None = None) -> Iterator[Child]:
    """Run a selector as a process; it is killed at the end."""
    process = spawn([sys.executable, str(CHILD), url, "2", *([probe] if probe else [])], folder / "selector.log")
    try:
        yield process
    finally:
        kill_group(process)


async def everything(wheels: Wheels) -> bool:
    """Return whether each of the six hundred was selected."""
    return len({row["id"] for row in await wheels.polls()}) == 600


@pytest.mark.matrix
@pytest.mark.parametrize("probe", ["selector.slot_not_committed", "selector.slot_selected"])
async def test_a_selector_killed_at_any_point_selects_each_poll_once(
    wheels: Wheels, tmp_path: Path, probe: str
) -> None:
    """After kill -9 inside the third slot's transaction, and after it, the next selector goes on exactly there."""
    with child(wheels.url, tmp_path, probe) as first:
        await eventually_async(lambda: first.poll() == -signal.SIGKILL, 20, what="the selector killed itself")
    kept = await wheels.pool.fetchval("SELECT count(*) FROM tickwright.poll_slots WHERE prev_due_at IS NOT NULL")
    assert kept == (2 if probe == "selector.slot_not_committed" else 3)
    with child(wheels.url, tmp_path):
        await eventually_async(lambda: everything(wheels), 30, what="another selector did the rest")
    polls = await wheels.polls()
    check_each_once(polls)
    assert len(polls) == await wheels.pool.fetchval("SELECT sum(selected) FROM tickwright.poll_slices")


async def test_a_selector_that_lost_its_lease_selects_nothing(wheels: Wheels) -> None:
    """Another selector holds a higher fence: the zombie's round changes nothing."""
    zombie = await wheels.lease("selector")
    await run_out(wheels.pool, "selector")
    heir = await wheels.lease("selector")
    await wheels.selector.round(zombie)
    assert await wheels.polls() == []
    await wheels.selector.round(heir)
    assert await everything(wheels)


async def test_a_selector_paused_past_its_lease_is_replaced_and_doubles_nothing(wheels: Wheels, tmp_path: Path) -> None:
    """SIGSTOP, another selector takes over, SIGCONT: each poll is selected once."""
    with child(wheels.url, tmp_path) as paused:
        await eventually_async(lambda: everything(wheels), 30, what="the first selector works")
        os.kill(paused.pid, signal.SIGSTOP)
        await wheels.pool.execute(SOON.replace("10 minutes", "15 minutes"))
        (tmp_path / "second").mkdir()
        with child(wheels.url, tmp_path / "second"):
            taken = "SELECT version FROM tickwright.job_config WHERE job_name = 'selector'"
            await eventually_async(lambda: _above(wheels, taken, 1), 20, what="the lease was taken over")
            os.kill(paused.pid, signal.SIGCONT)
            await eventually_async(lambda: _above(wheels, "SELECT sum(selected) FROM tickwright.poll_slices", 1199), 90)
    check_each_once(await wheels.polls())
    assert len(await wheels.polls()) == 1200


async def _above(wheels: Wheels, query: str, number: int) -> bool:
    return bool((await wheels.pool.fetchval(query) or 0) > number)
