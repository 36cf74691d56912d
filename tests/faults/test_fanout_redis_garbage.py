"""What somebody else wrote under our keys of Redis costs nothing but itself."""

import asyncpg
import pytest

from kit.redis_fanout import fresh_prefix, redis_link
from kit.servers import RedisServer
from tickwright.adapters.redis.runs import RedisRuns
from tickwright.capabilities.fanout.runs_in_two import RunsInTwo
from tickwright.capabilities.fanout.runs_store import LedgerRuns
from tickwright.store.pool import open_pool

WINDOW = 1_795_255_200
CURSOR = "SELECT last_window_at FROM tickwright.fanout_cursors WHERE entity_code = 'E1'"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("E2|LOCATIONS", "garbage"),
        ("E2|LOCATIONS", ""),
        ("E2|LOCATIONS", f"{WINDOW}|nan"),
        ("E2|LOCATIONS", f"{WINDOW}|inf"),
        ("E2|LOCATIONS", f"{10**30}|1.0"),
        ("E2|LOCATIONS", f"-1|{WINDOW}.5"),
        ("E%00|LOCATIONS", f"{WINDOW}|{WINDOW}.5"),
        ("E2|%00", f"{WINDOW}|{WINDOW}.5"),
    ],
)
async def test_a_success_that_nobody_of_us_wrote_stops_no_other(
    redis_server: RedisServer, database_url: str, field: str, value: str
) -> None:
    """It is dropped, with a line; the ledger hears of the others, and the consumer does not crash over it."""
    prefix = fresh_prefix()
    pool: asyncpg.Pool = await open_pool(database_url, max_size=2)
    async with redis_link(redis_server.url) as link:
        carry = f"{prefix}:carry"
        await link._client.hset(carry, mapping={field: value, "E1|LOCATIONS": f"{WINDOW}|{WINDOW}.5"})
        assert await RunsInTwo(RedisRuns(link, prefix=prefix), LedgerRuns(pool)).carry() == 0
        assert await link._client.hlen(carry) == 0
    assert (await pool.fetchval(CURSOR)).timestamp() == WINDOW
    await pool.close()
