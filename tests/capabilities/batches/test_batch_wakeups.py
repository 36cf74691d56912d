"""Consumers of batches are woken by changes, and not by claims."""

import asyncio

from kit.claims import open_owners
from tickwright.capabilities.batches.executions.chunks_store import ChunksStore
from tickwright.capabilities.batches.executions.consumer import CHANNEL
from tickwright.store.pool import Pool, connect

BATCH = (
    "INSERT INTO tickwright.batches (name, kind, type, definition) VALUES ('b', 'program', 'MANUAL', '{}') RETURNING id"
)


async def test_a_claim_that_takes_nothing_wakes_no_consumer(pool: Pool, database_url: str) -> None:
    """Otherwise every idle consumer would wake all of them, itself included, which claim again, without end."""
    notified: asyncio.Queue[str] = asyncio.Queue()
    listening = await connect(database_url)
    await listening.add_listener(CHANNEL, lambda *said: notified.put_nowait(said[-1]))
    await open_owners(pool)
    store = ChunksStore(pool)
    for _ in range(3):
        assert await store.claim_execution(1, ["program"]) is None
        assert await store.claim_chunk(1, ["program"]) is None
    await pool.execute("SELECT pg_notify($1, 'last')", CHANNEL)
    assert await notified.get() == "last"
    await pool.execute("UPDATE tickwright.batches SET status = status")
    await pool.fetchval(BATCH)
    assert await notified.get() == ""
    await listening.close()
