"""Schedules over REST: definitions with versions, control, run now, preview, explain, and what is refused."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from kit.api import RunningApi, running_api
from kit.schedules import ScheduleWorld

NIGHTLY = {"task_type": "noop", "cron": "0 3 * * *", "time_zone": "Europe/Kyiv", "payload": {"region": "eu"}}
PATH = "/v1/schedules/nightly"


@pytest.fixture
async def api(schedules: ScheduleWorld) -> AsyncIterator[RunningApi]:
    """An API beside the schedules of the test."""
    async with running_api(schedules.url) as running:
        yield running


async def put(api: RunningApi, name: str = "nightly", **changes: Any) -> Any:
    """Store a schedule; return it."""
    stored = await api.operator.send("PUT", f"/v1/schedules/{name}", {**NIGHTLY, **changes})
    assert stored.status in {200, 201}, stored.body
    return stored.json["schedule"]


async def test_a_schedule_is_created_read_listed_and_deleted(api: RunningApi) -> None:
    """A viewer reads it, with its times in words and its next ten occurrences."""
    created = await api.operator.send("PUT", PATH, NIGHTLY)
    assert (created.status, created.json["created"]) == (201, True)
    shown = (await api.viewer.get(PATH)).json
    assert (shown["text"], shown["state"], shown["set_by"], shown["version"]) == (
        "At 03:00 every day", "active", "operator", 1,
    )  # fmt: skip
    assert shown["payload"] == {"region": "eu"}
    assert len(shown["next_occurrences"]) == 10
    assert shown["next_occurrences"][0]["local"][10:19] == "T03:00:00"
    assert shown["next_at"] == shown["next_occurrences"][0]["at"]
    for number in range(3):
        await put(api, f"other{number}")
    first = (await api.viewer.get("/v1/schedules?limit=2")).json
    second = (await api.viewer.get(f"/v1/schedules?limit=2&cursor={first['next']}")).json
    assert [one["name"] for one in first["items"] + second["items"]] == ["nightly", "other0", "other1", "other2"]
    assert second["next"] is None
    assert [one["name"] for one in (await api.viewer.get("/v1/schedules?q=nig")).json["items"]] == ["nightly"]
    assert (await api.operator.send("DELETE", PATH)).status == 204
    (await api.viewer.get(PATH)).says(404, "schedule_not_found")


async def test_the_same_definition_again_changes_nothing(api: RunningApi) -> None:
    """No version, no line in the audit trail, and its slots go on."""
    await put(api)
    assert (await put(api))["version"] == 1
    assert (await put(api, cron="0 4 * * *"))["version"] == 2
    audit = "SELECT action FROM tickwright.audit WHERE subject = 'schedule:nightly' ORDER BY id"
    assert [row["action"] for row in await api.pool.fetch(audit)] == ["schedules.put", "schedules.put"]


async def test_a_change_keeps_the_other_fields_and_loses_to_a_newer_version(api: RunningApi) -> None:
    """Two operators do not undo each other's edits; every replaces cron."""
    await put(api)
    changed = await api.operator.send("PATCH", PATH, {"version": 1, "every": "15m", "overlap": "skip"})
    schedule = changed.json["schedule"]
    assert (schedule["cron"], schedule["every"], schedule["version"]) == (None, "15m", 2)
    assert (schedule["overlap"], schedule["time_zone"]) == ("skip", "Europe/Kyiv")
    late = await api.operator.send("PATCH", PATH, {"version": 1, "priority": 5})
    assert late.says(409, "version_conflict").json["version"] == 2
    (await api.operator.send("PUT", PATH, {**NIGHTLY, "version": 1})).says(409, "version_conflict")


async def test_a_paused_schedule_makes_no_jobs_and_an_enabled_one_catches_nothing_up(
    api: RunningApi, schedules: ScheduleWorld
) -> None:
    """It counts from the moment at which it is enabled."""
    await schedules.put_due(slots=3, step=timedelta(hours=1), misfire="all")
    paused = await api.operator.post(f"{PATH}/pause")
    assert (paused.json["state"], paused.json["next_at"]) == ("paused", None)
    await schedules.produce()
    assert await schedules.jobs() == []
    enabled = (await api.operator.post(f"{PATH}/enable")).json
    again = (await api.operator.post(f"{PATH}/enable")).json
    assert (enabled["state"], again["version"]) == ("active", enabled["version"])
    await schedules.produce()
    assert await schedules.jobs() == []
    assert await schedules.skips() == []


async def test_run_now_makes_one_job_for_one_key(api: RunningApi, schedules: ScheduleWorld) -> None:
    """Beside the occurrences, also of a paused schedule; without a key each call makes one."""
    await put(api)
    await api.operator.post(f"{PATH}/pause")
    key = {"headers": {"Idempotency-Key": "again"}}
    first = await api.operator.post(f"{PATH}/run-now", **key)
    second = await api.operator.post(f"{PATH}/run-now", **key)
    third = await api.operator.post(f"{PATH}/run-now")
    assert [one.status for one in (first, second, third)] == [201, 200, 201]
    assert first.json["id"] == second.json["id"] != third.json["id"]
    assert [job["payload"] for job in await schedules.jobs()] == ['{"region": "eu"}'] * 2


