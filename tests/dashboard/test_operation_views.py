"""Workers, leases, outbox, alerts, receivers, keys and audit: what they show, and every action to its effect."""

import re
import urllib.error
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from kit.pages import Screen, Site, Visitors
from kit.servers import PostgresServer
from kit.waiting import eventually
from kit.work_pages import quiet_site

CANARY = '<img src=x onerror="window.ran=1">'
WORKER = """
INSERT INTO tickwright.workers (id, name, roles, version, lease_until, facts)
VALUES (%s, 'elsewhere:7', '{relay}', '9.9', now() + interval '1 hour', '{"counters": {"relay": {"published": 5}}}')
"""
MESSAGES = """
INSERT INTO tickwright.outbox (destination, key, payload, created_at, attempts, next_at, error_message)
SELECT %s, 'k' || n, '{}', now() - interval '10 minutes', 2,
       now() + interval '1 hour', 'HTTP 500'
  FROM generate_series(1, 3) AS n
"""
ALERT = """
INSERT INTO tickwright.alerts (rule, subject, severity, summary, state, facts)
VALUES ('made_up', %s, 'critical', 'It burns', 'firing', '{"big": 9223372036854775807}') RETURNING id
"""
VIEWS = ("/workers", "/leases", "/outbox", "/outbox?part=messages", "/alerts", "/receivers", "/keys", "/audit")


@pytest.fixture(scope="module")
def site(pg_server: PostgresServer, template_database: str) -> Iterator[Site]:
    """An installation without a relay, so that waiting messages stay."""
    with quiet_site(pg_server, template_database) as made:
        made.sql(WORKER, 2**53 + 1)
        for path in ("hook", "other"):
            made.sql(MESSAGES, f"https://example.org/{path}")
        yield made


def audited(site: Site, action: str) -> list[str]:
    """Return the actors of an action."""
    return [row["actor"] for row in site.sql("SELECT actor FROM tickwright.audit WHERE action = %s", action)]


def refused(site: Site, role: str) -> bool:
    """Whether a key no longer authenticates."""
    try:
        site.ask("GET", "/v1/session", role=role)
    except urllib.error.HTTPError as error:
        return error.code == 401
    return False


def settled(screen: Screen) -> Screen:
    """Wait until all requests are answered."""
    screen.page.get_by_role("heading", level=1).wait_for()
    expect(screen.page.locator("[aria-busy=true]")).to_have_count(0)
    return screen


def test_a_worker_shows_what_it_holds(visit: Visitors, site: Site) -> None:
    """The job that it runs, with its fence."""
    job = site.schedule("page.slow")
    site.until(job, "processing")
    (mine,) = site.sql("SELECT id FROM tickwright.workers WHERE 'api' = ANY (roles)")
    screen = visit("viewer", f"/workers?worker={mine['id']}")
    screen.page.get_by_role("link", name=f"page.slow · {job}").wait_for()
    assert screen.page.get_by_role("button", name="Drain").count() == 0
    site.ask("POST", f"/v1/jobs/{job}/cancel")


def test_a_worker_is_drained_under_its_own_64_bit_id(visit: Visitors, site: Site) -> None:
    """The list links to it; a confirmation comes first."""
    screen = visit("admin", "/workers?text=elsewhere")
    screen.page.get_by_role("cell", name="elsewhere:7").click()
    screen.page.wait_for_url(f"**worker={2**53 + 1}")
    screen.page.get_by_role("button", name="Drain", exact=True).click()
    screen.confirm("Drain 1 worker")
    screen.page.get_by_text("finishes its running work and stops").wait_for()
    (row,) = site.sql("SELECT drain_requested_at FROM tickwright.workers WHERE id = %s", 2**53 + 1)
    assert row["drain_requested_at"] is not None
    assert audited(site, "workers.drain") == ["Ada"]


def test_an_admin_breaks_a_lease(visit: Visitors, site: Site) -> None:
    """Its fence rises; an operator has no such button."""
    before = {one["job_name"]: one["version"] for one in site.ask("GET", "/v1/leases")["items"] if one["held"]}
    name = min(before)
    assert settled(visit("operator", "/leases")).page.get_by_role("button", name="Release").count() == 0
    screen = settled(visit("admin", "/leases"))
    screen.page.get_by_role("button", name=f"Release {name}").click()
    screen.confirm("Release 1 lease")
    screen.page.get_by_text(f"{name} is free").wait_for()
    after = {one["job_name"]: one["version"] for one in site.ask("GET", "/v1/leases")["items"]}
    assert after[name] > before[name]
    assert audited(site, "leases.release") == ["Ada"]


