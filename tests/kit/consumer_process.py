"""A consumer process for kill tests: partners are called by HTTP, as configured; until a SIGTERM."""

import asyncio
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kit.consumers import running_consumer
from kit.kafka_consumers import kafka_source
from kit.probes import KillAt
from tickwright.capabilities.polling.consumer.queue import QueueSource
from tickwright.domain.leases import LeaseTerms
from tickwright.ports.service import NO_PROBE


async def main() -> None:
    """Consume until stopped."""
    ttl = timedelta(seconds=float(os.environ["CONSUMER_LEASE_S"]))
    kill_at = os.environ["CONSUMER_KILL_AT"]
    probe = KillAt(kill_at, int(os.environ["CONSUMER_KILL_TIMES"])) if kill_at else NO_PROBE
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    bootstrap, prefix = os.environ["CONSUMER_KAFKA"], os.environ["CONSUMER_KAFKA_PREFIX"]
    source_of = kafka_source(bootstrap, prefix) if bootstrap else QueueSource
    terms, url = LeaseTerms(ttl, ttl / 5), os.environ["CONSUMER_URL"]
    async with running_consumer(url, terms=terms, probe=probe, source_of=source_of):
        await stopping.wait()


asyncio.run(main())
