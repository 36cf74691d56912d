"""The pytest plugin: a server, databases and opened apps as fixtures.

It imports pytest only. What a fixture needs is imported when a test asks for it. A project that does not want the
fixtures says ``-p no:tickwright.testing.plugin``.

``tickwright_app``
    A function that opens an app on the test's database: ``async with tickwright_app(shop.app) as app``.
``tickwright_database``
    A database of the test alone, to be used with any driver; nothing is isolated.
``tickwright_session_database``
    The database of the test session, where isolated tests run.
``tickwright_server``
    The server, to make databases on.
``tickwright_prepare``
    Override it to make your own tables: it returns a function that is called once with a URL.
``tickwright_test_url``
    Override it to use a database of your own; by default that of ``TICKWRIGHT_TEST_DATABASE_URL``, if it is set.
"""

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tickwright import Tickwright
    from tickwright.testing.databases import Prepare, ScratchDatabase, ScratchServer
    from tickwright.testing.opening import AppUnderTest, OpenApp


@pytest.fixture(scope="session")
def tickwright_test_url() -> str | None:
    """Return the URL of a test database that you keep yourself; ``None``: databases are made on the embedded server."""
    return os.environ.get("TICKWRIGHT_TEST_DATABASE_URL") or None


@pytest.fixture(scope="session")
def tickwright_prepare() -> "Prepare | None":
    """Return a function that makes your own tables in the database of a URL; override it."""
    return None


@pytest.fixture(scope="session")
def tickwright_server() -> "Iterator[ScratchServer]":
    """Yield the embedded server; see :mod:`tickwright.testing.databases`."""
    from tickwright.testing.databases import open_scratch_server

    with open_scratch_server() as server:
        yield server


@pytest.fixture(scope="session")
def _tickwright_template(tickwright_server: "ScratchServer", tickwright_prepare: "Prepare | None") -> Any:
    """Return the prepared database of which tests get copies; no test uses it itself."""
    return None if tickwright_prepare is None else tickwright_server.create(tickwright_prepare)


@pytest.fixture(scope="session")
def tickwright_session_database(
    request: pytest.FixtureRequest, tickwright_test_url: str | None, tickwright_prepare: "Prepare | None"
) -> "ScratchDatabase":
    """Return the database of the session: isolated tests leave nothing in it."""
    if tickwright_test_url is not None:
        from tickwright.testing.databases import given_database

        database = given_database(tickwright_test_url)
        if tickwright_prepare is not None:
            tickwright_prepare(database.url)
        return database
    server: ScratchServer = request.getfixturevalue("tickwright_server")
    return server.create(template=request.getfixturevalue("_tickwright_template"))


@pytest.fixture
def tickwright_database(
    tickwright_server: "ScratchServer", _tickwright_template: "ScratchDatabase | None"
) -> "Iterator[ScratchDatabase]":
    """Yield a database of the test alone, and drop it."""
    database = tickwright_server.create(template=_tickwright_template)
    yield database
    tickwright_server.drop(database)


@pytest.fixture
def tickwright_app(request: pytest.FixtureRequest) -> "OpenApp":
    """Return a function that opens an app on the test's database.

    ``tickwright_app(app)`` is for ``async with``, and for ``with`` in a synchronous test. All that the app and its jobs
    do is rolled back at the end. ``isolated=False`` commits to a database of the test alone, for what needs more than
    one connection. ``resources={"http": fake}`` takes the place of what the app's lifespans yield.
    """
    pools: dict[bool, Any] = {}

    def open_app(
        app: "Tickwright", *, isolated: bool = True, resources: Mapping[str, Any] | None = None
    ) -> "AppUnderTest":
        from tickwright.testing.opening import AppUnderTest, SharedPool

        if isolated not in pools:
            name = "tickwright_session_database" if isolated else "tickwright_database"
            pools[isolated] = SharedPool(request.getfixturevalue(name), isolated=isolated)
        return AppUnderTest(app, pools[isolated], isolated=isolated, resources=resources)

    return open_app