def test_a_stuck_destination_shows_its_reason_and_is_retried(visit: Visitors, site: Site) -> None:
    """Its messages are due at once."""
    screen = visit("operator", "/outbox")
    line = screen.page.locator('tr[data-key="https://example.org/hook"]')
    line.wait_for()
    for fragment in ("stuck", "no relay runs", "HTTP 500", "3"):
        assert fragment in line.inner_text()
    line.get_by_role("button", name="Retry").click()
    screen.confirm("Retry 3 messages")
    screen.page.get_by_text("3 messages are due at once").wait_for()
    assert (
        site.sql("SELECT destination FROM tickwright.outbox WHERE next_at <= now()")
        == [{"destination": "https://example.org/hook"}] * 3
    )
    assert audited(site, "outbox.retry") == ["Olaf"]


def test_a_discarded_message_becomes_a_dead_letter(visit: Visitors, site: Site) -> None:
    """Only that one."""
    newest = site.sql("SELECT max(id) AS id FROM tickwright.outbox")[0]["id"]
    screen = visit("operator", "/outbox?part=messages&destination=https%3A%2F%2Fexample.org%2Fother")
    screen.page.get_by_role("button", name=f"Discard message {newest}").click()
    screen.confirm("Discard 1 message")
    screen.page.get_by_text(f"Message {newest} is a dead letter").wait_for()
    assert [row["id"] for row in site.sql("SELECT id FROM tickwright.outbox_dead")] == [newest]
    assert audited(site, "outbox.discard") == ["Olaf"]


def test_an_alert_is_acknowledged(visit: Visitors, site: Site) -> None:
    """The operator's name and note are beside it; its facts are exact."""
    alert = site.sql(ALERT, "acme")[0]["id"]
    screen = visit("operator", "/alerts")
    screen.page.locator(f'tr[data-key="{alert}"]').click()
    assert "9223372036854775807" in screen.page.get_by_label("facts", exact=True).inner_text()
    screen.page.get_by_role("button", name="Acknowledge", exact=True).click()
    screen.page.get_by_label("Note").fill(CANARY)
    screen.page.get_by_role("button", name="Acknowledge 1 alert").click()
    screen.page.get_by_text("is acknowledged by Olaf").wait_for()
    (row,) = site.sql("SELECT * FROM tickwright.alerts WHERE id = %s", alert)
    assert (row["acknowledged_by"], row["acknowledged_note"]) == ("Olaf", CANARY)
    screen.page.get_by_text(CANARY).first.wait_for()
    assert screen.page.evaluate("window.ran") is None


def test_a_receiver_is_created_changed_and_deleted(visit: Visitors, site: Site) -> None:
    """Its signing secret is shown this once."""
    screen = visit("admin", "/receivers")
    screen.page.get_by_role("button", name="New receiver").click()
    screen.page.get_by_role("textbox", name="Name").fill("pager")
    screen.page.get_by_role("textbox", name="Address", exact=True).fill("https://example.org/alerts")
    screen.page.get_by_role("button", name="Create 1 receiver").click()
    first = screen.page.get_by_role("dialog").locator("pre").inner_text()
    assert first.startswith("whsec_")
    screen.page.get_by_role("button", name="I have copied it").click()
    screen.page.locator('tr[data-key="pager"]').click()
    screen.page.get_by_role("button", name="Rotate secret").click()
    screen.confirm("Create 1 secret")
    second = screen.page.get_by_role("dialog", name="Signing secret").locator("pre")
    second.wait_for()
    assert second.inner_text() != first
    screen.page.get_by_role("button", name="I have copied it").click()
    screen.page.get_by_role("button", name="Delete").click()
    screen.confirm("Delete 1 receiver")
    screen.page.get_by_text("Receiver pager is deleted").wait_for()
    assert site.sql("SELECT name FROM tickwright.alert_receivers") == []
    assert "whsec_" not in screen.page.content()


def test_a_key_is_shown_once_works_and_is_revoked(visit: Visitors, site: Site) -> None:
    """Its name is text; after the revocation it no longer authenticates."""
    screen = visit("admin", "/keys")
    screen.page.get_by_role("button", name="New key").click()
    screen.page.get_by_role("textbox", name="Name", exact=True).fill(CANARY)
    screen.page.get_by_role("button", name="Create 1 key").click()
    made = screen.page.get_by_role("dialog").locator("pre")
    made.wait_for()
    site.keys["new"] = made.inner_text()
    screen.page.get_by_role("button", name="I have copied it").click()
    session = site.ask("GET", "/v1/session", role="new")
    assert (session["name"], session["role"]) == (CANARY, "viewer")
    assert site.keys["new"] not in screen.page.content()
    screen.page.get_by_role("button", name=f"Revoke {CANARY}").click()
    screen.confirm("Revoke 1 key")
    screen.page.get_by_text("is refused from now on").wait_for()
    assert site.sql("SELECT revoked_at FROM tickwright.api_keys WHERE name = %s", CANARY)[0]["revoked_at"]
    eventually(lambda: refused(site, "new"), what="the key is refused")
    assert screen.page.evaluate("window.ran") is None


