"""Jobs: what the list and the drawer show, and every action to its effect in the database."""

import json

import pytest
from playwright.sync_api import expect

from kit.pages import Screen, Site, Visitors
from kit.waiting import eventually

CANARY = '<img src=x onerror="window.ran=1"><script>window.ran=1</script>'


def opened(screen: Screen, job: int) -> Screen:
    """Return the drawer of a job."""
    screen.open(f"/jobs?job={job}")
    screen.page.get_by_role("heading", name="Timeline").wait_for()
    return screen


def audited(site: Site, action: str) -> list[str]:
    """Return the actors of an action, newest first."""
    rows = site.sql("SELECT actor FROM tickwright.audit WHERE action = %s ORDER BY id DESC", action)
    return [row["actor"] for row in rows]


@pytest.mark.storm
def test_a_pending_job_is_cancelled_after_a_confirmation(visit: Visitors, site: Site) -> None:
    """The first click changes nothing; the confirmation cancels, under the name of the user."""
    job = site.schedule("page.greet", delay="1h")
    screen = opened(visit("operator"), job)
    screen.page.get_by_role("button", name="Cancel", exact=True).click()
    screen.page.get_by_text("It will never start.").wait_for()
    assert site.status(job) == "pending"
    screen.confirm("Cancel 1 job")
    site.until(job, "cancelled")
    screen.page.get_by_text(f"Job {job} is cancelled").wait_for()
    assert audited(site, "jobs.cancel")[0] == "Olaf"


def test_a_running_job_is_asked_to_stop(visit: Visitors, site: Site) -> None:
    """Its worker stops it, and the page shows its outcome."""
    job = site.schedule("page.slow")
    site.until(job, "processing")
    screen = opened(visit("operator"), job)
    screen.page.get_by_text("runs for").wait_for()
    screen.page.get_by_role("button", name="Cancel", exact=True).click()
    screen.confirm("Cancel 1 job")
    site.until(job, "cancelled")
    screen.page.get_by_text("Attempt 1: cancelled").wait_for()


def test_a_failed_job_shows_its_attempts_and_is_retried(visit: Visitors, site: Site) -> None:
    """Each attempt is shown with its error; a retry gives it all attempts again."""
    job = site.schedule("page.broken")
    site.until(job, "failed")
    screen = opened(visit("operator"), job)
    for attempt in (1, 2):
        screen.page.get_by_text(f"Attempt {attempt}: failed").wait_for()
    assert screen.page.get_by_label("Error of Attempt 1: failed").inner_text() == "ValueError: this one never works"
    screen.page.get_by_role("button", name="Retry").click()
    screen.confirm("Retry 1 job")
    screen.page.get_by_text(f"Job {job} is pending again").wait_for()
    assert audited(site, "jobs.retry")[0] == "Olaf"


def payload_of(site: Site, job: int) -> str:
    """Return a job's payload as PostgreSQL writes it."""
    return str(site.sql("SELECT payload::text FROM tickwright.scheduled_tasks WHERE id = %s", job)[0]["payload"])


def test_the_payload_of_a_pending_job_is_edited_under_its_version(visit: Visitors, site: Site) -> None:
    """Text that is not JSON cannot be sent, numbers keep their digits, and a change meanwhile is a conflict."""
    job = site.schedule("page.greet", {"n": 9007199254740993}, delay="1h")
    screen = opened(visit("operator"), job)
    screen.may_complain = True
    dialog = screen.page.get_by_role("dialog", name="Edit job")
    screen.page.get_by_role("button", name="Edit", exact=True).click()
    send = dialog.get_by_role("button", name="Edit")
    expect(send).to_be_disabled()
    expect(dialog.get_by_label("Payload")).to_have_value('{\n  "n": 9007199254740993\n}')
    dialog.get_by_label("Payload").fill('{"n": ')
    dialog.get_by_text("this is not JSON").wait_for()
    expect(send).to_be_disabled()
    dialog.get_by_label("Payload").fill('[9223372036854775807, {"id": 1}]')
    send.click()
    screen.page.get_by_text(f"Job {job} is edited").wait_for()
    expect(dialog).to_have_count(0)
    assert payload_of(site, job) == '[9223372036854775807, {"id": 1}]'
    screen.page.get_by_role("button", name="Edit", exact=True).click()
    dialog.get_by_label("Payload").fill("null")
    site.ask("PATCH", f"/v1/jobs/{job}", {"priority": 7})
    send.click()
    screen.page.get_by_text("version_conflict").wait_for()
    expect(dialog.get_by_label("Payload")).to_have_value("null")
    assert payload_of(site, job) == '[9223372036854775807, {"id": 1}]'


