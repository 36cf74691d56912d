"""Task types as the dashboard edits and shows them: partial changes, with a version, and figures of real workers."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kit.api import RunningApi, running_api
from kit.engine import insert, policy, running_engine
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.admin.figures import FIGURES_COUNT_MAX, TypeFigureReader
from tickwright.capabilities.jobs.metrics import WorkerCounters
from tickwright.capabilities.jobs.model import Job


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[RunningApi]:
    """A running API with the type ``noop``."""
    async with running_api(database_url) as running:
        yield running


async def test_a_change_sets_only_the_fields_that_it_names(api: RunningApi) -> None:
    """Null removes a limit, a missing field stays, and an unknown field is an error."""
    whole = {"target": "python:noop", "timeout": "7s", "concurrency": 4, "rate_per_s": 2.5, "final_statuses": [404]}
    before = (await api.admin.send("PUT", "/v1/task-types/noop", whole)).json["task_type"]
    answer = await api.admin.send("PATCH", "/v1/task-types/noop", {"concurrency": None, "max_attempts": 9})
    after = answer.json["task_type"]
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"concurrency", "max_attempts", "version", "updated_at"}
    assert (after["concurrency"], after["max_attempts"], after["version"]) == (None, 9, before["version"] + 1)
    (await api.admin.send("PATCH", "/v1/task-types/noop", {"paused_at": None})).says(400, "unknown_field")
    (await api.admin.send("PATCH", "/v1/task-types/nobody", {"max_attempts": 2})).says(404, "task_type_not_found")
    (await api.admin.send("PATCH", "/v1/task-types/noop", {"retry_base": "2h"})).says(422, "invalid_retry")
    assert (await api.admin.get("/v1/task-types/noop")).json == after


async def test_an_edit_of_an_older_version_changes_nothing(api: RunningApi) -> None:
    """Two users with one form: the second gets an error with the present version; also when both send at once."""
    version = (await api.admin.get("/v1/task-types/noop")).json["version"]
    edits = [
        api.admin.send("PATCH", "/v1/task-types/noop", {"version": version, "max_attempts": number})
        for number in range(2, 10)
    ]
    answers = await asyncio.gather(*edits)
    assert sorted(answer.status for answer in answers) == [200] + [409] * 7
    refused = next(answer for answer in answers if answer.status == 409)
    assert (refused.json["code"], refused.json["version"]) == ("version_conflict", version + 1)
    done = next(answer for answer in answers if answer.status == 200).json["task_type"]
    assert (await api.admin.get("/v1/task-types/noop")).json == done


async def test_a_new_signed_target_gets_its_secret_once(api: RunningApi) -> None:
    """As with a PUT; a change that keeps the target does not check again whether it is allowed."""
    change = {"target": "https://example.org/hook"}
    assert (await api.admin.send("PATCH", "/v1/task-types/noop", change)).json["secret"].startswith("whsec_")
    assert "secret" not in {
        name
        for name, value in (await api.admin.send("PATCH", "/v1/task-types/noop", {"timeout": "9s"})).json.items()
        if value is not None
    }


async def test_figures_show_waiting_jobs_and_what_workers_did(database_url: str) -> None:
    """Counts from the tables, rates and failures from the heartbeats; unknown before a worker's second heartbeat."""

    async def flaky(job: Job) -> None:
        if job.id % 2:
            raise ValueError("no luck")

    kind = policy("flaky", max_attempts=1)
    async with running_engine(database_url, {"flaky": flaky}, kinds={"flaky": kind}) as engine:
        counters = WorkerCounters(engine.worker)
        engine.session.facts["counters"] = lambda: {"jobs": counters.jobs(), "types": counters.types()}
        types = TypeFigureReader(engine.pool)
        for _ in range(3):
            await insert(engine.pool, "waits", at="now() + interval '1 hour'")
        await insert(engine.pool, "waits", at="now() - interval '1 minute'")
        first = {one.name: one for one in (await types.figures()).items}
        assert (first["waits"].due, first["waits"].upcoming, first["waits"].processing) == (1, 3, 0)
        assert first["waits"].oldest_due_s >= 60
        assert (first["waits"].started_per_s, first["waits"].failure_share, first["waits"].lateness) == (
            None,
            None,
            None,
        )

        async def known() -> Any:
            await engine.insert("flaky", max_attempts=1)
            now = {one.name: one for one in (await types.figures()).items}.get("flaky")
            return now if now is not None and now.failure_share and now.lateness is not None else None

        seen = await eventually_async(known, 30)
        assert seen.started_per_s > 0
        assert 0.2 < seen.failure_share < 0.8
        assert seen.lateness.starts > 0
        assert seen.finished_per_s.failed > 0


async def test_figures_are_queried_once_a_second_for_any_number_of_requests(api: RunningApi) -> None:
    """A dashboard in every browser costs as much as one."""
    types = TypeFigureReader(api.pool)
    answers = await asyncio.gather(*(types.figures() for _ in range(50)))
    assert all(answer is answers[0] for answer in answers)
    assert answers[0].capped_at == FIGURES_COUNT_MAX
    assert (await api.viewer.get("/v1/task-types:figures")).json == {
        "items": [],
        "capped_at": FIGURES_COUNT_MAX,
        "partial": False,
    }