async def test_run_now_obeys_the_overlap_policy(api: RunningApi, schedules: ScheduleWorld) -> None:
    """Refused while a job has not ended, or instead of that job."""
    await put(api, overlap="skip")
    first = (await api.operator.post(f"{PATH}/run-now")).json["id"]
    busy = (await api.operator.post(f"{PATH}/run-now")).says(409, "schedule_busy")
    assert busy.json["job"] == first
    await put(api, overlap="replace")
    assert (await api.operator.post(f"{PATH}/run-now")).status == 201
    assert [job["status"] for job in await schedules.jobs()] == ["cancelled", "pending"]


async def test_a_preview_says_where_the_clocks_change(api: RunningApi) -> None:
    """Of a stored schedule, and of a definition that is not saved; a spread is part of it."""
    await put(api)
    found = (await api.viewer.get(f"{PATH}/preview?count=100")).json
    assert len(found["occurrences"]) == 100
    unsaved = {**NIGHTLY, "cron": "30 3 * * *", "first_at": "2029-03-24T00:00:00Z", "spread": "10m"}
    shown = (await api.operator.post("/v1/schedules:preview?count=3&name=nightly", unsaved)).json
    assert [one["local"] for one in shown["occurrences"]] == [
        "2029-03-24T03:30:00+02:00", "2029-03-25T04:30:00+03:00", "2029-03-26T03:30:00+03:00",
    ]  # fmt: skip
    assert [one["clock_change"] for one in shown["occurrences"]][1:] == ["+1h", None]
    offsets = {
        datetime.fromisoformat(one["at"]) - datetime.fromisoformat(one["slot_at"]) for one in shown["occurrences"]
    }
    assert len(offsets) == 1


async def test_explain_says_why_a_schedule_makes_no_job(api: RunningApi, schedules: ScheduleWorld) -> None:
    """Paused, a type that waits, no producer, skips; and what became of one occurrence."""
    last = await schedules.put_due(slots=2, step=timedelta(hours=1), misfire="none", misfire_grace=timedelta())
    await schedules.produce()
    await api.pool.execute("UPDATE tickwright.task_types SET paused_at = now() WHERE name = 'tidy'")
    await api.operator.post(f"{PATH}/pause")
    found = (await api.viewer.get(f"{PATH}/explain")).json
    codes = [reason["code"] for reason in found["reasons"]]
    assert codes == ["paused", "no_producer", "task_type_waits", "skipped_misfire"]
    slot = last.isoformat().replace("+00:00", "Z")
    assert (await api.viewer.get(f"{PATH}/explain?slot={slot}")).json["status"] == "skipped"
    none = (await api.viewer.get(f"{PATH}/explain?slot=2030-01-01T00:00:01.5Z")).json
    assert none["status"] == "no_occurrence"


async def test_explain_names_the_job_of_an_occurrence(api: RunningApi, schedules: ScheduleWorld) -> None:
    """As long as it or its key is kept."""
    last = await schedules.put_due()
    await schedules.produce()
    slot = last.isoformat().replace("+00:00", "Z")
    found = (await api.viewer.get(f"{PATH}/explain?slot={slot}")).json
    (job,) = await schedules.jobs()
    assert found["status"] == "made"
    assert f"job {job['id']}" in found["summary"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"cron": "0 0 31 2 *"}, "invalid_cron"),
        ({"cron": "61 * * * *"}, "invalid_cron"),
        ({"cron": "* " * 5000}, "invalid_cron"),
        ({"time_zone": "Mars/Olympus"}, "invalid_time_zone"),
        ({"every": "15m"}, "invalid_schedule"),
        ({"cron": None, "every": "500ms"}, "invalid_duration"),
        ({"cron": None, "every": "1500ms"}, "invalid_duration"),
        ({"cron": None}, "invalid_schedule"),
        ({"task_type": "no.such.type"}, "unknown_task_type"),
        ({"spread": "2d"}, "invalid_duration"),
        ({"spread": "2d", "cron": "x"}, "invalid_schedule"),
        ({"first_at": "2030-01-01T00:00:00"}, "naive_datetime"),
    ],
)
async def test_a_definition_that_cannot_work_is_refused(api: RunningApi, body: dict[str, Any], code: str) -> None:
    """With a code that says what is wrong, in a put, a preview and a change."""
    whole = {**NIGHTLY, **body}
    (await api.operator.send("PUT", PATH, whole)).says(422, code)
    if code != "unknown_task_type":
        (await api.operator.post("/v1/schedules:preview", whole)).says(422, code)
    await put(api)
    if code != "invalid_schedule" or "spread" in body:
        (await api.operator.send("PATCH", PATH, body)).says(422, code)


async def test_names_and_payloads_have_bounds(api: RunningApi) -> None:
    """Ten kilobytes are no name, and a payload is one of a job."""
    (await api.operator.send("PUT", "/v1/schedules/a:b", NIGHTLY)).says(422, "invalid_name")
    assert (await api.operator.send("PUT", f"/v1/schedules/{'n' * 10_000}", NIGHTLY)).status in {414, 422}
    large = {**NIGHTLY, "payload": "x" * 70_000}
    (await api.operator.send("PUT", PATH, large)).says(413, "payload_too_large")
    (await api.operator.send("PUT", PATH, {**NIGHTLY, "crom": "1"})).says(400, "unknown_field")


async def test_only_operators_change_schedules(api: RunningApi) -> None:
    """A viewer reads and previews."""
    await put(api)
    for method, path in (("PUT", PATH), ("PATCH", PATH), ("DELETE", PATH), ("POST", f"{PATH}/pause")):
        assert (await api.viewer.send(method, path, NIGHTLY)).status == 403
    assert (await api.viewer.post(f"{PATH}/run-now")).status == 403
