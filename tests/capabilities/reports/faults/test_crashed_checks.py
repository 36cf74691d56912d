"""When the check for lost and cancelled claims crashes, its service crashes, too; its next run has the held claims."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from kit.reports import Process, ReportWorld, plan_of
from kit.waiting import eventually_async
from tickwright.capabilities.reports.handlers import ReportRequest
from tickwright.capabilities.reports.merge.supervisor import ReportSupervisor
from tickwright.capabilities.reports.parts.listeners import PartWorker
from tickwright.capabilities.reports.parts.store import PartRows
from tickwright.capabilities.reports.requests.store import RecordsStore
from tickwright.engine import claimed_work as claiming
from tickwright.engine.tasks import TaskGroup

ENDLESS = "SELECT count(*) AS n FROM range(100000000000) AS a, range(1000) AS b, a AS c"
CRASHES = [ValueError("a bug"), asyncio.CancelledError("a library's own")]


def crashes_once(monkeypatch: pytest.MonkeyPatch, store: type[Any], name: str, error: BaseException) -> asyncio.Event:
    """Make a method raise at its first call, which sets the event."""
    real, crashed = getattr(store, name), asyncio.Event()

    async def crash(self: Any, *given: Any) -> Any:
        if not crashed.is_set():
            crashed.set()
            raise error
        return await real(self, *given)

    monkeypatch.setattr(store, name, crash)
    return crashed


async def runs_again(process: Process, service: PartWorker | ReportSupervisor) -> None:
    """Wait until the service crashes, with one claim held, and start it again, as a process does."""
    number = process.services.index(service)
    await asyncio.wait([process.tasks[number]], timeout=20)
    if not process.tasks[number].done():
        await service.stop()
        pytest.fail("its service goes on without the check")
    assert isinstance(process.tasks[number].exception(), BaseExceptionGroup)
    assert service.running == 1
    process.tasks[number] = asyncio.create_task(service.run())


async def check_a_cancelled_part_ends(world: ReportWorld, crashed: asyncio.Event) -> None:
    """CLW-5: it runs on after a crash of the check, and ends when its report is cancelled."""
    attempts = []

    async def waits(_request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
        attempts.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            attempts.append("ended")
        yield {"id": 1}

    async with world.process({"a": waits}) as process:
        report = await world.request(plan_of("a", deadline_s=3600), {"n": 1})
        await eventually_async(crashed.is_set, 60, what="the check crashes")
        await runs_again(process, process.listener)
        assert attempts == ["begun"]
        assert await world.cancel(report)
        await eventually_async(lambda: process.listener.running == 0, 60, what="its part ends")
    assert attempts == ["begun", "ended"]


async def check_a_cancelled_step_ends(world: ReportWorld, crashed: asyncio.Event) -> None:
    """RSV-4: it runs on after a crash of the check, and ends when its report is cancelled."""

    async def rows(_request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
        yield {"id": 1}

    async with world.process({"a": rows}) as process:
        report = await world.request(plan_of("a", merge=ENDLESS, deadline_s=3600), {"n": 1})
        await eventually_async(crashed.is_set, 60, what="the check crashes")
        await runs_again(process, process.supervisor)
        assert await world.cancel(report)
        await eventually_async(lambda: process.supervisor.running == 0, 60, what="its step ends")


@pytest.mark.matrix
@pytest.mark.parametrize("error", CRASHES, ids=["error", "cancellation"])
async def test_a_cancelled_part_ends_after_a_crash_of_the_check(
    alone: ReportWorld, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """CLW-5: an error and a library's own cancellation are crashes."""
    await check_a_cancelled_part_ends(alone, crashes_once(monkeypatch, PartRows, "confirm", error))


@pytest.mark.matrix
@pytest.mark.parametrize("error", CRASHES, ids=["error", "cancellation"])
async def test_a_cancelled_step_ends_after_a_crash_of_the_check(
    alone: ReportWorld, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """RSV-4: the same for steps of supervisors."""
    await check_a_cancelled_step_ends(alone, crashes_once(monkeypatch, RecordsStore, "confirm", error))


# ---------------------------------------------------------------------- without the guard


class Detached(TaskGroup):
    """A group that does not notice failures of its tasks."""

    def create_task(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Start a task outside the group."""
        return asyncio.create_task(work)


async def test_the_suite_notices_a_check_of_parts_that_crashes_alone(
    alone: ReportWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant runs the check as a task of its own."""
    monkeypatch.setattr(claiming, "TaskGroup", Detached)
    with pytest.raises(pytest.fail.Exception, match="goes on without the check"):
        await check_a_cancelled_part_ends(alone, crashes_once(monkeypatch, PartRows, "confirm", CRASHES[0]))


async def test_the_suite_notices_a_check_of_steps_that_crashes_alone(
    alone: ReportWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant runs the check as a task of its own."""
    monkeypatch.setattr(claiming, "TaskGroup", Detached)
    with pytest.raises(pytest.fail.Exception, match="goes on without the check"):
        await check_a_cancelled_step_ends(alone, crashes_once(monkeypatch, RecordsStore, "confirm", CRASHES[0]))
