"""One loop of the role ``scheduler`` as a separate process, to be killed or paused.

Run as ``python loop_process.py DATABASE_URL LOOP LEASE_SECONDS``.
"""

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kit.wheels import EVENTS
from tickwright.capabilities.jobs.retention import JobRetention
from tickwright.capabilities.polling.trackers.freshness import FreshnessJudge
from tickwright.capabilities.polling.wheels.loops import Corrector, Registrar
from tickwright.domain.leases import LeaseTerms
from tickwright.engine.leases import LeasedRounds, Leases
from tickwright.store.pool import open_pool


async def main(url: str, loop: str, lease_s: float) -> None:
    """Run it until killed."""
    terms = LeaseTerms(ttl=timedelta(seconds=lease_s), margin=timedelta(seconds=lease_s / 5))
    leases = Leases(await open_pool(url, max_size=4), owner=f"child:{os.getpid()}", terms=terms)
    rounds = {
        "registrar": Registrar().round,
        "corrector": Corrector(EVENTS).round,
        "freshness": FreshnessJudge().round,
        "upkeep": JobRetention().round,
    }
    await LeasedRounds(loop, leases, rounds[loop], terms=terms, rest_max_s=0.2).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
