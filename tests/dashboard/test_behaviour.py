"""The dashboard in every view: fresh or stale, dark or light, by keyboard, on a phone, without the API."""

import re

import pytest
from playwright.sync_api import Route

from kit.pages import Site, Visitors

VIEWS = ("/overview", "/jobs", "/task-types", "/dead-letters")


@pytest.fixture(scope="module", autouse=True)
def some_work(site: Site) -> None:
    """A job that failed, and one that waits."""
    site.until(site.schedule("page.broken"), "failed")
    site.schedule("page.greet", delay="1d")


@pytest.mark.matrix
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", VIEWS)
def test_axe_finds_nothing_serious(visit: Visitors, path: str, scheme: str) -> None:
    """Labels, roles, contrast: in both schemes."""
    screen = visit("admin", path, scheme=scheme)
    screen.page.get_by_role("table").first.wait_for()
    assert screen.findings() == []


def test_axe_finds_nothing_serious_in_the_drawer_of_a_job(visit: Visitors, site: Site) -> None:
    """With the confirmation above it."""
    job = site.schedule("page.greet", delay="1h")
    screen = visit("operator", f"/jobs?job={job}")
    screen.page.get_by_role("button", name="Cancel", exact=True).click()
    screen.page.get_by_role("button", name="Cancel 1 job").wait_for()
    assert screen.findings() == []


def test_axe_finds_nothing_serious_at_the_sign_in(visit: Visitors) -> None:
    """The view of a browser that is not signed in."""
    screen = visit(None, "/jobs")
    screen.may_complain = True  # the 401 of the first request
    screen.page.get_by_label("API key").wait_for()
    assert screen.findings() == []


@pytest.mark.matrix
@pytest.mark.parametrize("path", VIEWS)
def test_no_view_is_wider_than_a_phone(visit: Visitors, path: str) -> None:
    """At 390 px nothing is wider than the window, and the views are behind a button."""
    page = visit("viewer", path, width=390).page
    page.get_by_role("table").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    if path != "/overview":  # the remaining columns have the whole width
        assert page.locator("th:visible").last.evaluate("cell => cell.getBoundingClientRect().right") > 350
    page.get_by_role("button", name="Views").click()
    page.get_by_role("link", name="Jobs", exact=True).click()
    page.get_by_role("heading", name="Jobs", level=1).wait_for()


def test_the_colour_scheme_is_kept(visit: Visitors) -> None:
    """At first that of the system; a switch is kept across a reload."""
    page = visit("viewer", "/jobs", scheme="dark").page
    scheme = "document.documentElement.dataset.mantineColorScheme"
    page.get_by_role("button", name="Switch to the light scheme").click()
    assert page.evaluate(scheme) == "light"
    page.reload()
    page.get_by_role("button", name="Switch to the dark scheme").wait_for()
    assert page.evaluate(scheme) == "light"


def test_times_are_local_or_utc(visit: Visitors, site: Site) -> None:
    """Berlin's clock is ahead of UTC; the tooltip is always ISO 8601 in UTC."""
    job = site.schedule("page.greet", execute_at="2031-01-05T11:00:00Z")
    page = visit("viewer", "/jobs?from=2031-01-01T00:00:00Z").page
    page.get_by_role("row", name=re.compile(rf"{job}.*2031-01-05 12:00:00")).wait_for()
    page.get_by_text("UTC", exact=True).click()
    page.get_by_role("row", name=re.compile(rf"{job}.*2031-01-05 11:00:00 Z")).wait_for()
    assert page.get_by_text("2031-01-05 11:00:00 Z").first.get_attribute("title") == "2031-01-05T11:00:00.000Z"


def test_shortcuts_reach_every_view(visit: Visitors) -> None:
    """``g`` and a letter, / to the filter, ? to the list, arrows and Enter in a table, Escape out."""
    page = visit("viewer", "/overview").page
    page.get_by_role("table").first.wait_for()
    page.keyboard.press("g")
    page.keyboard.press("j")
    page.get_by_role("heading", name="Jobs", level=1).wait_for()
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.labels[0].textContent") == "Text"
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keyboard shortcuts").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    page.locator("tr[data-row='0']").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Timeline").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")


@pytest.mark.storm
def test_the_overview_follows_the_stream_and_is_stale_without_it(visit: Visitors, site: Site) -> None:
    """Live while messages arrive; when the API is killed a banner says since when, and it goes with a new API."""
    screen = visit("viewer", "/overview")
    screen.may_complain = True  # failed requests are in the console
    page = screen.page
    page.get_by_test_id("live").get_by_text("Live").wait_for()
    site.kill9()
    page.get_by_test_id("stale").wait_for(timeout=20_000)
    assert "Stale since" in page.get_by_test_id("stale").inner_text()
    site.start()
    page.get_by_test_id("stale").wait_for(state="detached", timeout=30_000)


