"""A consumer, a producer or a checker of batches as a separate process, to be killed or stopped; SIGTERM ends it.

``BATCH_ROLE`` is its role; ``BATCH_KILL_AT`` and ``BATCH_STOP_AT`` name the probe where it kills or stops itself,
``BATCH_TIMES`` at which visit.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

sys.path.remove(str(Path(__file__).resolve().parent))  # its redis.py would hide the library
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kit.batches import TERMS, BatchWorld, Numbers, batch_world, new_producer
from kit.probes import KillAt
from tickwright.capabilities.batches.executions.checker import Checker
from tickwright.engine.leases import LeasedRounds, Leases

MEMBERS = 60


class Witness:
    """A probe that kills or stops its own process."""

    def __init__(self) -> None:
        times = int(os.environ.get("BATCH_TIMES", "1"))
        self._kill = KillAt(os.environ.get("BATCH_KILL_AT", ""), times)
        self._stop_at, self._left = os.environ.get("BATCH_STOP_AT"), times

    async def reached(self, name: str, /, **_facts: object) -> None:
        """Kill or stop the process if this is the point."""
        os.write(1, f"reached {name}\n".encode())
        await self._kill.reached(name)
        if name == self._stop_at:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGSTOP)


async def run(world: BatchWorld, role: str, stopping: asyncio.Event) -> None:
    """Run one role until stopped."""
    probe = Witness()
    if role == "consumer":
        await world.process(Numbers(members=MEMBERS), at_once=1, probe=probe)
        await stopping.wait()
        return
    one = new_producer(probe=probe) if role == "producer" else Checker(probe=probe)
    leases = Leases(world.pool, owner=f"{role}:{os.getpid()}", terms=TERMS)
    rounds = LeasedRounds(f"campaign-{role}", leases, one.round, rest_max_s=0.2)
    work = asyncio.create_task(rounds.run())
    await stopping.wait()
    await rounds.quiesce()
    await work


async def main() -> None:
    """Run until stopped."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with batch_world(os.environ["BATCH_DATABASE"]) as world:
        await run(world, os.environ["BATCH_ROLE"], stopping)


asyncio.run(main())
