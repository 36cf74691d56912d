"""Shared by tests of publish marks and run claims: own prefixes and sessions, and stores over both servers."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

import asyncpg

from tickwright.capabilities.fanout.consumer.run_claims import LedgerRunClaims
from tickwright.ports.fanout import HeldRun, Run, RunClaim, RunClaims, RunStart
from tickwright.store.pool import open_pool
from tickwright.transports.redis.connection import RedisClient
from tickwright.transports.redis.stores import RedisRunClaims

OPEN = (
    "INSERT INTO tickwright.workers (id, name, roles, version, lease_until) "
    "VALUES (nextval('tickwright.fence_seq'), 'test', '{fanout}', '0', clock_timestamp() + interval '1 hour') "
    "RETURNING id"
)
LOSE = "UPDATE tickwright.workers SET lost_at = clock_timestamp() WHERE id = $1"
LONG, BRIEF = timedelta(seconds=60), timedelta(milliseconds=60)


def fresh_prefix() -> str:
    """Return an unused prefix of keys."""
    return f"test-{uuid4().hex}"


async def open_session(pool: asyncpg.Pool) -> int:
    """Register a session that lives for an hour; return its token."""
    token: int = await pool.fetchval(OPEN)
    return token


async def begin_one(store: RunClaims, run: Run, owner: int) -> RunClaim:
    """Claim one run."""
    [begun] = await store.begin([run], owner)
    return begun


async def start_of(store: RunClaims, run: Run, owner: int) -> RunStart:
    """Claim one run; return the result."""
    return (await begin_one(store, run, owner)).start


async def end_one(
    store: RunClaims, run: Run, begun: RunClaim, owner: int, *, error: str | None = None, released: bool = False
) -> bool:
    """Write the end of one run."""
    [is_counted] = await store.end([HeldRun(run, begun, error, released)], owner)
    return is_counted


@dataclass
class RunStore:
    """A store of run claims, a second client of it, and two live sessions."""

    name: str
    store: RunClaims
    other: RunClaims
    owners: Sequence[int]
    pool: asyncpg.Pool


@asynccontextmanager
async def run_store(
    name: str, redis_url: str, database_url: str, *, lease: timedelta = LONG
) -> AsyncIterator[RunStore]:
    """Open the store ``redis`` or ``ledger``, twice."""
    pool, second = await open_pool(database_url, max_size=4), await open_pool(database_url, max_size=4)
    links = [RedisClient(redis_url), RedisClient(redis_url)]
    prefix = fresh_prefix()
    owners = [await open_session(pool) for _ in range(2)]
    try:
        if name == "redis":
            one, two = (RedisRunClaims(link, prefix=prefix, lease=lease) for link in links)
            yield RunStore(name, one, two, owners, pool)
        else:
            yield RunStore(name, LedgerRunClaims(pool), LedgerRunClaims(second), owners, pool)
    finally:
        for link in links:
            await link.aclose()
        await pool.close()
        await second.close()


@asynccontextmanager
async def redis_link(url: str) -> AsyncIterator[RedisClient]:
    """A client that is closed at the end."""
    link = RedisClient(url)
    try:
        yield link
    finally:
        await link.aclose()
