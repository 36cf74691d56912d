"""Hostile and mistaken calls of the worker protocol: each has a stable code, and changes nothing."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kit.remote import RemoteSite, ended, of, register, remote_site
from tickwright.capabilities.jobs.remote import claims, sessions

WORKER = {"name": "n", "pool": "shop", "types": ["work"]}
ONE = {"id": 1, "fence": 1}


@pytest.fixture
async def site(database_url: str, tmp_path: Path) -> AsyncIterator[RemoteSite]:
    """A running api."""
    async with remote_site(database_url, tmp_path) as site:
        yield site


async def test_registrations_are_checked(site: RemoteSite) -> None:
    """Names, pools, types, leases and versions have bounds."""
    cases: list[tuple[dict[str, Any], int, str]] = [
        ({"protocol": 2}, 422, "unsupported_protocol"),
        ({"lease": "1s"}, 422, "invalid_lease"),
        ({"lease": "11m"}, 422, "invalid_lease"),
        ({"lease": "8"}, 422, "invalid_duration"),
        ({"types": []}, 422, "invalid_value"),
        ({"types": ["t"] * 201}, 422, "invalid_value"),
        ({"types": ["t" * 51]}, 422, "invalid_value"),
        ({"pool": ""}, 422, "invalid_value"),
        ({"pool": "a b"}, 422, "invalid_value"),
        ({"name": "x" * 201}, 422, "invalid_value"),
        ({"name": "\0"}, 400, "unsupported_character"),
        ({"owner": 5}, 400, "unknown_field"),
    ]
    for change, status, code in cases:
        (await site.client.post("/v1/worker/register", {**WORKER, **change})).says(status, code)
    assert (
        await site.workers.claims._pool.fetchval(
            "SELECT count(*) FROM tickwright.workers WHERE remote_lease IS NOT NULL"
        )
        == 0
    )


async def test_sessions_that_are_alive_have_a_limit(site: RemoteSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is closed or lost makes room; lost ones are deleted after an hour, a few at each registration."""
    monkeypatch.setattr(sessions, "SESSIONS_MAX", 2)
    first, second = await register(site.client), await register(site.client)
    (await site.client.post("/v1/worker/register", WORKER)).says(429, "too_many_sessions")
    await first.said("close", {})
    third = await register(site.client)
    await site.workers.claims._pool.execute(
        "UPDATE tickwright.workers SET lost_at = now() - interval '2 hours' WHERE id = $1", second.id
    )
    fourth = await register(site.client)
    alive = await site.workers.claims._pool.fetch("SELECT id FROM tickwright.workers WHERE remote_lease IS NOT NULL")
    assert {row["id"] for row in alive} == {third.id, fourth.id}


