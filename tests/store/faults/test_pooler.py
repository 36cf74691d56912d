"""Behind PgBouncer, where sessions have no settings: a process that freezes in a transaction keeps nothing locked."""

import asyncpg
import pytest

from kit.pgbouncer import PgBouncer
from tickwright.store import pool as store_pool
from tickwright.store.pool import open_pool

SEEN = "UPDATE tickwright.installation SET created_at = created_at"


async def _takes_over(pgbouncer: PgBouncer, database_url: str, *, within: str) -> None:
    """A transaction that holds a row and sends nothing more loses it to a transaction that waits."""
    pool = await open_pool(pgbouncer.database_url(database_url.rpartition("/")[2]), max_size=1, behind_pooler=True)
    other = await asyncpg.connect(database_url)
    connection = await pool.acquire()
    await connection.transaction().start()
    await connection.execute(SEEN)
    try:
        await other.execute(f"SET lock_timeout = '{within}'; {SEEN}")
    finally:
        await other.close()
        pool.terminate()


async def test_a_frozen_transaction_behind_a_pooler_ends(pgbouncer: PgBouncer, database_url: str) -> None:
    """As one of a direct connection does: each transaction sets its own bound."""
    await _takes_over(pgbouncer, database_url, within="30s")


async def test_the_suite_notices_transactions_without_their_bound(
    pgbouncer: PgBouncer, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant of the guard: the row stays locked."""
    monkeypatch.setattr(store_pool, "IN_TRANSACTIONS", "")
    with pytest.raises(asyncpg.LockNotAvailableError):
        await _takes_over(pgbouncer, database_url, within="6s")
