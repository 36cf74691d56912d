"""Workflows over REST: added once, searched, drawn in groups, explained, cancelled and retried; and what is refused."""

import asyncio
import json
from collections.abc import AsyncIterator
from io import BytesIO
from typing import Any

import pytest

from kit.api import RunningApi, running_api

ORDER = {
    "name": "order 17",
    "jobs": [
        {"name": "charge", "task_type": "noop", "payload": {"order": 17}},
        {"name": "pack", "task_type": "noop", "after": ["charge"]},
        {"name": "tell", "task_type": "noop", "after": ["charge", "pack"], "on_failed": "wait"},
    ],
}
PATH = "/v1/workflows"


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[RunningApi]:
    """An API on a database of its own."""
    async with running_api(database_url) as running:
        yield running


async def add(api: RunningApi, definition: Any = ORDER, **headers: str) -> int:
    """Add a workflow; return its id."""
    made = await api.operator.post(PATH, definition, headers=headers)
    assert made.status == 201, made.body
    assert made.json["created"] is True
    assert made.headers["location"] == f"{PATH}/{made.json['id']}"
    return int(made.json["id"])


async def nodes(api: RunningApi, workflow_id: int, query: str = "") -> dict[str, Any]:
    """Return the nodes by name."""
    answer = await api.viewer.get(f"{PATH}/{workflow_id}/nodes?limit=200{query}")
    assert answer.status == 200, answer.body
    return {one["name"]: one for one in answer.json["items"]}


async def end(api: RunningApi, status: str, *ids: int) -> None:
    """End jobs as a user of plain SQL does."""
    await api.pool.execute(
        "UPDATE tickwright.scheduled_tasks SET status = $1 WHERE id = ANY ($2::bigint[])", status, list(ids)
    )


async def test_a_workflow_is_added_read_and_followed_to_its_end(api: RunningApi) -> None:
    """Its jobs by state, in its own words; a viewer reads."""
    workflow_id = await add(api)
    shown = (await api.viewer.get(f"{PATH}/{workflow_id}")).json
    assert (shown["name"], shown["state"], shown["nodes"], shown["open"]) == ("order 17", "running", 3, 3)
    assert shown["states"] == {"pending": 1, "waiting": 2}
    found = await nodes(api, workflow_id)
    assert [one["status"] for one in found.values()] == ["pending", "waiting", "waiting"]
    for name in found:
        await end(api, "completed", found[name]["id"])
    ended = (await api.viewer.get(f"{PATH}/{workflow_id}?wait=30s")).json
    assert (ended["state"], ended["open"], ended["states"]) == ("completed", 0, {"completed": 3})
    (await api.viewer.get(f"{PATH}/{workflow_id + 1}")).says(404, "workflow_not_found")


async def test_a_request_waits_until_a_workflow_has_ended(api: RunningApi) -> None:
    """With a short time it answers with the present state."""
    workflow_id = await add(api, {"name": "one", "jobs": [{"name": "a", "task_type": "noop"}]})
    assert (await api.viewer.get(f"{PATH}/{workflow_id}?wait=1ms")).json["state"] == "running"
    waiting = asyncio.ensure_future(api.viewer.get(f"{PATH}/{workflow_id}?wait=60s"))
    await end(api, "completed", (await nodes(api, workflow_id))["a"]["id"])
    assert (await waiting).json["state"] == "completed"
    (await api.viewer.get(f"{PATH}/{workflow_id}?wait=61s")).says(422, "invalid_wait")


async def test_the_same_key_adds_a_workflow_once(api: RunningApi) -> None:
    """In the header or in the body; another body with it is refused."""
    workflow_id = await add(api, **{"Idempotency-Key": "order-17"})
    again = await api.operator.post(PATH, {**ORDER, "key": "order-17"})
    assert (again.status, again.json) == (200, {"id": workflow_id, "created": False})
    (await api.operator.post(PATH, {**ORDER, "name": "other", "key": "order-17"})).says(409, "key_reused")
    both = await api.operator.post(PATH, {**ORDER, "key": "a"}, headers={"Idempotency-Key": "b"})
    both.says(422, "invalid_key")
    assert await api.pool.fetchval("SELECT count(*) FROM tickwright.workflows") == 1


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"jobs": [{"name": "a", "task_type": "noop", "after": ["b"]},
                   {"name": "b", "task_type": "noop", "after": ["a"]}]},
         "workflow_order", "cycle"),
        ({"jobs": [{"name": "a", "task_type": "noop", "after": ["missing"]}]}, "workflow_unknown_name", "missing"),
        ({"jobs": [{"name": "a", "task_type": "noop"}, {"name": "a", "task_type": "noop"}]}, "workflow_name_twice", ""),
        ({"jobs": []}, "workflow_too_many", ""),
        ({"jobs": [{"name": "a", "task_type": "nope"}]}, "unknown_task_type", "nope"),
        ({"deadline": "0 seconds"}, "workflow_deadline", ""),
        ({"jobs": [{"name": "a", "task_type": "noop", "payload": {}, "priority": 101}]}, "workflow_job", ""),
    ],
)  # fmt: skip
async def test_a_definition_that_is_none_is_refused(
    api: RunningApi, changes: dict[str, Any], code: str, said: str
) -> None:
    """With a stable code and the names that are wrong; nothing of it is added."""
    refused = await api.operator.post(PATH, {**ORDER, **changes})
    assert said in refused.says(422, code).json["detail"]
    assert await api.pool.fetchval("SELECT count(*) FROM tickwright.workflow_nodes") == 0


