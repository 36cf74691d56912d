"""Requests that wait for a job, and streams of a job: their answers, bounds, and ends."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import pytest

from kit.api import Client, RunningApi, running_api
from kit.awaiting import AWAITED
from kit.engine import insert
from kit.streams import Stream
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.admin import waits as waits_module
from tickwright.capabilities.jobs.admin.waits import JobWaits
from tickwright.ports.caller import Role

LATER = "now() + interval '1 day'"
PROGRESS = "UPDATE ONLY tickwright.scheduled_tasks SET progress = $2 WHERE id = $1"


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[RunningApi]:
    """An API in which operators see payloads and viewers do not."""
    async with running_api(database_url, payloads_from=Role.OPERATOR) as running:
        yield running


def waits_of(api: RunningApi) -> JobWaits:
    """Return the waiting requests of the API's process."""
    return api.app._context.plugin_context.ports.get(JobWaits)


async def begin(api: RunningApi, client: Client, path: str, job_id: int) -> "asyncio.Task[Any]":
    """Send a request, and return once it waits for a job that is marked."""
    asking = asyncio.create_task(client.get(path))

    async def waits() -> bool:
        return asking.done() or bool(waits_of(api).waiting and await api.pool.fetchval(AWAITED, job_id))

    await eventually_async(waits, what="it waits")
    return asking


@asynccontextmanager
async def job_stream(client: Client, job_id: int) -> AsyncIterator[Stream]:
    """Open the stream of a job."""
    headers = {"Authorization": f"Bearer {client.key}"}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_read=30)) as session,
        session.get(f"{client.base}/v1/jobs/{job_id}/events", headers=headers) as answer,
    ):
        assert answer.status == 200, await answer.text()
        yield Stream(answer)


async def test_a_request_waits_for_the_end_of_a_job(api: RunningApi) -> None:
    """The answer is that of a request without ``wait``, after the end."""
    job_id = await insert(api.pool, "noop", at=LATER)
    asking = await begin(api, api.viewer, f"/v1/jobs/{job_id}?wait=60s", job_id)
    assert (await api.operator.post(f"/v1/jobs/{job_id}/cancel")).status == 200
    answer = await asking
    assert (answer.status, answer.json["status"]) == (200, "cancelled")
    assert answer.json == (await api.viewer.get(f"/v1/jobs/{job_id}")).json
    assert (await api.viewer.get(f"/v1/jobs/{job_id}?wait=60s")).json == answer.json
    assert waits_of(api).waiting == 0


async def test_a_request_answers_with_the_present_state_when_its_time_is_over(api: RunningApi) -> None:
    """The wait is no error."""
    job_id = await insert(api.pool, "noop", at=LATER)
    answer = await api.viewer.get(f"/v1/jobs/{job_id}?wait=1ms")
    assert (answer.status, answer.json["status"]) == (200, "pending")


async def test_a_job_without_history_is_answered_as_completed(api: RunningApi) -> None:
    """Nothing of it is left but what the request read before."""
    await api.pool.execute("UPDATE tickwright.task_types SET keep_history = false")
    job_id = await insert(api.pool, "noop", at=LATER)
    asking = await begin(api, api.viewer, f"/v1/jobs/{job_id}?wait=60s", job_id)
    await api.pool.execute("DELETE FROM ONLY tickwright.scheduled_tasks WHERE id = $1", job_id)  # as its worker does
    assert (await asking).json["status"] == "completed"
    (await api.viewer.get(f"/v1/jobs/{job_id}?wait=1s")).says(404, "job_not_found")


@pytest.mark.parametrize(
    ("wait", "code"),
    [
        ("10", "invalid_duration"),
        ("", "invalid_duration"),
        ("0s", "invalid_wait"),
        ("61s", "invalid_wait"),
        ("1us", "invalid_wait"),
    ],
)
async def test_a_wrong_wait_is_refused(api: RunningApi, wait: str, code: str) -> None:
    """Before anything is read."""
    answer = (await api.viewer.get(f"/v1/jobs/1?wait={wait}")).says(422, code)
    assert answer.json["field"] == "wait"


async def test_a_wait_for_no_job_is_refused_at_once(api: RunningApi) -> None:
    """Also by the stream, before it begins."""
    (await api.viewer.get("/v1/jobs/99?wait=60s")).says(404, "job_not_found")
    (await api.viewer.get("/v1/jobs/99/events")).says(404, "job_not_found")
    (await api.stranger.get("/v1/jobs/99/events")).says(401, "unauthenticated")


