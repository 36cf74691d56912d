"""An end that is awaited is written at once, also without a value: other ends gather for a while.

In these tests they gather for an hour, so that an end that waits with them does not arrive.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kit.awaiting import NEVER_S, arrives, begin_wait, open_results, stop_polling
from kit.engine import Engine, running_engine
from kit.mutants import mutate
from kit.waiting import eventually_async
from tickwright import Fail, Job
from tickwright.capabilities.jobs import results as results_module
from tickwright.capabilities.jobs.results import JobResults
from tickwright.capabilities.jobs.worker import claims as claims_module
from tickwright.capabilities.jobs.worker import result_writer
from tickwright.capabilities.jobs.worker import worker as worker_module
from tickwright.capabilities.jobs.worker.result_writer import OutcomeRecorder
from tickwright.capabilities.jobs.worker.worker import JobWorker

LATER = "now() + interval '1 day'"
DUE = "UPDATE tickwright.scheduled_tasks SET execute_at = now() WHERE id = $1"
CANCEL = "UPDATE tickwright.scheduled_tasks SET status = 'cancelled' WHERE id = $1"


@pytest.fixture(autouse=True)
def nothing_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiter is woken by a notification only, and results gather for an hour."""
    stop_polling(monkeypatch)
    monkeypatch.setattr(result_writer, "FLUSH_GAP_S", NEVER_S)
    monkeypatch.setattr(worker_module, "CHECK_AFTER_S", NEVER_S)  # heartbeats check no job


@asynccontextmanager
async def gathering(url: str) -> AsyncIterator[tuple[Engine, JobResults, asyncio.Event]]:
    """Run a worker that has just written a result, so that the next ones gather."""
    may_end = asyncio.Event()

    async def handler(job: Job) -> None:
        match job.payload.get("do"):
            case "wait":
                await may_end.wait()
            case "fail":
                raise Fail("no")

    async with running_engine(url, {"h": handler}) as engine, open_results(url) as results:
        await engine.until(await engine.insert("h"), "completed")
        try:
            yield engine, results, may_end
        finally:
            may_end.set()
            result_writer.FLUSH_GAP_S = 0.0  # the fixture restores it
            engine.worker.result_writer._full.set()


async def check_awaited_before_the_claim(url: str, do: str = "") -> None:
    """The claim says that the job is awaited."""
    async with gathering(url) as (engine, results, _):
        job_id = await engine.insert("h", at=LATER, payload={"do": do})
        waiting = await begin_wait(results, engine.pool, job_id)
        await engine.pool.execute(DUE, job_id)
        assert (await arrives(waiting)).status == ("failed" if do else "completed")


async def check_awaited_while_it_runs(url: str, *, cancel: bool = False) -> None:
    """The mark notifies the worker."""
    async with gathering(url) as (engine, results, may_end):
        job_id = await engine.insert("h", payload={"do": "wait"})
        await engine.until(job_id, "processing")
        await eventually_async(lambda: engine.worker.runner.busy == 1, what="it runs")
        waiting = await begin_wait(results, engine.pool, job_id)
        [job] = engine.worker.runner.running()
        if cancel:
            await engine.pool.execute(CANCEL, job_id)
        else:
            known = engine.worker.outcomes._awaited
            await eventually_async(lambda: job in known, what="RES-4: the worker knows")
            may_end.set()
        assert (await arrives(waiting)).status == ("cancelled" if cancel else "completed")


async def check_awaited_while_its_end_is_queued(url: str) -> None:
    """The mark comes between the end of the handler and the write."""
    async with gathering(url) as (engine, results, _):
        job_id = await engine.insert("h")
        await eventually_async(lambda: engine.worker.result_writer.backlog == 1, what="its end is queued")
        assert (await arrives(results.wait(job_id))).status == "completed"


@pytest.mark.parametrize("do", ["", "fail"])
async def test_the_end_of_a_job_that_was_awaited_before_its_claim_is_written_at_once(
    database_url: str, do: str
) -> None:
    """RES-4."""
    await check_awaited_before_the_claim(database_url, do)


@pytest.mark.parametrize("cancel", [False, True])
async def test_the_end_of_a_job_that_is_awaited_while_it_runs_is_written_at_once(
    database_url: str, *, cancel: bool
) -> None:
    """RES-4."""
    await check_awaited_while_it_runs(database_url, cancel=cancel)


async def test_an_end_that_is_queued_when_the_wait_begins_is_written_at_once(database_url: str) -> None:
    """RES-4."""
    await check_awaited_while_its_end_is_queued(database_url)


async def test_a_worker_without_notifications_learns_of_waits_by_its_checks(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat, or the check each second, reads whether a running job is awaited."""
    monkeypatch.setattr(worker_module, "CHECK_AFTER_S", 0.0)
    monkeypatch.setattr(result_writer, "FLUSH_GAP_S", 0.0)

    async def handler(_job: Job) -> None:
        await asyncio.Event().wait()

    async with running_engine(database_url, {"h": handler}, direct=False) as engine:
        job_id = await engine.insert("h")
        await eventually_async(lambda: engine.worker.runner.busy == 1, what="it runs")
        await engine.pool.execute("UPDATE tickwright.scheduled_tasks SET awaited = true WHERE id = $1", job_id)
        [job] = engine.worker.runner.running()
        await eventually_async(lambda: job in engine.worker.outcomes._awaited, what="the worker knows")


async def test_a_job_with_tags_is_not_awaited_for_that(database_url: str) -> None:
    """Its details say no."""
    seen: list[bool] = []

    async def handler(job: Job) -> None:
        seen.append(job in engine.worker.outcomes._awaited or job.tags != ["a"])

    async with running_engine(database_url, {"h": handler}) as engine:
        await engine.insert("h", tags=["a"])
        await eventually_async(lambda: seen, what="it ran")
        result_writer.FLUSH_GAP_S = 0.0  # the fixture restores it
        engine.worker.result_writer._full.set()
    assert seen == [False]


def _claims_without_the_flag(patch: pytest.MonkeyPatch) -> None:
    claim = claims_module._CLAIMS["claim"]
    weak = claim.replace("OR t.awaited\n", "\n")
    assert weak != claim
    patch.setattr(claims_module, "_CLAIMS", {**claims_module._CLAIMS, "claim": weak})


def _marks_without_a_notification(patch: pytest.MonkeyPatch) -> None:
    mark = results_module._SQL["mark"]
    weak = mark.replace("WHERE status = 'processing'\n", "WHERE false\n")
    assert weak != mark
    patch.setattr(results_module, "_SQL", {**results_module._SQL, "mark": weak})


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Callable[[str], Any]]] = {
    "gathers": (
        lambda patch: mutate(patch, OutcomeRecorder._note, "self._writer.write_soon()", "pass"),
        check_awaited_before_the_claim,
    ),
    "claims": (_claims_without_the_flag, check_awaited_before_the_claim),
    "marks": (_marks_without_a_notification, check_awaited_while_it_runs),
    "queued": (
        lambda patch: mutate(patch, JobWorker._note_awaited, "self.result_writer.write_soon()", "pass"),
        check_awaited_while_its_end_is_queued,
    ),
}


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", [*MUTANTS])
async def test_the_suite_notices_ends_that_gather(
    database_url: str, monkeypatch: pytest.MonkeyPatch, mutant: str
) -> None:
    """Mutants: a waiter's job is one like the others."""
    weaken, check = MUTANTS[mutant]
    weaken(monkeypatch)
    with pytest.raises(AssertionError, match="RES-"):
        await check(database_url)
