"""Sign-in, roles and the session, in a real browser."""

from kit.pages import COOKIE, Visitors


def test_who_signs_in_sees_the_address_he_came_for(visit: Visitors) -> None:
    """A stranger is asked for a key in place; with a good one the same address is there, filters included."""
    screen = visit(None, "/jobs?state=failed")
    screen.may_complain = True  # a browser writes every 401 to its console
    page = screen.page
    page.get_by_label("API key").fill("tw_" + "x" * 43)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_text("unauthenticated").wait_for()
    page.get_by_label("API key").fill(screen.site.keys["viewer"])
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Jobs").wait_for()
    assert page.url.endswith("/jobs?state=failed")
    (cookie,) = page.context.cookies()
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == (COOKIE, True, "Strict")
    assert page.evaluate("document.cookie") == ""
