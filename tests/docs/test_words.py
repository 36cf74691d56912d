"""Words that are out of use here appear in no text that people read (the terms are in ``docs/glossary.md``).

Read are the pages of ``docs/``, READMEs, every text, docstring and comment of the product (so also helps of the command
line, descriptions of OpenAPI, log events and errors), the source of the dashboard, and docstrings, comments and names
of the tests.
"""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/tickwright"

OUT = {
    "release": ["give back", "gives back", "given back", "gave back", "giving back"],
    "dead-letter": ["bury", "buries", "buried", "burying"],
    "wake-up notification": ["doorbell", "doorbells", "bell", "bells", "hearing"],
    "claim frontier, claim range": ["lanebook"],
    "result writer": ["settler", "settlers", "effector", "effectors"],
    "run claim, publish mark": ["claim book", "in turn", "runs in two", "mark in turn"],
    "breaker state, relay status": ["standing"],
    "partner dispatcher, operations, relay admin": ["desk", "desks"],
    "registry, services": ["brought", "bringing"],
    "blocked, unavailable, stopped": ["stands", "stand", "stood", "is away", "are away", "was away"],
    "deadline": ["drop-dead"],
    "event": ["news"],
    "again, new": ["anew"],
    "a named program or role": ["whoever", "nobody", "somebody", "nobody's", "somebody's"],
    "search, check": ["a look"],
    "reported, said by a named subject": ["is told", "are told", "was told", "were told"],
}
"""What is out, by what is said instead."""

ALLOWED = re.compile(
    r"``[^`]*``|`[^`]*`"  # names of code, columns, keys and statuses
    r"|https?://\S+"
    r"|\]\([^)]*\)"  # targets of links
    r"|\bDropDeadAt\b|\bpoll_news\b"
    r"|\bas it stands\b|\bstandby\b"
)
_WORD = re.compile(
    rf"(?<![\w-])(?:{'|'.join(word for words in OUT.values() for word in words)})(?![\w-])", re.IGNORECASE
)
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)

_LOGS = {"debug", "info", "warning", "error", "exception", "critical"}


def found_in(text: str) -> list[str]:
    """Return the words of a text that are out."""
    return [word.lower() for word in _WORD.findall(ALLOWED.sub(" ", text))]


def page_texts(path: Path) -> Iterator[str]:
    """Give the prose of a page, without its programs."""
    yield _FENCE.sub("", path.read_text(encoding="utf-8"))


def product_texts(path: Path) -> Iterator[str]:
    """Give the comments, and the strings that are sentences or names of log events: without SQL and codes."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.value
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _LOGS:
            yield from (str(value.value).replace("_", " ") for value in node.args if isinstance(value, ast.Constant))
    yield from _comments(source)


def suite_texts(path: Path) -> Iterator[str]:
    """Give the comments, the docstrings and the names of a module of the tests."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
            yield getattr(node, "name", path.stem).replace("_", " ")
    yield from _comments(source)


def _comments(source: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def dashboard_texts(path: Path) -> Iterator[str]:
    """Give a file of the dashboard as a whole; templates are texts there, so its quotes are removed."""
    yield path.read_text(encoding="utf-8").replace("`", " ")


def texts() -> Iterator[tuple[str, str]]:
    """Give every text with its place."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *SOURCE.rglob("README.md")]
    web = SOURCE / "dashboard/web/src"
    readers = [
        (page_texts, [page for page in pages if "node_modules" not in page.parts and page.name != "CHANGELOG.md"]),
        (product_texts, SOURCE.rglob("*.py")),
        (suite_texts, [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]),
        (dashboard_texts, [path for path in web.rglob("*.ts*") if path.name != "schema.d.ts"]),
    ]
    for reader, paths in readers:
        for path in sorted(paths):
            for text in reader(path):
                yield path.relative_to(ROOT).as_posix(), text


def counts() -> dict[str, dict[str, int]]:
    """Return the words that are out, by place."""
    by_place: dict[str, Counter[str]] = {}
    for place, text in texts():
        words = found_in(text)
        if words:
            by_place.setdefault(place, Counter()).update(words)
    return {place: dict(sorted(words.items())) for place, words in sorted(by_place.items())}


def test_no_text_has_a_word_that_is_out() -> None:
    """A reader meets one term for one thing: that of the glossary."""
    assert counts() == {}


def test_the_glossary_says_what_is_said_instead() -> None:
    """Every term that is used instead of a word that is out is in the glossary."""
    glossary = (ROOT / "docs/glossary.md").read_text(encoding="utf-8").lower()
    terms = ["release", "dead letter", "wake-up notification", "claim range", "result writer", "run claim"]
    terms += ["publish mark", "breaker state", "relay status", "partner dispatcher", "deadline", "consumer snapshot"]
    assert [term for term in terms if term not in glossary] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the job is given back", ["given back"]),
        ("one bell, and `bell` is a column", ["bell"]),
        ("understanding news-like", []),
        ("Nobody reads it", ["nobody"]),
    ],
)
def test_words_are_found_as_whole_words(text: str, words: list[str]) -> None:
    """Names in code marks, parts of words and compounds are left alone."""
    assert found_in(text) == words
