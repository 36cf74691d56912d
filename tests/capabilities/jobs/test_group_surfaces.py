"""Groups as users and operators see them: requests, searches, explanations, lists, drains, remote workers."""

from pathlib import Path
from typing import Any, cast

import pytest

from kit.engine import connect, insert, policy, running_engine
from kit.remote import ended, register, remote_site
from kit.waiting import eventually_async
from tickwright import Job, Rejected, Tickwright
from tickwright.testing.opening import OpenApp


@pytest.mark.parametrize("group", ["", "x" * 256, "\u00e9" * 128, "x" * 10_000])
async def test_rest_refuses_a_group_that_no_job_may_have(database_url: str, tmp_path: Path, group: str) -> None:
    """With one stable code, whatever is wrong with it."""
    async with remote_site(database_url, tmp_path) as site:
        await site.type()
        answer = await site.client.post("/v1/jobs", {"task_type": "work", "group": group})
        answer.says(422, "invalid_group")


async def test_a_group_that_is_no_text_is_refused(database_url: str) -> None:
    """An id of a customer is often a number."""
    app, number = Tickwright(database_url), cast("str", 7)

    @app.job("post")
    async def post(job: Job, n: int) -> None: ...

    async with app:
        for schedule in (
            lambda: app.schedule("post", {"n": 1}, group=number),
            lambda: post.options(group=number).schedule(n=1),
        ):
            with pytest.raises(Rejected, match="a text of 1 to 255 bytes") as refused:
                await schedule()
            assert refused.value.code == "invalid_group"


async def test_remote_workers_get_one_job_of_a_group_at_a_time(database_url: str, tmp_path: Path) -> None:
    """The end of it frees the place for the next claim, of any session."""
    async with remote_site(database_url, tmp_path) as site:
        await site.type(group_limit=1)
        first, second = await site.add(count=2, group="customer-7")
        [other] = await site.add(group="customer-8")
        worker, another = await register(site.client), await register(site.client)
        jobs = await worker.claim()
        assert {job["id"] for job in jobs} == {first, other}
        assert await another.claim() == []
        explained = (await site.client.get(f"/v1/jobs/{second}/explain")).json
        assert "group_full" in [reason["code"] for reason in explained["reasons"]]
        await worker.results(*[ended(job) for job in jobs])
        [job] = await another.claim()
        assert job["id"] == second


async def test_a_remote_worker_gets_other_jobs_of_a_type_that_is_locked(database_url: str, tmp_path: Path) -> None:
    """A transaction that has changed the type holds up claims of its groups only."""
    async with remote_site(database_url, tmp_path) as site:
        await site.type(group_limit=1)
        [grouped], [plain] = await site.add(group="g"), await site.add()
        worker, connection = await register(site.client), await connect(database_url)
        try:
            async with connection.transaction():
                await connection.execute("UPDATE tickwright.task_types SET max_attempts = 7 WHERE name = 'work'")
                assert [job["id"] for job in await worker.claim()] == [plain]
            assert [job["id"] for job in await worker.claim()] == [grouped]
        finally:
            await connection.close()


async def test_a_stopped_group_is_listed_explained_and_released(database_url: str, tmp_path: Path) -> None:
    """Its failed job stays a dead letter; the jobs behind it run after the release."""
    async with remote_site(database_url, tmp_path) as site:
        await site.type(group_order="stop", max_attempts=1)
        first, second = await site.add(count=2, group="ledger")
        [running] = await site.add(group="calm")
        worker = await register(site.client)
        jobs = {job["id"]: job for job in await worker.claim()}
        assert set(jobs) == {first, running}
        await worker.call("begin", {"attempts": [{"id": first, "fence": jobs[first]["fence"]}]})
        await worker.results(ended(jobs[first], "fail", message="no", final=True))
        assert await worker.claim() == []
        stopped = (await site.client.get("/v1/task-types/work/groups?stopped=true")).json["items"]
        assert [(group["group"], group["waiting"], group["stopped_by"]) for group in stopped] == [("ledger", 1, first)]
        every = (await site.client.get("/v1/task-types/work/groups?limit=1")).json
        assert [group["group"] for group in every["items"]] == ["calm"]
        rest = (await site.client.get(f"/v1/task-types/work/groups?limit=1&cursor={every['next']}")).json
        assert [group["group"] for group in rest["items"]] == ["ledger"]
        explained = (await site.client.get(f"/v1/jobs/{second}/explain")).json
        assert explained["reasons"][0]["code"] == "group_stopped"
        path = "/v1/task-types/work/release-group"
        assert (await site.client.post(path, {"group": "ledger"})).json["passed"] == first
        (await site.client.post(path, {"group": "ledger"})).says(409, "group_not_stopped")
        [job] = await worker.claim()
        assert job["id"] == second
        assert (await site.job(first))["status"] == "failed"


