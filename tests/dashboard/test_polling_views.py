"""Accounts, trackers, slices and partners: what they show of real rows, and every action to its effect."""

import re
from collections.abc import Iterator
from datetime import datetime

import pytest
from playwright.sync_api import expect

from kit.pages import Screen, Site, Visitors
from kit.servers import PostgresServer
from kit.work_pages import fill, quiet_site

JUDGED = """
INSERT INTO tickwright.account_lags (account_no, interval_minutes, due_at, polls, fresh, lag, stale_since)
SELECT account_no, 120, now(), 10, 7, 1.3, now() - interval '10 minutes'
  FROM tickwright.polling_schedule_config WHERE account_id = 'acme'
"""
SLICES = """
INSERT INTO tickwright.account_freshness (account_no, minutes, from_at, keep_until, polls, fresh, lag)
SELECT account_no, 5, date_bin('5 minutes', now() - n * interval '5 minutes', 'epoch'), now() + interval '1 day',
       100, 98, 1.3
  FROM tickwright.polling_schedule_config, generate_series(1, 6) AS n WHERE account_id = 'acme'
"""
OPEN_BREAKER = """
INSERT INTO tickwright.partner_states (partner_no, breaker, open_until, opened_times, last_error, last_error_at)
SELECT partner_no, 'open', now() + interval '1 hour', 3, '<b>HTTP 503</b>', now()
  FROM tickwright.partners WHERE name = 'dhl'
    ON CONFLICT (partner_no) DO UPDATE SET breaker = 'open', open_until = excluded.open_until
"""
VIEWS = ("/accounts", "/trackers", "/slices", "/partners")
turns: dict[str, datetime] = {}


@pytest.fixture(scope="module")
def site(pg_server: PostgresServer, template_database: str) -> Iterator[Site]:
    """Three trackers of one account, of which two were not polled; no process polls."""
    with quiet_site(pg_server, template_database) as made:
        turns["last"] = fill(made)
        made.sql(JUDGED)
        made.sql(SLICES)
        yield made


def account(site: Site) -> dict[str, object]:
    """The account's row."""
    return site.sql("SELECT * FROM tickwright.polling_schedule_config WHERE account_id = 'acme'")[0]


def partner(site: Site) -> dict[str, object]:
    """The partner's row."""
    return site.sql("SELECT * FROM tickwright.partners WHERE name = 'dhl'")[0]


def audited(site: Site, action: str) -> list[str]:
    """Return the actors of an action."""
    return [row["actor"] for row in site.sql("SELECT actor FROM tickwright.audit WHERE action = %s", action)]


def row(screen: Screen, key: str) -> str:
    """Return the text of a table's row."""
    line = screen.page.locator(f'tr[data-key="{key}"]')
    line.wait_for()
    return line.inner_text()


def test_the_list_shows_how_fresh_each_account_is(visit: Visitors) -> None:
    """Lag, the share against its objective, the remaining budget, its burn rate."""
    text = row(visit("viewer", "/accounts"), "acme")
    for fragment in ("lagging", "1.30", "70% of 99%", "overdrawn", "2 h"):
        assert fragment in text, text
    assert re.search(r"\b2\b", text)  # two of a hundred are stale, one may be


def test_a_viewer_sees_no_action(visit: Visitors) -> None:
    """No button where the role may not do it."""
    for path, heading in (("/accounts?account=acme", "Freshness"), ("/partners?partner=dhl", "Quota")):
        screen = visit("viewer", path)
        screen.page.get_by_role("heading", name=heading).wait_for()
        assert screen.page.get_by_role("button", name=re.compile("Pause|Edit|Reset|New")).count() == 0
    screen = visit("viewer", "/slices")
    screen.page.get_by_text("Flatness").wait_for()
    assert screen.page.get_by_role("button", name="Replay").count() == 0


def test_an_interval_is_changed_after_a_preview_of_its_load(visit: Visitors, site: Site) -> None:
    """The preview changes nothing; only edited fields are saved."""
    site.sql("UPDATE tickwright.polling_schedule_config SET max_age_days = 33 WHERE account_id = 'acme'")
    screen = visit("admin", "/accounts?account=acme")
    screen.page.get_by_role("button", name="Edit with a preview").click()
    assert screen.page.get_by_role("button", name="Save").is_disabled()
    screen.page.get_by_label("Interval, minutes").fill("60")
    table = screen.page.get_by_role("table", name="Load before and after")
    table.get_by_text("Partner dhl").wait_for()
    assert re.search(r"% of [45]0/s", table.inner_text())
    assert account(site)["polling_interval_minutes"] == 120
    screen.page.get_by_role("button", name="Save").click()
    screen.page.get_by_text(re.compile("[23] trackers go from")).wait_for()  # ended ones make no load
    screen.confirm("Change 1 setting")
    screen.page.get_by_text("Account acme is changed").wait_for()
    changed = account(site)
    assert (changed["polling_interval_minutes"], changed["max_age_days"]) == (60, 33)
    assert audited(site, "accounts.change") == ["Ada"]


