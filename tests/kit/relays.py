"""Shared by tests of the relay: a world of one database and one receiver, relays in it, and checks of the outbox."""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg

from kit.forks import Child
from kit.leases import LONG, run_out
from kit.processes import kill_group, spawn
from kit.receivers import TARGETS, HttpReceiver
from kit.waiting import eventually_async
from tickwright.domain.retries import RetryPolicy
from tickwright.engine.leases import Leases
from tickwright.engine.outbox.relay import LEASE, OutboxRelay
from tickwright.engine.outbox.table import Verdicts
from tickwright.engine.wakeup.connection import DirectConnection
from tickwright.store.pool import open_pool
from tickwright.transports.http.broker import HttpBroker
from tickwright.transports.postgres.broker import PostgresBroker

QUICK = RetryPolicy(base=timedelta(milliseconds=100), cap=timedelta(milliseconds=200))
_PROGRAM = Path(__file__).with_name("relay_process.py")
INSERT = "INSERT INTO tickwright.outbox (destination, key, payload) VALUES ($1, $2, $3) RETURNING id"


class RelayWorld:
    """One database, one receiver, brokers for ``http`` and ``pg``."""

    def __init__(self, url: str, pool: asyncpg.Pool, receiver: HttpReceiver) -> None:
        self.url, self.pool, self.receiver = url, pool, receiver
        self._direct: dict[OutboxRelay, DirectConnection] = {}
        http = HttpBroker(allow=TARGETS)
        self.brokers: dict[str, HttpBroker | PostgresBroker] = {"http": http, "pg": PostgresBroker(pool)}

    async def put(self, destination: str, key: str | None = None, payload: str = "{}") -> int:
        """Insert one message by plain SQL."""
        stored: int = await self.pool.fetchval(INSERT, destination, key, payload)
        return stored

    async def put_many(self, count: int, destination: str) -> set[str]:
        """Insert messages and return their message ids."""
        rows = await self.pool.fetch(
            "INSERT INTO tickwright.outbox (destination, payload) "
            "SELECT $1, '{}' FROM generate_series(1, $2) RETURNING id",
            destination,
            count,
        )
        return {f"out_{row['id']}" for row in rows}

    def relay(self, name: str = "relay", **options: Any) -> OutboxRelay:
        """Return a relay that is not started, with short waits."""
        leases = Leases(self.pool, owner=name, terms=options.get("terms", LONG))
        direct = DirectConnection(self.url)
        defaults: Mapping[str, Any] = {"direct": direct, "retry": QUICK, "lane_retry": QUICK}
        relay = OutboxRelay(leases, options.pop("brokers", self.brokers), **{**defaults, **options})
        self._direct[relay] = direct
        return relay

    @asynccontextmanager
    async def running(self, relay: OutboxRelay) -> AsyncIterator[OutboxRelay]:
        """Run a relay for the length of the block."""
        direct = self._direct.pop(relay)
        tasks = [asyncio.create_task(service.run()) for service in (direct, relay)]
        try:
            yield relay
        finally:
            await relay.stop()
            await direct.stop()
            await asyncio.gather(*tasks)

    def child(self, folder: Path, lease_s: float, probe: str | None = None) -> Child:
        """Start a relay as a separate process."""
        command = [sys.executable, str(_PROGRAM), self.url, str(lease_s), *([probe] if probe else [])]
        return spawn(command, folder / "relay.log")

    def ids(self) -> list[str]:
        """Return the message ids that the receiver has, in order."""
        return [one.id for one in self.receiver.received]

    async def left(self) -> int:
        """Return how many rows wait."""
        count: int = await self.pool.fetchval("SELECT count(*) FROM tickwright.outbox")
        return count

    async def dead(self) -> list[asyncpg.Record]:
        """Return the dead letters."""
        found: list[asyncpg.Record] = await self.pool.fetch("SELECT * FROM tickwright.outbox_dead ORDER BY id")
        return found

    async def emptied(self, within_s: float = 10) -> None:
        """Wait until no row waits."""

        async def empty() -> Any:
            return await self.left() == 0

        await eventually_async(empty, within_s, what="the outbox is empty")


@asynccontextmanager
async def relay_world(url: str) -> AsyncIterator[RelayWorld]:
    """A world for the length of the block."""
    pool = await open_pool(url, max_size=12)
    async with HttpReceiver() as receiver:
        world = RelayWorld(url, pool, receiver)
        yield world
        for broker in world.brokers.values():
            await broker.aclose()
    pool.terminate()


async def check_late_mark(world: RelayWorld) -> None:
    """L2: a relay that lost its lease, and has not noticed it, deletes nothing."""
    row_id = await world.put("pg:late")
    relay = world.relay()
    lease = await Leases(world.pool, owner="zombie", terms=LONG).take(LEASE)
    assert lease is not None
    await run_out(world.pool, LEASE)
    assert await Leases(world.pool, owner="heir", terms=LONG).take(LEASE) is not None
    assert lease.holds(), "it takes the lease for its own"
    await relay._mark(lease, Verdicts(sent=[row_id]))
    assert await world.left() == 1, "L2 broken: a late mark deleted the row"
    assert relay.counters.marks_lost == 1


def kill(child: Child) -> None:
    """``kill -9`` a child."""
    kill_group(child)
