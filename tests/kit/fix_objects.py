"""Fixtures: one S3 for the run, started when the first test asks for it; each kind of store in turn, empty."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.object_store import BUCKET, ObjectServer
from kit.servers import started
from tickwright.adapters.objectstore import open_store
from tickwright.ports.objects import ObjectStore


@pytest.fixture(scope="session")
def object_server() -> Iterator[ObjectServer]:
    """The server that all tests share: use a prefix of your own, and do not kill it."""
    with started(ObjectServer()) as server:
        yield server


@pytest.fixture(params=["file", "s3"])
def object_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    """Each kind of store in turn, empty."""
    if request.param == "file":
        store = open_store((tmp_path / "objects").as_uri(), {})
    else:
        server: ObjectServer = request.getfixturevalue("object_server")
        store = open_store(f"s3://{BUCKET}/{secrets.token_hex(8)}", server.environment)
    yield store
    store.close()