async def test_the_retry_of_a_failed_job_lets_its_group_go_on_with_it(database_url: str, tmp_path: Path) -> None:
    """It has the lowest id, so that it runs before the others."""
    async with remote_site(database_url, tmp_path) as site:
        await site.type(group_order="stop", max_attempts=1)
        ids = await site.add(count=3, group="ledger")
        worker = await register(site.client)
        [job] = await worker.claim()
        await worker.results(ended(job, "fail", message="no", final=True))
        assert await worker.claim() == []
        await site.client.post(f"/v1/jobs/{ids[0]}/retry")
        for expected in ids:
            [job] = await worker.claim()
            assert job["id"] == expected
            await worker.results(ended(job))


async def test_jobs_are_found_by_their_group(database_url: str, tmp_path: Path) -> None:
    """Live or finished; the filter is also that of bulk actions."""
    async with remote_site(database_url, tmp_path) as site:
        await site.type()
        [wanted] = await site.add(group="a", delay="1h")
        await site.add(group="b", delay="1h")
        await site.add(delay="1h")
        found = (await site.client.get("/v1/jobs?group=a")).json["items"]
        assert [(job["id"], job["group"]) for job in found] == [(wanted, "a")]
        counts = (await site.client.get("/v1/jobs:counts?group=a")).json["counts"]
        assert counts["pending"] == 1
        moved = await site.client.post("/v1/jobs:reschedule", {"group": "a", "shift": "1h"})
        assert moved.json["ids"] == [wanted]
        job = await site.job(wanted)
        assert job["due_at"] == job["execute_at"]
        assert job["retry_at"] is None
        await site.client.post(f"/v1/jobs/{wanted}/run-now")
        worker = await register(site.client)
        assert [job["id"] for job in await worker.claim()] == [wanted]


async def test_a_job_that_waits_behind_others_of_its_group_says_so(database_url: str, tmp_path: Path) -> None:
    """In an ordered group by the id of the first one, at a rate by the wait."""
    async with remote_site(database_url, tmp_path) as site:
        await site.type("ordered", group_order="skip")
        await site.type("rated", group_rate_per_s=0.1)
        first, second = await site.add("ordered", count=2, group="g")
        one, two = await site.add("rated", count=2, group="g")
        explained = (await site.client.get(f"/v1/jobs/{second}/explain")).json["reasons"]
        assert f"job {first} is before it in its group g" in [reason["text"] for reason in explained]
        worker = await register(site.client, "rated")
        assert [job["id"] for job in await worker.claim()] == [one]
        explained = (await site.client.get(f"/v1/jobs/{two}/explain")).json["reasons"]
        assert "group_rate_limited" in [reason["code"] for reason in explained]


async def test_a_drain_runs_jobs_with_groups(tickwright_app: OpenApp) -> None:
    """Those of an ordered group in their order; a retry keeps the others waiting."""
    app = Tickwright()
    calls: list[Any] = []

    @app.job("post", group_order="skip", retry={"base": "0s"})
    async def post(job: Job, n: int) -> None:
        calls.append((job.group, n))
        if n == 0 and job.attempt == 1:
            raise ValueError

    async with tickwright_app(app, isolated=False) as opened:
        for n in range(3):
            await post.options(group="a").schedule(n=n)
        drained = await opened.drain(until="1m", raises=False)
        assert drained.counts == {"retried": 1, "completed": 3}
        assert [n for _, n in calls] == [0, 0, 1, 2]


async def test_a_type_gets_a_limit_for_its_groups_at_run_time(database_url: str) -> None:
    """Jobs that wait already follow it."""
    running = most = done = 0

    async def mail(_job: Job) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        running -= 1
        done += 1

    async with running_engine(database_url, {"mail": mail}, kinds={"mail": policy("mail")}) as engine:
        await engine.pool.execute("UPDATE tickwright.task_types SET paused_at = now()")
        for _ in range(20):
            await insert(engine.pool, "mail", group_key="g")
        await engine.pool.execute("UPDATE tickwright.task_types SET paused_at = NULL, group_limit = 1")
        await eventually_async(lambda: done == 20, what="all have run")
    assert most == 1
