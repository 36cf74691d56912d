"""Task types: settings, pause, secrets, an edit that never overwrites another user's; and dead letters."""

from typing import Any

import pytest

from kit.pages import Site, Visitors


def column(site: Site, name: str, field: str) -> Any:
    """Return a column of a type's row."""
    return site.sql(f"SELECT {field} FROM tickwright.task_types WHERE name = %s", name)[0][field]


@pytest.mark.storm
def test_an_edit_sends_only_changed_fields(visit: Visitors, site: Site) -> None:
    """A change of another field in between stays."""
    site.ask("PUT", "/v1/task-types/shop.remind", {"target": "python:shop.remind", "max_attempts": 5})
    page = visit("admin", "/task-types?type=shop.remind").page
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Concurrency").fill("7")
    page.get_by_role("button", name="Change 1 setting").click()
    page.get_by_text("shop.remind: 1 setting changed").wait_for()
    assert (column(site, "shop.remind", "concurrency"), column(site, "shop.remind", "max_attempts")) == (7, 5)


@pytest.mark.storm
def test_an_edit_of_an_outdated_version_is_refused(visit: Visitors, site: Site) -> None:
    """The form has an older version: it says so, and the other user's change stays."""
    site.ask("PUT", "/v1/task-types/shop.conflict", {"target": "python:shop.conflict"})
    screen = visit("admin", "/task-types?type=shop.conflict")
    screen.may_complain = True  # a browser logs the 409 to its console
    screen.page.get_by_role("button", name="Edit").click()
    screen.page.get_by_label("Concurrency").fill("7")
    site.ask("PUT", "/v1/task-types/shop.conflict", {"target": "python:shop.conflict", "concurrency": 3})
    screen.page.get_by_role("button", name="Change 1 setting").click()
    screen.page.get_by_text("version_conflict").wait_for()
    assert column(site, "shop.conflict", "concurrency") == 3


def test_a_type_is_paused_and_enabled(visit: Visitors, site: Site) -> None:
    """Each after a confirmation; the list shows the state."""
    site.ask("PUT", "/v1/task-types/shop.pause", {"target": "python:shop.pause"})
    screen = visit("admin", "/task-types?type=shop.pause")
    screen.page.get_by_role("button", name="Pause", exact=True).click()
    screen.confirm("Pause")
    screen.page.get_by_text("shop.pause is paused").wait_for()
    assert column(site, "shop.pause", "paused_at") is not None
    screen.page.get_by_role("button", name="Enable", exact=True).click()
    screen.confirm("Enable")
    screen.page.get_by_text("shop.pause is enabled").wait_for()
    assert column(site, "shop.pause", "paused_at") is None


def test_a_signing_secret_is_shown_once(visit: Visitors, site: Site) -> None:
    """Creating an HTTP type and rotating show a secret; once closed, it is nowhere in the page."""
    screen = visit("admin", "/task-types")
    page = screen.page
    page.get_by_role("button", name="Create").click()
    page.get_by_role("textbox", name="Name", exact=True).fill("shop.callback")
    page.get_by_role("textbox", name="Target", exact=True).fill("https://shop.example/callback")
    page.get_by_role("button", name="Create 1 task type").click()
    shown = page.get_by_role("dialog").get_by_text("whsec_")
    first = shown.inner_text()
    page.get_by_role("button", name="I have copied it").click()
    page.get_by_text("whsec_").wait_for(state="detached")
    page.get_by_role("row", name="shop.callback").click()
    page.get_by_role("button", name="Rotate secret").click()
    screen.confirm("Rotate")
    assert shown.inner_text() != first
    assert site.ask("GET", "/v1/task-types/shop.callback")["signing_secrets"] == 2


def test_dead_letters_are_requeued(visit: Visitors, site: Site) -> None:
    """All of a task type, after a confirmation; for chosen ones it has their number."""
    jobs = [site.schedule("page.broken") for _ in range(2)]
    for job in jobs:
        site.until(job, "failed")
    screen = visit("operator", "/dead-letters")
    screen.page.get_by_label(f"Choose job {jobs[0]}").check()
    screen.page.get_by_role("button", name="Requeue 1 job", exact=True).click()
    screen.confirm("Requeue 1 job")
    screen.page.get_by_text("1 job requeued").wait_for()
    row = site.sql("SELECT actor, after FROM tickwright.audit WHERE action = 'dead_letters.requeue' ORDER BY id DESC")[
        0
    ]
    assert (row["actor"], row["after"]) == ("Olaf", {"ids": [jobs[0]]})


def dead_messages(site: Site, destination: str, number: int) -> None:
    """Insert so many dead messages of a destination."""
    sql = """
    INSERT INTO tickwright.outbox_dead (id, destination, payload, headers, created_at, attempts)
    SELECT 1000000 + (SELECT count(*) FROM tickwright.outbox_dead) + n, %s, '{}', '{}', now(), 3
      FROM generate_series(1, %s) AS n
    """
    site.sql(sql, destination, number)


def test_all_messages_of_a_destination_are_requeued_after_a_confirmation(visit: Visitors, site: Site) -> None:
    """A thousand per call; later dead letters are left for the next action, and so is another destination."""
    dead_messages(site, "pg:nobody", 1_200)
    dead_messages(site, "pg:other", 1)
    screen = visit("operator", "/dead-letters?kind=outbox&subject=pg%3Anobody")
    requests: list[Any] = []
    screen.page.on("request", lambda one: requests.append(one.post_data_json) if one.url.endswith("/requeue") else None)
    screen.page.get_by_role("button", name="Requeue all messages of pg:nobody").click()
    screen.page.get_by_role("dialog", name="Requeue 1,200 messages of pg:nobody?").wait_for()
    dead_messages(site, "pg:nobody", 3)
    screen.confirm("Requeue 1,200 messages")
    screen.page.get_by_text("1,200 messages requeued").wait_for()
    left = site.sql("SELECT destination, count(*) FROM tickwright.outbox_dead GROUP BY 1 ORDER BY 1")
    assert [tuple(row.values()) for row in left] == [("pg:nobody", 3), ("pg:other", 1)]
    assert [(one.get("limit"), "cursor" in one) for one in requests] == [(None, False), (1_000, False), (200, True)]


def test_jobs_that_fail_again_at_once_are_requeued_once(visit: Visitors, site: Site) -> None:
    """Otherwise a type that always fails would be requeued endlessly."""
    jobs = [site.schedule("page.broken") for _ in range(3)]
    for job in jobs:
        site.until(job, "failed")
    number = site.sql("SELECT count(*) FROM tickwright.scheduled_tasks_dead WHERE task_type = 'page.broken'")[0][
        "count"
    ]
    calls: list[str] = []
    screen = visit("operator", "/dead-letters?subject=page.broken")
    screen.page.on("request", lambda one: calls.append(one.url) if one.url.endswith("/requeue") else None)
    screen.page.get_by_role("button", name="Requeue all jobs of page.broken").click()
    screen.confirm(f"Requeue {number} jobs")
    screen.page.get_by_text(f"{number} jobs requeued").wait_for()
    assert len(calls) == 2, "one that counts, one that requeues"
    screen.page.get_by_role("link", name="Filter by error text").click()
    screen.page.wait_for_url("**/jobs?state=failed&type=page.broken")
