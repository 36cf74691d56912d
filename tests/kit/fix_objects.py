"""Fixtures: an S3 and a Google store for the run, started when a test asks; each kind of store in turn, empty."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.gcs import GcsServer
from kit.object_store import BUCKET, ObjectServer
from kit.servers import started
from tickwright.ports.objects import ObjectStore
from tickwright.transports.objectstore.plugin import open_store


@pytest.fixture(scope="session")
def object_server() -> Iterator[ObjectServer]:
    """The server that all tests share: use a prefix of your own, and do not kill it."""
    with started(ObjectServer()) as server:
        yield server


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[GcsServer]:
    """The same of Google's kind."""
    with started(GcsServer()) as server:
        yield server


@pytest.fixture(params=["file", "s3", "gs"])
def object_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    """Each kind of store in turn, empty."""
    if request.param == "file":
        store = open_store((tmp_path / "objects").as_uri(), {})
    else:
        server = request.getfixturevalue("object_server" if request.param == "s3" else "gcs_server")
        store = open_store(f"{request.param}://{BUCKET}/{secrets.token_hex(8)}", server.environment)
    yield store
    store.close()
