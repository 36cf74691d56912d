"""Entities and modules: how their polling went, and pause and enable to their effect."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Locator

from kit.pages import Visitors
from kit.servers import PostgresServer
from kit.waiting import eventually
from kit.work_pages import WorkSite, work_site

POLLED = "SELECT is_polling_enabled FROM tickwright.entities WHERE code = %s"
PAUSED = "SELECT paused_at IS NOT NULL FROM tickwright.modules WHERE name = %s"


@pytest.fixture(scope="module")
def site(
    pg_server: PostgresServer, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkSite]:
    """An installation with an entity that works and one that fails."""
    folder: Path = tmp_path_factory.mktemp("fanout")
    with work_site(pg_server, template_database, folder) as made:
        for code in ("NL.ONE", "NL.BAD"):
            made.ask("PUT", f"/v1/entities/{code}", {"polling_enabled_modules": "PAGES", "party": {"who": code}})
        yield made


@pytest.mark.storm
def test_tables_show_modules_by_window_and_entities_by_module(visit: Visitors) -> None:
    """A window shows how many succeeded; a failing entity shows it."""
    page = visit("viewer", "/entities").page
    row = page.get_by_role("table", name=re.compile("Modules against windows")).get_by_role(
        "row", name=re.compile("PAGES")
    )
    row.get_by_label(re.compile("1 of 2 succeeded")).first.wait_for(timeout=30_000)
    page.get_by_role("row", name=re.compile("NL.BAD.*failing PAGES")).wait_for(timeout=30_000)
    page.get_by_role("row", name=re.compile(r"NL.ONE.* PAGES .*(ago|now)")).wait_for()


@pytest.mark.storm
def test_an_entity_says_why_it_fails(visit: Visitors) -> None:
    """With the provider's error, and its party as text."""
    page = visit("viewer", "/entities?entity=NL.BAD").page
    page.get_by_text(re.compile("this provider never answers")).first.wait_for(timeout=30_000)
    page.get_by_label("party", exact=True).get_by_text("NL.BAD").wait_for()


def test_an_entity_is_paused_and_enabled(visit: Visitors, site: WorkSite) -> None:
    """Each after a confirmation with its number."""
    screen = visit("admin", "/entities?entity=NL.ONE")
    for label, expected in (("Pause", False), ("Enable", True)):
        screen.page.get_by_role("button", name=label, exact=True).click()
        screen.confirm(f"{label} 1 entity")
        eventually(partial(site.gives, expected, POLLED, "NL.ONE"), 10)


def test_an_entity_is_created_edited_and_deleted(visit: Visitors, site: WorkSite) -> None:
    """The values of the form are stored exactly; each change is in the audit trail."""
    screen = visit("admin", "/entities")
    page = screen.page
    page.get_by_role("button", name="Create", exact=True).click()
    form = page.get_by_role("dialog", name="Create an entity")
    form.get_by_role("textbox", name="Code").fill("PL.NEW")
    choose(form, "PAGES")
    form.get_by_label("Party").fill(f'{{"limit": {2**60 + 1}}}')
    form.get_by_role("button", name="Create 1 entity").click()
    page.get_by_text("PL.NEW is created").wait_for()
    made = site.ask("GET", "/v1/entities/PL.NEW")
    assert (made["party"], [one["name"] for one in made["modules"]]) == ({"limit": 2**60 + 1}, ["PAGES"])
    page.get_by_role("row", name=re.compile("PL.NEW")).click()
    page.get_by_role("button", name="Edit", exact=True).click()
    form = page.get_by_role("dialog", name="Edit PL.NEW")
    form.get_by_label("Polling is enabled").uncheck()
    form.get_by_role("button", name="Save 1 entity").click()
    page.get_by_text("PL.NEW is saved").wait_for()
    changed = site.ask("GET", "/v1/entities/PL.NEW")
    assert (changed["party"], changed["is_polling_enabled"]) == ({"limit": 2**60 + 1}, False)
    page.get_by_role("button", name="Delete", exact=True).click()
    screen.confirm("Delete 1 entity")
    page.get_by_text("PL.NEW is deleted").wait_for()
    assert site.one("SELECT count(*) FROM tickwright.entities WHERE code = %s", "PL.NEW") == 0
    actions = "SELECT string_agg(action, ' ' ORDER BY id) FROM tickwright.audit WHERE subject = %s AND actor = 'Ada'"
    assert site.one(actions, "entity:PL.NEW") == "entities.put entities.put entities.delete"


def choose(form: Locator, name: str) -> None:
    """Add a module to the chosen ones."""
    form.get_by_role("combobox", name="Modules").click()
    form.page.get_by_role("option", name=name).click()
    form.page.keyboard.press("Escape")


def test_an_existing_entity_is_not_overwritten_without_a_confirmation(visit: Visitors, site: WorkSite) -> None:
    """The form to create one asks before it replaces one; a refusal leaves it, and the typed values."""
    site.ask("PUT", "/v1/entities/NL.TAKEN", {"party": {"who": "was here"}})
    screen = visit("admin", "/entities")
    page = screen.page
    page.get_by_role("button", name="Create", exact=True).click()
    page.get_by_role("textbox", name="Code").fill("NL.TAKEN")
    page.get_by_role("button", name="Create 1 entity").click()
    page.get_by_role("dialog", name="Replace 1 entity?").get_by_role("button", name="Go back").click()
    assert site.ask("GET", "/v1/entities/NL.TAKEN")["party"] == {"who": "was here"}
    page.get_by_role("button", name="Create 1 entity").click()
    screen.confirm("Replace 1 entity")
    page.get_by_text("NL.TAKEN is saved").wait_for()
    assert site.ask("GET", "/v1/entities/NL.TAKEN")["party"] == {}


