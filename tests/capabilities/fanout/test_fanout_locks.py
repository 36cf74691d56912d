"""The order in which fan-out's statements lock rows: the same in all, so that none deadlocks another."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import asyncpg
import pytest
from psycopg import sql

from kit.redis_fanout import LONG, open_session
from kit.servers import PostgresServer
from kit.waiting import eventually_async
from tickwright.capabilities.fanout.consumer.run_claims import LedgerRunClaims
from tickwright.capabilities.fanout.scheduler.marks import LedgerMarks
from tickwright.domain.errors import Unavailable
from tickwright.ports.fanout import EntityWindow, Run, Success
from tickwright.store.migrate import migrate
from tickwright.store.pool import open_pool

WINDOW = 1_700_000_000
CODES = ["a", "B"]  # in this order in English, in the other one by their bytes, as the tables have it
SUCCESSES = [Success(code, "CDRS", WINDOW + 900, WINDOW + 900.0) for code in CODES]
PLACES = [EntityWindow(code, "TARIFFS", WINDOW) for code in CODES]


@pytest.fixture
async def english(pg_server: PostgresServer) -> AsyncIterator[asyncpg.Pool]:
    """A database that sorts like English, as many do, with one row of each table for each code."""
    name = f"e{secrets.token_hex(6)}"
    create = "CREATE DATABASE {} TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'"
    await asyncio.to_thread(pg_server.execute, sql.SQL(create).format(sql.Identifier(name)))
    url = pg_server.database_url(name)
    await asyncio.to_thread(migrate, url)
    async with await open_pool(url) as pool:
        assert await pool.fetchval("SELECT 'a' < 'B'")
        await LedgerRunClaims(pool).carry_over([one._replace(window_s=WINDOW) for one in SUCCESSES])
        await LedgerMarks(pool).claim(PLACES, "t", LONG)
        yield pool
    await asyncio.to_thread(pg_server.drop_database, name)


async def _begin(pool: asyncpg.Pool) -> None:
    runs = [Run(code, "CDRS", WINDOW + 900, 1) for code in CODES]
    await LedgerRunClaims(pool).begin(runs, await open_session(pool))


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("table", "write"),
    [
        ("fanout_cursors", _begin),
        ("fanout_cursors", lambda pool: LedgerRunClaims(pool).carry_over(SUCCESSES)),
        ("fanout_claims", lambda pool: LedgerMarks(pool).claim(PLACES, "t", LONG)),
        ("fanout_claims", lambda pool: LedgerMarks(pool).seal(PLACES, "t", keep=LONG)),
        ("fanout_claims", lambda pool: LedgerMarks(pool).release(PLACES, "t")),
    ],
)
async def test_rows_are_locked_in_the_order_of_their_key_whatever_the_language(
    english: asyncpg.Pool, table: str, write: Callable[[asyncpg.Pool], Awaitable[object]]
) -> None:
    """Another transaction holds the first row: the statement waits for it and has none of the others yet."""
    lock = f"SELECT FROM tickwright.{table} WHERE entity_code = $1 FOR UPDATE NOWAIT"
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
    async with english.acquire() as gate, gate.transaction():
        await gate.execute(lock, "B")
        writing = asyncio.ensure_future(write(english))
        await eventually_async(lambda: gate.fetchval(waiting), what="the statement waits")
        await gate.execute(lock, "a")
    with suppress(Unavailable):
        await writing
