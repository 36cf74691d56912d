"""Fixtures: one PostgreSQL for the run, one fresh database for each test that asks."""

import asyncio
import importlib
import inspect
import itertools
from collections.abc import Iterator

import pytest

from kit.servers import PostgresServer

_TEMPLATE = "tickwright_template"
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def pg_server() -> Iterator[PostgresServer]:
    """The server that all tests share: nobody kills it; make a ``PostgresServer`` of your own for that."""
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.destroy()


@pytest.fixture(scope="session")
def template_database(pg_server: PostgresServer) -> str:
    """The name of a database with the newest schema and no rows; made once."""
    url = pg_server.create_database(_TEMPLATE)
    migrate_if_possible(url)
    return _TEMPLATE


@pytest.fixture
def database_url(pg_server: PostgresServer, template_database: str) -> Iterator[str]:
    """The URL of a migrated, empty database of the test's own; about 50 ms."""
    name = f"t{next(_numbers)}"
    yield pg_server.create_database(name, template=template_database)
    pg_server.drop_database(name)


@pytest.fixture
def empty_database_url(pg_server: PostgresServer) -> Iterator[str]:
    """The URL of a database without our schema, for tests of the migrations."""
    name = f"e{next(_numbers)}"
    yield pg_server.create_database(name)
    pg_server.drop_database(name)


def migrate_if_possible(url: str) -> None:
    """Run the product's migrations against ``url``; do nothing while there are none."""
    try:
        module = importlib.import_module("tickwright.store.migrate")
    except ModuleNotFoundError as absent:
        if absent.name != "tickwright.store.migrate":
            raise
        return
    done = module.migrate(url)
    if inspect.isawaitable(done):

        async def finish() -> None:
            await done

        asyncio.run(finish())
