"""Fixtures: a world of reports, once with Redis and once without, and an API on one."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from kit.merges import merge_processes
from kit.report_api import ReportApi, report_api
from kit.report_faults import ReportWorlds
from kit.reports import ReportWorld, report_world
from kit.servers import PostgresServer, RedisServer
from tickwright.capabilities.reports.merge.process_pool import MergeProcesses


@pytest.fixture(params=["redis", "postgres"])
async def reports(request: Any, database_url: str, tmp_path: Path) -> AsyncIterator[ReportWorld]:
    """A world whose small parts are in Redis, or in PostgreSQL alone; keys and files of its own."""
    redis_url = request.getfixturevalue("redis_server").url if request.param == "redis" else None
    async with report_world(database_url, tmp_path, redis_url, redis_prefix=database_url.rpartition("/")[2]) as world:
        yield world


@pytest.fixture
async def alone(database_url: str, tmp_path: Path) -> AsyncIterator[ReportWorld]:
    """A world where PostgreSQL serves alone."""
    async with report_world(database_url, tmp_path) as world:
        yield world


@pytest.fixture
async def desk(alone: ReportWorld) -> AsyncIterator[ReportApi]:
    """An API on it, with the report type ``users``."""
    async with report_api(alone) as asking:
        yield asking


@pytest.fixture
async def report_worlds(
    pg_server: PostgresServer, template_database: str, redis_server: RedisServer, tmp_path: Path
) -> AsyncIterator[ReportWorlds]:
    """As many worlds as a test needs, with Redis and without."""
    async with AsyncExitStack() as stack:
        yield ReportWorlds(stack, pg_server, template_database, redis_server, tmp_path)


@pytest.fixture
async def merges() -> AsyncIterator[MergeProcesses]:
    """One merge process, which is replaced when a test costs it its life."""
    async with merge_processes() as made:
        yield made
