"""How the page behaves whatever the view: fresh or stale, dark or light, by keyboard, on a phone, without the API."""

import re

import pytest
from playwright.sync_api import Route

from kit.pages import Site, Visitors

VIEWS = ("/overview", "/jobs", "/task-types", "/dead-letters")


@pytest.fixture(scope="module", autouse=True)
def some_work(site: Site) -> None:
    """Something to look at: a job that failed, one that waits."""
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
    """With the question above it."""
    job = site.schedule("page.greet", delay="1h")
    screen = visit("operator", f"/jobs?job={job}")
    screen.page.get_by_role("button", name="Cancel", exact=True).click()
    screen.page.get_by_role("button", name="Cancel 1 job").wait_for()
    assert screen.findings() == []


def test_axe_finds_nothing_serious_at_the_sign_in(visit: Visitors) -> None:
    """A stranger's page, too."""
    screen = visit(None, "/jobs")
    screen.may_complain = True  # the 401 that says that he is one
    screen.page.get_by_label("API key").wait_for()
    assert screen.findings() == []


@pytest.mark.matrix
@pytest.mark.parametrize("path", VIEWS)
def test_a_phone_is_wide_enough(visit: Visitors, path: str) -> None:
    """At 390 px nothing is wider than the window, and the views are behind a button."""
    page = visit("viewer", path, width=390).page
    page.get_by_role("table").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    if path != "/overview":  # what is left of the columns has the whole width
        assert page.locator("th:visible").last.evaluate("cell => cell.getBoundingClientRect().right") > 350
    page.get_by_role("button", name="Views").click()
    page.get_by_role("link", name="Jobs", exact=True).click()
    page.get_by_role("heading", name="Jobs", level=1).wait_for()


def test_the_scheme_is_kept(visit: Visitors) -> None:
    """It begins as the system says; a switch holds beyond a reload."""
    page = visit("viewer", "/jobs", scheme="dark").page
    scheme = "document.documentElement.dataset.mantineColorScheme"
    page.get_by_role("button", name="To the light scheme").click()
    assert page.evaluate(scheme) == "light"
    page.reload()
    page.get_by_role("button", name="To the dark scheme").wait_for()
    assert page.evaluate(scheme) == "light"


def test_times_are_local_or_utc(visit: Visitors, site: Site) -> None:
    """Berlin's clock is ahead of UTC; the tooltip is always ISO 8601 in UTC."""
    job = site.schedule("page.greet", execute_at="2031-01-05T11:00:00Z")
    page = visit("viewer", "/jobs?from=2031-01-01T00:00:00Z").page
    page.get_by_role("row", name=re.compile(rf"{job}.*2031-01-05 12:00:00")).wait_for()
    page.get_by_text("UTC", exact=True).click()
    page.get_by_role("row", name=re.compile(rf"{job}.*2031-01-05 11:00:00 Z")).wait_for()
    assert page.get_by_text("2031-01-05 11:00:00 Z").first.get_attribute("title") == "2031-01-05T11:00:00.000Z"


def test_keys_lead_everywhere(visit: Visitors) -> None:
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
    page.get_by_role("dialog", name="Keys").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    page.locator("tr[data-row='0']").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Timeline").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")


@pytest.mark.storm
def test_the_stream_feeds_the_overview_and_a_broken_one_is_stale(visit: Visitors, site: Site) -> None:
    """Live while it comes; when the API is killed the banner says since when, and with a new one it goes."""
    screen = visit("viewer", "/overview")
    screen.may_complain = True  # what does not load is in the console
    page = screen.page
    page.get_by_test_id("live").get_by_text("Live").wait_for()
    site.kill9()
    page.get_by_test_id("stale").wait_for(timeout=20_000)
    assert "Stale since" in page.get_by_test_id("stale").inner_text()
    site.start()
    page.get_by_test_id("stale").wait_for(state="detached", timeout=30_000)


def test_a_hidden_page_asks_for_nothing(visit: Visitors) -> None:
    """The stream is closed while nobody sees the page, and opened again when somebody does."""
    page = visit("viewer", "/overview").page
    page.get_by_test_id("live").get_by_text("Live").wait_for()
    turn = "hidden => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true}); "
    turn += "document.dispatchEvent(new Event('visibilitychange')) }"
    ended = re.compile(r"/v1/stream$")
    with page.expect_event("requestfailed", lambda request: bool(ended.search(request.url))):
        page.evaluate(turn, True)
    with page.expect_request(ended):
        page.evaluate(turn, False)


def test_without_the_stream_the_page_polls(visit: Visitors) -> None:
    """A proxy that lets no stream through costs freshness, not the overview."""
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
def test_an_address_that_somebody_made_up_breaks_no_view(visit: Visitors, path: str) -> None:
    """What a filter cannot show is said by the API, or is left out; the view stands."""
    screen = visit("operator", path)
    screen.may_complain = True  # the API refuses what is no instant, and browsers write that down
    screen.page.get_by_role("search", name="Filters").wait_for()
    screen.page.wait_for_load_state("load")
    if "figure" not in path:
        screen.page.get_by_text("That did not work").first.wait_for()
    assert screen.page.get_by_text("This view is broken").count() == 0
    assert [line for line in screen.complaints if "Error:" in line] == []


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("body", "said"),
    [("<html>sign in to the Wi-Fi</html>", "no_json"), ('{"items": [{', "no_json"), ("{}", "This view is broken")],
)
def test_an_answer_that_is_none_of_the_api_is_said(visit: Visitors, body: str, said: str) -> None:
    """Neither a list nor the whole page goes blank where something else answers, or another release."""
    screen = visit("operator", "/task-types")
    screen.may_complain = True
    page = screen.page
    jobs = page.get_by_role("link", name="Jobs", exact=True)
    jobs.wait_for()  # the first page knows who is signed in
    page.route(re.compile(r"/v1/(jobs\?|session)"), lambda route: route.fulfill(status=200, body=body))
    jobs.click()
    page.get_by_text(said).first.wait_for(timeout=20_000)
    page.get_by_text("Reload").first.wait_for()


def test_an_action_without_a_network_fails_at_once_and_is_not_sent_later(visit: Visitors, site: Site) -> None:
    """Who pressed a button is told; when the network is back, nothing happens that he has given up."""
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


def test_a_snapshot_that_cannot_be_drawn_is_said(visit: Visitors) -> None:
    """The frame of the page breaks with it, and still the page is not blank."""
    screen = visit(None, "/jobs")
    screen.may_complain = True
    page = screen.page
    page.route("**/v1/stream", lambda route: route.fulfill(status=502, body="bad gateway"))
    empty = '{"at": "2026-01-01T00:00:00Z", "series": {"at": []}}'
    page.route("**/v1/overview", lambda route: route.fulfill(status=200, body=empty))
    page.get_by_label("API key").fill(screen.site.keys["viewer"])
    page.get_by_role("button", name="Sign in").click()
    page.get_by_text("This view is broken").wait_for()


def test_a_view_says_what_the_api_says_and_tries_again(visit: Visitors) -> None:
    """The code of the problem is shown with its detail; a second try that works shows the list."""
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
