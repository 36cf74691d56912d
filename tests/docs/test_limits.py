"""The limits that a capability's README states are those of its code."""

import re
from dataclasses import asdict, is_dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import tickwright

ROOT = Path(tickwright.__file__).parent / "capabilities"
_ROW = re.compile(r"^\| (?P<said>[^|]+) \| (?P<names>(?:`\w+\.\w+`[ ,·]*)+) \|$", re.MULTILINE)
_NAME = re.compile(r"`(\w+)\.(\w+)`")
_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_UNITS_S = {"ms": 0.001, "s": 1, "min": 60, "minutes": 60, "day": 86_400, "days": 86_400, "years": 366 * 86_400}
_NAMED_S = {0.5: "half a second", 1: "a second", 60: "a minute", 3600: "an hour"}
_SHARES = {4: "a quarter", 8: "an eighth"}


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


def _limits() -> list[tuple[str, str, str, str]]:
    found = []
    for page in sorted(ROOT.glob("*/README.md")):
        for row in _ROW.finditer(page.read_text(encoding="utf-8")):
            found += [(page.parent.name, module, name, row["said"]) for module, name in _NAME.findall(row["names"])]
    return found


@pytest.mark.parametrize(("capability", "module", "name", "said"), _limits())
def test_a_limit_in_a_readme_is_the_one_of_the_code(capability: str, module: str, name: str, said: str) -> None:
    """Whoever reads 2,000 rows a claim can rely on it: a constant that changes changes its row."""
    value = getattr(import_module(f"tickwright.capabilities.{capability}.{module}"), name)
    values = list(asdict(value()).values()) if isinstance(value, type) and is_dataclass(value) else [value]
    for one in values:
        assert any(re.search(rf"(?<![\d.,]){re.escape(text)}(?![\d])", said) for text in _spellings(one)), (one, said)


def test_the_limits_are_found() -> None:
    """A table that is written in another way does not escape the test above unseen."""
    assert {capability for capability, *_ in _limits()} >= {"jobs"}
    assert len(_limits()) > 20
