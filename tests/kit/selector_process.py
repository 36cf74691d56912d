"""A selector as a separate process, to be killed or paused.

Run as ``python selector_process.py DATABASE_URL LEASE_SECONDS [PROBE]``; kills itself at the probe, if one is named.
"""

import asyncio
import sys
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kit.probes import KillAt
from tickwright.capabilities.polling.wheels.loops import Selector
from tickwright.domain.leases import LeaseTerms
from tickwright.engine.leases import LeasedRounds, Leases
from tickwright.ports.service import NO_PROBE
from tickwright.store.pool import open_pool


async def main(url: str, lease_s: float, probe_name: str | None) -> None:
    """Select until killed."""
    terms = LeaseTerms(ttl=timedelta(seconds=lease_s), margin=timedelta(seconds=lease_s / 5))
    leases = Leases(await open_pool(url, max_size=4), owner="child", terms=terms)
    probe = KillAt(probe_name, times=3) if probe_name else NO_PROBE
    selector = Selector(ahead=timedelta(minutes=20), probe=probe)
    await LeasedRounds("selector", leases, selector.round, terms=terms, rest_max_s=0.2).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None))
