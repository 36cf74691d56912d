"""A process on the embedded PostgreSQL starts the server again when something kills it."""

import os
import signal
from pathlib import Path

import asyncpg

from kit.embedded import postmaster_pid
from kit.waiting import eventually_async
from tickwright.process.database import open_database
from tickwright.process.settings import load_settings


async def test_a_killed_embedded_server_comes_back_by_itself(tmp_path: Path) -> None:
    """Without any action, what was committed is there again within seconds."""
    settings = load_settings(home=str(tmp_path / "home"))
    async with open_database(settings) as database:
        connection = await asyncpg.connect(database.url)
        await connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
        await connection.close()
        os.kill(postmaster_pid(tmp_path / "home" / "postgres"), signal.SIGKILL)

        async def answers() -> bool:
            try:
                again = await asyncpg.connect(database.url, timeout=2)
            except (OSError, TimeoutError, asyncpg.PostgresError):
                return False
            there: int = await again.fetchval("SELECT one FROM kept")
            await again.close()
            return there == 1

        await eventually_async(answers, 30)
