"""The dashboard in case of faults: a refused refresh, an invalid address, deceptive text."""

import json
import re

import pytest
from playwright.sync_api import Page, Route, expect

from kit.pages import Site, Visitors

SLOW = json.dumps({"title": "x", "status": 503, "code": "query_too_slow", "detail": "this took too long"})
TURNED = "\u202eexe.slip\u202c"
UNSEEN = "pay\u200bpal"


def refuse(page: Page, address: str) -> None:
    """Let the API refuse every later request for an address."""

    def refused(route: Route) -> None:
        route.fulfill(status=503, content_type="application/problem+json", body=SLOW)

    page.route(re.compile(address), refused)


@pytest.mark.storm
def test_a_list_stays_when_its_refresh_is_refused(visit: Visitors, site: Site) -> None:
    """The loaded rows stay, the problem is shown above them with its code, and a successful retry ends it."""
    job = site.schedule("page.greet", delay="1h")
    screen = visit("viewer", "/jobs")
    screen.may_complain = True
    row = screen.page.locator(f'tr[data-key="{job}"]')
    row.wait_for()
    refuse(screen.page, r"/v1/jobs\?")
    screen.page.get_by_text("query_too_slow").wait_for(timeout=20_000)
    screen.page.get_by_text("The data below is from before this error").wait_for()
    assert row.is_visible()
    assert screen.findings() == []
    screen.page.unroute(re.compile(r"/v1/jobs\?"))
    screen.page.get_by_role("button", name="Try again").click()
    screen.page.get_by_text("query_too_slow").wait_for(state="detached")
    assert row.is_visible()


@pytest.mark.matrix
@pytest.mark.parametrize(("path", "requested", "shown"), [
    ("/jobs?job={job}", r"/v1/jobs/\d+$", "Timeline"),
    ("/workers?worker={worker}", r"/v1/workers/\d+$", "What it holds"),
])  # fmt: skip
def test_a_drawer_stays_when_its_refresh_is_refused(
    visit: Visitors, site: Site, path: str, requested: str, shown: str
) -> None:
    """Its content stays, and it says that it is not refreshed."""
    job = site.schedule("page.greet", delay="1h")
    worker = site.ask("GET", "/v1/workers")["items"][0]["id"]
    screen = visit("viewer", path.format(job=job, worker=worker))
    screen.may_complain = True
    part = screen.page.get_by_role("dialog").get_by_role("heading", name=shown)
    part.wait_for()
    refuse(screen.page, requested)
    screen.page.get_by_role("dialog").get_by_text("query_too_slow").wait_for(timeout=20_000)
    assert part.is_visible()


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("path", "filter_", "value", "possible"),
    [
        ("/jobs?state=typo", "State", "typo", "pending, processing, completed, failed, cancelled"),
        ("/jobs?worker=Ada", "Worker", "Ada", "a number"),
        ("/jobs?from=yesterday", "Execute from", "yesterday", "an instant as ISO 8601"),
        ("/jobs?to=2026-02-01", "Execute before", "2026-02-01", "an instant as ISO 8601"),
        ("/jobs?to=%2B275760-09-13T00:00:00Z", "Execute before", "+275760-09-13T00:00:00Z", "an instant as ISO 8601"),
        ("/alerts?state=typo", "State", "typo", "resolved, all"),
        ("/dead-letters?kind=constructor", "Kind", "constructor", "job, outbox, fanout, reports"),
        ("/outbox?part=typo", "Part", "typo", "messages, relays, partitions"),
        ("/slices?figure=constructor", "Figure", "constructor", "expected, selected"),
        ("/entities?enabled=maybe", "Polling", "maybe", "yes, no"),
        ("/executions?status=typo", "Status", "typo", "FINISHED"),
        ("/trackers?state=typo", "State", "typo", "waiting, placed, ended"),
    ],
)
def test_an_unknown_filter_is_shown_and_can_be_removed(
    visit: Visitors, path: str, filter_: str, value: str, possible: str
) -> None:
    """A mistyped address shows more or less than intended: the view names the filter, and the values that it knows."""
    screen = visit("operator", path)
    screen.may_complain = True  # the API refuses an invalid instant
    message = screen.page.get_by_role("alert").filter(has_text="Unknown value in the filter")
    message.wait_for()
    text = message.inner_text()
    assert f"in the filter {filter_}" in text
    assert f"{value} is not known" in text
    assert possible in text
    message.get_by_role("button", name=f"Remove the filter {filter_}").click()
    message.wait_for(state="detached")
    assert "?" not in screen.page.url


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_the_message_of_an_unknown_filter(visit: Visitors, scheme: str) -> None:
    """In both schemes."""
    screen = visit("operator", "/jobs?state=typo", scheme=scheme)
    screen.page.get_by_text("typo").wait_for()
    screen.page.get_by_role("table").wait_for()
    assert screen.findings() == []