def test_an_account_is_paused_and_enabled(visit: Visitors, site: Site) -> None:
    """The confirmation has the number of its trackers."""
    screen = visit("admin", "/accounts?account=acme")
    screen.page.get_by_role("button", name="Pause", exact=True).click()
    screen.confirm("Pause 3 trackers")
    screen.page.get_by_text("Account acme is paused").wait_for()
    assert account(site)["paused_at"] is not None
    screen.page.get_by_role("button", name="Enable", exact=True).click()
    screen.confirm("Enable 3 trackers")
    screen.page.get_by_text("Account acme is polled again").wait_for()
    assert account(site)["paused_at"] is None


def test_a_tracker_is_found_explained_and_ended(visit: Visitors, site: Site) -> None:
    """By the prefix of its external id; its state has a reason; its end is final."""
    screen = visit("operator", "/trackers")
    screen.page.get_by_label("External id").fill("AWB-lost2")
    screen.page.wait_for_url("**/trackers?external=AWB-lost2")
    screen.page.get_by_role("cell", name="AWB-lost2").click()
    screen.page.locator("li code").first.wait_for()
    assert screen.page.locator("li time").count() > 0, "its instants are in the time zone of the browser"
    assert not re.search(r"\d\d:\d\dZ", screen.page.locator("ol:has(code)").inner_text())
    screen.page.get_by_role("button", name="End", exact=True).click()
    assert site.sql("SELECT ended_at FROM tickwright.trackers WHERE external_id = 'AWB-lost2'")[0]["ended_at"] is None
    screen.confirm("End 1 tracker")
    screen.page.get_by_text("is no longer polled").first.wait_for()
    assert site.sql("SELECT ended_at FROM tickwright.trackers WHERE external_id = 'AWB-lost2'")[0]["ended_at"]
    assert audited(site, "trackers.end") == ["Olaf"]


def test_a_status_is_shown_as_text(visit: Visitors, site: Site) -> None:
    """It is never interpreted."""
    canary = '<img src=x onerror="window.ran=1">'
    (made,) = site.sql("SELECT id FROM tickwright.trackers WHERE external_id = 'AWB-done'")
    event = {"status": canary, "at": "2026-01-01T00:00:00Z"}
    site.ask("POST", f"/v1/trackers/{made['id']}/events", event)
    screen = visit("viewer", f"/trackers?tracker={made['id']}")
    screen.page.get_by_text(canary).first.wait_for()
    assert screen.page.evaluate("window.ran") is None


def test_the_heat_map_works_by_keyboard_and_describes_its_cells(visit: Visitors) -> None:
    """The canvas has text beside it, and the chosen cell is in the address."""
    screen = visit("viewer", "/slices?step=1")
    group = screen.page.get_by_role("group", name="Heat map, expected")
    group.focus()
    screen.page.keyboard.press("ArrowLeft")
    screen.page.wait_for_url("**slice=**")
    at = turns["last"].isoformat().replace("+00:00", ".000Z")
    screen.open(f"/slices?step=1&slice={at}")
    for name, value in (("Selected", "3"), ("Polled", "1"), ("Unanswered", "2")):
        fact = screen.page.locator("dl > div", has=screen.page.locator("dt", has_text=re.compile(f"^{name}$")))
        fact.wait_for()
        assert fact.locator("dd").inner_text() == value
    drawn = screen.page.evaluate(
        "(() => { const c = document.querySelector('canvas'); const d = c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data; return new Set(d.filter((_, i) => i % 4 === 2)).size; })()"
    )
    assert drawn > 3


def test_a_difference_is_replayed_after_a_dry_run(visit: Visitors, site: Site) -> None:
    """The dry run shows the number; only missing polls are made again."""
    site.sql("UPDATE tickwright.partners SET paused_at = NULL")
    screen = visit("operator", "/slices?step=1")
    difference = screen.page.get_by_role("table", name="Slices with a difference")
    difference.locator("tbody tr").first.click()
    screen.page.get_by_role("button", name="Replay missing polls").click()
    button = screen.page.get_by_role("button", name=re.compile(r"^Poll \d tracker"))
    button.wait_for()
    missing = 2 - site.sql("SELECT count(*) FROM tickwright.trackers WHERE ended_at IS NOT NULL")[0]["count"]
    trackers = f"{missing} tracker{'' if missing == 1 else 's'}"
    assert button.inner_text() == f"Poll {trackers} again"
    assert site.sql("SELECT count(*) FROM tickwright.scheduler_outbox")[0]["count"] == 0
    button.click()
    screen.confirm(f"Poll {trackers}")
    screen.page.get_by_text(f"{trackers} polled again").wait_for()
    (waits,) = site.sql("SELECT external_ids FROM tickwright.scheduler_outbox")
    assert "AWB-lost" in waits["external_ids"]
    assert "AWB-done" not in waits["external_ids"]
    assert audited(site, "slices.replay") == ["Olaf"]


