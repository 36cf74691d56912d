"""Data of users is hidden from lower roles: every view renders, says so, and holds none of it."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import Error, Route, expect

from kit.pages import Screen, Visitors
from kit.servers import PostgresServer
from kit.waiting import eventually
from kit.work_pages import WorkSite, every_view, fill, work_site

CANARY = "canary-5e2d"
DATA = {"who": CANARY}
ROLES = ("viewer", "operator")
CLIENTS_TYPE = {
    "parameters": {"country": "text"},
    "listeners": {"clients": {"source": "crm", "sql": "SELECT id FROM clients WHERE country = :country"}},
}
EVENTS = """UPDATE tickwright.trackers SET events = '[{"at": "2026-01-01T00:00:00Z", "text": "canary-5e2d"}]'"""


class Answers:
    """Answers of the API to a window; the stream, which never ends, is passed through unread."""

    def __init__(self, screen: Screen) -> None:
        self.answers: dict[str, str] = {}
        screen.page.route(re.compile(r"/v1/(?!stream)"), self._pass_on)

    def _pass_on(self, route: Route) -> None:
        with suppress(Error):  # the page has another address meanwhile
            answer = route.fetch()
            self.answers[route.request.url] = answer.text()
            route.fulfill(response=answer)

    def holders(self) -> list[str]:
        """Return the addresses of answers with data of users in them."""
        return [url for url, text in self.answers.items() if CANARY in text]


@pytest.fixture(scope="module")
def site(
    pg_server: PostgresServer, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkSite]:
    """One installation where only admins see data of users, with some of it in every field for it."""
    folder: Path = tmp_path_factory.mktemp("hidden")
    with work_site(pg_server, template_database, folder, PAYLOADS_FROM="admin") as made:
        made.ask("PUT", "/v1/entities/ACME", {"party": DATA, "is_polling_enabled": False})
        fill(made)
        made.sql(EVENTS)
        made.change("UPDATE clients SET country = ? WHERE age = 99", CANARY)
        made.ask("PUT", "/v1/report-types/clients", CLIENTS_TYPE)
        made.campaign("loans", expression="client.age == 99")
        yield made


@pytest.fixture(scope="module")
def places(site: WorkSite) -> dict[str, str]:
    """Return the addresses that show data of users, by the name of their view; one item of each has ended."""
    job = site.schedule("page.greet", {"name": CANARY})
    site.until(job, "completed")
    report = site.ask("POST", "/v1/reports", {"type": "clients", "conditions": {"country": CANARY}})["id"]
    execution = site.ask("POST", "/v1/campaigns/loans/start")["executions"][0]["id"]
    ended = "SELECT status FROM tickwright.executions WHERE id = %s"
    eventually(lambda: site.one(ended, execution) == "FINISHED", 40)
    eventually(lambda: site.one("SELECT status FROM tickwright.reports WHERE id = %s", report) == "finished", 40)
    line = site.one("SELECT max(id) FROM tickwright.audit WHERE action = 'entities.put'")
    tracker = site.one("SELECT max(id) FROM tickwright.trackers")
    return {
        "job": f"/jobs?job={job}",
        "entity": "/entities?entity=ACME",
        "tracker": f"/trackers?tracker={tracker}",
        "report": f"/reports?report={report}",
        "execution": f"/executions?execution={execution}",
        "audit line": f"/audit?line={line}",
    }


def settled(screen: Screen) -> None:
    """Wait until no request is pending."""
    screen.page.get_by_role("heading", level=1).first.wait_for()
    expect(screen.page.locator('[aria-busy="true"]')).to_have_count(0)


@pytest.mark.matrix
@pytest.mark.parametrize("role", ROLES)
def test_no_view_holds_data_of_users(visit: Visitors, places: dict[str, str], role: str) -> None:
    """Neither on the screen nor in the answers."""
    screen = visit(role, "/overview")
    seen = Answers(screen)
    paths = [*every_view(), *places.values(), f"/jobs?text={CANARY}"]
    assert len(paths) > 20
    for path in paths:
        screen.open(path)
        settled(screen)
        text = screen.page.locator("main").inner_html().replace(f'value="{CANARY}"', "")
        assert CANARY not in text, path
    assert len(seen.answers) > 30
    assert seen.holders() == []


@pytest.mark.storm
def test_each_drawer_says_that_it_hides_something(visit: Visitors, places: dict[str, str]) -> None:
    """An empty field would look like missing data; an admin sees the data there."""
    for what, path in places.items():
        for viewer, hidden in (("operator", True), ("admin", False)):
            screen = visit(viewer, path)
            drawer = screen.page.get_by_role("dialog")
            drawer.wait_for()
            pattern = re.compile(r"Hidden: the role of this key|^hidden$")
            if hidden:
                drawer.get_by_text(pattern).first.wait_for()
                assert CANARY not in drawer.inner_html(), (what, viewer)
            else:
                drawer.get_by_text(CANARY).first.wait_for()
                assert drawer.get_by_text(pattern).count() == 0, (what, viewer)


def test_a_dry_run_counts_and_hides_its_clients(visit: Visitors, places: dict[str, str]) -> None:
    """An operator may run it, but may not see the clients' data."""
    assert places
    screen = visit("operator", "/campaigns?name=loans")
    seen = Answers(screen)
    screen.page.get_by_role("button", name="Dry run").click()
    result = screen.page.get_by_role("status", name="Dry run")
    result.get_by_text("Hidden: the role of this key").wait_for()
    assert CANARY not in result.inner_html()
    assert seen.holders() == []


def test_a_filter_does_not_find_what_is_hidden(visit: Visitors, places: dict[str, str]) -> None:
    """Otherwise data of users could be guessed letter by letter."""
    assert places
    visit("admin", f"/jobs?text={CANARY}").page.get_by_role("row", name=re.compile("page.greet")).wait_for()
    page = visit("operator", f"/jobs?text={CANARY}").page
    page.get_by_text("No job matches").first.wait_for()
    assert page.get_by_role("row", name=re.compile("page.greet")).count() == 0


def test_the_result_of_an_action_holds_no_hidden_data(visit: Visitors, site: WorkSite, places: dict[str, str]) -> None:
    """An operator acts on a job whose payload is hidden."""
    assert places
    job = site.schedule("page.greet", DATA, delay="1h")
    screen = visit("operator", f"/jobs?job={job}")
    seen = Answers(screen)
    screen.page.get_by_role("dialog").get_by_role("button", name="Cancel", exact=True).click()
    screen.confirm("Cancel 1 job")
    site.until(job, "cancelled")
    assert seen.holders() == []
