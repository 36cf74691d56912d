"""How many connections an idle process has, also after it had more."""

from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg
import pytest

from kit.nodes import running, settings_of
from kit.waiting import eventually_async
from tickwright.app.declarations import Declarations
from tickwright.process.plugins import ROLES

OPEN = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'tickwright%'
"""
MORE = 6


@pytest.mark.parametrize(("roles", "idle_max"), [(("worker",), 2), (ROLES, 5)], ids=["a worker", "all roles"])
async def test_an_idle_process_closes_what_it_does_not_need(
    database_url: str, tmp_path: Path, roles: tuple[str, ...], idle_max: int
) -> None:
    """A default PostgreSQL has a hundred connections for all of them."""
    beside = await asyncpg.connect(database_url, server_settings={"application_name": "test"})
    async with running(settings_of(database_url, tmp_path, ""), Declarations(), *roles) as node:
        async with AsyncExitStack() as busy:
            for _ in range(MORE):
                await busy.enter_async_context(node.context.pool.acquire())
            assert await beside.fetchval(OPEN) >= MORE

        async def has_few() -> bool:
            return bool(await beside.fetchval(OPEN) <= idle_max)

        await eventually_async(has_few, 60, what=f"at most {idle_max} connections")
    await beside.close()
