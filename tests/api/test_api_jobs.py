"""Jobs through the REST API: scheduling, keys, listings."""

import asyncio
import json
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import pytest

from kit.api import ADMIN, RunningApi, running_api

DUE = "2030-01-31T09:00:00Z"


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[RunningApi]:
    """A running API."""
    async with running_api(database_url) as running:
        yield running


async def test_a_scheduled_job_can_be_read_at_its_location(api: RunningApi) -> None:
    """201 names the job in body and Location; GET returns the requested values."""
    made = await api.operator.post(
        "/v1/jobs", {"task_type": "noop", "payload": {"n": 1.5}, "execute_at": DUE, "priority": 7, "timeout": "90s"}
    )
    assert made.status == 201
    assert made.json["created"] is True
    shown = (await api.viewer.get(made.headers["location"])).json
    assert shown["id"] == made.json["id"]
    assert shown["payload"] == {"n": 1.5}
    assert shown["execute_at"] == DUE
    assert (shown["priority"], shown["timeout"], shown["status"], shown["max_attempts"]) == (7, "90s", "pending", 3)


async def test_a_delay_counts_by_the_clock_of_the_database(api: RunningApi) -> None:
    """``delay`` sets ``execute_at`` to the database's now plus the delay."""
    made = await api.operator.post("/v1/jobs", {"task_type": "noop", "delay": "1h30m"})
    off_s = await api.pool.fetchval(
        "SELECT extract(epoch FROM execute_at - created_at) FROM tickwright.scheduled_tasks WHERE id = $1",
        made.json["id"],
    )
    assert off_s == 5400


async def test_the_same_key_and_request_answer_with_the_same_job(api: RunningApi) -> None:
    """A repeated request is 200, created false, in any order of its fields and keys."""
    body = {"task_type": "noop", "payload": {"a": 1, "b": 2}, "execute_at": DUE}
    turned = {"execute_at": DUE, "payload": {"b": 2, "a": 1}, "task_type": "noop", "idempotency_key": "k1"}
    first = await api.operator.post("/v1/jobs", body, headers={"Idempotency-Key": "k1"})
    second = await api.operator.post("/v1/jobs", turned)
    assert (first.status, second.status) == (201, 200)
    assert (second.json["id"], second.json["created"], second.json["outcome"]) == (first.json["id"], False, "existing")


async def test_the_same_key_with_another_request_is_refused(api: RunningApi) -> None:
    """A key belongs to one request for ever."""
    for body in ({"task_type": "noop", "payload": 1}, {"task_type": "noop", "payload": 2}):
        answer = await api.operator.post("/v1/jobs", body, headers={"Idempotency-Key": "k"})
    answer.says(409, "key_reused")


async def test_many_callers_with_one_key_make_one_job(api: RunningApi) -> None:
    """Concurrent requests with one key: one job is created, and all answers name it."""
    body = {"task_type": "noop", "payload": {"n": 1}, "execute_at": DUE, "idempotency_key": "one"}
    answers = await asyncio.gather(*(api.operator.post("/v1/jobs", body) for _ in range(24)))
    assert sorted(answer.status for answer in answers) == [200] * 23 + [201]
    assert len({answer.json["id"] for answer in answers}) == 1


async def test_pages_show_every_job_once_newest_first(api: RunningApi) -> None:
    """Following ``next`` returns each job once."""
    made = [
        (await api.operator.post("/v1/jobs", {"task_type": "noop", "execute_at": DUE})).json["id"] for _ in range(7)
    ]
    seen: list[int] = []
    cursor = ""
    while True:
        page = (await api.viewer.get(f"/v1/jobs?limit=3{cursor}")).json
        seen += [job["id"] for job in page["items"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert seen == sorted(made, reverse=True)


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("status=pending", 2),
        ("status=pending&status=processing&task_type=noop", 2),
        ("status=completed", 0),
        ("status=failed", 0),
        ("execute_from=2030-02-01T00:00:00Z", 1),
        ("execute_to=2030-02-01T00:00:00%2B00:00", 1),
        ("idempotency_key=late", 1),
        ("idempotency_key=nobody", 0),
        ("task_type=other", 0),
    ],
)
async def test_filters_narrow_a_listing(api: RunningApi, query: str, count: int) -> None:
    """Each filter alone; a range includes its start and excludes its end."""
    await api.operator.post("/v1/jobs", {"task_type": "noop", "execute_at": DUE})
    await api.operator.post(
        "/v1/jobs", {"task_type": "noop", "execute_at": "2030-02-01T00:00:00Z", "idempotency_key": "late"}
    )
    assert len((await api.viewer.get(f"/v1/jobs?{query}")).json["items"]) == count


async def test_a_cursor_of_another_listing_is_refused(api: RunningApi) -> None:
    """Cursors are signed and bound to their filter."""
    for _ in range(2):
        await api.operator.post("/v1/jobs", {"task_type": "noop", "execute_at": DUE})
    cursor = (await api.viewer.get("/v1/jobs?limit=1")).json["next"]
    (await api.viewer.get(f"/v1/jobs?limit=1&status=pending&cursor={cursor}")).says(400, "invalid_cursor")
    (await api.viewer.get(f"/v1/jobs?limit=1&cursor=x{cursor[1:]}")).says(400, "invalid_cursor")
    (await api.viewer.get("/v1/jobs?cursor=e30")).says(400, "invalid_cursor")


async def test_the_route_and_the_fast_path_answer_alike(api: RunningApi) -> None:
    """POST /v1/jobs has one behaviour: the framework's route, reached by another spelling of the path, agrees."""
    bodies = [b'{"task_type":"noop","execute_at":"2030-01-31T09:00:00Z"}', b"{", b'{"task_type":"none"}', b'{"x":1}']
    for body in bodies:
        lane = await api.operator.post("/v1/jobs", body)
        route = await _through_the_route(api, body)
        assert (lane.status, sorted(lane.json)) == (route[0], sorted(route[1]))
        assert lane.json.get("detail") == route[1].get("detail")


async def _through_the_route(api: RunningApi, body: bytes) -> tuple[int, dict[str, Any]]:
    sent: list[dict[str, Any]] = []
    scope = {
        "type": "http", "method": "POST", "path": "/v1/jobs", "raw_path": b"/v1/jobs", "query_string": b"",
        "headers": [(b"content-type", b"application/json")], "http_version": "1.1", "scheme": "http",
        "root_path": "", "client": None, "server": ("t", 1), "state": {}, "tickwright.caller": ADMIN,
        "asgi": {"version": "3.0"},
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(dict(message))

    await api.app.framework(scope, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])
