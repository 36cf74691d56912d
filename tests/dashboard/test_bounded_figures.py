"""How the dashboard shows figures that are bounds or missing: never as a number that looks exact."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Route

from kit.pages import Screen, Site, Visitors
from kit.servers import PostgresServer
from kit.work_pages import fill, quiet_site

Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def site(pg_server: PostgresServer, template_database: str) -> Iterator[Site]:
    """An account with trackers at one partner; no process polls."""
    with quiet_site(pg_server, template_database) as made:
        fill(made)
        yield made


def changed(screen: Screen, address: str, change: Change) -> None:
    """Change the API's real answers at an address."""

    def passed_on(route: Route) -> None:
        answer = route.fetch()
        answered = answer.json()
        change(answered)
        route.fulfill(response=answer, json=answered)

    screen.page.route(re.compile(address), passed_on)


def without_stream(screen: Screen) -> None:
    """Let the page poll the overview instead."""
    screen.may_complain = True
    screen.page.route("**/v1/stream", lambda route: route.fulfill(status=502, body="bad gateway"))


def test_a_truncated_count_is_shown_as_a_bound_and_zero_as_unknown(visit: Visitors) -> None:
    """Never ``0+``, and no plus after an exact count."""

    def busy(answered: dict[str, Any]) -> None:
        answered["counts"].update(pending=0, failed=1949, cancelled=7)
        answered["at_least"] = ["pending", "failed"]

    screen = visit("viewer", "/keys")
    changed(screen, r"/v1/jobs:counts", busy)
    tabs = screen.open("/jobs").page.get_by_role("group", name="State")
    tabs.get_by_text("1,949+").wait_for()
    shown = {tab.split()[0]: tab.split()[1:] for tab in tabs.get_by_role("button").all_inner_texts()}
    assert (shown["pending"], shown["failed"], shown["cancelled"]) == (["unknown"], ["1,949+"], ["7"])


def test_counts_of_reports_with_one_bound_are_all_shown_as_bounds(visit: Visitors) -> None:
    """Where counting stopped none of them is exact, also one below the bound."""

    def crowded(answered: dict[str, Any]) -> None:
        answered["reports"].update(waiting=9_000, running=1_000, finished=0, failed=10_000)

    screen = visit("viewer", "/keys")
    without_stream(screen)
    changed(screen, r"/v1/overview", crowded)
    row = screen.open("/overview").page.locator("tr").filter(has=screen.page.get_by_role("link", name="Reports"))
    row.get_by_text("9,000+").wait_for()
    assert "1,000+ running, unknown finished in the last hour" in row.inner_text()
    assert "10,000+ failed in the last hour" in row.inner_text()


def test_figures_that_leave_out_task_types_are_bounds(visit: Visitors) -> None:
    """Where jobs have more types than are counted, no figure of them is exact, and zero is unknown."""

    def partial(answered: dict[str, Any]) -> None:
        answered["jobs"].update(due=0, waiting=12, partial=True)

    screen = visit("viewer", "/keys")
    without_stream(screen)
    changed(screen, r"/v1/overview", partial)
    page = screen.open("/overview").page
    page.get_by_role("region", name="Upcoming").get_by_text("12+").wait_for()
    due = page.get_by_role("region", name="Due", exact=True).inner_text()
    assert "unknown" in due
    assert "not counted" in due


def test_a_missing_figure_is_shown_as_unknown(visit: Visitors) -> None:
    """Before the first overview a tile says so."""
    screen = visit("viewer", "/keys")
    without_stream(screen)
    screen.page.route("**/v1/overview", lambda route: None)
    page = screen.open("/outbox").page
    for tile in ("Waiting messages", "Dead letters"):
        region = page.get_by_role("region", name=tile)
        region.wait_for()
        assert "–" in region.inner_text()
        assert "0" not in region.inner_text()


@pytest.mark.parametrize(
    ("now", "then", "warned"), [(30.0, 20.0, "Still more than dhl allows"), (20.0, 30.0, "More than dhl allows")]
)
def test_only_a_change_that_raises_the_load_shows_a_warning(
    visit: Visitors, now: float, then: float, warned: str
) -> None:
    """After a longer interval the load may still be too high, but the change does not cause it."""

    def too_much(answered: dict[str, Any]) -> None:
        [partner] = answered["partners"]
        partner.update(all_now=now, all_then=then, used_then=then / 10, rate_per_s=10.0, over=True)

    screen = visit("admin", "/keys")
    changed(screen, r"/v1/accounts/acme/preview", too_much)
    page = screen.open("/accounts?account=acme").page
    page.get_by_role("button", name="Edit with a preview").click()
    page.get_by_label("Interval, minutes").fill("180")
    page.get_by_text(warned, exact=True).wait_for()
    assert page.get_by_text(re.compile("ore than dhl allows")).count() == 1
