"""An entity's list of modules, as people write it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickwright.capabilities.fanout.windows import MODULE_NAME, parse_modules


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("LOCATIONS,TARIFFS", ("LOCATIONS", "TARIFFS")),
        (" locations ,Tariffs,\tLOCATIONS\n", ("LOCATIONS", "TARIFFS")),
        ("", ()),
        (" , ,", ()),
        ("CDRS", ("CDRS",)),
        ("no such,CDRS", ("NO SUCH", "CDRS")),
    ],
)
def test_a_list_written_by_hand_is_read_as_it_was_meant(text: str, names: tuple[str, ...]) -> None:
    """Spaces, small letters, duplicates and empty entries are no error."""
    assert parse_modules(text) == names


@given(st.text())
def test_reading_a_list_is_idempotent(text: str) -> None:
    """MOD-1: a stored list does not change by being stored again."""
    once = parse_modules(text)
    assert parse_modules(",".join(once)) == once
    assert len(set(once)) == len(once)


@pytest.mark.parametrize(
    ("name", "good"), [("LOCATIONS", True), ("A", True), ("A1_B", True), ("1A", False), ("a", False), ("A" * 51, False)]
)
def test_a_name_of_a_module_can_be_part_of_a_variable(name: str, *, good: bool) -> None:
    """Capitals, digits and '_', a letter first, 50 characters at most."""
    assert (MODULE_NAME.fullmatch(name) is not None) == good