def test_the_steps_of_a_job_are_shown_and_a_retry_may_run_them_again(visit: Visitors, site: Site) -> None:
    """Each step has its result; a plain retry keeps it, and one from the start does not."""
    job = site.schedule("page.steps")
    site.until(job, "failed")
    screen = opened(visit("operator"), job)
    steps = screen.page.get_by_role("list", name="Steps")
    steps.get_by_text("charge").wait_for()
    expect(steps.get_by_label("result of charge", exact=True)).to_contain_text('"fence": 1')
    screen.page.get_by_role("button", name="Retry", exact=True).click()
    screen.confirm("Retry 1 job")
    fence = "SELECT fence FROM tickwright.scheduled_tasks WHERE id = %s AND status = 'failed' AND fence = %s"
    eventually(lambda: site.sql(fence, job, 2), 20, what="it failed again")
    expect(steps.get_by_label("result of charge", exact=True)).to_contain_text('"fence": 1')
    screen.page.get_by_role("button", name="Retry from the start").click()
    screen.confirm("Retry 1 job from the start")
    expect(steps.get_by_label("result of charge", exact=True)).to_contain_text('"fence": 3')


def test_a_job_is_run_now_and_another_one_moved(visit: Visitors, site: Site) -> None:
    """Run now makes it due; a reschedule gives it another time."""
    first, second = site.schedule("page.greet", delay="1h"), site.schedule("page.greet", delay="1h")
    screen = opened(visit("operator"), first)
    screen.page.get_by_role("button", name="Run now").click()
    screen.confirm("Run 1 job now")
    site.until(first, "completed")
    opened(screen, second).page.get_by_role("button", name="Reschedule").click()
    screen.page.get_by_label("Delay from now").fill("3h")
    screen.page.get_by_role("dialog", name="Reschedule job").get_by_role("button", name="Reschedule").click()
    screen.page.get_by_text(f"Job {second} is rescheduled").wait_for()
    expect(screen.page.get_by_role("dialog", name="Reschedule job")).to_have_count(0)
    (row,) = site.sql(
        "SELECT execute_at > now() + interval '170 minutes' AS moved FROM tickwright.scheduled_tasks WHERE id = %s",
        second,
    )
    assert row["moved"]


def test_a_time_that_is_refused_stays_in_its_dialog(visit: Visitors, site: Site) -> None:
    """Of one job and of many: the typed value can be corrected, and the problem is shown."""
    job = site.schedule("page.greet", delay="1h")
    screen = opened(visit("operator"), job)
    screen.may_complain = True
    dialog = screen.page.get_by_role("dialog", name="Reschedule job")
    screen.page.get_by_role("button", name="Reschedule").click()
    dialog.get_by_label("Delay from now").fill("9000000d")
    dialog.get_by_role("button", name="Reschedule").click()
    screen.page.get_by_text("Request failed").wait_for()
    expect(dialog.get_by_label("Delay from now")).to_have_value("9000000d")
    dialog.get_by_role("button", name="Go back").click()
    screen.open("/jobs?type=page.greet")
    screen.page.get_by_role("button", name="Act on all that match").click()
    screen.page.get_by_role("menuitem", name="Reschedule").click()
    many = screen.page.get_by_role("dialog", name="Reschedule to")
    many.get_by_label("Delay from now").fill("9000000d")
    many.get_by_role("button", name="Count jobs").click()
    screen.page.get_by_text("Request failed").wait_for()
    expect(many.get_by_label("Delay from now")).to_have_value("9000000d")


def test_the_chosen_jobs_are_cancelled_and_no_other(visit: Visitors, site: Site) -> None:
    """The confirmation has the number of chosen jobs."""
    jobs = [site.schedule("page.greet", {"batch": "chosen"}, delay="2h") for _ in range(4)]
    screen = visit("operator", "/jobs?state=pending")
    for job in jobs[:3]:
        screen.page.get_by_label(f"Choose job {job}").check()
    screen.page.get_by_role("button", name="Act on 3 chosen").click()
    screen.page.get_by_role("menuitem", name="Cancel …").click()
    screen.confirm("Cancel: 3 jobs")
    screen.page.get_by_text("3 jobs cancelled").wait_for()
    assert [site.status(job) for job in jobs] == ["cancelled"] * 3 + ["pending"]


def test_an_action_on_all_matches_includes_jobs_that_are_not_loaded(visit: Visitors, site: Site) -> None:
    """2,300 jobs are three calls of the API: the number is shown first, and all of them are cancelled."""
    site.sql(
        "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload) "
        "SELECT now() + interval '1 day', 'page.greet', '{\"batch\": \"zebra-many\"}' FROM generate_series(1, 2300)"
    )
    screen = visit("operator", "/jobs?state=pending&text=zebra-many")
    screen.page.get_by_role("row").nth(5).wait_for()
    assert screen.page.get_by_role("row").count() < 100  # only visible rows are rendered
    screen.page.get_by_role("button", name="Act on all that match").click()
    screen.page.get_by_role("menuitem", name="Cancel …").click()
    screen.page.get_by_text("pending, with the text “zebra-many”").wait_for()
    screen.confirm("Cancel: 2,300 jobs")
    screen.page.get_by_text("2,300 jobs cancelled").wait_for()
    counted = site.sql(
        "SELECT status, count(*) FROM tickwright.scheduled_tasks WHERE payload->>'batch' = 'zebra-many' GROUP BY 1"
    )
    assert [(row["status"], row["count"]) for row in counted] == [("cancelled", 2300)]