async def test_syntax_fields_and_size_are_refused_before_the_database_reads_them(api: RunningApi) -> None:
    """A field that does not exist is named with its path; more than 10 MiB are not read."""
    unknown = await api.operator.post(PATH, {**ORDER, "jobs": [{"task_type": "noop", "afters": []}]})
    unknown.says(400, "unknown_field")
    (await api.operator.post(PATH, b'{"name": "x", "jobs": [')).says(400, "invalid_json")
    large = json.dumps({"name": "x", "jobs": [{"task_type": "noop", "payload": "x" * 10_485_760}]}).encode()
    (await api.operator.post(PATH, BytesIO(large))).says(413, "body_too_large")
    (await api.viewer.post(PATH, ORDER)).says(403, "forbidden")


async def test_workflows_are_searched_newest_first(api: RunningApi) -> None:
    """By state, part of the name and time, page by page."""
    ids = [await add(api, {**ORDER, "name": f"order {number}"}) for number in range(3)]
    first = (await api.viewer.get(f"{PATH}?limit=2")).json
    second = (await api.viewer.get(f"{PATH}?limit=2&cursor={first['next']}")).json
    assert [one["id"] for one in first["items"] + second["items"]] == ids[::-1]
    assert second["next"] is None
    await api.operator.post(f"{PATH}/{ids[0]}/cancel")
    assert [one["id"] for one in (await api.viewer.get(f"{PATH}?state=cancelled")).json["items"]] == ids[:1]
    assert [one["id"] for one in (await api.viewer.get(f"{PATH}?text=ORDER 1")).json["items"]] == [ids[1]]
    assert (await api.viewer.get(f"{PATH}?text=%25")).json["items"] == []
    assert (await api.viewer.get(f"{PATH}?created_to=2020-01-01T00:00:00Z")).json["items"] == []
    (await api.viewer.get(f"{PATH}?state=stuck")).says(422, "invalid_parameter")


async def test_an_inner_workflow_is_not_listed_and_can_be_opened(api: RunningApi) -> None:
    """Its graph has what is inside of it; the whole has its end as a node."""
    definition = {
        "name": "outer",
        "workflows": [{"name": "ship-1"}, {"name": "ship-2"}],
        "jobs": [
            {"name": "pack-1", "task_type": "noop", "workflow": "ship-1"},
            {"name": "send-1", "task_type": "noop", "workflow": "ship-1", "after": ["pack-1"]},
            {"name": "pack-2", "task_type": "noop", "workflow": "ship-2"},
            {"name": "send-2", "task_type": "noop", "workflow": "ship-2", "after": ["pack-2"]},
            {"name": "tell", "task_type": "noop", "after": ["ship-1", "ship-2"]},
        ],
    }
    workflow_id = await add(api, definition)
    assert [one["id"] for one in (await api.viewer.get(PATH)).json["items"]] == [workflow_id]
    graph = (await api.viewer.get(f"{PATH}/{workflow_id}/graph")).json
    boxes = [(group["name"], group["within"], group["nodes"], group["level"]) for group in graph["groups"]]
    assert sorted(boxes) == [
        ("pack-#", ["ship-#"], 2, 0),
        ("send-#", ["ship-#"], 2, 1),
        ("ship-#", [], 2, 2),
        ("tell", [], 1, 3),
    ]
    found = await nodes(api, workflow_id)
    inner = (await api.viewer.get(f"{PATH}/{found['ship-1']['id']}/graph")).json
    assert [(group["name"], group["level"]) for group in inner["groups"]] == [("pack-1", 0), ("send-1", 1)]
    assert set(await nodes(api, found["ship-1"]["id"])) == {"pack-1", "send-1"}
    detail = (await api.viewer.get(f"{PATH}/{found['ship-1']['id']}")).json
    assert (detail["root_id"], detail["parent_id"], detail["states"]) == (
        workflow_id,
        workflow_id,
        {"pending": 1, "waiting": 1},
    )


