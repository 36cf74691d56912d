"""Fixtures: one PostgreSQL for the run, one fresh database for each test that asks; one for who kills it."""

import itertools
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

from kit.servers import PostgresServer, started
from tickwright.store.pool import Pool, open_pool

_TEMPLATE = "tickwright_template"
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def pg_server() -> Iterator[PostgresServer]:
    """The server that all tests share: nobody kills it."""
    with started(PostgresServer()) as server:
        yield server


@pytest.fixture(scope="module")
def mortal_postgres() -> Iterator[PostgresServer]:
    """A server of the module's own, to be killed."""
    with started(PostgresServer()) as server:
        yield server


@pytest.fixture(scope="session")
def template_database(pg_server: PostgresServer) -> str:
    """The name of a database with the newest schema and no rows; made once."""
    from tickwright.store.migrate import migrate

    migrate(pg_server.create_database(_TEMPLATE))
    return _TEMPLATE


@pytest.fixture
def database_url(pg_server: PostgresServer, template_database: str) -> Iterator[str]:
    """The URL of a migrated, empty database of the test's own; about 50 ms."""
    name = f"t{next(_numbers)}"
    yield pg_server.create_database(name, template=template_database)
    pg_server.drop_database(name)


@pytest.fixture
async def other(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """Somebody else's connection to it."""
    connection = await asyncpg.connect(database_url)
    yield connection
    connection.terminate()


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[Pool]:
    """A pool on that database as production opens it."""
    pool = await open_pool(database_url, max_size=12)
    yield pool
    pool.terminate()


@pytest.fixture
def empty_database_url(pg_server: PostgresServer) -> Iterator[str]:
    """The URL of a database without our schema, for tests of the migrations."""
    name = f"e{next(_numbers)}"
    yield pg_server.create_database(name)
    pg_server.drop_database(name)
