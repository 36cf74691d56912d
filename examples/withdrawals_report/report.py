"""Users in an SQLite file, their withdrawals in PostgreSQL, one CSV file of both.

Start it with ``python examples/withdrawals_report/report.py``.
"""

import asyncio
import os
import sqlite3
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

import asyncpg

from tickwright import Tickwright
from tickwright.embedded import ensure_reader

app = Tickwright(config=Path(__file__).with_name("tickwright.toml"))

STAGES = [
    {"users": {"source": "users", "sql": "SELECT id AS user_id, name FROM users WHERE country = :country"}},
    {
        "withdrawals": {
            "source": "fund",
            "sql": "SELECT user_id, amount, asked_at FROM withdrawals WHERE user_id = ANY(:user_ids)",
        }
    },
]
FEEDS = {2: "SELECT list(user_id) AS user_ids FROM users"}


@app.report("withdrawals", stages=STAGES, feeds=FEEDS, parameters={"country": "text"}, deadline="5m", keep="1d")
def withdrawals() -> str:
    """Return how the parts become one file: DuckDB's SQL, where each listener is a table."""
    return "SELECT name, amount, asked_at FROM users JOIN withdrawals USING (user_id) ORDER BY name, asked_at"


USERS = [(1, "ann", "NL"), (2, "ben", "DE"), (3, "=cmd|' /C calc'!A0", "NL")]
WITHDRAWALS = """
    CREATE TABLE IF NOT EXISTS withdrawals (user_id integer, amount numeric(12, 2), asked_at timestamptz);
    TRUNCATE withdrawals;
    INSERT INTO withdrawals VALUES (1, 20.50, '2026-01-05 10:00Z'), (1, 1000.00, '2026-01-06 12:30Z'),
                                   (2, 7.25, '2026-01-06 18:00Z'), (3, 5.00, '2026-01-07 09:15Z');
"""


def make_users(file: Path) -> None:
    """The first database: in real life it has been there for years."""
    with sqlite3.connect(file) as users:
        users.execute("CREATE TABLE users (id integer PRIMARY KEY, name text, country text)")
        users.executemany("INSERT INTO users VALUES (?, ?, ?)", USERS)
    users.close()


async def make_withdrawals(url: str) -> None:
    """The second one: another server in real life, here the same."""
    connection = await asyncpg.connect(url)
    await connection.execute(WITHDRAWALS)
    await connection.close()


async def report(country: str) -> None:
    """Request the report, wait, and show the file."""
    made = await app.request_report("withdrawals", {"country": country})
    again = await app.request_report("withdrawals", {"country": country})
    print(f"report {made.id}, and for an equal request report {again.id}")
    found = await app.reports.records.get(made.id)
    while found.finished_at is None:
        await asyncio.sleep(0.1)
        found = await app.reports.records.get(made.id)
    for part in found.parts:
        print(f"stage {part.stage}: {part.listener} is {part.state}, {part.rows} rows")
    if found.file_address is None:
        raise SystemExit(f"{found.status}: {found.error}")
    print(f"{found.rows} rows, {found.bytes} bytes, SHA-256 {found.checksum}")
    print(found.file_address)
    where = urlsplit(found.file_address)
    if where.scheme == "file":
        print(await asyncio.to_thread(Path(unquote(where.path)).read_text, encoding="utf-8"))


async def main() -> None:
    """Make both databases, run the role that fetches parts and merges them, request the users of one country."""
    users = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="withdrawals-")) / "users.sqlite"
    make_users(users)
    os.environ["USERS_FILE"] = str(users)
    async with app:
        await make_withdrawals(app.database.url)
        # a source is read as a plain role: a superuser is refused
        os.environ["FUND_URL"] = await asyncio.to_thread(ensure_reader, app.database.url, "fund_reader")
        working = asyncio.create_task(app.run_worker(roles=["report-listener"]))
        await report("NL")
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    print(
        "to go on by hand:", *(f"export {name}='{os.environ[name]}'" for name in ("USERS_FILE", "FUND_URL")), sep="\n"
    )


if __name__ == "__main__":
    asyncio.run(main())
