"""Every field accepts any pasted text: the form shows the error with its code, and keeps the text."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from kit.pages import Screen, Visitors
from kit.servers import PostgresServer
from kit.work_pages import WorkSite, fill, work_site

SCRIPT = '</script><img src=x onerror="window.ran=1">'
MEGABYTE = 1_000_000
CODE = re.compile(r"[a-z]+(_[a-z]+)+")
NO_ANSWER = re.compile("http_[0-9]|This view is broken")
NUMBERS = ("1e309", "-0", "0x10", "9" * 400, "1 2", "NaN", "{}")
"""No field takes any of them as a number, and none may count as an empty field."""
NAMES = ("   ", ".", "..", "../keys", "a/b", "a" * 100_000, SCRIPT, "a\u0000b", "\u202eevil", "%2e%2e")
FORMS = {
    "/modules": ("Create", "Name", "Create 1 module", "modules"),
    "/entities": ("Create", "Code", "Create 1 entity", "entities"),
    "/report-types": ("Create", "Name", "Create 1 report type", "report_types"),
    "/partners": ("New partner", "Name", "Create 1 partner", "partners"),
}
"""By view: the button that opens its form, the field of its name, the button that creates one, the table."""


@pytest.fixture(scope="module")
def site(
    pg_server: PostgresServer, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkSite]:
    """One installation for these tests, with a source and an account."""
    folder: Path = tmp_path_factory.mktemp("hostile")
    with work_site(pg_server, template_database, folder) as made:
        fill(made)
        made.ask("PUT", "/v1/task-types/shop.hostile", {"target": "python:x", "concurrency": 7, "rate_per_s": 5})
        yield made


def hostile(visit: Visitors, path: str) -> Screen:
    """Open a view as an admin, whose browser logs refusals to its console."""
    screen = visit("admin", path)
    screen.may_complain = True
    return screen


def refused(place: Locator) -> str:
    """Return the form's error; it has a code."""
    alert = place.get_by_role("alert").last
    expect(alert).to_have_text(CODE)
    expect(alert).not_to_have_text(NO_ANSWER)
    return alert.inner_text()


@pytest.mark.matrix
@pytest.mark.parametrize("view", FORMS)
def test_an_invalid_name_is_refused_and_kept_in_the_form(visit: Visitors, site: WorkSite, view: str) -> None:
    """No name leads to another address, and none is cut to a valid one."""
    opens, label, makes, table = FORMS[view]
    before = site.one(f"SELECT count(*) FROM tickwright.{table}")
    screen = hostile(visit, view)
    sent: list[str] = []
    screen.page.on("request", lambda one: sent.append(one.url) if one.method == "PUT" else None)
    for name in NAMES:
        screen.open(view)
        screen.page.get_by_role("button", name=opens, exact=True).click()
        form = screen.page.get_by_role("dialog")
        field = form.get_by_role("textbox", name=label, exact=True)
        field.fill(name)
        kept = field.input_value()
        button = form.get_by_role("button", name=makes)
        if button.is_enabled():
            button.click()
            assert refused(form)
        assert field.input_value() == kept
    assert [url for url in sent if not re.search(r"/v1/[a-z-]+/[^/]+$", url)] == []
    assert site.one(f"SELECT count(*) FROM tickwright.{table}") == before
    assert screen.page.evaluate("window.ran") is None


@pytest.mark.matrix
@pytest.mark.parametrize("label", ["Concurrency", "Rate per second", "Maximum attempts", "Final statuses"])
def test_an_invalid_number_of_a_task_type_removes_no_limit(visit: Visitors, site: WorkSite, label: str) -> None:
    """An invalid number is sent as typed, and refused."""
    before = site.sql("SELECT * FROM tickwright.task_types WHERE name = 'shop.hostile'")
    screen = hostile(visit, "/task-types?type=shop.hostile")
    screen.page.get_by_role("button", name="Edit").click()
    form = screen.page.get_by_role("dialog", name="Edit shop.hostile")
    for typed in NUMBERS:
        form.get_by_label(label).fill(typed)
        form.get_by_role("button", name="Change 1 setting").click()
        assert refused(form), typed
        assert form.get_by_label(label).input_value() == typed
    assert site.sql("SELECT * FROM tickwright.task_types WHERE name = 'shop.hostile'") == before


@pytest.mark.matrix
@pytest.mark.parametrize("label", ["Interval, minutes", "Cap per 5 min", "Polled for, days", "Objective, %"])
def test_an_invalid_number_of_an_account_changes_nothing(visit: Visitors, site: WorkSite, label: str) -> None:
    """Its preview or the API shows the error."""
    rows = "SELECT * FROM tickwright.polling_schedule_config WHERE account_id = 'acme'"
    before = site.sql(rows)
    screen = hostile(visit, "/accounts?account=acme")
    screen.page.get_by_role("button", name="Edit").click()
    drawer = screen.page.get_by_role("dialog")
    for typed in NUMBERS:
        drawer.get_by_label(label).fill(typed)
        save = drawer.get_by_role("button", name="Save")
        expect(
            drawer.get_by_role("alert")
            .filter(has_text=CODE)
            .or_(drawer.get_by_role("button", name="Save", disabled=False))
            .first
        ).to_be_visible()
        if save.is_enabled():
            save.click()
            screen.confirm("Change 1 setting")
        assert refused(drawer), typed
        assert drawer.get_by_label(label).input_value() == typed
    assert site.sql(rows) == before


