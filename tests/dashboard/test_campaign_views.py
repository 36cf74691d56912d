"""Campaigns and executions: the editor marks a mistake at its position, and every action has its effect."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Error

from kit.pages import Screen, Visitors
from kit.servers import PostgresServer
from kit.waiting import eventually
from kit.work_pages import AUDIENCE, CLIENTS, WorkSite, work_site

STATUS = "SELECT status FROM tickwright.batches WHERE name = %s"
EXECUTION = "SELECT status FROM tickwright.executions WHERE id = %s"


@pytest.fixture(scope="module")
def site(
    pg_server: PostgresServer, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkSite]:
    """One installation for these tests."""
    folder: Path = tmp_path_factory.mktemp("campaigns")
    with work_site(pg_server, template_database, folder) as made:
        yield made


def marks(screen: Screen) -> list[Any]:
    """Return the underlined texts, as (text, start, end) in units of the browser."""
    script = "all => all.map(one => [one.textContent, +one.dataset.start, +one.dataset.end])"
    return list(screen.page.locator("mark").evaluate_all(script))


def typed(screen: Screen, text: str, mistakes: int) -> Screen:
    """Write an expression and wait for its check."""
    screen.page.get_by_label("Expression", exact=True).fill(text)
    summary = "no mistake" if mistakes == 0 else f"{mistakes} mistake{'s' if mistakes > 1 else ''}"
    screen.page.get_by_role("status").get_by_text(summary, exact=True).wait_for()
    return screen


@pytest.mark.storm
def test_a_mistake_is_underlined_at_its_position(visit: Visitors, site: WorkSite) -> None:
    """Line, column and offset are the API's, in characters; the mark counts in units of the browser."""
    site.campaign("marks")
    screen = typed(visit("admin", "/campaigns/edit?name=marks"), 'client.country == "🎉é" &&\n  client.agee > 25', 1)
    line = screen.page.get_by_role("button", name="line 2, column 3, offset 28")
    line.wait_for()
    assert marks(screen) == [["client.agee", 29, 40]]
    line.click()
    assert screen.page.evaluate("document.activeElement.selectionStart") == 29
    typed(screen, "client.age > 25 &&", 1)
    ((_, start, _),) = marks(screen)
    assert start == len("client.age > 25 &&")
    assert marks(typed(screen, "client.age > 25", 0)) == []


def test_an_answer_about_another_text_is_dropped(visit: Visitors, site: WorkSite) -> None:
    """A slow answer about an earlier text marks nothing in the present one."""
    site.campaign("slowly")
    screen = visit("admin", "/campaigns/edit?name=slowly")
    page = screen.page
    page.get_by_role("status").get_by_text("no mistake").wait_for()
    held: list[Any] = []
    page.route("**/v1/campaigns:check", lambda route: held.append(route) if not held else route.continue_())
    page.get_by_label("Expression", exact=True).fill("client.nobody > 1")
    while not held:  # the page's events arrive while a call to it runs
        page.evaluate("new Promise(requestAnimationFrame)")
    typed(screen, "client.age > 1", 0)
    with suppress(Error):  # the page has cancelled the earlier request
        held[0].continue_()
    assert marks(screen) == []
    assert marks(typed(screen, "client.age > 2", 0)) == []


