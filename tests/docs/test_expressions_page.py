"""The examples on the page of expressions are accepted, translated and refused as its tables state."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tickwright.capabilities.batches.expressions import allowed as bounds
from tickwright.capabilities.batches.expressions import compile_expression, problems
from tickwright.domain.errors import Rejected
from tickwright.ports.batches import FieldType

PAGE = (Path(__file__).parents[2] / "docs/expressions.md").read_text(encoding="utf-8")
PACKAGE = Path(bounds.__file__).parent
NOW = datetime(2026, 3, 1, tzinfo=UTC)
FIELDS: dict[str, FieldType] = {
    "age": "int", "income": "double", "debt": "double", "country": "string", "email": "string", "name": "string",
    "active": "bool", "since": "timestamp",
}  # fmt: skip


def rows(name: str) -> Iterator[list[str]]:
    """Give the rows of a table, without its head."""
    found = re.search(rf"<!-- {name}: begin, tested -->\n(.*?)<!-- {name}: end -->", PAGE, re.DOTALL)
    assert found is not None
    for line in found[1].splitlines()[2:]:
        yield [cell.strip().strip("`").replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


@pytest.mark.parametrize(("text", "judged"), [(row[0], row[2]) for row in rows("written")])
def test_an_example_is_accepted_and_translated_as_the_page_states(text: str, judged: str) -> None:
    """Into SQL for both databases, or judged row by row for both."""
    made = compile_expression(text, FIELDS)
    translated = {"in SQL": True, "one by one": False}[judged]
    assert (made.sql("postgresql", str, NOW) is not None) is translated
    assert (made.sql("duckdb", str, NOW) is not None) is translated


@pytest.mark.parametrize(("code", "text"), [(row[0], row[1]) for row in rows("refused")])
def test_a_refused_example_has_the_code_on_the_page(code: str, text: str) -> None:
    """One example each."""
    with pytest.raises(Rejected) as caught:
        compile_expression(text, FIELDS)
    assert caught.value.code == code


def test_every_code_and_every_bound_is_on_the_page() -> None:
    """The code raises none that the page leaves out."""
    made = {
        code for path in PACKAGE.glob("*.py") for code in re.findall(r'Problem\(\s*"(\w+)"', path.read_text("utf-8"))
    }
    assert {row[0] for row in rows("refused")} == made
    limits = [
        f"{bounds.TEXT_CHARS_MAX:,} characters", f"{bounds.NODES_MAX} pieces", f"{problems.DEPTH_MAX} levels",
        f"{bounds.ITEMS_MAX:,} elements", f"patterns of {bounds.PATTERN_CHARS_MAX}", f"{bounds.JOINS_MAX} pluses",
    ]  # fmt: skip
    said = " ".join(PAGE.split())
    assert [limit for limit in limits if limit not in said] == []
