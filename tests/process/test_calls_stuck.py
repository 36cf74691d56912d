"""Handlers' threads and listeners' calls that do not return after their cancellation are counted and raise alerts."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from pydantic import SecretStr

from kit.reports import ReportWorld, plan_of
from kit.waiting import eventually_async
from tickwright import Job, ReportRequest
from tickwright.app.declarations import Declarations
from tickwright.capabilities.reports.plan import Listener
from tickwright.capabilities.reports.requests.views import ReportRequestBody
from tickwright.capabilities.reports.service import ReportsService
from tickwright.plugin.settings import Bind, Settings
from tickwright.ports.caller import Caller, Role
from tickwright.process.node import open_node

ME = Caller("me", Role.OPERATOR)


async def deaf(event: asyncio.Event) -> None:
    """Wait for ``event`` and for nothing else."""
    while not event.is_set():
        try:
            await event.wait()
        except asyncio.CancelledError:
            continue


@pytest.mark.matrix
@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_a_call_that_swallows_its_cancellation_counts_as_stuck_until_it_returns(
    reports: ReportWorld, how: str
) -> None:
    """After its own timeout or the cancellation of its report; a call that is only slow is not stuck."""
    release, patient = asyncio.Event(), asyncio.Event()

    async def hangs(_: ReportRequest) -> AsyncIterator[dict[str, Any]]:
        await deaf(release)
        yield {"id": 1}

    async def waits(_: ReportRequest) -> AsyncIterator[dict[str, Any]]:
        await patient.wait()
        yield {"id": 1}

    timeout_ms = 100 if how == "timeout" else 60_000
    async with reports.process({"hangs": hangs, "waits": waits}) as process:
        try:
            slow = await reports.request(plan_of("waits"), {"n": 1})
            plan = plan_of(Listener(name="hangs", kind="function", timeout_ms=timeout_ms))
            report = await reports.request(plan, {"n": 2})
            await eventually_async(lambda: process.listener.running == 2, what="both run")
            if how == "cancel":
                assert process.listener.stuck == 0
                assert await reports.cancel(report)
            await eventually_async(lambda: process.listener.stuck == 1, what="it is stuck")
            assert process.listener.running == 2
        finally:
            release.set()
        await eventually_async(lambda: process.listener.running == 1, what="it has returned")
        assert process.listener.stuck == 0
        patient.set()
        await reports.finished(slow)


@pytest.mark.storm
async def test_threads_and_calls_that_do_not_return_raise_alerts(database_url: str, tmp_path: Path) -> None:
    """One alert for each with the process's name, and its metrics; both clear when the calls have returned."""
    free, released = threading.Event(), asyncio.Event()
    program = Declarations()

    @program.job("blocks", timeout="100ms")
    def blocks(_: Job) -> None:
        free.wait(60)

    @program.listener("hangs", timeout="100ms")
    async def hangs(_: ReportRequest) -> AsyncIterator[dict[str, Any]]:
        await deaf(released)
        yield {"id": 1}

    program.report("hanging", listeners=["hangs"])(lambda: None)
    settings = Settings(
        database_url=SecretStr(database_url), home=tmp_path, metrics_bind=Bind("127.0.0.1", 0),
        lease=timedelta(seconds=2),
    )  # fmt: skip
    async with open_node(
        settings, ("worker", "report-listener"), registrations=program.registrations, any_port=True
    ) as node:
        work = asyncio.create_task(node.run(signals=False))

        async def firing() -> dict[str, str]:
            rows = await node.installation.pool.fetch(
                "SELECT rule, summary FROM tickwright.alerts WHERE state = 'firing' AND rule LIKE '%stuck'"
            )
            return {row["rule"]: re.sub(r" \S+ #\d+ ", " W ", row["summary"]) for row in rows}

        try:
            await node.installation.of(ReportsService).records.request(
                msgspec.convert({"type": "hanging"}, ReportRequestBody), ME
            )
            await node.installation.pool.execute(
                "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, max_attempts) "
                "VALUES (now(), 'blocks', 1)"
            )

            async def both() -> bool:
                return len(await firing()) == 2

            await eventually_async(both, 60, what="both alerts")
            assert await firing() == {
                "threads_stuck": "1 synchronous handlers of W do not return; each keeps a thread.",
                "report_calls_stuck": "1 listener calls of W do not return; each keeps a slot.",
            }
            async with aiohttp.ClientSession() as client, client.get(f"http://{node.health_bind}/metrics") as answer:
                page = await answer.text()
            assert "tickwright_worker_stuck_threads 1.0" in page
            assert "tickwright_report_stuck_calls 1.0" in page
        finally:
            free.set()
            released.set()

        async def none() -> bool:
            return await firing() == {}

        await eventually_async(none, 60, what="both clear")
        node.supervisor.request_stop()
        await work
