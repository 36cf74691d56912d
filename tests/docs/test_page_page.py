"""The page about the dashboard names every view with its keys, and its pictures are small and all used."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/page.md").read_text(encoding="utf-8")
VIEWS = ROOT / "src/tickwright/dashboard/web/src/views"
BYTES_MAX = 150_000


def views() -> dict[str, str]:
    """Return the views of the source: title and keys."""
    found = {}
    for file in VIEWS.glob("*/view.ts"):
        for one in re.split(r"path: ", file.read_text(encoding="utf-8"))[1:]:
            title, key = re.search(r'title: "([^"]+)"', one), re.search(r'\bkey: "(.)"', one)
            assert title is not None, file
            found[title[1]] = f"`g {key[1]}`" if key else "–"
    return found


def test_every_view_has_its_line_with_its_keys() -> None:
    """And no line is about a view that is gone."""
    said = dict(re.findall(r"^\| ([\w -]+) \| (`g .`|–) \|", PAGE, re.MULTILINE))
    assert len(said) > 20
    assert said == views()


def test_pictures_are_small_and_each_is_shown_somewhere() -> None:
    """Small pictures keep a clone small."""
    pages = PAGE + (ROOT / "README.md").read_text(encoding="utf-8")
    pictures = sorted((ROOT / "docs/images").glob("*.png"))
    assert len(pictures) >= 5
    assert [one.name for one in pictures if one.stat().st_size > BYTES_MAX or f"images/{one.name}" not in pages] == []