def test_a_script_in_users_data_never_runs(visit: Visitors, site: Site) -> None:
    """Payload, key and error are shown as text everywhere."""
    job = site.schedule("page.greet", {CANARY: CANARY}, delay="4h", idempotency_key="<b>key</b>")
    site.sql("UPDATE tickwright.scheduled_tasks SET error_message = %s WHERE id = %s", CANARY, job)
    screen = visit("operator", "/jobs?state=pending")
    screen.page.get_by_text(CANARY).first.wait_for()
    opened(screen, job)
    shown = json.loads(screen.page.get_by_label("payload", exact=True).inner_text())
    assert shown == {CANARY: CANARY}
    for path in ("/task-types", "/overview", "/dead-letters"):
        screen.open(path)
        screen.page.get_by_role("heading", level=1).wait_for()
    assert screen.page.evaluate("window.ran") is None
    assert screen.page.locator("img, b").count() == 0


def test_ids_and_numbers_beyond_a_double_are_exact(visit: Visitors, site: Site) -> None:
    """Numbers of a browser end at 2^53; a job above that is shown, found, opened and cancelled by its own id."""
    job = 2**53 + 1
    payload = '{"big": 9223372036854775807, "exact": 0.1000000000000000000001, "id": 42}'
    insert = (
        "INSERT INTO tickwright.scheduled_tasks (id, execute_at, task_type, payload) "
        "OVERRIDING SYSTEM VALUE VALUES (%s, now() + interval '5 hours', 'page.greet', %s)"
    )
    for one in (job, job - 1):
        site.sql(insert, one, payload)
    screen = visit("operator", "/jobs?state=pending")
    screen.page.get_by_role("cell", name=str(job), exact=True).click()
    shown = screen.page.get_by_label("payload", exact=True).inner_text()
    assert '"big": 9223372036854775807' in shown
    assert '"exact": 0.1000000000000000000001' in shown
    assert '"id": 42' in shown
    assert f"job={job}" in screen.page.url
    screen.page.keyboard.press("Escape")
    screen.page.get_by_label(f"Choose job {job}", exact=True).check()
    screen.page.get_by_role("button", name="Act on 1 chosen").click()
    screen.page.get_by_role("menuitem", name="Cancel …").click()
    screen.confirm("Cancel: 1 job")
    site.until(job, "cancelled")
    assert site.status(job - 1) == "pending"


def test_filters_are_in_the_address_and_the_back_button_closes_a_drawer(visit: Visitors, site: Site) -> None:
    """A filter is shared by its address; an opened drawer is a step of the history."""
    job = site.schedule("page.greet", delay="6h", idempotency_key="find-me")
    screen = visit("viewer", "/jobs")
    screen.page.get_by_label("Idempotency key").fill("find-me")
    screen.page.wait_for_url("**/jobs?key=find-me")
    screen.page.get_by_role("row", name=str(job)).click()
    screen.page.get_by_role("heading", name="Timeline").wait_for()
    screen.page.go_back()
    screen.page.get_by_role("dialog").wait_for(state="detached")
    assert screen.page.url.endswith("/jobs?key=find-me")


def test_the_counts_of_the_states_are_those_of_the_database(visit: Visitors, site: Site) -> None:
    """Each state has its number beside it, with the other filters applied."""
    for _ in range(3):
        site.schedule("page.slow", delay="7h")
    screen = visit("viewer", "/jobs?type=page.slow")
    eventually(lambda: screen.page.get_by_role("button", name="pending 3").count() == 1, 10)


@pytest.mark.storm
def test_a_job_shows_the_trace_that_it_belongs_to(visit: Visitors, site: Site) -> None:
    """Also to a viewer, who finds the job's spans by it. An invalid value that a user wrote there is not shown."""
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    job, other = site.schedule("page.greet", delay="8h"), site.schedule("page.greet", delay="8h")
    change = "UPDATE tickwright.scheduled_tasks SET traceparent = %s WHERE id = %s"
    site.sql(change, trace, job)
    site.sql(change, "00-my-own", other)
    screen = opened(visit("viewer"), job)
    assert screen.page.get_by_label("traceparent", exact=True).inner_text() == trace
    opened(screen, other)
    assert screen.page.get_by_role("heading", name="Trace").count() == 0
