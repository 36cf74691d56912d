"""Fixtures: one PgBouncer in front of the shared PostgreSQL."""

from collections.abc import Iterator

import pytest

from kit.servers import PgBouncer, PostgresServer


@pytest.fixture(scope="session")
def pgbouncer(pg_server: PostgresServer) -> Iterator[PgBouncer]:
    """The pooler that all tests share, in transaction mode."""
    pooler = PgBouncer(pg_server)
    try:
        pooler.start()
        yield pooler
    finally:
        pooler.destroy()
