"""An outbox relay as a separate process, to be killed or paused.

Run as ``python relay_process.py DATABASE_URL LEASE_SECONDS [PROBE]``; kills itself at the probe, if one is named.
"""

import asyncio
import sys
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kit.probes import KillAt
from kit.receivers import TARGETS
from tickwright.domain.leases import LeaseTerms
from tickwright.engine.leases import Leases
from tickwright.engine.outbox.relay import OutboxRelay
from tickwright.engine.outbox.table import ClaimBounds
from tickwright.engine.wakeup.connection import DirectConnection
from tickwright.ports.service import NO_PROBE
from tickwright.store.pool import open_pool
from tickwright.transports.http.broker import HttpBroker


async def main(url: str, lease_s: float, probe_name: str | None) -> None:
    """Relay until killed."""
    terms = LeaseTerms(ttl=timedelta(seconds=lease_s), margin=timedelta(seconds=lease_s / 5))
    leases = Leases(await open_pool(url, max_size=4), owner="child", terms=terms)
    broker = HttpBroker(allow=TARGETS)
    probe = KillAt(probe_name) if probe_name else NO_PROBE
    direct = DirectConnection(url)
    relay = OutboxRelay(
        leases, {"http": broker}, direct=direct, terms=terms, bounds=ClaimBounds(rows_per_lane=10), probe=probe
    )
    await asyncio.gather(direct.run(), relay.run())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None))
