"""What installs and checks the product is pinned: versions with hashes, actions by commit, and no sudo."""

import importlib.util
import re
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")


def locked() -> Any:
    """Import the script that cuts the lock."""
    spec = importlib.util.spec_from_file_location("locked", ROOT / "scripts" / "locked.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def needed(name: str, seen: set[str]) -> set[str]:
    """Return what a distribution needs here, with what that needs, by the metadata of what is installed."""
    for text in distribution(name).requires or []:
        wanted = Requirement(text)
        child = canonicalize_name(wanted.name)
        if child not in seen and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
            seen.add(child)
            needed(child, seen)
    return seen


def test_every_line_of_the_lock_has_its_hash() -> None:
    """A file with other bytes than those that were looked at is not installed."""
    blocks = locked().blocks(LOCK)
    assert len(blocks) > 100
    assert [block.splitlines()[0] for block in blocks if "--hash=sha256:" not in block] == []


def test_the_product_gets_all_that_it_needs_and_no_tool_of_ours() -> None:
    """The part of the lock is complete, since nothing is resolved; pip and the build back end are in it."""
    module = locked()
    product = {module.name_of(block) for block in module.product(LOCK)}
    assert needed("tickwright", {"pip", "hatchling", "editables"}) <= product
    assert not {"pytest", "ruff", "mypy", "moto", "uv"} & product
    assert "uv" in {module.name_of(block) for block in module.blocks(LOCK)}


def test_no_script_calls_sudo() -> None:
    """A script says what to type; it is not root because somebody's sudo asks for no password."""
    for script in (ROOT / "scripts").glob("*.sh"):
        calls = [line for line in script.read_text().splitlines() if re.match(r"[^#\"']*\bsudo\b", line)]
        assert calls == [], script


def test_actions_are_pinned_by_commit() -> None:
    """A tag can be moved to another commit; a commit cannot."""
    uses = [
        step["uses"]
        for file in (ROOT / ".github" / "workflows").glob("*.yml")
        for job in yaml.safe_load(file.read_text())["jobs"].values()
        for step in job["steps"]
        if "uses" in step
    ]
    assert len(uses) > 2
    assert [used for used in uses if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", used)] == []
