"""The role of reports as a separate process, to be killed or stopped; it ends with a SIGTERM.

``REPORT_KILL_AT`` and ``REPORT_STOP_AT`` name the probe where it kills or stops itself; ``REPORT_POISON`` the listener
that kills its process.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

sys.path.remove(str(Path(__file__).resolve().parent))  # its redis.py would hide the library
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kit.probes import KillAt
from kit.report_faults import functions
from kit.reports import report_world
from tickwright.capabilities.reports.handlers import ReportRequest


class Witness:
    """A probe that kills or stops its own process."""

    def __init__(self) -> None:
        self._kill = KillAt(os.environ.get("REPORT_KILL_AT", ""))
        self._stop_at = os.environ.get("REPORT_STOP_AT")

    async def reached(self, name: str, /, **_facts: object) -> None:
        """Kill or stop the process if this is the point."""
        os.write(1, f"reached {name}\n".encode())
        await self._kill.reached(name)
        if name == self._stop_at:
            self._stop_at = None
            os.kill(os.getpid(), signal.SIGSTOP)


async def wait(name: str, _request: ReportRequest) -> None:
    """Kill the process, or take the time of the environment."""
    if name == os.environ.get("REPORT_POISON"):
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(float(os.environ.get("REPORT_TAKES_S", "0")))


async def main() -> None:
    """Run until stopped."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    url, folder = os.environ["REPORT_DATABASE"], Path(os.environ["REPORT_FOLDER"])
    redis = os.environ["REPORT_REDIS"] or None
    async with (
        report_world(url, folder, redis, redis_prefix=os.environ["REPORT_PREFIX"]) as world,
        world.process(functions(wait), probe=Witness()),
    ):
        await stopping.wait()


asyncio.run(main())
