"""Schedules on the page: created with a preview, edited, paused, run now, deleted."""

from typing import Any

from playwright.sync_api import expect

from kit.pages import Site, Visitors


def column(site: Site, name: str, field: str) -> Any:
    """Return a column of a schedule's row."""
    return site.sql(f"SELECT {field} FROM tickwright.schedules WHERE name = %s", name)[0][field]


def put(site: Site, name: str, **fields: Any) -> None:
    """Store a schedule of a registered type."""
    definition = {"task_type": "page.greet", "cron": "0 3 * * *", "time_zone": "Europe/Kyiv", **fields}
    site.ask("PUT", f"/v1/schedules/{name}", definition)


def test_a_schedule_is_created_with_a_preview_of_its_form(visit: Visitors, site: Site) -> None:
    """The form shows the times in words and the next ten, before anything is saved."""
    page = visit("operator", "/schedules").page
    page.get_by_role("button", name="Create", exact=True).click()
    form = page.get_by_role("dialog")
    form.get_by_role("textbox", name="Name", exact=True).fill("made.here")
    form.get_by_role("textbox", name="Task type").fill("page.greet")
    form.get_by_role("textbox", name="Cron").fill("30 4 * * 1")
    form.get_by_text("At 04:30 on Monday (UTC)").wait_for()
    rows = form.get_by_role("table", name="Next occurrences of this form").get_by_role("row")
    expect(rows).to_have_count(11)
    form.get_by_role("button", name="Create 1 schedule").click()
    page.get_by_text("made.here is created").wait_for()
    assert column(site, "made.here", "cron") == "30 4 * * 1"


def test_an_edit_sends_only_changed_fields_and_loses_to_a_newer_version(visit: Visitors, site: Site) -> None:
    """Another operator's change in between is not undone."""
    put(site, "edited", priority=5)
    screen = visit("operator", "/schedules?name=edited")
    screen.may_complain = True  # a browser logs the 409 to its console
    page = screen.page
    page.get_by_role("button", name="Edit").click()
    page.get_by_role("textbox", name="Cron").fill("0 4 * * *")
    page.get_by_role("button", name="Change 1 field").click()
    page.get_by_text("edited is changed").wait_for()
    assert (column(site, "edited", "cron"), column(site, "edited", "priority")) == ("0 4 * * *", 5)
    page.get_by_role("button", name="Edit").click()
    page.get_by_role("textbox", name="Cron").fill("0 5 * * *")
    put(site, "edited", priority=6)
    page.get_by_role("button", name="Change 1 field").click()
    page.get_by_text("version_conflict").wait_for()
    assert column(site, "edited", "priority") == 6


def test_a_schedule_is_paused_enabled_run_and_deleted(visit: Visitors, site: Site) -> None:
    """Each after a confirmation; the list has its times in words."""
    put(site, "acted")
    screen = visit("operator", "/schedules?q=acted")
    page = screen.page
    page.get_by_role("row", name="acted").click()
    page.get_by_role("table", name="Next occurrences of acted").wait_for()
    page.get_by_role("button", name="Run now").click()
    screen.confirm("Run 1 job")
    page.get_by_text("is scheduled now").wait_for()
    jobs = "SELECT count(*) AS jobs FROM tickwright.scheduled_tasks WHERE idempotency_key LIKE 'schedule:acted:run:%%'"
    assert site.sql(jobs)[0]["jobs"] == 1
    page.get_by_role("button", name="Pause", exact=True).click()
    screen.confirm("Pause")
    page.get_by_text("acted is paused").wait_for()
    assert column(site, "acted", "paused_at") is not None
    page.get_by_role("button", name="Enable", exact=True).click()
    screen.confirm("Enable")
    page.get_by_text("acted is enabled").wait_for()
    page.get_by_role("button", name="Delete", exact=True).click()
    screen.confirm("Delete 1 schedule")
    page.get_by_text("acted is deleted").wait_for()
    assert site.sql("SELECT count(*) AS left FROM tickwright.schedules WHERE name = 'acted'")[0]["left"] == 0


def test_a_viewer_reads_and_changes_nothing(visit: Visitors, site: Site) -> None:
    """The drawer says why it makes no job, without actions."""
    put(site, "seen")
    page = visit("viewer", "/schedules?name=seen").page
    page.get_by_text("its next job is due at").wait_for()
    assert page.get_by_role("button", name="Edit").count() == 0
    assert page.get_by_role("button", name="Create", exact=True).count() == 0
