"""A loan for each of 50,000 clients that can pay it back; one application for each of them.

Start it with ``python examples/loan_campaign/campaign.py``.
"""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg

from tickwright import Job, Tickwright, resource
from tickwright.embedded import ensure_reader

app = Tickwright(config=Path(__file__).with_name("tickwright.toml"))

LOANS = {
    "type": "MANUAL",  # AUTOMATIC has a date_time_execution and, where it comes again, restartable or cron
    "product_codes": ["LOAN"],
    "audience": {
        "source": "crm",
        "table": "clients",
        "key": "id",
        "fields": {"age": "int", "income": "double", "country": "string"},
        "columns": ["name"],
    },
    "expression": 'client.age > 25 && client.income > 3000 && client.country == "UK"',
    "action": {"target": "python:loan.apply"},
}
CLIENTS = """
    CREATE TABLE IF NOT EXISTS clients (id integer PRIMARY KEY, name text, age bigint, income float8, country text);
    CREATE TABLE IF NOT EXISTS applications (client_id integer UNIQUE, name text, product text);
    TRUNCATE clients, applications;
    INSERT INTO clients
    SELECT n, 'client ' || n, 18 + n * 7 % 60, n::bigint * 7919 % 9000, ('{UK,DE,FR,NL}'::text[])[1 + n % 4]
      FROM generate_series(1, 50000) AS n;
"""
APPLY = "INSERT INTO applications VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
calls: Counter[str] = Counter()


@app.lifespan
async def databases() -> AsyncIterator[dict[str, object]]:
    """Open the database with the applications, in each process that runs handlers."""
    async with asyncpg.create_pool(os.environ["LOANS_URL"], min_size=1, max_size=4) as loans:
        yield {"loans": loans}


@app.job("loan.apply", keep_history=False)
async def apply(
    _job: Job,
    client_id: str,
    client: dict[str, object],
    product_codes: list[str],
    loans: asyncpg.Pool = resource(),
) -> None:
    """Handle one client; a job like any other, so a crash may call it again."""
    await loans.execute(APPLY, int(client_id), client["name"], product_codes[0])
    calls[client_id] += 1


async def offer() -> None:
    """Register the campaign, execute it, and count its applications."""
    await app.put_campaign("loans", LOANS)
    execution_id = await app.start_campaign("loans")
    found = await app.campaigns.executions.get(execution_id)
    while found.finished_at is None or found.released < found.actions:
        await asyncio.sleep(0.1)
        found = await app.campaigns.executions.get(execution_id)
    print(f"execution {found.id}: {found.status}, {found.seen} clients in {found.chunks} chunks")
    while len(calls) < found.selected:  # noqa: ASYNC110  jobs come from outside
        await asyncio.sleep(0.1)
    made = await app.pool.fetchval("SELECT count(*) FROM applications")
    print(f"selected {found.selected}, applications {made}, twice {calls.total() - len(calls)}")


async def main() -> None:
    """Make the clients; run the roles that execute the campaign, release its actions, and do them."""
    async with app:
        os.environ["LOANS_URL"] = app.database.url
        await app.pool.execute(CLIENTS)
        # another server in real life, read as a plain role: a superuser is refused
        os.environ["CRM_URL"] = await asyncio.to_thread(ensure_reader, app.database.url, "crm_reader")
        working = asyncio.create_task(app.run_worker(roles=["scheduler", "campaign-consumer", "worker"]))
        await offer()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        print(
            "to go on by hand:", *(f"export {name}='{os.environ[name]}'" for name in ("CRM_URL", "LOANS_URL")), sep="\n"
        )


if __name__ == "__main__":
    asyncio.run(main())