def test_a_hidden_page_sends_no_requests(visit: Visitors) -> None:
    """The stream is closed while the page is hidden, and opened again when it is visible."""
    page = visit("viewer", "/overview").page
    page.get_by_test_id("live").get_by_text("Live").wait_for()
    set_hidden = "hidden => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true}); "
    set_hidden += "document.dispatchEvent(new Event('visibilitychange')) }"
    ended = re.compile(r"/v1/stream$")
    with page.expect_event("requestfailed", lambda request: bool(ended.search(request.url))):
        page.evaluate(set_hidden, True)
    with page.expect_request(ended):
        page.evaluate(set_hidden, False)


def test_without_the_stream_the_page_polls(visit: Visitors) -> None:
    """A proxy that does not pass the stream costs freshness, not the overview."""
    screen = visit(None, "/overview")
    screen.may_complain = True
    screen.page.route("**/v1/stream", lambda route: route.fulfill(status=502, body="bad gateway"))
    screen.page.get_by_label("API key").fill(screen.site.keys["viewer"])
    screen.page.get_by_role("button", name="Sign in").click()
    screen.page.get_by_test_id("live").get_by_text("Polling").wait_for()
    screen.page.get_by_role("region", name="Due").wait_for()


@pytest.mark.matrix
@pytest.mark.parametrize(
    "path",
    [
        "/jobs?from=%2B275760-09-13T00:00:00Z",
        "/jobs?to=-000044-03-15T00:00:00Z",
        "/slices?replay=%2B275760-09-13T00:00:00Z&until=2026-13-45",
        "/slices?figure=constructor",
    ],
)
def test_an_invalid_address_breaks_no_view(visit: Visitors, path: str) -> None:
    """The API refuses a filter that it does not know, or the view leaves it out; the view still renders."""
    screen = visit("operator", path)
    screen.may_complain = True  # the API refuses an invalid instant, and browsers log that
    screen.page.get_by_role("search", name="Filters").wait_for()
    screen.page.wait_for_load_state("load")
    if "figure" not in path:
        screen.page.get_by_text("Request failed").first.wait_for()
    assert screen.page.get_by_text("This view is broken").count() == 0
    assert [line for line in screen.complaints if "Error:" in line] == []


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("body", "shown"),
    [("<html>sign in to the Wi-Fi</html>", "no_json"), ('{"items": [{', "no_json"), ("{}", "This view is broken")],
)
def test_an_answer_that_is_not_from_the_api_is_an_error_message(visit: Visitors, body: str, shown: str) -> None:
    """Neither a list nor the whole page is blank when a proxy or another release answers."""
    screen = visit("operator", "/task-types")
    screen.may_complain = True
    page = screen.page
    jobs = page.get_by_role("link", name="Jobs", exact=True)
    jobs.wait_for()  # the first response says who is signed in
    page.route(re.compile(r"/v1/(jobs\?|session)"), lambda route: route.fulfill(status=200, body=body))
    jobs.click()
    page.get_by_text(shown).first.wait_for(timeout=20_000)
    page.get_by_text("Reload").first.wait_for()


def test_an_action_without_a_network_fails_at_once_and_is_not_sent_later(visit: Visitors, site: Site) -> None:
    """The user sees the failure; when the network is back, the abandoned action is not sent."""
    job = site.schedule("page.greet", delay="1h")
    screen = visit("operator", f"/jobs?job={job}")
    screen.may_complain = True
    page = screen.page
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("button", name="Cancel 1 job").wait_for()
    page.context.set_offline(True)
    screen.confirm("Cancel 1 job")
    page.get_by_text("(no_answer)").wait_for()
    with page.expect_response(re.compile(rf"/v1/jobs/{job}$")):
        page.context.set_offline(False)
    assert site.status(job) == "pending"


def test_a_snapshot_that_cannot_be_drawn_is_an_error_message(visit: Visitors) -> None:
    """The frame of the page fails with it, and still the page is not blank."""
    screen = visit(None, "/jobs")
    screen.may_complain = True
    page = screen.page
    page.route("**/v1/stream", lambda route: route.fulfill(status=502, body="bad gateway"))
    empty = '{"at": "2026-01-01T00:00:00Z", "series": {"at": []}}'
    page.route("**/v1/overview", lambda route: route.fulfill(status=200, body=empty))
    page.get_by_label("API key").fill(screen.site.keys["viewer"])
    page.get_by_role("button", name="Sign in").click()
    page.get_by_text("This view is broken").wait_for()


def test_a_view_shows_the_error_of_the_api_and_retries(visit: Visitors) -> None:
    """The code of the problem is shown with its detail; a successful retry shows the list."""
    slow = '{"title":"x","status":503,"code":"query_too_slow","detail":"this took too long; narrow the filter"}'

    def too_slow(route: Route) -> None:
        route.fulfill(status=503, content_type="application/problem+json", body=slow)

    screen = visit("viewer", "/overview")
    screen.may_complain = True
    page = screen.page
    page.route(re.compile(r"/v1/jobs\?"), too_slow)
    page.get_by_role("link", name="Jobs", exact=True).click()
    page.get_by_text("query_too_slow").wait_for(timeout=20_000)
    page.get_by_text("this took too long; narrow the filter").wait_for()
    page.unroute(re.compile(r"/v1/jobs\?"))
    page.get_by_role("button", name="Try again").click()
    page.get_by_role("table").wait_for()
