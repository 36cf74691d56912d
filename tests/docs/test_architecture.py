"""The map for contributors: every file that it names exists, and every room is on it."""

import re
from pathlib import Path

import pytest

import tickwright

ROOT = Path(tickwright.__file__).parent
TEXT = (ROOT.parents[1] / "docs/architecture.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([a-z_]+/[\w/.-]+)`", TEXT)))
PARTS = sorted(
    (name, part)
    for name, parts in re.findall(r"`([a-z_]+/[\w/.-]+)` \(((?:`\w+`(?:, )?)+)[):]", TEXT)
    for part in re.findall(r"\w+", parts)
)


@pytest.mark.parametrize("name", NAMED)
def test_a_file_of_the_map_exists(name: str) -> None:
    """The map names a file that has moved by its new path."""
    assert name.startswith("sql/") or (ROOT / name).exists() or (ROOT.parents[1] / name).exists()


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_a_part_that_the_map_names_is_in_its_file(name: str, part: str) -> None:
    """The map names a function or a query that has moved by its new file."""
    assert re.search(rf"(class|def|name:|FUNCTION|TRIGGER) {part}\b", (ROOT / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize(("module", "name"), sorted(set(re.findall(r"`(\w+)\.([A-Z_]+)`", TEXT))))
def test_a_constant_of_the_map_exists(module: str, name: str) -> None:
    """The map has names of constants instead of their values, which change."""
    assert any(
        re.search(rf"^{name}\b", path.read_text(encoding="utf-8"), re.MULTILINE) for path in ROOT.rglob(f"{module}.py")
    )


def test_every_room_is_on_the_map() -> None:
    """A newcomer finds every room on the map."""
    rooms = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()} - {"bench"}
    picture = TEXT.split("```")[1]
    assert rooms <= set(re.findall(r"\w+", picture))


@pytest.mark.parametrize(
    ("section", "files_max"), [("## A job, from INSERT to done", 8), ("## A report, from request to file", 18)]
)
def test_an_item_passes_few_files(section: str, files_max: int) -> None:
    """An item is followed by reading the modules of the first table after the section's title, and no others."""
    _, _, rest = TEXT.partition(f"{section}\n")
    table = re.search(r"^(?:\|.*\n)+", rest, re.MULTILINE)
    assert table is not None
    passed = set(re.findall(r"`([a-z_]+/[\w/]+\.py)`", table[0]))
    assert 5 < len(passed) <= files_max


READMES = sorted(path for path in ROOT.rglob("README.md") if "node_modules" not in path.parts)
FILES_OF_READMES = sorted(
    (str(readme.relative_to(ROOT)), name)
    for readme in READMES
    for name in set(re.findall(r"`([a-z_]+(?:/[a-z_.-]+)+/?|\w+\.(?:py|sql))`", readme.read_text(encoding="utf-8")))
)
CONSTANTS_OF_READMES = sorted(
    (str(readme.relative_to(ROOT)), module, name)
    for readme in READMES
    for module, name in set(re.findall(r"`((?:\w+\.)*\w+)\.([A-Z][A-Z_0-9]+)`", readme.read_text(encoding="utf-8")))
)


@pytest.mark.parametrize(("readme", "name"), FILES_OF_READMES)
def test_a_file_that_a_readme_names_exists(readme: str, name: str) -> None:
    """In its folder, the package or the repository; a module may be named without ``.py``."""
    folder = (ROOT / readme).parent
    bases = (folder, folder / "src", ROOT, ROOT.parents[1])
    paths = [base / file for base in bases for file in (name, f"{name}.py", f"{name}.ts")]
    assert any(path.exists() for path in paths) or any(folder.rglob(name))


@pytest.mark.parametrize(("readme", "module", "name"), CONSTANTS_OF_READMES)
def test_a_constant_that_a_readme_names_exists(readme: str, module: str, name: str) -> None:
    """A limit of a README has the name of its constant and of the module that has it."""
    files = ROOT.rglob(module.replace(".", "/").rpartition("/")[2] + ".py")
    assert any(re.search(rf"^\s*{name}\b", path.read_text(encoding="utf-8"), re.MULTILINE) for path in files)