def test_a_partner_whose_breaker_is_open_is_reset(visit: Visitors, site: Site) -> None:
    """The list shows until when no calls are made; the reset closes the breaker. Its error is text."""
    site.sql("UPDATE tickwright.partners SET paused_at = NULL")
    site.sql(OPEN_BREAKER)
    screen = visit("admin", "/partners")
    assert "breaker open" in row(screen, "dhl")
    screen.page.locator('tr[data-key="dhl"]').click()
    screen.page.get_by_text("<b>HTTP 503</b>").wait_for()
    screen.page.get_by_role("button", name="Reset", exact=True).click()
    screen.confirm("Reset 1 partner")
    screen.page.get_by_text("The breaker of dhl is closed").wait_for()
    assert site.sql("SELECT breaker FROM tickwright.partner_states")[0]["breaker"] == "closed"
    assert audited(site, "partners.reset") == ["Ada"]


def test_a_partner_is_paused_and_edited_and_shows_an_invalid_setting(visit: Visitors, site: Site) -> None:
    """A mistake is shown with its code and changes nothing; only the edited setting is sent."""
    screen = visit("admin", "/partners?partner=dhl")
    screen.page.get_by_role("button", name="Pause", exact=True).click()
    screen.confirm("Pause 1 partner")
    screen.page.get_by_text("Partner dhl is paused").wait_for()
    assert partner(site)["paused_at"] is not None
    screen.page.get_by_role("button", name="Edit", exact=True).click()
    field = screen.page.get_by_label("Settings", exact=True)
    site.sql("""UPDATE tickwright.partners SET settings = settings || '{"timeout": "3s"}' WHERE name = 'dhl'""")
    field.fill('{"rate": "much", "concurrency": 10}')
    screen.may_complain = True  # a browser writes the 422 to its console
    screen.page.get_by_role("button", name="Save").click()
    screen.confirm("Change 1 setting")
    screen.page.get_by_text("invalid_partner").first.wait_for()
    field.fill('{"rate": "40/s", "concurrency": 10}')
    screen.page.get_by_role("button", name="Save").click()
    screen.confirm("Change 1 setting")
    screen.page.get_by_text("The settings of dhl are changed").wait_for()
    assert partner(site)["settings"] == {"rate": "40/s", "concurrency": 10, "timeout": "3s"}


def test_a_partner_is_created(visit: Visitors, site: Site) -> None:
    """With the typed settings."""
    screen = visit("admin", "/partners")
    screen.page.get_by_role("button", name="New partner").click()
    screen.page.get_by_role("textbox", name="Name").fill("ups")
    screen.page.get_by_label("Settings", exact=True).fill('{"rate": "5/s"}')
    screen.page.get_by_role("button", name="Create 1 partner").click()
    assert row(screen, "ups")
    (made,) = site.sql("SELECT settings FROM tickwright.partners WHERE name = 'ups'")
    assert made["settings"] == {"rate": "5/s"}


def test_the_first_view_of_a_partner_says_since_when_calls_are_counted(visit: Visitors, site: Site) -> None:
    """Calls are counted between two snapshots: until the second one the view says so, and figures follow soon."""
    site.ask("PUT", "/v1/partners/first", {"rate": "5/s"})
    page = visit("viewer", "/partners?partner=first").page
    page.get_by_text("so calls are counted from").wait_for()
    page.get_by_text("Counted since").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(visit: Visitors, scheme: str) -> None:
    """Each view, and a drawer with the edit in it."""
    screen = visit("admin", "/accounts", scheme=scheme)
    for path in VIEWS:
        screen.open(path).page.get_by_role("heading", level=1).wait_for()
        expect(screen.page.locator("[aria-busy=true]")).to_have_count(0)
        assert screen.findings() == [], path
    screen.open("/accounts?account=acme").page.get_by_role("button", name="Edit with a preview").click()
    screen.page.get_by_label("Interval, minutes").fill("30")
    screen.page.get_by_role("columnheader", name="After").wait_for()
    assert screen.findings() == []


@pytest.mark.storm
def test_nothing_is_wider_than_a_phone(visit: Visitors) -> None:
    """390 pixels: tables leave columns out, nothing scrolls sideways."""
    screen = visit("admin", "/accounts", width=390, height=844)
    for path in (*VIEWS, "/accounts?account=acme", "/partners?partner=dhl"):
        screen.open(path).page.get_by_role("heading", level=1).wait_for()
        expect(screen.page.locator("[aria-busy=true]")).to_have_count(0)
        assert screen.page.evaluate("document.documentElement.scrollWidth") <= 390, path
