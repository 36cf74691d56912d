"""Waits and instants out of range: those that a handler requests, and those that a row has already."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from kit.api import running_api
from kit.engine import Engine, policy, running_engine
from kit.waiting import eventually_async
from tickwright import Job, Retry, Snooze
from tickwright.capabilities.jobs.model import Errored, Snoozed, TaskType
from tickwright.ports.broker import Message, Outcome, Refused
from tickwright.ports.ids import monotonic


async def test_a_wait_is_from_zero_to_ten_years(database_url: str) -> None:
    """A wait below zero ends at once; a longer one fails its attempt, raised or returned."""
    waits = {"past": timedelta(days=-365 * 70), "far": timedelta(days=365 * 9000), "most": timedelta.max}
    calls = dict.fromkeys([*waits, "returned"], 0)

    async def handler(job: Job) -> None:
        calls[job.type] += 1
        if calls[job.type] == 1:
            raise Snooze(waits[job.type])

    async def returned(_job: Job) -> Snoozed:
        return Snoozed(timedelta.max)

    handlers = {name: returned if name == "returned" else handler for name in calls}
    async with running_engine(database_url, handlers, kinds={name: policy(name) for name in calls}) as engine:
        rows = {name: await engine.until(await engine.insert(name), "completed", "failed") for name in calls}
    ended = {name: (row["status"], row["attempts"]) for name, row in rows.items()}
    assert ended == {
        "past": ("completed", 1),
        "far": ("completed", 2),
        "most": ("completed", 2),
        "returned": ("failed", 1),
    }
    assert "a wait has 3660 days at the most" in rows["far"]["attempt_errors"]
    assert "a wait has 3660 days at the most" in rows["returned"]["error_message"]


@pytest.mark.parametrize("raised", [True, False])
async def test_a_handler_sets_the_wait_of_a_failed_attempt_up_to_ten_years(database_url: str, raised: bool) -> None:
    """``Retry(after=…)`` and a returned failure; the bound of an hour applies to answers of receivers."""
    waits: dict[str, Any] = {
        "hours": timedelta(hours=30),
        "text": "30h",
        "past": timedelta(days=-365 * 70),
        "most": timedelta.max,
    }

    async def handler(job: Job) -> Errored | None:
        if job.attempt > 1:
            return None
        if raised:
            raise Retry("later", after=waits[job.type])
        return Errored("later", "later", retry_after=waits[job.type])

    async with running_engine(
        database_url, dict.fromkeys(waits, handler), kinds={n: policy(n) for n in waits}
    ) as engine:
        waits_long, text, past, most = [await engine.insert(name) for name in waits]
        sql = "SELECT date_part('epoch', retry_at - now()) FROM ONLY tickwright.scheduled_tasks WHERE id = $1"
        for job in (waits_long, text):
            wait_s = await eventually_async(lambda job=job: engine.pool.fetchval(sql, job), what="it waits")  # type: ignore[misc]
            assert wait_s > 29 * 3600
        assert (await engine.until(past, "completed"))["attempts"] == 2
        row = await engine.until(most, "completed", "failed")
        assert "a wait has 3660 days at the most" in (row["attempt_errors"] or "") + (row["error_message"] or "")


async def test_a_receivers_retry_after_is_bounded_by_an_hour(database_url: str) -> None:
    """The same for the answer of any broker."""

    class Asks:
        schemes = frozenset({"asks"})

        def check(self, destination: str) -> None:
            """Take every destination."""

        async def publish(self, _message: Message) -> Outcome:
            return Refused("busy", "Busy.", retry_after=timedelta(days=30))

        async def publish_many(self, messages: Sequence[Message]) -> list[Outcome]:
            return [await self.publish(message) for message in messages]

        async def ready(self) -> bool:
            return True

        async def aclose(self) -> None:
            """Nothing to close."""

    kinds = {"t": TaskType("t", "asks:x")}
    async with running_engine(database_url, kinds=kinds, brokers={"asks": Asks()}) as engine:
        job_id = await engine.insert("t")
        sql = "SELECT date_part('epoch', retry_at - now()) FROM ONLY tickwright.scheduled_tasks WHERE id = $1"
        wait_s = await eventually_async(lambda: engine.pool.fetchval(sql, job_id), what="it waits")
        assert 3000 < wait_s <= 3600


async def test_a_due_instant_out_of_range_is_shown_as_the_nearest_valid_one(database_url: str) -> None:
    """A row of an earlier release may have one: it is listed, explained, cancelled and moved like any other."""

    async def handler(_job: Job) -> None:
        """Do nothing."""

    async with running_api(database_url) as api, running_engine(database_url, {"t": handler}) as engine:
        far = [await engine.insert("t", at="now() + interval '1 day'") for _ in range(2)]
        await engine.pool.execute(
            "UPDATE tickwright.scheduled_tasks SET retry_at = '11020-01-01Z' WHERE id = ANY ($1)", far
        )
        for path in ("/v1/jobs", f"/v1/jobs/{far[0]}", f"/v1/jobs/{far[0]}/explain", "/v1/overview"):
            assert (await api.admin.get(path)).status == 200, path
        assert (await api.admin.get(f"/v1/jobs/{far[0]}")).json["due_at"].startswith("9998-12-31")
        assert (await api.admin.send("POST", f"/v1/jobs/{far[0]}/cancel", {})).status == 200
        assert (await api.admin.send("POST", f"/v1/jobs/{far[1]}/run-now", {})).status == 200
        await engine.until(far[1], "completed")
        past = await engine.insert("t", at="now() + interval '1 day'")
        await engine.pool.execute("UPDATE tickwright.scheduled_tasks SET retry_at = '1956-01-01Z' WHERE id = $1", past)
        await engine.until(past, "completed")


async def test_a_rate_limited_type_runs_on_when_the_databases_clock_is_set_back(database_url: str) -> None:
    """Instants assigned far ahead of now are dropped: the type would wait until then."""

    async def handler(_job: Job) -> None:
        """Do nothing."""

    async with running_engine(database_url, {"t": handler}, kinds={"t": policy("t", rate_per_s=10.0)}) as engine:
        await engine.until(await engine.insert("t"), "completed")
        await engine.pool.execute("UPDATE tickwright.type_rates SET next_free_at = next_free_at + interval '1 day'")
        await engine.until(await engine.insert("t"), "completed")


async def set_rate(engine: Engine, rate_per_s: float | None) -> None:
    """Change the rate of the type ``t``, and wait until the worker has read it."""
    await engine.pool.execute("UPDATE tickwright.task_types SET rate_per_s = $1 WHERE name = 't'", rate_per_s)
    await eventually_async(
        lambda: engine.worker.types()["t"].task_type.rate_per_s == rate_per_s, what="the rate is read"
    )


@pytest.mark.parametrize("rate_per_s", [10.0, None])
async def test_a_raised_rate_holds_no_waiting_job_back(database_url: str, rate_per_s: float | None) -> None:
    """At the former rate the next start was hours ahead, for claims and for starts."""

    async def handler(_job: Job) -> None:
        """Do nothing."""

    async with running_engine(database_url, {"t": handler}, kinds={"t": policy("t", rate_per_s=0.0001)}) as engine:
        await engine.until(await engine.insert("t"), "completed")
        waits, entry = await engine.insert("t"), engine.worker.types()["t"]
        await eventually_async(lambda: entry.rate_limited_until_s > monotonic() + 1000, what="the job waits for hours")
        await set_rate(engine, rate_per_s)
        await engine.until(waits, "completed")


async def test_a_raised_rate_holds_no_claimed_job_back(database_url: str) -> None:
    """Jobs were claimed at a high rate, and start hours apart since it was lowered."""
    lowered, ran = asyncio.Event(), list[int]()

    async def handler(job: Job) -> None:
        ran.append(job.id)
        if len(ran) == 1:
            await set_rate(engine, 0.0001)
            lowered.set()

    async with running_engine(database_url, {"t": handler}, kinds={"t": policy("t", rate_per_s=40.0)}) as engine:
        for _ in range(20):
            await engine.insert("t")
        await lowered.wait()
        await set_rate(engine, 40.0)
        await eventually_async(lambda: len(ran) == 20, 30, what="all have run")