def test_bulk_actions_are_disabled_while_a_filter_is_unknown(visit: Visitors, site: Site) -> None:
    """Otherwise a typo in the state would turn "all failed jobs" into all jobs."""
    site.schedule("page.greet", delay="1h")
    page = visit("operator", "/jobs?state=faild").page
    page.get_by_text("faild").wait_for()
    assert page.get_by_role("button", name="Act on").count() == 0
    page.get_by_role("button", name="Remove the filter State").click()
    page.get_by_role("button", name="Act on").wait_for()


def test_an_unknown_name_is_shown_and_still_searched(visit: Visitors, site: Site) -> None:
    """Jobs of a type without a worker are worth a search; a typo in the name is visible all the same."""
    site.sql("INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) VALUES (now() + interval '1 day', 'gone')")
    page = visit("operator", "/jobs?type=gone").page
    message = page.get_by_role("alert").filter(has_text="Unknown name in the filter Task type")
    message.wait_for()
    assert "page.greet" in message.inner_text()
    page.get_by_role("row", name="gone").wait_for()
    page.get_by_role("button", name="Act on all that match").wait_for()
    message.get_by_role("button", name="Remove the filter Task type").click()
    message.wait_for(state="detached")


def test_deceptive_characters_are_shown_by_their_codes(visit: Visitors, site: Site) -> None:
    """Characters that reverse text or have no width are named, in lists, drawers, tooltips, payloads and errors."""
    job = site.schedule("page.greet", {TURNED: UNSEEN}, delay="2h", idempotency_key=TURNED)
    site.sql("UPDATE tickwright.scheduled_tasks SET error_message = %s WHERE id = %s", UNSEEN, job)
    page = visit("operator", "/jobs?state=pending").page
    row = page.locator(f'tr[data-key="{job}"]')
    row.get_by_text("pay").wait_for()
    assert "U+202Eexe.slipU+202C" in row.inner_text()
    assert "payU+200Bpal" in row.inner_text()
    assert row.get_by_title("[U+202E]exe.slip[U+202C]").count() == 1
    page.goto(f"{site.url}/jobs?job={job}")
    payload = page.get_by_label("payload", exact=True)
    payload.wait_for()
    assert payload.inner_text() == '{\n  "U+202Eexe.slipU+202C": "payU+200Bpal"\n}'
    page.get_by_role("button", name="Reschedule").click()
    page.get_by_role("dialog", name="Reschedule job").wait_for()
    shown = page.evaluate("document.documentElement.outerHTML")
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b]", shown)


def test_deceptive_characters_are_sent_to_the_api_unchanged(visit: Visitors, site: Site) -> None:
    """Only the display changes: a filter with such a key finds its job."""
    job = site.schedule("page.greet", delay="2h", idempotency_key=UNSEEN)
    page = visit("viewer", f"/jobs?key={UNSEEN}").page
    page.locator(f'tr[data-key="{job}"]').wait_for()
    assert page.get_by_label("Idempotency key").input_value() == UNSEEN


def test_the_first_tab_skips_to_the_content(visit: Visitors) -> None:
    """A keyboard need not pass two dozen views: the link is visible while it has the focus, and only then."""
    page = visit("viewer", "/jobs?state=pending").page
    page.get_by_role("table").wait_for()
    link = page.get_by_role("link", name="Skip to the content")
    page.keyboard.press("Tab")
    assert link.evaluate("link => link === document.activeElement && link.getBoundingClientRect().height > 20")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    assert page.url.endswith("/jobs?state=pending")
    assert link.evaluate("link => link.getBoundingClientRect().height") <= 20
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")


