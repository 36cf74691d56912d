"""Waiting for the results of jobs, where only notifications and new connections wake a waiter: nothing polls."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kit.waiting import PATIENCE, eventually_async
from tickwright.capabilities.jobs import results as module
from tickwright.capabilities.jobs.results import JobResults, JobState
from tickwright.engine.wakeup import connection as direct_module
from tickwright.engine.wakeup.on_demand import DirectAccess
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.store.pool import open_pool

NEVER_S = 3600.0
AWAITED = "SELECT awaited FROM ONLY tickwright.scheduled_tasks WHERE id = $1"


def stop_polling(patch: pytest.MonkeyPatch) -> None:
    """Let waiters read only when something wakes them."""
    patch.setattr(module, "POLL_S", NEVER_S)
    patch.setattr(module, "RECHECK_S", NEVER_S)


@asynccontextmanager
async def open_results(
    url: str, *, access: DirectAccess | None = None, probe: Probe = NO_PROBE
) -> AsyncIterator[JobResults]:
    """Open what a program waits with, with a pool of its own."""
    pool = await open_pool(url, max_size=4)
    results = JobResults(pool, access or DirectAccess(url), probe=probe)
    try:
        yield results
    finally:
        await results.aclose()
        await pool.close()


async def begin_wait(results: JobResults, pool: Any, job_id: int) -> "asyncio.Task[JobState]":
    """Return a task that waits for a live job, once the job is marked and the process listens."""
    waiting = asyncio.create_task(results.wait(job_id))

    async def waits() -> bool:
        return waiting.done() or (results.listens and bool(await pool.fetchval(AWAITED, job_id)))

    await eventually_async(waits, what=f"job {job_id} is awaited")
    return waiting


async def arrives(waiting: Awaitable[JobState], within_s: float = 20.0) -> JobState:
    """Return the end of a wait; fail if it does not come."""
    try:
        async with asyncio.timeout(within_s * PATIENCE):
            return await waiting
    except TimeoutError:
        raise AssertionError("RES-1 broken: the end does not arrive") from None


class ConnectGate:
    """Holds new direct connections back while it is closed."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self.connected = 0
        self._connect: Callable[[str], Awaitable[Any]] = direct_module.connect  # type: ignore[attr-defined]
        patch.setattr(direct_module, "connect", self._gated)

    async def _gated(self, url: str) -> Any:
        await self._open.wait()
        self.connected += 1
        return await self._connect(url)

    def close(self) -> None:
        """Hold later connections."""
        self._open.clear()

    def open(self) -> None:
        """Let them connect."""
        self._open.set()
