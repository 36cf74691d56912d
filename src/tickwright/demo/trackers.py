"""The example's trackers: twenty thousand shipments of forty accounts at three couriers, polled every few minutes."""

import json

from tickwright.store.pool import Pool
from tickwright.store.queries import load

_SQL = load("tickwright.demo.sql", "world.sql")
TRACKERS = 20_000
ACCOUNTS = 40
INTERVALS_MINUTES = (4, 5, 6, 10)
COURIERS = {"slow": 3, "strict": 1, "moody": 2}
"""How many of six shipments each courier carries."""

TERMS = {
    "slow": {"rate": "60/s", "concurrency": 40, "timeout": "5s"},
    "strict": {"rate": "20/s", "concurrency": 10, "timeout": "2s"},
    "moody": {"rate": "60/s", "concurrency": 20, "timeout": "2s", "breaker": {"open": "2s", "open_max": "10s"}},
}


async def register_trackers(pool: Pool, port: int) -> None:
    """Register the couriers' current addresses and, once, the shipments."""
    for name, terms in TERMS.items():
        http = {"url": f"http://127.0.0.1:{port}/couriers/{name}/{{external_id}}", "status": "status"}
        await pool.execute(_SQL["put_partner"], name, json.dumps({**terms, "http": http}))
    if await pool.fetchval(_SQL["has_trackers"]):
        return
    for number in range(ACCOUNTS):
        minutes = INTERVALS_MINUTES[number % len(INTERVALS_MINUTES)]
        await pool.execute(_SQL["put_account"], f"account-{number:02}", minutes)
    names = [name for name, share in COURIERS.items() for _ in range(share)]
    await pool.execute(_SQL["register"], ACCOUNTS, names, TRACKERS)
