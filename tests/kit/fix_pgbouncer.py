"""Fixtures: one PgBouncer in front of the shared PostgreSQL."""

from collections.abc import Iterator

import pytest

from kit.servers import PgBouncer, PostgresServer, started


@pytest.fixture(scope="session")
def pgbouncer(pg_server: PostgresServer) -> Iterator[PgBouncer]:
    """The pooler that all tests share, in transaction mode."""
    with started(PgBouncer(pg_server)) as pooler:
        yield pooler
