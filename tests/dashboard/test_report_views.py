"""Reports: requested by a form, followed part by part, downloaded, cancelled."""

import csv
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.pages import Visitors
from kit.servers import PostgresServer
from kit.waiting import eventually
from kit.work_pages import CLIENTS, WorkSite, work_site

STATUS = "SELECT status FROM tickwright.reports WHERE id = %s"
SQL = "SELECT id AS client_id, age FROM clients WHERE country = :country ORDER BY id"
CLIENTS_TYPE = {"parameters": {"country": "text"}, "listeners": {"clients": {"source": "crm", "sql": SQL}}}
WAITING_TYPE = {"listeners": {"partner": {"service": True, "columns": {"id": "BIGINT"}}}}


@pytest.fixture(scope="module")
def site(
    pg_server: PostgresServer, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkSite]:
    """One installation for these tests, with two report types."""
    folder: Path = tmp_path_factory.mktemp("reports")
    with work_site(pg_server, template_database, folder) as made:
        made.ask("PUT", "/v1/report-types/clients", CLIENTS_TYPE)
        made.ask("PUT", "/v1/report-types/waiting", WAITING_TYPE)
        yield made


@pytest.mark.storm
def test_a_report_is_requested_and_downloaded(visit: Visitors, site: WorkSite, tmp_path: Path) -> None:
    """The form has the type's parameters; the file has the rows, and the checksum shown is its own."""
    screen = visit("operator", "/reports")
    page = screen.page
    page.get_by_role("button", name="Request", exact=True).click()
    page.get_by_role("dialog").get_by_label("Report type").click()
    page.get_by_role("option", name="clients").click()
    page.get_by_label("country").fill("NL")
    page.get_by_role("button", name="Request 1 report").click()
    page.get_by_role("dialog").get_by_role("button", name=re.compile("Download report")).wait_for(timeout=30_000)
    page.get_by_role("listitem").filter(has_text="clients").get_by_text("done").wait_for()
    with page.expect_download() as begun:
        page.get_by_role("dialog").get_by_role("button", name=re.compile("Download report")).click()
    file = tmp_path / "report.csv"
    begun.value.save_as(file)
    with file.open(encoding="utf-8", newline="") as text:
        rows = list(csv.DictReader(text))
    assert len(rows) == CLIENTS // 2
    assert {row["client_id"] for row in rows[:3]} == {"1", "3", "5"}
    page.get_by_text(hashlib.sha256(file.read_bytes()).hexdigest()).first.wait_for()
    (row,) = site.sql("SELECT requester, conditions::text FROM tickwright.reports ORDER BY id DESC LIMIT 1")
    assert (row["requester"], row["conditions"]) == ("Olaf", '{"country": "NL"}')


def test_a_missing_value_is_shown_and_no_report_is_requested(visit: Visitors, site: WorkSite) -> None:
    """A value that the type refuses stays in the form with the API's error."""
    site.ask("PUT", "/v1/report-types/numbers", {**CLIENTS_TYPE, "parameters": {"country": "integer"}})
    screen = visit("operator", "/reports")
    screen.may_complain = True  # the 422 is in the console
    page = screen.page
    page.get_by_role("button", name="Request", exact=True).click()
    page.get_by_role("dialog").get_by_label("Report type").click()
    page.get_by_role("option", name="numbers").click()
    page.get_by_label("country").fill("many")
    page.get_by_role("button", name="Request 1 report").click()
    page.get_by_role("alert").get_by_text("country").wait_for()
    assert site.one("SELECT count(*) FROM tickwright.reports WHERE type = 'numbers'") == 0


def test_a_waiting_report_is_explained_and_cancelled(visit: Visitors, site: WorkSite) -> None:
    """The reason of the wait is shown; a cancel needs a confirmation."""
    report = site.ask("POST", "/v1/reports", {"type": "waiting", "requester": "Vera"})["id"]
    screen = visit("operator", f"/reports?report={report}")
    screen.page.get_by_label("Parts by stage").get_by_text("partner").first.wait_for()
    screen.page.get_by_text("0 of 1 parts").wait_for()
    screen.page.get_by_role("button", name="Cancel", exact=True).click()
    screen.page.get_by_text("ends without a file").wait_for()
    assert site.one(STATUS, report) in {"pending", "querying"}
    screen.confirm("Cancel 1 report")
    eventually(lambda: site.one(STATUS, report) == "cancelled", 10)


def test_a_failed_report_shows_its_errors(visit: Visitors, site: WorkSite) -> None:
    """The error of a part is at the part, that of the report above."""
    wrong = {"listeners": {"missing": {"source": "crm", "sql": "SELECT id FROM missing", "attempts": 1}}}
    site.ask("PUT", "/v1/report-types/wrong", wrong)
    report = site.ask("POST", "/v1/reports", {"type": "wrong"})["id"]
    eventually(lambda: site.one(STATUS, report) == "failed", 40)
    page = visit("viewer", f"/reports?report={report}").page
    page.get_by_role("alert").get_by_text("missing").first.wait_for()
    page.get_by_label("Parts by stage").get_by_text("no such table").wait_for()


def test_a_report_type_is_set_and_deleted(visit: Visitors, site: WorkSite) -> None:
    """By an admin, as JSON; a wrong definition is refused with its error."""
    screen = visit("admin", "/report-types")
    screen.may_complain = True  # the 422 is in the console
    page = screen.page
    page.get_by_role("button", name="Create", exact=True).click()
    page.get_by_role("textbox", name="Name").fill("made-here")
    page.get_by_label("Definition").fill('{"listeners": {}}')
    page.get_by_role("button", name="Create 1 report type").click()
    page.get_by_text("invalid_report_type").wait_for()
    page.get_by_label("Definition").fill('{"listeners": {"one": {"source": "crm", "sql": "SELECT 1 AS one"}}}')
    page.get_by_role("button", name="Create 1 report type").click()
    page.get_by_text("made-here is created").wait_for()
    named = "SELECT count(*) FROM tickwright.report_types WHERE name = 'made-here'"
    assert site.one(named) == 1
    page.get_by_role("row", name=re.compile("made-here")).click()
    page.get_by_role("button", name="Delete", exact=True).click()
    screen.confirm("Delete 1 report type")
    eventually(lambda: site.one(named) == 0, 10)


def test_a_viewer_sees_no_action(visit: Visitors, site: WorkSite) -> None:
    """An action without the role has no button."""
    report = site.ask("POST", "/v1/reports", {"type": "waiting", "requester": "Wanda"})["id"]
    for role, number in (("viewer", 0), ("operator", 1)):
        page = visit(role, f"/reports?report={report}").page
        page.get_by_text("Conditions").wait_for()
        assert page.get_by_role("button", name="Cancel", exact=True).count() == number, role


@pytest.mark.matrix
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["/reports", "/report-types", "/reports?report=1"])
def test_axe_finds_nothing_serious(visit: Visitors, path: str, scheme: str) -> None:
    """In both schemes."""
    screen = visit("admin", path, scheme=scheme)
    screen.page.get_by_role("heading", name="Manifest").or_(screen.page.get_by_role("table")).first.wait_for()
    assert screen.findings() == []


@pytest.mark.matrix
@pytest.mark.parametrize("path", ["/reports", "/report-types", "/reports?report=1"])
def test_no_view_is_wider_than_a_phone(visit: Visitors, path: str) -> None:
    """At 390 px nothing is wider than the window."""
    page = visit("admin", path, width=390).page
    page.get_by_role("heading", level=1).first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