async def test_an_answer_has_a_limit(site: RemoteSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs whose payloads do not fit into an answer are for the next claim; the first one always fits."""
    monkeypatch.setattr(claims, "ANSWER_CHARS_MAX", 100_000)
    for _ in range(3):
        await site.client.post("/v1/jobs", {"task_type": "work", "payload": "x" * 60_000, "max_attempts": 1})
    worker = await register(site.client)
    for _ in range(3):
        [job] = await worker.claim(wait="30s")
        assert job["attempt"] == 1
        await worker.results(ended(job))


async def test_calls_are_checked(site: RemoteSite) -> None:
    """Every bound of every call."""
    worker = await register(site.client)
    results = [ended({"id": number, "fence": 1}) for number in range(1, 1002)]
    cases: list[tuple[str, Any, int, str]] = [
        ("claim", {"max": 1}, 422, "invalid_value"),
        ("claim", {"claim": 0}, 422, "invalid_value"),
        ("claim", {"claim": 1, "max": 0}, 422, "invalid_value"),
        ("claim", {"claim": 1, "max": 1001}, 422, "invalid_value"),
        ("claim", {"claim": 1, "wait": "61s"}, 422, "invalid_duration"),
        ("claim", {"claim": 1, "wait": -1}, 422, "invalid_value"),
        ("claim", {"claim": 1, "types": ["strange"]}, 422, "unknown_type"),
        ("claim", {"claim": 1, "types": []}, 422, "invalid_value"),
        ("claim", {"claim": 2**63}, 400, "number_out_of_range"),
        ("claim", {"claim": 1, "owner": 1}, 400, "unknown_field"),
        ("results", {"results": []}, 422, "invalid_value"),
        ("results", {"results": results}, 422, "invalid_value"),
        ("results", {"results": [ended(ONE), ended(ONE, "release")]}, 422, "duplicate_job"),
        ("results", {"results": [ended(ONE, "explode")]}, 422, "invalid_value"),
        ("results", {"results": [ONE]}, 422, "invalid_value"),
        ("results", {"results": [ended(ONE, result="x" * 70_000)]}, 413, "result_too_large"),
        ("results", {"results": [ended(ONE, "snooze", wait="4000d")]}, 422, "invalid_duration"),
        ("results", {"results": [ended(ONE, "fail", message="m", retry_after="soon")]}, 422, "invalid_duration"),
        ("results", {"results": [ended(ONE, "fail", message="m", code="a b")]}, 422, "invalid_value"),
        ("results", {"results": [ended(ONE, "fail")]}, 422, "invalid_value"),
        ("begin", {"jobs": []}, 422, "invalid_value"),
        ("progress", {"jobs": [{**ONE, "progress": "x" * 70_000}]}, 413, "result_too_large"),
        ("heartbeat", {"held": [{"id": -1, "fence": 1}]}, 422, "invalid_value"),
        ("close", {"now": True}, 400, "unknown_field"),
    ]
    for name, body, status, code in cases:
        (await worker.call(name, body)).says(status, code)
    for body, code in (
        (b"{", "invalid_json"),
        (b'{"claim": NaN}', "non_finite_number"),
        (b'{"claim":1,"claim":2}', "duplicate_key"),
    ):
        (await worker.call("claim", body)).says(400, code)

    async def large() -> AsyncIterator[bytes]:
        for _ in range(41):
            yield b"x" * 100_000

    (await worker.call("results", large())).says(413, "body_too_large")


async def test_sessions_are_checked(site: RemoteSite) -> None:
    """A call without a session, under one that never was, or with a wrong secret."""
    worker = await register(site.client)
    path = "/v1/worker/heartbeat"
    (await site.client.post(path, {})).says(400, "session_missing")
    for text in ("", "tws_", "tws_x_y", "tws_5", "tws_1_" + "x" * 200, "tws_²_x"):
        (await site.client.post(path, {}, headers={"Tickwright-Session": text})).says(400, "session_missing")
    unknown = f"tws_{2**63 - 1}_x"
    (await site.client.post(path, {}, headers={"Tickwright-Session": unknown})).says(409, "session_lost")
    wrong = worker.session[:-1] + ("a" if worker.session[-1] != "a" else "b")
    (await site.client.post(path, {}, headers={"Tickwright-Session": wrong})).says(403, "session_forbidden")
    (await site.client.post(f"{path}?x=1", {}, headers={"Tickwright-Session": worker.session})).says(
        400, "unknown_parameter"
    )


async def test_a_session_of_a_process_is_no_remote_one(site: RemoteSite) -> None:
    """The process's own session cannot be used by a client, whatever secret it sends."""
    own = site.node.session.token
    headers = {"Tickwright-Session": f"tws_{own}_secret"}
    (await site.client.post("/v1/worker/heartbeat", {}, headers=headers)).says(409, "session_lost")


async def test_a_key_needs_its_role_or_the_scope(site: RemoteSite) -> None:
    """A key with the scope ``jobs:work`` works jobs, and may do nothing else."""
    keys = site.keys
    narrow = site.client.with_key((await keys.create("narrow", None, caller=site.admin, scopes=["jobs:work"])).key)
    other = site.client.with_key((await keys.create("other", None, caller=site.admin, scopes=["jobs:schedule"])).key)
    (await other.post("/v1/worker/register", WORKER)).says(403, "forbidden")
    [job_id] = await site.add()
    worker = await register(narrow)
    [job] = await worker.claim()
    assert (await worker.results(ended(job)))["done"] == 1
    (await narrow.get(f"/v1/jobs/{job_id}")).says(403, "forbidden")


async def test_a_result_that_the_database_refuses_fails_its_job_alone(site: RemoteSite) -> None:
    """The others of its call, and of other calls in its transaction, are written."""
    ids = await site.add(count=4)
    worker = await register(site.client)
    jobs = sorted(await worker.claim(), key=lambda job: job["id"])
    huge = "[" + ",".join(["1e300"] * 9000) + "]"  # 64 KB as it is sent, 2.7 MB as PostgreSQL writes it
    parts = [f'{{"outcome":"complete","id":{job["id"]},"fence":{job["fence"]},"result":' for job in jobs]
    bodies = [f"{part}{huge if number == 1 else number}}}" for number, part in enumerate(parts)]
    answer = await worker.call("results", ('{"results":[' + ",".join(bodies) + "]}").encode())
    assert answer.status == 200, answer.body
    assert answer.json["done"] == 4
    assert [(await site.job(job_id))["status"] for job_id in ids].count("completed") >= 3


async def test_errors_are_kept_without_what_cannot_be_stored(site: RemoteSite) -> None:
    """A long text is cut, and a secret of the process does not get into it."""
    [job_id] = await site.add(max_attempts=1)
    worker = await register(site.client)
    [job] = await worker.claim()
    await worker.said("begin", {"jobs": [of(job)]})
    await worker.results(ended(job, "fail", message="x" * 20_000))
    seen = await site.job(job_id)
    assert seen["status"] == "failed"
    assert 1000 < len(seen["error_message"]) <= 2000
