"""The limits that a capability's README states are those of its code."""

import ast
import re
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from datetime import timedelta
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tickwright
from tickwright.domain.retries import RetryPolicy

PACKAGE = Path(tickwright.__file__).parent
LIMITS_MIN = {"jobs": 25, "polling": 20, "fanout": 25, "reports": 30, "batches": 15}
DECISIONS = {
    ("0007-look-ahead-without-a-hold.md", "at most {:,}"): "jobs.worker.claimer.PREFETCH_MAX",
    ("0008-claim-ranges-and-keyset-bounds.md", "Claims of {:,} rows"): "jobs.worker.claimer.BATCH_MAX",
    ("0008-claim-ranges-and-keyset-bounds.md", "results of {:,} a statement"): "jobs.worker.result_writer.BATCH_MAX",
    ("0019-expressions-have-one-tree.md", "{:,} pieces"): "batches.expressions.allowed.NODES_MAX",
    ("0019-expressions-have-one-tree.md", "{:,} levels"): "batches.expressions.problems.DEPTH_MAX",
    ("0019-expressions-have-one-tree.md", "{:,} elements"): "batches.expressions.allowed.ITEMS_MAX",
}
"""Numbers of the code in decision records."""
_ROW = re.compile(r"^\| (?P<said>[^|]+) \| (?P<names>(?:`[\w/]+\.\w+(?:\.\w+)?`[ ,·]*)+) \|$", re.MULTILINE)
_NAME = re.compile(r"`([\w./]+)\.(\w+)`")
_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_UNITS_S = {"ms": 0.001, "s": 1, "min": 60, "minutes": 60, "day": 86_400, "days": 86_400, "years": 366 * 86_400}
_NAMED_S = {0.5: "half a second", 1: "a second", 60: "a minute", 3600: "an hour"}
_SHARES = {4: "a quarter", 8: "an eighth"}


class Limit(NamedTuple):
    """One constant that a row of a README names, with what the row says of it."""

    capability: str
    module: str
    name: str
    said: str


def _spellings(value: Any) -> set[str]:
    """Return the ways in which a table may write a limit: a number, a size, a time."""
    if isinstance(value, timedelta):
        return _times(value.total_seconds())
    sizes = {f"{value / 1024**power:g} {unit}" for power, unit in ((1, "KiB"), (2, "MiB"), (3, "GiB"))}
    return {
        *_counts(value),
        *sizes,
        *_times(value),
        *_times(value / 1000),
        *_times(value * 60),
        _SHARES.get(value, "no share"),
    }


def _times(value_s: float) -> set[str]:
    counts = {f"{count} {unit}" for unit, one_s in _UNITS_S.items() for count in _counts(value_s / one_s)}
    return counts | {_NAMED_S.get(value_s, "no time")}


def _counts(value: float) -> set[str]:
    spelled = {f"{value:g}", f"{round(value):,}"} if value == round(value) else {f"{value:g}"}
    return spelled | ({_WORDS[round(value)]} if value in range(len(_WORDS)) else set())


@cache
def _defined(room: str) -> dict[str, list[str]]:
    """Return the modules of a room by the names that they assign or define."""
    found: dict[str, list[str]] = {}
    for path in sorted((PACKAGE / room).rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
            names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            for name in [node.name] if isinstance(node, ast.ClassDef) else names:
                found.setdefault(name, []).append(module)
    return found


def _module(limit: Limit) -> str:
    """Return the module of a limit: the one that the row names; in another room by its path."""
    room = f"capabilities/{limit.capability}"
    leaf = limit.module.rpartition("/")[2].rpartition(".")[2]
    modules = _defined(room).get(limit.name, []) or _defined(".").get(limit.name, [])
    named = [module for module in modules if module.rpartition(".")[2] == leaf]
    [module] = named or modules  # a name that is unique is found though its module was renamed
    return module


def _limits() -> Iterator[Limit]:
    for page in sorted((PACKAGE / "capabilities").glob("*/README.md")):
        for row in _ROW.finditer(page.read_text(encoding="utf-8")):
            for module, name in _NAME.findall(row["names"]):
                if name != "sql":
                    yield Limit(page.parent.name, module, name, row["said"])


@pytest.mark.parametrize("limit", list(_limits()), ids=lambda limit: f"{limit.capability}-{limit.name}")
def test_a_limit_in_a_readme_is_the_one_of_the_code(limit: Limit) -> None:
    """A row states the current value of its constant."""
    value = getattr(import_module(_module(limit)), limit.name)
    values = list(asdict(value()).values()) if isinstance(value, type) and is_dataclass(value) else [value]
    if isinstance(value, RetryPolicy):
        values = [value.cap]
    for one in values:
        assert any(re.search(rf"(?<![\d.,]){re.escape(text)}(?![\d])", limit.said) for text in _spellings(one)), one


def test_the_limits_are_found() -> None:
    """The test above finds the tables of every capability."""
    found = [limit.capability for limit in _limits()]
    assert {capability: found.count(capability) for capability in LIMITS_MIN} == {
        capability: max(least, found.count(capability)) for capability, least in LIMITS_MIN.items()
    }


@pytest.mark.parametrize(("place", "constant"), DECISIONS.items(), ids=str)
def test_a_number_in_a_decision_record_is_the_one_of_the_code(place: tuple[str, str], constant: str) -> None:
    """A record states the number of today; what was measured before is named as such."""
    module, _, name = constant.rpartition(".")
    value = getattr(import_module(f"tickwright.capabilities.{module}"), name)
    record = (PACKAGE.parents[1] / "docs/adr" / place[0]).read_text(encoding="utf-8")
    assert place[1].format(value) in " ".join(record.split())
