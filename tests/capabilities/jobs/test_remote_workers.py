"""Workers in other languages: the calls of the worker protocol against a real api process."""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kit.api import ADMIN
from kit.remote import RemoteSite, ended, of, register, remote_site
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.admin.queues import Queues
from tickwright.capabilities.operations.listings import Operations

RECORDED = {"done": 1, "stale": [], "locked": []}


@pytest.fixture
async def site(database_url: str, tmp_path: Path) -> AsyncIterator[RemoteSite]:
    """A running api."""
    async with remote_site(database_url, tmp_path) as site:
        yield site


async def waits(site: RemoteSite, count: int = 1) -> None:
    """Wait until so many claims wait in the process, and inserts notify it."""
    claimer = site.workers.claims
    await eventually_async(lambda: len(claimer._waiting) == count and claimer._wakeup.armed, what="claims wait")


async def test_a_job_is_claimed_and_completed_with_its_result(site: RemoteSite) -> None:
    """The claim has what a handler needs; the result is kept with the job."""
    [job_id] = await site.add(max_attempts=2)
    worker = await register(site.client)
    assert worker.registered["types"] == [{"name": "work", "state": "ready"}]
    [job] = await worker.claim()
    assert (job["id"], job["type"], job["payload"]) == (job_id, "work", {"n": 0})
    assert (job["attempt"], job["max_attempts"], job["timeout_ms"]) == (1, 2, 30_000)
    assert (job["start_in_ms"], job["begin"], job["expires_in_ms"]) == (0, False, None)
    assert await worker.results(ended(job, result={"sent": 1.5})) == RECORDED
    seen = await site.job(job_id)
    assert (seen["status"], seen["result"]) == ("completed", {"sent": 1.5})


async def test_a_waiting_claim_gets_the_job_that_is_scheduled_meanwhile(site: RemoteSite) -> None:
    """A notification ends the wait."""
    worker = await register(site.client)
    waiting = asyncio.create_task(worker.claim(wait="60s"))
    await waits(site)
    [job_id] = await site.add()
    [job] = await waiting
    assert job["id"] == job_id


async def test_no_job_is_given_out_before_it_is_due(site: RemoteSite) -> None:
    """The process waits for the due time: a client has no clock of the database."""
    worker = await register(site.client)
    [job_id] = await site.add(delay="1s")
    assert await worker.claim() == []
    [job] = await worker.claim(wait="30s")
    assert job["id"] == job_id
    pool = site.workers.claims._pool
    assert await pool.fetchval(
        "SELECT started_at >= execute_at AND started_at < execute_at + interval '5 seconds' "
        "FROM tickwright.scheduled_tasks WHERE id = $1", job_id
    )  # fmt: skip


