"""What installs and checks the product is pinned: versions with hashes, actions by commit, and no sudo."""

import importlib.util
import re
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
KNOWN = {"id": "PYSEC-2026-1", "fix_versions": ["2"]}
SKIPPED = {"skip_reason": "Dependency not found on PyPI and could not be audited: b (1)"}
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")


def script(name: str) -> Any:
    """Import a script."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
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
    """A file with other bytes than those that were locked is not installed."""
    blocks = script("locked").blocks(LOCK)
    assert len(blocks) > 100
    assert [block.splitlines()[0] for block in blocks if "--hash=sha256:" not in block] == []


def test_the_product_gets_all_that_it_needs_and_no_tool_of_ours() -> None:
    """The part of the lock is complete, since nothing is resolved; pip and the build back end are in it."""
    module = script("locked")
    product = {module.name_of(block) for block in module.product(LOCK)}
    assert needed("tickwright", {"pip", "hatchling", "editables"}) <= product
    assert not {"pytest", "ruff", "mypy", "moto", "uv"} & product
    assert "uv" in {module.name_of(block) for block in module.blocks(LOCK)}


def test_no_script_calls_sudo() -> None:
    """A script prints what to type; it does not become root where sudo asks for no password."""
    for path in (ROOT / "scripts").glob("*.sh"):
        calls = [line for line in path.read_text().splitlines() if re.match(r"[^#\"']*\bsudo\b", line)]
        assert calls == [], path


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


@pytest.mark.parametrize(
    ("reader", "report", "code"),
    [
        ("of_python", {"dependencies": [{"name": "a", "version": "1", "vulns": []}]}, 0),
        ("of_python", {"dependencies": [{"name": "a", "version": "1", "vulns": [KNOWN]}, {"name": "b", **SKIPPED}]}, 1),
        ("of_python", {"dependencies": [{"name": "a", "version": "1", "vulns": []}, {"name": "b", **SKIPPED}]}, 3),
        ("of_python", {"message": "no route"}, 3),
        ("of_npm", {"vulnerabilities": {}}, 0),
        ("of_npm", {"vulnerabilities": {"vite": {"severity": "high", "range": "<9"}}}, 1),
        ("of_npm", {"message": "405 Method Not Allowed"}, 3),
    ],
)
def test_an_index_that_does_not_answer_is_not_taken_for_one_that_knows_nothing(
    reader: str, report: dict[str, Any], code: int
) -> None:
    """What was not looked up is not clean; what is known of one package is reported although another one is unknown."""
    audit = script("audit")
    assert getattr(audit, reader)(report)[0] == code


def test_the_workflow_looks_up_what_is_known_of_our_packages() -> None:
    """With each change, and each week without one."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert "make audit" in [step.get("run") for step in workflow["jobs"]["audit"]["steps"]]
    assert workflow[True]["schedule"]  # YAML reads the key `on` as true
    assert "scripts/audit.py" in (ROOT / ".ci" / "run").read_text()