def test_a_masked_secret_is_not_lost_by_an_edit(visit: Visitors, site: WorkSite) -> None:
    """A secret that SQL wrote is shown as ***; saving that is refused in the form, and the secret stays."""
    site.ask("PUT", "/v1/entities/NL.SECRET", {})
    site.sql("""UPDATE tickwright.entities SET party = '{"token": "t-123"}' WHERE code = 'NL.SECRET'""")
    screen = visit("admin", "/entities?entity=NL.SECRET")
    screen.may_complain = True  # the 422 is in the console
    screen.page.get_by_role("button", name="Edit", exact=True).click()
    assert "***" in screen.page.get_by_label("Party", exact=True).last.input_value()
    screen.page.get_by_role("button", name="Save 1 entity").click()
    screen.page.get_by_role("alert").get_by_text("plain_secret", exact=True).wait_for()
    assert site.one("SELECT party->>'token' FROM tickwright.entities WHERE code = %s", "NL.SECRET") == "t-123"


def test_a_form_says_that_another_user_changed_the_entity(visit: Visitors, site: WorkSite) -> None:
    """The drawer below it reloads; the form keeps the typed values and says so."""
    site.ask("PUT", "/v1/entities/NL.BOTH", {})
    page = visit("admin", "/entities?entity=NL.BOTH").page
    page.get_by_role("button", name="Edit", exact=True).click()
    page.get_by_role("textbox", name="Partner").fill("typed")
    site.ask("PUT", "/v1/entities/NL.BOTH", {"party": {"who": "other"}})
    page.get_by_text("This entity was changed after this form was opened").wait_for()
    assert page.get_by_role("textbox", name="Partner").input_value() == "typed"


def test_a_module_is_paused_enabled_and_changed(visit: Visitors, site: WorkSite) -> None:
    """The confirmation has the number of entities."""
    screen = visit("admin", "/modules?module=PAGES")
    page = screen.page
    for label, expected in (("Pause", True), ("Enable", False)):
        page.get_by_role("button", name=label, exact=True).click()
        page.get_by_text(re.compile("^2 entities are (no longer )?polled for PAGES")).wait_for()
        screen.confirm(f"{label} 1 module")
        eventually(partial(site.gives, expected, PAUSED, "PAGES"), 10)
    page.goto(f"{site.url}/modules")
    page.get_by_role("button", name="Create", exact=True).click()
    page.get_by_role("textbox", name="Name").fill("HERE")
    page.get_by_role("textbox", name="Window").fill("10m")
    page.get_by_label(re.compile("Gate")).check()
    page.get_by_role("button", name="Create 1 module").click()
    page.get_by_role("row", name=re.compile("HERE.*10m.*ENABLE_HERE_POLLING")).wait_for()
    assert site.ask("GET", "/v1/modules/HERE")["gated"] is True


def test_filters_find_entities_and_are_in_the_address(visit: Visitors) -> None:
    """By the prefix of the code."""
    page = visit("viewer", "/entities").page
    page.get_by_label("Entity", exact=True).fill("NL.B")
    page.wait_for_url("**/entities?q=NL.B")
    page.get_by_role("row", name=re.compile("NL.ONE")).wait_for(state="detached")
    page.get_by_role("row", name=re.compile("NL.BAD")).wait_for()


@pytest.mark.storm
def test_an_operator_sees_no_action(visit: Visitors) -> None:
    """Only an admin changes entities and modules."""
    for path, heading in (("/entities?entity=NL.ONE", "Party"), ("/modules?module=PAGES", "Last windows")):
        for role, number in (("operator", 0), ("admin", 1)):
            page = visit(role, path).page
            page.get_by_role("heading", name=heading).wait_for()
            for name in ("Pause", "Edit"):
                assert page.get_by_role("button", name=name, exact=True).count() == number, (path, role)
    for role, number in (("operator", 0), ("admin", 1)):
        page = visit(role, "/entities").page
        page.get_by_role("row", name=re.compile("NL.ONE")).wait_for()
        assert page.get_by_role("button", name="Create", exact=True).count() == number, role


@pytest.mark.matrix
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["/entities", "/modules", "/entities?entity=NL.BAD"])
def test_axe_finds_nothing_serious(visit: Visitors, path: str, scheme: str) -> None:
    """In both schemes."""
    screen = visit("admin", path, scheme=scheme)
    screen.page.get_by_role("table").nth(1).wait_for()
    assert screen.findings() == []


@pytest.mark.parametrize("path", ["/entities", "/modules"])
def test_no_view_is_wider_than_a_phone(visit: Visitors, path: str) -> None:
    """At 390 px nothing is wider than the window."""
    page = visit("admin", path, width=390).page
    page.get_by_role("table").nth(1).wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.storm
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_the_form(visit: Visitors, scheme: str) -> None:
    """With its modules open, with a mistake in it, and on a phone."""
    for width in (1360, 390):
        screen = visit("admin", "/entities?entity=NL.ONE", scheme=scheme, width=width)
        screen.page.get_by_role("button", name="Edit", exact=True).click()
        form = screen.page.get_by_role("dialog", name="Edit NL.ONE")
        form.get_by_label("Party", exact=True).fill("{")
        form.get_by_text(re.compile("invalid_json")).wait_for()
        form.get_by_role("combobox", name="Modules").click()
        screen.page.get_by_role("option").first.wait_for()
        assert screen.findings() == []
        assert screen.page.evaluate("document.documentElement.scrollWidth") <= width
