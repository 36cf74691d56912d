"""The lanes of the tests: each test is marked by the servers that it uses, and ``units`` use none.

``mutant`` marks the tests below a folder ``mutants``, except for the same checks without a mutant, and every test
with such a name (``test_the_mutant_…``, ``test_a_mutant_…``, ``test_the_suite_notices_…``). ``storm`` is written at
the module or the test: more than seconds of load, of kills or of waiting, a slow disk, a failover, a matrix of
versions. The dark theme counts as one, and so do the tests of the benches and of this kit, and of a test that is marked
``matrix`` every case but the first. ``make test`` leaves mutants and storms out, ``make test-full`` runs them.

Modules with faults come first, because they take longest: at the end most processes would wait for the last one.

A module's garbage is collected when the module ends. Otherwise the collector runs at any time: if it runs inside
the parser (a library reads the source of a test), and a collected object prints a traceback, which calls the parser
as well, CPython 3.11 ends with ``SystemError: AST constructor recursion depth mismatch`` in an unrelated test.
Objects that exist when the tests begin (every module and test of the run) are never collected, nor scanned again.

A failure is printed when it happens, so a run that is cut off has printed its failures. Text that is not UTF-8 is
escaped: a lone surrogate in a worker's report would end the whole run.
"""

import gc
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
SERVERS = {
    "kafka": {"kafka_server", "kafka_of_my_own", "kafka_cluster"},
    "rabbit": {"rabbit_server", "mortal_rabbit"},
    "redis": {"redis_server", "mortal_redis"},
    "browser": {"browser"},
    "": {"pg_server", "mortal_postgres", "pgbouncer", "object_server", "gcs_server"},
}
"""Fixtures that start a server, by the marker of their tests."""

_MUTANT = re.compile(r"test_(the|a)_(mutants?|suite_notices)_")
_PRODUCT_AS_IT_IS = re.compile(r"test_(the_promise|every_check)_holds")

_NOT_THE_PRODUCT = {"bench", "kit"}
"""Folders of tests that check no promise of the product."""
SERVERLESS = {"units", "domain", "arch", "rest"}
"""Folders of ``make quick``: a test in one of them starts no server."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test by its lanes, faults first; refuse a server in a folder of ``make quick``."""
    for item in items:
        for marker in _markers(item):
            item.add_marker(marker)
    items.sort(key=lambda item: "faults" not in item.path.parts)


def _markers(item: pytest.Item) -> Iterator[str]:
    fixtures = {*getattr(item, "fixturenames", ())}
    path = item.path.relative_to(TESTS) if item.path.is_relative_to(TESTS) else item.path
    folders = {*path.parts}
    used = fixtures & set().union(*SERVERS.values())
    if used and folders & SERVERLESS:
        raise pytest.UsageError(
            f"{item.nodeid} uses {', '.join(sorted(used))}: move it out of the lane without servers"
        )
    yield from (marker for marker, servers in SERVERS.items() if marker and servers & fixtures)
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    kind = parameters.get("side_kind")
    if parameters.get("scheme") == "dark" or path.parts[0] in _NOT_THE_PRODUCT or _is_later_case(item):
        yield "storm"
    if kind in {"kafka", "rabbitmq"}:
        yield kind.removesuffix("mq")
    if _MUTANT.match(item.name) or ("mutants" in folders and not _PRODUCT_AS_IT_IS.match(item.name)):
        yield "mutant"


def _is_later_case(item: pytest.Item) -> bool:
    indices = getattr(getattr(item, "callspec", None), "indices", {})
    return item.get_closest_marker("matrix") is not None and any(indices.values())


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Exempt the existing objects from garbage collection."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Undo it, or libraries report these objects as leaked when the interpreter ends."""
    gc.unfreeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Collect after the last test of a module."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Clean the report that a worker is about to send."""
    return _clean((yield))


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_clean(name): _clean(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_clean(one) for one in value)
    return value


@pytest.hookimpl(trylast=True)  # the terminal reporter exists by then
def pytest_configure(config: pytest.Config) -> None:
    """Print failures if there is a terminal; the processes of ``-n 2`` have none."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        config.pluginmanager.register(_Failures(terminal))


class _Failures:
    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = "" if crash is None else f": {crash.message.partition(chr(10))[0]}"
            self._terminal.ensure_newline()
            self._terminal.write_line(f"FAILED in {report.when}: {report.nodeid}{why}")
