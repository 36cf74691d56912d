"""A producer of schedules as a separate process, to be killed or stopped; SIGTERM ends it.

``SCHEDULE_KILL_AT`` and ``SCHEDULE_STOP_AT`` name the probe where it kills or stops itself.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

sys.path.remove(str(Path(__file__).resolve().parent))  # its redis.py would hide the library
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kit.probes import KillAt
from kit.schedules import TERMS, ScheduleWorld, new_producer, schedule_world
from tickwright.engine.leases import LeasedRounds, Leases


class Witness:
    """A probe that kills or stops its own process."""

    def __init__(self) -> None:
        self._kill = KillAt(os.environ.get("SCHEDULE_KILL_AT", ""))
        self._stop_at = os.environ.get("SCHEDULE_STOP_AT")

    async def reached(self, name: str, /, **_facts: object) -> None:
        """Kill or stop the process if this is the point."""
        os.write(1, f"reached {name}\n".encode())
        await self._kill.reached(name)
        if name == self._stop_at:
            self._stop_at = None
            os.kill(os.getpid(), signal.SIGSTOP)


async def run(world: ScheduleWorld, stopping: asyncio.Event) -> None:
    """Produce until stopped."""
    leases = Leases(world.pool, owner=f"producer:{os.getpid()}", terms=TERMS)
    producer = new_producer(at_once=10, probe=Witness())
    rounds = LeasedRounds("campaign-producer", leases, producer.round, rest_max_s=0.2)
    work = asyncio.create_task(rounds.run())
    await stopping.wait()
    await rounds.quiesce()
    await work


async def main() -> None:
    """Run until stopped."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with schedule_world(os.environ["SCHEDULE_DATABASE"]) as world:
        await run(world, stopping)


asyncio.run(main())