async def test_a_client_that_leaves_frees_its_waiter(api: RunningApi) -> None:
    """The request, and a stream."""
    job_id = await insert(api.pool, "noop", at=LATER)
    asking = await begin(api, api.viewer, f"/v1/jobs/{job_id}?wait=60s", job_id)
    async with job_stream(api.viewer, job_id) as stream:
        await stream.next()
        assert waits_of(api).waiting == 2
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
        await eventually_async(lambda: waits_of(api).waiting == 1, what="the request has ended")
    await eventually_async(lambda: waits_of(api).waiting == 0, what="the stream has ended")
    await eventually_async(lambda: waits_of(api)._results.waiting == 0, what="nothing waits")


@pytest.mark.parametrize("bound", ["WAITS_MAX", "WAITS_PER_KEY"])
async def test_waiting_requests_are_bounded(api: RunningApi, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    """One more is refused with a code of its own; requests that do not wait are answered."""
    monkeypatch.setattr(waits_module, bound, 1)
    job_id = await insert(api.pool, "noop", at=LATER)
    asking = await begin(api, api.viewer, f"/v1/jobs/{job_id}?wait=60s", job_id)
    refused = (await api.viewer.get(f"/v1/jobs/{job_id}?wait=60s")).says(503, "too_many_waits")
    assert refused.headers["retry-after"] == "5"
    assert (await api.viewer.get(f"/v1/jobs/{job_id}")).status == 200
    if bound == "WAITS_PER_KEY":
        assert (await api.operator.get(f"/v1/jobs/{job_id}?wait=1ms")).status == 200
    await api.operator.post(f"/v1/jobs/{job_id}/cancel")
    assert (await asking).json["status"] == "cancelled"
    assert (await api.viewer.get(f"/v1/jobs/{job_id}?wait=1s")).status == 200


async def test_streams_of_jobs_are_bounded(api: RunningApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of the overview are."""
    monkeypatch.setattr(waits_module, "STREAMS_MAX", 1)
    job_id = await insert(api.pool, "noop", at=LATER)
    async with job_stream(api.viewer, job_id) as stream:
        await stream.next()
        (await api.viewer.get(f"/v1/jobs/{job_id}/events")).says(503, "too_many_streams")


async def test_a_draining_process_answers_and_ends_what_waits(api: RunningApi) -> None:
    """Requests with the present state; streams end, so that their clients connect elsewhere."""
    job_id = await insert(api.pool, "noop", at=LATER)
    asking = await begin(api, api.viewer, f"/v1/jobs/{job_id}?wait=60s", job_id)
    async with job_stream(api.viewer, job_id) as stream:
        await stream.next()
        await waits_of(api).quiesce()
        answer = await asking
        assert (answer.status, answer.json["status"]) == (200, "pending")
        await stream.ended(20)
    assert (await api.viewer.get(f"/v1/jobs/{job_id}?wait=60s")).json["status"] == "pending"
    (await api.viewer.get(f"/v1/jobs/{job_id}/events")).says(503, "draining")


async def test_a_stream_shows_a_job_now_its_progress_and_its_end(api: RunningApi) -> None:
    """Its first event is the present state, its last one the end, after which it is closed."""
    job_id = await insert(api.pool, "noop", at=LATER)
    async with job_stream(api.operator, job_id) as stream:
        first = await stream.next()
        assert (first["id"], first["status"], first["progress"]) == (job_id, "pending", None)
        await eventually_async(lambda: api.pool.fetchval(AWAITED, job_id), what="it is marked")
        await api.pool.execute(PROGRESS, job_id, '{"done": 0.5}')
        assert (await stream.next())["progress"] == {"done": 0.5}
        await api.operator.post(f"/v1/jobs/{job_id}/cancel")
        last = await stream.next()
        assert last["status"] == "cancelled"
        assert last["completed_at"] is not None
        await stream.ended(20)
    async with job_stream(api.operator, job_id) as stream:
        assert await stream.next() == last
        await stream.ended(20)


async def test_a_stream_hides_the_data_of_users_from_viewers(api: RunningApi) -> None:
    """As every other answer does."""
    job_id = await insert(api.pool, "noop", at=LATER)
    await api.pool.execute(PROGRESS, job_id, json.dumps({"who": "canary"}))
    async with job_stream(api.viewer, job_id) as stream:
        event = await stream.next()
    assert (event["progress"], event["payload_hidden"]) == (None, True)
    async with job_stream(api.operator, job_id) as stream:
        assert (await stream.next())["progress"] == {"who": "canary"}


async def test_a_stream_ends_after_a_while_so_that_its_key_is_checked_again(
    api: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client connects again."""
    monkeypatch.setattr(waits_module, "STREAM_FOR_S", 0.05)
    job_id = await insert(api.pool, "noop", at=LATER)
    async with job_stream(api.viewer, job_id) as stream:
        await stream.ended(20)
    await eventually_async(lambda: waits_of(api).waiting == 0, what="nothing waits")
