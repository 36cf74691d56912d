"""Jobs that wait for others: their own state in lists, counts and explain, and what is refused to them."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from kit.api import RunningApi, running_api

ORDER = {
    "name": "order 17",
    "jobs": [
        {"name": "charge", "task_type": "noop", "payload": {"order": 17}},
        {"name": "pack", "task_type": "noop", "after": ["charge"], "on_failed": "wait", "tags": ["boxed"]},
        {"name": "tell", "task_type": "noop", "after": ["pack"], "on_failed": "run"},
    ],
}


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[RunningApi]:
    """An API on a database of its own."""
    async with running_api(database_url) as running:
        yield running


async def add(api: RunningApi) -> tuple[int, dict[str, int]]:
    """Add the workflow; return its id, and those of its jobs by name."""
    workflow_id = (await api.operator.post("/v1/workflows", ORDER)).json["id"]
    found = (await api.viewer.get(f"/v1/workflows/{workflow_id}/nodes")).json["items"]
    return workflow_id, {one["name"]: one["id"] for one in found}


async def listed(api: RunningApi, query: str) -> list[int]:
    """Return the ids of a list of jobs."""
    answer = await api.operator.get(f"/v1/jobs?{query}")
    assert answer.status == 200, answer.body
    return [job["id"] for job in answer.json["items"]]


async def explained(api: RunningApi, job_id: int) -> dict[str, Any]:
    """Return why a job is in its state."""
    answer = await api.viewer.get(f"/v1/jobs/{job_id}/explain")
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json
    return found


async def end(api: RunningApi, status: str, job_id: int) -> None:
    """End a job as a user of plain SQL does."""
    await api.pool.execute("UPDATE tickwright.scheduled_tasks SET status = $1 WHERE id = $2", status, job_id)


async def test_a_waiting_job_has_its_own_state_in_lists_and_counts(api: RunningApi) -> None:
    """It is not among the pending ones, whichever other filter there is."""
    plain = (await api.operator.post("/v1/jobs", {"task_type": "noop", "delay": "1h"})).json["id"]
    workflow_id, ids = await add(api)
    assert await listed(api, "status=waiting") == [ids["tell"], ids["pack"]]
    assert await listed(api, "status=pending") == [ids["charge"], plain]
    assert await listed(api, "status=pending&status=waiting&status=completed") == [
        ids["tell"], ids["pack"], ids["charge"], plain,
    ]  # fmt: skip
    assert await listed(api, "tag=boxed") == await listed(api, "status=waiting&tag=boxed") == [ids["pack"]]
    assert await listed(api, "status=waiting&task_type=noop&text=order") == []
    counts = (await api.viewer.get("/v1/jobs:counts")).json
    assert {state: jobs for state, jobs in counts["counts"].items() if jobs} == {"pending": 2, "waiting": 2}
    shown = (await api.viewer.get(f"/v1/jobs/{ids['pack']}")).json
    assert (shown["status"], shown["workflow_id"]) == ("waiting", workflow_id)
    assert (await api.viewer.get(f"/v1/jobs/{plain}")).json["workflow_id"] is None


async def test_jobs_are_listed_and_counted_by_workflow(api: RunningApi) -> None:
    """Live, waiting and finished ones, page by page; a finished job still names its workflow."""
    await add(api)
    workflow_id, ids = await add(api)
    await end(api, "completed", ids["charge"])
    assert await listed(api, f"workflow={workflow_id}") == [ids["tell"], ids["pack"], ids["charge"]]
    assert await listed(api, f"workflow={workflow_id}&status=completed") == [ids["charge"]]
    first = (await api.operator.get(f"/v1/jobs?workflow={workflow_id}&limit=2")).json
    assert await listed(api, f"workflow={workflow_id}&limit=2&cursor={first['next']}") == [ids["charge"]]
    counts = (await api.viewer.get(f"/v1/jobs:counts?workflow={workflow_id}")).json
    assert counts["counts"] | {"pending": 1, "waiting": 1, "completed": 1} == counts["counts"]
    assert (await api.viewer.get(f"/v1/jobs/{ids['charge']}")).json["workflow_id"] == workflow_id
    assert await listed(api, "workflow=999999") == []


async def test_explain_names_the_job_that_is_waited_for(api: RunningApi) -> None:
    """With its id and state, and what to do where it failed; the job that is waited for says so, too."""
    workflow_id, ids = await add(api)
    assert (await explained(api, ids["pack"]))["summary"] == (
        f"it waits for charge (#{ids['charge']}), which has not started"
    )
    assert (await explained(api, ids["tell"]))["summary"] == (
        f"it waits for pack (#{ids['pack']}), which waits for others itself"
    )
    assert (await explained(api, ids["charge"]))["reasons"][-1] == {
        "code": "in_workflow",
        "text": f"it is charge of workflow order 17 (#{workflow_id}); 1 job waits for it",
    }
    await end(api, "failed", ids["charge"])
    waits = await explained(api, ids["pack"])
    advice = f"on_failed=wait; retry {ids['charge']}, or cancel this job"
    assert waits["summary"] == f"it waits for charge (#{ids['charge']}), which failed: {advice}"
    assert [reason["code"] for reason in waits["reasons"]] == ["waits_for_failed", "in_workflow"]
    assert (await api.operator.post(f"/v1/jobs/{ids['charge']}/retry")).status == 200
    assert (await explained(api, ids["pack"]))["reasons"][0]["code"] == "waits_for"


async def test_a_waiting_job_is_cancelled_by_its_id_and_not_moved(api: RunningApi) -> None:
    """A bulk action says what to do instead."""
    _, ids = await add(api)
    for action, body in (("run-now", None), ("reschedule", {"delay": "1h"})):
        (await api.operator.post(f"/v1/jobs/{ids['pack']}/{action}", body)).says(409, "job_waits")
    (await api.operator.send("PATCH", f"/v1/jobs/{ids['pack']}", {"priority": 3})).says(409, "job_waits")
    (await api.operator.post("/v1/jobs:cancel", {"status": ["waiting"]})).says(422, "job_waits")
    cancelled = await api.operator.post(f"/v1/jobs/{ids['pack']}/cancel")
    assert cancelled.json["outcome"] == "cancelled"
    assert (await api.viewer.get(f"/v1/jobs/{ids['pack']}")).json["status"] == "cancelled"
    assert (await api.viewer.get(f"/v1/jobs/{ids['tell']}")).json["status"] == "pending"  # on_failed=run
