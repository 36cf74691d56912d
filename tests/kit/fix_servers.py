"""Fixtures: servers, started once for the run when a test needs them, or for a test that kills them; databases."""

import itertools
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from kit.object_store import BUCKET, GcsServer, ObjectServer
from kit.servers import KafkaServer, PgBouncer, PostgresServer, RabbitServer, RedisServer, started
from tickwright.ports.objects import ObjectStore
from tickwright.store.pool import Pool, open_pool
from tickwright.transports.objectstore.plugin import open_store

_TEMPLATE = "tickwright_template"
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def pg_server() -> Iterator[PostgresServer]:
    """The server that all tests share: do not kill it."""
    with started(PostgresServer()) as server:
        yield server


@pytest.fixture(scope="module")
def mortal_postgres() -> Iterator[PostgresServer]:
    """A server of the module, to be killed."""
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
    """The URL of a migrated, empty database of the test; takes about 50 ms."""
    name = f"t{next(_numbers)}"
    yield pg_server.create_database(name, template=template_database)
    pg_server.drop_database(name)


@pytest.fixture
async def other(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """Another connection to that database."""
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
    """The URL of a database without Tickwright's schema, for tests of the migrations."""
    name = f"e{next(_numbers)}"
    yield pg_server.create_database(name)
    pg_server.drop_database(name)


@pytest.fixture(scope="session")
def pgbouncer(pg_server: PostgresServer) -> Iterator[PgBouncer]:
    """The pooler that all tests share, in transaction mode."""
    with started(PgBouncer(pg_server)) as pooler:
        yield pooler


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaServer]:
    """The node that all tests share: use names of the test's own, and do not kill it."""
    with started(KafkaServer()) as server:
        yield server


@pytest.fixture
def kafka_of_my_own() -> Iterator[KafkaServer]:
    """One node that the test may kill; what it acknowledged is on its disk."""
    with started(KafkaServer(configuration={"log.flush.interval.messages": "1"})) as server:
        yield server


@pytest.fixture
def kafka_cluster() -> Iterator[KafkaServer]:
    """Three nodes that the test may kill."""
    with started(KafkaServer(nodes=3)) as server:
        yield server


@pytest.fixture
def kafka_prefix() -> str:
    """The prefix of the test's topics and transactions."""
    return f"t{secrets.token_hex(6)}"


@pytest.fixture(scope="session")
def rabbit_server() -> Iterator[RabbitServer]:
    """The node that all tests share: use names of the test's own, and do not kill it."""
    with started(RabbitServer()) as server:
        yield server


@pytest.fixture(scope="module")
def mortal_rabbit() -> Iterator[RabbitServer]:
    """A node of the module, to be killed."""
    with started(RabbitServer()) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """The server that all tests share: use keys of the test's own, and do not kill it."""
    with started(RedisServer()) as server:
        yield server


@pytest.fixture
def mortal_redis() -> Iterator[RedisServer]:
    """A server of the test, to be killed, flushed and filled; it loses nothing that it has answered."""
    with started(RedisServer({"appendfsync": "always"})) as server:
        yield server


@pytest.fixture(scope="session")
def object_server() -> Iterator[ObjectServer]:
    """The server that all tests share: use a prefix of the test's own, and do not kill it."""
    with started(ObjectServer()) as server:
        yield server


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[GcsServer]:
    """A server for Google's object store."""
    with started(GcsServer()) as server:
        yield server


@pytest.fixture(params=["file", "s3", "gs"])
def object_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    """Each kind of store, one after the other, empty."""
    if request.param == "file":
        store = open_store((tmp_path / "objects").as_uri(), {})
    else:
        server = request.getfixturevalue("object_server" if request.param == "s3" else "gcs_server")
        store = open_store(f"{request.param}://{BUCKET}/{secrets.token_hex(8)}", server.environment)
    yield store
    store.close()
