"""Fixtures: apps, APIs and worlds of the capabilities, on databases and queues of the test.

A module that kills a server defines a mortal one under the same name: a ``redis_server`` that returns ``mortal_redis``.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kit.audiences import DATABASES, KINDS, AudienceWorld, audience_world
from kit.batches import BatchWorld, batch_world
from kit.broker_sides import SIDES, Side
from kit.campaigns import CampaignApi, campaign_api
from kit.fanout_worlds import Worlds
from kit.merges import merge_processes
from kit.rabbit_tasks import Fanout
from kit.report_api import ReportApi, report_api
from kit.report_faults import ReportWorlds
from kit.reports import ReportWorld, report_world
from kit.schedules import ScheduleWorld, schedule_world
from kit.servers import PostgresServer, RabbitServer, RedisServer
from kit.wheels import Wheels, open_wheels
from tickwright import Job, Tickwright
from tickwright.bench.ground import Ground
from tickwright.capabilities.reports.merge.process_pool import MergeProcesses


@pytest.fixture
async def schedules(database_url: str) -> AsyncIterator[ScheduleWorld]:
    """Schedules on a database of their own, with one task type."""
    async with schedule_world(database_url) as world:
        yield world


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[Tickwright]:
    """An app with the task type ``mail``, open."""
    app = Tickwright(database_url)

    @app.job("mail")
    async def mail(_job: Job, to: str) -> None: ...

    async with app:
        yield app


@pytest.fixture(params=KINDS)
async def audiences(
    request: pytest.FixtureRequest, tmp_path: Path, empty_database_url: str
) -> AsyncIterator[AudienceWorld]:
    """Each kind of source, one after the other, empty."""
    async with audience_world(request.param, tmp_path, empty_database_url) as made:
        yield made


@pytest.fixture(params=DATABASES)
async def audience_bases(
    request: pytest.FixtureRequest, tmp_path: Path, empty_database_url: str
) -> AsyncIterator[AudienceWorld]:
    """Each kind of database, one after the other, empty."""
    async with audience_world(request.param, tmp_path, empty_database_url) as made:
        yield made


@pytest.fixture
async def batches(database_url: str) -> AsyncIterator[BatchWorld]:
    """A world of the test."""
    async with batch_world(database_url) as world:
        yield world


@pytest.fixture
def bench_ground(database_url: str, tmp_path: Path) -> Iterator[Ground]:
    """The ground of a bench on a database of the test."""
    with psycopg.connect(database_url, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        ground = Ground(database_url, tmp_path, connection, Path("pgbench"))
        try:
            yield ground
        finally:
            ground.kill9()


@pytest.fixture(params=SIDES)
def side_kind(request: pytest.FixtureRequest) -> str:
    """The name of a broker; a new transport gets its line in ``SIDES``."""
    if request.param == "rabbitmq":
        request.getfixturevalue("rabbit_server")  # here, because a server starts outside the event loop
    if request.param == "kafka":
        request.getfixturevalue("kafka_server")
    if request.param == "postgres":
        request.getfixturevalue("database_url")
    kind: str = request.param
    return kind


@pytest.fixture
async def side(side_kind: str, request: pytest.FixtureRequest) -> AsyncIterator[Side]:
    """Each broker, one after the other, with its counterpart."""
    async with AsyncExitStack() as stack:
        side = await SIDES[side_kind](stack, request)
        yield side
        async with asyncio.timeout(10):
            await side.broker.aclose()


@pytest.fixture
async def campaigns(database_url: str) -> AsyncIterator[CampaignApi]:
    """A running API on a fresh database."""
    async with campaign_api(database_url) as running:
        yield running


@pytest.fixture
async def worlds(
    pg_server: PostgresServer,
    template_database: str,
    rabbit_server: RabbitServer,
    redis_server: RedisServer,
    tmp_path: Path,
) -> AsyncIterator[Worlds]:
    """As many worlds as a test needs, with Redis and without."""
    async with AsyncExitStack() as stack:
        yield Worlds(stack, pg_server, template_database, rabbit_server, redis_server, tmp_path)


@pytest.fixture
async def fanout(rabbit_server: RabbitServer) -> AsyncIterator[Fanout]:
    """Queues of the test."""
    fanout = Fanout(rabbit_server.url)
    await fanout.prepare()
    yield fanout
    await fanout.remove()


@pytest.fixture(params=["redis", "postgres"])
async def reports(request: Any, database_url: str, tmp_path: Path) -> AsyncIterator[ReportWorld]:
    """A world whose small parts are in Redis, or in PostgreSQL alone; with its own keys and files."""
    redis_url = request.getfixturevalue("redis_server").url if request.param == "redis" else None
    async with report_world(database_url, tmp_path, redis_url, redis_prefix=database_url.rpartition("/")[2]) as world:
        yield world


@pytest.fixture
async def alone(database_url: str, tmp_path: Path) -> AsyncIterator[ReportWorld]:
    """A world with PostgreSQL alone."""
    async with report_world(database_url, tmp_path) as world:
        yield world


@pytest.fixture
async def reports_api(alone: ReportWorld) -> AsyncIterator[ReportApi]:
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
    """One merge process, which is replaced when a test kills it."""
    async with merge_processes() as made:
        yield made


@pytest.fixture
async def wheels(database_url: str) -> AsyncIterator[Wheels]:
    """The three loops on an empty database."""
    async with open_wheels(database_url) as wheels:
        yield wheels