async def test_many_that_wait_cost_one_claim_beside_those_that_get_jobs(
    site: RemoteSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One job wakes one of fifty workers; the others cost one claim together."""
    workers = await asyncio.gather(*(register(site.client) for _ in range(50)))
    waiting = [asyncio.create_task(worker.claim(wait="60s")) for worker in workers]
    await waits(site, 50)
    claims: list[int] = []
    store = site.workers.claims._store
    claim = store.claim

    async def counted(*given: Any) -> Any:
        claimed = await claim(*given)
        claims.append(len(claimed.rows))
        return claimed

    monkeypatch.setattr(store, "claim", counted)
    await site.add()
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    await waits(site, 49)
    assert claims.count(1) == 1
    assert len(claims) <= 6  # one that found no more, and those before the next sleep
    for task in waiting:
        task.cancel()


async def test_only_types_of_the_pool_that_are_registered_are_claimed(site: RemoteSite) -> None:
    """Jobs of types of another pool or target, and of types that wait, stay; the registration says so."""
    await site.type("other", target="remote:elsewhere")
    await site.type("python", target="python:python")
    await site.type("paused")
    await site.service.types.switch("paused", "pause", caller=ADMIN)
    for name in ("other", "python", "paused"):
        await site.add(name)
    worker = await register(site.client, "work", "other", "python", "paused", "nothing")
    states = {one["name"]: one["state"] for one in worker.registered["types"]}
    assert states == {
        "work": "ready", "other": "other_target", "python": "other_target", "paused": "waits", "nothing": "unknown",
    }  # fmt: skip
    assert await worker.claim() == []
    waiting = asyncio.create_task(worker.claim(wait="60s"))
    await waits(site)
    await site.service.types.switch("paused", "enable", caller=ADMIN)
    [job] = await waiting
    assert job["type"] == "paused"


async def test_a_paused_queue_gives_remote_workers_no_jobs(site: RemoteSite) -> None:
    """A pause of the queue stops its types for workers of every language; enabling it wakes them."""
    queues = Queues(site.workers.claims._pool)
    await queues.switch("default", "pause", caller=ADMIN)
    [job_id] = await site.add()
    worker = await register(site.client)
    assert await worker.claim() == []
    assert (await site.client.get(f"/v1/jobs/{job_id}/explain")).json["reasons"][0]["code"] == "queue_paused"
    waiting = asyncio.create_task(worker.claim(wait="60s"))
    await waits(site)
    await queues.switch("default", "enable", caller=ADMIN)
    [job] = await waiting
    assert job["id"] == job_id


@pytest.mark.parametrize("concurrency", [None, 1000], ids=["plain", "limited"])
async def test_no_priority_starves_for_remote_workers(site: RemoteSite, concurrency: int | None) -> None:
    """One of sixteen claims begins with another priority, however many jobs of a higher one are due."""
    if concurrency is not None:
        await site.type("limited", concurrency=concurrency)
    name = "work" if concurrency is None else "limited"
    await site.add(name, count=200, priority=10)
    [low] = await site.add(name)
    worker = await register(site.client, name)
    claimed = [(await worker.claim(max=1))[0]["id"] for _ in range(80)]
    assert low in claimed


async def test_a_failed_attempt_is_retried_by_the_policy_of_its_type(site: RemoteSite) -> None:
    """Its error is kept; the last attempt makes a dead letter, and so does a final error."""
    first, second = await site.add(count=2, max_attempts=2)
    worker = await register(site.client)
    jobs = {job["id"]: job for job in await worker.claim()}
    assert await worker.results(
        ended(jobs[first], "fail", message="no route", code="unreachable"),
        ended(jobs[second], "fail", message="no such order", final=True),
    ) == {"done": 2, "stale": [], "locked": []}
    assert (await site.job(second))["status"] == "failed"
    [again] = await worker.claim(wait="30s")
    assert (again["id"], again["attempt"], again["begin"]) == (first, 2, True)
    assert again["fence"] > jobs[first]["fence"]
    assert await worker.said("begin", {"jobs": [of(again)]}) == {"begins": [first], "lost": [], "locked": []}
    assert await worker.results(ended(again, "fail", message="again")) == RECORDED
    seen = await site.job(first)
    assert (seen["status"], seen["error_message"]) == ("failed", "again")
    assert [one["error"] for one in seen["attempt_log"]] == ["unreachable: no route", "again"]


async def test_snoozed_and_released_attempts_do_not_count(site: RemoteSite) -> None:
    """The job is pending again, after the wait or at once, with the attempts of before."""
    first, second = await site.add(count=2, max_attempts=2)
    worker = await register(site.client)
    jobs = {job["id"]: job for job in await worker.claim()}
    await worker.results(ended(jobs[first], "snooze", wait="1h"), ended(jobs[second], "release", started=True))
    snoozed = await site.job(first)
    assert (snoozed["status"], snoozed["attempts"], snoozed["retry_at"] is not None) == ("pending", 0, True)
    [again] = await worker.claim(wait="30s")
    assert (again["id"], again["attempt"]) == (second, 1)


async def test_a_cancel_reaches_the_worker_with_its_heartbeat(site: RemoteSite) -> None:
    """The worker stops the handler and reports it; a result that it has nevertheless counts."""
    first, second = await site.add(count=2, max_attempts=2)
    worker = await register(site.client)
    jobs = {job["id"]: job for job in await worker.claim()}
    for job_id in (first, second):
        assert (await site.client.post(f"/v1/jobs/{job_id}/cancel")).json["outcome"] == "requested"
    beaten = await worker.said("heartbeat", {"held": [of(job) for job in jobs.values()]})
    assert {(one["id"], one["reason"]) for one in beaten["stop"]} == {(first, "cancelled"), (second, "cancelled")}
    assert (beaten["lease_ms"], beaten["drain"]) == (8000, False)
    await worker.results(ended(jobs[first], "cancelled"), ended(jobs[second]))
    assert [(await site.job(job_id))["status"] for job_id in (first, second)] == ["cancelled", "completed"]


async def test_an_attempt_beyond_its_timeout_is_ended_by_the_server(site: RemoteSite) -> None:
    """A heartbeat that names it fails it, whatever its client does later."""
    [job_id] = await site.add(max_attempts=2, timeout="1ms")
    worker = await register(site.client)
    [job] = await worker.claim()

    async def stop() -> Any:
        return (await worker.said("heartbeat", {"held": [of(job)]}))["stop"]

    assert await eventually_async(stop, what="the timeout") == [{**of(job), "reason": "timeout"}]
    assert (await site.job(job_id))["status"] == "pending"
    assert (await worker.results(ended(job)))["stale"] == [job_id]
    [again] = await worker.claim(wait="30s")
    assert again["attempt"] == 2


async def test_an_expired_job_is_not_given_out(site: RemoteSite) -> None:
    """It ends as cancelled, and the claim goes on."""
    [late] = await site.add()
    pool = site.workers.claims._pool
    await pool.execute(
        "UPDATE tickwright.scheduled_tasks SET expires_at = now() - interval '1 second' WHERE id = $1", late
    )
    [good] = await site.add()
    worker = await register(site.client)
    [job] = await worker.claim()
    assert job["id"] == good
    seen = await site.job(late)
    assert (seen["status"], seen["attempts"]) == ("cancelled", 0)


async def test_a_concurrency_holds_over_all_remote_workers(site: RemoteSite) -> None:
    """Places are counted by claims and freed by results, in whatever process; a wait ends when one is free."""
    await site.type("few", concurrency=3)
    await site.add("few", count=6)
    one, other = await register(site.client, "few"), await register(site.client, "few")
    held, also_held = await one.claim(most=2), await other.claim()
    assert (len(held), len(also_held)) == (2, 1)
    assert await one.claim() == []
    waiting = asyncio.create_task(one.claim(wait="60s"))
    await eventually_async(lambda: len(site.workers.claims._waiting) == 1)
    await other.results(ended(also_held[0]))
    assert len(await waiting) == 1
    await one.said("close", {})
    assert len(await other.claim(wait="30s")) == 3


async def test_a_rate_gives_each_job_its_start(site: RemoteSite) -> None:
    """Starts are half a second ahead at most, each at its distance from the one before."""
    await site.type("slow", rate_per_s=10)
    await site.add("slow", count=20)
    worker = await register(site.client, "slow")
    jobs = await worker.claim(most=20)
    starts = [job["start_in_ms"] for job in jobs]
    assert 1 <= len(jobs) <= 6
    assert starts == sorted(starts)
    ahead = [start for start in starts if start > 0]  # a slow machine is late for the first ones
    assert all(99 <= later - sooner <= 101 for sooner, later in pairwise(ahead))
    assert max(starts) <= 510


async def test_progress_is_seen_while_the_job_runs(site: RemoteSite) -> None:
    """Of an attempt that the session holds, and of no other."""
    [job_id] = await site.add()
    worker = await register(site.client)
    [job] = await worker.claim()
    items = [{**of(job), "progress": {"done": 0.5}}]
    assert await worker.said("progress", {"jobs": items}) == {"done": 1, "stale": []}
    assert (await site.job(job_id))["progress"] == {"done": 0.5}


async def test_a_drained_worker_gets_no_more_jobs(site: RemoteSite) -> None:
    """Its claims and heartbeats say so; what it holds may end."""
    await site.add(count=2)
    worker = await register(site.client)
    [job] = await worker.claim(most=1)
    listed = await site.node.installation.context.ports.get(Operations).workers()
    [view] = [one for one in listed if one.id == worker.id]
    assert (view.name, view.roles) == ("test:1", ["remote"])
    await site.workers.claims._pool.execute(
        "UPDATE tickwright.workers SET drain_requested_at = now() WHERE id = $1", worker.id
    )
    assert await worker.said("claim", worker.claim_body()) == {"jobs": [], "drain": True, "calls": []}
    assert (await worker.said("heartbeat", {}))["drain"]
    assert await worker.results(ended(job)) == RECORDED
    assert await worker.said("close", {}) == {"released": 0}


async def test_a_session_that_closes_releases_what_it_holds(site: RemoteSite) -> None:
    """No attempt is counted; the session is gone."""
    ids = await site.add(count=3, max_attempts=1)
    worker = await register(site.client)
    assert len(await worker.claim()) == 3
    assert await worker.said("close", {}) == {"released": 3}
    (await worker.call("heartbeat", {})).says(409, "session_lost")
    assert [(await site.job(job_id))["attempts"] for job_id in ids] == [0, 0, 0]


async def test_explain_says_which_remote_worker_is_missing(site: RemoteSite) -> None:
    """Until one of the pool is alive that has the type."""
    [job_id] = await site.add()
    said = (await site.client.get(f"/v1/jobs/{job_id}/explain")).json
    text = "it waits for a remote worker of pool shop with the type work; none is alive"
    assert (said["summary"], said["reasons"][0]["code"]) == (text, "no_remote_worker")
    await register(site.client)
    said = (await site.client.get(f"/v1/jobs/{job_id}/explain")).json
    assert said["reasons"][0]["code"] == "due"


async def test_a_stopping_api_answers_those_that_wait(site: RemoteSite) -> None:
    """They claim again elsewhere; no request is cut off."""
    worker = await register(site.client)
    waiting = asyncio.create_task(worker.said("claim", worker.claim_body(wait="60s")))
    await waits(site)
    site.node.supervisor.request_stop()
    assert await waiting == {"jobs": [], "drain": False, "calls": []}
