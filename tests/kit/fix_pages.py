"""Fixtures of the dashboard: one installation and one browser per module, windows for each test."""

import itertools
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from kit.pages import Site, Visitors, chromium
from kit.servers import PostgresServer

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def site(pg_server: PostgresServer, template_database: str) -> Iterator[Site]:
    """An installation with its own database, its worker, and a key of each role."""
    name = f"site{next(_numbers)}"
    made = Site(pg_server.create_database(name, template=template_database))
    try:
        made.start()
        yield made
    finally:
        made.destroy()
        pg_server.drop_database(name)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real Chromium."""
    with chromium() as running:
        yield running


@pytest.fixture
def visit(browser: Browser, site: Site) -> Iterator[Visitors]:
    """Open windows: ``visit("viewer", "/jobs")``. At the end no window may have an unexpected error."""
    visitors = Visitors(browser, site)
    yield visitors
    visitors.close()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the dashboard's tests in the order of their files: the tests of a module share a growing installation."""
    places = [place for place, item in enumerate(items) if item.path.parent.name == "dashboard"]
    ordered = sorted((items[place] for place in places), key=lambda item: (item.path, item.reportinfo()[1] or 0))
    for place, item in zip(places, ordered, strict=True):
        items[place] = item
