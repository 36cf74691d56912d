"""What a module leaves to the collector is collected when the module ends.

The collector runs whenever it likes. Where it runs inside of the parser (a library reads the source of a test), and
what it collects prints a traceback, which parses too, CPython 3.11 ends with ``SystemError: AST constructor recursion
depth mismatch`` in a test that has nothing to do with it. (A program that does only this ended so 122 times of 200,
and never where it collected before.)

What is there when the tests begin (every module and test of the run) stays for ever, and is not walked again and again:
that was a fifth of the run's time.
"""

import gc

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Take what is there out of the collector's sight."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Give it back, or libraries report it as leaked when the interpreter ends."""
    gc.unfreeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Collect after the last test of a module."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
