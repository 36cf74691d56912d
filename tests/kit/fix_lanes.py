"""The lanes of the tests: each test is marked by the servers that it uses, and ``units`` use none.

``mutant`` marks what is below a folder ``mutants``, but for the same checks of the product as it is, and every test
whose name says so (``test_the_mutant_…``, ``test_the_suite_notices_…``). ``storm`` is written in the module: minutes of
load or of kills, a slow disk, a matrix of versions; the dark theme counts as one. ``make test`` leaves both out,
``make test-full`` runs them.
"""

import re
from collections.abc import Iterator

import pytest

SERVERS = {
    "kafka": {"kafka_server", "kafka_of_my_own", "kafka_cluster"},
    "rabbit": {"rabbit_server", "mortal_rabbit"},
    "redis": {"redis_server", "mortal_redis"},
    "browser": {"browser"},
    "": {"pg_server", "mortal_postgres", "pgbouncer", "object_server", "gcs_server"},
}
"""Fixtures that start a server, by the marker of their tests."""

_MUTANT = re.compile(r"test_the_(mutants?|suite_notices)_")
_PRODUCT_AS_IT_IS = re.compile(r"test_(the_promise|every_check)_holds")

SERVERLESS = {"units", "domain", "arch", "rest"}
"""Folders of ``make quick``: a test in one of them starts no server."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test by its lanes; refuse a server in a folder of ``make quick``."""
    for item in items:
        for marker in _markers(item):
            item.add_marker(marker)


def _markers(item: pytest.Item) -> Iterator[str]:
    fixtures = {*getattr(item, "fixturenames", ())}
    folders = {*item.path.parts}
    used = fixtures & set().union(*SERVERS.values())
    if used and folders & SERVERLESS:
        raise pytest.UsageError(
            f"{item.nodeid} uses {', '.join(sorted(used))}: move it out of the lane without servers"
        )
    yield from (marker for marker, servers in SERVERS.items() if marker and servers & fixtures)
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    kind = parameters.get("side_kind")
    if parameters.get("scheme") == "dark":
        yield "storm"
    if kind in {"kafka", "rabbitmq"}:
        yield kind.removesuffix("mq")
    if _MUTANT.match(item.name) or ("mutants" in folders and not _PRODUCT_AS_IT_IS.match(item.name)):
        yield "mutant"