def test_a_key_gets_a_successor(visit: Visitors, site: Site) -> None:
    """With the same name and role; the old one expires."""
    site.ask("POST", "/v1/keys", {"name": "robot", "role": "operator"})
    screen = visit("admin", "/keys?text=robot")
    screen.page.get_by_role("button", name="Rotate robot").click()
    screen.confirm("Create 1 key")
    screen.page.get_by_role("dialog").locator("pre").wait_for()
    rows = site.sql("SELECT role, expires_at FROM tickwright.api_keys WHERE name = 'robot' ORDER BY id")
    assert [row["expires_at"] is None for row in rows] == [False, True]


def test_an_action_is_found_with_what_it_changed(visit: Visitors, site: Site) -> None:
    """Before and after are side by side, only where they differ."""
    site.ask("PUT", "/v1/accounts/acme", {"polling_interval_minutes": 120})
    site.ask("PATCH", "/v1/accounts/acme", {"polling_interval_minutes": 60})
    screen = visit("viewer", "/audit?action=accounts.change")
    screen.page.get_by_role("cell", name="Ada").click()
    rows = screen.page.get_by_role("table", name="Differences").locator("tbody tr")
    rows.first.wait_for()
    entries = [text.split() for text in rows.all_inner_texts()]
    assert ["polling_interval_minutes", "120", "60"] in entries
    assert all(entry[0] in {"polling_interval_minutes", "updated_at"} for entry in entries)


def test_actions_are_found_by_actor_and_by_prefix(visit: Visitors, site: Site) -> None:
    """Together, and in the address."""
    jobs = {role: site.schedule("page.greet", delay="1h") for role in ("admin", "operator")}
    for role, job in jobs.items():
        site.ask("POST", f"/v1/jobs/{job}/cancel", role=role)
    screen = settled(visit("viewer", "/audit?action=jobs.canc"))
    for job in jobs.values():
        screen.page.get_by_role("cell", name=f"job:{job}", exact=True).wait_for()
    screen.page.get_by_label("Who", exact=True).fill("Olaf")
    screen.page.wait_for_url("**actor=Olaf")
    expect(screen.page.locator("tbody tr")).to_have_count(1)
    screen.page.get_by_role("cell", name=f"job:{jobs['operator']}", exact=True).wait_for()


def test_a_figure_of_the_overview_links_to_its_workers(visit: Visitors, site: Site) -> None:
    """From the number of workers in a role to their list and to one of them; lateness is drawn as p50 and p99."""
    site.until(site.schedule("page.greet"), "completed")
    screen = visit("viewer", "/overview")
    expect(screen.page.get_by_label("Lateness, p50 and p99, over time")).to_contain_text(re.compile("p50 .*p99 "))
    screen.page.locator('section[aria-label="Workers"] a[href$="state=alive&role=api"]').click()
    screen.page.wait_for_url("**/workers?state=alive&role=api")
    expect(screen.page.locator("tbody tr")).to_have_count(1)
    screen.page.locator("tbody tr").click()
    screen.page.get_by_role("link", name="page.greet", exact=True).wait_for()


@pytest.mark.parametrize("path", ["/keys", "/receivers"])
def test_settings_of_admins_are_hidden_from_viewers(visit: Visitors, path: str) -> None:
    """Neither in the navigation nor by its address."""
    screen = visit("viewer", path)
    screen.page.get_by_text("the role admin is required").wait_for()
    assert screen.page.get_by_role("navigation").locator(f'a[href$="{path}"]').count() == 0


@pytest.mark.storm
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(visit: Visitors, site: Site, scheme: str) -> None:
    """Each view, and a drawer."""
    alert = site.sql(ALERT, scheme)[0]["id"]
    screen = visit("admin", "/workers", scheme=scheme)
    for path in (*VIEWS, f"/alerts?alert={alert}"):
        settled(screen.open(path))
        assert screen.findings() == [], path


def test_nothing_is_wider_than_a_phone(visit: Visitors) -> None:
    """390 pixels: tables leave columns out, nothing scrolls sideways."""
    screen = visit("admin", "/workers", width=390, height=844)
    for path in VIEWS:
        settled(screen.open(path))
        assert screen.page.evaluate("document.documentElement.scrollWidth") <= 390, path