async def test_the_graph_says_where_a_workflow_is_and_its_groups_list_their_nodes(api: RunningApi) -> None:
    """A fan-out is one group; its failed node is found by group and state."""
    parts = [{"name": f"part-{number}", "task_type": "noop", "after": ["split"]} for number in range(20)]
    merge = {"name": "merge", "task_type": "noop", "after": [part["name"] for part in parts], "on_failed": "wait"}
    workflow_id = await add(api, {"name": "fan", "jobs": [{"name": "split", "task_type": "noop"}, *parts, merge]})
    found = await nodes(api, workflow_id)
    await end(api, "completed", found["split"]["id"])
    await end(api, "completed", *(found[f"part-{number}"]["id"] for number in range(10)))
    await end(api, "failed", found["part-19"]["id"])
    graph = (await api.viewer.get(f"{PATH}/{workflow_id}/graph")).json
    split, fan, joined = graph["groups"]
    assert (split["name"], fan["name"], joined["name"]) == ("split", "part-#", "merge")
    assert (fan["nodes"], fan["states"]) == (20, {"completed": 10, "failed": 1, "pending": 9})
    assert [(edge["from_id"], edge["to_id"]) for edge in graph["edges"]] == [
        (split["id"], fan["id"]), (fan["id"], joined["id"]),
    ]  # fmt: skip
    failed = await nodes(api, workflow_id, f"&group={fan['id']}&status=failed")
    assert set(failed) == {"part-19"}
    assert set(await nodes(api, workflow_id, "&q=part-1")) == {"part-1", *(f"part-1{digit}" for digit in range(10))}
    pages, cursor = [], ""
    while True:
        page = (await api.viewer.get(f"{PATH}/{workflow_id}/nodes?group={fan['id']}&limit=7{cursor}")).json
        pages.append([one["name"] for one in page["items"]])
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert [len(names) for names in pages] == [7, 7, 6]
    (await api.viewer.get(f"{PATH}/{workflow_id}/nodes?group=1")).says(404, "group_not_found")
    node = (await api.viewer.get(f"{PATH}/{workflow_id}/nodes/{found['merge']['id']}")).json
    assert (node["predecessors_total"], node["predecessors"][0]["name"], node["successors"]) == (20, "part-19", [])
    assert node["predecessors_not_completed"] == 10
    (await api.viewer.get(f"{PATH}/{workflow_id}/nodes/{workflow_id}")).says(404, "node_not_found")


async def test_explain_names_what_a_workflow_waits_for(api: RunningApi) -> None:
    """The failed job for which another waits comes first, with its error and what to do."""
    tell = {"name": "tell", "task_type": "noop", "after": ["charge"], "on_failed": "wait"}
    workflow_id = await add(api, {**ORDER, "jobs": [{"name": "charge", "task_type": "noop"}, tell]})
    found = await nodes(api, workflow_id)
    explained = (await api.viewer.get(f"{PATH}/{workflow_id}/explain")).json
    assert (
        explained["summary"] == f"1 pending, 1 waiting; now: charge (#{found['charge']['id']}) is due and not started"
    )
    await end(api, "failed", found["charge"]["id"])
    explained = (await api.viewer.get(f"{PATH}/{workflow_id}/explain")).json
    assert [reason["code"] for reason in explained["reasons"]] == ["waits_for_retry", "in_progress", "failed_job"]
    assert explained["summary"].startswith(f"charge (#{found['charge']['id']}) failed: 1 job waits until it is retried")


async def test_a_workflow_is_cancelled_and_retried_as_a_whole_or_from_a_job_on(api: RunningApi) -> None:
    """Each with a line of the audit trail; a viewer may not."""
    workflow_id = await add(api)
    found = await nodes(api, workflow_id)
    (await api.viewer.post(f"{PATH}/{workflow_id}/cancel")).says(403, "forbidden")
    part = await api.operator.post(f"{PATH}/{workflow_id}/cancel", {"job_id": found["tell"]["id"]})
    assert (part.status, part.json["jobs"], part.json["state"]) == (200, 1, "running")
    whole = await api.operator.post(f"{PATH}/{workflow_id}/cancel")
    assert (whole.json["outcome"], whole.json["jobs"], whole.json["state"]) == ("cancelled", 2, "cancelled")
    (await api.operator.post(f"{PATH}/{workflow_id}/cancel")).says(409, "workflow_ended")
    back = await api.operator.post(f"{PATH}/{workflow_id}/retry")
    assert (back.json["outcome"], back.json["jobs"], back.json["state"]) == ("retried", 3, "running")
    (await api.operator.post(f"{PATH}/{workflow_id}/retry")).says(409, "workflow_nothing_to_retry")
    (await api.operator.post(f"{PATH}/{workflow_id}/retry", {"job_id": 1})).says(404, "workflow_unknown_job")
    actions = "SELECT action FROM tickwright.audit WHERE subject = $1 ORDER BY id"
    assert [row["action"] for row in await api.pool.fetch(actions, f"workflow:{workflow_id}")] == [
        "workflows.cancel", "workflows.cancel", "workflows.retry",
    ]  # fmt: skip
