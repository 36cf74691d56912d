"""Fixtures of the page: one installation and one browser per module, windows of each test's own."""

import itertools
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from kit.pages import Site, Visitors, chromium
from kit.servers import PostgresServer

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def site(pg_server: PostgresServer, template_database: str) -> Iterator[Site]:
    """An installation with a database of its own, its worker, and a key of each role."""
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
    """Open windows: ``visit("viewer", "/jobs")``. At the end no page may have complained."""
    visitors = Visitors(browser, site)
    yield visitors
    visitors.close()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the page's tests in the order of their files: an installation is shared by a module, and grows with it."""
    places = [place for place, item in enumerate(items) if item.path.parent.name == "dashboard"]
    told = sorted((items[place] for place in places), key=lambda item: (item.path, item.reportinfo()[1] or 0))
    for place, item in zip(places, told, strict=True):
        items[place] = item
