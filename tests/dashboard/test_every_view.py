"""Accessibility of every view and drawer with data in it, on a phone, light and dark, by axe."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from kit.pages import Screen, Visitors
from kit.servers import PostgresServer
from kit.waiting import eventually
from kit.work_pages import WorkSite, every_view, fill, work_site

ALERT = """
INSERT INTO tickwright.alerts (rule, subject, severity, summary, state, facts)
VALUES ('made_up', %s, %s, 'It burns', 'firing', '{"big": 9223372036854775807}')
"""


@pytest.fixture(scope="module")
def site(
    pg_server: PostgresServer, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkSite]:
    """An installation with data of every kind, warnings and a change included."""
    with work_site(pg_server, template_database, tmp_path_factory.mktemp("views")) as made:
        for party in ({"name": "old"}, {"name": "new", "more": True}):
            made.ask("PUT", "/v1/entities/ACME", {"party": party, "is_polling_enabled": False})
        fill(made)
        for severity in ("critical", "warning", "info"):
            made.sql(ALERT, severity, severity)
        made.campaign("loans", expression="client.age == 99")
        yield made


@pytest.fixture(scope="module")
def paths(site: WorkSite) -> list[str]:
    """Return every view, and one drawer of each kind."""
    job = site.schedule("page.broken")
    site.until(job, "failed")
    execution = site.ask("POST", "/v1/campaigns/loans/start")["executions"][0]["id"]
    ended = "SELECT status FROM tickwright.executions WHERE id = %s"
    eventually(lambda: site.one(ended, execution) == "FINISHED", 40)
    line = site.one("SELECT max(id) FROM tickwright.audit WHERE action = 'entities.put'")
    tracker = site.one("SELECT max(id) FROM tickwright.trackers")
    return [
        *every_view(admins=True),
        f"/jobs?job={job}",
        "/entities?entity=ACME",
        f"/trackers?tracker={tracker}",
        f"/executions?execution={execution}",
        f"/audit?line={line}",
        "/campaigns?name=loans",
        "/campaigns/edit?name=loans",
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(visit: Visitors, paths: list[str], scheme: str) -> None:
    """Contrast, labels, and scrollable regions by keyboard."""
    screen = visit("admin", "/overview", scheme=scheme, width=390, height=844)
    found = {}
    for path in paths:
        _settled(screen.open(path))
        found[path] = screen.findings()
    screen.page.get_by_label("Expression", exact=True).fill("client.agee > 1")
    screen.page.get_by_role("status").get_by_text("1 mistake", exact=True).wait_for()
    found["a mistake"] = screen.findings()
    assert {path: lines for path, lines in found.items() if lines} == {}


def _settled(screen: Screen) -> None:
    screen.page.get_by_role("heading", level=1).first.wait_for()
    expect(screen.page.locator('[aria-busy="true"]')).to_have_count(0)
