"""The bank's entries and our ledger's, compared and repaired; a second run finds nothing to do.

Start it with ``python examples/reconciliation/ledger.py``.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg

from tickwright import BatchChunk, Tickwright, resource
from tickwright.embedded import ensure_reader

app = Tickwright(config=Path(__file__).with_name("tickwright.toml"))

ENTRIES = {"source": "bank", "table": "bank_entries", "key": "id", "fields": {"cents": "int"}}
OURS = "SELECT id, cents FROM ledger_entries WHERE id = ANY ($1::integer[])"
REPAIR = """
    INSERT INTO ledger_entries SELECT * FROM unnest($1::integer[], $2::bigint[])
    ON CONFLICT (id) DO UPDATE SET cents = excluded.cents
"""
TABLES = """
    CREATE TABLE IF NOT EXISTS bank_entries (id integer PRIMARY KEY, cents bigint NOT NULL);
    CREATE TABLE IF NOT EXISTS ledger_entries (id integer PRIMARY KEY, cents bigint NOT NULL);
    TRUNCATE bank_entries, ledger_entries;
    INSERT INTO bank_entries SELECT n, n * 31 % 100000 FROM generate_series(1, 20000) AS n;
    INSERT INTO ledger_entries SELECT id, cents + (id % 1000 = 0)::integer FROM bank_entries WHERE id % 700 > 0;
"""


@app.lifespan
async def databases() -> AsyncIterator[dict[str, object]]:
    """Open our own tables, in each process that works on chunks."""
    async with asyncpg.create_pool(os.environ["LEDGER_URL"], min_size=1, max_size=4) as ledger:
        yield {"ledger": ledger}


@app.batch("ledger.reconcile", audience=ENTRIES)  # with cron="0 3 * * *" it runs every night
async def reconcile(chunk: BatchChunk, ledger: asyncpg.Pool = resource()) -> None:
    """Compare one chunk of the bank's entries with ours, and take theirs where they differ."""
    theirs = {int(entry.id): entry.fields["cents"] async for entry in chunk.members()}
    rows = await ledger.fetch(OURS, list(theirs))
    ours = {row["id"]: row["cents"] for row in rows}
    wrong = {number: cents for number, cents in theirs.items() if ours.get(number) != cents}
    for number, cents in wrong.items():
        chunk.act(str(number), {"bank": cents, "ledger": ours.get(number)})  # kept with the execution
    async with chunk.transaction() as connection:  # the repair is there with its chunk, or not at all
        await connection.execute(REPAIR, list(wrong), list(wrong.values()))


async def run() -> None:
    """Execute it once, by hand, and say what it has found."""
    execution_id = await app.start_batch("ledger.reconcile")
    found = await app.campaigns.executions.get(execution_id)
    while found.finished_at is None:
        await asyncio.sleep(0.1)
        found = await app.campaigns.executions.get(execution_id)
    print(f"execution {found.id}: {found.status}, {found.seen} entries compared, {found.actions} repaired")


async def main() -> None:
    """Make both tables, and reconcile them twice."""
    async with app:
        os.environ["LEDGER_URL"] = app.database.url
        await app.pool.execute(TABLES)
        # the bank's own database in real life, read as a plain role: a superuser is refused
        os.environ["BANK_URL"] = await asyncio.to_thread(ensure_reader, app.database.url, "bank_reader")
        working = asyncio.create_task(app.run_worker(roles=["campaign-consumer"]))
        await run()
        await run()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        print(
            "to go on by hand:",
            *(f"export {name}='{os.environ[name]}'" for name in ("BANK_URL", "LEDGER_URL")),
            sep="\n",
        )


if __name__ == "__main__":
    asyncio.run(main())
