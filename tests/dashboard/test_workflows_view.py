"""Workflows on the page: the list, the graph in groups, a job with its neighbours, cancel and retry."""

import re
from typing import Any

from playwright.sync_api import expect

from kit.pages import Site, Visitors
from kit.waiting import eventually


def job(name: str, *after: str, kind: str = "page.greet", **more: Any) -> dict[str, Any]:
    """Return a job of a definition."""
    return {"name": name, "task_type": kind, "after": list(after), **more}


def add(site: Site, name: str, *jobs: dict[str, Any], **more: Any) -> int:
    """Add a workflow; return its id."""
    return int(site.ask("POST", "/v1/workflows", {"name": name, "jobs": list(jobs), **more})["id"])


def states(site: Site, workflow_id: int) -> dict[str, int]:
    """Return its jobs by state."""
    found: dict[str, int] = site.ask("GET", f"/v1/workflows/{workflow_id}")["states"]
    return found


def failing(site: Site, name: str) -> int:
    """Add an order of which a check fails, and return once it has."""
    workflow_id = add(
        site, name, job("validate"), job("check", "validate", kind="page.broken"), job("charge", "validate"),
        job("invoice", "check", "charge", on_failed="wait"), job("tell", "invoice"),
    )  # fmt: skip
    wanted = {"completed": 2, "failed": 1, "waiting": 2}
    eventually(lambda: states(site, workflow_id) == wanted, 40, what="the check fails")
    return workflow_id


def box(page: Any, text: str) -> Any:
    """Return a box of the graph."""
    return page.locator("[data-group]").filter(has_text=text)


def test_the_list_finds_a_workflow_and_opens_it(visit: Visitors, site: Site) -> None:
    """By a part of its name; Enter opens the row."""
    workflow_id = failing(site, "order of Ada")
    add(site, "another", job("wait", kind="page.slow"))
    page = visit("viewer", "/workflows").page
    page.get_by_role("textbox", name="Text").fill("ADA")
    rows = page.get_by_role("table", name="Workflows, newest first").get_by_role("row")
    expect(rows).to_have_count(2)
    expect(rows.nth(1)).to_contain_text("3 of 5")
    rows.nth(1).focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"/workflows/{workflow_id}$"))
    page.get_by_role("heading", name="Workflow order of Ada").wait_for()


def test_the_graph_shows_where_a_workflow_is_and_why(visit: Visitors, site: Site) -> None:
    """A box per job, in the order of its dependencies, with its state as text; no barriers, in both schemes."""
    workflow_id = failing(site, "order")
    for scheme in ("light", "dark"):
        screen = visit("operator", f"/workflows/{workflow_id}", scheme=scheme)
        page = screen.page
        page.get_by_text("1 job waits until it is retried").wait_for()
        for name, state in (
            ("validate", "completed"),
            ("check", "failed"),
            ("invoice", "waiting"),
            ("tell", "waiting"),
        ):
            expect(box(page, name)).to_contain_text(state)
        places = [box(page, name).bounding_box()["x"] for name in ("validate", "check", "invoice", "tell")]
        assert places == sorted(places)
        assert box(page, "check").bounding_box()["x"] == box(page, "charge").bounding_box()["x"]
        assert screen.findings() == []


def test_a_job_says_what_it_waits_for_and_links_there(visit: Visitors, site: Site) -> None:
    """From the box to the drawer, to the job that failed; arrows move between boxes."""
    workflow_id = failing(site, "order")
    page = visit("operator", f"/workflows/{workflow_id}").page
    box(page, "validate").focus()
    for key in ("ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    page.keyboard.press("Enter")
    drawer = page.get_by_role("dialog")
    drawer.get_by_text("which failed: on_failed=wait").wait_for()
    drawer.get_by_role("list", name="Waits for", exact=True).get_by_role("button", name="check").click()
    drawer.get_by_text("this one never works").first.wait_for()
    expect(drawer.get_by_role("list", name="What waits for it")).to_contain_text("invoice")
    drawer.get_by_role("link", name="workflow order").wait_for()


def test_a_box_of_many_jobs_lists_them_by_state(visit: Visitors, site: Site) -> None:
    """2,000 jobs are one box; its failed one is found with two clicks."""
    parts = [job(f"part-{number}", "split") for number in range(2000)]
    parts[77]["task_type"] = "page.slow"
    names = [part["name"] for part in parts]
    workflow_id = add(site, "fan", job("split"), *parts, job("join", *names, on_failed="wait"))
    eventually(lambda: states(site, workflow_id).get("completed") == 2000, 60, what="all but one are done")
    page = visit("viewer", f"/workflows/{workflow_id}").page
    expect(page.locator("[data-group]")).to_have_count(4)
    box(page, "part-# × 1,999").click()
    page.get_by_role("button", name="completed 1,999").click()
    expect(page.get_by_role("table", name="Jobs of the workflow").get_by_role("row").nth(1)).to_contain_text("part-0")
    page.get_by_role("button", name="show all").click()
    page.get_by_role("button", name="processing 1").click()
    rows = page.get_by_role("table", name="Jobs of the workflow").get_by_role("row")
    expect(rows).to_have_count(2)
    expect(rows.nth(1)).to_contain_text("part-77")


def test_an_inner_workflow_is_a_box_that_opens(visit: Visitors, site: Site) -> None:
    """Its view leads back to the workflow around it."""
    inner = [job("pack", workflow="ship"), job("send", "pack", kind="page.slow", workflow="ship")]
    workflow_id = add(site, "outer", *inner, job("tell", "ship"), workflows=[{"name": "ship"}])
    eventually(lambda: states(site, workflow_id).get("processing") == 1, 40, what="it is sent")
    page = visit("viewer", f"/workflows/{workflow_id}").page
    box(page, "in ship").first.wait_for()
    page.locator("[data-group]").filter(has=page.get_by_text("ship", exact=True)).click()
    page.get_by_role("heading", name="Workflow ship").wait_for()
    expect(page.locator("[data-group]")).to_have_count(2)
    page.get_by_role("link", name="the workflow around it").click()
    page.get_by_role("heading", name="Workflow outer").wait_for()


def test_a_workflow_is_cancelled_and_retried_after_a_confirmation(visit: Visitors, site: Site) -> None:
    """With the number of jobs; a viewer has no actions."""
    workflow_id = failing(site, "acted")
    screen = visit("operator", f"/workflows/{workflow_id}")
    page = screen.page
    page.get_by_role("button", name="Cancel", exact=True).click()
    screen.confirm("Cancel 2 jobs")
    page.get_by_text("2 jobs of workflow acted: cancelled").wait_for()
    eventually(lambda: states(site, workflow_id) == {"completed": 2, "failed": 1, "cancelled": 2}, 20, what="cancelled")
    page.get_by_role("button", name="Retry", exact=True).click()
    screen.confirm("Retry 3 jobs")
    page.get_by_text("3 jobs of workflow acted: retried").wait_for()
    assert visit("viewer", f"/workflows/{workflow_id}").page.get_by_role("button", name="Cancel").count() == 0
