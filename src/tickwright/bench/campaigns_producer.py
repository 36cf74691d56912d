"""One of the producers of ``bench campaigns``: it takes the lease as held, although the others do so too, and works.

``python -m tickwright.bench.campaigns_producer`` with ``BENCH_DATABASE_URL``; prints how many executions it made in
how many rounds. It begins when all of them are there.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tickwright.capabilities.batches.executions.producer import BatchSource
from tickwright.engine.occurrences import OccurrenceProducer
from tickwright.store.pool import Connection, Pool, open_pool
from tickwright.store.queries import load

AT_ONCE = 5
"""Campaigns of one round: few, so that all of them meet at the same rows again and again."""

SQL = load("tickwright.bench.sql", "campaigns.sql")


class NoLease:
    """A :class:`tickwright.ports.session.HeldLease` without a lease: only the rows keep two producers apart."""

    fence = 0

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def holds(self) -> bool:
        """Return that the lease is held."""
        return True

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection | None]:
        """Open a transaction like any other."""
        async with self._pool.acquire() as connection, connection.transaction():
            yield connection


async def main() -> None:
    """Produce until nothing is due."""
    pool = await open_pool(os.environ["BENCH_DATABASE_URL"], max_size=1)
    try:
        async with pool.acquire() as connection:
            await connection.execute(SQL["wait_start"])
        producer, lease, rounds = OccurrenceProducer((BatchSource(),), at_once=AT_ONCE), NoLease(pool), 1
        while not await producer.round(lease):
            rounds += 1
    finally:
        pool.terminate()
    sys.stdout.write(f"{producer.counts['executions']} {rounds}\n")


if __name__ == "__main__":
    asyncio.run(main())
