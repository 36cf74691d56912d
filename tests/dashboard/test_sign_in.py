"""Sign-in, roles and the session, in a real browser."""

import pytest

from kit.pages import COOKIE, Screen, Visitors

SEEN_AGAIN = "document.dispatchEvent(new Event('visibilitychange', {bubbles: true}))"


def sign_in(screen: Screen, key: str) -> None:
    """Enter a key."""
    screen.page.get_by_label("API key").fill(key)
    screen.page.get_by_role("button", name="Sign in").click()


def test_a_sign_in_keeps_the_requested_address(visit: Visitors) -> None:
    """A browser without a session is asked for a key in place; after that the address is the same, filters included."""
    screen = visit(None, "/jobs?state=failed")
    screen.may_complain = True  # a browser logs every 401 to its console
    page = screen.page
    sign_in(screen, "tw_" + "x" * 43)
    page.get_by_text("unauthenticated").wait_for()
    sign_in(screen, screen.site.keys["viewer"])
    page.get_by_role("heading", name="Jobs", level=1).wait_for()
    assert page.url.endswith("/jobs?state=failed")
    (cookie,) = page.context.cookies()
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == (COOKIE, True, "Strict")
    assert page.evaluate("document.cookie") == ""
    assert page.evaluate("JSON.stringify(localStorage) + JSON.stringify(sessionStorage)").find("tw_") == -1


def test_a_sign_out_ends_the_session(visit: Visitors) -> None:
    """The cookie is deleted, and the page no longer has what it showed."""
    screen = visit("operator", "/jobs")
    screen.may_complain = True
    screen.page.get_by_role("button", name="Signed in as Olaf, operator").click()
    screen.page.get_by_role("menuitem", name="Sign out").click()
    screen.page.get_by_label("API key").wait_for()
    assert screen.page.context.cookies() == []
    assert screen.page.get_by_role("table").count() == 0


def test_a_revoked_key_returns_to_the_sign_in(visit: Visitors) -> None:
    """The page continues to send requests; the first 401 shows the sign-in at the same address."""
    screen = visit(None, "/task-types")
    screen.may_complain = True
    made = screen.site.ask("POST", "/v1/keys", {"name": "Gone", "role": "operator"})
    sign_in(screen, made["key"])
    screen.page.get_by_role("heading", name="Task types").wait_for()
    screen.site.ask("POST", f"/v1/keys/{made['details']['id']}/revoke")
    screen.page.get_by_label("API key").wait_for()
    assert screen.page.url.endswith("/task-types")


@pytest.mark.storm
def test_a_tab_notices_that_the_cookie_is_of_another_key(visit: Visitors) -> None:
    """Its first change has the earlier key's token and is refused; after that the tab shows the new key, and works."""
    screen = visit(None, "/task-types?type=page.greet")
    screen.may_complain = True
    site, page = screen.site, screen.page
    made = site.ask("POST", "/v1/keys", {"name": "Second", "role": "admin"})
    sign_in(screen, site.keys["admin"])
    page.get_by_role("button", name="Signed in as Ada, admin").wait_for()
    other = page.context.new_page()
    other.goto(f"{site.url}/mark.svg")
    assert other.context.request.post(f"{site.url}/v1/session", data={"key": made["key"]}).ok
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    screen.confirm("Pause")
    page.get_by_text("csrf_token_wrong").wait_for()
    page.get_by_role("button", name="Signed in as Second, admin").wait_for()
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    screen.confirm("Pause")
    page.get_by_role("dialog").get_by_role("button", name="Enable").wait_for()
    site.ask("POST", "/v1/task-types/page.greet/enable")


@pytest.mark.parametrize("asked_before", [False, True], ids=["at rest", "while an answer is on its way"])
def test_a_tab_that_is_visible_again_shows_the_present_user(visit: Visitors, asked_before: bool) -> None:
    """Another tab may have signed in another key: the name and the actions are those of the cookie."""
    screen = visit(None, "/jobs")
    screen.may_complain = True
    sign_in(screen, screen.site.keys["operator"])
    screen.page.get_by_role("button", name="Signed in as Olaf, operator").wait_for()
    if asked_before:
        screen.page.route("**/v1/session", lambda route: None, times=1)  # never answered
        with screen.page.expect_request("**/v1/session"):
            screen.page.evaluate(SEEN_AGAIN)
    signed = {"key": screen.site.keys["viewer"]}
    assert screen.page.context.request.post(f"{screen.site.url}/v1/session", data=signed).ok
    screen.page.evaluate(SEEN_AGAIN)
    screen.page.get_by_role("button", name="Signed in as Vera, viewer").wait_for()
    assert screen.page.get_by_role("button", name="Act on all that match").count() == 0


@pytest.mark.storm
def test_a_viewer_sees_no_action(visit: Visitors) -> None:
    """An action without the role has no button; an operator's has, and an admin's settings are for admins only."""
    site = visit("viewer", "/jobs").site
    job = site.schedule("page.greet", delay="1h")
    actions = {
        "/jobs?state=pending": "Act on all that match",
        f"/jobs?job={job}": "Cancel",
        "/dead-letters?subject=page.greet": "Requeue all jobs of page.greet",
    }
    for path, name in actions.items():
        for role, number in (("viewer", 0), ("operator", 1)):
            page = visit(role, path).page
            page.get_by_text("Created" if "job=" in path else "page.greet").first.wait_for()
            assert page.get_by_role("button", name=name, exact=True).count() == number, (path, role)
    for role, number in (("operator", 0), ("admin", 1)):
        page = visit(role, "/task-types?type=page.greet").page
        page.get_by_text("Settings").wait_for()
        assert page.get_by_role("button", name="Pause").count() == number
