"""Every promise names tests that exist, and a mutant or the word "none"."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/promises.md"
PROMISES_MIN = 300
_HEAD = "| promise | mechanism | test | mutant |"
WITHOUT_TEST = {"a request in progress is notified when its client disconnects, also if other requests wait behind it"}
"""Promises whose mutant alone is a test."""
ONLY_A_STORM = {
    "these promises hold together while brokers, relays and consumers are killed at random",
    "a release and the one before it work side by side",
    "every role continues by itself after a full disk and a crash of the database",
    "a promoted synchronous standby has every acknowledged job",
    "after the promotion of an asynchronous standby no id and no fence",
}
"""Beginnings of promises about everything together, a failover or two versions; the parts have tests of their own."""
_MUTANT = re.compile(r'"(?:… )?([^"]+)"')
_NAME = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


class Promise(NamedTuple):
    """One row of the page: what is promised, how it is kept, its tests and its mutants."""

    promise: str
    mechanism: str
    tests: str
    mutants: str


def promises() -> Iterator[Promise]:
    """Return the rows of every table of promises."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        if line == _HEAD:
            for row in lines[number + 2 :]:
                if not row.startswith("|"):
                    break
                yield Promise(*(cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]))


@cache
def functions_of(file: str) -> frozenset[str]:
    """Return the names of a module's functions and methods."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def missing(cell: str) -> list[str]:
    """Return the tests of a cell that do not exist."""
    return [
        f"{file}::{test}" if test else file
        for file, test in _NAME.findall(cell)
        if not (ROOT / file).exists() or (test and test not in functions_of(file))
    ]


def test_every_promise_names_its_tests() -> None:
    """A row names at least one test; all of its tests exist."""
    rows = list(promises())
    assert len(rows) >= PROMISES_MIN
    assert {row.promise for row in rows if not _test_names(row.tests)} == WITHOUT_TEST
    assert [name for row in rows for name in missing(row.tests)] == []


def test_every_promise_names_its_mutants_or_says_none() -> None:
    """A mutant takes the mechanism out, and a test fails: a test or the name of a case; a row without one says so."""
    rows = [row for row in promises() if not row.mutants.startswith("none")]
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert [row.promise for row in rows if not _test_names(row.mutants) and not _MUTANT.search(row.mutants)] == []
    assert [name for row in rows for name in missing(row.mutants)] == []
    cases = [case for row in rows for case in _MUTANT.findall(row.mutants)]
    assert [case for case in cases if case not in sources] == []


def test_no_promise_is_kept_by_the_full_lane_alone() -> None:
    """``make test`` leaves out mutants and storms, so a promise has a test that is neither."""
    alone = [
        row.promise
        for row in promises()
        if (tests := _NAME.findall(row.tests))
        and all(_is_storm(file, test) or ("/mutants/" in file and "_holds" not in test) for file, test in tests)
    ]
    assert [promise for promise in alone if not promise.startswith(tuple(ONLY_A_STORM))] == []


def _test_names(cell: str) -> list[str]:
    return re.findall(r"`(?:tests/[\w/]+\.py|test_\w+)", cell)


@cache
def _is_storm(file: str, test: str) -> bool:
    """Return whether a test, or a module without a name of a test, is marked at the module or at the function."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    whole = any(
        isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "pytestmark" and "storm" in ast.unparse(n.value)
        for n in tree.body
    )
    functions = [
        n
        for n in tree.body
        if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.name.startswith(test or "test_")
    ]
    return whole or all(any(ast.unparse(d) == "pytest.mark.storm" for d in n.decorator_list) for n in functions)
