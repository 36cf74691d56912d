"""Queues by REST: what is listed, pauses and their audit, and what is refused."""

from collections.abc import AsyncIterator

import pytest

from kit.api import RunningApi, running_api
from kit.engine import insert


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[RunningApi]:
    """A running API with the type ``noop`` in the queue ``default``."""
    async with running_api(database_url) as running:
        yield running


async def test_queues_are_those_of_types_and_the_paused_ones(api: RunningApi) -> None:
    """With their types, due jobs and pauses; a viewer reads them."""
    kind = {"target": "python:train", "queue": "bulk", "needs": ["gpu", "disk"]}
    stored = (await api.admin.send("PUT", "/v1/task-types/train", kind)).json["task_type"]
    assert (stored["queue"], stored["needs"], stored["queue_paused_at"]) == ("bulk", ["disk", "gpu"], None)
    await insert(api.pool, "train")
    found = {queue["name"]: queue for queue in (await api.viewer.get("/v1/queues")).json["items"]}
    assert found["bulk"]["types"] == ["train"]
    assert (found["bulk"]["due"], found["bulk"]["running"], found["bulk"]["workers"]) == (1, 0, 0)
    assert "noop" in found["default"]["types"]


async def test_a_pause_of_a_queue_is_an_operators_and_audited(api: RunningApi) -> None:
    """Twice is harmless; the types say that their queue is paused, and a type moves by PATCH."""
    await api.admin.send("PATCH", "/v1/task-types/noop", {"queue": "bulk"})
    assert (await api.viewer.send("POST", "/v1/queues/bulk/pause")).status == 403
    paused = (await api.operator.send("POST", "/v1/queues/bulk/pause")).json
    assert (await api.operator.send("POST", "/v1/queues/bulk/pause")).json["paused_at"] == paused["paused_at"]
    assert (await api.viewer.get("/v1/task-types/noop")).json["queue_paused_at"] == paused["paused_at"]
    assert (await api.operator.send("POST", "/v1/queues/bulk/enable")).json["paused_at"] is None
    assert (await api.viewer.get("/v1/queues/bulk")).json["paused_at"] is None
    trail = (await api.admin.get("/v1/audit?subject=queue:bulk")).json["items"]
    assert [entry["action"] for entry in trail] == ["queues.enable", "queues.pause", "queues.pause"]
    assert trail[0]["before"] == {"paused_at": paused["paused_at"]}


async def test_what_is_no_queue_is_refused(api: RunningApi) -> None:
    """A name that no type has is a typing error: a pause of it would hold nothing up, without a sign of it."""
    (await api.operator.send("POST", "/v1/queues/bulk/pause")).says(404, "queue_not_found")
    (await api.viewer.get(f"/v1/queues/{'q' * 10_000}")).says(422, "invalid_parameter")
    for queue, code in (("a b", "invalid_queue"), ("*", "invalid_queue"), ("q" * 10_000, "invalid_value")):
        change = {"queue": queue}
        (await api.admin.send("PATCH", "/v1/task-types/noop", change)).says(422, code)
    (await api.admin.send("PATCH", "/v1/task-types/noop", {"needs": ["g*"]})).says(422, "invalid_needs")
    (await api.admin.send("PATCH", "/v1/task-types/noop", {"needs": ["a"] * 11})).says(422, "invalid_value")
