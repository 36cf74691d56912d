"""A relay of polls as a separate process, to be killed or paused.

Run as ``python poll_relay_process.py DATABASE_URL BOOTSTRAP PREFIX LEASE_SECONDS [PROBE TIMES]``; kills itself at the
probe's ``TIMES``-th visit, if one is named.
"""

import asyncio
import sys
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kit.kafka_polls import BOUNDS, terms_of
from kit.probes import KillAt
from tickwright.capabilities.polling.relay.relay import PollRelay
from tickwright.domain.leases import LeaseTerms
from tickwright.engine.leases import Leases
from tickwright.ports.service import NO_PROBE
from tickwright.store.pool import open_pool
from tickwright.transports.kafka.transactions import KafkaLog


async def main(url: str, bootstrap: str, prefix: str, lease: str, *probe_at: str) -> None:
    """Relay until killed."""
    lease_s = float(lease)
    lease_terms = LeaseTerms(ttl=timedelta(seconds=lease_s), margin=timedelta(seconds=lease_s / 5))
    leases = Leases(await open_pool(url, max_size=4), owner="child", terms=lease_terms)
    terms = terms_of(bootstrap, prefix)
    topic = terms.topic("polls")
    probe = KillAt(probe_at[0], int(probe_at[1])) if probe_at else NO_PROBE
    await PollRelay(leases, KafkaLog(terms, topic), topic=topic, bounds=BOUNDS, terms=lease_terms, probe=probe).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