def test_a_dry_run_counts_the_expression_of_the_form(visit: Visitors, site: WorkSite) -> None:
    """The unsaved expression is evaluated; nothing is saved."""
    site.campaign("dry")
    screen = typed(visit("admin", "/campaigns/edit?name=dry"), "client.age >= 75", 0)
    screen.page.get_by_role("button", name="Dry run").click()
    result = screen.page.get_by_role("status", name="Dry run")
    result.get_by_text(str(CLIENTS // 4), exact=True).wait_for()
    result.get_by_text("The first 10 of them").wait_for()
    runs = (
        "SELECT count(*) FROM tickwright.executions JOIN tickwright.batches b ON b.id = batch_id WHERE b.name = 'dry'"
    )
    assert site.one(runs) == 0
    assert site.ask("GET", "/v1/campaigns/dry")["version"] == 1


def test_a_campaign_that_was_never_saved_has_a_dry_run(visit: Visitors, site: WorkSite) -> None:
    """Audience and expression of the form are counted; no campaign is created."""
    screen = visit("admin", "/campaigns/edit")
    screen.page.get_by_label("Audience").fill(json.dumps(AUDIENCE))
    typed(screen, "client.age >= 90", 0)
    screen.page.get_by_role("button", name="Dry run").click()
    result = screen.page.get_by_role("status", name="Dry run")
    result.get_by_text(str(CLIENTS // 10), exact=True).wait_for()
    typed(screen, "client.age >= 80", 0)
    screen.page.get_by_text("The result below is of another expression or audience.").wait_for()
    screen.page.get_by_role("button", name="Dry run").click()
    result.get_by_text(str(CLIENTS // 5), exact=True).wait_for()
    assert site.one("SELECT count(*) FROM tickwright.batches WHERE name = ''") == 0


def test_a_campaign_is_created_changed_and_compared(visit: Visitors, site: WorkSite) -> None:
    """The values of the form are saved; a change is a version, and the difference of two versions is shown by field."""
    screen = visit("admin", "/campaigns/edit")
    page = screen.page
    page.get_by_role("textbox", name="Name").fill("made-here")
    page.get_by_text("By a calendar").click()
    page.get_by_label("First run").fill("2031-03-01T09:00")
    page.get_by_role("combobox", name="Time zone").fill("Europe/Kyiv")
    page.get_by_label("Audience").fill('{"source": "crm", "table": "clients", "key": "id", "fields": {"age": "int"}}')
    page.get_by_label("Action", exact=True).fill("pg:applications")
    typed(screen, "client.age > 90", 0)
    page.get_by_role("button", name="Create", exact=True).click()
    screen.confirm("Create 1 campaign")
    page.get_by_text("made-here is version 1").wait_for()
    made = site.ask("GET", "/v1/campaigns/made-here")
    assert made["definition"]["expression"] == "client.age > 90"
    assert made["next_slots"][0] == "2031-03-01T07:00:00Z"
    page.get_by_role("link", name="Edit").click()
    typed(screen, "client.age > 95", 0)
    page.get_by_role("button", name="Save", exact=True).click()
    screen.confirm("Save version 2")
    table = page.get_by_role("table", name="Differences of version 1 and 2")
    table.get_by_role("row", name="expression client.age > 90 client.age > 95").wait_for()
    assert table.get_by_role("row").count() == 2


def test_an_edit_of_an_outdated_version_is_refused(visit: Visitors, site: WorkSite) -> None:
    """The opened version is sent along; the other user's edit stays."""
    site.campaign("contended")
    screen = visit("admin", "/campaigns/edit?name=contended")
    screen.may_complain = True  # the 409 is in the console
    typed(screen, "client.age > 1", 0)
    site.campaign("contended", expression="client.age > 2")
    screen.page.get_by_role("button", name="Save", exact=True).click()
    screen.confirm("Save version 2")
    screen.page.get_by_text("version_conflict").wait_for()
    assert site.ask("GET", "/v1/campaigns/contended")["definition"]["expression"] == "client.age > 2"


def test_a_campaign_is_activated_and_deactivated(visit: Visitors, site: WorkSite) -> None:
    """Each after a confirmation, by an operator."""
    site.campaign("calendar", type="AUTOMATIC", date_time_execution="2031-01-01T00:00")
    screen = visit("operator", "/campaigns?name=calendar")
    for label, status in (("Activate", "SCHEDULED"), ("Deactivate", "IDLE")):
        screen.page.get_by_role("button", name=label, exact=True).click()
        screen.confirm(f"{label} 1 campaign")
        eventually(partial(site.gives, status, STATUS, "calendar"), 10)


@pytest.mark.storm
def test_an_execution_is_started_paused_resumed_and_stopped(visit: Visitors, site: WorkSite) -> None:
    """Its progress is shown meanwhile."""
    site.campaign("slow", rate="100/s", chunk_rows=100)
    screen = visit("operator", "/campaigns?name=slow")
    page = screen.page
    page.get_by_role("button", name="Start now").click()
    screen.confirm("Start 1 campaign")
    page.get_by_role("table", name="Last executions of slow").get_by_role("row", name=re.compile("in progress")).click()
    page.get_by_text(re.compile(r"[1-9]\d* of 20 chunks, ")).wait_for(timeout=20_000)
    execution = int(page.url.rpartition("=")[2])
    paused = "SELECT paused_at IS NOT NULL FROM tickwright.executions WHERE id = %s"
    for label, expected in (("Pause", True), ("Resume", False)):
        page.get_by_role("button", name=label, exact=True).click()
        screen.confirm(f"{label} 1 execution")
        eventually(partial(site.gives, expected, paused, execution), 10)
    page.get_by_role("button", name="Stop", exact=True).click()
    screen.confirm("Stop 1 execution")
    eventually(lambda: site.one(EXECUTION, execution) == "STOPPED", 10)


def test_a_failed_execution_is_retried(visit: Visitors, site: WorkSite) -> None:
    """Its table was missing; the view says where it failed, and with the table back a retry succeeds."""
    site.make_clients("gone")
    site.campaign(
        "failing", audience={"source": "crm", "table": "gone", "key": "id", "fields": {"age": "int"}}, attempts=1
    )
    site.change("DROP TABLE gone")
    execution = site.ask("POST", "/v1/campaigns/failing/start")["executions"][0]["id"]
    eventually(lambda: site.one(EXECUTION, execution) == "EXCEPTION_OCCURRED", 40)
    site.make_clients("gone")
    screen = visit("operator", f"/executions?execution={execution}")
    screen.page.get_by_text("Where it failed").wait_for()
    screen.page.get_by_role("button", name="Retry").click()
    screen.confirm("Retry 1 execution")
    eventually(lambda: site.one(EXECUTION, execution) == "FINISHED", 40)
    screen.page.get_by_text(f"{CLIENTS // 2:,} of {CLIENTS // 2:,} actions").wait_for(timeout=20_000)


def test_clients_that_could_not_be_judged_are_shown(visit: Visitors, site: WorkSite) -> None:
    """With their number and examples; the decision about one client is found by its key."""
    site.campaign("odd", expression="1000 / (client.age - 30) > 20")
    execution = site.ask("POST", "/v1/campaigns/odd/start")["executions"][0]["id"]
    eventually(lambda: site.one(EXECUTION, execution) == "FINISHED", 40)
    page = visit("viewer", f"/executions?execution={execution}").page
    page.get_by_label("Skipped clients").get_by_text("Client 30 in chunk 0: it divides by zero").wait_for()
    page.get_by_text("100% read").wait_for()
    page.get_by_label("Client", exact=True).fill("45")
    page.get_by_role("row", name=re.compile("^45 ")).wait_for()


def test_a_viewer_sees_no_action_and_an_operator_no_editor(visit: Visitors, site: WorkSite) -> None:
    """An action without the role has no button and no address."""
    site.campaign("roles")
    for role, start, edit in (("viewer", 0, 0), ("operator", 1, 0), ("admin", 1, 1)):
        page = visit(role, "/campaigns?name=roles").page
        page.get_by_text("Next runs").wait_for()
        assert page.get_by_role("button", name="Start now").count() == start, role
        assert page.get_by_role("link", name="Edit").count() == edit, role
    page = visit("operator", "/campaigns/edit?name=roles").page
    page.get_by_text("Campaign editor: the role admin is required").wait_for()


@pytest.mark.matrix
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["/campaigns?name=axe", "/campaigns/edit?name=axe", "/executions", "/batches"])
def test_axe_finds_nothing_serious(visit: Visitors, site: WorkSite, path: str, scheme: str) -> None:
    """In both schemes, the editor with a mistake in it."""
    site.campaign("axe")
    screen = visit("admin", path, scheme=scheme)
    if "edit" in path:
        typed(screen, "client.agee > 1", 1)
    else:
        screen.page.get_by_role("heading", level=1).first.wait_for()
        screen.page.locator("table, h2").first.wait_for()
    assert screen.findings() == []


@pytest.mark.matrix
@pytest.mark.parametrize("path", ["/campaigns", "/campaigns/edit", "/executions", "/batches"])
def test_no_view_is_wider_than_a_phone(visit: Visitors, path: str) -> None:
    """At 390 px nothing is wider than the window."""
    page = visit("admin", path, width=390).page
    page.get_by_role("heading", level=1).wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