@pytest.mark.matrix
@pytest.mark.parametrize(
    "body", ['{"at": "never", "series": {"at": []}, "changes": {}}', '{"at": "2026-01-01T00:00:00Z"}']
)
def test_an_unreadable_snapshot_makes_the_page_stale_only(visit: Visitors, body: str) -> None:
    """It shows a code, keeps its figures, and is fresh again with the next readable one."""
    screen = visit(None, "/overview")
    screen.may_complain = True
    page = screen.page
    page.route("**/v1/stream", lambda route: route.fulfill(status=502, body="bad gateway"))
    page.get_by_label("API key").fill(screen.site.keys["viewer"])
    page.get_by_role("button", name="Sign in").click()
    due = page.get_by_role("region", name="Due", exact=True)
    due.wait_for()
    page.route("**/v1/overview", lambda route: route.fulfill(status=200, body=body))
    page.get_by_test_id("stale").wait_for(timeout=20_000)
    assert "snapshot_broken" in page.get_by_test_id("stale").inner_text()
    assert due.is_visible()
    page.unroute("**/v1/overview")
    page.get_by_test_id("stale").wait_for(state="detached", timeout=20_000)


def test_an_unreadable_stream_makes_the_page_stale_only(visit: Visitors) -> None:
    """The same for messages of the stream, while the request for a snapshot has no answer."""
    screen = visit(None, "/overview")
    screen.may_complain = True
    page = screen.page
    broken = 'retry: 300\nevent: overview\ndata: {"at": "never"}\n\n'
    page.route("**/v1/stream", lambda route: route.fulfill(status=200, content_type="text/event-stream", body=broken))
    page.get_by_label("API key").fill(screen.site.keys["viewer"])
    page.get_by_role("button", name="Sign in").click()
    due = page.get_by_role("region", name="Due", exact=True)
    due.wait_for()
    page.route("**/v1/overview", lambda route: None)
    page.get_by_test_id("stale").wait_for(timeout=20_000)
    assert "snapshot_broken" in page.get_by_test_id("stale").inner_text()
    assert due.is_visible()
    page.unroute("**/v1/stream")
    page.get_by_test_id("stale").wait_for(state="detached", timeout=20_000)


@pytest.mark.matrix
@pytest.mark.parametrize("width", [390, 768, 1060, 1180, 1440])
def test_no_tile_is_alone_in_a_row(visit: Visitors, width: int) -> None:
    """Seven tiles: in one row, in two, or in pairs with the last of double width; none is wider than its frame."""
    page = visit("viewer", "/overview", width=width).page
    page.get_by_role("region", name="Upcoming").wait_for()
    boxes = page.locator("section[aria-label='Due'] ~ section, section[aria-label='Due']").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect()).map(({top, width}) => [Math.round(top), width])"
    )
    assert len(boxes) == 7
    for top, broad in boxes:
        assert sum(1 for other, _ in boxes if other == top) > 1 or broad > 300
    tight = page.locator("section[aria-label='Due'] ~ section > *").evaluate_all(
        "all => all.filter(one => one.scrollWidth > one.clientWidth).map(one => one.textContent)"
    )
    assert tight == []


def test_the_overview_says_since_when_it_has_figures(visit: Visitors) -> None:
    """The lines cover the time since the first reader: a short one does not mean a quiet quarter of an hour."""
    page = visit("viewer", "/overview").page
    message = page.get_by_role("region", name="Backlog").get_by_text("since ")
    message.wait_for()
    assert re.fullmatch(r"since \d\d:\d\d:\d\d", message.inner_text())


def test_a_figure_of_the_overview_links_to_its_list(visit: Visitors, site: Site) -> None:
    """One click leads from a number to its list, and the title has the number of firing alerts."""
    site.sql(
        "INSERT INTO tickwright.alerts (rule, subject, severity, summary, state) "
        "VALUES ('made_up', 'x', 'warning', 'made up', 'firing')"
    )
    page = visit("viewer", "/overview").page
    expect(page).to_have_title(re.compile(r"^\(\d+\) Overview"))
    page.get_by_role("region", name="Failed per s").get_by_role("link").click()
    page.wait_for_url("**/jobs?state=failed")
    assert page.get_by_role("button", name="failed").get_attribute("aria-pressed") == "true"