@pytest.mark.matrix
@pytest.mark.parametrize("label", ["Clients per chunk", "Attempts per chunk", "Missed runs at most"])
def test_an_invalid_number_of_a_campaign_is_an_error_at_its_field(visit: Visitors, label: str) -> None:
    """With its code, while the user types."""
    screen = hostile(visit, "/campaigns/edit")
    field = screen.page.get_by_label(label)
    for typed in NUMBERS:
        field.fill(typed)
        said: Any = (
            screen.page.locator(".mantine-InputWrapper-root").filter(has=field).locator(".mantine-InputWrapper-error")
        )
        expect(said).to_have_text(CODE)
        assert field.input_value() == typed


NO_OBJECTS = ("[1]", "x", "", "1", "null")
NO_PARTIES = (
    '{"a": 1e309}',
    '{"a": "\\u0000"}',
    '{"a": "\\ud800"}',
    '{"a":' * 3_000 + "1" + "}" * 3_000,
    '{"a": "' + "x" * 100_000 + '"}',
    '{"a": "' + "x" * MEGABYTE + '"}',
)


def test_an_invalid_party_is_refused_and_kept_in_the_form(visit: Visitors, site: WorkSite) -> None:
    """Anything but an object by its field, too large a text by the API."""
    screen = hostile(visit, "/entities")
    screen.page.get_by_role("button", name="Create", exact=True).click()
    form = screen.page.get_by_role("dialog")
    form.get_by_role("textbox", name="Code").fill("HOSTILE")
    field, button = form.get_by_label("Party"), form.get_by_role("button", name="Create 1 entity")
    for party in NO_OBJECTS:
        field.fill(party)
        form.get_by_text(re.compile(r"\(invalid_json\)")).wait_for()
        expect(button).to_be_disabled()
        assert field.input_value() == party
    for party in NO_PARTIES:
        field.fill(party)
        with screen.page.expect_response("**/v1/entities/HOSTILE") as answer:
            button.click()
        assert answer.value.status in {400, 413, 422}, party[:40]
        assert refused(form), party[:40]
        assert field.input_value() == party
    assert site.one("SELECT count(*) FROM tickwright.entities WHERE code = 'HOSTILE'") == 0


@pytest.mark.storm
def test_the_expression_editor_survives_a_megabyte(visit: Visitors) -> None:
    """It is too long, and the editor says so; with a shorter text it works again at once."""
    screen = hostile(visit, "/campaigns/edit")
    page = screen.page
    field = page.get_by_label("Expression", exact=True)
    for much in ("client.age > 1 && " * (MEGABYTE // 18), "(" * MEGABYTE, "x" * MEGABYTE):
        field.fill(much)
        page.get_by_role("alert").get_by_text("body_too_large").wait_for(timeout=20_000)
        assert len(field.input_value()) == len(much)
        assert page.get_by_role("button", name="Create", exact=True).is_disabled()
    field.fill("client.age >")
    page.get_by_label("Mistakes in the expression").get_by_role("listitem").first.wait_for()


STRANGE = ("\u0000", "\u001b[31m", SCRIPT, "client.age > 1e309", "client.age > -0", "   ", "\u202eclient", "\u2028")


@pytest.mark.storm
def test_a_strange_expression_has_a_mistake_with_a_code(visit: Visitors) -> None:
    """Or none, if it is a valid expression; no script in it runs, and the text stays."""
    screen = hostile(visit, "/campaigns/edit")
    page = screen.page
    field = page.get_by_label("Expression", exact=True)
    for text in STRANGE:
        field.fill("client.age >")
        page.get_by_role("status").get_by_text("1 mistake", exact=True).wait_for()
        field.fill(text)
        kept = field.input_value()
        expect(page.get_by_role("status").first).not_to_have_text("checking …")
        mistakes = page.get_by_label("Mistakes in the expression").get_by_role("listitem").all_inner_texts()
        said = [*mistakes, *page.get_by_role("alert").all_inner_texts()]
        assert field.input_value() == kept
        assert all(CODE.search(one) for one in said), (text, said)
    assert page.evaluate("window.ran") is None


@pytest.mark.storm
def test_filters_and_the_search_accept_any_text(visit: Visitors) -> None:
    """A filter without a meaning has an answer, not a broken view."""
    for path, label in (("/jobs", "Text"), ("/audit", "Who"), ("/entities", "Entity"), ("/trackers", "External id")):
        screen = hostile(visit, path)
        for text in (SCRIPT, "%", "\\", "x" * MEGABYTE, "\u0000"):
            field = screen.page.get_by_label(label, exact=True).first
            field.fill(text)
            expect(screen.page.get_by_role("heading", level=1)).to_be_visible()
            assert screen.page.get_by_text("This view is broken").count() == 0, (path, text[:20])
        assert screen.page.evaluate("window.ran") is None
