"""Fixtures: the ground that a bench measures on."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tickwright.bench.ground import Ground


@pytest.fixture
def bench_ground(database_url: str, tmp_path: Path) -> Iterator[Ground]:
    """The ground of a bench on a database of the test's own."""
    with psycopg.connect(database_url, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        ground = Ground(database_url, tmp_path, connection, Path("pgbench"))
        try:
            yield ground
        finally:
            ground.kill9()
