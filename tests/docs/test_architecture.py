"""The map for contributors: every file that it names exists, and every room is on it."""

import re
from pathlib import Path

import pytest

import tickwright

ROOT = Path(tickwright.__file__).parent
TEXT = (ROOT.parents[1] / "docs/architecture.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([a-z_]+/[\w/.]+)`", TEXT)))


@pytest.mark.parametrize("name", NAMED)
def test_a_file_of_the_map_exists(name: str) -> None:
    """A file that moves takes its name on the map along."""
    assert name.startswith("sql/") or (ROOT / name).exists()


def test_every_room_is_on_the_map() -> None:
    """A room without a place on it is a room that a newcomer does not find."""
    rooms = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()} - {"bench"}
    picture = TEXT.split("```")[1]
    assert rooms <= set(re.findall(r"\w+", picture))
