"""A page of the audit trail reads the rows that it shows, or, with a filter, its bound and no more."""

from collections.abc import Iterator
from typing import Any

import pytest

from kit.fix_plans import Planner
from tickwright.capabilities.operations.listings import _SQL as SQL
from tickwright.capabilities.operations.listings import AUDIT_ROWS_SEARCHED_MAX
from tickwright.store.paging import NEWEST

FILL = """
INSERT INTO tickwright.audit (actor, action, subject)
SELECT 'ann', 'jobs.cancel', 'job:' || n FROM generate_series(1, 50000) AS n
"""


@pytest.fixture(scope="module")
def crowd(module_url: str) -> Iterator[Planner]:
    """A planner on fifty thousand entries of the audit trail."""
    planner = Planner(module_url)
    planner.run(FILL)
    planner.run("ANALYZE tickwright.audit")
    yield planner
    planner.close()


def test_a_page_without_a_filter_reads_what_it_shows(crowd: Planner) -> None:
    """The newest entries, from the primary key."""
    plan = crowd.explain_page(SQL["list_audit"], NEWEST, None, None, None, None, 51, AUDIT_ROWS_SEARCHED_MAX)
    assert plan.scans_of("audit") == {"audit_pkey"}, plan.text
    assert plan.rows_of("audit") <= 51, plan.text


@pytest.mark.parametrize(
    "filters",
    [
        ("no.such", None, None, None),
        (None, "partners.", None, None),
        (None, None, "x", None),
        (None, None, None, "bob"),
    ],
    ids=["action", "how it begins", "subject", "actor"],
)
def test_a_page_that_finds_nothing_reads_its_bound(crowd: Planner, filters: tuple[Any, ...]) -> None:
    """Once for the search, and once for its position; nothing is sorted."""
    plan = crowd.explain_page(SQL["list_audit"], NEWEST, *filters, 51, AUDIT_ROWS_SEARCHED_MAX)
    assert plan.scans_of("audit") == {"audit_pkey"}, plan.text
    assert plan.rows_of("audit") <= 2 * AUDIT_ROWS_SEARCHED_MAX, plan.text
