"""Fixtures: those of the product's own pytest plugin, on the server that all tests share."""

from collections.abc import Iterator

import pytest

from kit.servers import PostgresServer
from tickwright.testing.databases import ScratchServer, open_scratch_server


@pytest.fixture(scope="session")
def tickwright_server(pg_server: PostgresServer) -> Iterator[ScratchServer]:
    """Make the plugin's databases on the shared server; the embedded one has tests of its own."""
    with open_scratch_server(pg_server.create_database("tickwright_scratch")) as server:
        yield server
